//! `notifications/tasks` for changes that a `subscriptions/listen` names (ext-tasks, "Task Status Notifications"): each
//! transition is sent as soon as the feed announces it.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use super::{find, view};
use crate::RequestScope;
use countersign_bridge::tasks::{self as foreign, awaited_task, table::Task};
use countersign_domain::changes::Change;
use countersign_protocol::McpError;

/// The maximum number of tasks of each kind in one subscription.
const MAX_TASKS: usize = 100;

/// The tasks of one subscription.
pub struct Tasks {
    pub upstream: Vec<Arc<Task>>,
    changes: HashMap<String, Arc<Change>>,
    feed: Option<countersign_feed::FeedSubscription>,
}

impl Tasks {
    /// Returns the ids of the tasks, as the acknowledgement names them.
    pub fn ids(&self) -> impl Iterator<Item = String> + '_ {
        self.upstream.iter().map(|task| task.alias.clone()).chain(self.changes.keys().cloned())
    }
}

/// Returns the named tasks that this client may observe, each once.
///
/// # Errors
/// `-32021` for a client that names tasks but does not declare the extension; the errors of the store.
pub async fn permitted(exchange: &RequestScope, named: &[std::borrow::Cow<'_, str>]) -> Result<Tasks, McpError> {
    let upstream = foreign::listen::permitted(&exchange.server.bridge.tasks, exchange, named)?;
    let mut changes = HashMap::new();
    // The feed is read from before the tasks are: a transition in between is then sent twice rather than not at all.
    let change_ids = || named.iter().filter(|id| id.starts_with("chg_"));
    let feed = if change_ids().next().is_some() { exchange.server.reviews.feed.subscribe(None) } else { None };
    for id in change_ids().take(MAX_TASKS) {
        if let Some(change) = find(exchange, id).await? {
            changes.insert(change.id.clone(), change);
        }
    }
    Ok(Tasks { upstream, changes, feed })
}

/// Sends the current state of the tasks and every transition of them, until the client stops reading. `subscription` is
/// the id of the listen request, as JSON text.
pub async fn watch(exchange: &RequestScope, tasks: Tasks, subscription: &str, sink: &dyn Fn(Bytes) -> bool) {
    let Tasks { upstream, changes, feed } = tasks;
    tokio::join!(
        foreign::listen::watch(exchange, upstream, subscription, sink),
        follow(exchange, changes, feed, subscription, sink)
    );
}

async fn follow(
    exchange: &RequestScope,
    changes: HashMap<String, Arc<Change>>,
    mut feed: Option<countersign_feed::FeedSubscription>,
    subscription: &str,
    sink: &dyn Fn(Bytes) -> bool,
) {
    let notify = |change: &Change| sink(awaited_task::notification(&view::detailed(exchange, change), subscription));
    let mut open: HashMap<String, u64> = HashMap::new();
    for change in changes.values() {
        if !notify(change) {
            return;
        }
        if !change.state.is_final() {
            open.insert(change.id.clone(), change.version);
        }
    }
    while !open.is_empty() {
        let Some(subscribed) = &mut feed else { return };
        let Some(event) = subscribed.next().await else {
            // The subscriber fell behind, or the feed has ended. It resumes from its position, as long as there is a
            // feed.
            let position = subscribed.position();
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            feed = exchange.server.reviews.feed.subscribe(Some(position));
            continue;
        };
        let Some(announced) = &event.change else { continue };
        let Some(sent_version) = open.get(&announced.id).copied().filter(|sent| announced.version > *sent) else {
            continue;
        };
        // The current state is read, because several transitions may have been made since.
        let Ok(Some(change)) = exchange.server.reviews.changes.get(&announced.id).await else { continue };
        if change.version <= sent_version {
            continue;
        }
        if !notify(&change) {
            return;
        }
        if change.state.is_final() {
            open.remove(&change.id);
        } else {
            open.insert(change.id.clone(), change.version);
        }
    }
}
