//! Verifies logout tokens (OpenID Connect Back-Channel Logout 1.0, section 2.6).

use jiff::Timestamp;
use serde_json::Value;

use super::{super::TokenRefusal, ConfiguredIdentityProvider};
use countersign_domain::principal::SecretHash;
use countersign_runtime::secret;
use countersign_store::people::ProviderSession;

const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// The provider's notice that a session ended, or all sessions of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogoutNotice {
    pub issuer: String,
    pub subject: Option<String>,
    pub sid: Option<String>,
    /// The hash of the token's id, because a token may be used only once.
    pub id: SecretHash,
    pub expires_at: Timestamp,
}

impl LogoutNotice {
    /// Returns `true` if the notice is about this session.
    pub fn ends(&self, session: &ProviderSession) -> bool {
        let is_same_subject = self.subject.as_ref().is_none_or(|subject| *subject == session.subject);
        let is_same_session = self.sid.is_none() || self.sid == session.sid;
        self.issuer == session.issuer && is_same_subject && is_same_session
    }
}

impl ConfiguredIdentityProvider {
    pub(super) async fn verify_logout_token(&self, token: &str, now: Timestamp) -> Result<LogoutNotice, TokenRefusal> {
        let claims = self.verify_jwt(token, &["jwt", "logout+jwt"], now).await?;
        if claims.get("nonce").is_some() {
            return Err(TokenRefusal::invalid("the token has a `nonce`, as an ID token has"));
        }
        let event = claims.get("events").and_then(|events| events.get(LOGOUT_EVENT));
        if !event.is_some_and(Value::is_object) {
            return Err(TokenRefusal::invalid("the token's `events` report no logout"));
        }
        let (subject, sid) = (claims.string("sub")?.map(str::to_owned), claims.string("sid")?.map(str::to_owned));
        if subject.is_none() && sid.is_none() {
            return Err(TokenRefusal::invalid("the token has neither `sub` nor `sid`"));
        }
        let id = claims.string("jti")?.ok_or_else(|| TokenRefusal::invalid("the token has no `jti`"))?;
        let id = secret::hash(format!("{}\n{id}", self.config.issuer).as_bytes());
        let end = claims.check_for_client(&self.config.issuer, &self.config.client_id, now.as_second())?;
        let expires_at =
            Timestamp::from_second(end).map_err(|_| TokenRefusal::invalid("the token's `exp` is not a time"))?;
        Ok(LogoutNotice { issuer: self.config.issuer.clone(), subject, sid, id, expires_at })
    }
}
