//! All accounts: begins and finishes consents, lists accounts, and provides the links with credentials.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    authorizer::AccountAuthorizer,
    client::{ChangeListener, IdentityProvider, OAuthClient},
    consent::{self, ConnectError, FinishedConsent, StartedConsent},
    oauth::registration::{ClientAddresses, metadata_document},
    sealed_store::{SealedStore, UnsealedAccount},
    server::AccountServer,
};
use countersign_config::{AccountKind, AuthMode, Config, UpstreamConfig, UpstreamOAuth};
use countersign_domain::{
    account_holder::AccountHolder,
    changes::person::person_key,
    policy::KeyHolders,
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::sealing::Sealer;
use countersign_store::accounts::{AccountKey, AccountStore};
use countersign_upstream::credentials::{CredentialSource, Credentials};

/// The cookie of a consent that has begun.
pub const CONSENT_COOKIE: &str = "countersign_connect";
/// The holder of all accounts of people in `auth.mode: local`, where all principals are one person.
const LOCAL_USER: &str = "local";

/// The accounts at all servers.
pub struct Accounts {
    mode: AuthMode,
    client: Arc<OAuthClient>,
    /// The configured servers that may require accounts, in the order of the configuration.
    servers: Mutex<Vec<Arc<AccountServer>>>,
    authorizers: Mutex<HashMap<AccountKey, Arc<AccountAuthorizer>>>,
}

/// The state of a holder's account at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountStatus {
    pub server: String,
    pub kind: AccountKind,
    pub is_connected: bool,
    /// `true` if the principal may connect and disconnect it.
    pub may_connect: bool,
    /// The reason why the person must connect again, if they must.
    pub problem: Option<String>,
    pub connected_at: Option<Timestamp>,
    pub issuer: Option<String>,
    pub scopes: Vec<String>,
}

impl Accounts {
    /// Creates the accounts, and reads which ones the store holds. `on_change` is called with a server and a holder
    /// after this node connected or disconnected them, or noticed that another node did. The ID tokens of the
    /// `identity_provider` count at servers with `grant: enterprise`.
    pub fn new(
        config: &Config,
        store: Arc<dyn AccountStore>,
        sealer: Sealer,
        identity_provider: Arc<dyn IdentityProvider>,
        on_change: ChangeListener,
    ) -> Arc<Self> {
        let addresses = ArcSwap::from_pointee(ClientAddresses::new(&base_url(config)));
        let store = SealedStore::new(store, sealer);
        let unanswered_consents = Mutex::default();
        let client = Arc::new(OAuthClient { store, addresses, identity_provider, on_change, unanswered_consents });
        let (mode, servers, authorizers) = (config.auth.mode, Mutex::default(), Mutex::default());
        let created = Arc::new(Self { mode, client, servers, authorizers });
        created.set_servers(&config.upstreams);
        created
    }

    /// Replaces the address of the gateway, whose port may be known only once it listens.
    pub fn set_base_url(&self, base_url: &str) {
        self.client.addresses.store(Arc::new(ClientAddresses::new(base_url)));
    }

    /// Replaces the configured servers.
    pub fn set_servers(&self, servers: &[UpstreamConfig]) {
        let mut current = self.servers.lock();
        let servers = servers.iter().filter_map(AccountServer::new);
        *current = servers
            .map(|server| find_with_same_accounts(&current, &server).unwrap_or_else(|| Arc::new(server)))
            .collect();
        self.authorizers.lock().retain(|_, authorizer| current.iter().any(|server| authorizer.belongs_to(server)));
    }

    /// Returns the server with this name, if people connect to it.
    fn find_server(&self, name: &str) -> Result<Arc<AccountServer>, ConnectError> {
        let servers = self.servers.lock();
        let server = servers.iter().find(|server| server.name == name && server.requires_consent());
        server.cloned().ok_or(ConnectError::UnknownServer)
    }

