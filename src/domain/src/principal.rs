//! Principals: their roles, and how they were authenticated.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};
use utoipa::ToSchema;

/// The permissions of a principal. `admin` has the permissions of all other roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, IntoStaticStr, VariantArray, ToSchema)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Role {
    /// Uses MCP: lists, reads, proposes changes, sees its own changes.
    Agent,
    /// Sees all changes and decides on them.
    Reviewer,
    /// Sees all changes and cannot decide on them.
    Viewer,
    /// Has the permissions of reviewer, agent and viewer, and manages keys.
    Admin,
}

impl Role {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::VARIANTS.iter().copied().find(|role| role.as_str() == name)
    }

    /// Returns `true` if the role may use the MCP endpoints and `/tools`.
    #[must_use]
    pub const fn may_call(self) -> bool {
        matches!(self, Self::Agent | Self::Admin | Self::Reviewer)
    }

    /// Returns `true` if the role may see changes, sessions, providers and the audit trail of everyone.
    #[must_use]
    pub const fn may_view(self) -> bool {
        matches!(self, Self::Reviewer | Self::Viewer | Self::Admin)
    }

    /// Returns `true` if the role may approve, reject and settle.
    #[must_use]
    pub const fn may_decide(self) -> bool {
        matches!(self, Self::Reviewer | Self::Admin)
    }
}

/// The authenticated identity behind a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Principal {
    /// A stable, unique name, by which self-approval, limits and visibility are decided. For a key it is its `--name`.
    pub name: String,
    pub role: Role,
    /// The id (not the secret) of the presented key, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The person who owns the key (`keys create --owner`), if the owner has another name. A person with several keys
    /// decides once, and never on their own proposals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

impl Principal {
    /// Returns the person whose decisions are counted: the owner, or else the principal's name.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or(&self.name)
    }

    /// Returns the shared principal of agents without a key in `auth.mode: local`.
    #[must_use]
    pub fn local_agent() -> Self {
        Self { name: "local-agent".into(), role: Role::Agent, key_id: None, owner: None }
    }
}

/// The SHA-256 of a secret, stored in place of the secret.
pub type SecretHash = [u8; 32];

/// The credential that authenticated a principal, kept to check later whether it is still valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A connection without a key from loopback or from a socket of the same user, in `auth.mode: local`.
    Loopback,
    /// The key with that hash.
    Key(SecretHash),
    /// The dashboard sign-in whose secret has that hash.
    SignIn(SecretHash),
}

/// An authenticated principal with its credential.
#[derive(Clone, Debug)]
pub struct Identity {
    pub principal: Arc<Principal>,
    pub credential: Credential,
}
