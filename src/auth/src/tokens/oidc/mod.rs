//! Signs people in with an identity provider (OpenID Connect Core 1.0, authorization code flow with PKCE).
//!
//! A sign-in needs no table: its secrets travel in a sealed cookie, so that any node can finish it. What the provider says is
//! hostile input, and none of its texts reaches a person.

mod exchange;
mod id_token;
mod logout_token;
mod problem;

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use url::{Url, form_urlencoded};

pub use self::{logout_token::LogoutNotice, problem::SignInProblem};
use super::{
    Refusal,
    claims::TokenClaims,
    issuer::{Issuer, Provider},
};
use countersign_config::{Config, OidcConfig, TokenIssuer};
use countersign_domain::principal::Claims;
use countersign_runtime::{sealing::Sealer, secret};
use countersign_store::people::{ProviderSession, StoredPerson};

/// The cookie of a sign-in that has begun.
pub const COOKIE: &str = "countersign_sign_in";
/// The time within which the provider must send the browser back.
pub const MAX_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// The time after which a person must sign in again, however often the sign-in is used.
const MAX_LIFETIME: SignedDuration = SignedDuration::from_hours(7 * 24);
/// The most bytes of the parameters with which a browser comes back.
const MAX_QUERY_LEN: usize = 16 * 1024;
const FLOW_CONTEXT: &[u8] = b"countersign.sign-in.1";
const TOKENS_CONTEXT: &[u8] = b"countersign.tokens.1";

/// The gateway as a client of the configured identity provider. It is shared by all threads, and asks the provider on threads of
/// actix only.
pub struct OidcClient {
    provider: ArcSwapOption<ConfiguredProvider>,
    /// `None` if the store has no key to seal with.
    sealer: Option<Sealer>,
    /// The address of the gateway, without a slash at its end.
    public_url: String,
}

/// The provider, with what it said about itself.
struct ConfiguredProvider {
    config: OidcConfig,
    issuer: Arc<Issuer>,
}

/// The secrets of a sign-in that has begun.
#[derive(Serialize, Deserialize)]
struct Flow {
    issuer: String,
    state: String,
    nonce: String,
    verifier: String,
    started_at: Timestamp,
}

/// A sign-in that begins.
pub struct StartedSignIn {
    /// The provider's page.
    pub url: String,
    /// The value of [`COOKIE`].
    pub cookie: String,
}

/// A person who signed in at the provider, or whose session was renewed.
#[derive(Debug, PartialEq, Eq)]
pub struct VerifiedPerson {
    pub person: StoredPerson,
    pub session: ProviderSession,
}

/// The provider's tokens that a sign-in keeps, before they are sealed.
#[derive(Serialize, Deserialize)]
struct KeptTokens {
    id_token: String,
    refresh_token: Option<String>,
}

/// The provider's answer to the question about a session.
pub enum Renewal {
    Renewed(Box<VerifiedPerson>),
    /// The provider refuses to renew the session, or nobody can ask for it any more.
    Ended,
    /// The provider is away or cannot answer. It may have replaced the refresh token before, which the session then has.
    Unknown(Option<ProviderSession>),
}

impl OidcClient {
    #[must_use]
    pub fn new(config: &Config, sealer: Option<Sealer>) -> Self {
        let public_url = config.public_url.as_deref().unwrap_or_default().trim_end_matches('/').to_owned();
        let client = Self { provider: ArcSwapOption::empty(), sealer, public_url };
        client.set_provider(config.auth.oidc.as_ref());
        client
    }

    /// Replaces the provider.
    pub fn set_provider(&self, config: Option<&OidcConfig>) {
        let old = self.provider.load();
        let provider = config.map(|config| {
            let issuer = match &*old {
                Some(old) if old.config.issuer == config.issuer => Arc::clone(&old.issuer),
                _ => Arc::new(Issuer::new(
                    TokenIssuer {
                        issuer: config.issuer.clone(),
                        audiences: Vec::new(),
                        roles: Default::default(),
                        groups_claim: config.groups_claim.clone(),
                        introspection: None,
                    },
                    Vec::new(),
                    0,
                )),
            };
            Arc::new(ConfiguredProvider { config: config.clone(), issuer })
        });
        self.provider.store(provider);
    }

    /// Returns the configuration of the provider, if people sign in with one.
    #[must_use]
    pub fn config(&self) -> Option<OidcConfig> {
        self.provider.load().as_ref().map(|provider| provider.config.clone())
    }

    fn configured(&self) -> Result<(Arc<ConfiguredProvider>, &Sealer), SignInProblem> {
        let provider = self.provider.load_full().ok_or(SignInProblem::NotConfigured)?;
        Ok((provider, self.sealer.as_ref().ok_or(SignInProblem::NotConfigured)?))
    }

