//! The gateway's registration at an authorization server: by the operator, by a Client ID Metadata Document, or
//! dynamically (2026-07-28/basic/authorization/client-registration, RFC 7591).

use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::{
    OAuthError,
    discovery::AuthorizationServer,
    http::{PostBody, RequestLimits, post},
};
use countersign_auth::tokens::quote;
use countersign_config::{Authorities, UpstreamOAuth, is_loopback};

/// The path of the redirect URI. `countersign_rest` serves both paths.
const CALLBACK_PATH: &str = "/api/servers/callback";
/// The path of the Client ID Metadata Document.
const CLIENT_METADATA_PATH: &str = "/.well-known/oauth-client.json";
/// The name that authorization servers show to people.
const CLIENT_NAME: &str = "Countersign";
/// The maximum number of bytes of a client id or secret that an authorization server issues.
const MAX_CREDENTIAL_LEN: usize = 4096;

/// The registration of the gateway as a client of one authorization server.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Registration {
    pub issuer: String,
    pub client_id: String,
    pub client_secret: Option<String>,
    #[serde(rename = "method")]
    pub auth_method: ClientAuthMethod,
    /// The redirect URI of the registration, if the gateway registered itself dynamically.
    pub dynamic_redirect_uri: Option<String>,
}

/// The method by which the client authenticates at the token endpoint (`token_endpoint_auth_method`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuthMethod {
    None,
    ClientSecretBasic,
    ClientSecretPost,
    PrivateKeyJwt,
}

/// The addresses of the gateway as a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddresses {
    /// The address of the gateway as a browser reaches it, without a slash at its end.
    pub base_url: String,
    pub redirect_uri: String,
    /// The URL of the Client ID Metadata Document, if the gateway is reached by HTTPS.
    pub metadata_url: Option<String>,
}

impl ClientAddresses {
    pub fn new(base_url: &str) -> Self {
        Self {
            base_url: base_url.to_owned(),
            redirect_uri: format!("{base_url}{CALLBACK_PATH}"),
            metadata_url: base_url.starts_with("https://").then(|| format!("{base_url}{CLIENT_METADATA_PATH}")),
        }
    }
}

impl Registration {
    /// Returns `true` if the error says that the authorization server no longer knows the gateway, which can register
    /// itself anew.
    pub fn is_forgotten(&self, error: &OAuthError) -> bool {
        let is_unknown = matches!(error, OAuthError::Refused(code) if code == "invalid_client");
        is_unknown && self.dynamic_redirect_uri.is_some()
    }
}

impl ClientAuthMethod {
    /// Returns the name in metadata (RFC 7591, section 2).
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ClientSecretBasic => "client_secret_basic",
            Self::ClientSecretPost => "client_secret_post",
            Self::PrivateKeyJwt => "private_key_jwt",
        }
    }

    /// Returns `true` if the token endpoint accepts this method.
    fn is_supported(self, authorization_server: &AuthorizationServer) -> bool {
        match &authorization_server.token_auth_methods {
            Some(methods) => methods.iter().any(|method| method == self.name()),
            // The default of RFC 8414, section 2.
            None => self == Self::ClientSecretBasic,
        }
    }
}

/// The answer of a registration endpoint (RFC 7591, section 3.2.1).
#[derive(Deserialize)]
struct RegisteredClient {
    client_id: String,
    client_secret: Option<String>,
    token_endpoint_auth_method: Option<String>,
}

/// Returns the registration that needs no request: the configured client, or the metadata document. Returns `None` if
/// the gateway must register itself dynamically.
pub fn known_registration(
    authorization_server: &AuthorizationServer,
    config: &UpstreamOAuth,
    addresses: &ClientAddresses,
) -> Option<Registration> {
    let registration = |client_id: &str, client_secret: Option<String>, auth_method| Registration {
        issuer: authorization_server.issuer.clone(),
        client_id: client_id.to_owned(),
        client_secret,
        auth_method,
        dynamic_redirect_uri: None,
    };
    if let Some(client_id) = &config.client_id {
        let method = configured_method(authorization_server, config);
        return Some(registration(client_id, config.client_secret.as_ref().map(|secret| secret.0.clone()), method));
    }
    let url = addresses.metadata_url.as_deref().filter(|_| authorization_server.accepts_client_metadata_documents);
    url.map(|url| registration(url, None, ClientAuthMethod::None))
}