    /// Begins the consent of a principal to a server.
    ///
    /// # Errors
    /// [`ConnectError::UnknownServer`]; [`ConnectError::AdminOnly`] for the account of the gateway;
    /// [`ConnectError::StoreUnavailable`]; otherwise a problem of the server or its authorization server.
    pub async fn begin_consent(
        &self,
        server: &str,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<StartedConsent, ConnectError> {
        let server = self.find_server(server)?;
        let key = server.account_key(self.holder_for(&server.oauth, principal));
        if !self.may_connect(&key.holder, principal.role) {
            return Err(ConnectError::AdminOnly);
        }
        consent::begin(&self.client, &server, key, principal, now).await
    }

    /// Finishes a consent with the query of the browser's request and its [`CONSENT_COOKIE`], if the key or the person
    /// who began it is still among the `key_holders` with a sufficient role.
    ///
    /// # Errors
    /// [`ConnectError::Interrupted`] without a valid cookie for this query; [`ConnectError::AccessEnded`] and
    /// [`ConnectError::AdminOnly`] if the key or person lost access; otherwise as [`Self::begin_consent`].
    pub async fn finish_consent(
        &self,
        query: &str,
        cookie: Option<&str>,
        key_holders: &dyn KeyHolders,
        now: Timestamp,
    ) -> Result<FinishedConsent, ConnectError> {
        let pending = cookie.and_then(|cookie| consent::open(&self.client, cookie, now));
        let pending = pending.ok_or(ConnectError::Interrupted)?;
        let server = self.find_server(&pending.account.server)?;
        let key = pending.account.clone();
        let (started_by, api_key_id) = (pending.started_by.clone(), pending.api_key_id.clone());
        let tokens = consent::redeem(&self.client, &server, pending, query, now).await?;
        // A person who signed in with a code of `countersign open` has no key.
        if let Some(id) = api_key_id {
            let key_holder = key_holders.holder(&id).map_err(|_| ConnectError::StoreUnavailable)?;
            let role = key_holder.map(|holder| holder.role).filter(|role| role.may_view());
            if !self.may_connect(&key.holder, role.ok_or(ConnectError::AccessEnded)?) {
                return Err(ConnectError::AdminOnly);
            }
        }
        consent::connect(&self.client, &server, &key, tokens, now).await?;
        self.publish_change(&key);
        Ok(FinishedConsent { server: key.server, started_by })
    }

    /// Removes the account of a principal. Returns `false` if there was none.
    ///
    /// # Errors
    /// `NOT_FOUND` if no server of this name needs an account; `STORE_UNAVAILABLE`; `FORBIDDEN` for the account of the gateway,
    /// unless the principal is an admin.
    pub async fn disconnect(&self, server: &str, principal: &Principal) -> Result<bool, McpError> {
        let server = self.find_server(server).map_err(|error| McpError::new(ErrorKind::NotFound, error.to_string()))?;
        let key = server.account_key(self.holder_for(&server.oauth, principal));
        if !self.may_connect(&key.holder, principal.role) {
            return Err(McpError::new(ErrorKind::Forbidden, "only an admin can disconnect this server"));
        }
        let was_connected = self.client.store.remove(&key).await?;
        if was_connected {
            self.publish_change(&key);
        }
        Ok(was_connected)
    }

    /// Returns the accounts that a principal uses at the servers that require one, in the order of the configuration.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    pub async fn list_statuses(&self, principal: &Principal) -> Result<Vec<AccountStatus>, McpError> {
        let servers: Vec<_> = self.servers.lock().iter().filter(|server| server.requires_consent()).cloned().collect();
        let (mut statuses, now) = (Vec::new(), Timestamp::now());
        for server in servers {
            let key = server.account_key(self.holder_for(&server.oauth, principal));
            let account = self.client.read_account(&key, &server).await?;
            // With `oauth: auto`, a server that never refused a request needs no account.
            let needs_account = account.is_some()
                || server.requires_token()
                || server.oauth != UpstreamOAuth::default()
                || self.client.store.has_accounts(&server.name, &server.target);
            if needs_account {
                let account = account.as_ref();
                let problem = account.and_then(|account| account.reconnect_reason(now));
                let is_usable = |account: &UnsealedAccount| problem.is_none() || account.tokens.is_valid(now);
                statuses.push(AccountStatus {
                    kind: if key.holder == AccountHolder::Gateway { AccountKind::Gateway } else { AccountKind::Person },
                    is_connected: account.is_some_and(is_usable),
                    may_connect: self.may_connect(&key.holder, principal.role),
                    server: key.server,
                    problem: problem.map(|reason| reason.text().to_owned()),
                    connected_at: account.map(|account| account.connected_at),
                    issuer: account.map(|account| account.tokens.issuer().to_owned()),
                    scopes: account.map(|account| account.tokens.scopes.clone()).unwrap_or_default(),
                });
            }
        }
        Ok(statuses)
    }

