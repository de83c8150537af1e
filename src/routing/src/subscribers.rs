//! Subscriptions to resources and lists: those of handshake-era sessions, and open `subscriptions/listen` requests.
//!
//! A resource of an upstream is watched once at the upstream, regardless of the number of subscribers.

use std::{
    cell::LazyCell,
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::table::resources::UpstreamResource;
use countersign_domain::{
    policy::{OwnedRequester, Requester},
    principal::Principal,
};
use countersign_protocol::{McpError, RequestId, encode, json::quoted};
use countersign_provider::{Audience, List, Subscriber};
use countersign_upstream::containing_uris;

/// Sends messages to all sessions.
pub trait Clients: Send + Sync + 'static {
    /// Sends a message to each session that has completed its handshake and whose principal is concerned.
    fn broadcast(&self, message: &Bytes, is_concerned: &dyn Fn(&Principal) -> bool);
}

/// Delivers one message to a listening request. Returns `false` if the request has ended or does not read.
pub type ListenSink = Arc<dyn Fn(Bytes) -> bool + Send + Sync>;

/// Resolves when the upstream confirms that it watches the resource, or refuses.
pub type WatchReady = BoxFuture<'static, Result<(), McpError>>;

/// The lists, resources and tasks that a `subscriptions/listen` request subscribes to
/// (2026-07-28/basic/patterns/subscriptions, "Notification Filter").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    pub tools_list_changed: bool,
    pub prompts_list_changed: bool,
    pub resources_list_changed: bool,
    pub uris: HashSet<String>,
    /// Ids of tasks. The request itself follows them, so no updates are sent from here.
    pub tasks: Vec<String>,
}

impl ListenFilter {
    const fn includes_list(&self, list: List) -> bool {
        match list {
            List::Tools => self.tools_list_changed,
            List::Prompts => self.prompts_list_changed,
            List::Resources => self.resources_list_changed,
        }
    }
}

/// An open `subscriptions/listen` request.
pub struct Listener {
    id: RequestId,
    /// The listening client, which only receives updates of resources that it may read.
    requester: OwnedRequester,
    filter: ListenFilter,
    sink: ListenSink,
    /// `true` once the acknowledgement was sent. It precedes all other messages.
    acknowledged: bool,
}

impl Listener {
    /// Creates a listener that was not acknowledged yet.
    #[must_use]
    pub fn new(id: RequestId, requester: OwnedRequester, filter: ListenFilter, sink: ListenSink) -> Self {
        Self { id, requester, filter, sink, acknowledged: false }
    }
}

/// All subscribers of one URI.
#[derive(Default)]
struct ResourceWatch {
    /// The resource at its upstream, which watches it.
    source: Option<UpstreamResource>,
    sessions: HashMap<String, Weak<dyn Subscriber>>,
    listeners: HashSet<u64>,
}

/// All subscriptions to resources and lists.
#[derive(Default)]
pub struct Subscribers {
    by_uri: HashMap<String, ResourceWatch>,
    listeners: HashMap<u64, Listener>,
    last_key: u64,
}

impl Subscribers {
    /// Subscribes a session to a resource, and returns the upstream's answer, if the resource belongs to one. `source`
    /// finds the resource's upstream if this is the first subscriber.
    pub fn subscribe(
        &mut self,
        session: &Arc<dyn Subscriber>,
        uri: String,
        source: impl FnOnce(&str) -> Option<UpstreamResource>,
    ) -> Option<WatchReady> {
        let (watch, ready) = self.watch(uri, source);
        watch.sessions.insert(session.id().to_string(), Arc::downgrade(session));
        ready
    }

    pub fn unsubscribe(&mut self, session: &str, uri: &str) {
        self.remove_subscriber(uri, |watch| _ = watch.sessions.remove(session));
    }

