//! An issuer: its configuration, and its metadata and keys as they were last read.

use std::{
    fmt::Display,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwapOption;
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    TokenRefusal,
    jwt::UnverifiedJwt,
    key_set::{KeySet, MAX_KEYS, SignatureCheck},
    metadata::{Metadata, MetadataPurpose},
    principal,
    requests::get_json,
};
use countersign_config::TokenIssuer;
use countersign_domain::principal::{KeyThumbprint, Principal};

const MS_PER_SECOND: i64 = 1000;
/// The age from which keys are read again, in milliseconds.
pub(super) const RENEWAL_AGE_MS: i64 = 300 * MS_PER_SECOND;
/// The age up to which keys are used while the issuer does not answer, in milliseconds.
pub(super) const MAX_AGE_MS: i64 = 24 * 3600 * MS_PER_SECOND;
/// The minimum interval between two reads of the keys, in milliseconds.
pub(super) const MIN_READ_INTERVAL_MS: i64 = 10 * MS_PER_SECOND;
/// The minimum interval while no keys are known, in milliseconds.
const RETRY_INTERVAL_MS: i64 = 2 * MS_PER_SECOND;
/// The maximum number of simultaneous introspections of each kind: of tokens that were valid before, and of others.
const MAX_INTROSPECTIONS: usize = 16;
/// The generation of the keys of an issuer that is no longer configured.
const RETIRED_GENERATION: u64 = u64::MAX;

/// An issuer's metadata and keys, as they were read together.
pub(super) struct IssuerSnapshot {
    pub metadata: Metadata,
    pub keys: KeySet,
    /// The time at which the read began, in milliseconds.
    pub read_at: i64,
}

/// A verified JWT, before it is cached.
pub(super) struct VerifiedToken {
    pub principal: Principal,
    /// The thumbprint of the key that signed the token.
    pub signed_by: KeyThumbprint,
    /// The second from which the token is no longer valid.
    pub expires_at: i64,
    /// The time until which the token need not be verified again, in milliseconds.
    pub cached_until: i64,
}

/// A configured issuer, with its metadata and keys as they were last read.
pub(super) struct Issuer {
    pub config: TokenIssuer,
    /// The audiences that denote this gateway.
    pub audiences: Vec<String>,
    /// A number that no other issuer of the same verifier has, and no earlier configuration of this one.
    pub version: u64,
    /// The purpose for which its metadata are read.
    metadata_purpose: MetadataPurpose,
    snapshot: ArcSwapOption<IssuerSnapshot>,
    /// Grows when a key disappears, so that earlier verifications are no longer valid.
    generation: AtomicU64,
    /// The earliest time of the next read, in milliseconds.
    next_read_at: AtomicI64,
    /// The time of the last log entry about a failed introspection, in milliseconds.
    last_warning: AtomicI64,
    /// Held by the only task that reads the keys.
    read_lock: tokio::sync::Mutex<()>,
    /// The permits for introspections of tokens that were valid before.
    known_token_permits: Semaphore,
    /// The permits for introspections of other tokens, which anybody can invent.
    unknown_token_permits: Semaphore,
}

impl Issuer {
    pub(super) fn new(config: TokenIssuer, audiences: Vec<String>, version: u64) -> Self {
        Self {
            metadata_purpose: MetadataPurpose::AccessTokens,
            config,
            audiences,
            version,
            snapshot: ArcSwapOption::empty(),
            generation: AtomicU64::new(0),
            next_read_at: AtomicI64::new(i64::MIN),
            last_warning: AtomicI64::new(0),
            read_lock: tokio::sync::Mutex::default(),
            known_token_permits: Semaphore::new(MAX_INTROSPECTIONS),
            unknown_token_permits: Semaphore::new(MAX_INTROSPECTIONS),
        }
    }

    /// Creates the issuer with which people sign in.
    pub(super) fn for_sign_ins(config: TokenIssuer) -> Self {
        Self { metadata_purpose: MetadataPurpose::SignIns, ..Self::new(config, Vec::new(), 0) }
    }

    /// Returns the generation of the keys. A verification is valid only in the generation in which it was made. Returns
    /// `None` if the issuer is no longer configured.
    pub(super) fn generation(&self) -> Option<u64> {
        Some(self.generation.load(Ordering::Acquire)).filter(|generation| *generation != RETIRED_GENERATION)
    }

    /// Makes all verifications invalid for good.
    pub(super) fn retire(&self) {
        self.generation.store(RETIRED_GENERATION, Ordering::Release);
    }

