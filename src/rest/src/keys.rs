//! Lists, creates and revokes API keys.
//!
//! A key that may decide on changes never votes beside its creator, so that nobody gives themselves a second vote. Keys of
//! independent voters come from the command line, on the gateway's machine.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Caller, Problem, SignInData, body, json_response, path_id};
use countersign_auth::{confusable_names, keys};
use countersign_config::Config;
use countersign_domain::{
    policy::GroupMember,
    principal::{Credential, Role},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_reload::Reloader;
use countersign_runtime::background;
use countersign_store::{
    StoreError,
    keys::{ApiKey, Credentials},
    unread_result_error,
};

/// Returns the roles of the keys that the caller may create and revoke, in the order in which the page offers them. An admin
/// manages all keys. A person who signed in with a code of `countersign open`, who can manage keys on the gateway's machine as
/// well, manages those that decide nothing.
pub fn manageable_roles(caller: &Caller) -> &'static [Role] {
    let principal = &caller.principal;
    let is_code_sign_in = matches!(caller.credential, Credential::SignIn(_))
        && principal.key_id.is_none()
        && principal.claims.is_none()
        && principal.role.may_decide();
    match principal.role {
        Role::Admin => &[Role::Agent, Role::Viewer, Role::Reviewer, Role::Admin],
        _ if is_code_sign_in => &[Role::Agent, Role::Viewer],
        _ => &[],
    }
}

/// Returns the roles of the keys that the caller manages.
///
/// # Errors
/// `FORBIDDEN` if there are none.
fn check_manager(caller: &Caller) -> Result<&'static [Role], Problem> {
    let roles = manageable_roles(caller);
    if !roles.is_empty() {
        return Ok(roles);
    }
    Err(Problem::new(ErrorKind::Forbidden, "an admin manages keys, or `countersign keys` on the gateway's machine"))
}

/// A key without its secret.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Key {
    id: String,
    name: String,
    role: Role,
    /// The person who owns the key.
    owner: String,
    /// The name of the principal who created the key; `null` if it was created at the gateway's machine.
    #[schema(required)]
    created_by: Option<String>,
    created_at: Timestamp,
    /// The last use, to the minute.
    #[schema(required)]
    last_used_at: Option<Timestamp>,
    #[schema(required)]
    revoked_at: Option<Timestamp>,
    /// `true` if the caller may revoke the key.
    may_revoke: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct KeyList {
    keys: Vec<Key>,
    /// The roles of keys that the caller may create.
    creatable_roles: Vec<Role>,
}

/// Lists all keys, newest first, including revoked ones.
///
/// Requires the role admin, or a sign-in with a code of `countersign open`.
#[utoipa::path(get, path = "/api/keys", operation_id = "listKeys", responses(
    (status = 200, description = "The keys", body = KeyList)))]
pub async fn list(caller: Caller, data: web::Data<SignInData>) -> Result<HttpResponse, Problem> {
    let roles = check_manager(&caller)?;
    let keys = use_store(&data, |store| store.list().map_err(store_problem)).await?;
    let entry = |key: ApiKey| Key {
        may_revoke: key.revoked_at.is_none() && roles.contains(&key.role),
        created_by: key.created_by.into_iter().next(),
        owner: key.owner.unwrap_or_else(|| key.name.clone()),
        id: key.id,
        name: key.name,
        role: key.role,
        created_at: key.created_at,
        last_used_at: key.last_used_at,
        revoked_at: key.revoked_at,
    };
    Ok(json_response(&KeyList { keys: keys.into_iter().rev().map(entry).collect(), creatable_roles: roles.to_vec() }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    /// 1 to 64 letters, digits, `.`, `_`, `-`, `@` or `+`.
    name: String,
    /// `agent` is the default.
    role: Option<Role>,
    /// The person who owns the key, if that is not its name.
    owner: Option<String>,
}

/// A new key. The secret is shown only here.
#[derive(Serialize, ToSchema)]
struct CreatedKey<'a> {
    id: &'a str,
    name: &'a str,
    role: Role,
    secret: &'a str,
}

/// Creates a key.
///
/// Requires the role admin; keys of agents and viewers can also be created after a sign-in with a code of `countersign open`. The
/// secret is in this response only; the store has its hash. The store and the audit trail record who created the key. A key that
/// may decide on changes never votes on a change beside its creator, beside other keys of that creator, or on what they proposed.
/// The response is 422 if the name or the owner is not allowed or looks like another one.
#[utoipa::path(post, path = "/api/keys", operation_id = "createKey", request_body = KeyRequest,
    responses((status = 200, description = "The key with its secret", body = CreatedKey)))]
