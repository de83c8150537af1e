//! The one table of metrics: the constant and the name of each, its kind, its unit and its HELP text.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

macro_rules! metrics_table {
    ($($constant:ident = $name:literal, $describe:ident, $unit:ident, $help:literal;)*) => {
        $(pub const $constant: &str = $name;)*

        /// Registers the HELP text and unit of every metric.
        pub(super) fn describe() {
            $($describe!($constant, Unit::$unit, $help);)*
        }
    };
}

metrics_table! {
    REQUESTS = "countersign_requests_total", describe_counter, Count, "Requests answered, by transport, method and outcome.";
    REQUEST_DURATION = "countersign_request_duration_seconds", describe_histogram, Seconds, "Time from a request's arrival to its answer.";
    ERRORS = "countersign_errors_total", describe_counter, Count, "Errors answered, by their stable code.";
    ERROR_RATIO = "countersign_error_ratio", describe_gauge, Count, "Share of the last minute's requests that ended in an error.";
    CONNECTIONS = "countersign_connections_active", describe_gauge, Count, "Open connections, by transport.";
    SESSIONS = "countersign_sessions_active", describe_gauge, Count, "Live sessions, by transport.";
    QUEUE_LENGTH = "countersign_queue_length", describe_gauge, Count, "Entries waiting in a queue.";
    BODY_BYTES = "countersign_body_bytes", describe_gauge, Count, "Bytes of request bodies held. The limit is transports.http.max_body_bytes.";
    CACHE_HITS = "countersign_cache_hits_total", describe_counter, Count, "Look-ups that a cache answered.";
    CACHE_MISSES = "countersign_cache_misses_total", describe_counter, Count, "Look-ups that a cache could not answer.";
    CACHE_HIT_RATIO = "countersign_cache_hit_ratio", describe_gauge, Count, "Share of a cache's look-ups since the start that it answered.";
    BREAKER_STATE = "countersign_circuit_breaker_state", describe_gauge, Count, "Circuit breaker of a provider: 0 closed, 1 half open, 2 open.";
    CHANGES = "countersign_changes", describe_gauge, Count, "Changes in the store, by state.";
    CHANGES_PROPOSED = "countersign_changes_proposed_total", describe_counter, Count, "Writes that became pending changes.";
    CHANGES_REFUSED = "countersign_changes_refused_total", describe_counter, Count, "Proposals refused because of a limit, a conflict or the store.";
    CHANGE_TRANSITIONS = "countersign_change_transitions_total", describe_counter, Count, "Transitions of changes, by event.";
    CHANGE_RUN_DURATION = "countersign_change_run_seconds", describe_histogram, Seconds, "Time of the call that an approved change makes.";
    STORE_COMMITS = "countersign_store_commits_total", describe_counter, Count, "Transactions committed by the store.";
    STORE_COMMIT_CHANGES = "countersign_store_commit_changes", describe_histogram, Count, "Transitions that shared one commit.";
    STORE_COMMIT_DURATION = "countersign_store_commit_seconds", describe_histogram, Seconds, "Time of one commit, its sync to disk included.";
    FEED_SUBSCRIBERS = "countersign_feed_subscribers", describe_gauge, Count, "Subscribers of the feed.";
    UPSTREAM_UP = "countersign_upstream_up", describe_gauge, Count, "1 while the upstream is connected and its tools, prompts and resources have been read, else 0.";
    UPSTREAM_IN_FLIGHT = "countersign_upstream_in_flight", describe_gauge, Count, "Calls under way at an upstream.";
    UPSTREAM_CALLS = "countersign_upstream_calls_total", describe_counter, Count, "Calls to an upstream, by outcome.";
    UPSTREAM_LINKS = "countersign_upstream_links", describe_gauge, Count, "Connections of an upstream in addition to the shared one.";
    UPSTREAM_RESTARTS = "countersign_upstream_restarts_total", describe_counter, Count, "Reconnections to an upstream, including restarts of its program.";
    UPSTREAM_UNATTRIBUTED = "countersign_upstream_unattributed_total", describe_counter, Count, "Messages of an upstream that cannot be attributed to a single call.";
    POLICY_SIMULATED = "countersign_policy_simulated_total", describe_counter, Count, "Calls that policy.mode: simulate let through, by the verdict that was not enforced.";
    OPERATION_CALLS = "countersign_operation_calls_total", describe_counter, Count, "Calls of tools that carry many operations, by tool, operation and verdict. Operations that no recipe names are counted together.";
    WEBHOOK_ATTEMPTS = "countersign_webhook_attempts_total", describe_counter, Count, "Attempts to deliver to a webhook, by outcome.";
    WEBHOOK_WAITING = "countersign_webhook_waiting", describe_gauge, Count, "Deliveries that wait for a webhook.";
    NODES = "countersign_nodes", describe_gauge, Count, "Live gateways of this store, including this gateway.";
    NODE_LEADS = "countersign_node_leads", describe_gauge, Count, "1 if this gateway leads, else 0.";
    INFO = "countersign_info", describe_gauge, Count, "1, with the version as a label.";
}
