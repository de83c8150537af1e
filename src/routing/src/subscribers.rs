//! Who wants to hear of what: handshake-era subscriptions by session, and open `subscriptions/listen` requests.
//!
//! A resource of an upstream is watched there once, however many want to hear of it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use countersign_domain::principal::Principal;
use countersign_protocol::{McpError, RequestId, encode, json::quoted};
use countersign_provider::{Audience, Subscriber};
use countersign_upstream::Upstream;

/// All sessions.
pub trait Clients: Send + Sync + 'static {
    /// Sends a message to each session of the handshake era whose handshake is over.
    fn tell_all(&self, message: &Bytes);
}

/// Delivers one message to a listening request; `false` once it is gone or does not read.
pub type ListenSink = Arc<dyn Fn(Bytes) -> bool + Send + Sync>;

/// Resolves when an upstream tells of the resource from now on, or says that it will not.
pub type Ready = BoxFuture<'static, Result<(), McpError>>;

/// What a `subscriptions/listen` request asked for and gets
/// (2026-07-28/basic/patterns/subscriptions, "Notification Filter").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    pub tools_list_changed: bool,
    pub prompts_list_changed: bool,
    pub resources_list_changed: bool,
    pub uris: HashSet<String>,
    /// Tasks of the extension; who tells of them is `countersign_bridge::tasks::listen`.
    pub tasks: Vec<String>,
}

/// A list that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    #[must_use]
    pub const fn notification(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources => "notifications/resources/list_changed",
        }
    }
}

impl ListenFilter {
    const fn wants(&self, list: List) -> bool {
        match list {
            List::Tools => self.tools_list_changed,
            List::Prompts => self.prompts_list_changed,
            List::Resources => self.resources_list_changed,
        }
    }
}

struct Listener {
    id: RequestId,
    principal: Arc<Principal>,
    filter: ListenFilter,
    sink: ListenSink,
    /// Nothing goes before the acknowledgement.
    acknowledged: bool,
}

/// Where a resource of an upstream is watched.
#[derive(Clone)]
pub struct Source {
    pub upstream: Arc<Upstream>,
    /// The resource as the upstream calls it.
    pub own: String,
}

/// Everybody who wants to hear of one URI.
#[derive(Default)]
struct Watch {
    source: Option<Source>,
    sessions: HashMap<String, Weak<dyn Subscriber>>,
    listeners: HashSet<u64>,
}

impl Watch {
    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.listeners.is_empty()
    }
}

/// See the module's page.
#[derive(Default)]
pub struct Subscribers {
    by_uri: HashMap<String, Watch>,
    listeners: HashMap<u64, Listener>,
    last: u64,
}

impl Subscribers {
    /// `source` finds whose the resource is, if nobody wanted it before.
    pub fn subscribe(
        &mut self,
        session: &Arc<dyn Subscriber>,
        uri: String,
        source: impl FnOnce(&str) -> Option<Source>,
    ) -> Option<Ready> {
        let (watch, ready) = self.watch(uri, source);
        watch.sessions.insert(session.id().to_string(), Arc::downgrade(session));
        ready
    }

    pub fn unsubscribe(&mut self, session: &str, uri: &str) {
        self.leave(uri, |watch| _ = watch.sessions.remove(session));
    }

    /// Opens a listener. It hears nothing until it is acknowledged, for which the resources should be ready.
    pub fn listen(
        &mut self,
        id: RequestId,
        principal: Arc<Principal>,
        filter: ListenFilter,
        sink: ListenSink,
        mut source: impl FnMut(&str) -> Option<Source>,
    ) -> (u64, Vec<(String, Ready)>) {
        self.last += 1;
        let key = self.last;
        let mut all = Vec::new();
        for uri in &filter.uris {
            let (watch, ready) = self.watch(uri.clone(), &mut source);
            watch.listeners.insert(key);
            all.extend(ready.map(|ready| (uri.clone(), ready)));
        }
        self.listeners.insert(key, Listener { id, principal, filter, sink, acknowledged: false });
        (key, all)
    }

    /// Sends a listener its acknowledgement, which comes before anything else on the subscription, without the
    /// resources that their servers do not tell of.
    pub fn acknowledge(&mut self, key: u64, refused: &[String]) {
        for uri in refused {
            self.leave(uri, |watch| _ = watch.listeners.remove(&key));
        }
        if let Some(listener) = self.listeners.get_mut(&key) {
            for uri in refused {
                listener.filter.uris.remove(uri);
            }
            listener.acknowledged = true;
            (listener.sink)(acknowledged(&listener.id, &listener.filter));
        }
    }

    pub fn unlisten(&mut self, key: u64) {
        if let Some(listener) = self.listeners.remove(&key) {
            for uri in &listener.filter.uris {
                self.leave(uri, |watch| _ = watch.listeners.remove(&key));
            }
        }
    }

    fn watch(&mut self, uri: String, source: impl FnOnce(&str) -> Option<Source>) -> (&mut Watch, Option<Ready>) {
        let mut ready = None;
        let watch = self.by_uri.entry(uri).or_insert_with_key(|uri| {
            let source = source(uri);
            ready = source.as_ref().map(Source::watch);
            Watch { source, ..Watch::default() }
        });
        (watch, ready)
    }

