//! Whether two accounts are the same person. Several keys may belong to one owner (`keys create --owner`): that person
//! decides once, and never on what they proposed.

use super::{Decision, Proposer};
use crate::auth::Principal;

/// An account, as far as it matters whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    pub name: &'a str,
    /// None where it is the person of that name.
    pub owner: Option<&'a str>,
}

impl<'a> Person<'a> {
    #[must_use]
    pub fn of(principal: &'a Principal) -> Self {
        Self { name: &principal.name, owner: principal.owner.as_deref() }
    }

    #[must_use]
    pub fn of_proposer(proposer: &'a Proposer) -> Self {
        Self { name: &proposer.principal, owner: proposer.owner.as_deref() }
    }

    #[must_use]
    pub fn of_decision(decision: &'a Decision) -> Self {
        Self { name: &decision.reviewer, owner: decision.owner.as_deref() }
    }

    /// Whether they share an owner or a name, or the one is named after the owner of the other. Where names and owners
    /// leave it open, they count as one: that costs a second reviewer, and the other way round would let one approve
    /// for two.
    #[must_use]
    pub fn is(self, other: Person<'_>) -> bool {
        let known_as = |person: Person<'_>, name: &str| person.name == name || person.owner == Some(name);
        known_as(self, other.name) || other.owner.is_some_and(|owner| known_as(self, owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_that_share_a_name_or_an_owner_are_one_person() {
        let person = |name, owner| Person { name, owner };
        let alice = person("alice", None);
        for same in [alice, person("laptop", Some("alice")), person("alice", Some("carol"))] {
            assert!(alice.is(same) && same.is(alice), "{same:?}");
        }
        assert!(person("ci", Some("carol")).is(person("desk", Some("carol"))));
        assert!(person("carol", Some("alice")).is(person("ci", Some("carol"))));
        for other in [person("bob", None), person("bob", Some("carol")), person("Alice", None), person("", None)] {
            assert!(!alice.is(other) && !other.is(alice), "{other:?}");
        }
        assert!(!person("a", Some("b")).is(person("c", Some("d"))));
    }
}
