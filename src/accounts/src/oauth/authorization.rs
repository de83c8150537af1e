//! The authorization request and its answer (OAuth 2.1, section 4.1; RFC 8707; RFC 9207).

use super::{OAuthError, discovery::DiscoveredResource, join_scopes, registration::Registration};
use countersign_auth::tokens::code_flow::{
    self, AuthorizationParameters, AuthorizationRequest, AuthorizationResponseError, OFFLINE_ACCESS,
};

/// Builds the authorization request for these scopes. An empty list omits the parameter.
///
/// # Errors
/// [`OAuthError::Unusable`] if the authorization server announces no PKCE (unless `allows_missing_pkce`) or has no
/// authorization endpoint.
pub fn build_authorization_request(
    discovered: &DiscoveredResource,
    registration: &Registration,
    redirect_uri: &str,
    scopes: &[String],
    allows_missing_pkce: bool,
) -> Result<AuthorizationRequest, OAuthError> {
    let authorization_server = &discovered.authorization_server;
    if !authorization_server.has_pkce && !allows_missing_pkce {
        return Err(OAuthError::unusable("the authorization server does not announce PKCE with S256"));
    }
    let no_endpoint = || OAuthError::unusable("the authorization server has no authorization endpoint");
    let endpoint = authorization_server.authorization_endpoint.as_deref().ok_or_else(no_endpoint)?;
    let (mut endpoint, _) = authorization_server.allowed_addresses.check(endpoint)?;
    endpoint.set_fragment(None);
    let client_id = &registration.client_id;
    let parameters = AuthorizationParameters { client_id, redirect_uri, scopes, needs_login: false };
    let mut request = parameters.into_request(endpoint).map_err(OAuthError::unusable)?;
    request.url.query_pairs_mut().append_pair("resource", &discovered.resource);
    Ok(request)
}

/// Checks `state` and `iss` in the query with which the browser comes back, and returns its code.
///
/// # Errors
/// [`OAuthError::Refused`] with the error code of the authorization server, otherwise [`OAuthError::Unusable`].
pub fn read_code(query: &str, state: &str, issuer: &str, names_issuer: bool) -> Result<String, OAuthError> {
    code_flow::read_code(query, state, issuer, names_issuer).map_err(|error| match error {
        AuthorizationResponseError::Refused(code) => OAuthError::Refused(code),
        error => OAuthError::unusable(error),
    })
}

/// Returns the scopes to request: the configured ones, those of `earlier` consents and refusals, and those of the
/// challenge. If neither the configuration nor the challenge names any, all scopes of the resource are included.
/// `offline_access` is included exactly if the authorization server offers it.
pub fn scopes_to_request(
    configured: &[String],
    earlier: &[String],
    challenged: Option<&[String]>,
    discovered: &DiscoveredResource,
) -> Vec<String> {
    let server_scopes = match challenged {
        Some(challenged) => challenged,
        None if configured.is_empty() => discovered.resource_scopes.as_deref().unwrap_or_default(),
        None => &[],
    };
    let mut scopes = join_scopes([configured, earlier, server_scopes]);
    let is_offline = |scope: &String| scope == OFFLINE_ACCESS;
    let offers_offline =
        discovered.authorization_server.scopes_supported.as_ref().is_some_and(|offered| offered.iter().any(is_offline));
    match (offers_offline, scopes.iter().position(is_offline)) {
        (true, None) => scopes.push(OFFLINE_ACCESS.to_owned()),
        (false, Some(at)) => drop(scopes.remove(at)),
        _ => {}
    }
    scopes
}
