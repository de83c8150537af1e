//! Metrics and status of an upstream.

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
use countersign_protocol::{Era, redact::redact};
use countersign_telemetry::metrics::{
    Breaker, ConfiguredName, UPSTREAM_CALLS, UPSTREAM_IN_FLIGHT, UPSTREAM_LINKS, UPSTREAM_RESTARTS,
    UPSTREAM_UNATTRIBUTED, UPSTREAM_UP,
};

/// Maximum number of upstreams with their own metrics; the others share the label `other`.
const MAX_LABELED_UPSTREAMS: usize = 256;

/// The outcome of a call in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Ok = 0,
    /// The server answered with an error.
    Error = 1,
    Unreachable = 2,
    Lost = 3,
    Timeout = 4,
    /// Not tried because the circuit is open or there are too many calls.
    Refused = 5,
    Cancelled = 6,
}

const OUTCOME_LABELS: [&str; 7] = ["ok", "error", "unreachable", "lost", "timeout", "refused", "cancelled"];

/// Metric handles of one upstream, because looking them up costs more than counting.
pub struct UpstreamMetrics {
    pub up: Gauge,
    pub in_flight: Gauge,
    pub links: Gauge,
    pub restarts: Counter,
    pub unattributed: Counter,
    outcomes: [Counter; 7],
    created_at: Instant,
    history: Mutex<ConnectionHistory>,
    /// `None` if the upstream shares the label `other`.
    name: Option<ConfiguredName>,
}

/// The history of the connection.
#[derive(Debug)]
struct ConnectionHistory {
    since: Timestamp,
    restarts: u64,
    error: Option<String>,
    /// Omitted definitions, and lists that could not be read.
    faults: Vec<String>,
}

impl UpstreamMetrics {
    #[must_use]
    pub fn new(upstream: &str) -> Self {
        static LABELED_NAMES: OnceLock<Mutex<HashSet<String>>> = OnceLock::new();
        let mut known = LABELED_NAMES.get_or_init(Mutex::default).lock();
        let has_own_label =
            known.contains(upstream) || (known.len() < MAX_LABELED_UPSTREAMS && known.insert(upstream.to_owned()));
        let label = if has_own_label { upstream } else { "other" }.to_owned();
        Self {
            up: gauge!(UPSTREAM_UP, "upstream" => label.clone()),
            in_flight: gauge!(UPSTREAM_IN_FLIGHT, "upstream" => label.clone()),
            links: gauge!(UPSTREAM_LINKS, "upstream" => label.clone()),
            restarts: counter!(UPSTREAM_RESTARTS, "upstream" => label.clone()),
            unattributed: counter!(UPSTREAM_UNATTRIBUTED, "upstream" => label.clone()),
            outcomes: OUTCOME_LABELS
                .map(|outcome| counter!(UPSTREAM_CALLS, "upstream" => label.clone(), "outcome" => outcome)),
            created_at: Instant::now(),
            history: Mutex::new(ConnectionHistory {
                since: Timestamp::now(),
                restarts: 0,
                error: None,
                faults: Vec::new(),
            }),
            name: has_own_label.then(|| ConfiguredName::new(&["upstream", "provider"], upstream)),
        }
    }

    /// Removes the metrics of a server that is no longer configured.
    pub(crate) fn remove(&self) {
        if let Some(name) = &self.name {
            name.remove();
        }
    }

    pub fn record_outcome(&self, outcome: CallOutcome) {
        if let Some(counter) = self.outcomes.get(outcome as usize) {
            counter.increment(1);
        }
    }

