//! Obtains the identity assertion of a person from their identity provider (ID-JAG;
//! extension `io.modelcontextprotocol/enterprise-managed-authorization`).

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::Deserialize;
use url::Url;

use super::{
    AllowedAddresses, OAuthError,
    discovery::read_authorization_server,
    http::RequestLimits,
    registration::{ClientAuthMethod, Registration, secret_method},
    token::{Grant, TokenRequest, request_token},
};
use countersign_config::{OidcConfig, Secret};

/// The claims of an ID token that say where it comes from. Only the identity provider verifies the token.
#[derive(Deserialize)]
struct IdToken {
    iss: String,
    aud: Audience,
    azp: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

/// Exchanges a person's ID token at its issuer for the assertion that `request` sends as [`Grant::JwtBearer`].
///
/// - `id_token` comes from the operator's file or from the person's sign-in. The gateway acts as the client to which
///   the token was issued.
/// - `config_for` returns the configuration of the identity provider if the given issuer is its issuer. Otherwise the
///   client has no secret, and the certificate authorities of `request` are trusted.
///
/// # Errors
/// [`OAuthError::Unusable`] for a text that is not an ID token; otherwise the errors of the discovery of its issuer,
/// and of [`request_token`].
pub async fn request_assertion(
    id_token: &str,
    config_for: impl Fn(&str) -> Option<OidcConfig>,
    request: &TokenRequest<'_>,
    now: Timestamp,
) -> Result<String, OAuthError> {
    let unusable = || OAuthError::unusable("the subject token is not an ID token");
    let payload = id_token.trim().split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part).ok());
    let claims: Option<IdToken> = payload.and_then(|payload| serde_json::from_slice(&payload).ok());
    let IdToken { iss, aud, azp } = claims.ok_or_else(unusable)?;
    let client_id = azp.or(match aud {
        Audience::One(client) => Some(client),
        Audience::Several(clients) => clients.into_iter().next(),
    });
    // The operator configured the token's file or its issuer (`auth.oidc`), so the issuer may have any address.
    let allowed_addresses = AllowedAddresses::new(&Url::parse(&iss).map_err(|_| unusable())?, None);
    let config = config_for(&iss);
    let trusted = config.as_ref().map_or(request.trusted, |config| config.authorities.as_ref());
    let authorization_server =
        read_authorization_server(&iss, RequestLimits { allowed_addresses: &allowed_addresses, trusted }).await?;
    let client_id = client_id.ok_or_else(unusable)?;
    let config = config.as_ref().filter(|config| config.client_id == client_id);
    let secret = config.and_then(|config| config.client_secret.as_ref());
    let registration = Registration {
        issuer: iss,
        client_id,
        auth_method: secret.map_or(ClientAuthMethod::None, |_| secret_method(&authorization_server)),
        client_secret: secret.map(|Secret(secret)| secret.clone()),
        dynamic_redirect_uri: None,
    };
    let exchange = TokenRequest {
        authorization_server: &authorization_server,
        trusted,
        registration: &registration,
        private_key: None,
        resource: request.resource,
        scopes: request.scopes,
        dpop: None,
    };
    let grant =
        Grant::IdentityAssertion { subject_token: id_token.trim(), audience: &request.authorization_server.issuer };
    Ok(request_token(&exchange, grant, now).await?.access_token)
}
