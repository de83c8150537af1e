//! Signed-in browsers. A sign-in is two secrets: a cookie that scripts cannot read, and one that only the page has.
//!
//! The cookie authorizes nothing alone, so that no other site (nor another port of this host, which shares the
//! cookie) can act for the person. Stored as hashes, and bounded; one that somebody else ended counts no more within
//! [`FRESH`].

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use actix_web::cookie::{Cookie, SameSite, time::Duration as CookieDuration};
use jiff::{SignedDuration, Timestamp};

use super::{Authenticator, OriginRules, OriginVerdict, authenticator::FRESH, secret};
use countersign_domain::principal::{Credential, Identity, Principal, SecretHash};
use countersign_protocol::{ErrorKind, McpError};
use countersign_store::keys::SignIn;

pub const COOKIE: &str = "countersign_session";
/// The header that carries the page's own secret.
pub const SECRET_HEADER: &str = "x-countersign-secret";
/// A sign-in that is not used for this long ends.
pub const IDLE: SignedDuration = SignedDuration::from_hours(12);
/// Sign-ins at a time, of all and of one principal; the one unused for longest makes room.
const MAX_SIGN_INS: usize = 4096;
const MAX_OF_ONE: usize = 64;
/// Cookies of our name that are looked at: other ports of the host may have set some.
const MAX_COOKIES: usize = 8;

/// A use is stored when the one that is stored is so old: it is a durable write.
const NOTED: SignedDuration = SignedDuration::from_mins(10);

/// Where sign-ins are stored.
pub trait SignInStore: Send + Sync {
    /// Stores one, and forgets those others. Blocks for a durable write.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), McpError>;

    /// Looks one up.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, McpError>;

    /// All of them.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn sign_ins(&self) -> Result<Vec<SignIn>, McpError>;

    /// Notes a use in the background.
    fn note_sign_in(&self, id: SecretHash, at: Timestamp);

    /// Ends these. Blocks for a durable write.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`
    fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), McpError>;
}

/// A sign-in as it was when it was looked up.
struct Known {
    sign_in: SignIn,
    /// The use that is stored.
    noted: Timestamp,
    checked: Instant,
}

/// What a browser gets when it signs in.
pub struct NewSignIn {
    pub cookie: Cookie<'static>,
    /// For the page, which keeps it in `sessionStorage`.
    pub secret: String,
    pub principal: Arc<Principal>,
    pub expires_at: Timestamp,
}

/// All sign-ins of this gateway.
pub struct DashboardSignIns {
    authenticator: Arc<Authenticator>,
    store: Arc<dyn SignInStore>,
    /// By the hash of the page's secret.
    known: Mutex<HashMap<SecretHash, Known>>,
    secure: bool,
}

