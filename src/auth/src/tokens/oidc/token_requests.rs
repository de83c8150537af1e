//! Exchanges codes and refresh tokens at the provider, and builds sessions from the claims about the person.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    super::{
        claims::TokenClaims,
        issuer::IssuerSnapshot,
        jwt::UnverifiedJwt,
        metadata::needs_secret_in_form,
        principal::{MAX_ID_BYTES, display_name, other_names, read_groups, role_of_groups},
        requests::{ClientIdentity, RequestError, get_with_token, post_form},
    },
    ConfiguredIdentityProvider, MAX_SESSION_LIFETIME, SessionTokens, SignInError, VerifiedPerson,
};
use countersign_config::OidcConfig;
use countersign_domain::principal::{Claims, Role, subject_name};
use countersign_store::people::{ProviderSession, StoredPerson};

/// Claims that are ignored in the answer of the UserInfo endpoint, because only the ID token may state them.
const ID_TOKEN_ONLY_CLAIMS: [&str; 7] = ["iss", "aud", "azp", "sid", "auth_time", "acr", "amr"];
/// Claims about the token itself, which say nothing about the person.
const PER_TOKEN_CLAIMS: [&str; 9] = ["exp", "iat", "nbf", "jti", "nonce", "at_hash", "c_hash", "s_hash", "rat"];

/// The response of the token endpoint (RFC 6749, section 5.1).
#[derive(Deserialize)]
pub(super) struct TokenResponse {
    pub access_token: Option<String>,
    pub id_token: Option<String>,
    pub refresh_token: Option<String>,
}

