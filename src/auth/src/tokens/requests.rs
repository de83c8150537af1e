//! HTTP requests to issuers. Every answer is hostile input: no redirect is followed, and time and size are limited.

use std::time::Duration;

use awc::{
    Client, ClientRequest, SendClientRequest,
    http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::{Serializer, byte_serialize};

use countersign_config::Secret;
use countersign_net::tls;

/// The most bytes of an answer.
const MAX_ANSWER_LEN: usize = 256 * 1024;
/// The time limit of a request with its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most characters of an error code, which is logged.
const MAX_ERROR_CHARS: usize = 200;

/// The body of a refusal.
#[derive(Deserialize)]
struct ErrorBody {
    error: String,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    /// The issuer sent no complete answer.
    #[error("{0}")]
    Unreachable(String),
    /// The issuer sent another answer than was expected.
    #[error("{0}")]
    Unusable(String),
    /// The issuer refused the request with this error code (RFC 6749, section 5.2).
    #[error("the issuer refuses with {0:?}")]
    Refused(String),
}

thread_local! {
    /// The client of this thread, since the client of awc belongs to one.
    static CLIENT: Client = countersign_net::client(tls::public_config());
}

fn prepare(request: impl FnOnce(&Client) -> ClientRequest) -> ClientRequest {
    let headers = [(ACCEPT, "application/json"), (USER_AGENT, countersign_net::USER_AGENT)];
    headers.into_iter().fold(CLIENT.with(request), ClientRequest::insert_header)
}

/// Reads a JSON document.
pub(super) async fn get_json(url: &str) -> Result<Value, RequestError> {
    let text = send(prepare(|client| client.get(url)).send()).await?;
    serde_json::from_str(&text).map_err(|_| RequestError::Unusable("the answer is not JSON".to_owned()))
}

/// Reads a JSON document as text with an access token.
pub(super) async fn get_with_token(url: &str, token: &str) -> Result<String, RequestError> {
    send(prepare(|client| client.get(url)).bearer_auth(token).send()).await
}

/// Sends a form as this client (RFC 6749, section 2.3.1). A public client has no secret. The id and the secret go into the form
/// if `has_secret_in_form`, and otherwise into the `Authorization` header. Returns the text of the answer.
pub(super) async fn post_form(
    url: &str,
    client_id: &str,
    secret: Option<&Secret>,
    has_secret_in_form: bool,
    fields: &[(&str, &str)],
) -> Result<String, RequestError> {
    let request = prepare(|client| client.post(url));
    let mut request = request.insert_header((CONTENT_TYPE, "application/x-www-form-urlencoded"));
    let mut form = Serializer::new(String::new());
    form.extend_pairs(fields);
    match secret {
        Some(secret) if !has_secret_in_form => {
            // Both are encoded as in a form.
            let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
            request = request.basic_auth(encode(client_id), encode(&secret.0));
        }
        secret => {
            form.append_pair("client_id", client_id);
            if let Some(secret) = secret {
                form.append_pair("client_secret", &secret.0);
            }
        }
    }
    send(request.send_body(form.finish())).await
}

async fn send(request: SendClientRequest) -> Result<String, RequestError> {
    let exchange = async {
        let mut answer = request.await.map_err(|error| RequestError::Unreachable(error.to_string()))?;
        let status = answer.status().as_u16();
        if !matches!(status, 200 | 400 | 401) {
            return Err(RequestError::Unusable(format!("the answer has status {status}")));
        }
        let body = answer.body().limit(MAX_ANSWER_LEN).await;
        let body = body.map_err(|error| RequestError::Unusable(format!("the answer cannot be read: {error}")))?;
        if status != 200 {
            let refusal: Option<ErrorBody> = serde_json::from_slice(&body).ok();
            return Err(match refusal {
                Some(refusal) => RequestError::Refused(refusal.error.chars().take(MAX_ERROR_CHARS).collect()),
                None => RequestError::Unusable(format!("the answer has status {status}")),
            });
        }
        String::from_utf8(body.to_vec()).map_err(|_| RequestError::Unusable("the answer is not UTF-8".to_owned()))
    };
    let limited = tokio::time::timeout(TIMEOUT, exchange).await;
    limited.unwrap_or_else(|_| Err(RequestError::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs()))))
}
