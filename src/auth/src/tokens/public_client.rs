//! A public OAuth client that runs beside a person, such as the command line. It gets access tokens for the gateway by
//! the authorization code flow with PKCE and a loopback redirect (RFC 8252), or by the device grant (RFC 8628).
//!
//! The client verifies no token: the gateway does.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;
use url::Url;

use super::{
    code_flow::{self, AuthorizationParameters, AuthorizationRequest, AuthorizationResponseError},
    metadata::{Metadata, MetadataPurpose, check_endpoint},
    requests::{ClientIdentity, RequestError, post_form, read_lifetime},
};
use countersign_config::Authorities;

const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// The polling interval in seconds if the identity provider names none (RFC 8628, section 3.2).
const DEFAULT_INTERVAL: u64 = 5;

/// The settings with which a public client gets tokens that a gateway accepts from its identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientSettings {
    pub issuer: String,
    pub client_id: String,
    pub scopes: Vec<String>,
    /// The resource indicator of the gateway (RFC 8707), if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
}

/// The response of the token endpoint (RFC 6749, section 5.1).
#[derive(Deserialize)]
pub struct TokenResponse {
    pub access_token: String,
    pub refresh_token: Option<String>,
    /// The lifetime of the access token in seconds.
    #[serde(default, deserialize_with = "deserialize_seconds")]
    pub expires_in: Option<u64>,
}

/// Omits the tokens, which are secret.
impl fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenResponse").field("expires_in", &self.expires_in).finish_non_exhaustive()
    }
}

/// The reason why no tokens were issued.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    #[error("the identity provider does not answer: {0}")]
    Unreachable(String),
    #[error("the identity provider cannot be used: {0}")]
    Unusable(String),
    /// The identity provider or the person refused with this error code.
    #[error("the identity provider refuses with {0:?}")]
    Refused(String),
    #[error(transparent)]
    Response(#[from] AuthorizationResponseError),
}

impl From<RequestError> for GrantError {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::Unreachable(reason) | RequestError::Unavailable(reason) => Self::Unreachable(reason),
            RequestError::Unusable(reason) => Self::Unusable(reason),
            RequestError::Refused(code) if code.is_empty() => Self::Refused("status 400".to_owned()),
            RequestError::Refused(code) => Self::Refused(code),
        }
    }
}

/// A code with which a person signs in on another device (RFC 8628, section 3.2).
#[derive(Deserialize)]
pub struct DeviceAuthorization {
    device_code: String,
    pub user_code: String,
    pub verification_uri: String,
    pub verification_uri_complete: Option<String>,
    #[serde(deserialize_with = "deserialize_seconds")]
    expires_in: Option<u64>,
    #[serde(default, deserialize_with = "deserialize_seconds")]
    interval: Option<u64>,
}

/// Reads a number of seconds as [`read_lifetime`] does.
fn deserialize_seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    let seconds = read_lifetime(&value).and_then(|lifetime| u64::try_from(lifetime.as_secs()).ok());
    seconds.map(Some).ok_or_else(|| D::Error::custom("this is not a number of seconds"))
}

impl DeviceAuthorization {
    pub fn lifetime(&self) -> Duration {
        Duration::from_secs(self.expires_in.unwrap_or_default())
    }

    /// Returns the polling interval, which is at least a second.
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.unwrap_or(DEFAULT_INTERVAL).max(1))
    }
}

/// The client, with the metadata of the identity provider.
pub struct PublicClient {
    settings: ClientSettings,
    authorities: Option<Authorities>,
    metadata: Metadata,
}

impl PublicClient {
    /// Reads the metadata of the identity provider. `authorities` are trusted in addition to the public ones. All
    /// requests must run on a thread of actix.
    ///
    /// # Errors
    /// Returns why the identity provider cannot be used.
    pub async fn discover(settings: ClientSettings, authorities: Option<Authorities>) -> Result<Self, GrantError> {
        check_endpoint(&settings.issuer, &settings.issuer).map_err(GrantError::Unusable)?;
        let metadata = Metadata::read(&settings.issuer, MetadataPurpose::AccessTokens, authorities.as_ref()).await?;
        Ok(Self { settings, authorities, metadata })
    }

    pub fn has_device_grant(&self) -> bool {
        self.metadata.device_authorization_endpoint.is_some()
    }