impl DashboardSignIns {
    /// With those that are stored, where they can be read.
    #[must_use]
    pub fn new(authenticator: Arc<Authenticator>, store: Arc<dyn SignInStore>, rules: &OriginRules) -> Self {
        let all = store.sign_ins().unwrap_or_default();
        let known = all.into_iter().map(|sign_in| (sign_in.id, Known::new(sign_in))).collect();
        Self { authenticator, store, known: Mutex::new(known), secure: rules.browsers_use_https() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SecretHash, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sign-in with that id, if it is live: from memory, or from the store where what is known is older than [`FRESH`].
    fn find(&self, id: &SecretHash, now: Timestamp) -> Result<Option<SignIn>, McpError> {
        if let Some(known) = self.lock().get(id).filter(|known| known.checked.elapsed() < FRESH) {
            return Ok(Some(known.sign_in.clone()).filter(|sign_in| is_live(sign_in, now)));
        }
        let stored = self.store.sign_in(id)?;
        let mut all = self.lock();
        let Some(stored) = stored else {
            all.remove(id);
            return Ok(None);
        };
        let mut fresh = Known::new(stored);
        if let Some(before) = all.get(id) {
            fresh.sign_in.last_used = fresh.sign_in.last_used.max(before.sign_in.last_used);
        }
        let found = Some(fresh.sign_in.clone()).filter(|sign_in| is_live(sign_in, now));
        if found.is_some() {
            all.insert(*id, fresh);
        }
        Ok(found)
    }

    /// Signs a principal in. A browser that is signed in as the same principal keeps its cookie, so that its other
    /// tabs stay signed in.
    ///
    /// # Errors
    /// `FORBIDDEN` for agents; `INTERNAL_ERROR` without randomness.
    pub fn sign_in(
        &self,
        principal: Arc<Principal>,
        key: Option<SecretHash>,
        cookies: &[String],
        now: Timestamp,
    ) -> Result<NewSignIn, McpError> {
        if !principal.role.may_view() {
            return Err(McpError::new(ErrorKind::Forbidden, "this key is an agent's; the dashboard is for people"));
        }
        let page = secret::generate("")?;
        let fresh_cookie = secret::generate("")?;
        // As they are stored: another process may have signed somebody in or out.
        let mut all: HashMap<SecretHash, SignIn> =
            self.store.sign_ins()?.into_iter().map(|sign_in| (sign_in.id, sign_in)).collect();
        let mut gone: Vec<SecretHash> = all.values().filter(|s| !is_live(s, now)).map(|s| s.id).collect();
        all.retain(|_, s| is_live(s, now));
        let kept = cookies.iter().take(MAX_COOKIES).find(|value| {
            let hash = secret::hash(value.as_bytes());
            all.values().any(|s| s.principal == principal && s.key == key && secret::same(&s.cookie, &hash))
        });
        let cookie = kept.cloned().unwrap_or(fresh_cookie);
        while all.values().filter(|s| s.principal.name == principal.name).count() >= MAX_OF_ONE {
            gone.extend(evict(&mut all, Some(&principal.name)));
        }
        while all.len() >= MAX_SIGN_INS {
            gone.extend(evict(&mut all, None));
        }
        let id = secret::hash(page.as_bytes());
        let cookie_hash = secret::hash(cookie.as_bytes());
        let sign_in = SignIn { id, cookie: cookie_hash, principal: Arc::clone(&principal), key, last_used: now };
        self.store.put_sign_in(&sign_in, &gone)?;
        let mut known = self.lock();
        gone.iter().for_each(|id| drop(known.remove(id)));
        known.insert(id, Known::new(sign_in));
        drop(known);
        Ok(NewSignIn { cookie: self.cookie(cookie), secret: page, principal, expires_at: later(now) })
    }

    /// Who asks, by both secrets. Both are needed, and both must be of the same sign-in.
    ///
    /// # Errors
    /// `UNAUTHORIZED` otherwise, also when the key that the sign-in was made from is revoked.
    pub fn authenticate(&self, cookies: &[String], page: Option<&[u8]>, now: Timestamp) -> Result<Identity, McpError> {
        let refused = || McpError::new(ErrorKind::Unauthorized, "not signed in");
        let page = page.filter(|page| page.len() <= 128).ok_or_else(refused)?;
        let id = secret::hash(page);
        let sign_in = self.find(&id, now)?.ok_or_else(refused)?;
        let matches = cookies
            .iter()
            .take(MAX_COOKIES)
            .fold(false, |found, value| found | secret::same(&sign_in.cookie, &secret::hash(value.as_bytes())));
        if !matches {
            return Err(refused());
        }
        self.note_use(&id, now);
        self.check_key(&id, sign_in.key)?;
        Ok(Identity { principal: sign_in.principal, credential: Credential::SignIn(id) })
    }

    fn note_use(&self, id: &SecretHash, now: Timestamp) {
        let mut all = self.lock();
        let Some(known) = all.get_mut(id) else { return };
        known.sign_in.last_used = known.sign_in.last_used.max(now);
        if now.duration_since(known.noted) >= NOTED {
            known.noted = now;
            self.store.note_sign_in(*id, now);
        }
    }

    /// Whether one of the cookies is that of somebody who is signed in. It authorizes nothing.
    #[must_use]
    pub fn knows(&self, cookies: &[String], now: Timestamp) -> bool {
        let hashes: Vec<SecretHash> =
            cookies.iter().take(MAX_COOKIES).map(|value| secret::hash(value.as_bytes())).collect();
        let known = self.lock();
        let live = known.values().map(|known| &known.sign_in).filter(|sign_in| is_live(sign_in, now));
        live.fold(false, |found, sign_in| {
            hashes.iter().fold(found, |found, hash| found | secret::same(&sign_in.cookie, hash))
        })
    }

    fn check_key(&self, id: &SecretHash, key: Option<SecretHash>) -> Result<(), McpError> {
        let Some(key) = key else { return Ok(()) };
        self.authenticator.recheck(&key).map(drop).inspect_err(|error| {
            if error.kind == ErrorKind::Unauthorized {
                self.lock().remove(id);
                // It is refused as long as it is there.
                let _ = self.store.forget_sign_ins(&[*id]);
            }
        })
    }

    /// Whether what a stream was opened with still holds.
    ///
    /// # Errors
    /// `UNAUTHORIZED` when it was revoked, signed out or idle for too long; `STORE_UNAVAILABLE` when it cannot be known.
    pub fn still_valid(&self, credential: &Credential, now: Timestamp) -> Result<(), McpError> {
        match credential {
            Credential::Loopback => Ok(()),
            Credential::Key(key) => self.authenticator.recheck(key).map(drop),
            Credential::SignIn(id) => {
                let sign_in =
                    self.find(id, now)?.ok_or_else(|| McpError::new(ErrorKind::Unauthorized, "signed out"))?;
                self.check_key(id, sign_in.key)
            }
        }
    }

    /// When a sign-in that is used now would end for idleness.
    #[must_use]
    pub fn expires_at(now: Timestamp) -> Timestamp {
        later(now)
    }

    /// Signs the whole browser out: every tab with the cookie of this sign-in. Gives the cookie that clears it.
    ///
    /// # Errors
    /// `STORE_UNAVAILABLE`; then it is signed in still.
    pub fn sign_out(&self, credential: &Credential) -> Result<Cookie<'static>, McpError> {
        if let Credential::SignIn(id) = credential
            && let Some(sign_in) = self.store.sign_in(id)?
        {
            let of_browser = self.store.sign_ins()?.into_iter().filter(|s| secret::same(&s.cookie, &sign_in.cookie));
            let gone: Vec<SecretHash> = of_browser.map(|s| s.id).collect();
            self.store.forget_sign_ins(&gone)?;
            let mut known = self.lock();
            gone.iter().for_each(|id| drop(known.remove(id)));
        }
        let mut cookie = self.cookie(String::new());
        cookie.set_max_age(CookieDuration::ZERO);
        Ok(cookie)
    }

    /// No `Max-Age`: it ends with the browser, as the page's half does with the tab.
    fn cookie(&self, value: String) -> Cookie<'static> {
        Cookie::build(COOKIE, value).http_only(true).same_site(SameSite::Strict).path("/").secure(self.secure).finish()
    }
}

