//! What is measured of an upstream, and how it stands.

use std::{collections::HashSet, sync::OnceLock};

use jiff::Timestamp;
use metrics::{Counter, Gauge, counter, gauge};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::time::Instant;

use super::{Phase, Upstream};
use crate::{
    catalog::ListKinds,
    link::{LinkError, LinkKind},
};
use countersign_config::{UpstreamTarget, UrlTransport};
use countersign_protocol::{Era, redact::redacted};
use countersign_telemetry::metrics::{
    Breaker, ConfiguredName, UPSTREAM_CALLS, UPSTREAM_IN_FLIGHT, UPSTREAM_LINKS, UPSTREAM_RESTARTS,
    UPSTREAM_UNATTRIBUTED, UPSTREAM_UP,
};

/// Upstreams that have metrics of their own; the rest share the label `other`.
const LABELS: usize = 256;

/// How a call ended, for the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Ok = 0,
    /// The server answered with an error.
    Error = 1,
    Unreachable = 2,
    Lost = 3,
    Timeout = 4,
    /// Not tried: the circuit is open, or there are too many.
    Refused = 5,
    Cancelled = 6,
}

const ENDS: [&str; 7] = ["ok", "error", "unreachable", "lost", "timeout", "refused", "cancelled"];

/// Handles of one upstream's metrics: looking them up costs more than counting.
pub struct Meters {
    pub up: Gauge,
    pub in_flight: Gauge,
    pub links: Gauge,
    pub restarts: Counter,
    pub unattributed: Counter,
    ended: [Counter; 7],
    began: Instant,
    story: Mutex<Story>,
    /// Where it has metrics of its own.
    name: Option<ConfiguredName>,
}

/// What has become of the connection.
#[derive(Debug)]
struct Story {
    since: Timestamp,
    restarts: u64,
    error: Option<String>,
    /// What was left out of its lists, and lists that it did not answer.
    faults: Vec<String>,
}

impl Meters {
    #[must_use]
    pub fn new(upstream: &str) -> Self {
        static KNOWN: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
        let mut known = KNOWN.get_or_init(Mutex::default).lock();
        let own = known.contains(upstream) || (known.len() < LABELS && known.insert(upstream.to_owned()));
        let label = if own { upstream } else { "other" }.to_owned();
        Self {
            up: gauge!(UPSTREAM_UP, "upstream" => label.clone()),
            in_flight: gauge!(UPSTREAM_IN_FLIGHT, "upstream" => label.clone()),
            links: gauge!(UPSTREAM_LINKS, "upstream" => label.clone()),
            restarts: counter!(UPSTREAM_RESTARTS, "upstream" => label.clone()),
            unattributed: counter!(UPSTREAM_UNATTRIBUTED, "upstream" => label.clone()),
            ended: ENDS.map(|end| counter!(UPSTREAM_CALLS, "upstream" => label.clone(), "outcome" => end)),
            began: Instant::now(),
            story: Mutex::new(Story { since: Timestamp::now(), restarts: 0, error: None, faults: Vec::new() }),
            name: own.then(|| ConfiguredName::new(&["upstream", "provider"], upstream)),
        }
    }

    /// The configuration has no such server any more.
    pub(crate) fn removed(&self) {
        if let Some(name) = &self.name {
            name.remove();
        }
    }

    pub fn ended(&self, how: Ended) {
        if let Some(counter) = self.ended.get(how as usize) {
            counter.increment(1);
        }
    }

    /// Milliseconds since the upstream was configured.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn moved(&self, phase: &Phase) {
        let mut story = self.story.lock();
        story.since = Timestamp::now();
        match phase {
            Phase::Down(error) => story.error = Some(shown(error)),
            Phase::Up => story.error = None,
            Phase::Connecting => {}
        }
    }

    pub(crate) fn restarted(&self) {
        self.restarts.increment(1);
        self.story.lock().restarts += 1;
    }

    pub(crate) fn faults(&self, faults: Vec<String>) {
        self.story.lock().faults = faults;
    }
}

fn shown(error: &LinkError) -> String {
    redacted(&error.to_string()).chars().take(500).collect()
}

/// How an upstream stands, for people.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// `up`, `connecting` or `down`. This and the numbers of what it offers stand beside these members already.
    #[serde(skip)]
    pub status: &'static str,
    /// `stdio`, `streamable-http`, `sse` or `websocket`: as configured, until it was reached.
    pub transport: &'static str,
    /// A command with its arguments or a URL, without secrets.
    pub target: String,
    /// `stateless` or `handshake`, once it was reached.
    pub era: Option<&'static str>,
    pub revision: Option<&'static str>,
    pub required: bool,
    /// `closed`, `half-open` or `open`.
    pub breaker: &'static str,
    pub in_flight: usize,
    pub waiting: usize,
    /// Connections beside the one that all share.
    pub links: usize,
    #[serde(skip)]
    pub tools: usize,
    #[serde(skip)]
    pub prompts: usize,
    #[serde(skip)]
    pub resources: usize,
    pub last_error: Option<String>,
    /// The first line of its latest trouble on stderr that looks like an error.
    pub stderr_error: Option<String>,
    /// The last line that it wrote to stderr, whenever that was.
    pub last_stderr: Option<String>,
    /// What it offers and the gateway leaves out, and lists that it did not answer.
    pub left_out: Vec<String>,
    /// How calls of its tools are previewed.
    pub previews: PreviewsStatus,
    /// Since when it stands so.
    pub since: Timestamp,
    /// How often it was lost and connected to again, and how often its program was started again after it had failed.
    pub restarts: u64,
}

