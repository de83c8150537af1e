//! Creates API keys.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Caller, Problem, SignInData, body, json_ok};
use countersign_auth::{confusable_names, keys};
use countersign_domain::{
    policy::GroupMember,
    principal::{Credential, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_reload::Reloader;
use countersign_store::StoreError;

/// Returns `true` if the caller may create keys of agents: an admin, or a person who signed in with a code of
/// `countersign open`, who can create keys on the gateway's machine as well.
pub fn may_create_agent_keys(caller: &Caller) -> bool {
    let principal = &caller.principal;
    let is_code_sign_in = matches!(caller.credential, Credential::SignIn(_))
        && principal.key_id.is_none()
        && principal.claims.is_none()
        && principal.role.may_decide();
    principal.role == Role::Admin || is_code_sign_in
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// 1 to 64 letters, digits, `.`, `_`, `-`, `@` or `+`.
    name: String,
}

/// A new key. The secret is shown only here.
#[derive(Serialize, ToSchema)]
struct CreatedKey<'a> {
    id: &'a str,
    name: &'a str,
    role: Role,
    secret: &'a str,
}

/// Creates a key of an agent.
///
/// Requires the role admin, or a sign-in with a code of `countersign open`. The secret is in this response only; the store has its
/// hash. The audit trail records who created the key. The response is 422 if the name is not allowed or looks like another one.
#[utoipa::path(post, path = "/api/keys", operation_id = "createKey", request_body = KeyRequest,
    responses((status = 200, description = "The key with its secret", body = CreatedKey)))]
pub async fn create(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    data: web::Data<SignInData>,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    if !may_create_agent_keys(&caller) {
        return Err(Problem::new(ErrorKind::Forbidden, "an admin creates keys, or `countersign keys create`"));
    }
    let KeyRequest { name } = body::read_json(body::MAX_BODY_BYTES, &request, payload, data.request_timeout).await?;
    let invalid = |error: McpError| Problem::new(ErrorKind::ValidationFailed, error.message);
    let new = keys::create(&name, Role::Agent, Timestamp::now()).map_err(invalid)?;
    let (key, hash, actor) = (new.key.clone(), new.hash, caller.principal.name.clone());
    let config = reloader.config();
    let credentials = Arc::clone(&data.credentials);
    // Each call of the store blocks.
    let stored = web::block(move || {
        let writer = credentials.writer();
        let keys = writer.list().map_err(unavailable)?;
        let names = keys.iter().flat_map(|key| std::iter::once(&key.name).chain(&key.owner));
        let members = config.policy.groups.values().flatten().filter_map(|member| match member {
            GroupMember::Name(name) => Some(name),
            GroupMember::Subject { .. } | GroupMember::ClaimGroup { .. } => None,
        });
        let known = names.chain(members).map(String::as_str);
        confusable_names::check_is_distinguishable(&key.name, known).map_err(invalid)?;
        writer.insert_by(&key, &hash, &actor).map_err(unavailable)
    });
    stored.await.map_err(|_| Problem::new(ErrorKind::ShuttingDown, "the gateway is shutting down"))??;
    tracing::info!(key = new.key.id, name, by = caller.principal.name, "a key was created");
    Ok(json_ok(&CreatedKey { id: &new.key.id, name: &new.key.name, role: new.key.role, secret: &new.secret }))
}

fn unavailable(error: StoreError) -> Problem {
    tracing::warn!(%error, "the keys cannot be read or written");
    Problem::from(error.to_mcp())
}
