//! Finds the upstream that a principal uses at a server where people have accounts of their own. It is created on demand, and its
//! links, pools, caches and circuit breakers serve no other person. One of these upstreams supplies the lists that are offered to
//! everybody, without resources (`upkeep::personal_lists`).

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use jiff::Timestamp;

use crate::{
    credentials::{AccountHolder, AuthorizationError, Credentials},
    server::{
        Phase, Upstream,
        accounts::{AccountCredentials, PersonalUpstreams, UpstreamAccounts},
    },
};
use countersign_domain::principal::Principal;
use countersign_protocol::McpError;

/// The maximum time that [`Upstream::for_principal`] waits for the first connection with an account. After that, each call
/// waits for the connection by itself.
const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

impl Upstream {
    /// Returns the upstream that the principal uses: this one, or that of the principal's own account. A new one is returned after
    /// its first attempt to connect.
    ///
    /// # Errors
    /// `AUTHORIZATION` if a person must connect first; `UPSTREAM_UNAVAILABLE` if the authorization server does not
    /// answer.
    pub async fn for_principal(self: &Arc<Self>, principal: &Principal) -> Result<Arc<Self>, McpError> {
        let Some(accounts) = &self.accounts else { return Ok(Arc::clone(self)) };
        let (holder, current) = match (self.personal_upstreams(), &accounts.personal_upstreams) {
            // The server has not yet shown whether it requires accounts.
            (None, Some(_)) => return Ok(Arc::clone(self)),
            (None, None) => (accounts.account.holder.clone(), Some(Arc::clone(self))),
            (Some(personal_upstreams), _) => {
                let holder = accounts.source.holder(&self.config, principal);
                let open = personal_upstreams.find_open(&holder);
                (holder, open)
            }
        };
        // The account of an upstream that is connected needs no check.
        if let Some(upstream) = current.as_ref().filter(|upstream| upstream.is_up()) {
            return Ok(Arc::clone(upstream));
        }
        if let Some(credentials) = accounts.source.credentials(&self.config, &holder) {
            self.prepare(credentials).await.map_err(|failure| self.authorization_error(failure))?;
        }
        let upstream = match (current, self.personal_upstreams()) {
            (None, Some(personal_upstreams)) => self.open_personal(personal_upstreams, &holder),
            (current, _) => current.unwrap_or_else(|| Arc::clone(self)),
        };
        upstream.retry_with_account();
        if !upstream.was_reached() {
            let limit = self.config.timeout.min(FIRST_CONNECTION_TIMEOUT);
            let _ = tokio::time::timeout(limit, upstream.wait_until_settled()).await;
        }
        match upstream.phase() {
            Phase::ConsentNeeded(reason) => Err(self.authorization_error(AuthorizationError::ConsentNeeded(reason))),
            _ => Ok(upstream),
        }
    }

    /// Returns the time at which the principal's person connected their account, whether or not it works.
    pub fn connected_at(&self, principal: &Principal) -> Option<Timestamp> {
        let source = &self.accounts.as_ref()?.source;
        source.credentials(&self.config, &source.holder(&self.config, principal))?.connected_at()
    }

    /// Tries to connect again at once if the upstream waited for the consent of a person.
    fn retry_with_account(&self) {
        let is_needed = self.phase.send_if_modified(|phase| {
            let is_needed = matches!(phase, Phase::ConsentNeeded(_));
            if is_needed {
                *phase = Phase::Connecting;
                self.first_attempt_done.store(false, Ordering::Release);
            }
            is_needed
        });
        if is_needed {
            self.account_changed.notify_one();
        }
    }

    /// Opens the upstream of a person.
    pub(crate) fn open_personal(
        self: &Arc<Self>,
        personal_upstreams: &PersonalUpstreams,
        holder: &AccountHolder,
    ) -> Arc<Self> {
        let Some(accounts) = &self.accounts else { return Arc::clone(self) };
        personal_upstreams.get_or_open(holder, || {
            let source = Arc::clone(&accounts.source);
            let account = AccountCredentials::new(&*source, &self.config, holder.clone());
            let connectors = (personal_upstreams.connectors)(&self.config, account.as_ref());
            let configured_upstream = Arc::downgrade(self);
            let accounts = account.map(|account| UpstreamAccounts {
                source,
                account,
                personal_upstreams: None,
                configured_upstream,
            });
            let upstream = Self::with_accounts(Arc::clone(&self.config), connectors, accounts);
            if let Some(thread) = self.thread.get() {
                upstream.start_on(thread.clone());
            }
            upstream
        })
    }

    /// Checks the account of this upstream before an approved change is claimed, and refreshes its token if it is about to
    /// expire.
    ///
    /// # Errors
    /// As [`Self::for_principal`].
    pub(crate) async fn prepare_account(&self) -> Result<(), McpError> {
        let accounts = self.accounts.as_ref().filter(|accounts| accounts.personal_upstreams.is_none());
        let Some(accounts) = accounts else { return Ok(()) };
        let prepared = self.prepare(Arc::clone(&accounts.account.credentials)).await;
        prepared.map_err(|failure| self.authorization_error(failure))
    }

    /// Prepares credentials on the thread of the upstreams, because their futures stay on one thread.
    async fn prepare(&self, credentials: Arc<dyn Credentials>) -> Result<(), AuthorizationError> {
        let prepared = self.run_on_thread(move || async move { credentials.prepare().await }).await;
        prepared.unwrap_or_else(|| Err(AuthorizationError::Unavailable("is being closed".to_owned())))
    }

    /// Connects again after a person has connected or disconnected the account of this holder.
    pub(crate) fn reconnect_with_account(&self, holder: &AccountHolder) {
        let Some(accounts) = &self.accounts else { return };
        match (&accounts.personal_upstreams, holder) {
            (Some(personal_upstreams), _) => {
                if let Some(closed) = personal_upstreams.remove(holder) {
                    self.spawn_on_thread(move || closed.drain());
                }
                // A stored account proves that the server requires one.
                if accounts.source.known_holders(&self.config).contains(holder) {
                    self.require_personal_accounts();
                }
            }
            (None, _) if accounts.account.holder == *holder => {
                self.close_links();
            }
            (None, _) => return,
        }
        self.account_changed.notify_one();
    }
}
