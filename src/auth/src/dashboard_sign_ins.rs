//! Manages sign-ins of browsers to the dashboard. A sign-in has two secrets: a cookie that scripts cannot read, and a
//! secret that only the page has.
//!
//! The cookie alone authorizes nothing. Otherwise another site, or another port of this host with the same cookie,
//! could act for the person. Both secrets are stored as hashes, and the number of sign-ins is bounded. A sign-in that
//! another process ended is refused within [`MAX_KEY_AGE`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use actix_web::cookie::{Cookie, SameSite, time::Duration as CookieDuration};
use jiff::{SignedDuration, Timestamp};

use super::{
    Authenticator, OriginRules, OriginVerdict,
    authenticator::MAX_KEY_AGE,
    stored_credentials::{StoredCredentials, report_unavailable},
};
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::secret;
use countersign_store::{keys::SignIn, people::ProviderSession};

/// The name of the cookie of a sign-in.
pub const SESSION_COOKIE: &str = "countersign_session";
/// The header with the secret of the page.
pub const SECRET_HEADER: &str = "x-countersign-secret";
/// The idle time after which a sign-in ends.
pub const MAX_IDLE: SignedDuration = SignedDuration::from_hours(12);
/// The maximum number of sign-ins of all principals. The least recently used one is evicted.
const MAX_SIGN_INS: usize = 4096;
/// The maximum number of sign-ins of one principal.
const MAX_SIGN_INS_PER_PRINCIPAL: usize = 64;
/// The maximum number of cookies named [`SESSION_COOKIE`] that are checked. Other ports of the host may set some, too.
const MAX_COOKIES: usize = 8;
/// The minimum interval at which uses of a sign-in are stored, because each is a durable write.
const MIN_STORE_INTERVAL: SignedDuration = SignedDuration::from_mins(10);

/// A cached sign-in.
struct CachedSignIn {
    sign_in: SignIn,
    /// The time of the last use that was stored.
    use_stored_at: Timestamp,
    checked_at: Instant,
}

/// A principal who signs in, with the credential of the sign-in. A code of `countersign open` leaves none.
#[derive(Debug, PartialEq, Eq)]
pub struct SignInSubject {
    pub principal: Arc<Principal>,
    /// The hash of the key.
    pub key: Option<SecretHash>,
    /// The session at the identity provider.
    pub session: Option<ProviderSession>,
}

/// A new sign-in, with its secrets for the browser.
pub struct NewSignIn {
    pub cookie: Cookie<'static>,
    /// The secret for the page, which keeps it in `sessionStorage`.
    pub secret: String,
    pub principal: Arc<Principal>,
    pub expires_at: Timestamp,
}

/// The sign-ins of browsers to this gateway.
pub struct DashboardSignIns {
    authenticator: Arc<Authenticator>,
    store: Arc<StoredCredentials>,
    /// Sign-ins by the hash of the page's secret. Those that ended elsewhere are removed when somebody signs in, or when
    /// there are [`MAX_SIGN_INS`].
    cached: Mutex<HashMap<SecretHash, CachedSignIn>>,
    secure_cookies: bool,
}

impl DashboardSignIns {
    /// Reads the sign-ins from the store. Begins without any if the store cannot be read; they are then read when used.
    pub fn new(authenticator: Arc<Authenticator>, store: Arc<StoredCredentials>, rules: &OriginRules) -> Self {
        let all = store.reader().sign_ins().map_err(report_unavailable).unwrap_or_default();
        let cached = all.into_iter().map(|sign_in| (sign_in.id, CachedSignIn::new(sign_in))).collect();
        Self { authenticator, store, cached: Mutex::new(cached), secure_cookies: rules.browsers_use_https() }
    }

