//! Signing in and out, and the caller's own account.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, cookie::Cookie, web};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::{
    Caller, Problem, SignInData,
    absence::{Absences, AbsentColleague, OwnAbsence, read_absences},
    body, json_response,
};
use countersign_auth::{OriginVerdict, attempts::AttemptSource, codes, dashboard_sign_ins::SignInSubject};
use countersign_domain::principal::{Credential, Identity, Principal, Role};
use countersign_http::guard::{self, dashboard_cookies};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;

/// Either a `code` or a `key`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignIn)]
struct SignInRequest {
    code: Option<String>,
    key: Option<String>,
}

/// A new sign-in.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = SignedIn)]
struct SignInResponse<'a> {
    /// The value of the header `X-Countersign-Secret`.
    secret: &'a str,
    principal: SignedInPrincipal<'a>,
    /// The time at which the sign-in ends if it is not used until then.
    expires_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
struct SignedInPrincipal<'a> {
    name: &'a str,
    role: Role,
}

/// Signs in to the dashboard.
///
/// The body has a one-time code (from `countersign open`), or the API key of a reviewer, viewer or admin. Failed attempts are
/// limited for each address. The code of a sign-in with the identity provider works only with the cookie of its browser.
/// A code of another person than the one as whom the page is signed in is refused while the request has the page's secret.
#[utoipa::path(post, path = "/api/sign-in", operation_id = "signIn", security(()), request_body = SignInRequest, responses(
    (status = 200, body = SignInResponse, headers(("Set-Cookie" = String,
        description = "`countersign_session`: HttpOnly, SameSite=Strict, Path=/, and Secure over https.")),
        description = "The sign-in. The page keeps the secret in its `sessionStorage` and sends it in the header \
            `X-Countersign-Secret` of every request; the cookie alone authorizes nothing."),
    (status = 401), (status = 429)))]
pub async fn sign_in(
    request: HttpRequest,
    payload: web::Payload,
    data: web::Data<SignInData>,
) -> Result<HttpResponse, Problem> {
    // A foreign page must not sign this browser in as someone else. Programs send no Origin.
    if !matches!(
        guard::origin_verdict(&data.authentication.origins, &request),
        OriginVerdict::SameOrigin | OriginVerdict::Absent
    ) {
        return Err(Problem::new(ErrorKind::Forbidden, "the Origin header must be this gateway's own"));
    }
    let peer = data.authentication.client_address(&request);
    let body: SignInRequest = body::read_json(&request, payload).await?;
    // Verified before failures are counted, so that the right credential works however many wrong ones were sent.
    let subject = verify_credential(&data, &request, body, peer).await.map_err(|error| match error.kind {
        ErrorKind::Unauthorized => {
            data.attempts.record_failure(AttemptSource::for_peer(peer), std::time::Instant::now(), error)
        }
        _ => error,
    })?;
    let (sign_ins, cookies, now) = (&data.authentication.sign_ins, dashboard_cookies(&request), Timestamp::now());
    let signed_in = sign_ins.sign_in(subject, &cookies, now)?;
    tracing::info!(principal = signed_in.principal.name, "signed in");

    let principal = SignedInPrincipal { name: &signed_in.principal.name, role: signed_in.principal.role };
    let mut response =
        json_response(&SignInResponse { secret: &signed_in.secret, principal, expires_at: signed_in.expires_at });
    set_cookie(&mut response, &signed_in.cookie)?;
    Ok(response)
}

async fn verify_credential(
    data: &SignInData,
    request: &HttpRequest,
    body: SignInRequest,
    peer: Option<std::net::IpAddr>,
) -> Result<SignInSubject, McpError> {
    match (body.code, body.key) {
        (Some(code), None) => {
            let code = code.trim().to_owned();
            let cookie = request.cookie(&codes::cookie_name(&code));
            let browser_secret = cookie.map(|cookie| cookie.value().to_owned());
            let subject = codes::find_principal(&data.credentials, &code, browser_secret.as_deref(), Timestamp::now())?;
            check_same_person(data, request, &subject)?;
            let credentials = Arc::clone(&data.credentials);
            let redeemed = background::spawn_blocking(move || {
                codes::redeem(&credentials, &code, browser_secret.as_deref(), Timestamp::now())
            });
            redeemed.await?
        }
        (None, Some(key)) => {
            let identity = data.authentication.authenticator.identify_key(key.trim(), peer)?;
            let key = match identity.credential {
                Credential::Key(key) => Some(key),
                Credential::Loopback | Credential::SignIn(_) | Credential::Token(_) => None,
            };
            Ok(SignInSubject { principal: identity.principal, key, session: None })
        }
        _ => Err(McpError::new(ErrorKind::ValidationFailed, "the body must have either code or key")),
    }
}

