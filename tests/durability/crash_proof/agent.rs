//! Agents that talk to any gateway: with independent requests, or in a session that lives at one gateway and is
//! reachable through all.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{chance::Chance, session::HttpSession, web_socket::WsSession, world::World};

pub enum Agent {
    Stateless,
    Http(HttpSession),
    WebSocket(WsSession),
}

/// The revision of both kinds of sessions.
pub const REVISION: &str = "2025-11-25";

/// The changes that a session follows and the updates it received. Ends with the session.
#[derive(Debug, Default)]
pub struct FollowedChanges {
    /// By URI: the version at which following surely began, and the number of updates since.
    changes: BTreeMap<String, (u64, u64)>,
}

impl FollowedChanges {
    fn begin(&mut self, change: &str, version: u64) {
        self.changes.insert(uri(change), (version, 0));
    }

    /// Records a message that is not an answer.
    pub fn record_update(&mut self, world: &World, message: &Value) {
        if message["method"] == "notifications/resources/updated" {
            world.sessions.updates.fetch_add(1, Ordering::Relaxed);
            if let Some((_, heard)) = self.changes.get_mut(message["params"]["uri"].as_str().unwrap()) {
                *heard += 1;
            }
        }
    }
}

fn uri(change: &str) -> String {
    format!("change://{change}")
}

fn version(world: &World, change: &str) -> u64 {
    world.change(change)["version"].as_u64().unwrap()
}

/// The interface of both kinds of sessions.
pub trait SessionAgent {
    /// Sends a request until there is an answer: through one gateway after another, and in a new session if the old one
    /// is gone.
    fn request(&mut self, world: &World, method: &str, params: &Value) -> Value;

    /// Reads unsolicited messages for at most that time.
    fn listen(&mut self, world: &World, time: Duration);

    /// Drops the connection; the next use reconnects through another gateway.
    fn drop_connection(&mut self);

    fn followed(&mut self) -> &mut FollowedChanges;

    fn follow(&mut self, world: &World, change: &str) {
        let patience = world.retry_budget();
        loop {
            let answer = self.request(world, "resources/subscribe", &json!({"uri": uri(change)}));
            if answer["result"].is_object() {
                break;
            }
            assert!(answer["error"].is_object(), "{answer}");
            patience.pause(|| format!("a subscription: {answer}"));
        }
        let version = version(world, change);
        self.followed().begin(change, version);
    }

    /// Waits until the session has heard of the change's transitions, and checks that it heard of no more than there
    /// were.
    fn wait_for_updates(&mut self, world: &World, change: &str, chance: &mut Chance) {
        let patience = world.retry_budget();
        loop {
            if chance.below(3) == 0 {
                self.drop_connection();
            }
            self.listen(world, Duration::from_millis(50));
            let Some((began, heard)) = self.followed().changes.get(&uri(change)).copied() else { return };
            let now = version(world, change);
            assert!(heard <= now, "of {now} steps of {change} there were {heard} updates");
            if heard > 0 || now == began {
                return;
            }
            patience.pause(|| format!("an update of {change}, which is at {now} and was at {began}"));
        }
    }
}

impl Agent {
    /// Returns agents of each kind in turn.
    pub fn any(n: u64) -> Self {
        match n % 3 {
            0 => Self::Stateless,
            1 => Self::Http(HttpSession::default()),
            _ => Self::WebSocket(WsSession::default()),
        }
    }

    pub fn in_session(&mut self) -> Option<&mut dyn SessionAgent> {
        match self {
            Self::Stateless => None,
            Self::Http(session) => Some(session),
            Self::WebSocket(session) => Some(session),
        }
    }

    /// Subscribes to a change.
    pub fn follow(&mut self, world: &World, change: &str) {
        if let Some(session) = self.in_session() {
            session.follow(world, change);
        }
    }

    /// Waits until the agent has heard of the change's transitions, if there were any.
    pub fn catch_up(&mut self, world: &World, change: &str, chance: &mut Chance) {
        if let Some(session) = self.in_session() {
            session.wait_for_updates(world, change, chance);
        }
    }
}
