//! The tool definitions that reviewers have accepted: binds them to the current commands and addresses, and finds those
//! that were accepted or revoked at other nodes, so that the feed of this node reports them.

use std::collections::BTreeMap;

use countersign_config::UpstreamConfig;
use countersign_domain::policy::{Pins, pins::Acceptance};
use countersign_store::{PinStore, Store, find_newest_entry};

/// Binds each acceptance that names no command or address to the current one of its server. Warns of servers whose
/// tools were accepted for another command or address.
pub async fn bind_acceptances(pins: &PinStore, servers: &[UpstreamConfig]) {
    for server in servers {
        let tools = pins.bind_to_server(&server.name, &server.target.fingerprint()).await;
        if tools > 0 {
            tracing::warn!(
                server = %server.name,
                tools,
                "the tools of this server were accepted for another command or address, and wait to be accepted again"
            );
        }
    }
}

/// Tools of a server whose definitions one person accepted at the same time, or whose acceptances were revoked.
#[derive(Debug, PartialEq, Eq)]
pub struct AcceptanceChange {
    pub server: String,
    /// The person who accepted them. `None` if they were revoked, because pins do not record by whom.
    pub accepted_by: Option<String>,
    pub tools: Vec<String>,
}

/// Returns the acceptances that changed between two states of the pins.
pub fn compare_pins(before: &Pins, after: &Pins) -> Vec<AcceptanceChange> {
    let mut tools_by_acceptance: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let acceptor_and_time = |accepted: &Acceptance| (accepted.by.clone(), accepted.at);
    for (server, tools) in &after.servers {
        for (tool, pin) in tools {
            let previous = before.pin(server, tool).and_then(|pin| pin.accepted.as_ref());
            let accepted = match (previous, &pin.accepted) {
                (None, None) => continue,
                (Some(old), Some(new)) if old.hash == new.hash && acceptor_and_time(old) == acceptor_and_time(new) => {
                    continue;
                }
                (_, Some(new)) => Some(acceptor_and_time(new)),
                (Some(_), None) => None,
            };
            tools_by_acceptance.entry((server.clone(), accepted)).or_default().push(tool.clone());
        }
    }
    let changes = tools_by_acceptance.into_iter().map(|((server, accepted), mut tools)| {
        tools.sort_unstable();
        AcceptanceChange { server, accepted_by: accepted.map(|(by, _)| by), tools }
    });
    changes.collect()
}

/// Returns the person who last revoked acceptances of the server.
pub async fn last_revoker(store: &dyn Store, server: &str) -> Option<String> {
    let found = find_newest_entry(store, "definitions_revoked", |details| details["server"] == server).await;
    found.map(|(entry, _)| entry.actor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::policy::pins::{AcceptedReads, ToolPin};

    fn pins(tools: &[(&str, Option<(&str, i64)>)]) -> Pins {
        let pin = |(tool, accepted): &(&str, Option<(&str, i64)>)| {
            let accepted = accepted.map(|(by, second)| Acceptance {
                hash: "h".into(),
                by: by.to_owned(),
                at: jiff::Timestamp::from_second(second).unwrap(),
                server_fingerprint: None,
                reads: AcceptedReads::None,
            });
            ((*tool).to_owned(), ToolPin { seen: Some("h".into()), accepted, text: None })
        };
        Pins { servers: [("fs".to_owned(), tools.iter().map(pin).collect())].into() }
    }

    #[test]
    fn compare_pins_reports_accepted_and_revoked_definitions() {
        let change = |by: Option<&str>, tools: &[&str]| AcceptanceChange {
            server: "fs".into(),
            accepted_by: by.map(str::to_owned),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        };
        let none = Pins::default();
        assert_eq!(compare_pins(&none, &pins(&[("read", None)])), []);
        let (alice, bob) = (Some(("alice", 1)), Some(("bob", 2)));
        let before = pins(&[("a", alice), ("b", alice), ("c", None), ("d", None)]);
        assert_eq!(compare_pins(&none, &before), [change(Some("alice"), &["a", "b"])]);
        assert_eq!(compare_pins(&before, &before), []);
        let after = pins(&[("a", None), ("b", bob), ("c", bob), ("d", None)]);
        assert_eq!(compare_pins(&before, &after), [change(None, &["a"]), change(Some("bob"), &["b", "c"])]);
    }
}
