//! The one table of metrics.

use metrics::Unit;

pub const REQUESTS: &str = "countersign_requests_total";
pub const REQUEST_DURATION: &str = "countersign_request_duration_seconds";
pub const ERRORS: &str = "countersign_errors_total";
pub const ERROR_RATIO: &str = "countersign_error_ratio";
pub const CONNECTIONS: &str = "countersign_connections_active";
pub const SESSIONS: &str = "countersign_sessions_active";
pub const QUEUE_LENGTH: &str = "countersign_queue_length";
pub const BODY_BYTES: &str = "countersign_body_bytes";
pub const CACHE_HITS: &str = "countersign_cache_hits_total";
pub const CACHE_MISSES: &str = "countersign_cache_misses_total";
pub const CACHE_HIT_RATIO: &str = "countersign_cache_hit_ratio";
pub const BREAKER_STATE: &str = "countersign_circuit_breaker_state";
pub const CHANGES: &str = "countersign_changes";
pub const CHANGES_PROPOSED: &str = "countersign_changes_proposed_total";
pub const CHANGES_REFUSED: &str = "countersign_changes_refused_total";
pub const CHANGE_TRANSITIONS: &str = "countersign_change_transitions_total";
pub const STORE_COMMITS: &str = "countersign_store_commits_total";
pub const STORE_COMMIT_CHANGES: &str = "countersign_store_commit_changes";
pub const STORE_COMMIT_DURATION: &str = "countersign_store_commit_seconds";
pub const FEED_SUBSCRIBERS: &str = "countersign_feed_subscribers";
pub const UPSTREAM_UP: &str = "countersign_upstream_up";
pub const UPSTREAM_IN_FLIGHT: &str = "countersign_upstream_in_flight";
pub const UPSTREAM_CALLS: &str = "countersign_upstream_calls_total";
pub const UPSTREAM_LINKS: &str = "countersign_upstream_links";
pub const UPSTREAM_RESTARTS: &str = "countersign_upstream_restarts_total";
pub const UPSTREAM_UNATTRIBUTED: &str = "countersign_upstream_unattributed_total";
pub const POLICY_SIMULATED: &str = "countersign_policy_simulated_total";
pub const WEBHOOK_ATTEMPTS: &str = "countersign_webhook_attempts_total";
pub const WEBHOOK_WAITING: &str = "countersign_webhook_waiting";
pub const NODES: &str = "countersign_nodes";
pub const NODE_LEADS: &str = "countersign_node_leads";
pub const INFO: &str = "countersign_info";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Name, kind, unit and HELP text of each metric.
const METRICS: [(&str, Kind, Unit, &str); 32] = [
    (REQUESTS, Kind::Counter, Unit::Count, "Requests answered, by transport, method and outcome."),
    (REQUEST_DURATION, Kind::Histogram, Unit::Seconds, "Time from a request's arrival to its answer."),
    (ERRORS, Kind::Counter, Unit::Count, "Errors answered, by their stable code."),
    (ERROR_RATIO, Kind::Gauge, Unit::Count, "Share of the last minute's requests that ended in an error."),
    (CONNECTIONS, Kind::Gauge, Unit::Count, "Open connections, by transport."),
    (SESSIONS, Kind::Gauge, Unit::Count, "Live sessions, by transport."),
    (QUEUE_LENGTH, Kind::Gauge, Unit::Count, "Entries waiting in a queue."),
    (BODY_BYTES, Kind::Gauge, Unit::Count, "Bytes of bodies held, of transports.http.max_body_bytes."),
    (CACHE_HITS, Kind::Counter, Unit::Count, "Look-ups that a cache answered."),
    (CACHE_MISSES, Kind::Counter, Unit::Count, "Look-ups that a cache could not answer."),
    (CACHE_HIT_RATIO, Kind::Gauge, Unit::Count, "Share of a cache's look-ups since the start that it answered."),
    (BREAKER_STATE, Kind::Gauge, Unit::Count, "Circuit breaker of a provider: 0 closed, 1 half open, 2 open."),
    (CHANGES, Kind::Gauge, Unit::Count, "Changes in the store, by state."),
    (CHANGES_PROPOSED, Kind::Counter, Unit::Count, "Writes that became pending changes."),
    (CHANGES_REFUSED, Kind::Counter, Unit::Count, "Proposals that were refused: limits, conflicts, the store."),
    (CHANGE_TRANSITIONS, Kind::Counter, Unit::Count, "Steps in the lives of changes, by event."),
    (STORE_COMMITS, Kind::Counter, Unit::Count, "Transactions committed by the store."),
    (STORE_COMMIT_CHANGES, Kind::Histogram, Unit::Count, "Transitions that shared one commit."),
    (STORE_COMMIT_DURATION, Kind::Histogram, Unit::Seconds, "Time of one commit, its sync to disk included."),
    (FEED_SUBSCRIBERS, Kind::Gauge, Unit::Count, "Subscribers of the feed."),
    (UPSTREAM_UP, Kind::Gauge, Unit::Count, "1 while the upstream is connected and its lists are read, else 0."),
    (UPSTREAM_IN_FLIGHT, Kind::Gauge, Unit::Count, "Calls under way at an upstream."),
    (UPSTREAM_CALLS, Kind::Counter, Unit::Count, "Calls to an upstream, by outcome."),
    (UPSTREAM_LINKS, Kind::Gauge, Unit::Count, "Connections of an upstream in addition to the shared one."),
    (
        UPSTREAM_RESTARTS,
        Kind::Counter,
        Unit::Count,
        "Times that an upstream was connected to again, or its program started again after it had failed.",
    ),
    (UPSTREAM_UNATTRIBUTED, Kind::Counter, Unit::Count, "Messages of an upstream that belong to no one call."),
    (
        POLICY_SIMULATED,
        Kind::Counter,
        Unit::Count,
        "Calls that policy.mode: simulate let through, by the verdict that was not enforced.",
    ),
    (WEBHOOK_ATTEMPTS, Kind::Counter, Unit::Count, "Attempts to deliver to a webhook, by outcome."),
    (WEBHOOK_WAITING, Kind::Gauge, Unit::Count, "Deliveries that wait for a webhook."),
    (NODES, Kind::Gauge, Unit::Count, "Live gateways of this store, including this gateway."),
    (NODE_LEADS, Kind::Gauge, Unit::Count, "1 if this gateway leads, else 0."),
    (INFO, Kind::Gauge, Unit::Count, "1, with the version as a label."),
];

/// Registers the HELP text and unit of every metric.
pub(super) fn describe() {
    for (name, kind, unit, help) in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(name, unit, help),
            Kind::Gauge => metrics::describe_gauge!(name, unit, help),
            Kind::Histogram => metrics::describe_histogram!(name, unit, help),
        }
    }
}
