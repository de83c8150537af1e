//! Decides whether two accounts belong to the same person. Several keys may belong to one owner (`keys create
//! --owner`), who decides once, and never on their own proposals.
//!
//! Everything that depends on a person's identity uses [`Person::is_same_as`]: decisions, standing rules, settlements,
//! undone approvals, edits and denials. Where a match only forbids, [`Person::may_be_same_as`] is used. What a principal
//! may see and withdraw depends on the exact name instead.

use unicode_normalization::UnicodeNormalization;

use super::{AbsentPerson, Edit, Proposer, ReviewDecision, visible::is_blank};
use crate::principal::{Principal, is_subject_name, person_key_id};

/// An account, reduced to what identifies its owner.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    pub name: &'a str,
    /// `None` if the account belongs to the person of that name.
    pub owner: Option<&'a str>,
    /// The id of the presented key, if any.
    pub key: Option<&'a str>,
    /// Further names that count for the person where a match forbids something
    /// ([`Principal::other_names`](crate::principal::Principal::other_names)).
    pub other_names: &'a [String],
}

impl<'a> Person<'a> {
    /// Creates a person of whom only the name is known.
    pub fn from_name(name: &'a str) -> Self {
        Self { name, owner: None, key: None, other_names: &[] }
    }

    pub fn from_principal(principal: &'a Principal) -> Self {
        Self {
            name: &principal.name,
            owner: principal.owner.as_deref(),
            key: principal.key_id.as_deref(),
            other_names: principal.other_names(),
        }
    }

    pub fn from_proposer(proposer: &'a Proposer) -> Self {
        Self {
            name: &proposer.principal,
            owner: proposer.owner.as_deref(),
            key: proposer.key_id.as_deref(),
            other_names: proposer.claims.as_ref().map_or(&proposer.key_creators, |claims| &claims.other_names),
        }
    }

    pub fn from_decision(decision: &'a ReviewDecision) -> Self {
        Self {
            name: &decision.reviewer,
            owner: decision.owner.as_deref(),
            key: decision.key_id.as_deref(),
            other_names: &decision.other_names,
        }
    }

    pub fn from_absent(absent: &'a AbsentPerson) -> Self {
        Self {
            name: &absent.name,
            owner: absent.owner.as_deref(),
            key: absent.key_id.as_deref(),
            other_names: &absent.other_names,
        }
    }

    pub fn from_editor(edit: &'a Edit) -> Self {
        Self {
            name: &edit.by,
            owner: edit.owner.as_deref(),
            key: edit.key_id.as_deref(),
            other_names: &edit.other_names,
        }
    }

    /// Returns `true` if the accounts share a key, an owner or a name, or if one is named after the owner of the other.
    /// Ambiguous accounts count as one person: that may cost a second reviewer, while the opposite would let one person
    /// approve twice.
    pub fn is_same_as(self, other: Person<'_>) -> bool {
        let known_as =
            |name: &str| names_match(self.name, name) || self.owner.is_some_and(|owner| names_match(owner, name));
        (self.key.is_some() && self.key == other.key) || known_as(other.name) || other.owner.is_some_and(known_as)
    }

    /// Returns `true` if the accounts are of the same person, if another claim than `sub` names one person in both, or if
    /// one person made the key of the other or the keys of both. It is used only where a match forbids something, because an
    /// issuer need not vouch for such claims, and keys are also made for others.
    pub fn may_be_same_as(self, other: Person<'_>) -> bool {
        let is_other_name_of = |person: Person<'_>, name: &String| {
            person.is_named(name) || person.other_names.iter().any(|other| names_match(other, name))
        };
        self.is_same_as(other)
            || self.other_names.iter().any(|name| is_other_name_of(other, name))
            || other.other_names.iter().any(|name| self.is_named(name))
    }

    /// Returns `true` if the person signed in to the dashboard with the identity provider. Keys and access tokens do not count.
    pub fn is_signed_in(self) -> bool {
        is_subject_name(self.name) && self.key == Some(&person_key_id(self.name))
    }

    /// Returns `true` if the account or its owner has that name.
    pub fn is_named(self, name: &str) -> bool {
        self.is_same_as(Person::from_name(name))
    }
}

/// Returns `true` if two names are equal, ignoring case, compatibility forms of characters (NFKC) and invisible
/// characters. Names of subjects of identity providers must be identical.
pub fn names_match(a: &str, b: &str) -> bool {
    if is_subject_name(a) || is_subject_name(b) {
        return a == b;
    }
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    fold_name(a) == fold_name(b)
}

/// Returns the key of a person in the store, which is the same for all names that match. The key of a subject of an
/// identity provider is never that of another name.
pub fn person_key(name: &str) -> String {
    if is_subject_name(name) {
        return name.to_owned();
    }
    if name.is_ascii() {
        return name.to_ascii_lowercase();
    }
    let key = fold_name(name);
    // Folding turns full-width characters into `://`, and removes blank ones. The empty key is that of the gateway.
    if key.is_empty() || is_subject_name(&key) { name.to_owned() } else { key }
}