/// Rejects a code of somebody else than the person as whom the page is signed in, because the browser would change hands in all
/// its tabs. After the user has agreed, the page sends the code without its secret.
fn check_same_person(data: &SignInData, request: &HttpRequest, subject: &Principal) -> Result<(), McpError> {
    let Ok(Identity { principal, credential: Credential::SignIn(_) }) = data.authentication.identify(request) else {
        return Ok(());
    };
    if principal.name == subject.name {
        return Ok(());
    }
    let name = |principal: &Principal| principal.display_name().unwrap_or(&principal.name).to_owned();
    let message =
        "this browser is signed in as somebody else; to replace that, send the code without X-Countersign-Secret";
    let details = json!({ "signedInAs": name(&principal), "signInAs": name(subject) });
    Err(McpError::new(ErrorKind::Forbidden, message).with("details", details))
}

/// The next page of a browser that has signed out.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SignedOut {
    /// The page of the identity provider that ends the session there; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_url: Option<String>,
}

/// Signs out the whole browser.
#[utoipa::path(post, path = "/api/sign-out", operation_id = "signOut", responses(
    (status = 200, body = SignedOut, description = "All tabs of the browser are signed out.")))]
pub async fn sign_out(caller: Caller, data: web::Data<SignInData>) -> Result<HttpResponse, Problem> {
    let (cookie, session) = data.authentication.sign_ins.sign_out(&caller.credential)?;
    let client = data.provider_sign_ins.client();
    let provider_url = session.and_then(|session| client.end_session_url(&session, Timestamp::now()));
    let mut response = json_response(&SignedOut { provider_url });
    set_cookie(&mut response, &cookie)?;
    Ok(response)
}

pub(super) fn set_cookie(response: &mut HttpResponse, cookie: &Cookie<'_>) -> Result<(), Problem> {
    response.add_cookie(cookie).map_err(|_| Problem::new(ErrorKind::Internal, "no cookie could be made"))
}

/// The caller's account and permissions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Me<'a> {
    name: &'a str,
    /// The name for people, if an identity provider gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<&'a str>,
    role: Role,
    /// The person who owns the key. All keys of one owner count as one person.
    owner: &'a str,
    /// The id of the key, if the caller used one.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_id: Option<&'a str>,
    /// The caller's names by other claims than `sub`, or those of the people who created the caller's key. Nobody may approve
    /// a change whose proposer or other voter has one of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_names: Vec<String>,
    /// The groups of `policy.groups` with this person. A rule may require the approval of one of them.
    groups: Vec<String>,
    /// `true` if they may approve, reject, edit, settle, accept definitions, and create and revoke standing rules, unless
    /// the rule of a change names other reviewers.
    may_decide: bool,
    /// `true` if they may undo the approvals of others.
    may_undo_all: bool,
    /// The caller's absence, while they are away.
    #[serde(skip_serializing_if = "Option::is_none")]
    absence: Option<OwnAbsence>,
    /// The absent people for whose groups the caller may decide as their deputy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deputy_for: Vec<AbsentColleague>,
}

/// Returns the caller's account and permissions.
#[utoipa::path(get, path = "/api/me", operation_id = "getMe", responses(
    (status = 200, description = "The caller", body = Me)))]
pub async fn me(caller: Caller, data: web::Data<SignInData>) -> HttpResponse {
    let principal = &*caller.principal;
    let Principal { name, role, key_id, .. } = principal;
    let Absences { own, deputy_for } = read_absences(&caller, &data).await;
    json_response(&Me {
        name,
        display_name: principal.display_name(),
        role: *role,
        owner: principal.person_name(),
        key_id: key_id.as_deref(),
        other_names: principal.other_names().to_vec(),
        groups: data.reviewers.groups_of(principal),
        may_decide: role.may_decide(),
        may_undo_all: *role == Role::Admin,
        absence: own,
        deputy_for,
    })
}
