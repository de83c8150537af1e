//! The registry of all upstreams. It starts, replaces and stops them as the configuration says, on a thread of their
//! own.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use actix::Arbiter;
use parking_lot::Mutex;

use crate::{
    credentials::{AccountHolder, CredentialSource},
    link::connectors::create_connectors,
    server::{
        Phase, Upstream, UpstreamStatus,
        accounts::{AccountCredentials, ConnectorFactory, PersonalUpstreams, UpstreamAccounts},
    },
};
use countersign_config::{OAuthGrant, UpstreamConfig};

/// The running upstreams.
pub struct Upstreams {
    thread: Arbiter,
    connectors: ConnectorFactory,
    /// Provides the accounts of servers; `None` if no server is used with one.
    credentials: Option<Arc<dyn CredentialSource>>,
    all: Mutex<Vec<Arc<Upstream>>>,
}

impl Upstreams {
    /// Creates an empty registry. `data` contains the folders of stdio servers; `max_message` limits their messages, in
    /// bytes.
    pub fn new(data: &Path, max_message: usize, credentials: Option<Arc<dyn CredentialSource>>) -> Self {
        let data: PathBuf = data.to_owned();
        let factory: ConnectorFactory = Arc::new(move |config, account| {
            create_connectors(config, &data, max_message, account.map(|account| &account.credentials))
        });
        Self::with_connectors(factory, credentials)
    }

    /// Creates an empty registry whose upstreams use the connectors of this factory.
    pub fn with_connectors(connectors: ConnectorFactory, credentials: Option<Arc<dyn CredentialSource>>) -> Self {
        Self { thread: Arbiter::new(), connectors, credentials, all: Mutex::default() }
    }

    /// Creates the upstream of a server.
    fn create(&self, config: Arc<UpstreamConfig>) -> Arc<Upstream> {
        let accounts = self.credentials.as_ref().zip(config.oauth.as_ref()).and_then(|(source, oauth)| {
            let personal_upstreams = oauth.is_personal().then(|| {
                // With the enterprise grant, each token needs a person, so the gateway cannot find out by itself whether the
                // server requires one.
                let is_required = oauth.grant == OAuthGrant::Enterprise || !source.known_holders(&config).is_empty();
                PersonalUpstreams::new(is_required, Arc::clone(&self.connectors))
            });
            Some(UpstreamAccounts {
                source: Arc::clone(source),
                account: AccountCredentials::new(&**source, &config, AccountHolder::Gateway)?,
                personal_upstreams,
                configured_upstream: Weak::new(),
            })
        });
        let connectors = (self.connectors)(&config, accounts.as_ref().map(|accounts| &accounts.account));
        Upstream::with_accounts(config, connectors, accounts)
    }

    /// Reconnects with the account of a holder at a server, after it was connected or disconnected at this node.
    pub fn reconnect_account(&self, server: &str, holder: &AccountHolder) {
        if let Some(upstream) = self.get(server) {
            upstream.reconnect_with_account(holder);
        }
    }

    /// Applies the configuration: unchanged servers keep their connections, new ones start in the background, and
    /// changed or removed ones are closed after their calls. Returns the providers in the order of the configuration.
    pub fn apply(&self, configs: &[UpstreamConfig]) -> Vec<Arc<Upstream>> {
        let mut all = self.all.lock();
        let mut old = std::mem::take(&mut *all);
        for config in configs {
            let unchanged = old.iter().position(|upstream| *upstream.config == *config);
            if let Some(index) = unchanged {
                all.push(old.swap_remove(index));
                continue;
            }
            let config = Arc::new(config.clone());
            let previews = &config.previews;
            if !previews.is_empty() {
                tracing::info!(
                    upstream = %config.name, recipe_sets = previews.sets.join(", "),
                    configured_tools = previews.tools_with_own_recipe.join(", "), "previews are made from recipes"
                );
            }
            let upstream = self.create(config);
            // The same server with other settings keeps its lists until it reports new ones.
            let previous = old
                .iter()
                .find(|old| old.config.name == upstream.config.name && old.config.target == upstream.config.target);
            if let Some(previous) = previous {
                upstream.inherit_lists(previous);
            }
            upstream.start_on(self.thread.handle());
            all.push(upstream);
        }
        for upstream in old {
            tracing::info!(upstream = %upstream.config.name, "the upstream is closed, because it was removed from the configuration or changed");
            upstream.metrics.remove();
            self.thread.spawn(upstream.drain());
        }
        all.clone()
    }

    /// Returns the upstream of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Upstream>> {
        self.all.lock().iter().find(|upstream| upstream.config.name == name).cloned()
    }

    /// Returns the names and statuses of all upstreams.
    pub fn statuses(&self) -> Vec<(String, UpstreamStatus)> {
        self.all.lock().iter().map(|upstream| (upstream.config.name.clone(), upstream.status())).collect()
    }

    /// Returns the required servers that are not up or whose tools cannot be called yet. `is_listed` returns `true` if
    /// the route table has tools of the server, which takes a moment after the server was reached. A server that a
    /// person must connect counts as up: nobody could connect it through a gateway that is not ready.
    pub fn missing_required(&self, is_listed: impl Fn(&str) -> bool) -> Vec<String> {
        let all = self.all.lock();
        let is_callable =
            |upstream: &Upstream| upstream.definitions.load().tools.is_empty() || is_listed(&upstream.config.name);
        let is_missing = |upstream: &Upstream| match upstream.phase() {
            Phase::Up => !is_callable(upstream),
            Phase::ConsentNeeded(_) => false,
            Phase::Connecting | Phase::Down(_) => true,
        };
        let missing = all.iter().filter(|upstream| upstream.config.required && is_missing(upstream));
        missing.map(|upstream| upstream.config.name.clone()).collect()
    }

    /// Waits until the first attempt to connect to each upstream has ended, for at most `max_wait`.
    pub async fn wait_until_settled(&self, max_wait: Duration) {
        let all = self.all.lock().clone();
        let settled = futures_util::future::join_all(all.iter().map(|upstream| upstream.wait_until_settled()));
        let _ = tokio::time::timeout(max_wait, settled).await;
    }

    /// Closes the links of a client session that has ended.
    pub fn close_session(&self, session: &str) {
        for upstream in self.all.lock().iter() {
            upstream.close_session(session);
        }
    }

    /// Updates the gauges whose values are read rather than counted.
    pub fn update_gauges(&self) {
        self.all.lock().iter().for_each(|upstream| upstream.update_gauges());
    }

    /// Closes all connections; children get a moment to answer and to exit. Calls that still run then fail.
    pub async fn stop(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for upstream in &all {
            upstream.close();
        }
        if !all.is_empty() {
            // Links close in the background on the thread that is stopped next.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for upstream in &all {
            upstream.end_calls();
        }
        self.thread.stop();
    }
}
