//! An issuer: its configuration, and its metadata and keys as it last published them.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    Refusal,
    jwt::UnverifiedJwt,
    keys::{KeySearch, KeySet, MAX_KEYS},
    metadata::Metadata,
    principal,
    requests::get_json,
};
use countersign_config::TokenIssuer;
use countersign_domain::principal::{Principal, SecretHash};

const SECOND: i64 = 1000;
/// The age from which keys are renewed, in milliseconds as all times here.
pub(super) const RENEWAL_AGE: i64 = 300 * SECOND;
/// The age up to which keys are valid while the issuer does not answer.
pub(super) const MAX_AGE: i64 = 24 * 3600 * SECOND;
/// The minimum time between two questions for the keys.
pub(super) const QUESTION_INTERVAL: i64 = 10 * SECOND;
/// The same while no keys are known.
const RETRY_INTERVAL: i64 = 2 * SECOND;
/// The maximum number of simultaneous questions about opaque tokens that were valid before, and of those about others.
const MAX_QUESTIONS: usize = 16;
/// The generation of an issuer that is no longer configured.
const RETIRED_GENERATION: u64 = u64::MAX;

/// An issuer's metadata and keys, as they were read together.
pub(super) struct IssuerSnapshot {
    pub metadata: Metadata,
    pub keys: KeySet,
    /// The time of the question, in milliseconds.
    pub read_at: i64,
}

/// A verified JWT, before it is remembered.
pub(super) struct VerifiedToken {
    pub principal: Principal,
    pub signed_by: SecretHash,
    pub expires_at: i64,
    /// The time until which the token need not be verified again, in milliseconds.
    pub cached_until: i64,
}

/// A configured issuer and what it last published.
pub(super) struct Issuer {
    pub config: TokenIssuer,
    /// The audiences that mean this gateway.
    pub audiences: Vec<String>,
    /// Differs from that of every other issuer and of every earlier configuration of this one.
    pub version: u64,
    snapshot: ArcSwapOption<IssuerSnapshot>,
    /// Grows when a key disappears, so that no earlier verification counts any longer.
    generation: AtomicU64,
    /// The time of the next question that is permitted, in milliseconds.
    next_question: AtomicI64,
    /// The time of the last log entry about an unanswered question about a token, in milliseconds.
    last_warning: AtomicI64,
    /// Held by the only question for the keys.
    question: tokio::sync::Mutex<()>,
    /// The turns of questions about opaque tokens that were valid before.
    known_tokens: Semaphore,
    /// The turns of questions about other opaque tokens, which anybody can invent.
    unknown_tokens: Semaphore,
}

impl Issuer {
    pub(super) fn new(config: TokenIssuer, audiences: Vec<String>, version: u64) -> Self {
        Self {
            config,
            audiences,
            version,
            snapshot: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            next_question: AtomicI64::new(i64::MIN),
            last_warning: AtomicI64::new(0),
            question: tokio::sync::Mutex::default(),
            known_tokens: Semaphore::new(MAX_QUESTIONS),
            unknown_tokens: Semaphore::new(MAX_QUESTIONS),
        }
    }

    /// Returns the generation of the keys: a verification counts only in the generation in which it was made. Returns
    /// `None` if the issuer is no longer configured.
    pub(super) fn generation(&self) -> Option<u64> {
        Some(self.generation.load(Ordering::Acquire)).filter(|generation| *generation != RETIRED_GENERATION)
    }

    /// Ends all verifications for good.
    pub(super) fn retire(&self) {
        self.generation.store(RETIRED_GENERATION, Ordering::Release);
    }

    /// Returns the last snapshot, unless it is too old.
    pub(super) fn snapshot(&self, now: Timestamp) -> Option<Arc<IssuerSnapshot>> {
        let snapshot = self.snapshot.load_full()?;
        (now.as_millisecond().saturating_sub(snapshot.read_at) < MAX_AGE).then_some(snapshot)
    }

