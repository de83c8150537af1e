//! Opens the accounts at servers that require OAuth, and records in the audit trail who connects and disconnects them.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::{Value, json};

use countersign_accounts::{AccountStatus, Accounts, ConnectError, FinishedConsent, StartedConsent};
use countersign_auth::ProviderSignIns;
use countersign_config::Config;
use countersign_domain::{policy::KeyHolders, principal::Principal};
use countersign_protocol::{ErrorKind, McpError};
use countersign_rest::ServerAccounts;
use countersign_runtime::{background, sealing::Sealer};
use countersign_store::{AuditRecord, Store, StoreError, StoreLocation, WriteRequest, write};
use countersign_upstream::{Upstreams, credentials::CredentialSource as _};

/// The servers, and the accounts with which they are used.
pub struct ServersWithAccounts {
    pub upstreams: Arc<Upstreams>,
    pub accounts: Arc<Accounts>,
}

/// Opens the accounts, and an empty registry of the servers that use them.
///
/// # Errors
/// Those of the store.
pub fn open(
    config: &Config,
    location: &StoreLocation,
    sealer: Sealer,
    provider_sign_ins: &Arc<ProviderSignIns>,
) -> Result<ServersWithAccounts, StoreError> {
    // The two refer to each other: the accounts report changes to the upstreams, which are created after them.
    let upstreams_slot: Arc<OnceLock<Weak<Upstreams>>> = Arc::default();
    let later_upstreams = Arc::clone(&upstreams_slot);
    let accounts = Accounts::new(
        config,
        location.accounts()?,
        sealer,
        Arc::clone(provider_sign_ins) as _,
        Box::new(move |server, holder| {
            if let Some(upstreams) = later_upstreams.get().and_then(Weak::upgrade) {
                upstreams.reconnect_account(server, holder);
            }
        }),
    );
    let source = Arc::clone(&accounts) as _;
    let upstreams = Upstreams::new(&config.data, config.transports.stdio.max_message_size, Some(source));
    let upstreams = Arc::new(upstreams);
    let _ = upstreams_slot.set(Arc::downgrade(&upstreams));
    Ok(ServersWithAccounts { upstreams, accounts })
}

/// The accounts for the REST endpoints, which record connections and disconnections in the audit trail.
#[derive(Clone)]
pub struct AuditedAccounts {
    pub accounts: Arc<Accounts>,
    pub holders: Arc<dyn KeyHolders>,
    pub store: Arc<dyn Store>,
}

impl AuditedAccounts {
    /// Writes an entry to the audit trail. If that fails, the account stays connected or disconnected.
    async fn record(&self, event: &'static str, by: &str, server: &str) {
        let details = json!({ "server": server }).to_string();
        let record = AuditRecord::new(event, Timestamp::now(), by, details);
        if let Err(error) = write(&*self.store, WriteRequest::Record(record)).await {
            tracing::error!(%error, event, by, server, "the audit trail lacks an entry about an account");
        }
    }
}

#[async_trait(?Send)]
impl ServerAccounts for AuditedAccounts {
    async fn list_statuses(&self, principal: &Principal) -> Result<Vec<AccountStatus>, McpError> {
        self.accounts.list_statuses(principal).await
    }

    async fn begin_connection(&self, server: &str, principal: &Principal) -> Result<StartedConsent, ConnectError> {
        self.accounts.begin_consent(server, principal, Timestamp::now()).await
    }

    async fn finish_connection(&self, query: &str, cookie: Option<&str>) -> Result<String, ConnectError> {
        let (this, query, cookie) = (self.clone(), query.to_owned(), cookie.map(str::to_owned));
        // Runs in a task of its own, so that the audit entry is written even if the browser disconnects.
        let task = background::spawn_with_result(async move {
            let finished =
                this.accounts.finish_consent(&query, cookie.as_deref(), &*this.holders, Timestamp::now()).await;
            let FinishedConsent { server, started_by } = finished?;
            this.record("account_connected", &started_by, &server).await;
            Ok(server)
        });
        task.await.unwrap_or(Err(ConnectError::StoreUnavailable))
    }

    async fn disconnect(&self, server: &str, principal: &Principal) -> Result<bool, McpError> {
        let (this, server, principal) = (self.clone(), server.to_owned(), principal.clone());
        // Runs in a task of its own, so that the audit entry is written even if the browser disconnects.
        let task = background::spawn_with_result(async move {
            let is_removed = this.accounts.disconnect(&server, &principal).await?;
            if is_removed {
                this.record("account_disconnected", &principal.name, &server).await;
            }
            Ok(is_removed)
        });
        let ended_early = |_| Err(McpError::new(ErrorKind::Internal, "the disconnection ended early"));
        task.await.unwrap_or_else(ended_early)
    }

    fn connect_url(&self, server: &str) -> String {
        self.accounts.connect_url(server)
    }

    fn client_metadata(&self) -> Option<Value> {
        self.accounts.client_metadata()
    }
}