/// The recipes for previews of a server's tools (`previews`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PreviewsStatus {
    /// The shipped sets in use.
    pub sets: Vec<&'static str>,
    /// Tools that have a recipe, by the server's own names.
    pub tools: Vec<String>,
}

impl Upstream {
    /// How it stands right now.
    #[must_use]
    pub fn status(&self) -> UpstreamStatus {
        let negotiated = self.negotiated();
        let offered = self.offered.load();
        let story = self.meters.story.lock();
        let kind = self.endpoints.first().map(|endpoint| endpoint.kind());
        let stderr = self.endpoints.first().map(|endpoint| endpoint.connector().stderr()).unwrap_or_default();
        UpstreamStatus {
            status: match self.phase() {
                Phase::Up => "up",
                Phase::Connecting => "connecting",
                Phase::Down(_) => "down",
            },
            transport: match &self.config.target {
                UpstreamTarget::Command { .. } => "stdio",
                UpstreamTarget::Url { transport: UrlTransport::Sse, .. } => "sse",
                UpstreamTarget::Url { transport: UrlTransport::WebSocket, .. } => "websocket",
                UpstreamTarget::Url { urls, .. } if urls.first().is_some_and(|u| u.scheme().starts_with("ws")) => {
                    "websocket"
                }
                UpstreamTarget::Url { .. } if kind == Some(LinkKind::Shared) => "sse",
                UpstreamTarget::Url { .. } => "streamable-http",
            },
            target: self.endpoints.first().map(|endpoint| endpoint.connector().describe()).unwrap_or_default(),
            era: negotiated.as_ref().map(|n| match n.revision.era() {
                Era::Modern => "stateless",
                Era::Legacy => "handshake",
            }),
            revision: negotiated.as_ref().map(|n| n.revision.as_str()),
            required: self.config.required,
            breaker: match self.breaker_state() {
                Breaker::Closed => "closed",
                Breaker::HalfOpen => "half-open",
                Breaker::Open => "open",
            },
            in_flight: self.places.taken(),
            waiting: self.places.waiting(),
            links: self.endpoints.iter().map(|endpoint| endpoint.pool.count()).sum(),
            tools: offered.tools.len(),
            prompts: offered.prompts.len(),
            resources: offered.resources.len(),
            last_error: story.error.clone(),
            stderr_error: stderr.error,
            last_stderr: stderr.last,
            left_out: story.faults.clone(),
            previews: PreviewsStatus {
                sets: self.config.previews.sets.clone(),
                tools: self.config.previews.by_tool.keys().cloned().collect(),
            },
            since: story.since,
            restarts: story.restarts,
        }
    }

    /// Sets the gauges that are read rather than counted.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; calls and links are far below 2^52")]
    pub(crate) fn measure(&self) {
        self.meters.in_flight.set(self.places.taken() as f64);
        self.meters.links.set(self.endpoints.iter().map(|endpoint| endpoint.pool.count()).sum::<usize>() as f64);
    }

    /// The breaker of its only endpoint; of replicas, the best.
    #[must_use]
    pub fn breaker_state(&self) -> Breaker {
        let states = self.endpoints.iter().map(|endpoint| endpoint.breaker.state());
        states.min_by_key(|state| *state as u8).unwrap_or(Breaker::Closed)
    }

    /// Whether calls are not even tried now: the circuit is open at every endpoint.
    #[must_use]
    pub fn is_refusing(&self) -> bool {
        !self.endpoints.is_empty() && self.endpoints.iter().all(|endpoint| endpoint.breaker.refuses())
    }

    /// Of which of its addresses the circuit is open.
    #[must_use]
    pub fn open_breakers(&self) -> Vec<usize> {
        let open = self.endpoints.iter().enumerate().filter(|(_, one)| one.breaker.state() == Breaker::Open);
        open.map(|(at, _)| at).collect()
    }

    /// Another gateway does not reach that address: here, too, one call is tried before others are. A program is each
    /// gateway's own.
    pub fn doubt(&self, address: usize) {
        if let (UpstreamTarget::Url { .. }, Some(endpoint)) = (&self.config.target, self.endpoints.get(address)) {
            endpoint.breaker.doubt();
            self.report_breaker();
        }
    }

    pub(crate) fn report_breaker(&self) {
        let state = self.breaker_state();
        countersign_telemetry::metrics::breaker(&self.config.name, state);
        // No connection tells that a server over stateless HTTP is away: the actor finds out when it reads the lists.
        if state == Breaker::Open && self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::Stateless) {
            self.stain(ListKinds::all());
        }
    }
}
