//! All upstreams: started, replaced and ended as the configuration says, on one thread of their own.

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

/// How long calls of a server that was removed may still run.
const DRAIN: Duration = Duration::from_secs(30);

/// Makes the connectors of one upstream: one for its command, or one for each of its URLs.
pub type Connectors = Box<dyn Fn(&Arc<UpstreamConfig>) -> Vec<Arc<dyn Connector>> + Send + Sync>;

/// See the module's page.
pub struct Upstreams {
    thread: Arbiter,
    connectors: Connectors,
    all: Mutex<Vec<Arc<Upstream>>>,
}

impl Upstreams {
    /// None yet. `data` is where stdio servers have their folders; `max_message` bounds their messages, in bytes.
    #[must_use]
    pub fn new(data: &Path, max_message: usize) -> Self {
        let data: PathBuf = data.to_owned();
        Self::with(Box::new(move |config| match &config.target {
            UpstreamTarget::Command { .. } => {
                vec![Arc::new(ChildConnector::new(config, &data).max_message(max_message))]
            }
            UpstreamTarget::Url { urls, .. } => urls.iter().map(|url| http::connector(url, config)).collect(),
        }))
    }

    /// With connectors of the caller's own.
    #[must_use]
    pub fn with(connectors: Connectors) -> Self {
        Self { thread: Arbiter::new(), connectors, all: Mutex::default() }
    }

    /// Brings what runs in line with the configuration: what is the same goes on with its connections, what is new
    /// starts in the background, what has changed or is gone is closed once its calls are through. Gives the providers
    /// in the order of the configuration.
    pub fn apply(&self, configs: &[UpstreamConfig]) -> Vec<Arc<Upstream>> {
        let mut all = self.all.lock();
        let mut old = std::mem::take(&mut *all);
        for config in configs {
            let same = old.iter().position(|upstream| *upstream.config == *config);
            if let Some(at) = same {
                all.push(old.swap_remove(at));
                continue;
            }
            let config = Arc::new(config.clone());
            if !config.previews.is_empty() {
                let previews = &config.previews;
                let (sets, own) = (previews.sets.join(", "), previews.written.join(", "));
                tracing::info!(upstream = %config.name, sets, own, "writes of its tools are previewed by recipes");
            }
            let connectors = (self.connectors)(&config);
            let upstream = Upstream::new(config, connectors);
            // The same server with other settings offers what it did, until it says otherwise.
            let before = old
                .iter()
                .find(|old| old.config.name == upstream.config.name && old.config.target == upstream.config.target);
            if let Some(before) = before {
                upstream.inherit(before);
            }
            let actor = UpstreamActor(Arc::clone(&upstream));
            let _ = upstream.actor.set(UpstreamActor::start_in_arbiter(&self.thread.handle(), move |_| actor));
            all.push(upstream);
        }
        for upstream in old {
            tracing::info!(upstream = %upstream.config.name, "it is closed: the configuration has no such server any more");
            upstream.meters.removed();
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

    /// The required ones that are not up, or whose tools cannot be called yet: `listed` says whether the route table has
    /// some of a server, which it gets a moment after the server was reached.
    #[must_use]
    pub fn missing(&self, listed: impl Fn(&str) -> bool) -> Vec<String> {
        let all = self.all.lock();
        let callable = |up: &Upstream| up.offered.load().tools.is_empty() || listed(&up.config.name);
        let missing = all.iter().filter(|up| up.config.required && !(matches!(up.phase(), Phase::Up) && callable(up)));
        missing.map(|upstream| upstream.config.name.clone()).collect()
    }

    /// Resolves when each was reached, or a try to has failed, for the first time; or after so long.
    pub async fn settled(&self, at_most: Duration) {
        let all = self.all.lock().clone();
        let _ = tokio::time::timeout(at_most, futures_util::future::join_all(all.iter().map(|u| u.settled()))).await;
    }

    /// A client's session has ended.
    pub fn session_ended(&self, session: &str) {
        for upstream in self.all.lock().iter() {
            upstream.session_ended(session);
        }
    }

    /// Sets the gauges that are read rather than counted.
    pub fn measure(&self) {
        self.all.lock().iter().for_each(|upstream| upstream.measure());
    }

    /// Closes all connections; children get a moment to end by themselves.
    pub async fn stop(&self) {
        let all = std::mem::take(&mut *self.all.lock());
        for upstream in &all {
            upstream.close();
        }
        if !all.is_empty() {
            // Links close in the background, on the thread that is stopped next.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.thread.stop();
    }
}

/// Ends an upstream that nothing new is routed to, once what runs there is through.
async fn drain(upstream: Arc<Upstream>) {
    let quiet = async {
        // Calls that found it in the old table are on their way.
        tokio::time::sleep(Duration::from_secs(1)).await;
        while upstream.places.taken() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(DRAIN, quiet).await.is_err() {
        tracing::warn!(upstream = %upstream.config.name, "calls were still running when it was closed");
    }
    upstream.close();
}