    /// Returns the person with the role that their last claims give now. People of another provider have no role.
    #[must_use]
    pub fn reassess(&self, person: &StoredPerson) -> StoredPerson {
        let provider = self.provider.load_full().filter(|provider| {
            let subject = person.name.strip_prefix(&provider.config.issuer);
            subject.is_some_and(|subject| subject.starts_with('#'))
        });
        let claims = TokenClaims::parse(person.claims.json.clone()).ok();
        let Some((provider, claims)) = provider.zip(claims) else {
            return StoredPerson { role: None, ..person.clone() };
        };
        let (role, groups) = provider.assess(&claims);
        let claims = Arc::new(Claims { groups, ..(*person.claims).clone() });
        StoredPerson { role, claims, ..person.clone() }
    }

    /// Begins a sign-in.
    ///
    /// # Errors
    /// Returns why it cannot begin.
    pub async fn begin(&self, now: Timestamp) -> Result<StartedSignIn, SignInProblem> {
        let (provider, sealer) = self.configured()?;
        let ConfiguredProvider { config, issuer } = &*provider;
        let known = issuer.current_provider(now).await.map_err(SignInProblem::from_refusal)?;
        let endpoint = known.metadata.sign_in.authorization.as_deref().ok_or(SignInProblem::ProviderUnusable)?;
        let random = || secret::generate("").map_err(|_| SignInProblem::Failed);
        let (issuer, state, nonce, verifier) = (config.issuer.clone(), random()?, random()?, random()?);
        let flow = Flow { issuer, state, nonce, verifier, started_at: now };
        let challenge = URL_SAFE_NO_PAD.encode(secret::hash(flow.verifier.as_bytes()));
        let mut url = Url::parse(endpoint).map_err(|_| SignInProblem::ProviderUnusable)?;
        url.query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &config.client_id)
            .append_pair("redirect_uri", &self.redirect_uri())
            .append_pair("scope", &config.scopes.join(" "))
            .append_pair("state", &flow.state)
            .append_pair("nonce", &flow.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        // OpenID Connect Core 1.0, section 11.
        if config.scopes.iter().any(|scope| scope == "offline_access") {
            url.query_pairs_mut().append_pair("prompt", "consent");
        }
        let json = serde_json::to_string(&flow).map_err(|_| SignInProblem::Failed)?;
        let cookie = sealer.seal(FLOW_CONTEXT, &json).map_err(|_| SignInProblem::Failed)?;
        Ok(StartedSignIn { url: url.into(), cookie })
    }

    /// Finishes a sign-in with the query of the browser's request and its [`COOKIE`].
    ///
    /// # Errors
    /// Returns why nobody is signed in.
    pub async fn finish(
        &self,
        query: &str,
        cookie: Option<&str>,
        now: Timestamp,
    ) -> Result<VerifiedPerson, SignInProblem> {
        let (provider, sealer) = self.configured()?;
        let flow = cookie.and_then(|cookie| sealer.open(FLOW_CONTEXT, cookie)).ok_or(SignInProblem::Interrupted)?;
        let flow: Flow = serde_json::from_str(&flow).map_err(|_| SignInProblem::Interrupted)?;
        if now.duration_since(flow.started_at).abs() >= MAX_DURATION || flow.issuer != provider.config.issuer {
            return Err(SignInProblem::Interrupted);
        }
        let known = provider.issuer.current_provider(now).await.map_err(SignInProblem::from_refusal)?;
        let code = read_answer(query, &flow, &known)?;
        let tokens = provider.redeem_code(&known, &code, &flow.verifier, &self.redirect_uri()).await?;
        let id_token = tokens.id_token.clone().ok_or(SignInProblem::ProviderUnusable)?;
        let claims = provider.verify_id_token(&id_token, Some(&flow.nonce), now).await?;
        let verified = provider.describe(claims, tokens, id_token, now).await?;
        let person = verified.person;
        if person.role.is_none() {
            tracing::info!(person = person.name, "a person has no entry here, by their groups or claims");
            return Err(SignInProblem::NoEntry);
        }
        let session = seal_session(sealer, verified.session, verified.tokens)?;
        Ok(VerifiedPerson { person, session })
    }