    /// Returns the Client ID Metadata Document (2026-07-28/basic/authorization/client-registration), or `None` without
    /// a `public_url` that uses HTTPS.
    pub fn client_metadata(&self) -> Option<Value> {
        metadata_document(&self.client.addresses.load())
    }

    /// Returns the holder of the account that a principal uses at a server.
    fn holder_for(&self, oauth: &UpstreamOAuth, principal: &Principal) -> AccountHolder {
        match self.mode {
            _ if !oauth.is_personal() => AccountHolder::Gateway,
            AuthMode::Local => LOCAL_USER.into(),
            AuthMode::Keys => person_key(principal.person_name()).into(),
        }
    }

    /// Returns `true` if a principal of this role may connect and disconnect the account that they use.
    fn may_connect(&self, holder: &AccountHolder, role: Role) -> bool {
        *holder != AccountHolder::Gateway || role == Role::Admin || self.mode == AuthMode::Local
    }

    /// Makes the links read the account again, and reports the change to the listener.
    fn publish_change(&self, key: &AccountKey) {
        let authorizer = self.authorizers.lock().get(key).cloned();
        if let Some(authorizer) = authorizer {
            authorizer.forget_tokens();
        }
        (self.client.on_change)(&key.server, &key.holder);
    }
}

impl CredentialSource for Accounts {
    fn credentials(&self, server: &Arc<UpstreamConfig>, holder: &AccountHolder) -> Option<Arc<dyn Credentials>> {
        let configured = AccountServer::new(server)?;
        let Some(server) = find_with_same_accounts(&self.servers.lock(), &configured) else {
            // An upstream that is being closed still has its old configuration, which must not replace the new one.
            return Some(Arc::new(AccountAuthorizer::new(&self.client, &Arc::new(configured), holder.clone())));
        };
        let create = || Arc::new(AccountAuthorizer::new(&self.client, &server, holder.clone()));
        let mut authorizers = self.authorizers.lock();
        let authorizer = authorizers.entry(server.account_key(holder.clone())).or_insert_with(create);
        if !authorizer.belongs_to(&server) {
            *authorizer = create();
        }
        Some(Arc::clone(authorizer) as _)
    }

    fn holder(&self, server: &UpstreamConfig, principal: &Principal) -> AccountHolder {
        server.oauth.as_ref().map_or(AccountHolder::Gateway, |oauth| self.holder_for(oauth, principal))
    }

    fn known_holders(&self, server: &UpstreamConfig) -> Vec<AccountHolder> {
        let Some(server) = AccountServer::new(server) else { return Vec::new() };
        let is_personal = server.oauth.is_personal();
        if !server.requires_consent() {
            let authorizers = self.authorizers.lock();
            let at_server = authorizers
                .iter()
                .filter(|(key, authorizer)| key.server == server.name && authorizer.has_obtained_token());
            let mut holders: Vec<_> = at_server.map(|(key, _)| key.holder.clone()).collect();
            holders.sort_unstable();
            return if is_personal { holders } else { vec![AccountHolder::Gateway] };
        }
        let holders = self.client.store.holders(&server.name, &server.target).into_iter();
        // After `oauth.as` was changed, accounts of the other kind remain.
        holders.filter(|holder| (*holder != AccountHolder::Gateway) == is_personal).collect()
    }

    fn connect_url(&self, server: &str) -> String {
        format!("{}{}/connect", self.client.addresses.load().base_url, server_page(server))
    }
}

/// Returns the address of the gateway as a browser reaches it, without a slash at its end.
fn base_url(config: &Config) -> String {
    match &config.public_url {
        Some(url) => url.trim_end_matches('/').to_owned(),
        None => config.local_url(config.listen),
    }
}

/// Returns the path of the page of a server in the dashboard, to append to the address of the gateway.
pub fn server_page(name: &str) -> String {
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let segment: String = name
        .bytes()
        .map(|byte| if is_unreserved(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("/#/servers/{segment}")
}

/// Returns the server among these that accepts the same accounts and tokens.
fn find_with_same_accounts(servers: &[Arc<AccountServer>], server: &AccountServer) -> Option<Arc<AccountServer>> {
    servers.iter().find(|known| known.has_same_accounts(server)).cloned()
}
