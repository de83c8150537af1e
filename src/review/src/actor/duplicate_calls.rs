//! Finds open changes that ask for the same call. The index is in memory, so that two proposals made at the same moment
//! see each other.

use std::collections::HashMap;

use parking_lot::Mutex;
use serde_json::value::RawValue;

use countersign_domain::changes::digest::PartHasher;
use countersign_protocol::arguments::canonical_text_hash;

/// Hashes a call: principal, provider, tool and arguments, independent of the arguments' spacing and key order.
pub(crate) fn call_hash(principal: &str, provider: &str, tool: &str, arguments: &RawValue) -> String {
    let mut hasher = PartHasher::new("countersign.call.1");
    for part in [principal, provider, tool, &canonical_text_hash(arguments.get())] {
        hasher.add_part(part.as_bytes());
    }
    hasher.finish()
}

/// Open changes by the hash of their call. Bounded by the number of changes that are not final.
#[derive(Default)]
pub(crate) struct DuplicateCalls(Mutex<OpenCalls>);

#[derive(Default)]
struct OpenCalls {
    /// The ids of the changes by the hash of their call, oldest first.
    changes_by_hash: HashMap<String, Vec<String>>,
    /// The hash of each change's call.
    hash_by_change: HashMap<String, String>,
}

impl DuplicateCalls {
    /// Adds an open change. Returns the oldest other change that asks for the same call.
    pub(crate) fn add(&self, call_hash: &str, id: &str) -> Option<String> {
        let mut open = self.0.lock();
        open.hash_by_change.insert(id.to_owned(), call_hash.to_owned());
        let ids = open.changes_by_hash.entry(call_hash.to_owned()).or_default();
        ids.push(id.to_owned());
        ids.first().filter(|first| *first != id).cloned()
    }

    /// Removes a change that is final or was not stored.
    pub(crate) fn remove(&self, id: &str) {
        let mut open = self.0.lock();
        let Some(call_hash) = open.hash_by_change.remove(id) else { return };
        if let Some(ids) = open.changes_by_hash.get_mut(&call_hash) {
            ids.retain(|other| other != id);
            if ids.is_empty() {
                open.changes_by_hash.remove(&call_hash);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_open_change_is_the_first() {
        let duplicates = DuplicateCalls::default();
        assert_eq!(duplicates.add("call", "a"), None);
        assert_eq!(duplicates.add("call", "b").as_deref(), Some("a"));
        assert_eq!(duplicates.add("other", "x"), None);
        duplicates.remove("a");
        assert_eq!(duplicates.add("call", "c").as_deref(), Some("b"));
        for id in ["b", "c", "x", "x", "never"] {
            duplicates.remove(id);
        }
        let open = duplicates.0.lock();
        assert!(
            open.changes_by_hash.is_empty() && open.hash_by_change.is_empty(),
            "no entry is left for closed changes"
        );
    }

    #[test]
    fn hash_ignores_spacing_and_key_order() {
        let hash =
            |principal, json: &str| call_hash(principal, "p", "t", &RawValue::from_string(json.to_owned()).unwrap());
        assert_eq!(hash("a", r#"{"x":1,"y":[2]}"#), hash("a", r#"{ "y": [2], "x": 1 }"#));
        assert_ne!(hash("a", r#"{"x":1}"#), hash("a", r#"{"x":2}"#));
        assert_ne!(hash("a", "{}"), hash("b", "{}"));
    }
}
