//! Publishes events about servers to the feed: a server goes down or comes back, its breaker opens or closes, or new or
//! changed tools wait to be accepted.
//!
//! Servers are polled instead of reporting each transition, because a long outage must cause an event but a restart
//! must not, and because breakers close by time alone. The events are not stored. After a restart of the gateway, tools
//! that still wait are reported again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use countersign_domain::{policy::DefinitionStatus, text::truncate};
use countersign_feed::Feed;
use countersign_protocol::redact::redact;
use countersign_routing::table::{PublishedTable, RouteTable};
use countersign_telemetry::metrics::CircuitState;
use countersign_upstream::server::Phase;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The number of consecutive polls in which a server must be down, or up again, before that is reported.
const POLLS_UNTIL_REPORTED: u32 = 3;

/// The state of a server at one poll.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerStatus {
    /// `None` while it is connecting, or waits for a person to connect an account.
    is_up: Option<bool>,
    error: Option<String>,
    /// `None` while a trial call is running.
    is_breaker_open: Option<bool>,
}

/// The last reported state of a server.
#[derive(Debug, Default)]
struct ReportedStatus {
    /// `None` until the server was up for the first time or was reported as down.
    is_up: Option<bool>,
    /// The number of polls in a row that differ from `is_up`.
    differing_polls: u32,
    is_breaker_open: bool,
    waiting: WaitingTools,
}

/// The names of the tools of a server that wait to be accepted.
#[derive(Clone, Debug, Default)]
struct WaitingTools {
    new: BTreeSet<String>,
    changed: BTreeSet<String>,
}

/// The last reported states by server, from which new events are derived.
#[derive(Debug, Default)]
struct StatusTracker(BTreeMap<String, ReportedStatus>);

impl StatusTracker {
    /// Takes the result of a poll, and returns the events to publish. `waiting` is `None` if the waiting tools are
    /// the same as before.
    fn update(
        &mut self,
        servers: &BTreeMap<String, ServerStatus>,
        waiting: Option<&BTreeMap<String, WaitingTools>>,
    ) -> Vec<Value> {
        // Servers that were removed from the configuration cause no event.
        self.0.retain(|name, _| servers.contains_key(name));
        let mut events = Vec::new();
        for (name, status) in servers {
            let reported = self.0.entry(name.clone()).or_default();
            if let Some(is_up) = reported.record_poll(status.is_up) {
                let kind = if is_up { "provider.up" } else { "provider.down" };
                let error = status.error.as_ref().filter(|_| !is_up);
                events.push(json!({ "type": kind, "provider": name, "error": error }));
            }
            if let Some(is_open) = status.is_breaker_open.filter(|is_open| *is_open != reported.is_breaker_open) {
                reported.is_breaker_open = is_open;
                let kind = if is_open { "provider.breaker_opened" } else { "provider.breaker_closed" };
                let error = status.error.as_ref().filter(|_| is_open);
                events.push(json!({ "type": kind, "provider": name, "error": error }));
            }
            if let Some(waiting) = waiting.map(|waiting| waiting.get(name).cloned().unwrap_or_default()) {
                let new_tools: Vec<&String> = waiting.new.difference(&reported.waiting.new).collect();
                let changed_tools: Vec<&String> = waiting.changed.difference(&reported.waiting.changed).collect();
                if !new_tools.is_empty() || !changed_tools.is_empty() {
                    let tools: Vec<&String> = changed_tools.iter().chain(&new_tools).copied().collect();
                    events.push(json!({
                        "type": "provider.tools_waiting",
                        "provider": name,
                        "tools": tools,
                        "new": new_tools.len(),
                        "changed": changed_tools.len(),
                    }));
                }
                reported.waiting = waiting;
            }
        }
        events
    }
}

impl ReportedStatus {
    /// Records whether the server was up at a poll. Returns the new state if it must be reported. The first connection to
    /// a server is not reported.
    fn record_poll(&mut self, is_up: Option<bool>) -> Option<bool> {
        let is_now_up = match (self.is_up, is_up) {
            // A single `connecting` poll proves nothing, but a server that keeps connecting is down.
            (Some(true), None | Some(false)) | (None, Some(false)) => false,
            (Some(false), Some(true)) => true,
            (None, None) => return None,
            (None, Some(true)) | (Some(true), Some(true)) | (Some(false), None | Some(false)) => {
                self.is_up = self.is_up.or(is_up);
                self.differing_polls = 0;
                return None;
            }
        };
        self.differing_polls += 1;
        if self.differing_polls < POLLS_UNTIL_REPORTED {
            return None;
        }
        self.differing_polls = 0;
        self.is_up = Some(is_now_up);
        self.is_up
    }
}

