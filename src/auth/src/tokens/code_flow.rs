//! The parts of the authorization code flow that sign-ins share with accounts at servers (OAuth 2.1, section 4.1; RFC
//! 9207).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use url::{Url, form_urlencoded};

use super::requests::MAX_ERROR_CODE_CHARS;
use countersign_domain::text::truncate;
use countersign_protocol::McpError;
use countersign_runtime::secret;

/// The maximum number of bytes of the query of the redirect, with which a browser comes back.
pub const MAX_QUERY_LEN: usize = 16 * 1024;

/// The reason why an authorization response (RFC 6749, section 4.1.2) has no usable code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorizationResponseError {
    /// The response belongs to another request, or is ambiguous.
    #[error("the authorization response does not belong to this request")]
    OtherRequest,
    /// The response does not name its issuer, or names another one.
    #[error("the authorization response is not from this issuer")]
    OtherIssuer,
    /// The issuer refused with this error code (RFC 6749, section 4.1.2.1).
    #[error("the authorization response has the error {0:?}")]
    Refused(String),
    #[error("the authorization response has no code")]
    NoCode,
}

/// The scope with which an authorization server issues a refresh token (OpenID Connect Core 1.0, section 11).
pub const OFFLINE_ACCESS: &str = "offline_access";

/// An authorization request with PKCE, with what is needed to check its response and to redeem the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRequest {
    /// The page of the issuer for the browser of the person.
    pub url: Url,
    pub redirect_uri: String,
    pub state: String,
    /// The PKCE code verifier.
    pub verifier: String,
}

/// The parameters of an authorization request.
pub struct AuthorizationParameters<'a> {
    pub client_id: &'a str,
    pub redirect_uri: &'a str,
    pub scopes: &'a [String],
    /// Set if the person must authenticate again.
    pub needs_login: bool,
}

impl AuthorizationParameters<'_> {
    /// Creates a request to an authorization endpoint.
    ///
    /// # Errors
    /// `INTERNAL_ERROR` if there is no source of randomness.
    pub fn into_request(self, endpoint: Url) -> Result<AuthorizationRequest, McpError> {
        let Self { client_id, redirect_uri, scopes, needs_login } = self;
        let (mut url, state, verifier) = (endpoint, secret::generate("")?, secret::generate("")?);
        let mut pairs = url.query_pairs_mut();
        pairs
            .append_pair("response_type", "code")
            .append_pair("client_id", client_id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("state", &state)
            .append_pair("code_challenge", &code_challenge(&verifier))
            .append_pair("code_challenge_method", "S256");
        if !scopes.is_empty() {
            pairs.append_pair("scope", &scopes.join(" "));
        }
        // OpenID Connect Core 1.0, sections 11 and 3.1.2.1.
        let needs_consent = scopes.iter().any(|scope| scope == OFFLINE_ACCESS);
        let prompt = match (needs_login, needs_consent) {
            (true, true) => Some("login consent"),
            (true, false) => Some("login"),
            (false, true) => Some("consent"),
            (false, false) => None,
        };
        pairs.extend_pairs(prompt.map(|prompt| ("prompt", prompt)));
        drop(pairs);
        Ok(AuthorizationRequest { url, redirect_uri: redirect_uri.to_owned(), state, verifier })
    }
}

/// Returns the code challenge of a verifier (RFC 7636, `S256`).
pub fn code_challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(secret::hash(verifier.as_bytes()))
}

/// Returns the code in the query of the redirect. `issuer` is the one that was asked. `names_issuer` is
/// its `authorization_response_iss_parameter_supported` (RFC 9207, section 3).
///
/// # Errors
/// Returns why there is no code. The issuer's error is read only if the response is known to be from this issuer.
pub fn read_code(
    query: &str,
    state: &str,
    issuer: &str,
    names_issuer: bool,
) -> Result<String, AuthorizationResponseError> {
    if query.len() > MAX_QUERY_LEN {
        return Err(AuthorizationResponseError::OtherRequest);
    }
    // A repeated parameter could be read in two ways.
    let find = |name: &str| {
        let mut all = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name).map(|(_, value)| value);
        match (all.next(), all.next()) {
            (Some(value), None) => Ok(Some(value.into_owned())),
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(AuthorizationResponseError::OtherRequest),
        }
    };
    let hash = |text: &str| secret::hash(text.as_bytes());
    let found_state = find("state")?.ok_or(AuthorizationResponseError::OtherRequest)?;
    if !secret::is_same_hash(&hash(&found_state), &hash(state)) {
        return Err(AuthorizationResponseError::OtherRequest);
    }
    // RFC 9207, section 2.4: the issuer is compared even for errors, and without any normalization.
    match find("iss")? {
        Some(found) if found != issuer => return Err(AuthorizationResponseError::OtherIssuer),
        None if names_issuer => return Err(AuthorizationResponseError::OtherIssuer),
        _ => {}
    }
    if let Some(error) = find("error")? {
        return Err(AuthorizationResponseError::Refused(truncate(&error, MAX_ERROR_CODE_CHARS).to_owned()));
    }
    find("code")?.filter(|code| !code.is_empty()).ok_or(AuthorizationResponseError::NoCode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://id.example";
    const OWN: &str = "&iss=https%3A%2F%2Fid.example";

    #[test]
    fn code_challenge_is_the_one_of_rfc_7636() {
        let challenge = code_challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        assert_eq!(challenge, "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
    }

    /// The table of RFC 9207, section 2.4, as 2026-07-28/basic/authorization completes it.
    #[test]
    fn issuer_is_compared_if_the_answer_names_it() {
        let other = "&iss=https%3A%2F%2Fevil.example";
        let normalized = "&iss=https%3A%2F%2Fid.example%2F";
        for (iss, names_issuer, is_accepted) in [
            (OWN, true, true),
            ("", true, false),
            (OWN, false, true),
            ("", false, true),
            (other, true, false),
            (other, false, false),
            (normalized, true, false),
            ("&iss=HTTPS%3A%2F%2Fid.example", true, false),
            ("&iss=https%3A%2F%2Fid.example%3A443", true, false),
        ] {
            let code = read_code(&format!("code=c&state=s{iss}"), "s", ISSUER, names_issuer);
            let expected = if is_accepted { Ok("c".to_owned()) } else { Err(AuthorizationResponseError::OtherIssuer) };
            assert_eq!(code, expected, "{iss} {names_issuer}");
            let error = read_code(&format!("error=access_denied&state=s{iss}"), "s", ISSUER, names_issuer);
            let expected = AuthorizationResponseError::Refused("access_denied".to_owned());
            let expected = if is_accepted { expected } else { AuthorizationResponseError::OtherIssuer };
            assert_eq!(error, Err(expected), "{iss} {names_issuer}");
        }
    }

    #[test]
    fn foreign_or_ambiguous_answer_is_refused() {
        for query in ["code=c", "code=c&state=t", "code=c&state=s&state=s", "code=c&code=d&state=s", "code=c&state="] {
            assert_eq!(read_code(query, "s", ISSUER, false), Err(AuthorizationResponseError::OtherRequest), "{query}");
        }
        let twice = format!("code=c&state=s{OWN}{OWN}");
        assert_eq!(read_code(&twice, "s", ISSUER, false), Err(AuthorizationResponseError::OtherRequest));
        let long = format!("code={}&state=s", "c".repeat(MAX_QUERY_LEN));
        assert_eq!(read_code(&long, "s", ISSUER, false), Err(AuthorizationResponseError::OtherRequest));
        assert_eq!(read_code("state=s&code=", "s", ISSUER, false), Err(AuthorizationResponseError::NoCode));
    }
}
