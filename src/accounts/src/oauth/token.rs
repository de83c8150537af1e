//! Requests to the token endpoint.

use awc::http::header::{AUTHORIZATION, HeaderName};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use url::form_urlencoded::Serializer;

use super::{
    OAuthError,
    assertion::client_assertion,
    discovery::AuthorizationServer,
    dpop::{DpopKey, is_usable_nonce},
    http::{PostBody, RequestLimits, post},
    read_scopes,
    registration::{ClientAuthMethod, Registration},
};
use countersign_auth::tokens::{basic_credentials, code_flow::OFFLINE_ACCESS, read_lifetime};
use countersign_config::{Authorities, Secret};

const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const CLIENT_ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";

/// The maximum number of bytes of a token.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// The grant of a token request.
#[derive(Clone, Copy)]
pub enum Grant<'a> {
    /// The code of a consent (RFC 6749, section 4.1.3), with the PKCE code verifier.
    Code {
        code: &'a str,
        verifier: &'a str,
        redirect_uri: &'a str,
    },
    /// A refresh token (RFC 6749, section 6).
    Refresh(&'a str),
    ClientCredentials,
    /// An assertion (RFC 7523, section 2.1).
    JwtBearer(&'a str),
    /// The exchange of a person's ID token for an assertion to another authorization server (RFC 8693, ID-JAG).
    IdentityAssertion {
        subject_token: &'a str,
        audience: &'a str,
    },
}

/// A token request without its grant.
pub struct TokenRequest<'a> {
    pub authorization_server: &'a AuthorizationServer,
    /// Certificate authorities that are trusted in addition to the public ones.
    pub trusted: Option<&'a Authorities>,
    pub registration: &'a Registration,
    /// The client's private key for `private_key_jwt` (PKCS #8, PEM).
    pub private_key: Option<&'a Secret>,
    pub resource: &'a str,
    pub scopes: &'a [String],
    pub dpop: Option<&'a DpopKey>,
}

/// The response of a token endpoint (RFC 6749, section 5.1).
#[derive(Clone, PartialEq, Eq)]
pub struct TokenResponse {
    pub access_token: String,
    /// `true` for a token that is bound to a DPoP key.
    pub is_dpop: bool,
    pub expires_at: Option<Timestamp>,
    pub refresh_token: Option<String>,
    /// The granted scopes, if they differ from the requested ones.
    pub scopes: Option<Vec<String>>,
}

/// The members of a token response that the gateway uses, before they are checked.
#[derive(Deserialize)]
struct TokenDocument {
    access_token: String,
    token_type: String,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
    scope: Option<String>,
    issued_token_type: Option<String>,
}

/// Requests a token. A demand for a DPoP nonce is met once.
///
/// # Errors
/// [`OAuthError::Refused`] with the error code; [`OAuthError::Unavailable`], whose `is_unprocessed` says whether the
/// request was certainly not processed; [`OAuthError::Unusable`] for an invalid answer, and for an unsuitable key or
/// client.
pub async fn request_token(
    request: &TokenRequest<'_>,
    grant: Grant<'_>,
    now: Timestamp,
) -> Result<TokenResponse, OAuthError> {
    let mut demanded_nonce = None;
    let answer = match request.send(grant, None, now, &mut demanded_nonce).await {
        Err(OAuthError::Refused(code)) if code == "use_dpop_nonce" && demanded_nonce.is_some() => {
            let nonce = demanded_nonce.take();
            request.send(grant, nonce.as_deref(), now, &mut demanded_nonce).await
        }
        answer => answer,
    }?;
    request.check_answer(grant, answer, now)
}

