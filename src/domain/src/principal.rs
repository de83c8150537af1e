//! Who is asking: a principal, its role, and by what it was authenticated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// What a principal may do. `admin` may do everything that the others may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Speaks MCP: lists, reads, proposes changes, sees its own changes.
    Agent,
    /// Sees all changes and decides on them.
    Reviewer,
    /// Sees all changes and cannot act.
    Viewer,
    /// Reviewer, agent and viewer in one; manages keys.
    Admin,
}

impl Role {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Reviewer => "reviewer",
            Self::Viewer => "viewer",
            Self::Admin => "admin",
        }
    }

    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Agent, Self::Reviewer, Self::Viewer, Self::Admin].into_iter().find(|role| role.as_str() == word)
    }

    /// May use the MCP endpoints and `/tools`.
    #[must_use]
    pub const fn may_call(self) -> bool {
        matches!(self, Self::Agent | Self::Admin | Self::Reviewer)
    }
    /// May see changes, sessions, providers and the audit trail of everyone.
    #[must_use]
    pub const fn may_view(self) -> bool {
        matches!(self, Self::Reviewer | Self::Viewer | Self::Admin)
    }
    /// May approve, reject and settle.
    #[must_use]
    pub const fn may_decide(self) -> bool {
        matches!(self, Self::Reviewer | Self::Admin)
    }
}

/// The authenticated identity behind a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Principal {
    /// Stable and unique; what self-approval, limits and visibility key on. A key's principal is its `--name`.
    pub name: String,
    pub role: Role,
    /// The id (not the secret) of the key that was presented, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Who it belongs to (`keys create --owner`), where that is somebody else than its name says: several keys may be
    /// of one person, who decides once and never on what they proposed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Principal {
    /// Whose it is: what decisions are counted by.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.name)
    }

    /// The shared principal of agents without a key in `auth.mode: local`.
    #[must_use]
    pub fn local_agent() -> Self {
        Self { name: "local-agent".into(), role: Role::Agent, key_id: None, owner: None }
    }
}

/// The SHA-256 of a secret, which is stored and looked up in its place.
pub type SecretHash = [u8; 32];

/// Says by what a principal was authenticated, kept to ask later whether it still holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// No key, from loopback or the same user's socket, in `auth.mode: local`.
    Loopback,
    /// The key with that hash.
    Key(SecretHash),
    /// The dashboard sign-in whose secret has that hash.
    SignIn(SecretHash),
}

/// A principal that was authenticated.
#[derive(Clone, Debug)]
pub struct Identity {
    pub principal: Arc<Principal>,
    pub credential: Credential,
}
