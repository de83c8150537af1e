//! The proposer of a change.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::principal::{Claims, Principal, Role};

/// The proposer of a change and its client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Proposer {
    /// The principal's name.
    pub principal: String,
    /// The role of the principal when it proposed the change. A change that an earlier version stored names none, and is
    /// judged as that of an agent.
    #[serde(default)]
    #[schema(required)]
    pub role: Role,
    /// The owner of the principal, if that is another person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[schema(required)]
    pub key_id: Option<String>,
    /// The claims of the proposer's access token, if one was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims: Option<Arc<Claims>>,
    /// The names of those who created the proposer's key, if it may decide on changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key_creators: Vec<String>,
    /// The name that the client reports.
    #[schema(required)]
    pub client_name: Option<String>,
    #[schema(required)]
    pub client_version: Option<String>,
    // Only the beginning of the session's id: with all of it, everyone who may view the change could use the session.
    #[schema(required)]
    pub session: Option<String>,
    /// `http`, `websocket`, `stdio`, `sse` or `rest`.
    pub transport: String,
    /// The protocol revision; `None` for the REST endpoint.
    #[schema(required)]
    pub revision: Option<String>,
}

impl Proposer {
    /// Creates a proposer with the role of an agent, without a key, a client and a session.
    pub fn new(principal: &str, transport: &str) -> Self {
        Self { principal: principal.to_owned(), transport: transport.to_owned(), ..Self::default() }
    }

    /// Returns the name for people: that of the identity provider if it gave one.
    pub fn shown_name(&self) -> &str {
        self.claims.as_ref().and_then(|claims| claims.display_name.as_deref()).unwrap_or(&self.principal)
    }

    /// Returns the principal that policy judges.
    pub fn to_principal(&self) -> Principal {
        let Self { principal, role, owner, key_id, claims, key_creators, .. } = self.clone();
        Principal { name: principal, role, key_id, owner, claims, key_creators }
    }

    /// Returns the principal that previews and runs act for: the proposer, with an agent's rights only.
    pub fn to_agent(&self) -> Principal {
        Principal { role: Role::Agent, ..self.to_principal() }
    }
}
