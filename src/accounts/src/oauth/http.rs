//! Sends HTTP requests to authorization servers, and reads their answers.

use awc::{
    Client,
    http::header::{ACCEPT, CONTENT_TYPE, HeaderName, USER_AGENT},
};
use serde_json::Value;
use url::Url;

use super::{OAuthError, allowed_addresses::AllowedAddresses};
use countersign_auth::tokens::{quote, read_error_code};
use countersign_config::Authorities;
use countersign_net::{BoundedRequestError, BoundedResponse, send_bounded, shared_client};

/// The reason why no document was read from a URL.
pub(super) enum GetError {
    /// The server did not answer, or the URL must not be used.
    Failed(OAuthError),
    /// The answer is not a document.
    NoDocument {
        reason: String,
        /// `true` if the status says that the server is unavailable for now.
        is_transient: bool,
    },
}

/// The limits of requests on behalf of one MCP server.
#[derive(Clone, Copy)]
pub struct RequestLimits<'a> {
    pub allowed_addresses: &'a AllowedAddresses,
    /// Certificate authorities that are trusted in addition to the public ones.
    pub trusted: Option<&'a Authorities>,
}

/// The body of a POST request.
pub(super) enum PostBody {
    Form(String),
    Json(Value),
}

impl RequestLimits<'_> {
    /// Returns this thread's HTTP client that connects only to the addresses that are allowed for a URL, with the parsed URL.
    ///
    /// # Errors
    /// [`OAuthError::Unusable`] for another URL.
    fn client_for(self, url: &str) -> Result<(Url, Client), OAuthError> {
        let (url, range) = self.allowed_addresses.check(url)?;
        let trusted = self.trusted.map(|authorities| authorities.certificates.as_slice());
        Ok((url, shared_client(Some(range), trusted)))
    }
}

/// Reads a JSON document.
pub(super) async fn get_json(url: &str, limits: RequestLimits<'_>) -> Result<Value, GetError> {
    let (url, client) = limits.client_for(url).map_err(GetError::Failed)?;
    let request = client.get(url.as_str());
    let request = request.insert_header((ACCEPT, "application/json"));
    let request = request.insert_header((USER_AGENT, countersign_net::USER_AGENT));
    let answer = send_bounded(request, None).await.map_err(|error| GetError::Failed(to_oauth_error(&url, error)))?;
    let is_transient = is_transient(answer.status);
    match answer.status {
        200 => parse_json(&answer.body)
            .ok_or_else(|| GetError::NoDocument { reason: "the answer is not JSON".to_owned(), is_transient }),
        status => Err(GetError::NoDocument { reason: format!("the answer has status {status}"), is_transient }),
    }
}

fn parse_json(body: &[u8]) -> Option<Value> {
    std::str::from_utf8(body).ok()?.parse().ok()
}

/// Returns `true` for a status after which a later request may succeed.
fn is_transient(status: u16) -> bool {
    matches!(status, 429 | 500..)
}

/// Sends a POST request. Returns the JSON body of an answer with the status 200 or 201.
///
/// # Errors
/// [`OAuthError::Refused`] for an answer with an error code (RFC 6749, section 5.2), with which `on_refusal` is called;
/// [`OAuthError::Unavailable`] also for 429 and 5xx; otherwise [`OAuthError::Unusable`].
pub(super) async fn post(
    url: &str,
    limits: RequestLimits<'_>,
    headers: &[(HeaderName, String)],
    body: PostBody,
    on_refusal: impl FnOnce(&BoundedResponse),
) -> Result<Value, OAuthError> {
    let (url, client) = limits.client_for(url)?;
    let (content_type, body) = match body {
        PostBody::Form(form) => ("application/x-www-form-urlencoded", form),
        PostBody::Json(document) => ("application/json", document.to_string()),
    };
    let mut request = client.post(url.as_str());
    let fixed_headers =
        [(ACCEPT, "application/json"), (USER_AGENT, countersign_net::USER_AGENT), (CONTENT_TYPE, content_type)];
    for header in fixed_headers {
        request = request.insert_header(header);
    }
    for (name, value) in headers {
        request = request.insert_header((name.clone(), value.as_str()));
    }
    let answer = send_bounded(request, Some(body)).await.map_err(|error| to_oauth_error(&url, error))?;
    let describe = |problem: &str| format!("{}: the answer {problem}", quote(url.as_str()));
    match answer.status {
        200 | 201 => {
            let document = parse_json(&answer.body).ok_or_else(|| OAuthError::Unusable(describe("is not JSON")))?;
            // GitHub refuses token requests with the status 200.
            match read_error_code(&answer.body).filter(|_| document.get("access_token").is_none()) {
                Some(code) => Err(OAuthError::Refused(code)),
                None => Ok(document),
            }
        }
        status if is_transient(status) => {
            // A server that answers with these statuses has not processed the request (RFC 6585, section 4; RFC 9110,
            // section 15.6.4).
            let is_unprocessed = matches!(status, 429 | 503);
            Err(OAuthError::Unavailable { reason: describe(&format!("has status {status}")), is_unprocessed })
        }
        status => {
            let Some(code) = read_error_code(&answer.body).filter(|_| status >= 400) else {
                return Err(OAuthError::Unusable(describe(&format!("has status {status}"))));
            };
            on_refusal(&answer);
            Err(OAuthError::Refused(code))
        }
    }
}

fn to_oauth_error(url: &Url, error: BoundedRequestError) -> OAuthError {
    let describe = |reason: String| format!("{}: {reason}", quote(url.as_str()));
    match error {
        BoundedRequestError::NoResponse { reason, is_unsent } => {
            OAuthError::Unavailable { reason: describe(reason), is_unprocessed: is_unsent }
        }
        BoundedRequestError::Unreadable(reason) => OAuthError::Unusable(describe(reason)),
    }
}
