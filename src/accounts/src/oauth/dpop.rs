//! DPoP proofs of possession (RFC 9449, extension `io.modelcontextprotocol/auth/dpop`).

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use super::{OAuthError, jws::SigningKey};
use countersign_runtime::secret;

/// The maximum number of bytes of a nonce.
const MAX_NONCE_LEN: usize = 1024;

/// Returns `true` if a nonce that a server demands is short enough to be sent in each proof (RFC 9449, section 8).
pub fn is_usable_nonce(text: &str) -> bool {
    (1..=MAX_NONCE_LEN).contains(&text.len())
}

/// A key of the gateway to which tokens are bound (ES256). It is stored as a text (PKCS #8, PEM).
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DpopKey {
    key: Arc<SigningKey>,
    public_jwk: Value,
    pem: String,
}

impl TryFrom<String> for DpopKey {
    type Error = OAuthError;

    /// Reads a key.
    ///
    /// # Errors
    /// [`OAuthError::Unusable`] for another text.
    fn try_from(pem: String) -> Result<Self, OAuthError> {
        let key = SigningKey::from_pem(&pem)?;
        let not_es256 = || OAuthError::unusable("the key for DPoP is not one for ES256");
        let public_jwk = key.public_ec_key().ok_or_else(not_es256)?;
        Ok(Self { key: Arc::new(key), public_jwk, pem })
    }
}

impl From<DpopKey> for String {
    fn from(key: DpopKey) -> Self {
        key.pem
    }
}

impl DpopKey {
    /// Generates a key.
    ///
    /// # Errors
    /// [`OAuthError::Unusable`] if there is no source of randomness.
    pub fn generate() -> Result<Self, OAuthError> {
        SigningKey::generate_pem()?.try_into()
    }

    /// Returns the proof for one request. `token` is the access token that the request carries.
    ///
    /// # Errors
    /// [`OAuthError::Unusable`] if the URL is invalid, if there is no source of randomness, or if the key cannot sign.
    pub fn prove(
        &self,
        method: &str,
        url: &str,
        token: Option<&str>,
        nonce: Option<&str>,
        now: Timestamp,
    ) -> Result<String, OAuthError> {
        let mut target = Url::parse(url).map_err(OAuthError::unusable)?;
        target.set_query(None);
        target.set_fragment(None);
        let id = secret::generate("").map_err(OAuthError::unusable)?;
        let mut claims = json!({ "jti": id, "htm": method, "htu": target.as_str(), "iat": now.as_second() });
        if let Some(token) = token {
            claims["ath"] = URL_SAFE_NO_PAD.encode(secret::hash(token.as_bytes())).into();
        }
        if let Some(nonce) = nonce {
            claims["nonce"] = nonce.into();
        }
        self.key.sign(json!({ "typ": "dpop+jwt", "jwk": self.public_jwk }), &claims)
    }
}