    /// Returns the milliseconds since the upstream was configured.
    #[must_use]
    pub fn millis(&self) -> u64 {
        u64::try_from(self.created_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn record_phase(&self, phase: &Phase) {
        let mut history = self.history.lock();
        history.since = Timestamp::now();
        match phase {
            Phase::Down(error) => history.error = Some(error_text(error)),
            Phase::Up => history.error = None,
            Phase::Connecting => {}
        }
    }

    pub(crate) fn record_restart(&self) {
        self.restarts.increment(1);
        self.history.lock().restarts += 1;
    }

    pub(crate) fn set_faults(&self, faults: Vec<String>) {
        self.history.lock().faults = faults;
    }
}

fn error_text(error: &LinkError) -> String {
    redact(&error.to_string()).chars().take(500).collect()
}

/// The status of an upstream for operators.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// `up`, `connecting` or `down`. Skipped, like the counts below, because the response already contains these
    /// members.
    #[serde(skip)]
    pub status: &'static str,
    /// `stdio`, `streamable-http`, `sse` or `websocket`; the configured transport until the server was reached.
    pub transport: &'static str,
    /// The command with its arguments, or the URL, without secrets.
    pub target: String,
    /// `stateless` or `handshake`, after the server was reached.
    pub era: Option<&'static str>,
    pub revision: Option<&'static str>,
    pub required: bool,
    /// `closed`, `half-open` or `open`.
    pub breaker: &'static str,
    pub in_flight: usize,
    pub waiting: usize,
    /// Number of connections in addition to the shared one.
    pub links: usize,
    #[serde(skip)]
    pub tools: usize,
    #[serde(skip)]
    pub prompts: usize,
    #[serde(skip)]
    pub resources: usize,
    pub last_error: Option<String>,
    /// The first line of the latest output on stderr that looks like an error.
    pub stderr_error: Option<String>,
    /// The last line on stderr, regardless of its age.
    pub last_stderr: Option<String>,
    /// Omitted definitions, and lists that could not be read.
    pub left_out: Vec<String>,
    /// The recipes for previews of its tools.
    pub previews: PreviewsStatus,
    /// The time of the last change of the status.
    pub since: Timestamp,
    /// Number of times that the connection was lost and opened again, or that the program was restarted after a
    /// failure.
    pub restarts: u64,
}

/// The recipes for previews of a server's tools (`previews`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PreviewsStatus {
    /// Names of the built-in recipe sets in use.
    pub sets: Vec<&'static str>,
    /// The server's own names of tools that have a recipe.
    pub tools: Vec<String>,
}

impl Upstream {
    /// Returns the current status.
    #[must_use]
    pub fn status(&self) -> UpstreamStatus {
        let negotiated = self.negotiated();
        let definitions = self.definitions.load();
        let history = self.metrics.history.lock();
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
            in_flight: self.call_slots.in_use(),
            waiting: self.call_slots.queued(),
            links: self.endpoints.iter().map(|endpoint| endpoint.pool.count()).sum(),
            tools: definitions.tools.len(),
            prompts: definitions.prompts.len(),
            resources: definitions.resources.len(),
            last_error: history.error.clone(),
            stderr_error: stderr.error,
            last_stderr: stderr.last,
            left_out: history.faults.clone(),
            previews: PreviewsStatus {
                sets: self.config.previews.sets.clone(),
                tools: self.config.previews.by_tool.keys().cloned().collect(),
            },
            since: history.since,
            restarts: history.restarts,
        }
    }

    /// Updates the gauges whose values are read rather than counted.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; calls and links are far below 2^52")]
    pub(crate) fn update_gauges(&self) {
        self.metrics.in_flight.set(self.call_slots.in_use() as f64);
        self.metrics.links.set(self.endpoints.iter().map(|endpoint| endpoint.pool.count()).sum::<usize>() as f64);
    }

    /// Returns the state of the circuit breaker; the best one if there are replicas.
    #[must_use]
    pub fn breaker_state(&self) -> Breaker {
        let states = self.endpoints.iter().map(|endpoint| endpoint.breaker.state());
        states.min_by_key(|state| *state as u8).unwrap_or(Breaker::Closed)
    }

    /// Returns `true` if calls are refused, because the circuit is open at every endpoint.
    #[must_use]
    pub fn is_refusing(&self) -> bool {
        !self.endpoints.is_empty() && self.endpoints.iter().all(|endpoint| endpoint.breaker.is_refusing())
    }

    /// Returns the indices of the endpoints whose circuit is open.
    #[must_use]
    pub fn open_breakers(&self) -> Vec<usize> {
        let open = self.endpoints.iter().enumerate().filter(|(_, endpoint)| endpoint.breaker.state() == Breaker::Open);
        open.map(|(index, _)| index).collect()
    }

    /// Requires a trial call for an address that another gateway cannot reach. Programs are local to each gateway.
    pub fn require_trial_call(&self, address: usize) {
        if let (UpstreamTarget::Url { .. }, Some(endpoint)) = (&self.config.target, self.endpoints.get(address)) {
            endpoint.breaker.require_trial();
            self.report_breaker();
        }
    }

    pub(crate) fn report_breaker(&self) {
        let state = self.breaker_state();
        countersign_telemetry::metrics::set_breaker_state(&self.config.name, state);
        // Stateless HTTP has no connection whose loss could be noticed, so the actor reads the lists to find out.
        if state == Breaker::Open && self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::Stateless) {
            self.mark_stale(ListKinds::all());
        }
    }
}