    /// Returns `true` if the keys are so old that they should be renewed.
    pub(super) fn is_stale(&self, now: Timestamp) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.as_ref().is_none_or(|known| now.as_millisecond().saturating_sub(known.read_at) >= RENEWAL_AGE)
    }

    /// Returns `true` if the last question is long enough ago, or the clock was set back.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        let wait = self.next_question.load(Ordering::Relaxed).saturating_sub(now.as_millisecond());
        // A failed question delays the next one by its own duration, too.
        !(1..=6 * QUESTION_INTERVAL).contains(&wait)
    }

    /// Returns `true` while a question for the keys runs.
    pub(super) fn is_being_asked(&self) -> bool {
        self.question.try_lock().is_err()
    }

    /// Waits for a turn to ask about a token that was valid before. For any other token, returns `None` at once if no
    /// turn is free.
    pub(super) async fn take_turn(&self, was_valid: bool) -> Option<SemaphorePermit<'_>> {
        if was_valid { self.known_tokens.acquire().await.ok() } else { self.unknown_tokens.try_acquire().ok() }
    }

    /// Logs that the issuer did not answer about a token, unless that was just logged. Clients may send many tokens.
    pub(super) fn warn_of_unanswered_question(&self, error: &impl Display, now: Timestamp) {
        let now = now.as_millisecond();
        let last = self.last_warning.swap(now, Ordering::Relaxed);
        if now.saturating_sub(last).saturating_abs() >= QUESTION_INTERVAL {
            tracing::warn!(issuer = %self.config.issuer, %error, "cannot ask the issuer about an access token");
        }
    }

    /// Reads metadata and keys, unless another task has just done so.
    pub(super) async fn renew(self: Arc<Self>, now: Timestamp) {
        let _question = self.question.lock().await;
        if !self.may_ask(now) {
            return;
        }
        let (started, now) = (Instant::now(), now.as_millisecond());
        // A question that is cancelled counts, too.
        self.next_question.store(now.saturating_add(QUESTION_INTERVAL), Ordering::Relaxed);
        match self.read_snapshot(now).await {
            Ok(snapshot) => self.replace_snapshot(snapshot),
            Err(error) => {
                tracing::warn!(issuer = %self.config.issuer, %error, "cannot read the metadata and the keys of the identity provider");
                let interval = if self.snapshot.load().is_some() { QUESTION_INTERVAL } else { RETRY_INTERVAL };
                let duration = i64::try_from(started.elapsed().as_millis()).unwrap_or(0);
                self.next_question.store(now.saturating_add(interval).saturating_add(duration), Ordering::Relaxed);
            }
        }
    }

    async fn read_snapshot(&self, now: i64) -> Result<IssuerSnapshot, String> {
        let trusted = self.config.authorities.as_ref();
        let metadata = Metadata::read(&self.config.issuer, trusted).await.map_err(|error| error.to_string())?;
        let keys = match &metadata.jwks_uri {
            Some(url) => {
                let document = get_json(url, trusted).await.map_err(|error| format!("{url}: {error}"))?;
                KeySet::parse(&document).map_err(|error| format!("{url}: {error}"))?
            }
            // The issuer is asked about each token.
            None if self.config.introspection.is_some() => KeySet::default(),
            None => return Err("its metadata has no `jwks_uri`".to_owned()),
        };
        Ok(IssuerSnapshot { metadata, keys, read_at: now })
    }

    pub(super) fn replace_snapshot(&self, snapshot: IssuerSnapshot) {
        let issuer = &self.config.issuer;
        if snapshot.keys.len() == 0 && self.config.introspection.is_none() {
            tracing::warn!(%issuer, "the identity provider has no key that the gateway can use");
        }
        if snapshot.keys.left_out > 0 {
            let left_out = snapshot.keys.left_out;
            tracing::warn!(
                %issuer, left_out,
                "the identity provider publishes more than {MAX_KEYS} keys: the last ones are not used, and tokens that they \
                 signed are refused"
            );
        }
        let keeps_all = self.snapshot.load().as_ref().is_none_or(|old| snapshot.keys.includes(&old.keys));
        self.snapshot.store(Some(Arc::new(snapshot)));
        // A task that reads the new generation also reads the new keys.
        if !keeps_all && self.generation().is_some() {
            tracing::info!(%issuer, "the identity provider removed a key, which ends the access tokens that it signed");
            // An issuer that is retired meanwhile stays retired.
            let _ = self.generation.fetch_update(Ordering::AcqRel, Ordering::Acquire, |generation| {
                (generation != RETIRED_GENERATION).then_some(generation + 1)
            });
        }
    }

    /// Verifies the signature and the claims of a JWT. `None` if the issuer must be asked for its keys.
    pub(super) fn verify(&self, token: UnverifiedJwt<'_>, now: Timestamp) -> Option<Result<VerifiedToken, Refusal>> {
        let snapshot = self.snapshot(now)?;
        let UnverifiedJwt { header, signed, signature, .. } = &token;
        match snapshot.keys.verify(header.kid.as_deref(), header.alg, signed.as_bytes(), signature) {
            KeySearch::Verified(key) => Some(self.check(token, key, &snapshot, now)),
            KeySearch::Refused(refusal) => Some(Err(refusal)),
            KeySearch::Unknown => None,
        }
    }

    /// Verifies the signature of a JWT that is no access token. Asks the issuer for its keys if they are missing or
    /// old.
    pub(super) async fn verify_signature(
        self: &Arc<Self>,
        token: &UnverifiedJwt<'_>,
        now: Timestamp,
    ) -> Result<Arc<IssuerSnapshot>, Refusal> {
        let UnverifiedJwt { header, signed, signature, .. } = token;
        let mut snapshot = self.current_snapshot(now).await?;
        for may_renew in [true, false] {
            match snapshot.keys.verify(header.kid.as_deref(), header.alg, signed.as_bytes(), signature) {
                KeySearch::Verified(_) => return Ok(snapshot),
                KeySearch::Refused(refusal) => return Err(refusal),
                KeySearch::Unknown if may_renew => {
                    Arc::clone(self).renew(now).await;
                    snapshot = self.snapshot(now).ok_or(Refusal::IssuerUnavailable)?;
                }
                KeySearch::Unknown => {}
            }
        }
        Err(Refusal::invalid("the token is signed with a key that its issuer does not have"))
    }

    /// Returns the last snapshot, after renewing it if it is old, or after the renewal that already runs.
    pub(super) async fn current_snapshot(self: &Arc<Self>, now: Timestamp) -> Result<Arc<IssuerSnapshot>, Refusal> {
        if self.is_stale(now) && (self.may_ask(now) || self.snapshot(now).is_none()) {
            Arc::clone(self).renew(now).await;
        }
        self.snapshot(now).ok_or(Refusal::IssuerUnavailable)
    }

    /// Checks the claims of a JWT whose signature was verified.
    fn check(
        &self,
        token: UnverifiedJwt<'_>,
        signed_by: SecretHash,
        snapshot: &IssuerSnapshot,
        now: Timestamp,
    ) -> Result<VerifiedToken, Refusal> {
        let is_marked = token.is_marked_as_access_token()?;
        let expires_at = token.claims.check_jwt(&self.audiences, is_marked, now.as_second())?;
        let subject = token.claims.text("sub")?.map(str::to_owned);
        let subject = subject.ok_or_else(|| Refusal::invalid("the token has no `sub`"))?;
        let principal = principal::to_principal(&self.config, &subject, token.claims, now)?;
        // While the issuer does not answer, old keys are used for a short time at once.
        let renewal = snapshot.read_at.saturating_add(RENEWAL_AGE);
        let cached_until = renewal.max(now.as_millisecond().saturating_add(QUESTION_INTERVAL));
        let cached_until =
            cached_until.min(snapshot.read_at.saturating_add(MAX_AGE)).min(expires_at.saturating_mul(SECOND));
        Ok(VerifiedToken { principal, signed_by, expires_at, cached_until })
    }
}
