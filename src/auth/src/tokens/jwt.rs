//! Reads signed JWTs (RFC 7515, RFC 7519) without trusting them.
//!
//! The header chooses one of the issuer's keys and nothing else: `jku`, `jwk`, `x5u` and `x5c` are never used.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jsonwebtoken::Header;
use serde_json::{Map, Value};

use super::{
    TokenRefusal,
    claims::{TokenClaims, parse_object},
};

/// A JWT whose signature has not been verified.
pub(super) struct UnverifiedJwt<'a> {
    pub header: Header,
    pub claims: TokenClaims,
    /// The header and the claims as they were sent, which the signature covers.
    pub signing_input: &'a str,
    pub signature: Vec<u8>,
}

/// Returns `true` if a token begins like the header of a signed or an encrypted JWT. All other tokens are opaque.
pub(super) fn is_jwt(token: &str) -> bool {
    // The base64url of `{`, whose second character has two bits of the next byte.
    matches!(token.as_bytes(), [b'e', b'w'..=b'z', ..]) && token.contains('.')
}

/// Returns a header or a key with the older name `EdDSA` instead of `Ed25519` (RFC 9864), which `jsonwebtoken` does not
/// know.
pub(super) fn with_known_algorithm(mut object: Map<String, Value>) -> Value {
    if object.get("alg").is_some_and(|name| name == "Ed25519") {
        object.insert("alg".to_owned(), "EdDSA".into());
    }
    Value::Object(object)
}

impl<'a> UnverifiedJwt<'a> {
    /// Parses a token and checks its header.
    pub(super) fn parse(token: &'a str) -> Result<Self, TokenRefusal> {
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenRefusal::invalid("the token is not a signed JWT, which has three parts"));
        };
        let signing_input = &token[..header.len() + 1 + claims.len()];
        let header = with_known_algorithm(parse_object(&decode_text(header)?)?);
        let header: Header = serde_json::from_value(header)
            .map_err(|_| TokenRefusal::invalid("the token's header is malformed, or its `alg` is not supported"))?;
        if header.crit.is_some() {
            return Err(TokenRefusal::invalid("the token's header has `crit`, and the gateway supports no extension"));
        }
        let claims = TokenClaims::parse(decode_text(claims)?)?;
        Ok(Self { header, claims, signing_input, signature: decode(signature)? })
    }

    /// Returns `true` if the header says that this is an access token (RFC 9068, section 2.1). Returns `false` if it
    /// says no more than that this is a JWT.
    pub(super) fn is_marked_as_access_token(&self) -> Result<bool, TokenRefusal> {
        let Some(kind) = &self.header.typ else { return Ok(false) };
        let kind = kind.to_ascii_lowercase();
        match kind.strip_prefix("application/").unwrap_or(&kind) {
            "at+jwt" => Ok(true),
            "jwt" => Ok(false),
            _ => Err(TokenRefusal::invalid("the token is not an access token: see `typ` in its header")),
        }
    }
}

fn decode(part: &str) -> Result<Vec<u8>, TokenRefusal> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenRefusal::invalid("the token is malformed: a part is not base64url"))
}

fn decode_text(part: &str) -> Result<String, TokenRefusal> {
    String::from_utf8(decode(part)?).map_err(|_| TokenRefusal::invalid("the token is malformed: a part is not UTF-8"))
}
