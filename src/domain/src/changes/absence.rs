//! Absences: while a person is away, the deputy whom they named may decide for the groups in which they are. A deputy has one
//! vote, which takes the place of the absent person's vote.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Change, ReviewDecision, ReviewVerdict, person::Person};
use crate::principal::{Principal, TokenRights};

/// The longest absence.
pub const MAX_ABSENCE: SignedDuration = SignedDuration::from_hours(60 * 24);

/// A person who is away, with the account by which they said so. Their deputy may decide only while that account could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AbsentPerson {
    pub name: String,
    /// The name for people, if an identity provider gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The owner of the account, if that is another person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The names of the person by other claims than `sub`. A match with them may forbid something, but permits nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_names: Vec<String>,
    /// The rights of the access token, if one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<TokenRights>,
}

impl AbsentPerson {
    pub fn from_principal(principal: &Principal) -> Self {
        Self {
            name: principal.name.clone(),
            display_name: principal.display_name().map(str::to_owned),
            owner: principal.owner.clone(),
            key_id: principal.key_id.clone(),
            other_names: principal.other_names().to_vec(),
            token: TokenRights::from_principal(principal),
        }
    }

    /// Returns the name of the person: the owner of the account, or else the account's own name.
    pub fn person_name(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.name)
    }

    /// Returns the name for people.
    pub fn shown_name(&self) -> &str {
        self.display_name.as_deref().unwrap_or_else(|| self.person_name())
    }

    /// Returns only the names, for those who must not learn about the account.
    pub fn names_only(&self) -> Self {
        let Self { name, display_name, owner, .. } = self.clone();
        Self { name, display_name, owner, key_id: None, other_names: Vec::new(), token: None }
    }
}

/// The absence of a person. A person has at most one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Absence {
    pub person: AbsentPerson,
    /// The name of the deputy: the owner of a key, the name of a key without an owner, or `ISSUER#SUBJECT`.
    pub deputy: String,
    pub since: Timestamp,
    pub until: Timestamp,
}

impl Absence {
    /// Returns `true` until the absence ends by itself.
    pub fn is_current(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// Returns `true` if the person named the deputy, who is certainly another person.
    pub fn has_deputy(&self, person: Person<'_>) -> bool {
        person.is_named(&self.deputy) && !person.may_be_same_as(Person::from_absent(&self.person))
    }
}

impl ReviewDecision {
    /// Returns the people whose vote this is: the reviewer, and the absent person whose deputy they are.
    pub fn voters(&self) -> impl Iterator<Item = Person<'_>> {
        std::iter::once(Person::from_decision(self)).chain(self.deputy_for.as_ref().map(Person::from_absent))
    }

    /// Returns the display names of those whose vote this is: `Ann`, or `Ann for Bob` if Ann decided as the deputy of Bob.
    pub fn shown_voters(&self) -> String {
        match &self.deputy_for {
            Some(absent) => format!("{} for {}", self.shown_name(), absent.shown_name()),
            None => self.shown_name().to_owned(),
        }
    }
}

impl Change {
    /// Returns `true` if this person may have approved the change, themselves or by a deputy. Errs on the side of `true`, so it
    /// must only be used to forbid something.
    pub fn approvers_could_include(&self, person: Person<'_>) -> bool {
        let mut approvals = self.decisions.iter().filter(|vote| vote.verdict == ReviewVerdict::Approve);
        approvals.any(|vote| vote.voters().any(|voter| voter.may_be_same_as(person)))
    }

    /// Returns `true` if a deputy may approve in the place of this absent person, who may then not approve any more.
    pub fn may_be_approved_by_deputy_of(&self, absent: &AbsentPerson) -> bool {
        let person = Person::from_absent(absent);
        let may_not_approve = !self.terms.editors_may_approve() && self.editors_could_include(person);
        !self.proposer_could_be(person) && !self.approvers_could_include(person) && !may_not_approve
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Role;

    #[test]
    fn deputy_is_somebody_else_with_that_name() {
        let absence = |owner: Option<&str>, deputy: &str| {
            let principal = Principal { owner: owner.map(str::to_owned), ..Principal::new("laptop", Role::Reviewer) };
            let until = Timestamp::from_second(100).unwrap();
            let person = AbsentPerson::from_principal(&principal);
            Absence { person, deputy: deputy.to_owned(), since: Timestamp::UNIX_EPOCH, until }
        };
        let account = |name, owner| Person { owner, ..Person::from_name(name) };
        let of_alice = absence(Some("alice"), "Bob");
        assert!(of_alice.has_deputy(account("bob", None)) && of_alice.has_deputy(account("desk", Some("bob"))));
        assert!(!of_alice.has_deputy(account("carol", None)) && !of_alice.has_deputy(account("bobby", None)));
        for own in [account("bob", Some("alice")), account("laptop", Some("bob"))] {
            assert!(!of_alice.has_deputy(own), "perhaps the absent person: {own:?}");
        }
        let of_subject = absence(None, "https://id.example#Bob");
        assert!(of_subject.has_deputy(account("https://id.example#Bob#cli", Some("https://id.example#Bob"))));
        for other in ["https://id.example#bob", "https://other.example#Bob", "Bob"] {
            assert!(!of_subject.has_deputy(account(other, None)), "{other}");
        }
        assert!(of_alice.is_current(Timestamp::from_second(99).unwrap()));
        assert!(!of_alice.is_current(Timestamp::from_second(100).unwrap()));
    }
}