    /// Asks the provider whether the person of a session is still what they were.
    pub async fn renew(&self, session: &ProviderSession, now: Timestamp) -> Renewal {
        let Ok((provider, sealer)) = self.configured() else { return Renewal::Ended };
        let kept = sealer.open(TOKENS_CONTEXT, &session.tokens);
        let kept = kept.and_then(|json| serde_json::from_str::<KeptTokens>(&json).ok());
        let Some(KeptTokens { id_token, refresh_token: Some(refresh_token) }) = kept else { return Renewal::Ended };
        if session.issuer != provider.config.issuer {
            return Renewal::Ended;
        }
        let unknown = |problem: SignInProblem, tokens: Option<KeptTokens>| {
            tracing::warn!(?problem, issuer = session.issuer, "the provider could not be asked about a person");
            Renewal::Unknown(tokens.and_then(|tokens| seal_session(sealer, session.clone(), tokens).ok()))
        };
        let mut answer = match provider.redeem_refresh_token(&refresh_token, now).await {
            Ok(answer) => answer,
            Err(SignInProblem::Denied) => return Renewal::Ended,
            Err(problem) => return unknown(problem, None),
        };
        let refresh_token = answer.refresh_token.get_or_insert(refresh_token).clone();
        let renewed = match provider.describe_renewed(session, &id_token, answer, now).await {
            Ok(renewed) => renewed,
            Err(problem) => {
                return unknown(problem, Some(KeptTokens { id_token, refresh_token: Some(refresh_token) }));
            }
        };
        match seal_session(sealer, renewed.session, renewed.tokens) {
            Ok(session) => Renewal::Renewed(Box::new(VerifiedPerson { person: renewed.person, session })),
            Err(problem) => unknown(problem, None),
        }
    }

    /// Returns the provider's page that ends a session there, if it has one.
    #[must_use]
    pub fn end_session_url(&self, session: &ProviderSession, now: Timestamp) -> Option<String> {
        let (provider, sealer) = self.configured().ok()?;
        if provider.config.issuer != session.issuer {
            return None;
        }
        let known = provider.issuer.provider(now)?;
        let mut url = Url::parse(known.metadata.sign_in.end_session.as_deref()?).ok()?;
        let tokens: KeptTokens = serde_json::from_str(&sealer.open(TOKENS_CONTEXT, &session.tokens)?).ok()?;
        url.query_pairs_mut()
            .append_pair("id_token_hint", &tokens.id_token)
            .append_pair("client_id", &provider.config.client_id)
            .append_pair("post_logout_redirect_uri", &format!("{}/", self.public_url));
        Some(url.into())
    }

    /// Verifies a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6).
    ///
    /// # Errors
    /// Returns why the token is refused.
    pub async fn verify_logout_token(&self, token: &str, now: Timestamp) -> Result<LogoutNotice, Refusal> {
        let provider = self.provider.load_full();
        let provider = provider.ok_or_else(|| Refusal::invalid("no identity provider is configured"))?;
        provider.verify_logout_token(token, now).await
    }

    fn redirect_uri(&self) -> String {
        format!("{}/api/sign-in/callback", self.public_url)
    }
}

/// Reads the code from the query with which a browser comes back.
fn read_answer(query: &str, flow: &Flow, known: &Provider) -> Result<String, SignInProblem> {
    if query.len() > MAX_QUERY_LEN {
        return Err(SignInProblem::Interrupted);
    }
    // A repeated parameter could be read in two ways.
    let find = |name: &str| {
        let mut all = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == name).map(|(_, value)| value);
        match (all.next(), all.next()) {
            (Some(value), None) => Ok(Some(value.into_owned())),
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(SignInProblem::Interrupted),
        }
    };
    let hash = |text: &str| secret::hash(text.as_bytes());
    let state = find("state")?.ok_or(SignInProblem::Interrupted)?;
    if !secret::is_same_hash(&hash(&state), &hash(&flow.state)) {
        return Err(SignInProblem::Interrupted);
    }
    // RFC 9207, section 2.4: also for errors.
    match find("iss")? {
        Some(issuer) if issuer != flow.issuer => return Err(SignInProblem::ProviderUnusable),
        None if known.metadata.sign_in.names_issuer => return Err(SignInProblem::ProviderUnusable),
        _ => {}
    }
    if let Some(error) = find("error")? {
        tracing::info!(%error, "the provider did not sign a person in");
        return Err(SignInProblem::Denied);
    }
    find("code")?.filter(|code| !code.is_empty()).ok_or(SignInProblem::ProviderUnusable)
}

fn seal_session(
    sealer: &Sealer,
    session: ProviderSession,
    tokens: KeptTokens,
) -> Result<ProviderSession, SignInProblem> {
    let json = serde_json::to_string(&tokens).map_err(|_| SignInProblem::Failed)?;
    let tokens = sealer.seal(TOKENS_CONTEXT, &json).map_err(|_| SignInProblem::Failed)?;
    Ok(ProviderSession { tokens, ..session })
}

#[cfg(test)]
mod tests;
