//! `notifications/tasks` of changes for a `subscriptions/listen` that names them (ext-tasks, "Task Status
//! Notifications"): each transition is pushed as the feed announces it.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::{find, view};
use crate::Handling;
use countersign_bridge::tasks::{self as foreign, awaited_task, table::Task};
use countersign_domain::changes::Change;
use countersign_protocol::McpError;

/// Tasks of one subscription at most, of each kind.
const MAX_TASKS: usize = 100;

/// The tasks of one subscription.
pub struct Tasks {
    pub upstream: Vec<Arc<Task>>,
    changes: HashMap<String, Arc<Change>>,
    feed: Option<countersign_feed::FeedSubscription>,
}

impl Tasks {
    /// Their ids, as the acknowledgement names them.
    pub fn ids(&self) -> impl Iterator<Item = String> + '_ {
        self.upstream.iter().map(|task| task.alias.clone()).chain(self.changes.keys().cloned())
    }
}

/// The tasks among those named that this client may hear of, each once.
///
/// # Errors
/// `-32021` for a client that does not declare the extension and names some; those of the store.
pub async fn honoured(exchange: &Handling, named: &[std::borrow::Cow<'_, str>]) -> Result<Tasks, McpError> {
    let upstream = foreign::listen::honoured(&exchange.server.bridge.tasks, exchange, named)?;
    let mut changes = HashMap::new();
    // From before they are read: what happens in between is told twice rather than not at all.
    let ours = || named.iter().filter(|id| id.starts_with("chg_"));
    let feed = if ours().next().is_some() { exchange.server.reviews.feed.subscribe(None) } else { None };
    for id in ours().take(MAX_TASKS) {
        if let Some(change) = find(exchange, id).await? {
            changes.insert(change.id.clone(), change);
        }
    }
    Ok(Tasks { upstream, changes, feed })
}

/// Tells of those tasks as they are, and of every change of them, until nobody reads; `subscription` is the id of the
/// listen request, as JSON text.
pub async fn watch(exchange: &Handling, tasks: Tasks, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    let Tasks { upstream, changes, feed } = tasks;
    tokio::join!(
        foreign::listen::watch(exchange, upstream, subscription, sink),
        follow(exchange, changes, feed, subscription, sink)
    );
}

async fn follow(
    exchange: &Handling,
    changes: HashMap<String, Arc<Change>>,
    mut feed: Option<countersign_feed::FeedSubscription>,
    subscription: &str,
    sink: &dyn Fn(Bytes) -> bool,
) {
    let tell = |change: &Change| sink(awaited_task::notification(&view::detailed(exchange, change), subscription));
    let mut open: HashMap<String, u64> = HashMap::new();
    for change in changes.values() {
        if !tell(change) {
            return;
        }
        if !change.state.is_final() {
            open.insert(change.id.clone(), change.version);
        }
    }
    while !open.is_empty() {
        let Some(subscribed) = &mut feed else { return };
        let Some(event) = subscribed.next().await else {
            // Behind and unreadable, or at its end: from where it was, as long as there is a feed.
            let position = subscribed.position();
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            feed = exchange.server.reviews.feed.subscribe(Some(position));
            continue;
        };
        let Some(about) = &event.change else { continue };
        let Some(told) = open.get(&about.id).copied().filter(|told| about.version > *told) else { continue };
        // As it is now: several transitions may have been made since.
        let Ok(Some(change)) = exchange.server.reviews.changes.get(&about.id).await else { continue };
        if change.version <= told {
            continue;
        }
        if !tell(&change) {
            return;
        }
        if change.state.is_final() {
            open.remove(&change.id);
        } else {
            open.insert(change.id.clone(), change.version);
        }
    }
}
