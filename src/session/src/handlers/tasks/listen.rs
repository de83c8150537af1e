//! `notifications/tasks` for changes that a `subscriptions/listen` names (ext-tasks, "Task Status Notifications"): each
//! transition is sent as soon as the feed announces it.

use std::{borrow::Cow, collections::HashMap, sync::Arc, time::Duration};

use super::{TaskSources, find_change, view};
use crate::gateway::server::Reviews;
use countersign_bridge::tasks::{self as upstream_tasks, TaskListener, table::Task};
use countersign_domain::changes::{CHANGE_ID_PREFIX, Change};
use countersign_exchange::context::Exchange;
use countersign_protocol::McpError;

/// The maximum number of changes in one subscription.
const MAX_CHANGES_PER_SUBSCRIPTION: usize = 100;

/// The tasks of one subscription.
pub struct SubscribedTasks {
    pub upstream: Vec<Arc<Task>>,
    changes: HashMap<String, Arc<Change>>,
    feed: Option<countersign_feed::FeedSubscription>,
}

impl SubscribedTasks {
    /// Returns the ids of the tasks, as the acknowledgement names them.
    pub fn ids(&self) -> impl Iterator<Item = String> + '_ {
        self.upstream.iter().map(|task| task.alias.clone()).chain(self.changes.keys().cloned())
    }
}

/// Returns the named tasks that this client may observe, each once.
///
/// # Errors
/// `-32021` for a client that names tasks but does not declare the extension; the errors of the store.
pub async fn find_observable(
    exchange: &Exchange,
    sources: TaskSources<'_>,
    named_ids: &[Cow<'_, str>],
) -> Result<SubscribedTasks, McpError> {
    let TaskSources { reviews, upstream, .. } = sources;
    let upstream = upstream_tasks::modern::find_observable(upstream, exchange, named_ids)?;
    let mut changes = HashMap::new();
    // The subscription to the feed begins before the changes are read, so that no transition is missed. One in between may
    // be sent twice.
    let change_ids = || named_ids.iter().filter(|id| id.starts_with(CHANGE_ID_PREFIX));
    let feed = if change_ids().next().is_some() { reviews.changes.feed().subscribe(None) } else { None };
    for id in change_ids().take(MAX_CHANGES_PER_SUBSCRIPTION) {
        if let Some(change) = find_change(exchange, reviews, id).await? {
            changes.insert(change.id.clone(), change);
        }
    }
    Ok(SubscribedTasks { upstream, changes, feed })
}

/// Sends the current state of the tasks and every transition of them. Never returns: the caller drops it at the end of
/// the listen request.
pub async fn watch(listener: TaskListener<'_>, reviews: &Reviews, tasks: SubscribedTasks) {
    let SubscribedTasks { upstream, changes, feed } = tasks;
    tokio::join!(upstream_tasks::modern::watch(listener, upstream), follow_changes(listener, reviews, changes, feed));
}

/// Sends the current state of the changes and every transition of them, until each has ended.
async fn follow_changes(
    listener: TaskListener<'_>,
    reviews: &Reviews,
    changes: HashMap<String, Arc<Change>>,
    mut feed: Option<countersign_feed::FeedSubscription>,
) {
    let notify = |change: &Change| listener.notify(&view::modern_task(listener.exchange, reviews, change));
    let mut sent_versions: HashMap<String, u64> = HashMap::new();
    for change in changes.values() {
        if !notify(change) {
            return;
        }
        if !change.state.is_final() {
            sent_versions.insert(change.id.clone(), change.version);
        }
    }
    while !sent_versions.is_empty() {
        let Some(subscribed) = &mut feed else { return };
        let Some(event) = subscribed.next().await else {
            // The subscriber fell behind, or the feed has ended. It resumes from its position, as long as there is a
            // feed.
            let position = subscribed.position();
            tokio::time::sleep(Duration::from_secs(1)).await;
            feed = reviews.changes.feed().subscribe(Some(position));
            continue;
        };
        let Some(announced) = &event.change else { continue };
        let Some(sent_version) = sent_versions.get(&announced.id).copied().filter(|sent| announced.version > *sent)
        else {
            continue;
        };
        // The current state is read, because several transitions may have been made since.
        let Ok(Some(change)) = reviews.changes.get(&announced.id).await else { continue };
        if change.version <= sent_version {
            continue;
        }
        if !notify(&change) {
            return;
        }
        if change.state.is_final() {
            sent_versions.remove(&change.id);
        } else {
            sent_versions.insert(change.id.clone(), change.version);
        }
    }
}
