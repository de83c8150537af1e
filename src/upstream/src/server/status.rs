//! The status of an upstream for operators.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Phase, Upstream};
use crate::{
    catalog::ListKinds,
    link::{LinkKind, NegotiatedSession},
};
use countersign_config::UpstreamTarget;
use countersign_protocol::{
    Era,
    json::{member, string},
};
use countersign_telemetry::metrics::CircuitState;

/// The status of an upstream for operators.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamStatus {
    /// `up`, `connecting`, `needs_connection` or `down`. Skipped, like the counts below, because the response already
    /// contains these members.
    #[serde(skip)]
    pub status: &'static str,
    /// `stdio`, `streamable-http`, `sse` or `websocket`; the configured transport until the server was reached.
    pub transport: &'static str,
    /// The command with its arguments, or the URL, without secrets.
    pub target: String,
    /// `stateless` or `handshake`, after the server was reached.
    #[schema(required, pattern = "^(stateless|handshake)$")]
    pub era: Option<&'static str>,
    #[schema(required)]
    pub revision: Option<&'static str>,
    /// The gateway is not ready while the server is down.
    pub required: bool,
    /// `closed`, `half-open` or `open`.
    #[schema(pattern = "^(closed|half-open|open)$")]
    pub breaker: &'static str,
    /// Number of calls being answered.
    pub in_flight: usize,
    /// Number of calls that wait for a slot.
    pub waiting: usize,
    /// Number of connections in addition to the shared one.
    pub links: usize,
    #[serde(skip)]
    pub tools: usize,
    #[serde(skip)]
    pub prompts: usize,
    #[serde(skip)]
    pub resources: usize,
    /// The reason why it is not up, or the last reason why it was not.
    #[schema(required)]
    pub last_error: Option<String>,
    /// The first line of the latest output on stderr that looks like an error.
    #[schema(required)]
    pub stderr_error: Option<String>,
    /// The last line on stderr, regardless of its age.
    #[schema(required)]
    pub last_stderr: Option<String>,
    /// Omitted definitions, and lists that could not be read.
    #[serde(rename = "leftOut")]
    pub omitted: Vec<String>,
    /// The recipes for previews of its tools.
    pub previews: PreviewsStatus,
    /// The time of the last change of the status.
    pub since: Timestamp,
    /// Number of times that the connection was lost and opened again, or that the program was restarted after a
    /// failure.
    pub restarts: u64,
}

/// The recipes for previews of a server's tools (`previews`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PreviewsStatus {
    /// Names of the built-in recipe sets in use.
    pub sets: Vec<&'static str>,
    /// The server's own names of tools that have a recipe.
    pub tools: Vec<String>,
    /// The built-in recipe set for servers that give themselves the name of this one, if its command or address identifies
    /// no set. An operator who knows that it is such a server can name the set in `previews`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggested: Option<&'static str>,
}

/// Returns the name of an era for operators.
pub(crate) const fn era_name(era: Era) -> &'static str {
    match era {
        Era::Modern => "stateless",
        Era::Legacy => "handshake",
    }
}

/// Returns the name that the server gives itself.
fn own_name(negotiated: &NegotiatedSession) -> Option<String> {
    member(negotiated.server_info.as_ref()?.get(), "name").and_then(string).map(Cow::into_owned)
}

