//! Who may decide on what: the reviewers that a rule asks for, as roles and as groups of people.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;

use crate::{
    changes::{Decision, Terms, person::Person},
    principal::{Principal, Role},
};
use countersign_protocol::McpError;

/// The groups of the configuration: names of principals or of their owners, by the group's name.
pub type Groups = BTreeMap<String, Vec<String>>;

/// The roles of the keys that hold now.
pub trait KeyRoles: Send + Sync + 'static {
    /// The key's role; none where it is revoked or unknown.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` where that cannot be known.
    fn role(&self, key_id: &str) -> Result<Option<Role>, McpError>;

    /// Rises whenever a key was seen to be revoked or to have another role.
    ///
    /// # Errors
    /// As [`KeyRoles::role`].
    fn revocations(&self) -> Result<u64, McpError>;
}

/// Answers for every decision whether it is this person's to make.
pub trait Reviewers: Send + Sync + 'static {
    /// Whether the principal is among those whom the terms ask for. Says nothing of who proposed the change.
    fn may_decide(&self, terms: &Terms, principal: &Principal) -> bool;

    /// Whoever said something earlier, as they are now: none where the key that they said it with was revoked since.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` where that cannot be known.
    fn current_principal(&self, said: &Principal) -> Result<Option<Principal>, McpError> {
        Ok(Some(said.clone()))
    }

    /// Rises whenever somebody's earlier word may have ceased to count.
    ///
    /// # Errors
    /// As [`Reviewers::current_principal`].
    fn revocations(&self) -> Result<u64, McpError> {
        Ok(0)
    }

    /// Whether an approval still counts: as long as whoever gave it could give it again, with the key that they gave it
    /// with. One without a key (of a sign-in by code, which ends with the process) counts.
    ///
    /// # Errors
    /// As [`Reviewers::current_principal`].
    fn is_vote_valid(&self, terms: &Terms, vote: &Decision) -> Result<bool, McpError> {
        if vote.key_id.is_none() {
            return Ok(true);
        }
        let said = Principal {
            name: vote.reviewer.clone(),
            role: Role::Reviewer,
            key_id: vote.key_id.clone(),
            owner: vote.owner.clone(),
        };
        Ok(self.current_principal(&said)?.is_some_and(|now| self.may_decide(terms, &now)))
    }
}

/// Whoever may decide at all may decide on everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnyReviewer;

impl Reviewers for AnyReviewer {
    fn may_decide(&self, _: &Terms, principal: &Principal) -> bool {
        principal.role.may_decide()
    }
}

/// Reviewers by role and group, with the groups of the configuration in force.
///
/// `reviewers: [reviewer]` admits admins too, who may do what reviewers may; a group admits its members only, so that
/// what is the database people's to decide is not everybody's with an admin key. Whoever is a member of a group must
/// have a key that may decide at all. A group that was taken out of the configuration has no members: what asks for
/// its word can be withdrawn or expires.
#[derive(Default)]
pub struct ConfiguredReviewers {
    groups: ArcSwap<Groups>,
    /// How often they were set.
    generation: AtomicU64,
    keys: Option<Arc<dyn KeyRoles>>,
}

impl ConfiguredReviewers {
    #[must_use]
    pub fn new(groups: &Groups) -> Self {
        Self { groups: ArcSwap::from_pointee(groups.clone()), ..Self::default() }
    }

    /// Who can tell whether a key still holds.
    #[must_use]
    pub fn with_keys(self, keys: Arc<dyn KeyRoles>) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// From the next decision on.
    pub fn set_groups(&self, groups: &Groups) {
        self.groups.store(groups.clone().into());
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The groups that this person is in, by name.
    #[must_use]
    pub fn groups_of(&self, principal: &Principal) -> Vec<String> {
        let groups = self.groups.load();
        groups.iter().filter(|(_, group)| is_member(group, principal)).map(|(name, _)| name.clone()).collect()
    }
}

impl Reviewers for ConfiguredReviewers {
    fn may_decide(&self, terms: &Terms, principal: &Principal) -> bool {
        if !principal.role.may_decide() {
            return false;
        }
        let groups = self.groups.load();
        terms.reviewers.is_empty()
            || terms.reviewers.iter().any(|asked| match Role::parse(asked) {
                Some(Role::Admin) => principal.role == Role::Admin,
                Some(role) => role.may_decide(),
                None => groups.get(asked).is_some_and(|group| is_member(group, principal)),
            })
    }

    fn current_principal(&self, said: &Principal) -> Result<Option<Principal>, McpError> {
        let (Some(keys), Some(key)) = (&self.keys, &said.key_id) else { return Ok(Some(said.clone())) };
        Ok(keys.role(key)?.map(|role| Principal { role, ..said.clone() }))
    }

    fn revocations(&self) -> Result<u64, McpError> {
        let keys = self.keys.as_ref().map_or(Ok(0), |keys| keys.revocations())?;
        Ok(keys + self.generation.load(Ordering::Acquire))
    }
}

fn is_member(group: &[String], principal: &Principal) -> bool {
    group.iter().any(|who| Person::from_principal(principal).is_named(who))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str, role: Role, owner: Option<&str>) -> Principal {
        Principal { name: name.into(), role, key_id: None, owner: owner.map(str::to_owned) }
    }

    #[test]
    fn reviewers_are_roles_and_groups() {
        let groups =
            |members: &[&str]| Groups::from([("dba".to_owned(), members.iter().map(|m| (*m).into()).collect())]);
        let people = ConfiguredReviewers::new(&groups(&["alice", "bob"]));
        let asks = |reviewers: &[&str]| Terms {
            reviewers: reviewers.iter().map(|r| (*r).to_owned()).collect(),
            ..Terms::default()
        };
        let may = |reviewers: &[&str], who: &Principal| people.may_decide(&asks(reviewers), who);
        let carol = who("carol", Role::Reviewer, None);
        let root = who("root", Role::Admin, None);
        let laptop = who("laptop", Role::Reviewer, Some("bob"));
        assert!(may(&[], &carol) && may(&[], &root) && may(&[], &laptop));
        assert!(may(&["reviewer"], &carol) && may(&["reviewer"], &root));
        assert!(!may(&["admin"], &carol) && may(&["admin"], &root));
        assert!(!may(&["dba"], &carol) && !may(&["dba"], &root) && may(&["dba"], &laptop));
        assert!(may(&["dba", "admin"], &root) && !may(&["dba", "admin"], &carol));
        let spelled = who("desk", Role::Reviewer, Some("BOB"));
        assert!(may(&["dba"], &spelled), "however the owner is written");
        // Being named in a group makes nobody a reviewer.
        for role in [Role::Agent, Role::Viewer] {
            assert!(!may(&["dba"], &who("alice", role, None)) && !may(&[], &who("alice", role, None)));
        }
        assert!(may(&["dba"], &who("alice", Role::Reviewer, None)));
        people.set_groups(&groups(&["carol"]));
        assert!(people.may_decide(&asks(&["dba"]), &carol) && !people.may_decide(&asks(&["dba"]), &laptop));
        assert!(!people.may_decide(&asks(&["gone"]), &root), "a group that is gone has no members");
    }
}
