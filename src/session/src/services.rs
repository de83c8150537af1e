//! What handlers need besides what every exchange does.

use std::{ops::Deref, sync::Arc};

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::{
    cluster::Cluster,
    registry::Registry,
    state::{deciding_keys::DecidingKeys, limiter::Limiter, local_tasks::Locals, opened_pages::Opened},
};
use countersign_bridge::Bridge;
use countersign_config::Config;
use countersign_domain::principal::Principal;
use countersign_exchange::{
    services::Services,
    shared::{Channel, SessionShared, shown},
};
use countersign_provider::Meter;

/// See the module's page.
pub struct SessionServices {
    pub shared: Arc<Services>,
    pub bridge: Arc<Bridge>,
    pub registry: Arc<Registry>,
    pub limiter: Limiter,
    pub deciding_keys: DecidingKeys,
    /// Changes whose pages their clients were already asked to open.
    pub opened_pages: Opened,
    /// Calls that run here as tasks.
    pub local_tasks: Locals,
    /// The other nodes, where several gateways serve the store.
    pub cluster: Option<Box<dyn Cluster>>,
}

impl Deref for SessionServices {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.shared
    }
}

impl SessionServices {
    #[must_use]
    pub fn new(config: &Config, shared: Arc<Services>, bridge: Bridge, registry: Arc<Registry>) -> Self {
        Self {
            shared,
            bridge: Arc::new(bridge),
            registry,
            limiter: Limiter::new(&config.limits),
            deciding_keys: DecidingKeys::default(),
            opened_pages: Opened::default(),
            local_tasks: Locals::default(),
            cluster: None,
        }
    }

    /// Charges the time that a module takes for a call to the rate of that principal, also where the client is gone by then.
    #[must_use]
    pub fn meter(self: &Arc<Self>, principal: &Arc<Principal>) -> Meter {
        let (services, principal) = (Arc::clone(self), Arc::clone(principal));
        Meter(Arc::new(move |time| services.limiter.charge(&principal.name, time, services.changes.nodes().live())))
    }

    /// Prometheus text, with the gauges that are read rather than counted.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        use countersign_telemetry::{
            Queue,
            metrics::{body_bytes, queue_length},
        };
        let mut queued = 0;
        self.registry.for_each(|session| {
            if let Channel::Outbox(outbox) = &session.channel {
                queued += outbox.len();
            }
        });
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; queues are far below 2^52")]
        queue_length(Queue::Outbox).set(queued as f64);
        #[expect(clippy::cast_precision_loss, reason = "so are bodies")]
        body_bytes().set(self.state.inflow.held() as f64);
        self.upstreams.measure();
        self.metrics.render()
    }

    /// Tells the feed of a session that came or went.
    pub fn session_event(&self, kind: &'static str, session: &SessionShared) {
        if matches!(session.channel, Channel::None) && session.facts().is_none() {
            return;
        }
        let event = json!({ "type": kind, "at": Timestamp::now().to_string(), "session": SessionInfo::of(session) });
        self.feed.publish_session(&event);
    }
}

/// A live session, as people see it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionInfo {
    /// Only its beginning ever leaves: the whole id lets whoever holds it use the session.
    #[serde(serialize_with = "beginning")]
    pub id: String,
    /// `http`, `websocket`, `stdio` or `sse`.
    pub transport: String,
    pub revision: Option<String>,
    pub client_name: Option<String>,
    pub client_version: Option<String>,
    /// The principal's name.
    pub principal: String,
    pub created_at: Timestamp,
    pub last_active_at: Timestamp,
    /// Its client has a connection open. One that has none may have closed without ending its session, which is kept for
    /// a while for it to come back.
    pub connected: bool,
    /// Requests that are being answered.
    pub in_flight: usize,
}

impl SessionInfo {
    #[must_use]
    pub fn of(session: &SessionShared) -> Self {
        let facts = session.facts();
        let client = facts.as_ref().and_then(|f| f.client.as_ref());
        Self {
            id: session.id.to_string(),
            transport: session.transport.as_str().to_owned(),
            revision: facts.as_ref().map(|f| f.revision.as_str().to_owned()),
            client_name: client.map(|c| c.name.clone()),
            client_version: client.map(|c| c.version.clone()),
            principal: session.principal().name.clone(),
            created_at: session.created,
            last_active_at: session.last_active(),
            connected: session.is_connected(),
            in_flight: session.in_flight(),
        }
    }
}

fn beginning<S: Serializer>(id: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{}…", shown(id)))
}
