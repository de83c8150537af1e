//! What reviewers accept and take back at other nodes, as it is told on this one's feed.

use std::collections::BTreeMap;

use countersign_domain::policy::{Pins, pins::Acceptance};
use countersign_store::{AuditSearch, Store};

/// Entries among which it is looked for who took an acceptance back.
const LOOKED_AT: usize = 50;

/// Definitions of a server that somebody accepted at once, or that are accepted no more.
#[derive(Debug, PartialEq, Eq)]
pub struct Moved {
    pub server: String,
    /// Who accepted them; of what was taken back the pins do not say.
    pub accepted_by: Option<String>,
    pub tools: Vec<String>,
}

/// By the pins before and after.
pub fn moved(before: &Pins, after: &Pins) -> Vec<Moved> {
    let mut all: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let key = |accepted: &Acceptance| (accepted.by.clone(), accepted.at);
    for (server, tools) in &after.servers {
        for (tool, pin) in tools {
            let was = before.pin(server, tool).and_then(|pin| pin.accepted.as_ref());
            let given = match (was, &pin.accepted) {
                (None, None) => continue,
                (Some(was), Some(is)) if was.hash == is.hash && key(was) == key(is) => continue,
                (_, Some(is)) => Some(key(is)),
                (Some(_), None) => None,
            };
            all.entry((server.clone(), given)).or_default().push(tool.clone());
        }
    }
    let moved = all.into_iter().map(|((server, given), mut tools)| {
        tools.sort_unstable();
        Moved { server, accepted_by: given.map(|(by, _)| by), tools }
    });
    moved.collect()
}

/// Who took acceptances of the server back last.
pub async fn revoked_by(store: &dyn Store, server: &str) -> Option<String> {
    let search = AuditSearch { events: vec!["definitions_revoked".to_owned()], ..AuditSearch::default() };
    let found = store.search_audit(search, None, LOOKED_AT).await.ok()?;
    let of_server = found.entries.into_iter().find(|found| {
        let details = serde_json::from_str::<serde_json::Value>(found.entry.details.get()).unwrap_or_default();
        details["server"] == server
    });
    of_server.map(|found| found.entry.actor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::policy::pins::ToolPin;

    fn pins(of: &[(&str, Option<(&str, i64)>)]) -> Pins {
        let pin = |(tool, accepted): &(&str, Option<(&str, i64)>)| {
            let accepted = accepted.map(|(by, second)| Acceptance {
                hash: "h".into(),
                by: by.to_owned(),
                at: jiff::Timestamp::from_second(second).unwrap(),
                target: None,
            });
            ((*tool).to_owned(), ToolPin { seen: Some("h".into()), accepted, text: None })
        };
        Pins { servers: [("fs".to_owned(), of.iter().map(pin).collect())].into() }
    }

    #[test]
    fn what_was_accepted_and_taken_back_elsewhere_is_told_and_what_was_only_seen_is_not() {
        let is = |by: Option<&str>, tools: &[&str]| Moved {
            server: "fs".into(),
            accepted_by: by.map(str::to_owned),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        };
        let none = Pins::default();
        assert_eq!(moved(&none, &pins(&[("read", None)])), []);
        let (alice, bob) = (Some(("alice", 1)), Some(("bob", 2)));
        let before = pins(&[("a", alice), ("b", alice), ("c", None), ("d", None)]);
        assert_eq!(moved(&none, &before), [is(Some("alice"), &["a", "b"])]);
        assert_eq!(moved(&before, &before), []);
        let after = pins(&[("a", None), ("b", bob), ("c", bob), ("d", None)]);
        assert_eq!(moved(&before, &after), [is(None, &["a"]), is(Some("bob"), &["b", "c"])]);
    }
}
