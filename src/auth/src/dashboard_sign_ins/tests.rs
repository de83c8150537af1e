use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{authenticator::tests::MemoryKeys, fixtures, tokens::tests::KnownIssuer};
use countersign_config::Config;
use countersign_domain::principal::Role;

/// Returns the sign-ins of a new gateway with its keys, and the directory of its store.
fn new_sign_ins() -> (DashboardSignIns, Arc<Authenticator>, Arc<MemoryKeys>, TempDir) {
    let keys = Arc::new(MemoryKeys::default());
    let config = Config::default();
    let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&keys) as _));
    let (store, dir) = new_store();
    let sign_ins = DashboardSignIns::new(Arc::clone(&authenticator), store, &OriginRules::new(&config));
    (sign_ins, authenticator, keys, dir)
}

fn new_store() -> (Arc<StoredCredentials>, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Arc::new(StoredCredentials::in_directory(dir.path()).unwrap()), dir)
}

/// Starts a process with the sign-ins in a directory.
fn start_process(dir: &TempDir) -> DashboardSignIns {
    let stored = Arc::new(StoredCredentials::in_directory(dir.path()).unwrap());
    let config = Config::default();
    let authenticator = Arc::new(Authenticator::new(&config, Arc::clone(&stored) as _));
    DashboardSignIns::new(authenticator, stored, &OriginRules::new(&config))
}

#[tokio::test]
async fn sign_in_survives_restart_and_ends_in_all_processes() {
    let dir = tempfile::tempdir().unwrap();
    let first = start_process(&dir);
    let new = first.sign_in(subject(alice()), &[], now()).unwrap();
    let authenticate =
        |process: &DashboardSignIns, at| process.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), at);
    let second = start_process(&dir);
    assert!(second.is_signed_in(&cookies_of(&new), now()));
    let later = now() + SignedDuration::from_hours(11);
    let identity = authenticate(&second, later).unwrap();
    assert_eq!(identity.principal, alice());
    // The use at eleven hours was stored, so the sign-in lives for more than twelve hours.
    let third = start_process(&dir);
    while authenticate(&third, now() + SignedDuration::from_hours(20)).is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    second.sign_out(&identity.credential).unwrap();
    while authenticate(&first, later).is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(authenticate(&start_process(&dir), later).is_err());
}

#[test]
fn sign_ins_that_ended_elsewhere_leave_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let first = start_process(&dir);
    let new = first.sign_in(subject(alice()), &[], now()).unwrap();
    let second = start_process(&dir);
    assert_eq!(second.lock().len(), 1);
    let identity = first.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), now()).unwrap();
    first.sign_out(&identity.credential).unwrap();
    second.sign_in(subject(alice()), &[], now()).unwrap();
    assert_eq!(second.lock().len(), 1);
}

fn alice() -> Arc<Principal> {
    Arc::new(Principal::new("alice", Role::Reviewer))
}

/// Returns a principal who signs in with a code.
fn subject(principal: Arc<Principal>) -> SignInSubject {
    SignInSubject { principal, key: None, session: None }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn cookies_of(new: &NewSignIn) -> Vec<String> {
    vec![new.cookie.value().to_owned()]
}

#[test]
fn new_sign_in_of_same_person_keeps_the_cookie() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let signed_in_at = |auth_time| {
        let claims = countersign_domain::principal::Claims { auth_time: Some(auth_time), ..Default::default() };
        Arc::new(Principal { claims: Some(Arc::new(claims)), ..(*alice()).clone() })
    };
    let first = sign_ins.sign_in(subject(signed_in_at(1)), &[], now()).unwrap();
    let second = sign_ins.sign_in(subject(signed_in_at(2)), &cookies_of(&first), now()).unwrap();
    assert_eq!(cookies_of(&first), cookies_of(&second), "the other tabs stay signed in");
    let other = Arc::new(Principal::new("bob", Role::Reviewer));
    assert_ne!(cookies_of(&sign_ins.sign_in(subject(other), &cookies_of(&first), now()).unwrap()), cookies_of(&first));
}