    fn leave(&mut self, uri: &str, leave: impl FnOnce(&mut Watch)) {
        let Some(watch) = self.by_uri.get_mut(uri) else { return };
        leave(watch);
        if watch.is_empty()
            && let Some(Watch { source: Some(source), .. }) = self.by_uri.remove(uri)
        {
            source.upstream.unwatch_resource(&source.own);
        }
    }

    /// Routes have changed: resources are watched where they are now. The new place is told before the old one.
    pub fn move_sources(&mut self, source: impl Fn(&str) -> Option<Source>) {
        for (uri, watch) in &mut self.by_uri {
            let new = source(uri);
            let same = match (&watch.source, &new) {
                (Some(old), Some(new)) => Arc::ptr_eq(&old.upstream, &new.upstream) && old.own == new.own,
                (None, None) => true,
                _ => false,
            };
            if same {
                continue;
            }
            if let Some(new) = &new {
                // It counts from now on; nobody waits for it.
                drop(new.watch());
            }
            if let Some(old) = std::mem::replace(&mut watch.source, new) {
                old.upstream.unwatch_resource(&old.own);
            }
        }
    }

    /// `notifications/resources/updated` to whoever asked for that URI; also, where it is an upstream's, to those who
    /// asked for one that it is part of (schema/2025-11-25, `ResourceUpdatedNotificationParams`). Where there is an audience,
    /// nobody else is told, whatever they subscribed to.
    pub fn updated(&mut self, uri: &str, audience: Option<&Audience>) {
        let may = |principal: &Principal| audience.is_none_or(|audience| audience.has(principal));
        let Self { by_uri, listeners, .. } = self;
        let mut deaf = Vec::new();
        let message = |meta: &str| {
            let params = format!(r#"{{{meta}"uri":{}}}"#, quoted(uri));
            encode::notification("notifications/resources/updated", Some(&params))
        };
        let exact = by_uri.get(uri).into_iter();
        let wholes = wholes(uri).filter_map(|whole| by_uri.get(whole).filter(|watch| watch.source.is_some()));
        let mut told = HashSet::new();
        for watch in exact.chain(wholes) {
            for session in watch.sessions.values().filter_map(Weak::upgrade) {
                if may(session.principal()) && told.insert(Err(session.id().clone())) {
                    session.send(message(""));
                }
            }
            for key in &watch.listeners {
                let Some(listener) = listeners.get(key).filter(|listener| listener.acknowledged) else { continue };
                if !may(&listener.principal) {
                    continue;
                }
                if told.insert(Ok(*key)) && !(listener.sink)(message(&format!("{},", tag(&listener.id)))) {
                    deaf.push(*key);
                }
            }
        }
        deaf.into_iter().for_each(|key| self.unlisten(key));
    }

    /// A list has changed: to the listeners that asked for it.
    pub fn list_changed(&mut self, list: List) {
        let mut deaf = Vec::new();
        for (key, listener) in &self.listeners {
            if listener.acknowledged && listener.filter.wants(list) {
                let params = format!("{{{}}}", tag(&listener.id));
                if !(listener.sink)(encode::notification(list.notification(), Some(&params))) {
                    deaf.push(*key);
                }
            }
        }
        deaf.into_iter().for_each(|key| self.unlisten(key));
    }
}

impl Source {
    /// It counts at once; the future only tells when it is in force.
    fn watch(&self) -> Ready {
        Box::pin(self.upstream.watch_resource(&self.own))
    }
}

/// The member that says which subscription a message is of.
fn tag(id: &RequestId) -> String {
    format!(r#""_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}}"#)
}

/// The URIs that a URI is part of, by its path: from the longest. How many at most that no made-up URI costs much.
fn wholes(uri: &str) -> impl Iterator<Item = &str> {
    const DEPTH: usize = 32;
    let places = uri.char_indices().rev().filter(|(_, c)| matches!(c, '/' | '?' | '#')).take(DEPTH);
    // With the slash and without.
    places.flat_map(|(at, c)| {
        let with = (c == '/' && at + 1 < uri.len()).then(|| &uri[..=at]);
        with.into_iter().chain(std::iter::once(&uri[..at]))
    })
}

fn acknowledged(id: &RequestId, filter: &ListenFilter) -> Bytes {
    let mut honoured = serde_json::Map::new();
    for (name, wanted) in [
        ("toolsListChanged", filter.tools_list_changed),
        ("promptsListChanged", filter.prompts_list_changed),
        ("resourcesListChanged", filter.resources_list_changed),
    ] {
        if wanted {
            honoured.insert(name.into(), true.into());
        }
    }
    if !filter.uris.is_empty() {
        let mut uris: Vec<_> = filter.uris.iter().cloned().collect();
        uris.sort();
        honoured.insert("resourceSubscriptions".into(), uris.into());
    }
    if !filter.tasks.is_empty() {
        honoured.insert("taskIds".into(), filter.tasks.clone().into());
    }
    let params = format!(r#"{{{},"notifications":{}}}"#, tag(id), serde_json::Value::Object(honoured));
    encode::notification("notifications/subscriptions/acknowledged", Some(&params))
}

#[cfg(test)]
mod tests;