    pub const fn authenticator(&self) -> &Arc<Authenticator> {
        &self.authenticator
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SecretHash, CachedSignIn>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the sign-in with this id if it has not ended. It is read from the store if the cached one is older than
    /// [`MAX_KEY_AGE`].
    fn find_live(&self, id: &SecretHash, now: Timestamp) -> Result<Option<SignIn>, McpError> {
        if let Some(cached) = self.lock().get(id).filter(|cached| cached.checked_at.elapsed() < MAX_KEY_AGE) {
            return Ok(Some(cached.sign_in.clone()).filter(|sign_in| is_live(sign_in, now)));
        }
        let stored = self.store.reader().sign_in(id).map_err(report_unavailable)?;
        let mut all = self.lock();
        let Some(stored) = stored else {
            all.remove(id);
            return Ok(None);
        };
        let mut fresh = CachedSignIn::new(stored);
        if let Some(before) = all.get(id) {
            fresh.sign_in.last_used = fresh.sign_in.last_used.max(before.sign_in.last_used);
        }
        let live_sign_in = Some(fresh.sign_in.clone()).filter(|sign_in| is_live(sign_in, now));
        if live_sign_in.is_some() {
            if all.len() >= MAX_SIGN_INS && !all.contains_key(id) {
                // Some of these ended elsewhere. The others are read again when they are used.
                all.retain(|_, cached| cached.checked_at.elapsed() < MAX_KEY_AGE);
            }
            all.insert(*id, fresh);
        }
        Ok(live_sign_in)
    }

    /// Signs in a principal. A browser that is already signed in as the same principal keeps its cookie, so that its other
    /// tabs stay signed in.
    ///
    /// # Errors
    /// `FORBIDDEN` for agents; `STORE_UNAVAILABLE`; `INTERNAL_ERROR` if there is no source of randomness.
    pub fn sign_in(&self, subject: SignInSubject, cookies: &[String], now: Timestamp) -> Result<NewSignIn, McpError> {
        let SignInSubject { principal, key, session } = subject;
        if !principal.role.may_view() {
            return Err(McpError::new(ErrorKind::Forbidden, "this key is an agent's; the dashboard is for people"));
        }
        let page_secret = secret::generate("")?;
        let fresh_cookie = secret::generate("")?;
        // The cache does not suffice, because another process may have signed somebody in or out.
        let stored = self.store.reader().sign_ins().map_err(report_unavailable)?;
        let mut all: HashMap<_, _> = stored.into_iter().map(|sign_in| (sign_in.id, sign_in)).collect();
        let mut removed_ids: Vec<SecretHash> = all.values().filter(|s| !is_live(s, now)).map(|s| s.id).collect();
        all.retain(|_, s| is_live(s, now));
        let kept_cookie = cookies.iter().take(MAX_COOKIES).find(|value| {
            let hash = secret::hash(value.as_bytes());
            all.values()
                .any(|s| s.principal.name == principal.name && s.key == key && secret::is_same_hash(&s.cookie, &hash))
        });
        let cookie = kept_cookie.cloned().unwrap_or(fresh_cookie);
        while all.values().filter(|s| s.principal.name == principal.name).count() >= MAX_SIGN_INS_PER_PRINCIPAL {
            removed_ids.extend(evict(&mut all, Some(&principal.name)));
        }
        while all.len() >= MAX_SIGN_INS {
            removed_ids.extend(evict(&mut all, None));
        }
        let id = secret::hash(page_secret.as_bytes());
        let cookie_hash = secret::hash(cookie.as_bytes());
        let refreshed_at = session.as_ref().filter(|session| session.has_refresh_token).map(|_| now);
        let sign_in = SignIn {
            id,
            cookie: cookie_hash,
            principal: Arc::clone(&principal),
            key,
            last_used: now,
            session,
            refreshed_at,
        };
        let expires_at = expiry(&sign_in);
        self.store.writer().put_sign_in(&sign_in, &removed_ids).map_err(report_unavailable)?;
        let mut cached = self.lock();
        cached.retain(|id, _| all.contains_key(id));
        cached.insert(id, CachedSignIn::new(sign_in));
        drop(cached);
        Ok(NewSignIn { cookie: self.build_cookie(cookie), secret: page_secret, principal, expires_at })
    }

    /// Returns the identity of a request with both secrets of one sign-in.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if a secret is missing or wrong, or if the key behind the sign-in was revoked;
    /// `STORE_UNAVAILABLE` if that cannot be determined.
    pub fn authenticate(
        &self,
        cookies: &[String],
        secret: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Identity, McpError> {
        let refused = || McpError::new(ErrorKind::Unauthorized, "not signed in");
        let secret = secret.filter(|secret| secret.len() <= 128).ok_or_else(refused)?;
        let id = secret::hash(secret);
        let sign_in = self.find_live(&id, now)?.ok_or_else(refused)?;
        if !has_hash(&hash_cookies(cookies), &sign_in.cookie) {
            return Err(refused());
        }
        self.record_use(&id, now);
        self.check_key(&id, sign_in.key)?;
        Ok(Identity { principal: sign_in.principal, credential: Credential::SignIn(id) })
    }

    fn record_use(&self, id: &SecretHash, now: Timestamp) {
        let mut all = self.lock();
        let Some(cached) = all.get_mut(id) else { return };
        cached.sign_in.last_used = cached.sign_in.last_used.max(now);
        if now.duration_since(cached.use_stored_at) >= MIN_STORE_INTERVAL {
            cached.use_stored_at = now;
            let id = *id;
            self.store.record_use(move |writer| writer.use_sign_in(&id, now));
        }
    }

    /// Returns `true` if one of the cookies belongs to a cached sign-in, even if another process has ended it. This
    /// authorizes nothing.
    pub fn is_signed_in(&self, cookies: &[String], now: Timestamp) -> bool {
        let hashes = hash_cookies(cookies);
        let cached = self.lock();
        let live = cached.values().map(|cached| &cached.sign_in).filter(|sign_in| is_live(sign_in, now));
        live.fold(false, |found, sign_in| found | has_hash(&hashes, &sign_in.cookie))
    }

    /// Checks that the key with which the person signed in, if any, is still valid. Removes the sign-in of a revoked
    /// key.
    fn check_key(&self, id: &SecretHash, key: Option<SecretHash>) -> Result<(), McpError> {
        let Some(key) = key else { return Ok(()) };
        self.authenticator.recheck_key(&key).map(drop).inspect_err(|error| {
            if error.kind == ErrorKind::Unauthorized {
                self.lock().remove(id);
                // If this fails, each use of the sign-in is refused all the same.
                let _ = self.store.writer().forget_sign_ins(&[*id]).map_err(report_unavailable);
            }
        })
    }

    /// Checks, without asking an issuer, that the credential of an open stream is still valid, as [`Authenticator::check`] does
    /// for all credentials but sign-ins.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if it was revoked, signed out or idle for too long; `STORE_UNAVAILABLE` if that cannot be
    /// determined.
    pub fn check_credential(&self, identity: &Identity, now: Timestamp) -> Result<(), McpError> {
        let Credential::SignIn(id) = &identity.credential else { return self.authenticator.check(identity) };
        let sign_in = self.find_live(id, now)?.ok_or_else(|| McpError::new(ErrorKind::Unauthorized, "signed out"))?;
        self.check_key(id, sign_in.key)
    }

    /// Signs out every tab of the browser that shares the cookie of this sign-in. Returns a cookie that deletes it, and
    /// the session at the identity provider, if any.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`; the browser is then still signed in.
    pub fn sign_out(&self, credential: &Credential) -> Result<(Cookie<'static>, Option<ProviderSession>), McpError> {
        let mut session = None;
        if let Credential::SignIn(id) = credential
            && let Some(sign_in) = self.store.reader().sign_in(id).map_err(report_unavailable)?
        {
            let stored = self.store.reader().sign_ins().map_err(report_unavailable)?;
            let same_browser = stored.into_iter().filter(|s| secret::is_same_hash(&s.cookie, &sign_in.cookie));
            let removed_ids: Vec<SecretHash> = same_browser.map(|s| s.id).collect();
            self.store.writer().forget_sign_ins(&removed_ids).map_err(report_unavailable)?;
            let mut cached = self.lock();
            removed_ids.iter().for_each(|id| drop(cached.remove(id)));
            session = sign_in.session;
        }
        let mut cookie = self.build_cookie(String::new());
        cookie.set_max_age(CookieDuration::ZERO);
        Ok((cookie, session))
    }

    /// Returns `true` if browsers send the cookies over https only.
    pub const fn has_secure_cookies(&self) -> bool {
        self.secure_cookies
    }

    /// Builds a cookie without `Max-Age`, which the browser deletes when it closes, as it deletes the page's secret
    /// when the tab closes.
    fn build_cookie(&self, value: String) -> Cookie<'static> {
        Cookie::build(SESSION_COOKIE, value)
            .http_only(true)
            .same_site(SameSite::Strict)
            .path("/")
            .secure(self.secure_cookies)
            .finish()
    }
}

/// Checks that a request authorized by a sign-in comes from a page of this gateway on the same host and port.
///
/// Browsers omit `Origin` only for a plain same-origin GET, so all other requests must have it.
///
/// # Errors
/// `FORBIDDEN` for other origins.
pub fn check_page_origin(verdict: OriginVerdict, is_get: bool) -> Result<(), McpError> {
    match verdict {
        OriginVerdict::SameOrigin => Ok(()),
        OriginVerdict::Absent if is_get => Ok(()),
        _ => Err(McpError::new(ErrorKind::Forbidden, "the Origin header must be this gateway's own")),
    }
}

fn hash_cookies(cookies: &[String]) -> Vec<SecretHash> {
    cookies.iter().take(MAX_COOKIES).map(|value| secret::hash(value.as_bytes())).collect()
}

/// Returns `true` if the hash is among these. Compares all of them, so that the time does not show which one it is.
fn has_hash(hashes: &[SecretHash], hash: &SecretHash) -> bool {
    hashes.iter().fold(false, |found, other| found | secret::is_same_hash(other, hash))
}

/// Returns `true` if a sign-in has not ended by its age or because it was not used.
pub(crate) fn is_live(sign_in: &SignIn, now: Timestamp) -> bool {
    now < expiry(sign_in)
}

/// Returns the time at which a sign-in ends if it is not used before.
fn expiry(sign_in: &SignIn) -> Timestamp {
    let idle = sign_in.last_used.saturating_add(MAX_IDLE).unwrap_or(sign_in.last_used);
    sign_in.session.as_ref().map_or(idle, |session| idle.min(session.ends_at))
}

impl CachedSignIn {
    fn new(sign_in: SignIn) -> Self {
        Self { use_stored_at: sign_in.last_used, sign_in, checked_at: Instant::now() }
    }
}

/// Removes the least recently used sign-in of a principal, or of all principals. Returns its id.
fn evict(sign_ins: &mut HashMap<SecretHash, SignIn>, principal: Option<&str>) -> Option<SecretHash> {
    let oldest = sign_ins
        .values()
        .filter(|s| principal.is_none_or(|name| s.principal.name == name))
        .min_by_key(|s| s.last_used)
        .map(|s| s.id)?;
    sign_ins.remove(&oldest).map(|s| s.id)
}

#[cfg(test)]
mod tests;