impl Upstream {
    /// Returns the current status.
    pub fn status(&self) -> UpstreamStatus {
        let negotiated = self.negotiated();
        let definitions = self.definitions.load();
        let record = self.metrics.record.lock();
        let kind = self.endpoints.first().map(|endpoint| endpoint.kind());
        let mut stderr = self.endpoints.first().map(|endpoint| endpoint.connector().stderr()).unwrap_or_default();
        UpstreamStatus {
            status: match self.phase() {
                Phase::Up => "up",
                Phase::Connecting => "connecting",
                Phase::ConsentNeeded(_) => "needs_connection",
                Phase::Down(_) => "down",
            },
            transport: match &self.config.target {
                UpstreamTarget::Command { .. } => "stdio",
                UpstreamTarget::Url { urls, .. } if urls.first().is_some_and(|u| u.scheme().starts_with("ws")) => {
                    "websocket"
                }
                UpstreamTarget::Url { .. } if kind == Some(LinkKind::SingleStream) => "sse",
                UpstreamTarget::Url { .. } => "streamable-http",
            },
            target: self.endpoints.first().map(|endpoint| endpoint.connector().describe()).unwrap_or_default(),
            era: negotiated.as_ref().map(|n| era_name(n.revision.era())),
            revision: negotiated.as_ref().map(|n| n.revision.as_str()),
            required: self.config.required,
            breaker: match self.breaker_state() {
                CircuitState::Closed => "closed",
                CircuitState::HalfOpen => "half-open",
                CircuitState::Open => "open",
            },
            in_flight: self.calls_in_flight(),
            waiting: self.call_slots.queued(),
            links: self.link_count(),
            tools: definitions.tools.len(),
            prompts: definitions.prompts.len(),
            resources: definitions.resources.len(),
            last_error: record.error.clone(),
            stderr_error: stderr.error,
            last_stderr: stderr.last_lines.pop_back(),
            omitted: record.omitted.clone(),
            previews: PreviewsStatus {
                sets: self.config.previews.sets.clone(),
                tools: self.config.previews.by_tool.keys().cloned().collect(),
                suggested: negotiated.as_ref().and_then(|n| self.config.suggested_set(&own_name(n)?)),
            },
            since: record.since,
            restarts: record.restarts,
        }
    }

    /// Updates the gauges whose values are read rather than counted.
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float; calls and links are far below 2^52")]
    pub(crate) fn update_gauges(&self) {
        self.metrics.in_flight.set(self.calls_in_flight() as f64);
        self.metrics.links.set(self.link_count() as f64);
    }

    /// Returns the number of connections, including those of all persons, without the shared one of this upstream.
    fn link_count(&self) -> usize {
        let pooled = self.endpoints.iter().map(|endpoint| endpoint.pool.count()).sum::<usize>();
        pooled + self.open_personal_upstreams().iter().map(|personal| 1 + personal.link_count()).sum::<usize>()
    }

    /// Returns the state of the circuit breaker; the best one if there are replicas or several persons.
    pub fn breaker_state(&self) -> CircuitState {
        let personal_state = self
            .open_personal_upstreams()
            .iter()
            .map(|personal| personal.breaker_state())
            .min_by_key(|state| *state as u8);
        let endpoint_state =
            || self.endpoints.iter().map(|endpoint| endpoint.breaker.state()).min_by_key(|state| *state as u8);
        personal_state.or_else(endpoint_state).unwrap_or(CircuitState::Closed)
    }

    /// Returns the indices of the endpoints whose circuit is open.
    pub fn open_breakers(&self) -> Vec<usize> {
        let open = self.endpoints.iter().filter(|endpoint| endpoint.breaker.state() == CircuitState::Open);
        open.map(|endpoint| endpoint.index).collect()
    }

    /// Requires a trial call for an endpoint that another gateway cannot reach. Programs are local to each gateway.
    pub fn require_trial_call(&self, endpoint: usize) {
        if let (UpstreamTarget::Url { .. }, Some(endpoint)) = (&self.config.target, self.endpoints.get(endpoint)) {
            endpoint.breaker.require_trial();
            self.report_breaker();
        }
    }

    /// Returns `true` if the server speaks stateless HTTP.
    fn is_stateless_http(&self) -> bool {
        self.era() == Era::Modern && self.endpoints.iter().any(|endpoint| endpoint.kind() == LinkKind::Streams)
    }

    /// Publishes the state of the circuit breaker in the metrics.
    pub(crate) fn report_breaker(&self) {
        let state = self.breaker_state();
        let state_of_server = self.configured_upstream().map_or(state, |configured| configured.breaker_state());
        countersign_telemetry::metrics::set_breaker_state(&self.config.name, state_of_server);
        // Stateless HTTP has no connection whose loss could be noticed, so `upkeep` reads the lists to find out.
        if state == CircuitState::Open && self.is_stateless_http() {
            self.mark_stale(ListKinds::all());
        }
    }
}