impl TokenRequest<'_> {
    /// Checks that the client can authenticate. Sends nothing.
    ///
    /// # Errors
    /// [`OAuthError::Unusable`] for an unsuitable key or client.
    pub fn check_client(&self, now: Timestamp) -> Result<(), OAuthError> {
        self.authenticate(&mut Serializer::new(String::new()), &mut Vec::new(), now)
    }

    /// Sends the request once. A nonce that the server demands is stored in `demanded_nonce`. Boxed, so that its code is
    /// compiled in this crate only.
    fn send<'a>(
        &'a self,
        grant: Grant<'a>,
        nonce: Option<&'a str>,
        now: Timestamp,
        demanded_nonce: &'a mut Option<String>,
    ) -> LocalBoxFuture<'a, Result<Value, OAuthError>> {
        Box::pin(async move {
            let (mut form, mut headers) = (Serializer::new(String::new()), Vec::new());
            self.write_grant(&mut form, grant);
            self.authenticate(&mut form, &mut headers, now)?;
            let endpoint = &self.authorization_server.token_endpoint;
            if let Some(key) = self.dpop {
                let proof = key.prove("POST", endpoint, None, nonce, now)?;
                headers.push((HeaderName::from_static("dpop"), proof));
            }
            let allowed_addresses = &self.authorization_server.allowed_addresses;
            let limits = RequestLimits { allowed_addresses, trusted: self.trusted };
            post(endpoint, limits, &headers, PostBody::Form(form.finish()), |answer| {
                let nonce = answer.headers.get("dpop-nonce").and_then(|nonce| nonce.to_str().ok());
                *demanded_nonce = nonce.filter(|nonce| is_usable_nonce(nonce)).map(str::to_owned);
            })
            .await
        })
    }

    /// Writes the fields of the grant, the resource and the scopes.
    fn write_grant(&self, form: &mut Serializer<'_, String>, grant: Grant<'_>) {
        match grant {
            Grant::Code { code, verifier, redirect_uri } => form
                .append_pair("grant_type", "authorization_code")
                .append_pair("code", code)
                .append_pair("code_verifier", verifier)
                .append_pair("redirect_uri", redirect_uri),
            // Without `scope`, the new token has the scopes of the old one.
            Grant::Refresh(token) => {
                form.append_pair("grant_type", "refresh_token").append_pair("refresh_token", token)
            }
            Grant::ClientCredentials => form.append_pair("grant_type", "client_credentials"),
            Grant::JwtBearer(assertion) => {
                form.append_pair("grant_type", JWT_BEARER).append_pair("assertion", assertion)
            }
            Grant::IdentityAssertion { subject_token, audience } => form
                .append_pair("grant_type", TOKEN_EXCHANGE)
                .append_pair("requested_token_type", ID_JAG)
                .append_pair("subject_token", subject_token)
                .append_pair("subject_token_type", ID_TOKEN)
                .append_pair("audience", audience),
        };
        form.append_pair("resource", self.resource);
        // `offline_access` asks for a refresh token, but without a person the gateway can request the next token
        // itself.
        let scopes: Vec<&str> =
            self.scopes.iter().map(String::as_str).filter(|scope| *scope != OFFLINE_ACCESS).collect();
        if !matches!(grant, Grant::Code { .. } | Grant::Refresh(_)) && !scopes.is_empty() {
            form.append_pair("scope", &scopes.join(" "));
        }
    }

    /// Adds the fields or the header by which the client authenticates.
    fn authenticate(
        &self,
        form: &mut Serializer<'_, String>,
        headers: &mut Vec<(HeaderName, String)>,
        now: Timestamp,
    ) -> Result<(), OAuthError> {
        let Registration { client_id, client_secret, auth_method: method, issuer, .. } = self.registration;
        // Credentials belong to the issuer that they were made for.
        if *issuer != self.authorization_server.issuer {
            return Err(OAuthError::unusable("the client is registered at another authorization server"));
        }
        let missing = |what: &str| OAuthError::Unusable(format!("the client has no {what}"));
        let secret = || client_secret.as_deref().ok_or_else(|| missing("secret"));
        if *method == ClientAuthMethod::ClientSecretBasic {
            headers.push((AUTHORIZATION, basic_credentials(client_id, secret()?)));
            return Ok(());
        }
        // A workload may identify itself by its assertion alone.
        if !client_id.is_empty() {
            form.append_pair("client_id", client_id);
        }
        match method {
            ClientAuthMethod::ClientSecretPost => {
                form.append_pair("client_secret", secret()?);
            }
            ClientAuthMethod::PrivateKeyJwt => {
                let key = self.private_key.ok_or_else(|| missing("private key"))?;
                let assertion = client_assertion(key, client_id, &self.authorization_server.issuer, now)?;
                form.append_pair("client_assertion_type", CLIENT_ASSERTION_TYPE);
                form.append_pair("client_assertion", &assertion);
            }
            ClientAuthMethod::None | ClientAuthMethod::ClientSecretBasic => {}
        }
        Ok(())
    }

    /// Checks the answer of the token endpoint against this request.
    fn check_answer(&self, grant: Grant<'_>, answer: Value, now: Timestamp) -> Result<TokenResponse, OAuthError> {
        let unusable = |text: &str| Err(OAuthError::unusable(text));
        let Ok(answer) = TokenDocument::deserialize(answer) else {
            return unusable("the answer of the token endpoint contains no token");
        };
        let is_type = |name: &str| answer.token_type.eq_ignore_ascii_case(name);
        let is_dpop = is_type("DPoP");
        let has_right_type = match grant {
            Grant::IdentityAssertion { .. } => answer.issued_token_type.as_deref() == Some(ID_JAG),
            // A token that is not bound could be used by whoever steals it.
            _ if self.dpop.is_some() => is_dpop,
            _ => is_type("Bearer"),
        };
        if !has_right_type {
            return unusable("the token is not of the type that was requested");
        }
        let refresh_token = answer.refresh_token.filter(|token| !token.is_empty());
        let is_token = |token: &String| {
            (1..=MAX_TOKEN_LEN).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        if !is_token(&answer.access_token) || !refresh_token.iter().all(is_token) {
            return unusable("the token has characters that are not allowed, or is too long");
        }
        let expires_at = match answer.expires_in {
            None | Some(Value::Null) => None,
            Some(value) => match read_lifetime(&value) {
                Some(lifetime) => now.checked_add(lifetime).ok(),
                None => return unusable("the lifetime of the token is not a number of seconds"),
            },
        };
        let granted = answer.scope.map(|scope| read_scopes(scope.split(' ')));
        let differs_from_request = |granted: &Vec<String>| {
            granted.len() != self.scopes.len() || granted.iter().any(|scope| !self.scopes.contains(scope))
        };
        Ok(TokenResponse {
            access_token: answer.access_token,
            is_dpop,
            expires_at,
            refresh_token,
            scopes: granted.filter(differs_from_request),
        })
    }
}
