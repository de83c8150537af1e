//! Decides who may review a change, by the roles and groups that its terms require.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use jiff::Timestamp;

use crate::{
    changes::{Absence, AbsentPerson, ReviewDecision, person::Person},
    principal::{Claims, Principal, Role, TokenRights, is_subject_name, is_subject_of, subject_name},
};
use countersign_protocol::McpError;

/// The configured groups, by name.
pub type Groups = BTreeMap<String, Vec<GroupMember>>;

/// A member of a configured group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupMember {
    /// The principal or the owner of that name.
    Name(String),
    /// The subject of an identity provider.
    Subject { issuer: String, subject: String },
    /// Everybody whose claims list this group, of this issuer or of the only one.
    ClaimGroup { issuer: Option<String>, group: String },
}

impl GroupMember {
    fn includes(&self, principal: &Principal) -> bool {
        match self {
            Self::Name(name) => Person::from_principal(principal).is_named(name),
            Self::Subject { issuer, subject } => {
                Person::from_principal(principal).is_named(&subject_name(issuer, subject))
            }
            Self::ClaimGroup { issuer, group } => {
                let is_issuer = |issuer: &String| is_subject_of(&principal.name, issuer);
                issuer.as_ref().is_none_or(is_issuer)
                    && principal.claims.as_ref().is_some_and(|claims| claims.groups.contains(group))
            }
        }
    }
}

impl std::fmt::Display for GroupMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Subject { issuer, subject } => write!(f, "{subject} at {issuer}"),
            Self::ClaimGroup { issuer: None, group } => write!(f, "claim_group {group}"),
            Self::ClaimGroup { issuer: Some(issuer), group } => write!(f, "claim_group {group} at {issuer}"),
        }
    }
}

/// The holder of a key, with the rights that they have now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHolder {
    pub role: Role,
    /// The claims of a person, as their identity provider last sent them.
    pub claims: Option<Arc<Claims>>,
}

/// The holders of the valid keys. People of an identity provider have a key id too
/// ([`person_key_id`](crate::principal::person_key_id)).
pub trait KeyHolders: Send + Sync + 'static {
    /// Returns the holder of the key, or `None` if it is revoked or unknown.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store cannot be read.
    fn holder(&self, key_id: &str) -> Result<Option<KeyHolder>, McpError>;

    /// Returns `true` if the person of an identity provider may no longer do anything here.
    ///
    /// # Errors
    /// The errors of [`KeyHolders::holder`].
    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError>;

    /// Returns a counter that rises whenever a key turns out to be revoked, or the role or the groups of its holder to
    /// have changed.
    ///
    /// # Errors
    /// The errors of [`KeyHolders::holder`].
    fn revocations(&self) -> Result<u64, McpError>;

    /// Reads the holders again, with all that other processes have stored.
    ///
    /// # Errors
    /// The errors of [`KeyHolders::holder`].
    fn refresh(&self) -> Result<(), McpError>;

    /// Returns all absences as the store has them now, including those that are over.
    ///
    /// # Errors
    /// The errors of [`KeyHolders::holder`].
    fn absences(&self) -> Result<Vec<Absence>, McpError>;
}

/// An absent person, and the groups for which their deputy may decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deputyship {
    pub absence: Absence,
    pub groups: Vec<String>,
}

/// Decides which principals may make which decisions: by role and by the groups of the current configuration.
///
/// `reviewers: [reviewer]` includes admins, who have all permissions of reviewers. A group includes only its members,
/// so that an admin key does not grant decisions that belong to the database team. Members of a group also need a key
/// that may decide. A removed group has no members, and changes that require it can only be withdrawn or expire.
#[derive(Default)]
pub struct Reviewers {
    groups: ArcSwap<Groups>,
    /// Counts how often the groups or the issuers were replaced.
    generation: AtomicU64,
    /// The issuers whose access tokens are accepted.
    issuers: ArcSwap<Vec<String>>,
    keys: Option<Arc<dyn KeyHolders>>,
}

