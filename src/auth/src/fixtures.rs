//! People and sessions at an identity provider, for tests.

use std::sync::Arc;

use jiff::Timestamp;

use countersign_domain::principal::{Claims, Role};
use countersign_store::people::{ProviderSession, StoredPerson};

/// Creates a session of this subject, without tokens.
pub(crate) fn session(subject: &str, ends_at: Timestamp) -> ProviderSession {
    ProviderSession {
        issuer: "https://id.example".into(),
        subject: subject.into(),
        sid: None,
        tokens: String::new(),
        has_refresh_token: false,
        auth_time: None,
        acr: None,
        ends_at,
    }
}

/// Creates the person of a session, who is a reviewer.
pub(crate) fn person(session: &ProviderSession, updated_at: Timestamp) -> StoredPerson {
    StoredPerson {
        name: session.person(),
        role: Some(Role::Reviewer),
        claims: Arc::new(Claims { json: "{}".into(), ..Claims::default() }),
        updated_at,
        revoked_at: None,
    }
}
