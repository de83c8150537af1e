//! Who wants to hear of what: handshake-era subscriptions by session, and open `subscriptions/listen` requests.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak},
};

use bytes::Bytes;

use crate::{
    protocol::{RequestId, encode},
    session::SessionShared,
};

/// Delivers one message to a listening request; `false` once it is gone or does not read.
pub type ListenSink = Arc<dyn Fn(Bytes) -> bool + Send + Sync>;

/// What a `subscriptions/listen` request asked for and gets
/// (2026-07-28/basic/patterns/subscriptions, "Notification Filter").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    pub resources_list_changed: bool,
    pub uris: HashSet<String>,
}

struct Listener {
    id: RequestId,
    filter: ListenFilter,
    sink: ListenSink,
}

/// See the module's page.
#[derive(Default)]
pub struct Subscribers {
    by_uri: HashMap<String, HashMap<String, Weak<SessionShared>>>,
    listeners: HashMap<u64, Listener>,
    last: u64,
}

impl Subscribers {
    pub fn subscribe(&mut self, session: &Arc<SessionShared>, uri: String) {
        self.by_uri.entry(uri).or_default().insert(session.id.clone(), Arc::downgrade(session));
    }

    pub fn unsubscribe(&mut self, session: &str, uri: &str) {
        if let Some(sessions) = self.by_uri.get_mut(uri) {
            sessions.remove(session);
            if sessions.is_empty() {
                self.by_uri.remove(uri);
            }
        }
    }

    /// Opens a listener and sends its acknowledgement, which comes before anything else on the subscription.
    pub fn listen(&mut self, id: RequestId, filter: ListenFilter, sink: ListenSink) -> u64 {
        self.last += 1;
        sink(acknowledged(&id, &filter));
        self.listeners.insert(self.last, Listener { id, filter, sink });
        self.last
    }

    pub fn unlisten(&mut self, key: u64) {
        self.listeners.remove(&key);
    }

    /// `notifications/resources/updated` to whoever asked for that URI.
    pub fn updated(&mut self, uri: &str) {
        if let Some(sessions) = self.by_uri.get(uri) {
            let params = serde_json::json!({ "uri": uri }).to_string();
            let message = encode::notification("notifications/resources/updated", Some(&params));
            for session in sessions.values().filter_map(Weak::upgrade) {
                session.send_unsolicited(message.clone());
            }
        }
        self.listeners.retain(|_, listener| {
            if !listener.filter.uris.contains(uri) {
                return true;
            }
            let params = format!(
                r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{}}},"uri":{}}}"#,
                listener.id,
                serde_json::Value::from(uri),
            );
            (listener.sink)(encode::notification("notifications/resources/updated", Some(&params)))
        });
    }

    /// `notifications/resources/list_changed` to the listeners that asked for it.
    pub fn resource_list_changed(&mut self) {
        self.listeners.retain(|_, listener| {
            if !listener.filter.resources_list_changed {
                return true;
            }
            let params = format!(r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{}}}}}"#, listener.id);
            (listener.sink)(encode::notification("notifications/resources/list_changed", Some(&params)))
        });
    }
}

fn acknowledged(id: &RequestId, filter: &ListenFilter) -> Bytes {
    let mut honoured = serde_json::Map::new();
    if filter.resources_list_changed {
        honoured.insert("resourcesListChanged".into(), true.into());
    }
    if !filter.uris.is_empty() {
        let mut uris: Vec<_> = filter.uris.iter().cloned().collect();
        uris.sort();
        honoured.insert("resourceSubscriptions".into(), uris.into());
    }
    let params = format!(
        r#"{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{id}}},"notifications":{}}}"#,
        serde_json::Value::Object(honoured),
    );
    encode::notification("notifications/subscriptions/acknowledged", Some(&params))
}
