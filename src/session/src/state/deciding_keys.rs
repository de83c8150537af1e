//! Keys that may decide on changes and call tools. An agent may hold such a key by mistake, so each is logged once.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use countersign_domain::principal::Principal;

/// The maximum number of keys that are remembered. Further keys are not logged.
const MAX_KEYS: usize = 1000;

/// The keys that were already logged.
#[derive(Default)]
pub struct DecidingKeys(Mutex<HashSet<String>>);

impl DecidingKeys {
    /// Logs a warning at the first tool call with a key that may decide. Returns `true` if this was that call.
    pub fn note_call(&self, principal: &Principal, transport: &str) -> bool {
        let Some(key) = principal.key_id.as_ref().filter(|_| principal.role.may_decide()) else { return false };
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.contains(key) || noted.len() >= MAX_KEYS {
            return false;
        }
        noted.insert(key.clone());
        tracing::warn!(
            principal = %principal.name, role = principal.role.as_str(), %key, transport,
            "a key that may decide on changes calls tools; an agent must not hold it. Give agents keys of their own: \
             `countersign keys create --role agent --name NAME`"
        );
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::principal::Role;

    fn principal(role: Role, key: Option<&str>) -> Principal {
        Principal { name: "alice".into(), role, key_id: key.map(str::to_owned), owner: None }
    }

    #[test]
    fn key_that_may_decide_is_logged_once() {
        let keys = DecidingKeys::default();
        for role in [Role::Reviewer, Role::Admin] {
            let key = format!("key_{}", role.as_str());
            assert!(keys.note_call(&principal(role, Some(&key)), "http"), "{key}");
            assert!(!keys.note_call(&principal(role, Some(&key)), "websocket"), "{key}");
        }
        assert!(!keys.note_call(&principal(Role::Agent, Some("key_3")), "http"));
        assert!(!keys.note_call(&Principal::local_agent(), "http"));
    }

    #[test]
    fn number_of_keys_is_bounded() {
        let keys = DecidingKeys::default();
        let noted = (0..MAX_KEYS + 10)
            .filter(|n| keys.note_call(&principal(Role::Reviewer, Some(&format!("key_{n}"))), "http"))
            .count();
        assert_eq!(noted, MAX_KEYS);
    }
}