impl ConfiguredIdentityProvider {
    /// Exchanges the code of a sign-in for tokens.
    pub(super) async fn redeem_code(
        &self,
        snapshot: &IssuerSnapshot,
        code: &str,
        verifier: &str,
        redirect_uri: &str,
    ) -> Result<TokenResponse, SignInError> {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect_uri),
            ("code_verifier", verifier),
        ];
        // The gateway has checked all that it can, so a refusal means a mistake in the configuration, or a replayed
        // code.
        self.ask_for_tokens(snapshot, &form).await.map_err(|error| match error {
            SignInError::Denied => SignInError::ProviderUnusable,
            other => other,
        })
    }

    /// Asks for new tokens of a session. [`SignInError::Denied`] if the provider refuses.
    pub(super) async fn redeem_refresh_token(&self, token: &str, now: Timestamp) -> Result<TokenResponse, SignInError> {
        let snapshot = self.issuer.current_snapshot(now).await.map_err(SignInError::from_refusal)?;
        self.ask_for_tokens(&snapshot, &[("grant_type", "refresh_token"), ("refresh_token", token)]).await
    }

    /// Builds a session in place of an earlier one, whose `tokens` have the current refresh token.
    pub(super) async fn build_renewed_session(
        &self,
        session: &ProviderSession,
        tokens: &SessionTokens,
        answer: TokenResponse,
        now: Timestamp,
    ) -> Result<VerifiedPerson, SignInError> {
        let mut tokens = tokens.clone();
        let claims = match answer.id_token {
            Some(id_token) => {
                let claims = self.verify_id_token(&id_token, None, now).await?;
                (tokens.id_token, tokens.userinfo_claims) = (id_token, BTreeSet::new());
                claims
            }
            // The old ID token was verified when the person signed in. Its claims that the UserInfo endpoint has ever
            // returned do not count, because the endpoint may omit the claim with groups once a person has none.
            None => {
                let claims = UnverifiedJwt::parse(&tokens.id_token).map_err(SignInError::from_refusal)?.claims;
                let outdated_claims: Vec<&str> = tokens.userinfo_claims.iter().map(String::as_str).collect();
                claims.remove_claims(&outdated_claims)
            }
        };
        let mut renewed = self.build_session(claims, tokens, answer.access_token.as_deref(), now).await?;
        // OpenID Connect Core 1.0, section 12.2.
        if renewed.session.subject != session.subject {
            return Err(self.log_unusable("the renewed tokens belong to another person"));
        }
        renewed.session.ends_at = session.ends_at;
        // A renewal is not an authentication, whatever the renewed token says.
        renewed.session.auth_time = session.auth_time;
        renewed.session.acr.clone_from(&session.acr);
        renewed.session.sid = renewed.session.sid.or_else(|| session.sid.clone());
        Ok(renewed)
    }

    async fn ask_for_tokens(
        &self,
        snapshot: &IssuerSnapshot,
        form: &[(&str, &str)],
    ) -> Result<TokenResponse, SignInError> {
        let endpoint = snapshot.metadata.token_endpoint.as_deref();
        let endpoint = endpoint.ok_or_else(|| self.log_unusable("its metadata has no `token_endpoint`"))?;
        let OidcConfig { client_id: id, client_secret, authorities, .. } = &self.config;
        let methods = snapshot.metadata.token_endpoint_auth_methods_supported.as_deref();
        let needs_secret_in_form = needs_secret_in_form(methods);
        let identity = ClientIdentity { id, secret: client_secret.as_ref(), needs_secret_in_form };
        let answer = post_form(endpoint, authorities.as_ref(), identity, form).await;
        let answer = answer.map_err(|error| self.log_problem(&error))?;
        serde_json::from_str(&answer).map_err(|_| self.log_unusable("the answer of the token endpoint is malformed"))
    }

    /// Logs why metadata or an answer of the provider cannot be used.
    pub(super) fn log_unusable(&self, reason: &str) -> SignInError {
        self.log_problem(&RequestError::Unusable(reason.to_owned()))
    }

    /// Logs and converts the failure of a request to the provider.
    fn log_problem(&self, error: &RequestError) -> SignInError {
        tracing::warn!(issuer = self.config.issuer, %error, "the identity provider did not answer as expected");
        match error {
            RequestError::Unreachable(_) | RequestError::Unavailable(_) => SignInError::ProviderUnreachable,
            RequestError::Refused(code) if code.is_empty() || code == "invalid_grant" => SignInError::Denied,
            RequestError::Refused(_) | RequestError::Unusable(_) => SignInError::ProviderUnusable,
        }
    }

    /// Builds a session and its person from the claims of the ID token and of the UserInfo endpoint, if the provider
    /// has one.
    pub(super) async fn build_session(
        &self,
        id_claims: TokenClaims,
        mut tokens: SessionTokens,
        access_token: Option<&str>,
        now: Timestamp,
    ) -> Result<VerifiedPerson, SignInError> {
        let subject = read_string(&id_claims, "sub")?.filter(|subject| subject.len() <= MAX_ID_BYTES);
        let subject = subject.ok_or_else(|| self.log_unusable("the ID token has no `sub`, or one that is too long"))?;
        let sid = read_string(&id_claims, "sid")?;
        let (auth_time, acr) = (id_claims.auth_time(now.as_second()), id_claims.acr());
        let snapshot = self.issuer.current_snapshot(now).await.map_err(SignInError::from_refusal)?;
        let claims = match (snapshot.metadata.userinfo_endpoint.as_deref(), access_token) {
            (Some(endpoint), Some(token)) => {
                let trusted = self.config.authorities.as_ref();
                let text = get_with_token(endpoint, trusted, token).await.map_err(|error| self.log_problem(&error))?;
                let userinfo = TokenClaims::parse(text).map_err(SignInError::from_refusal)?;
                // OpenID Connect Core 1.0, section 5.3.2: otherwise the claims of another person could be substituted.
                if read_string(&userinfo, "sub")?.as_deref() != Some(&subject) {
                    return Err(self.log_unusable("the UserInfo endpoint describes another person"));
                }
                let userinfo = userinfo.remove_claims(&ID_TOKEN_ONLY_CLAIMS);
                tokens.userinfo_claims.extend(userinfo.names().filter(|name| *name != "sub").map(str::to_owned));
                userinfo.add_missing_claims(&id_claims)
            }
            _ => id_claims,
        };
        let claims = claims.remove_claims(&PER_TOKEN_CLAIMS);
        let (role, groups) = self.assess(&claims);
        let display_name = display_name(&claims, None, &self.config.issuer, &subject);
        let other_names = other_names(&claims, &self.config.issuer);
        let person = StoredPerson {
            name: subject_name(&self.config.issuer, &subject),
            role,
            claims: Arc::new(Claims { display_name, groups, other_names, json: claims.json, ..Claims::default() }),
            updated_at: now,
            revoked_at: None,
        };
        let session = ProviderSession {
            issuer: self.config.issuer.clone(),
            subject,
            sid,
            tokens: self.seal_tokens(&tokens)?,
            has_refresh_token: tokens.refresh_token.is_some(),
            auth_time,
            acr,
            ends_at: now.saturating_add(MAX_SESSION_LIFETIME).unwrap_or(now),
        };
        Ok(VerifiedPerson { person, session })
    }

    /// Returns the role of a person, or `None` if they may not sign in, and the groups.
    pub(super) fn assess(&self, claims: &TokenClaims) -> (Option<Role>, Vec<String>) {
        let groups = read_groups(claims, &self.config.groups_claim);
        let is_admitted = self.config.require.iter().all(|(claim, value)| has_value(claims.get(claim), value));
        let role = role_of_groups(&self.config.roles, &groups).filter(|_| is_admitted);
        (role, groups.into_iter().map(str::to_owned).collect())
    }
}

fn read_string(claims: &TokenClaims, name: &'static str) -> Result<Option<String>, SignInError> {
    claims.string(name).map(|text| text.map(str::to_owned)).map_err(SignInError::from_refusal)
}

/// Returns `true` if a claim is this value, or a list that has it.
fn has_value(claim: Option<&Value>, value: &str) -> bool {
    match claim {
        Some(Value::String(text)) => text == value,
        Some(Value::Array(items)) => items.iter().any(|item| item == value),
        Some(Value::Bool(flag)) => flag.to_string() == value,
        Some(Value::Number(number)) => number.to_string() == value,
        _ => false,
    }
}