#[test]
fn both_secrets_of_a_sign_in_are_required() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let a = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    let b = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    let authenticate = |cookies: &[String], page: Option<&str>| {
        sign_ins.authenticate(cookies, page.map(str::as_bytes), now()).map(|i| i.principal.name.clone())
    };
    assert_eq!(authenticate(&cookies_of(&a), Some(&a.secret)).unwrap(), "alice");
    for (cookies, page) in [
        (cookies_of(&a), None),
        (cookies_of(&a), Some("")),
        (cookies_of(&a), Some(b.secret.as_str())),
        (cookies_of(&b), Some(a.secret.as_str())),
        (vec![], Some(a.secret.as_str())),
        (vec![String::new()], Some(a.secret.as_str())),
        (vec![a.secret.clone()], Some(a.cookie.value())),
        (cookies_of(&a), Some(a.cookie.value())),
    ] {
        assert_eq!(authenticate(&cookies, page).unwrap_err().kind, ErrorKind::Unauthorized, "{cookies:?} {page:?}");
    }
    // Another port of the host may set a cookie of the same name.
    assert_eq!(authenticate(&["other".into(), a.cookie.value().into()], Some(&a.secret)).unwrap(), "alice");
}

#[test]
fn cookie_is_http_only_and_same_site() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let cookie = sign_ins.sign_in(subject(alice()), &[], now()).unwrap().cookie;
    assert_eq!(
        cookie.to_string(),
        format!("countersign_session={}; HttpOnly; SameSite=Strict; Path=/", cookie.value())
    );
    let rules = OriginRules::new(&Config { public_url: Some("https://gw.example".into()), ..Config::default() });
    let (_, authenticator, _, _dir) = new_sign_ins();
    let (store, _dir_of_store) = new_store();
    let sign_ins = DashboardSignIns::new(authenticator, store, &rules);
    let secure = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    assert_eq!(secure.cookie.secure(), Some(true));
}

#[test]
fn sign_in_ends_after_twelve_idle_hours() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let new = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    assert_eq!(new.expires_at, now() + MAX_IDLE);
    let at = |hours: i64| {
        let now = now() + SignedDuration::from_hours(hours);
        sign_ins.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), now)
    };
    at(11).unwrap();
    let identity = at(22).unwrap();
    sign_ins.check_credential(&identity, now() + SignedDuration::from_hours(33)).unwrap();
    sign_ins.check_credential(&identity, now() + SignedDuration::from_hours(34)).unwrap_err();
    at(34).unwrap_err();
}

#[test]
fn used_sign_in_ends_with_its_provider_session() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let session = fixtures::session("ada", now() + SignedDuration::from_hours(24));
    let new = sign_ins.sign_in(SignInSubject { session: Some(session), ..subject(alice()) }, &[], now()).unwrap();
    let minutes_later = |minutes| now() + SignedDuration::from_mins(minutes);
    let authenticate = |now| sign_ins.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), now);
    for hours in [8, 16, 23] {
        authenticate(minutes_later(hours * 60)).unwrap();
    }
    let identity = authenticate(minutes_later(24 * 60 - 1)).unwrap();
    sign_ins.check_credential(&identity, minutes_later(24 * 60 - 1)).unwrap();
    let error = authenticate(minutes_later(24 * 60)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthorized);
    sign_ins.check_credential(&identity, minutes_later(24 * 60)).unwrap_err();
    assert!(!sign_ins.is_signed_in(&cookies_of(&new), minutes_later(24 * 60)));
}

