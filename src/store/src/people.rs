//! Stores the people of an identity provider, their sessions at the provider, and the absences of all people.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::StoreError;
use countersign_domain::{
    changes::Absence,
    policy::KeyHolder,
    principal::{Claims, Principal, Role, SecretHash, person_key_id, subject_name},
};

/// A person as the identity provider last described them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPerson {
    /// `ISSUER#SUBJECT`.
    pub name: String,
    /// `None` if the person's groups or claims give them no role.
    pub role: Option<Role>,
    pub claims: Arc<Claims>,
    pub updated_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
}

impl StoredPerson {
    /// Returns `false` if the person was revoked and has never signed in.
    pub fn has_signed_in(&self) -> bool {
        self.revoked_at != Some(self.updated_at)
    }

    /// Returns the person as a principal, unless they have no role or were revoked.
    pub fn principal(&self) -> Option<Principal> {
        let role = self.role.filter(|_| self.revoked_at.is_none())?;
        let key_id = Some(person_key_id(&self.name));
        Some(Principal { key_id, claims: Some(Arc::clone(&self.claims)), ..Principal::new(self.name.as_str(), role) })
    }
}

/// A session at the identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderSession {
    pub issuer: String,
    pub subject: String,
    /// The provider's id of the session (`sid`), if it has one.
    pub sid: Option<String>,
    /// The provider's tokens, sealed.
    pub tokens: String,
    /// `true` if the tokens include a refresh token, with which the provider is asked about the person.
    pub has_refresh_token: bool,
    /// The time at which the person authenticated, in seconds since 1970, from the ID token of the sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_time: Option<i64>,
    /// The kind of that authentication, from the same ID token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acr: Option<String>,
    /// The time at which the sign-in ends, even if it is in use.
    pub ends_at: Timestamp,
}

impl ProviderSession {
    /// Returns the name of the person.
    pub fn person(&self) -> String {
        subject_name(&self.issuer, &self.subject)
    }

    /// Adds the time and the kind of the authentication to the claims of the signed-in person.
    pub fn add_authentication_to(&self, person: &mut Principal) {
        if let Some(claims) = &mut person.claims {
            let claims = Arc::make_mut(claims);
            claims.auth_time = self.auth_time;
            claims.acr.clone_from(&self.acr);
        }
    }
}

/// The holders of all keys and roles by which decisions can be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The holders of valid keys and the people who have a role, by key id.
    pub keys: HashMap<String, KeyHolder>,
    /// The names of the people who were revoked.
    pub revoked_people: HashSet<String>,
    /// The number of people without a role. If it changes, a person may have lost their role, even one who was never in `keys`.
    pub people_without_role: usize,
}

impl Holders {
    pub(crate) fn new<'a>(
        roles: impl Iterator<Item = (String, Role)>,
        people: impl Iterator<Item = &'a StoredPerson> + Clone,
    ) -> Self {
        let keys = roles.map(|(id, role)| (id, KeyHolder { role, claims: None }));
        let people_with_role = people
            .clone()
            .filter_map(StoredPerson::principal)
            .filter_map(|person| Some((person.key_id?, KeyHolder { role: person.role, claims: person.claims })));
        let revoked = people.clone().filter(|person| person.revoked_at.is_some());
        Self {
            keys: keys.chain(people_with_role).collect(),
            revoked_people: revoked.map(|person| person.name.clone()).collect(),
            people_without_role: people.filter(|person| person.role.is_none()).count(),
        }
    }
}

/// People, their sessions and absences. The gateway and command-line processes may use them at the same time.
pub trait People: Send + Sync + 'static {
    /// Returns the person of that name.
    ///
    /// # Errors
    /// Those of the database.
    fn person(&self, name: &str) -> Result<Option<StoredPerson>, StoreError>;

    /// Returns all people by name.
    ///
    /// # Errors
    /// Those of the database.
    fn people(&self) -> Result<Vec<StoredPerson>, StoreError>;

    /// Stores a person as the provider describes them. An earlier revocation stays.
    ///
    /// # Errors
    /// Those of the database.
    fn put_person(&self, person: &StoredPerson) -> Result<(), StoreError>;

    /// Stores the renewed session of a sign-in, if the sign-in still exists, and the person as the provider describes them now, if
    /// it does. All sign-ins of a person without a role end.
    ///
    /// # Errors
    /// Those of the database.
    fn renew_session(
        &self,
        id: &SecretHash,
        session: &ProviderSession,
        person: Option<&StoredPerson>,
    ) -> Result<(), StoreError>;

    /// Claims the next renewal of a sign-in, which was last renewed at `last`. Exactly one caller gets `true`, even among several
    /// processes.
    ///
    /// # Errors
    /// Those of the database.
    fn claim_refresh(&self, id: &SecretHash, last: Timestamp, now: Timestamp) -> Result<bool, StoreError>;

    /// Revokes a person, even an unknown one. Ends their sign-ins, their absence and those in which they are the deputy, and removes
    /// their accounts at servers. Returns the number of ended sign-ins.
    ///
    /// # Errors
    /// Those of the database.
    fn revoke_person(&self, name: &str, now: Timestamp) -> Result<u64, StoreError>;

    /// Returns all absences as they are in the database now, including those that are over.
    ///
    /// # Errors
    /// Those of the database.
    fn absences(&self) -> Result<Vec<Absence>, StoreError>;

    /// Stores an absence in place of an earlier one of the person.
    ///
    /// # Errors
    /// Those of the database.
    fn put_absence(&self, absence: &Absence) -> Result<(), StoreError>;

    /// Ends the absence of a person, and records `actor` in the audit trail. Returns `false` if there is none.
    ///
    /// # Errors
    /// Those of the database.
    fn end_absence(&self, person: &str, actor: &str) -> Result<bool, StoreError>;

    /// Records the use of a one-time token. On its first use, also deletes the sign-ins in `ended`, and those of the `codes` that
    /// were not used, in the same transaction. Returns `true` for the first use.
    ///
    /// # Errors
    /// Those of the database.
    fn use_token(
        &self,
        hash: &SecretHash,
        now: Timestamp,
        expires_at: Timestamp,
        ended: &[SecretHash],
        codes: &[SecretHash],
    ) -> Result<bool, StoreError>;
}