/// Normalizes a name, so that equal names have the same text.
pub fn fold_name(name: &str) -> String {
    // Upper case first, because some letters differ only in lower case (`ß` and `ss`, `ς` and `σ`, `ſ` and `s`).
    let cased = name.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    cased.nfkc().filter(|c| *c == ' ' || !is_blank(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_that_share_a_name_or_an_owner_are_one_person() {
        let person = |name, owner| Person { owner, ..Person::from_name(name) };
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
            assert!(alice.is_same_as(same) && same.is_same_as(alice), "{same:?}");
        }
        assert!(person("ci", Some("carol")).is_same_as(person("desk", Some("carol"))));
        assert!(person("carol", Some("alice")).is_same_as(person("ci", Some("carol"))));
        for other in [person("bob", None), person("bob", Some("carol")), person("\u{430}lice", None), person("", None)]
        {
            assert!(!alice.is_same_as(other) && !other.is_same_as(alice), "{other:?}");
        }
        let subject = person("https://id.example#ab#agent", Some("https://id.example#ab"));
        assert!(subject.is_same_as(person("laptop", Some("https://id.example#ab"))));
        for other in ["https://id.example#AB", "https://id.example#a", "https://ID.example#ab", "ab"] {
            assert!(!subject.is_same_as(person("laptop", Some(other))), "{other:?}");
        }
        assert!(!person("a", Some("b")).is_same_as(person("c", Some("d"))));
        assert!(alice.is_named("ALICE") && person("x", Some("Alice")).is_named("alice") && !alice.is_named("x"));
    }

    #[test]
    fn other_claims_may_name_the_same_person_of_one_issuer() {
        let token = "https://id.example#alice-login#agent";
        let names = |ids: &[&str]| ids.iter().map(|id| format!("https://id.example#{id}")).collect::<Vec<_>>();
        let (oid, other_oid) = (names(&["oid-1"]), names(&["oid-2"]));
        let account = |name, owner, other_names| Person { name, owner, key: None, other_names };
        let agent = account(token, Some("https://id.example#alice-login"), &oid);
        for same in [
            account("https://id.example#pairwise", None, &oid),
            // The claim of one client is the `sub` of the other.
            account("https://id.example#oid-1", None, &[]),
            account("laptop", Some("https://id.example#oid-1"), &[]),
        ] {
            assert!(agent.may_be_same_as(same) && same.may_be_same_as(agent), "{same:?}");
            assert!(!agent.is_same_as(same) && !same.is_same_as(agent), "nothing is granted: {same:?}");
        }
        for other in [
            account("https://id.example#pairwise", None, &other_oid),
            account("https://id.example#pairwise", None, &[]),
            account("https://other.example#oid-1", None, &[]),
            account("oid-1", None, &[]),
        ] {
            assert!(!agent.may_be_same_as(other) && !other.may_be_same_as(agent), "{other:?}");
        }
    }

    #[test]
    fn keys_of_one_creator_never_count_as_two_people() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (by_alice, by_bob) = (names(&["alice"]), names(&["bob", "Alice"]));
        let [alice, dave] = ["alice", "dave"].map(Person::from_name);
        let bob = Person { other_names: &by_alice, ..Person::from_name("bob") };
        let carol = Person { other_names: &by_bob, ..Person::from_name("carol") };
        let other = Person { other_names: &by_alice, ..Person::from_name("other") };
        for (a, b) in [(alice, bob), (alice, carol), (bob, carol), (bob, other), (carol, other)] {
            assert!(a.may_be_same_as(b) && b.may_be_same_as(a), "{a:?} {b:?}");
            assert!(!a.is_same_as(b), "nothing is granted: {a:?} {b:?}");
        }
        assert!(!dave.may_be_same_as(bob) && !carol.may_be_same_as(dave));
    }

    #[test]
    fn same_key_means_same_person() {
        let account = |name, key| Person { key, ..Person::from_name(name) };
        assert!(account("a", Some("key_1")).is_same_as(account("b", Some("key_1"))));
        assert!(
            !account("a", Some("key_1")).is_same_as(account("b", Some("key_2")))
                && !account("a", None).is_same_as(account("b", None))
        );
    }

    #[test]
    fn names_match_across_case_width_and_form() {
        for (a, b) in [
            ("Stra\u{df}e", "STRASSE"),
            ("\u{39f}\u{394}\u{39f}\u{3a3}", "\u{3bf}\u{3b4}\u{3bf}\u{3c2}"),
            ("\u{c4}rmel", "a\u{308}rmel"),
            ("\u{fb01}n", "fin"),
            ("\u{ff76}\u{ff9e}", "\u{30ac}"),
            ("a\u{fe0f}b\u{3164}", "ab"),
            ("\u{17f}am", "Sam"),
        ] {
            assert!(names_match(a, b) && names_match(b, a), "{a:?} {b:?}");
        }
        assert!(!names_match("a b", "ab") && !names_match("\u{e4}", "a") && !names_match("p\u{430}ul", "paul"));
    }

    #[test]
    fn person_key_is_shared_by_matching_names_only() {
        for (a, b) in [("Alice", "alice"), ("\u{ff21}lice", "alice"), ("Stra\u{df}e", "STRASSE")] {
            assert_eq!(person_key(a), person_key(b));
        }
        let subject = "https://id.example#ann";
        assert_eq!(person_key(subject), subject);
        for other in ["https://id.example#Ann", "https\u{ff1a}\u{ff0f}\u{ff0f}id.example#ann"] {
            assert_ne!(person_key(other), subject);
        }
        assert_ne!(person_key("\u{1d159}"), "", "the account of the gateway has this key");
    }
}