    /// Adds a listener, and returns its key and the resources of upstreams with their answers. Nothing is sent to the
    /// listener before [`Self::acknowledge`].
    pub fn add_listener(
        &mut self,
        listener: Listener,
        mut source: impl FnMut(&str) -> Option<UpstreamResource>,
    ) -> (u64, Vec<(String, WatchReady)>) {
        self.last_key += 1;
        let key = self.last_key;
        let mut watches = Vec::new();
        for uri in &listener.filter.uris {
            let (watch, ready) = self.watch(uri.clone(), &mut source);
            watch.listeners.insert(key);
            watches.extend(ready.map(|ready| (uri.clone(), ready)));
        }
        self.listeners.insert(key, listener);
        (key, watches)
    }

    /// Sends the acknowledgement, which precedes all other messages of the subscription. It omits the resources that
    /// their servers refused to watch.
    pub fn acknowledge(&mut self, key: u64, refused: &[String]) {
        for uri in refused {
            self.remove_subscriber(uri, |watch| _ = watch.listeners.remove(&key));
        }
        if let Some(listener) = self.listeners.get_mut(&key) {
            for uri in refused {
                listener.filter.uris.remove(uri);
            }
            listener.acknowledged = true;
            (listener.sink)(acknowledgement(&listener.id, &listener.filter));
        }
    }

    pub fn remove_listener(&mut self, key: u64) {
        if let Some(listener) = self.listeners.remove(&key) {
            for uri in &listener.filter.uris {
                self.remove_subscriber(uri, |watch| _ = watch.listeners.remove(&key));
            }
        }
    }

    /// Watches a resource for a further subscriber. All subscribers wait for the same answer of the upstream.
    fn watch(
        &mut self,
        uri: String,
        source: impl FnOnce(&str) -> Option<UpstreamResource>,
    ) -> (&mut ResourceWatch, Option<WatchReady>) {
        let watch = self.by_uri.entry(uri).or_insert_with_key(|uri| {
            let source = source(uri);
            if let Some(source) = &source {
                source.upstream.watch_resource(&source.own_uri);
            }
            ResourceWatch { source, ..ResourceWatch::default() }
        });
        let ready = watch.source.as_ref().map(|source| source.upstream.wait_until_watched(&source.own_uri));
        let ready = ready.map(|ready| Box::pin(ready) as WatchReady);
        (watch, ready)
    }

    fn remove_subscriber(&mut self, uri: &str, remove: impl FnOnce(&mut ResourceWatch)) {
        let Some(watch) = self.by_uri.get_mut(uri) else { return };
        remove(watch);
        if watch.sessions.is_empty()
            && watch.listeners.is_empty()
            && let Some(ResourceWatch { source: Some(source), .. }) = self.by_uri.remove(uri)
        {
            source.upstream.unwatch_resource(&source.own_uri);
        }
    }

    /// Moves watches to the upstreams that now own the resources. Each watch begins at the new upstream before it ends at the
    /// old one.
    pub fn move_sources(&mut self, source: impl Fn(&str) -> Option<UpstreamResource>) {
        for (uri, watch) in &mut self.by_uri {
            let new = source(uri);
            let is_unchanged = match (&watch.source, &new) {
                (Some(old), Some(new)) => Arc::ptr_eq(&old.upstream, &new.upstream) && old.own_uri == new.own_uri,
                (None, None) => true,
                _ => false,
            };
            if is_unchanged {
                continue;
            }
            if let Some(new) = &new {
                // Nobody waits for the confirmation.
                new.upstream.watch_resource(&new.own_uri);
            }
            if let Some(old) = std::mem::replace(&mut watch.source, new) {
                old.upstream.unwatch_resource(&old.own_uri);
            }
        }
    }