    /// Prepares an authorization request whose answer comes to `redirect_uri`.
    ///
    /// # Errors
    /// Returns why the identity provider cannot be asked.
    pub fn request_authorization(&self, redirect_uri: &str) -> Result<AuthorizationRequest, GrantError> {
        let endpoint = require_endpoint(self.metadata.authorization_endpoint.as_deref(), "authorization_endpoint")?;
        let endpoint = Url::parse(endpoint).map_err(|error| GrantError::Unusable(error.to_string()))?;
        let ClientSettings { client_id, scopes, .. } = &self.settings;
        let parameters = AuthorizationParameters { client_id, redirect_uri, scopes, needs_login: false };
        let request = parameters.into_request(endpoint);
        let mut request = request.map_err(|error| GrantError::Unusable(error.message.to_string()))?;
        request.url.query_pairs_mut().extend_pairs(self.resource_parameter());
        Ok(request)
    }

    /// Exchanges the code in the query with which the browser came back.
    ///
    /// # Errors
    /// [`AuthorizationResponseError::OtherRequest`] if the query is not the response to this request, which may still
    /// come. Any other problem is final.
    pub async fn redeem_response(
        &self,
        request: &AuthorizationRequest,
        query: &str,
    ) -> Result<TokenResponse, GrantError> {
        let AuthorizationRequest { redirect_uri, state, verifier, .. } = request;
        let code = code_flow::read_code(query, state, &self.settings.issuer, self.metadata.names_issuer())?;
        let form = [
            ("grant_type", "authorization_code"),
            ("code", &code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        self.ask_for_tokens(&form).await
    }

    /// Asks for a code with which the person signs in on another device.
    ///
    /// # Errors
    /// Returns why there is no code.
    pub async fn authorize_device(&self) -> Result<DeviceAuthorization, GrantError> {
        let device = self.metadata.device_authorization_endpoint.as_deref();
        let endpoint = require_endpoint(device, "device_authorization_endpoint")?;
        let scope = self.settings.scopes.join(" ");
        parse(&self.send_form_with_resource(endpoint, &[("scope", &scope)]).await?)
    }

    /// Asks once whether the person has signed in with a device code.
    ///
    /// # Errors
    /// [`GrantError::Refused`] with `authorization_pending` or `slow_down` while they have not.
    pub async fn redeem_device_code(&self, device: &DeviceAuthorization) -> Result<TokenResponse, GrantError> {
        self.ask_for_tokens(&[("grant_type", DEVICE_GRANT), ("device_code", &device.device_code)]).await
    }

    /// Exchanges a refresh token, which may then be invalid.
    ///
    /// # Errors
    /// [`GrantError::Refused`] if the sign-in has ended.
    pub async fn refresh(&self, refresh_token: &str) -> Result<TokenResponse, GrantError> {
        self.ask_for_tokens(&[("grant_type", "refresh_token"), ("refresh_token", refresh_token)]).await
    }

    /// Revokes a token (RFC 7009). Returns `false` if the identity provider has no endpoint for that.
    ///
    /// # Errors
    /// Returns why the token may still be valid.
    pub async fn revoke(&self, token: &str) -> Result<bool, GrantError> {
        let Some(endpoint) = self.metadata.revocation_endpoint.as_deref() else { return Ok(false) };
        self.send_form(endpoint, &[("token", token)]).await?;
        Ok(true)
    }

    fn resource_parameter(&self) -> Option<(&str, &str)> {
        self.settings.resource.as_deref().map(|resource| ("resource", resource))
    }

    async fn ask_for_tokens(&self, form: &[(&str, &str)]) -> Result<TokenResponse, GrantError> {
        let endpoint = require_endpoint(self.metadata.token_endpoint.as_deref(), "token_endpoint")?;
        parse(&self.send_form_with_resource(endpoint, form).await?)
    }

    /// Sends a form with the resource indicator as this client.
    async fn send_form_with_resource(&self, endpoint: &str, form: &[(&str, &str)]) -> Result<String, GrantError> {
        let form: Vec<(&str, &str)> = form.iter().copied().chain(self.resource_parameter()).collect();
        Ok(self.send_form(endpoint, &form).await?)
    }

    async fn send_form(&self, endpoint: &str, form: &[(&str, &str)]) -> Result<String, RequestError> {
        let identity = ClientIdentity { id: &self.settings.client_id, secret: None, needs_secret_in_form: false };
        post_form(endpoint, self.authorities.as_ref(), identity, form).await
    }
}

fn require_endpoint<'a>(endpoint: Option<&'a str>, name: &str) -> Result<&'a str, GrantError> {
    endpoint.ok_or_else(|| GrantError::Unusable(format!("its metadata has no {name}")))
}

fn parse<'a, T: Deserialize<'a>>(answer: &'a str) -> Result<T, GrantError> {
    // The text of the error could quote a token.
    serde_json::from_str(answer)
        .map_err(|_| GrantError::Unusable("its answer does not have the form that OAuth prescribes".to_owned()))
}

#[cfg(test)]
mod tests;