/// Returns the current status of each server.
fn server_statuses(table: &RouteTable) -> BTreeMap<String, ServerStatus> {
    let upstreams = table.providers().iter().filter_map(|provider| provider.upstream());
    let statuses = upstreams.map(|upstream| {
        let (is_up, error) = match upstream.phase() {
            Phase::Up => (Some(true), None),
            Phase::Down(error) => (Some(false), Some(truncate(&redact(&error.to_string()), 500).to_owned())),
            Phase::Connecting => (None, None),
            Phase::ConsentNeeded(why) => (None, Some(why)),
        };
        let is_breaker_open = match upstream.breaker_state() {
            CircuitState::Open => Some(true),
            CircuitState::Closed => Some(false),
            CircuitState::HalfOpen => None,
        };
        (upstream.config.name.clone(), ServerStatus { is_up, error, is_breaker_open })
    });
    statuses.collect()
}

/// Returns the tools of each provider that wait to be accepted.
fn waiting_tools(table: &RouteTable) -> BTreeMap<String, WaitingTools> {
    let mut all: BTreeMap<String, WaitingTools> = BTreeMap::new();
    for route in table.tools() {
        let waiting = all.entry(route.provider.name().to_owned()).or_default();
        match route.definition_status {
            DefinitionStatus::New => drop(waiting.new.insert(route.name.to_string())),
            DefinitionStatus::Changed => drop(waiting.changed.insert(route.name.to_string())),
            _ => {}
        }
    }
    all
}

/// Polls the servers and publishes the events, until the gateway shuts down.
pub async fn run(routes: Arc<PublishedTable>, feed: Feed, shutdown: CancellationToken) {
    let mut tracker = StatusTracker::default();
    let mut last_table: Option<Arc<RouteTable>> = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let table = routes.load_full();
        // Tools are compared only if the table was replaced.
        let is_replaced = last_table.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &table));
        let tools = is_replaced.then(|| waiting_tools(&table));
        for mut event in tracker.update(&server_statuses(&table), tools.as_ref()) {
            event["at"] = Timestamp::now().to_string().into();
            tracing::debug!(kind = %event["type"], provider = %event["provider"], "the status of a server changed");
            feed.publish_live(&event);
        }
        last_table = Some(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(is_up: Option<bool>, is_breaker_open: Option<bool>) -> BTreeMap<String, ServerStatus> {
        let error = (is_up == Some(false)).then(|| "gone".to_owned());
        [("files".to_owned(), ServerStatus { is_up, error, is_breaker_open })].into()
    }

    fn kinds(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap()).collect()
    }

    /// Returns the kinds of the events after polls with these states.
    fn kinds_after(ups: &[Option<bool>]) -> Vec<String> {
        let mut tracker = StatusTracker::default();
        let events = ups.iter().flat_map(|up| tracker.update(&status(*up, Some(false)), None)).collect::<Vec<_>>();
        kinds(&events).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn long_outage_is_reported_and_restart_is_not() {
        let (up, down, connecting) = (Some(true), Some(false), None);
        assert!(kinds_after(&[connecting, up, up, down, connecting, up, down, up, up]).is_empty());
        assert_eq!(
            kinds_after(&[connecting, up, down, connecting, down, down, connecting, connecting, down]),
            ["provider.down"],
            "an outage is reported once"
        );
        assert_eq!(kinds_after(&[up, down, down, down, up, down, up, up, up, up]), ["provider.down", "provider.up"]);
        assert_eq!(
            kinds_after(&[connecting, connecting, connecting, connecting, down, down, down]),
            ["provider.down"],
            "a server that was never up is reported, too"
        );
        assert!(kinds_after(&[connecting, connecting, connecting, connecting, connecting]).is_empty());
        assert!(kinds_after(&[]).is_empty());
    }

    #[test]
    fn breaker_is_reported_once_per_transition() {
        let mut tracker = StatusTracker::default();
        let mut events = Vec::new();
        for open in [Some(false), Some(true), None, Some(true), None, Some(false), Some(false)] {
            events.extend(tracker.update(&status(Some(true), open), None));
        }
        assert_eq!(kinds(&events), ["provider.breaker_opened", "provider.breaker_closed"]);
        tracker.update(&status(Some(true), Some(true)), None);
        tracker.update(&BTreeMap::new(), None);
        assert!(tracker.update(&status(Some(true), Some(false)), None).is_empty(), "a removed server is forgotten");
    }

    #[test]
    fn waiting_tools_are_reported_once() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let waits = |new: &[&str], changed: &[&str]| {
            let waiting = WaitingTools { new: set(new), changed: set(changed) };
            [("files".to_owned(), waiting)].into()
        };
        let (mut tracker, up) = (StatusTracker::default(), status(Some(true), Some(false)));
        assert!(tracker.update(&up, Some(&waits(&[], &[]))).is_empty());
        let events = tracker.update(&up, Some(&waits(&["b", "c"], &["a"])));
        assert_eq!(events[0]["tools"], json!(["a", "b", "c"]));
        assert_eq!((&events[0]["new"], &events[0]["changed"]), (&json!(2), &json!(1)));
        assert!(tracker.update(&up, Some(&waits(&["b", "c"], &["a"]))).is_empty());
        assert!(tracker.update(&up, None).is_empty(), "the table is the same");
        assert!(tracker.update(&up, Some(&waits(&[], &["a"]))).is_empty(), "tools were accepted");
        assert_eq!(tracker.update(&up, Some(&waits(&["b"], &["a"]))).len(), 1, "a tool waits again");
    }
}