#[test]
fn sign_in_ends_when_its_key_is_revoked() {
    let (sign_ins, auth, store, _dir) = new_sign_ins();
    let secret = store.add("alice", Role::Reviewer);
    let identity = auth.identify_key(&secret, None).unwrap();
    let Credential::Key(key) = identity.credential else { panic!("not by key") };
    // The key is still cached; the revocation counts as soon as the store is asked.
    let new = sign_ins.sign_in(SignInSubject { key: Some(key), ..subject(identity.principal) }, &[], now()).unwrap();
    sign_ins.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), now()).unwrap();
    store.revoke(&secret);
    auth.forget_key(&key);
    let error = sign_ins.authenticate(&cookies_of(&new), Some(new.secret.as_bytes()), now()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthorized);
    assert!(sign_ins.lock().is_empty());
}

#[test]
fn stream_with_token_of_revoked_person_is_refused() {
    let (sign_ins, auth, keys, _dir) = new_sign_ins();
    let issuer = KnownIssuer::new(auth.tokens());
    let header = format!("Bearer {}", issuer.token_with(json!({})));
    let identity = auth.identify(Some(header.as_bytes()), None).unwrap();
    sign_ins.check_credential(&identity, Timestamp::now()).unwrap();
    keys.revoked_people.lock().unwrap().insert("https://id.example#alice".to_owned());
    let error = sign_ins.check_credential(&identity, Timestamp::now()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthorized);
}

#[test]
fn tabs_share_a_cookie_and_sign_out_together() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let one = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    let two = sign_ins.sign_in(subject(alice()), &cookies_of(&one), now()).unwrap();
    assert_eq!(one.cookie.value(), two.cookie.value());
    let bob = Arc::new(Principal { name: "bob".into(), ..(*alice()).clone() });
    let other = sign_ins.sign_in(subject(bob), &cookies_of(&one), now()).unwrap();
    assert_ne!(other.cookie.value(), one.cookie.value(), "another person gets another cookie");
    let planted = sign_ins.sign_in(subject(alice()), &["planted".into()], now()).unwrap();
    assert_ne!(planted.cookie.value(), "planted");
    let identity = sign_ins.authenticate(&cookies_of(&one), Some(one.secret.as_bytes()), now()).unwrap();
    let (cleared, _) = sign_ins.sign_out(&identity.credential).unwrap();
    assert_eq!((cleared.value(), cleared.max_age()), ("", Some(CookieDuration::ZERO)));
    sign_ins.authenticate(&cookies_of(&two), Some(two.secret.as_bytes()), now()).unwrap_err();
    sign_ins.check_credential(&identity, now()).unwrap_err();
    sign_ins.authenticate(&cookies_of(&other), Some(other.secret.as_bytes()), now()).unwrap();
}

#[test]
fn agents_cannot_sign_in_and_sign_ins_are_bounded() {
    let (sign_ins, _, _, _dir) = new_sign_ins();
    let agent = Arc::new(Principal::local_agent());
    assert_eq!(sign_ins.sign_in(subject(agent), &[], now()).err().unwrap().kind, ErrorKind::Forbidden);
    let first = sign_ins.sign_in(subject(alice()), &[], now()).unwrap();
    for n in 1..200 {
        sign_ins.sign_in(subject(alice()), &[], now() + SignedDuration::from_secs(n)).unwrap();
    }
    assert_eq!(sign_ins.lock().len(), MAX_SIGN_INS_PER_PRINCIPAL);
    sign_ins.authenticate(&cookies_of(&first), Some(first.secret.as_bytes()), now()).unwrap_err();
}

#[test]
fn only_own_pages_may_use_sign_in() {
    use OriginVerdict::{Absent, CorsAllowed, Forbidden, SameOrigin};
    check_page_origin(SameOrigin, false).unwrap();
    check_page_origin(Absent, true).unwrap();
    for (verdict, get) in
        [(Absent, false), (CorsAllowed, true), (CorsAllowed, false), (Forbidden, true), (Forbidden, false)]
    {
        assert_eq!(check_page_origin(verdict, get).unwrap_err().kind, ErrorKind::Forbidden, "{verdict:?} {get}");
    }
}
