//! The metrics of an upstream, and the record of its connection for the status.

use ::metrics::{Counter, Gauge, counter, gauge};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Phase;
use crate::link::LinkError;
use countersign_domain::text::truncate;
use countersign_protocol::redact::redact;
use countersign_telemetry::metrics::{
    ConfiguredName, UPSTREAM_CALLS, UPSTREAM_IN_FLIGHT, UPSTREAM_LINKS, UPSTREAM_RESTARTS, UPSTREAM_UNATTRIBUTED,
    UPSTREAM_UP, label_of,
};

/// The outcome of a call in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Ok = 0,
    /// The server answered with an error.
    Error = 1,
    Unreachable = 2,
    Lost = 3,
    Timeout = 4,
    /// Not executed because the circuit is open, there are too many calls, or no account authorizes it.
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
    configured_at: Instant,
    pub(super) record: Mutex<ConnectionRecord>,
    /// `None` if the upstream shares the label `other`, or is that of a person.
    name: Option<ConfiguredName>,
}

/// The facts about the connection that the status shows.
#[derive(Debug, Default)]
pub(super) struct ConnectionRecord {
    /// The time of the last change of the phase.
    pub since: Timestamp,
    pub restarts: u64,
    /// The reason why the upstream is not up.
    pub error: Option<String>,
    /// Omitted definitions, and lists that could not be read.
    pub omitted: Vec<String>,
}

impl UpstreamMetrics {
    pub fn new(upstream: &str) -> Self {
        let label = label_of(upstream).to_owned();
        Self {
            up: gauge!(UPSTREAM_UP, "upstream" => label.clone()),
            in_flight: gauge!(UPSTREAM_IN_FLIGHT, "upstream" => label.clone()),
            links: gauge!(UPSTREAM_LINKS, "upstream" => label.clone()),
            restarts: counter!(UPSTREAM_RESTARTS, "upstream" => label.clone()),
            unattributed: counter!(UPSTREAM_UNATTRIBUTED, "upstream" => label.clone()),
            outcomes: OUTCOME_LABELS
                .map(|outcome| counter!(UPSTREAM_CALLS, "upstream" => label.clone(), "outcome" => outcome)),
            configured_at: Instant::now(),
            record: Mutex::new(ConnectionRecord { since: Timestamp::now(), ..ConnectionRecord::default() }),
            name: (label == upstream).then(|| ConfiguredName::new(&["upstream", "provider"], upstream)),
        }
    }

    /// Creates the metrics of a person's upstream, which counts under the server's name. The gauges are those of the
    /// server as a whole.
    pub fn for_person(upstream: &str) -> Self {
        Self { up: Gauge::noop(), in_flight: Gauge::noop(), links: Gauge::noop(), name: None, ..Self::new(upstream) }
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
    pub fn millis_since_configured(&self) -> u64 {
        u64::try_from(self.configured_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn record_phase(&self, phase: &Phase) {
        let mut record = self.record.lock();
        record.since = Timestamp::now();
        match phase {
            Phase::Down(error) => record.error = Some(error_text(error)),
            Phase::ConsentNeeded(reason) => record.error = Some(reason.clone()),
            Phase::Up => record.error = None,
            Phase::Connecting => {}
        }
    }

    pub(crate) fn record_restart(&self) {
        self.restarts.increment(1);
        self.record.lock().restarts += 1;
    }

    pub(crate) fn set_omitted(&self, omitted: Vec<String>) {
        self.record.lock().omitted = omitted;
    }
}

/// Returns the text of an error for the status, without secrets.
fn error_text(error: &LinkError) -> String {
    truncate(&redact(&error.to_string()), 500).to_owned()
}
