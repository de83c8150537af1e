//! Requests with the access token of an account, and their refusals (2026-07-28/basic/authorization, "Access Token
//! Usage").

use std::sync::Arc;

use awc::http::{
    StatusCode,
    header::{self, HeaderName, WWW_AUTHENTICATE},
};
use bytes::Bytes;

use super::{
    client::{self, ExtraHeaders, HttpResponse, RequestHead},
    trust::TlsTrust,
};
use crate::{
    credentials::{AuthorizationError, AuthorizationHeaders, Credentials, HttpRefusal},
    link::LinkError,
};
use countersign_provider::Permit;

static DPOP: HeaderName = HeaderName::from_static("dpop");
static DPOP_NONCE: HeaderName = HeaderName::from_static("dpop-nonce");

/// The maximum number of refusals of one request. A new scope, a nonce and a new token can each cost one.
const MAX_REFUSALS: u32 = 4;

/// The TLS trust and the credentials of a target.
#[derive(Clone)]
pub(crate) struct Access {
    pub trust: Arc<TlsTrust>,
    /// `None` if the server is not used with an account.
    pub credentials: Option<Arc<dyn Credentials>>,
}

/// Adds the headers that authorize the request to its additional headers, and returns them.
///
/// # Errors
/// [`LinkError::Unauthorized`]
pub(super) async fn add_token(
    credentials: &dyn Credentials,
    head: &RequestHead,
    extra: &mut ExtraHeaders,
) -> Result<AuthorizationHeaders, LinkError> {
    // Remove the headers of an earlier token, and those that a client sent.
    extra.retain(|(name, _)| *name != header::AUTHORIZATION && *name != DPOP);
    let headers = credentials.authorize(head.method.as_str(), &head.uri).await.map_err(LinkError::Unauthorized)?;
    extra.extend(headers.iter().cloned());
    Ok(headers)
}

/// Returns the refusal if the answer is one. Otherwise remembers the nonce of the answer for the next proof.
pub(super) fn check_answer(
    credentials: &dyn Credentials,
    headers: &AuthorizationHeaders,
    answer: &HttpResponse,
    permit: Option<&Permit>,
) -> Option<HttpRefusal> {
    let refusal = parse_refusal(answer, permit.is_some());
    if refusal.is_none()
        && headers.iter().any(|(name, _)| *name == DPOP)
        && let Some(nonce) = answer.header_values(&DPOP_NONCE).pop()
    {
        credentials.learn_nonce(&nonce);
    }
    refusal
}

/// A request that the server has refused.
pub(super) struct RefusedRequest<'a> {
    pub head: &'a RequestHead,
    pub extra: ExtraHeaders,
    pub body: &'a Bytes,
    pub permit: Option<&'a Permit>,
    /// The headers that authorized it.
    pub headers: AuthorizationHeaders,
    pub refusal: HttpRefusal,
}

/// Sends a refused request again if a better token was obtained. A request with a permit is never sent again.
///
/// # Errors
/// [`LinkError::Unauthorized`] and those of [`client::send_once`].
pub(super) async fn send_again(
    credentials: &dyn Credentials,
    mut refused: RefusedRequest<'_>,
) -> Result<HttpResponse, LinkError> {
    let RefusedRequest { head, body, permit, .. } = refused;
    let mut attempt = 1;
    loop {
        match credentials.handle_refusal(&refused.refusal, &refused.headers, attempt).await {
            Ok(()) if permit.is_none() && attempt < MAX_REFUSALS => {}
            Ok(()) => return Err(refusal_error(&refused.refusal)),
            // The server has refused an approved change, whatever its authorization server does.
            Err(AuthorizationError::Unavailable(_)) if permit.is_some() => {
                return Err(refusal_error(&refused.refusal));
            }
            Err(failure) => return Err(LinkError::Unauthorized(failure)),
        }
        refused.headers = add_token(credentials, head, &mut refused.extra).await?;
        let answer = client::send_once(head, &refused.extra, body, permit).await?;
        match check_answer(credentials, &refused.headers, &answer, permit) {
            None => return Ok(answer),
            Some(refusal) => refused.refusal = refusal,
        }
        attempt += 1;
    }
}

/// Returns the error of a refused request that is not sent again.
fn refusal_error(refusal: &HttpRefusal) -> LinkError {
    let reason = format!("refused the access token (HTTP status {})", refusal.status);
    LinkError::Unauthorized(AuthorizationError::Refused(reason))
}

/// Returns the refusal if the response is one: 401, or 403 with a challenge. For an approved change, any 403 counts.
fn parse_refusal(answer: &HttpResponse, is_approved: bool) -> Option<HttpRefusal> {
    let status = answer.status();
    if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
        return None;
    }
    let challenges = answer.header_values(&WWW_AUTHENTICATE);
    let is_refusal = status == StatusCode::UNAUTHORIZED || is_approved || !challenges.is_empty();
    let dpop_nonce = answer.header_values(&DPOP_NONCE).pop();
    is_refusal.then(|| HttpRefusal { status: status.as_u16(), challenges, dpop_nonce })
}

#[cfg(test)]
mod tests;
