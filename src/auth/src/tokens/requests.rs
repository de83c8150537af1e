//! HTTP requests to issuers. Every answer is hostile input: no redirect is followed, and time and size are limited.

use awc::{
    Client, ClientRequest,
    http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

use countersign_config::{Authorities, Secret};
use countersign_domain::text::truncate;
use countersign_net::{BoundedRequestError, send_bounded, shared_client};

/// The maximum number of characters of an error code, which is logged.
pub(super) const MAX_ERROR_CODE_CHARS: usize = 200;

/// The maximum lifetime that is read. A longer one is shortened to it.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(365 * 24);

/// The body of a refusal.
#[derive(Deserialize)]
struct ErrorBody {
    error: String,
}

/// The reason why a request to an issuer failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The issuer sent no complete answer.
    #[error("{0}")]
    Unreachable(String),
    /// The issuer answered that it cannot answer now (429, 5xx).
    #[error("{0}")]
    Unavailable(String),
    /// The issuer sent an answer that cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// The issuer refused the request with this error code (RFC 6749, section 5.2). The code is empty if the answer has
    /// status 400 and no body, which is how the identity provider Glewlwyd refuses a refresh token.
    #[error("the issuer refused the request {}", describe_code(.0))]
    Refused(String),
}

fn describe_code(code: &str) -> String {
    if code.is_empty() { "without an error code".to_owned() } else { format!("with the error code {code:?}") }
}

fn client(trusted: Option<&Authorities>) -> Client {
    shared_client(None, trusted.map(|authorities| authorities.certificates.as_slice()))
}

fn with_headers(request: ClientRequest) -> ClientRequest {
    let headers = [(ACCEPT, "application/json"), (USER_AGENT, countersign_net::USER_AGENT)];
    headers.into_iter().fold(request, ClientRequest::insert_header)
}

/// Reads a JSON document.
pub(super) async fn get_json(url: &str, trusted: Option<&Authorities>) -> Result<Value, RequestError> {
    let text = send(with_headers(client(trusted).get(url)), None).await?;
    text.parse().map_err(|_| RequestError::Unusable("the answer is not JSON".to_owned()))
}

/// Sends a request with an access token. Returns the text of the answer.
pub(super) async fn get_with_token(
    url: &str,
    trusted: Option<&Authorities>,
    token: &str,
) -> Result<String, RequestError> {
    send(with_headers(client(trusted).get(url)).bearer_auth(token), None).await
}

/// The gateway as the client of a request.
pub(super) struct ClientIdentity<'a> {
    pub id: &'a str,
    /// `None` for a public client.
    pub secret: Option<&'a Secret>,
    /// Set if the id and the secret go into the form, and not into the `Authorization` header.
    pub needs_secret_in_form: bool,
}

/// Sends a form as this client (RFC 6749, section 2.3.1). Returns the text of the answer.
pub(super) async fn post_form(
    url: &str,
    trusted: Option<&Authorities>,
    identity: ClientIdentity<'_>,
    fields: &[(&str, &str)],
) -> Result<String, RequestError> {
    let ClientIdentity { id, secret, needs_secret_in_form } = identity;
    let request = with_headers(client(trusted).post(url));
    let mut request = request.insert_header((CONTENT_TYPE, "application/x-www-form-urlencoded"));
    let mut form = Serializer::new(String::new());
    form.extend_pairs(fields);
    match secret {
        Some(secret) if !needs_secret_in_form => {
            request = request.insert_header((AUTHORIZATION, basic_credentials(id, &secret.0)));
        }
        secret => {
            form.append_pair("client_id", id);
            if let Some(secret) = secret {
                form.append_pair("client_secret", &secret.0);
            }
        }
    }
    send(request, Some(form.finish())).await
}

/// Returns the `Authorization` header of a client with a secret (RFC 6749, section 2.3.1).
pub fn basic_credentials(client_id: &str, secret: &str) -> String {
    // Both are encoded as in a form.
    let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
    format!("Basic {}", STANDARD.encode(format!("{}:{}", encode(client_id), encode(secret))))
}

/// Returns the beginning of the error code in a refusal (RFC 6749, section 5.2).
pub fn read_error_code(body: &[u8]) -> Option<String> {
    let refusal: ErrorBody = serde_json::from_slice(body).ok()?;
    Some(truncate(&refusal.error, MAX_ERROR_CODE_CHARS).to_owned())
}

/// Reads a lifetime in seconds (`expires_in`), which some servers send as text.
pub fn read_lifetime(value: &Value) -> Option<SignedDuration> {
    let seconds = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.parse().ok()?,
        _ => return None,
    };
    SignedDuration::try_from_secs_f64(seconds.clamp(-1.0, MAX_LIFETIME.as_secs_f64()))
        .ok()
        .filter(|time| !time.is_negative())
}

async fn send(request: ClientRequest, body: Option<String>) -> Result<String, RequestError> {
    let answer = send_bounded(request, body).await.map_err(|error| match error {
        BoundedRequestError::NoResponse { reason, .. } => RequestError::Unreachable(reason),
        BoundedRequestError::Unreadable(reason) => RequestError::Unusable(reason),
    })?;
    if answer.status == 400 && answer.body.is_empty() {
        return Err(RequestError::Refused(String::new()));
    }
    if answer.status != 200 {
        let describe = || format!("the answer has status {}", answer.status);
        return Err(match (answer.status, read_error_code(&answer.body)) {
            (429 | 500.., _) => RequestError::Unavailable(describe()),
            // RFC 6749 has the statuses 400 and 401, but Auth0 refuses a refresh token with 403. Others may come from a proxy.
            (400 | 401 | 403, Some(code)) => RequestError::Refused(code),
            _ => RequestError::Unusable(describe()),
        });
    }
    String::from_utf8(answer.body).map_err(|_| RequestError::Unusable("the answer is not UTF-8".to_owned()))
}