/// Returns the method by which the configured client authenticates.
fn configured_method(authorization_server: &AuthorizationServer, config: &UpstreamOAuth) -> ClientAuthMethod {
    use ClientAuthMethod::{None, PrivateKeyJwt};
    let (has_key, has_secret) = (config.private_key.is_some(), config.client_secret.is_some());
    // With both, the key is preferred if the server supports it.
    if has_key && (!has_secret || PrivateKeyJwt.is_supported(authorization_server)) {
        PrivateKeyJwt
    } else if has_secret {
        secret_method(authorization_server)
    } else {
        None
    }
}

/// Returns the method by which a client with a secret authenticates.
pub fn secret_method(authorization_server: &AuthorizationServer) -> ClientAuthMethod {
    use ClientAuthMethod::{ClientSecretBasic, ClientSecretPost};
    let needs_form =
        ClientSecretPost.is_supported(authorization_server) && !ClientSecretBasic.is_supported(authorization_server);
    if needs_form { ClientSecretPost } else { ClientSecretBasic }
}

/// Registers the gateway dynamically (RFC 7591).
///
/// # Errors
/// [`OAuthError::Unusable`] if the authorization server offers no registration or answers with an invalid one;
/// otherwise the errors of the request.
pub async fn register(
    authorization_server: &AuthorizationServer,
    addresses: &ClientAddresses,
    trusted: Option<&Authorities>,
) -> Result<Registration, OAuthError> {
    use ClientAuthMethod::{ClientSecretBasic, ClientSecretPost, None as Public};
    let endpoint = authorization_server.registration_endpoint.as_deref().ok_or_else(|| {
        OAuthError::unusable("the authorization server registers no clients, so that `oauth.client_id` must be set")
    })?;
    // The gateway can keep a secret, so it prefers to have one.
    let methods = [ClientSecretBasic, ClientSecretPost, Public];
    let method = methods.into_iter().find(|method| method.is_supported(authorization_server)).ok_or_else(|| {
        OAuthError::unusable("the authorization server supports no method by which a registered client authenticates")
    })?;
    let mut request = client_metadata(addresses);
    request["token_endpoint_auth_method"] = method.name().into();
    let limits = RequestLimits { allowed_addresses: &authorization_server.allowed_addresses, trusted };
    let answer = post(endpoint, limits, &[], PostBody::Json(request), |_| {}).await?;
    let client = RegisteredClient::deserialize(answer).map_err(|error| {
        OAuthError::Unusable(format!("the answer to the registration is malformed: {}", quote(&error.to_string())))
    })?;
    let is_valid = |text: &String| {
        (1..=MAX_CREDENTIAL_LEN).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    if ![Some(&client.client_id), client.client_secret.as_ref()].into_iter().flatten().all(is_valid) {
        return Err(OAuthError::unusable("the registration has an invalid client id or secret"));
    }
    let method = match &client.token_endpoint_auth_method {
        Some(name) => methods.into_iter().find(|method| method.name() == name),
        None if client.client_secret.is_none() => Some(Public),
        None => Some(method),
    };
    let method = method.filter(|method| *method == Public || client.client_secret.is_some());
    let other_method = || OAuthError::unusable("the registration is for another authentication method");
    let method = method.ok_or_else(other_method)?;
    Ok(Registration {
        issuer: authorization_server.issuer.clone(),
        client_id: client.client_id,
        client_secret: client.client_secret.filter(|_| method != Public),
        auth_method: method,
        dynamic_redirect_uri: Some(addresses.redirect_uri.clone()),
    })
}

/// Returns the Client ID Metadata Document.
pub fn metadata_document(addresses: &ClientAddresses) -> Option<Value> {
    let url = addresses.metadata_url.as_deref()?;
    let mut document = client_metadata(addresses);
    document["client_id"] = url.into();
    document["token_endpoint_auth_method"] = ClientAuthMethod::None.name().into();
    Some(document)
}

/// Returns the metadata of the gateway that all registrations share.
fn client_metadata(addresses: &ClientAddresses) -> Value {
    let is_local = Url::parse(&addresses.redirect_uri).is_ok_and(|url| is_loopback(&url));
    json!({
        "client_name": CLIENT_NAME,
        "redirect_uris": [addresses.redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": if is_local { "native" } else { "web" },
    })
}
