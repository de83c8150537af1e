//! Verifies ID tokens (OpenID Connect Core 1.0, section 3.1.3.7).

use jiff::Timestamp;

use super::{
    super::{MAX_TOKEN_BYTES, TokenRefusal, claims::TokenClaims, jwt::UnverifiedJwt},
    ConfiguredIdentityProvider, SignInError,
};

impl ConfiguredIdentityProvider {
    /// Verifies an ID token, and returns its claims. The token of a sign-in must have the `nonce` of its request.
    pub(super) async fn verify_id_token(
        &self,
        token: &str,
        nonce: Option<&str>,
        now: Timestamp,
    ) -> Result<TokenClaims, SignInError> {
        self.check_id_token(token, nonce, now).await.map_err(SignInError::from_refusal)
    }

    /// Verifies an ID token as [`Self::verify_id_token`] does, and logs nothing.
    ///
    /// # Errors
    /// Returns why the token is refused.
    pub(super) async fn check_id_token(
        &self,
        token: &str,
        nonce: Option<&str>,
        now: Timestamp,
    ) -> Result<TokenClaims, TokenRefusal> {
        let claims = self.verify_jwt(token, &["jwt"], now).await?;
        if nonce.is_some() && claims.string("nonce")? != nonce {
            return Err(TokenRefusal::invalid("the token's `nonce` is not that of this sign-in"));
        }
        // A logout token has the same issuer and audience.
        if claims.get("events").is_some() {
            return Err(TokenRefusal::invalid("the token reports an event, and an ID token is needed"));
        }
        claims.string("sub")?.ok_or_else(|| TokenRefusal::invalid("the token has no `sub`"))?;
        Ok(claims)
    }

    /// Verifies the signature, the audience and the times of a token that the provider issued to the gateway. Its
    /// header must have one of these types, or none.
    pub(super) async fn verify_jwt(
        &self,
        token: &str,
        types: &[&str],
        now: Timestamp,
    ) -> Result<TokenClaims, TokenRefusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefusal::invalid("the token is too long"));
        }
        let token = UnverifiedJwt::parse(token)?;
        let kind = token.header.typ.as_deref().unwrap_or("jwt").to_ascii_lowercase();
        if !types.contains(&kind.strip_prefix("application/").unwrap_or(&kind)) {
            return Err(TokenRefusal::invalid("the token is of another kind: see `typ` in its header"));
        }
        self.issuer.verify_signature(&token, now).await?;
        token.claims.check_for_client(&self.config.issuer, &self.config.client_id, now.as_second())?;
        Ok(token.claims)
    }
}