/// The rule for requests that a dashboard sign-in authorizes: a page of ours asks, on this very host and port.
///
/// Browsers send no `Origin` with a plain same-origin GET; with everything else they do, so there it must be.
///
/// # Errors
/// `FORBIDDEN` otherwise.
pub fn check_page(verdict: OriginVerdict, is_get: bool) -> Result<(), McpError> {
    match verdict {
        OriginVerdict::SameOrigin => Ok(()),
        OriginVerdict::Absent if is_get => Ok(()),
        _ => Err(McpError::new(ErrorKind::Forbidden, "the Origin header must be this gateway's own")),
    }
}

fn is_live(sign_in: &SignIn, now: Timestamp) -> bool {
    now.duration_since(sign_in.last_used) < IDLE
}

fn later(now: Timestamp) -> Timestamp {
    now.saturating_add(IDLE).unwrap_or(now)
}

impl Known {
    fn new(sign_in: SignIn) -> Self {
        Self { noted: sign_in.last_used, sign_in, checked: Instant::now() }
    }
}

/// Takes the one out that was not used for longest.
fn evict(sign_ins: &mut HashMap<SecretHash, SignIn>, of: Option<&str>) -> Option<SecretHash> {
    let oldest = sign_ins
        .values()
        .filter(|s| of.is_none_or(|name| s.principal.name == name))
        .min_by_key(|s| s.last_used)
        .map(|s| s.id)?;
    sign_ins.remove(&oldest).map(|s| s.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{authenticator::tests::MemoryKeys, stored::Stored};
    use countersign_config::Config;
    use countersign_domain::principal::Role;

    fn make() -> (DashboardSignIns, Arc<Authenticator>, Arc<MemoryKeys>) {
        let store = Arc::new(MemoryKeys::default());
        let config = Config::default();
        let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&store) as _));
        let sign_ins = Arc::new(MemorySignIns::default());
        let sign_ins = DashboardSignIns::new(Arc::clone(&authenticator), sign_ins, &OriginRules::new(&config));
        (sign_ins, authenticator, store)
    }

    #[derive(Default)]
    struct MemorySignIns(Mutex<HashMap<SecretHash, SignIn>>);

    impl SignInStore for MemorySignIns {
        fn put_sign_in(&self, sign_in: &SignIn, gone: &[SecretHash]) -> Result<(), McpError> {
            self.forget_sign_ins(gone)?;
            self.0.lock().unwrap().insert(sign_in.id, sign_in.clone());
            Ok(())
        }

        fn sign_in(&self, id: &SecretHash) -> Result<Option<SignIn>, McpError> {
            Ok(self.0.lock().unwrap().get(id).cloned())
        }

        fn sign_ins(&self) -> Result<Vec<SignIn>, McpError> {
            Ok(self.0.lock().unwrap().values().cloned().collect())
        }

        fn note_sign_in(&self, id: SecretHash, at: Timestamp) {
            self.0.lock().unwrap().get_mut(&id).unwrap().last_used = at;
        }

        fn forget_sign_ins(&self, gone: &[SecretHash]) -> Result<(), McpError> {
            self.0.lock().unwrap().retain(|id, _| !gone.contains(id));
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_sign_in_outlives_the_process_and_ends_for_all_of_them_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let gateway = || {
            let stored = Arc::new(Stored::in_directory(dir.path()).unwrap());
            let config = Config::default();
            let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&stored) as _));
            DashboardSignIns::new(authenticator, stored, &OriginRules::new(&config))
        };
        let first = gateway();
        let new = first.sign_in(alice(), None, &[], now()).unwrap();
        let ask = |gateway: &DashboardSignIns, at| gateway.authenticate(&jar(&new), Some(new.secret.as_bytes()), at);
        let second = gateway();
        assert!(second.knows(&jar(&new), now()));
        let later = now() + SignedDuration::from_hours(11);
        let who = ask(&second, later).unwrap();
        assert_eq!(who.principal, alice());
        // Its use is stored, so that it does not end twelve hours after it was made.
        let third = gateway();
        while ask(&third, now() + SignedDuration::from_hours(20)).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        second.sign_out(&who.credential).unwrap();
        while ask(&first, later).is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert!(ask(&gateway(), later).is_err());
    }

    fn alice() -> Arc<Principal> {
        Arc::new(Principal { name: "alice".into(), role: Role::Reviewer, key_id: None, owner: None })
    }

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn jar(new: &NewSignIn) -> Vec<String> {
        vec![new.cookie.value().to_owned()]
    }

    #[test]
    fn both_halves_of_one_sign_in_are_needed() {
        let (dashboard, _, _) = make();
        let a = dashboard.sign_in(alice(), None, &[], now()).unwrap();
        let b = dashboard.sign_in(alice(), None, &[], now()).unwrap();
        let ask = |cookies: &[String], page: Option<&str>| {
            dashboard.authenticate(cookies, page.map(str::as_bytes), now()).map(|i| i.principal.name.clone())
        };
        assert_eq!(ask(&jar(&a), Some(&a.secret)).unwrap(), "alice");
        for (cookies, page) in [
            (jar(&a), None),
            (jar(&a), Some("")),
            (jar(&a), Some(b.secret.as_str())),
            (jar(&b), Some(a.secret.as_str())),
            (vec![], Some(a.secret.as_str())),
            (vec![String::new()], Some(a.secret.as_str())),
            (vec![a.secret.clone()], Some(a.cookie.value())),
            (jar(&a), Some(a.cookie.value())),
        ] {
            assert_eq!(ask(&cookies, page).unwrap_err().kind, ErrorKind::Unauthorized, "{cookies:?} {page:?}");
        }
        // Another port of the host may have set a cookie of the same name.
        assert_eq!(ask(&["other".into(), a.cookie.value().into()], Some(&a.secret)).unwrap(), "alice");
    }

    #[test]
    fn the_cookie_is_out_of_reach_of_scripts_and_other_sites() {
        let (dashboard, _, _) = make();
        let cookie = dashboard.sign_in(alice(), None, &[], now()).unwrap().cookie;
        assert_eq!(
            cookie.to_string(),
            format!("countersign_session={}; HttpOnly; SameSite=Strict; Path=/", cookie.value())
        );
        let rules = OriginRules::new(&Config { public_url: Some("https://gw.example".into()), ..Config::default() });
        let (_, authenticator, _) = make();
        let sign_ins = DashboardSignIns::new(authenticator, Arc::new(MemorySignIns::default()), &rules);
        let secure = sign_ins.sign_in(alice(), None, &[], now()).unwrap();
        assert_eq!(secure.cookie.secure(), Some(true));
    }

    #[test]
    fn it_ends_after_twelve_idle_hours() {
        let (dashboard, _, _) = make();
        let new = dashboard.sign_in(alice(), None, &[], now()).unwrap();
        assert_eq!(new.expires_at, now() + IDLE);
        let at = |hours: i64| {
            let now = now() + SignedDuration::from_hours(hours);
            dashboard.authenticate(&jar(&new), Some(new.secret.as_bytes()), now).map(|i| i.credential)
        };
        at(11).unwrap();
        let credential = at(22).unwrap();
        dashboard.still_valid(&credential, now() + SignedDuration::from_hours(33)).unwrap();
        dashboard.still_valid(&credential, now() + SignedDuration::from_hours(34)).unwrap_err();
        at(34).unwrap_err();
    }

    #[test]
    fn a_sign_in_dies_with_the_key_it_was_made_from() {
        let (dashboard, auth, store) = make();
        let secret = store.add("alice", Role::Reviewer);
        let who = auth.key(&secret, None).unwrap();
        let Credential::Key(key) = who.credential else { panic!("not by key") };
        // The cache still believes the key; a store that says otherwise counts as soon as it is asked.
        let new = dashboard.sign_in(who.principal, Some(key), &[], now()).unwrap();
        dashboard.authenticate(&jar(&new), Some(new.secret.as_bytes()), now()).unwrap();
        store.revoke(&secret);
        auth.forget(&key);
        let error = dashboard.authenticate(&jar(&new), Some(new.secret.as_bytes()), now()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unauthorized);
        assert!(dashboard.lock().is_empty());
    }

    #[test]
    fn tabs_share_a_cookie_and_sign_out_together() {
        let (dashboard, _, _) = make();
        let one = dashboard.sign_in(alice(), None, &[], now()).unwrap();
        let two = dashboard.sign_in(alice(), None, &jar(&one), now()).unwrap();
        assert_eq!(one.cookie.value(), two.cookie.value());
        let bob = Arc::new(Principal { name: "bob".into(), ..(*alice()).clone() });
        let other = dashboard.sign_in(bob, None, &jar(&one), now()).unwrap();
        assert_ne!(other.cookie.value(), one.cookie.value(), "another person gets another cookie");
        let planted = dashboard.sign_in(alice(), None, &["planted".into()], now()).unwrap();
        assert_ne!(planted.cookie.value(), "planted");
        let who = dashboard.authenticate(&jar(&one), Some(one.secret.as_bytes()), now()).unwrap();
        let cleared = dashboard.sign_out(&who.credential).unwrap();
        assert_eq!((cleared.value(), cleared.max_age()), ("", Some(CookieDuration::ZERO)));
        dashboard.authenticate(&jar(&two), Some(two.secret.as_bytes()), now()).unwrap_err();
        dashboard.still_valid(&who.credential, now()).unwrap_err();
        dashboard.authenticate(&jar(&other), Some(other.secret.as_bytes()), now()).unwrap();
    }

    #[test]
    fn agents_cannot_sign_in_and_sign_ins_are_bounded() {
        let (dashboard, _, _) = make();
        let agent = Arc::new(Principal::local_agent());
        assert_eq!(dashboard.sign_in(agent, None, &[], now()).err().unwrap().kind, ErrorKind::Forbidden);
        let first = dashboard.sign_in(alice(), None, &[], now()).unwrap();
        for n in 1..200 {
            dashboard.sign_in(alice(), None, &[], now() + SignedDuration::from_secs(n)).unwrap();
        }
        assert_eq!(dashboard.lock().len(), MAX_OF_ONE);
        dashboard.authenticate(&jar(&first), Some(first.secret.as_bytes()), now()).unwrap_err();
    }

    #[test]
    fn only_our_own_pages_may_use_a_sign_in() {
        use OriginVerdict::{Absent, CorsAllowed, Forbidden, SameOrigin};
        check_page(SameOrigin, false).unwrap();
        check_page(Absent, true).unwrap();
        for (verdict, get) in
            [(Absent, false), (CorsAllowed, true), (CorsAllowed, false), (Forbidden, true), (Forbidden, false)]
        {
            assert_eq!(check_page(verdict, get).unwrap_err().kind, ErrorKind::Forbidden, "{verdict:?} {get}");
        }
    }
}
