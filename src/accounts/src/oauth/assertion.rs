//! Signed assertions of the client (RFC 7523): `private_key_jwt`.

use jiff::Timestamp;
use serde_json::json;

use super::{OAuthError, jws::SigningKey};
use countersign_config::Secret;
use countersign_runtime::secret;

/// The time for which an assertion is valid, in seconds.
const LIFETIME_SECONDS: i64 = 60;

/// Signs the assertion with which a client authenticates at a token endpoint. `key` is a private key for ES256, RS256
/// or EdDSA, and `audience` the issuer of the authorization server.
///
/// # Errors
/// [`OAuthError::Unusable`] for a key that cannot sign.
pub fn client_assertion(key: &Secret, client_id: &str, audience: &str, now: Timestamp) -> Result<String, OAuthError> {
    let id = secret::generate("").map_err(OAuthError::unusable)?;
    let (issued_at, header) = (now.as_second(), json!({ "typ": "JWT" }));
    let claims = json!({
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": id,
        "iat": issued_at,
        "exp": issued_at + LIFETIME_SECONDS,
    });
    SigningKey::from_pem(&key.0)?.sign(header, &claims)
}