    /// Sends `notifications/resources/updated` to all subscribers of the URI. For an upstream's resource, it also goes
    /// to subscribers of a URI that contains it (schema/2025-11-25, `ResourceUpdatedNotificationParams`). If there is
    /// an audience, only its members are notified. `may_read` tells who may read the updated resource, which need not
    /// be the one that is subscribed to. It is called once for equal requesters; `None` if everybody may.
    pub fn notify_updated(
        &mut self,
        uri: &str,
        audience: Option<&Audience>,
        may_read: Option<&dyn Fn(&Requester<'_>) -> bool>,
    ) {
        let mut answers: HashMap<OwnedRequester, bool> = HashMap::new();
        let mut is_allowed = |principal: &Principal, requester: &dyn Fn() -> Option<OwnedRequester>| {
            if audience.is_some_and(|audience| !audience.includes(principal)) {
                return false;
            }
            let Some(may_read) = may_read else { return true };
            requester().is_some_and(|requester| {
                *answers.entry(requester).or_insert_with_key(|requester| may_read(&requester.as_requester()))
            })
        };
        let Self { by_uri, listeners, .. } = self;
        let mut closed_listeners = Vec::new();
        let message = |meta: &str| {
            let params = format!(r#"{{{meta}"uri":{}}}"#, quoted(uri));
            encode::notification("notifications/resources/updated", Some(&params))
        };
        let for_sessions = LazyCell::new(|| message(""));
        let exact = by_uri.get(uri).into_iter();
        let containing = containing_uris(uri)
            .filter_map(|containing_uri| by_uri.get(containing_uri).filter(|watch| watch.source.is_some()));
        let (mut notified_sessions, mut notified_listeners) = (HashSet::new(), HashSet::new());
        for watch in exact.chain(containing) {
            for session in watch.sessions.values().filter_map(Weak::upgrade) {
                if is_allowed(session.principal(), &|| session.requester())
                    && notified_sessions.insert(session.id().clone())
                {
                    session.send(for_sessions.clone());
                }
            }
            for key in &watch.listeners {
                let Some(listener) = listeners.get(key).filter(|listener| listener.acknowledged) else { continue };
                if is_allowed(&listener.requester.principal, &|| Some(listener.requester.clone()))
                    && notified_listeners.insert(*key)
                    && !(listener.sink)(message(&format!("{},", subscription_meta(&listener.id))))
                {
                    closed_listeners.push(*key);
                }
            }
        }
        closed_listeners.into_iter().for_each(|key| self.remove_listener(key));
    }

    /// Notifies the listeners that subscribed to the list and whose principals are concerned.
    pub fn notify_list_changed(&mut self, list: List, is_concerned: &dyn Fn(&Principal) -> bool) {
        let mut closed_listeners = Vec::new();
        for (key, listener) in &self.listeners {
            if listener.acknowledged
                && listener.filter.includes_list(list)
                && is_concerned(&listener.requester.principal)
            {
                let params = format!("{{{}}}", subscription_meta(&listener.id));
                if !(listener.sink)(encode::notification(list.notification(), Some(&params))) {
                    closed_listeners.push(*key);
                }
            }
        }
        closed_listeners.into_iter().for_each(|key| self.remove_listener(key));
    }
}

/// Returns the `_meta` member that names the subscription of a message.
fn subscription_meta(id: &RequestId) -> String {
    format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#)
}

fn acknowledgement(id: &RequestId, filter: &ListenFilter) -> Bytes {
    let mut acknowledged_filter = serde_json::Map::new();
    for (name, wanted) in [
        ("toolsListChanged", filter.tools_list_changed),
        ("promptsListChanged", filter.prompts_list_changed),
        ("resourcesListChanged", filter.resources_list_changed),
    ] {
        if wanted {
            acknowledged_filter.insert(name.into(), true.into());
        }
    }
    if !filter.uris.is_empty() {
        let mut uris: Vec<_> = filter.uris.iter().cloned().collect();
        uris.sort();
        acknowledged_filter.insert("resourceSubscriptions".into(), uris.into());
    }
    if !filter.tasks.is_empty() {
        acknowledged_filter.insert("taskIds".into(), filter.tasks.clone().into());
    }
    let params =
        format!(r#"{{{},"notifications":{}}}"#, subscription_meta(id), serde_json::Value::Object(acknowledged_filter));
    encode::notification("notifications/subscriptions/acknowledged", Some(&params))
}

#[cfg(test)]
mod tests;