pub async fn create(
    caller: Caller,
    request: HttpRequest,
    payload: web::Payload,
    data: web::Data<SignInData>,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    let roles = check_manager(&caller)?;
    let body: KeyRequest = body::read_json(&request, payload).await?;
    let role = body.role.unwrap_or(Role::Agent);
    if !roles.contains(&role) {
        let text = format!(
            "an admin creates such a key, or `countersign keys create --role {}` on the gateway's machine",
            role.as_str()
        );
        return Err(Problem::new(ErrorKind::Forbidden, text));
    }
    let new = keys::create(&body.name, role, Timestamp::now())
        .and_then(|new| new.owned_by(body.owner.as_deref()))
        .and_then(|new| new.created_by(&caller.principal))
        .map_err(|error| Problem::invalid(&error.message))?;
    let (key, hash, actor, config) = (new.key.clone(), new.hash, caller.principal.name.clone(), reloader.config());
    use_store(&data, move |store| {
        check_names(store, &key, &config)?;
        store.insert_by(&key, &hash, &actor).map_err(store_problem)
    })
    .await?;
    tracing::info!(key = new.key.id, name = new.key.name, by = caller.principal.name, "a key was created");
    Ok(json_response(&CreatedKey { id: &new.key.id, name: &new.key.name, role: new.key.role, secret: &new.secret }))
}

/// Refuses a name or an owner that looks like another one of a key or a group.
fn check_names(store: &dyn Credentials, key: &ApiKey, config: &Config) -> Result<(), Problem> {
    let keys = store.list().map_err(store_problem)?;
    let names = keys.iter().flat_map(|key| std::iter::once(&key.name).chain(&key.owner));
    let members = config.policy.groups.values().flatten().filter_map(|member| match member {
        GroupMember::Name(name) => Some(name),
        GroupMember::Subject { .. } | GroupMember::ClaimGroup { .. } => None,
    });
    let known_names: Vec<&str> = names.chain(members).map(String::as_str).collect();
    std::iter::once(&key.name).chain(&key.owner).try_for_each(|name| {
        confusable_names::check_is_distinguishable(name, known_names.iter().copied())
            .map_err(|error| Problem::invalid(&error.message))
    })
}

/// Revokes a key.
///
/// Requires the role admin; the keys of agents and viewers can also be revoked after a sign-in with a code of `countersign open`.
/// The response is 404 if there is no such key, or if it was revoked already.
#[utoipa::path(delete, path = "/api/keys/{id}", operation_id = "revokeKey", responses(
    (status = 200, description = "The remaining keys", body = KeyList)))]
pub async fn revoke(
    caller: Caller,
    request: HttpRequest,
    data: web::Data<SignInData>,
) -> Result<HttpResponse, Problem> {
    let roles = check_manager(&caller)?;
    let not_found = || Problem::new(ErrorKind::NotFound, "there is no such key, or it was revoked already");
    let id = path_id(&request).ok_or_else(not_found)?.to_owned();
    let (actor, revoked_id) = (caller.principal.name.clone(), id.clone());
    let is_revoked = use_store(&data, move |store| {
        let keys = store.list().map_err(store_problem)?;
        let key = keys.into_iter().find(|key| key.id == id).ok_or_else(not_found)?;
        if !roles.contains(&key.role) {
            return Err(Problem::new(ErrorKind::Forbidden, "only an admin revokes a key that may decide on changes"));
        }
        store.revoke_by(&id, Timestamp::now(), &actor).map_err(store_problem)
    })
    .await?;
    if !is_revoked {
        return Err(not_found());
    }
    tracing::info!(key = revoked_id, by = caller.principal.name, "a key was revoked");
    list(caller, data).await.map_err(|_| unread_result_error().into())
}

/// Calls the store on another thread, because its methods block.
pub(super) async fn use_store<T: Send + 'static>(
    data: &SignInData,
    work: impl FnOnce(&dyn Credentials) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let credentials = Arc::clone(&data.credentials);
    let result = background::spawn_blocking(move || work(credentials.writer())).await;
    result.map_err(McpError::from)?
}

/// Logs an error of the store, and returns the problem for the caller.
pub(super) fn store_problem(error: StoreError) -> Problem {
    tracing::warn!(%error, "the store of keys and people cannot be read or written");
    Problem::from(error.to_mcp())
}
