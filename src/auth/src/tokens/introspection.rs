//! Asks an issuer about an opaque token (RFC 7662).

use jiff::Timestamp;

use super::{
    MAX_TOKEN_BYTES, TokenRefusal,
    claims::TokenClaims,
    issuer::Issuer,
    metadata::{Metadata, needs_secret_in_form},
    principal,
    requests::{ClientIdentity, RequestError, post_form},
};
use countersign_config::IntrospectionClient;
use countersign_domain::principal::Principal;

impl Issuer {
    /// Asks the issuer about a token. Returns its principal, and the second from which the token is no longer valid.
    pub(super) async fn introspect(&self, token: &str, now: Timestamp) -> Result<(Principal, i64), TokenRefusal> {
        let client = self.config.introspection.as_ref().ok_or(TokenRefusal::IssuerUnavailable)?;
        let snapshot = self.snapshot(now).ok_or(TokenRefusal::IssuerUnavailable)?;
        let answer = self.request_introspection(&snapshot.metadata, client, token).await.map_err(|error| {
            self.warn_of_failed_introspection(&error, now);
            TokenRefusal::IssuerUnavailable
        })?;
        if answer.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefusal::invalid("the issuer's answer about the token is too long"));
        }
        let claims = TokenClaims::parse(answer)?;
        if claims.get("active").and_then(serde_json::Value::as_bool) != Some(true) {
            return Err(TokenRefusal::invalid("the token is unknown to its issuer, was revoked or has expired"));
        }
        let expires_at = claims.check_introspected(&self.config.issuer, &self.audiences, now.as_second())?;
        let subject = match claims.string("sub")? {
            Some(subject) => Some(subject),
            None => claims.client()?,
        };
        let subject =
            subject.ok_or_else(|| TokenRefusal::invalid("the token has neither `sub` nor `client_id`"))?.to_owned();
        Ok((principal::to_principal(&self.config, &subject, claims, now)?, expires_at))
    }

    async fn request_introspection(
        &self,
        metadata: &Metadata,
        client: &IntrospectionClient,
        token: &str,
    ) -> Result<String, RequestError> {
        let missing = || RequestError::Unusable("its metadata has no `introspection_endpoint`".to_owned());
        let endpoint = metadata.introspection_endpoint.as_ref().ok_or_else(missing)?;
        let methods = metadata.introspection_endpoint_auth_methods_supported.as_deref();
        let needs_secret_in_form = needs_secret_in_form(methods);
        let identity = ClientIdentity { id: &client.id, secret: Some(&client.secret), needs_secret_in_form };
        let fields = [("token", token), ("token_type_hint", "access_token")];
        post_form(endpoint, self.config.authorities.as_ref(), identity, &fields).await
    }
}
