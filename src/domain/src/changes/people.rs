//! Whether two accounts are the same person. Several keys may belong to one owner (`keys create --owner`): that person
//! decides once, and never on what they proposed.
//!
//! Whatever depends on who somebody is asks [`Person::is`]: decisions, standing rules, settlements, undone approvals,
//! corrections, denials. What a principal may see and withdraw depends on the exact name, which is another question.

use unicode_normalization::UnicodeNormalization;

use super::{Decision, Edit, Proposer, visible::is_blank};
use crate::principal::Principal;

/// An account, as far as it matters whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    pub name: &'a str,
    /// None where it is the person of that name.
    pub owner: Option<&'a str>,
    /// The id of the key that was shown, if any.
    pub key: Option<&'a str>,
}

impl<'a> Person<'a> {
    /// Of whom nothing but a name is known.
    #[must_use]
    pub fn named(name: &'a str) -> Self {
        Self { name, owner: None, key: None }
    }

    #[must_use]
    pub fn of(principal: &'a Principal) -> Self {
        Self { name: &principal.name, owner: principal.owner.as_deref(), key: principal.key_id.as_deref() }
    }

    #[must_use]
    pub fn of_proposer(proposer: &'a Proposer) -> Self {
        Self { name: &proposer.principal, owner: proposer.owner.as_deref(), key: proposer.key_id.as_deref() }
    }

    #[must_use]
    pub fn of_decision(decision: &'a Decision) -> Self {
        Self { name: &decision.reviewer, owner: decision.owner.as_deref(), key: decision.key_id.as_deref() }
    }

    #[must_use]
    pub fn of_editor(edit: &'a Edit) -> Self {
        Self { name: &edit.by, owner: edit.owner.as_deref(), key: edit.key_id.as_deref() }
    }

    /// Whether they share a key, an owner or a name, or the one is named after the owner of the other. Where names and
    /// owners leave it open, they count as one: that costs a second reviewer, and the other way round would let one
    /// approve for two.
    #[must_use]
    pub fn is(self, other: Person<'_>) -> bool {
        let known_as =
            |name: &str| same_name(self.name, name) || self.owner.is_some_and(|owner| same_name(owner, name));
        (self.key.is_some() && self.key == other.key) || known_as(other.name) || other.owner.is_some_and(known_as)
    }

    /// Whether it is known by that name, as itself or as its owner.
    #[must_use]
    pub fn is_called(self, name: &str) -> bool {
        self.is(Person::named(name))
    }
}

/// Whether two names are one: without regard to case, to the width and other forms of the same characters (NFKC), and to
/// characters that nobody sees.
#[must_use]
pub fn same_name(a: &str, b: &str) -> bool {
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    folded(a) == folded(b)
}

/// What the spellings of one name have in common.
#[must_use]
pub fn folded(name: &str) -> String {
    // Up first: characters that are apart in lower case only (`ß` and `ss`, `ς` and `σ`, `ſ` and `s`) are one.
    let cased = name.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    cased.nfkc().filter(|c| *c == ' ' || !is_blank(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_that_share_a_name_or_an_owner_are_one_person() {
        let person = |name, owner| Person { name, owner, key: None };
        let alice = person("alice", None);
        for same in [
            alice,
            person("laptop", Some("alice")),
            person("alice", Some("carol")),
            person("Alice", None),
            person("desk", Some("ALICE")),
            person("desk", Some("\u{ff21}lice")),
            person("desk", Some("ali\u{200b}ce")),
        ] {
            assert!(alice.is(same) && same.is(alice), "{same:?}");
        }
        assert!(person("ci", Some("carol")).is(person("desk", Some("carol"))));
        assert!(person("carol", Some("alice")).is(person("ci", Some("carol"))));
        for other in [person("bob", None), person("bob", Some("carol")), person("\u{430}lice", None), person("", None)]
        {
            assert!(!alice.is(other) && !other.is(alice), "{other:?}");
        }
        assert!(!person("a", Some("b")).is(person("c", Some("d"))));
        assert!(alice.is_called("ALICE") && person("x", Some("Alice")).is_called("alice") && !alice.is_called("x"));
    }

    #[test]
    fn who_shows_the_same_key_is_the_same_person() {
        let with = |name, key| Person { key, ..Person::named(name) };
        assert!(with("a", Some("key_1")).is(with("b", Some("key_1"))));
        assert!(!with("a", Some("key_1")).is(with("b", Some("key_2"))) && !with("a", None).is(with("b", None)));
    }

    #[test]
    fn names_are_one_whatever_their_case_width_and_form() {
        for (a, b) in [
            ("Stra\u{df}e", "STRASSE"),
            ("\u{39f}\u{394}\u{39f}\u{3a3}", "\u{3bf}\u{3b4}\u{3bf}\u{3c2}"),
            ("\u{c4}rmel", "a\u{308}rmel"),
            ("\u{fb01}n", "fin"),
            ("\u{ff76}\u{ff9e}", "\u{30ac}"),
            ("a\u{fe0f}b\u{3164}", "ab"),
            ("\u{17f}am", "Sam"),
        ] {
            assert!(same_name(a, b) && same_name(b, a), "{a:?} {b:?}");
        }
        assert!(!same_name("a b", "ab") && !same_name("\u{e4}", "a") && !same_name("p\u{430}ul", "paul"));
    }
}