impl Reviewers {
    pub fn new(groups: &Groups) -> Self {
        Self { groups: ArcSwap::from_pointee(groups.clone()), ..Self::default() }
    }

    /// Adds the source of the current holders of keys.
    #[must_use]
    pub fn with_keys(self, keys: Arc<dyn KeyHolders>) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// Replaces the groups from the next decision on.
    pub fn set_groups(&self, groups: &Groups) {
        self.groups.store(groups.clone().into());
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Replaces the issuers whose access tokens are accepted. Votes with tokens of others are no longer valid.
    pub fn set_issuers<'a>(&self, issuers: impl Iterator<Item = &'a str>) {
        self.issuers.store(Arc::new(issuers.map(str::to_owned).collect()));
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the names of the groups that the principal belongs to.
    pub fn groups_of(&self, principal: &Principal) -> Vec<String> {
        let groups = self.groups.load();
        groups.iter().filter(|(_, group)| is_member(group, principal)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns `true` if the principal has one of these roles or belongs to one of these groups
    /// ([`Terms::reviewers_at`](crate::changes::Terms::reviewers_at)). An empty list admits every reviewer. Does not
    /// consider who proposed the change.
    pub fn may_decide<N: AsRef<str>>(&self, reviewers: &[N], principal: &Principal) -> bool {
        if !principal.role.may_decide() {
            return false;
        }
        let groups = self.groups.load();
        reviewers.is_empty()
            || reviewers.iter().map(AsRef::as_ref).any(|required| match Role::parse(required) {
                Some(Role::Admin) => principal.role == Role::Admin,
                Some(role) => role.may_decide(),
                None => groups.get(required).is_some_and(|group| is_member(group, principal)),
            })
    }

    /// Returns the people whose deputy the principal is at the time `now`, with those of their groups that list them by
    /// name. Their groups at the identity provider do not count, because they are unknown while the person is away.
    /// Everything is read from the store.
    ///
    /// # Errors
    /// The errors of [`Reviewers::current_principal`].
    pub fn deputyships(&self, principal: &Principal, now: Timestamp) -> Result<Vec<Deputyship>, McpError> {
        let Some(keys) = self.keys.as_ref().filter(|_| principal.role.may_decide()) else { return Ok(Vec::new()) };
        let person = Person::from_principal(principal);
        let mut absences = keys.absences()?;
        absences.retain(|absence| absence.is_current(now) && absence.has_deputy(person));
        if !absences.is_empty() {
            keys.refresh()?;
        }
        let mut deputyships = Vec::with_capacity(absences.len());
        for absence in absences {
            let groups = self.groups_of_absent(&absence.person)?;
            if !groups.is_empty() {
                deputyships.push(Deputyship { absence, groups });
            }
        }
        Ok(deputyships)
    }

    /// Returns the groups that list an absent person by name, or none if the person may not decide any more.
    fn groups_of_absent(&self, absent: &AbsentPerson) -> Result<Vec<String>, McpError> {
        let AbsentPerson { name, owner, key_id, token, .. } = absent;
        let current = self.current_reviewer(name, owner.as_ref(), key_id.as_ref(), token.as_ref())?;
        let current = current.filter(|current| current.role.may_decide());
        Ok(current.map_or_else(Vec::new, |current| self.listed_groups_of(&current)))
    }

    /// Returns the names of the groups that list the principal by name, which are those for which a deputy may decide.
    pub fn listed_groups_of(&self, principal: &Principal) -> Vec<String> {
        self.groups_of(&Principal { claims: None, ..principal.clone() })
    }

    /// Returns the current principal for an earlier decision, or `None` if its key or its person was revoked since, or if access
    /// tokens of its issuer are no longer accepted.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE` if the store cannot be read.
    pub fn current_principal(&self, decided_as: &Principal) -> Result<Option<Principal>, McpError> {
        let person = decided_as.person_name();
        let has_token = decided_as.key_id.is_none() && is_subject_name(person);
        if has_token && !self.accepts_issuer_of(&decided_as.name) {
            return Ok(None);
        }
        let Some(keys) = &self.keys else { return Ok(Some(decided_as.clone())) };
        let Some(key) = &decided_as.key_id else {
            let is_revoked = has_token && keys.is_person_revoked(person)?;
            return Ok((!is_revoked).then(|| decided_as.clone()));
        };
        Ok(keys.holder(key)?.map(|KeyHolder { role, claims }| Principal { role, claims, ..decided_as.clone() }))
    }

    /// Returns `true` if the principal who proposed a call could make it now, with the same key or with a token of the same
    /// issuer.
    ///
    /// # Errors
    /// The errors of [`Reviewers::current_principal`].
    pub fn may_still_call(&self, proposer: &Principal) -> Result<bool, McpError> {
        self.check_with_refresh(|| Ok(self.current_principal(proposer)?.is_some_and(|now| now.role.may_call())))
    }

    /// Returns `true` if a check of rights succeeds. One that fails is repeated with the rights that the store has now: another
    /// node may have stored a key, a sign-in or a role a moment ago.
    fn check_with_refresh(&self, check: impl Fn() -> Result<bool, McpError>) -> Result<bool, McpError> {
        if check()? {
            return Ok(true);
        }
        if let Some(keys) = &self.keys {
            keys.refresh()?;
        }
        check()
    }

    fn accepts_issuer_of(&self, name: &str) -> bool {
        self.issuers.load().iter().any(|issuer| is_subject_of(name, issuer))
    }

    /// Returns a counter that rises whenever an earlier decision may have become invalid.
    ///
    /// # Errors
    /// The errors of [`Reviewers::current_principal`].
    pub fn revocations(&self) -> Result<u64, McpError> {
        let keys = self.keys.as_ref().map_or(Ok(0), |keys| keys.revocations())?;
        Ok(keys + self.generation.load(Ordering::Acquire))
    }

    /// Returns `true` if an approval is still valid: its reviewer, who must be among `reviewers`, could give it again with the
    /// same key, or with a token of the same rights. An approval from a sign-in by code, which ends with the process, stays valid.
    ///
    /// An approval by a deputy stays valid when the absence ends, as long as both people keep their rights.
    ///
    /// # Errors
    /// The errors of [`Reviewers::current_principal`].
    pub fn is_vote_valid<N: AsRef<str>>(&self, reviewers: &[N], vote: &ReviewDecision) -> Result<bool, McpError> {
        self.check_with_refresh(|| self.could_vote_again(reviewers, vote))
    }

    fn could_vote_again<N: AsRef<str>>(&self, reviewers: &[N], vote: &ReviewDecision) -> Result<bool, McpError> {
        let ReviewDecision { reviewer, owner, key_id, token, .. } = vote;
        let Some(now) = self.current_reviewer(reviewer, owner.as_ref(), key_id.as_ref(), token.as_ref())? else {
            return Ok(false);
        };
        let is_revocable = key_id.is_some() || token.is_some();
        let Some(absent) = &vote.deputy_for else { return Ok(!is_revocable || self.may_decide(reviewers, &now)) };
        let groups = self.groups_of_absent(absent)?;
        let is_in_group = reviewers.iter().any(|name| groups.iter().any(|group| group == name.as_ref()));
        Ok(is_in_group && (!is_revocable || now.role.may_decide()))
    }

    /// Returns the current principal for an account that decided earlier, or `None` if it was revoked since, or if its access
    /// tokens are no longer accepted.
    fn current_reviewer(
        &self,
        name: &str,
        owner: Option<&String>,
        key_id: Option<&String>,
        token: Option<&TokenRights>,
    ) -> Result<Option<Principal>, McpError> {
        self.current_principal(&Principal {
            name: name.to_owned(),
            role: token.map_or(Role::Reviewer, |token| token.role),
            key_id: key_id.cloned(),
            owner: owner.cloned(),
            claims: token.map(|token| Arc::new(token.claims())),
            key_creators: Vec::new(),
        })
    }
}

fn is_member(group: &[GroupMember], principal: &Principal) -> bool {
    group.iter().any(|member| member.includes(principal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::principal::Claims;

    fn principal(name: &str, role: Role, owner: Option<&str>) -> Principal {
        Principal { owner: owner.map(str::to_owned), ..Principal::new(name, role) }
    }

    #[test]
    fn vote_with_token_needs_its_issuer_and_group() {
        let claim_group = |group: &str| {
            Groups::from([("dba".to_owned(), vec![GroupMember::ClaimGroup { issuer: None, group: group.into() }])])
        };
        let reviewers = Reviewers::new(&claim_group("db"));
        let vote = ReviewDecision {
            reviewer: "https://id.example#bob#cli".into(),
            display_name: None,
            owner: Some("https://id.example#bob".into()),
            key_id: None,
            other_names: Vec::new(),
            token: Some(TokenRights { role: Role::Reviewer, groups: vec!["db".into()] }),
            deputy_for: None,
            verdict: crate::changes::ReviewVerdict::Approve,
            comment: None,
            at: jiff::Timestamp::UNIX_EPOCH,
            version: 1,
        };
        let is_valid = || reviewers.is_vote_valid(&["dba"], &vote).unwrap();
        let before = reviewers.revocations().unwrap();
        reviewers.set_issuers(["https://other.example", "https://id.example"].into_iter());
        assert!(is_valid());
        reviewers.set_issuers(["https://other.example"].into_iter());
        assert!(!is_valid(), "the issuer was removed");
        assert!(reviewers.revocations().unwrap() > before);
        reviewers.set_issuers(["https://id.example"].into_iter());
        reviewers.set_groups(&claim_group("other"));
        assert!(!is_valid(), "the group decides no longer");
    }

    #[test]
    fn reviewers_are_roles_and_groups() {
        let groups = |members: &[&str]| {
            Groups::from([("dba".to_owned(), members.iter().map(|m| GroupMember::Name((*m).into())).collect())])
        };
        let dba_reviewers = Reviewers::new(&groups(&["alice", "bob"]));
        let may = |reviewers: &[&str], principal: &Principal| dba_reviewers.may_decide(reviewers, principal);
        let carol = principal("carol", Role::Reviewer, None);
        let root = principal("root", Role::Admin, None);
        let laptop = principal("laptop", Role::Reviewer, Some("bob"));
        assert!(may(&[], &carol) && may(&[], &root) && may(&[], &laptop));
        assert!(may(&["reviewer"], &carol) && may(&["reviewer"], &root));
        assert!(!may(&["admin"], &carol) && may(&["admin"], &root));
        assert!(!may(&["dba"], &carol) && !may(&["dba"], &root) && may(&["dba"], &laptop));
        assert!(may(&["dba", "admin"], &root) && !may(&["dba", "admin"], &carol));
        let upper_case_owner = principal("desk", Role::Reviewer, Some("BOB"));
        assert!(may(&["dba"], &upper_case_owner), "the case of the owner's name is ignored");
        // Membership in a group makes nobody a reviewer.
        for role in [Role::Agent, Role::Viewer] {
            assert!(!may(&["dba"], &principal("alice", role, None)) && !may(&[], &principal("alice", role, None)));
        }
        assert!(may(&["dba"], &principal("alice", Role::Reviewer, None)));
        let claim_group =
            Groups::from([("dba".to_owned(), vec![GroupMember::ClaimGroup { issuer: None, group: "db".into() }])]);
        dba_reviewers.set_groups(&claim_group);
        let claims = |group: &str| Arc::new(Claims { groups: vec![group.into()], ..Claims::default() });
        let with_group = |group: &str| Principal { claims: Some(claims(group)), ..carol.clone() };
        assert!(may(&["dba"], &with_group("db")) && !may(&["dba"], &with_group("DB")) && !may(&["dba"], &carol));
        let issuer = Some("https://id.example".to_owned());
        let of_issuer = [("dba".to_owned(), vec![GroupMember::ClaimGroup { issuer, group: "db".into() }])];
        dba_reviewers.set_groups(&Groups::from(of_issuer));
        let at = |issuer: &str| Principal { name: format!("{issuer}#carol"), ..with_group("db") };
        assert!(may(&["dba"], &at("https://id.example")));
        assert!(!may(&["dba"], &at("https://id.example.org")) && !may(&["dba"], &at("https://other.example")));
        dba_reviewers.set_groups(&claim_group);
        let db = principal("db", Role::Reviewer, Some("db"));
        assert!(!may(&["dba"], &db), "a group of the identity provider is not the name of a key");
        dba_reviewers.set_groups(&groups(&["carol"]));
        assert!(may(&["dba"], &carol) && !may(&["dba"], &laptop));
        assert!(!may(&["gone"], &root), "a removed group has no members");
    }

    /// Absences of people whose keys are all those of reviewers.
    struct FakeStore(Vec<Absence>);

    impl KeyHolders for FakeStore {
        fn holder(&self, _: &str) -> Result<Option<KeyHolder>, McpError> {
            let claims = Claims { groups: vec!["db".into()], ..Claims::default() };
            Ok(Some(KeyHolder { role: Role::Reviewer, claims: Some(Arc::new(claims)) }))
        }
        fn is_person_revoked(&self, _: &str) -> Result<bool, McpError> {
            Ok(false)
        }
        fn revocations(&self) -> Result<u64, McpError> {
            Ok(0)
        }
        fn refresh(&self) -> Result<(), McpError> {
            Ok(())
        }
        fn absences(&self) -> Result<Vec<Absence>, McpError> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn deputy_decides_for_groups_that_list_the_absent_person() {
        let issuer = || "https://id.example".to_owned();
        let groups = Groups::from([
            ("claimed".to_owned(), vec![GroupMember::ClaimGroup { issuer: None, group: "db".into() }]),
            ("listed".to_owned(), vec![GroupMember::Subject { issuer: issuer(), subject: "ada".into() }]),
            ("other".to_owned(), vec![GroupMember::Subject { issuer: issuer(), subject: "Ada".into() }]),
        ]);
        let ada = Principal {
            key_id: Some("person:ada".into()),
            ..principal("https://id.example#ada", Role::Reviewer, None)
        };
        let (since, until) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(100).unwrap());
        let absence =
            |deputy: &str| Absence { person: AbsentPerson::from_principal(&ada), deputy: deputy.into(), since, until };
        let store = FakeStore(vec![absence("bob"), absence("https://id.example#ada")]);
        let reviewers = Reviewers::new(&groups).with_keys(Arc::new(store));
        let groups_at = |principal: &Principal, now| {
            let deputyships = reviewers.deputyships(principal, now).unwrap();
            deputyships.into_iter().flat_map(|deputyship| deputyship.groups).collect::<Vec<_>>()
        };
        let desk = principal("desk", Role::Reviewer, Some("bob"));
        assert_eq!(groups_at(&desk, since), ["listed"]);
        assert!(groups_at(&desk, until).is_empty());
        assert!(groups_at(&ada, since).is_empty(), "nobody is their own deputy");
        for role in [Role::Agent, Role::Viewer] {
            assert!(groups_at(&Principal { role, ..desk.clone() }, since).is_empty());
        }
    }

    #[test]
    fn proposer_with_a_token_needs_an_accepted_issuer() {
        let reviewers = Reviewers::default();
        let token = Principal {
            claims: Some(Arc::new(Claims::default())),
            ..principal("https://id.example#ann#cli", Role::Agent, Some("https://id.example#ann"))
        };
        assert!(!reviewers.may_still_call(&token).unwrap());
        reviewers.set_issuers(["https://id.example"].into_iter());
        assert!(reviewers.may_still_call(&token).unwrap());
        let local = principal("local", Role::Agent, None);
        assert!(reviewers.may_still_call(&local).unwrap(), "a local process has no issuer");
        assert!(!reviewers.may_still_call(&principal("eve", Role::Viewer, None)).unwrap());
    }
}