    /// Returns the last snapshot, unless it is too old.
    pub(super) fn snapshot(&self, now: Timestamp) -> Option<Arc<IssuerSnapshot>> {
        let snapshot = self.snapshot.load_full()?;
        (now.as_millisecond().saturating_sub(snapshot.read_at) < MAX_AGE_MS).then_some(snapshot)
    }

    /// Returns `true` if the keys are so old that they should be renewed.
    pub(super) fn is_stale(&self, now: Timestamp) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.as_ref().is_none_or(|known| now.as_millisecond().saturating_sub(known.read_at) >= RENEWAL_AGE_MS)
    }

    /// Returns `true` if the last read is long enough ago, or the clock was set back.
    pub(super) fn may_read(&self, now: Timestamp) -> bool {
        let wait = self.next_read_at.load(Ordering::Relaxed).saturating_sub(now.as_millisecond());
        // A longer wait shows that the clock was set back: even a failed read adds only its own duration.
        !(1..=6 * MIN_READ_INTERVAL_MS).contains(&wait)
    }

    /// Returns `true` while the keys are being read.
    pub(super) fn is_reading(&self) -> bool {
        self.read_lock.try_lock().is_err()
    }

    /// Waits for the permit to introspect a token that was valid before. For any other token, returns `None` at once if
    /// no permit is free.
    pub(super) async fn acquire_introspection(&self, was_valid: bool) -> Option<SemaphorePermit<'_>> {
        if was_valid {
            self.known_token_permits.acquire().await.ok()
        } else {
            self.unknown_token_permits.try_acquire().ok()
        }
    }

    /// Logs that an introspection failed, unless that was just logged, because clients may send many tokens.
    pub(super) fn warn_of_failed_introspection(&self, error: &impl Display, now: Timestamp) {
        if self.record_warning_if_due(now) {
            tracing::warn!(issuer = %self.config.issuer, %error, "cannot ask the issuer about an access token");
        }
    }

    /// Returns `true` and records the time if the last recorded time is long enough ago, or the clock was set back.
    pub(super) fn record_warning_if_due(&self, now: Timestamp) -> bool {
        let now = now.as_millisecond();
        let is_due = |last: i64| now.saturating_sub(last).saturating_abs() >= MIN_READ_INTERVAL_MS;
        let record = |last| is_due(last).then_some(now);
        self.last_warning.fetch_update(Ordering::Relaxed, Ordering::Relaxed, record).is_ok()
    }

    /// Reads the metadata and the keys again, unless another task has just done so. Boxed, so that its code is not compiled
    /// again in each crate that asks an issuer.
    pub(super) fn renew(self: Arc<Self>, now: Timestamp) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            let _read_lock = self.read_lock.lock().await;
            if !self.may_read(now) {
                return;
            }
            let (started, now) = (Instant::now(), now.as_millisecond());
            // A read that is cancelled counts as well.
            self.next_read_at.store(now.saturating_add(MIN_READ_INTERVAL_MS), Ordering::Relaxed);
            match self.read_snapshot(now).await {
                Ok(snapshot) => self.replace_snapshot(snapshot),
                Err(error) => {
                    tracing::warn!(issuer = %self.config.issuer, %error, "cannot read the metadata and the keys of the issuer");
                    let interval =
                        if self.snapshot.load().is_some() { MIN_READ_INTERVAL_MS } else { RETRY_INTERVAL_MS };
                    let duration = i64::try_from(started.elapsed().as_millis()).unwrap_or(0);
                    self.next_read_at.store(now.saturating_add(interval).saturating_add(duration), Ordering::Relaxed);
                }
            }
        })
    }

    async fn read_snapshot(&self, now: i64) -> Result<IssuerSnapshot, String> {
        let trusted = self.config.authorities.as_ref();
        let metadata = Metadata::read(&self.config.issuer, self.metadata_purpose, trusted).await;
        let metadata = metadata.map_err(|error| error.to_string())?;
        let keys = match &metadata.jwks_uri {
            Some(url) => {
                let document = get_json(url, trusted).await.map_err(|error| format!("{url}: {error}"))?;
                KeySet::parse(&document).map_err(|error| format!("{url}: {error}"))?
            }
            // Such an issuer needs no keys, because it is asked about each token.
            None if self.config.introspection.is_some() => KeySet::default(),
            None => return Err("its metadata has no `jwks_uri`".to_owned()),
        };
        Ok(IssuerSnapshot { metadata, keys, read_at: now })
    }

    /// Replaces the snapshot, and begins a new generation if a key has disappeared.
    pub(super) fn replace_snapshot(&self, snapshot: IssuerSnapshot) {
        let issuer = &self.config.issuer;
        if snapshot.keys.len() == 0 && self.config.introspection.is_none() {
            tracing::warn!(%issuer, "the issuer has no key that the gateway can use");
        }
        let unused_count = snapshot.keys.unused_count;
        if unused_count > 0 {
            tracing::warn!(
                %issuer, unused_count,
                "the issuer publishes more than {MAX_KEYS} keys: the last ones are not used, and tokens that they \
                 signed are refused"
            );
        }
        let keeps_all_keys = self.snapshot.load().as_ref().is_none_or(|old| snapshot.keys.includes(&old.keys));
        self.snapshot.store(Some(Arc::new(snapshot)));
        // The generation changes after the keys, so that a task with the new generation also sees the new keys.
        if !keeps_all_keys && self.generation().is_some() {
            tracing::info!(%issuer, "the issuer removed a key, which ends the access tokens that it signed");
            // An issuer that was retired meanwhile stays retired.
            let _ = self.generation.fetch_update(Ordering::AcqRel, Ordering::Acquire, |generation| {
                (generation != RETIRED_GENERATION).then_some(generation + 1)
            });
        }
    }

    /// Verifies the signature and the claims of a JWT. Returns `None` if the keys must be read first.
    pub(super) fn verify(
        &self,
        token: UnverifiedJwt<'_>,
        now: Timestamp,
    ) -> Option<Result<VerifiedToken, TokenRefusal>> {
        let snapshot = self.snapshot(now)?;
        let UnverifiedJwt { header, signing_input, signature, .. } = &token;
        match snapshot.keys.verify(header.kid.as_deref(), header.alg, signing_input.as_bytes(), signature) {
            SignatureCheck::Verified(key) => Some(self.check_claims(token, key, &snapshot, now)),
            SignatureCheck::Refused(refusal) => Some(Err(refusal)),
            SignatureCheck::UnknownKey => None,
        }
    }

    /// Verifies the signature of a JWT that is not an access token. Reads the keys again if they are old or lack the
    /// key.
    pub(super) async fn verify_signature(
        self: &Arc<Self>,
        token: &UnverifiedJwt<'_>,
        now: Timestamp,
    ) -> Result<Arc<IssuerSnapshot>, TokenRefusal> {
        let UnverifiedJwt { header, signing_input, signature, .. } = token;
        let mut snapshot = self.current_snapshot(now).await?;
        for may_renew in [true, false] {
            match snapshot.keys.verify(header.kid.as_deref(), header.alg, signing_input.as_bytes(), signature) {
                SignatureCheck::Verified(_) => return Ok(snapshot),
                SignatureCheck::Refused(refusal) => return Err(refusal),
                SignatureCheck::UnknownKey if may_renew => {
                    Arc::clone(self).renew(now).await;
                    snapshot = self.snapshot(now).ok_or(TokenRefusal::IssuerUnavailable)?;
                }
                SignatureCheck::UnknownKey => {}
            }
        }
        Err(TokenRefusal::invalid("the token is signed with a key that its issuer does not have"))
    }

    /// Returns the last snapshot. If it is old, it is renewed first, or the running renewal is awaited.
    pub(super) async fn current_snapshot(
        self: &Arc<Self>,
        now: Timestamp,
    ) -> Result<Arc<IssuerSnapshot>, TokenRefusal> {
        if self.is_stale(now) && (self.may_read(now) || self.snapshot(now).is_none()) {
            Arc::clone(self).renew(now).await;
        }
        self.snapshot(now).ok_or(TokenRefusal::IssuerUnavailable)
    }

    /// Checks the claims of a JWT whose signature was verified.
    fn check_claims(
        &self,
        token: UnverifiedJwt<'_>,
        signed_by: KeyThumbprint,
        snapshot: &IssuerSnapshot,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenRefusal> {
        let is_marked = token.is_marked_as_access_token()?;
        let expires_at = token.claims.check_jwt(&self.audiences, is_marked, now.as_second())?;
        let subject = token.claims.string("sub")?.map(str::to_owned);
        let subject = subject.ok_or_else(|| TokenRefusal::invalid("the token has no `sub`"))?;
        let principal = principal::to_principal(&self.config, &subject, token.claims, now)?;
        // Keys that are due for renewal are used while the issuer does not answer, but each verification counts only
        // until the keys may be read again.
        let renewal = snapshot.read_at.saturating_add(RENEWAL_AGE_MS);
        let cached_until = renewal.max(now.as_millisecond().saturating_add(MIN_READ_INTERVAL_MS));
        let cached_until =
            cached_until.min(snapshot.read_at.saturating_add(MAX_AGE_MS)).min(expires_at.saturating_mul(MS_PER_SECOND));
        Ok(VerifiedToken { principal, signed_by, expires_at, cached_until })
    }
}
