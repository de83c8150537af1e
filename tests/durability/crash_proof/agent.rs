//! How an agent speaks to whichever gateway there is: with requests that know nothing of each other, or in a session, which
//! lives at one of them and is reached through all.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use serde_json::{Value, json};

use super::{chance::Chance, session::HttpSession, web_socket::WsSession, world::World};

pub enum Agent {
    Stateless,
    Http(HttpSession),
    WebSocket(WsSession),
}

/// The handshake of both kinds of sessions.
pub const REVISION: &str = "2025-11-25";

/// The changes that a session has asked to hear of, and what it heard. Goes with the session.
#[derive(Debug, Default)]
pub struct FollowedChanges {
    /// By URI: the version that it had when the session was certainly told of what comes, and how many updates came.
    changes: BTreeMap<String, (u64, u64)>,
}

impl FollowedChanges {
    fn begin(&mut self, change: &str, version: u64) {
        self.changes.insert(uri(change), (version, 0));
    }

    /// What comes in a session without being an answer.
    pub fn hear(&mut self, world: &World, message: &Value) {
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

/// What the two kinds of sessions have in common.
pub trait SessionAgent {
    /// Until there is an answer, through one gateway after another, and in a new session where the one before is gone.
    fn request(&mut self, world: &World, method: &str, params: &Value) -> Value;

    /// Reads what has come without being asked for, for no longer than that.
    fn listen(&mut self, world: &World, time: Duration);

    /// Its connection breaks, and it comes back through another gateway when next there is something to say or to hear.
    fn drop_connection(&mut self);

    fn followed(&mut self) -> &mut FollowedChanges;

    fn follow(&mut self, world: &World, change: &str) {
        let patience = world.patience();
        loop {
            let answer = self.request(world, "resources/subscribe", &json!({"uri": uri(change)}));
            if answer["result"].is_object() {
                break;
            }
            assert!(answer["error"].is_object(), "{answer}");
            patience.rest(|| format!("a subscription: {answer}"));
        }
        let version = version(world, change);
        self.followed().begin(change, version);
    }

    /// Whoever follows a change hears of what becomes of it, as long as the session lives, and no more often than
    /// something did.
    fn catch_up(&mut self, world: &World, change: &str, chance: &mut Chance) {
        let patience = world.patience();
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
            patience.rest(|| format!("an update of {change}, which is at {now} and was at {began}"));
        }
    }
}

impl Agent {
    /// One of each kind in turn.
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

    /// Asks to hear of a change.
    pub fn follow(&mut self, world: &World, change: &str) {
        if let Some(session) = self.in_session() {
            session.follow(world, change);
        }
    }

    /// Waits until it has heard of what became of a change, if anything did.
    pub fn catch_up(&mut self, world: &World, change: &str, chance: &mut Chance) {
        if let Some(session) = self.in_session() {
            session.catch_up(world, change, chance);
        }
    }
}
