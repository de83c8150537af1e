//! The registry of all upstreams. It starts, replaces and stops them as the configuration says, on a thread of their own.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use actix::{Actor, Arbiter};
use parking_lot::Mutex;

use crate::{
    link::{Connector, child::ChildConnector, http},
    server::{Phase, Upstream, UpstreamActor, UpstreamStatus},
};
use countersign_config::{UpstreamConfig, UpstreamTarget};

/// Time limit for calls in flight to a removed server.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Creates the connectors of one upstream: one for its command, or one for each of its URLs.
pub type ConnectorFactory = Box<dyn Fn(&Arc<UpstreamConfig>) -> Vec<Arc<dyn Connector>> + Send + Sync>;

/// The running upstreams.
pub struct Upstreams {
    thread: Arbiter,
    connectors: ConnectorFactory,
    all: Mutex<Vec<Arc<Upstream>>>,
}

impl Upstreams {
    /// Creates an empty registry. `data` contains the folders of stdio servers; `max_message` limits their messages, in
    /// bytes.
    #[must_use]
    pub fn new(data: &Path, max_message: usize) -> Self {
        let data: PathBuf = data.to_owned();
        Self::with_connectors(Box::new(move |config| match &config.target {
            UpstreamTarget::Command { .. } => {
                vec![Arc::new(ChildConnector::new(config, &data, max_message))]
            }
            UpstreamTarget::Url { urls, .. } => urls.iter().map(|url| http::connector(url, config)).collect(),
        }))
    }

    /// Creates an empty registry whose upstreams use the connectors of this factory.
    #[must_use]
    pub fn with_connectors(connectors: ConnectorFactory) -> Self {
        Self { thread: Arbiter::new(), connectors, all: Mutex::default() }
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
            if !config.previews.is_empty() {
                let previews = &config.previews;
                let (sets, own) = (previews.sets.join(", "), previews.written.join(", "));
                tracing::info!(upstream = %config.name, sets, own, "recipes preview the writes of the tools of this upstream");
            }
            let connectors = (self.connectors)(&config);
            let upstream = Upstream::new(config, connectors);
            // The same server with other settings keeps its lists until it reports new ones.
            let previous = old
                .iter()
                .find(|old| old.config.name == upstream.config.name && old.config.target == upstream.config.target);
            if let Some(previous) = previous {
                upstream.inherit_lists(previous);
            }
            let actor = UpstreamActor(Arc::clone(&upstream));
            let _ = upstream.actor.set(UpstreamActor::start_in_arbiter(&self.thread.handle(), move |_| actor));
            all.push(upstream);
        }
        for upstream in old {
            tracing::info!(upstream = %upstream.config.name, "the upstream is closed, because it was removed from the configuration or changed");
            upstream.metrics.remove();
            self.thread.spawn(drain(upstream));
        }
        all.clone()
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<Upstream>> {
        self.all.lock().iter().find(|upstream| upstream.config.name == name).cloned()
    }

    #[must_use]
    pub fn statuses(&self) -> Vec<(String, UpstreamStatus)> {
        self.all.lock().iter().map(|upstream| (upstream.config.name.clone(), upstream.status())).collect()
    }

    /// Returns the required servers that are not up or whose tools cannot be called yet. `is_listed` returns `true` if the
    /// route table has tools of the server, which takes a moment after the server was reached.
    #[must_use]
    pub fn missing_required(&self, is_listed: impl Fn(&str) -> bool) -> Vec<String> {
        let all = self.all.lock();
        let callable = |up: &Upstream| up.definitions.load().tools.is_empty() || is_listed(&up.config.name);
        let missing = all.iter().filter(|up| up.config.required && !(matches!(up.phase(), Phase::Up) && callable(up)));
        missing.map(|upstream| upstream.config.name.clone()).collect()
    }

    /// Waits until the first attempt to connect to each upstream has ended, for at most `max_wait`.
    pub async fn wait_until_settled(&self, max_wait: Duration) {
        let all = self.all.lock().clone();
        let _ =
            tokio::time::timeout(max_wait, futures_util::future::join_all(all.iter().map(|u| u.wait_until_settled())))
                .await;
    }

    /// Closes the links of a client session that has ended.
    pub fn session_ended(&self, session: &str) {
        for upstream in self.all.lock().iter() {
            upstream.session_ended(session);
        }
    }

    /// Updates the gauges whose values are read rather than counted.
    pub fn update_gauges(&self) {
        self.all.lock().iter().for_each(|upstream| upstream.update_gauges());
    }

    /// Closes all connections; children get a moment to exit.
    pub async fn stop(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for upstream in &all {
            upstream.close();
        }
        if !all.is_empty() {
            // Links close in the background on the thread that is stopped next.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.thread.stop();
    }
}

/// Closes an upstream that is no longer routed to, after its calls have finished.
async fn drain(upstream: Arc<Upstream>) {
    let calls_finished = async {
        // Calls that resolved the upstream in the old route table may still arrive.
        tokio::time::sleep(Duration::from_secs(1)).await;
        while upstream.call_slots.in_use() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(DRAIN_TIMEOUT, calls_finished).await.is_err() {
        tracing::warn!(upstream = %upstream.config.name, "the upstream was closed while calls to it were still running");
    }
    upstream.close();
}
