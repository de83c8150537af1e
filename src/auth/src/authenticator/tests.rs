use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    keys,
    tokens::tests::{KnownIssuer, fake_provider::FakeProvider, issuer_config, with_introspection},
};
use countersign_config::TokenIssuer;
use countersign_domain::principal::{Role, TokenCredential};
use countersign_store::keys::ApiKey;

/// A key store in memory.
#[derive(Default)]
pub(crate) struct MemoryKeys {
    pub keys: Mutex<HashMap<SecretHash, ApiKey>>,
    pub lookups: AtomicUsize,
    pub is_broken: std::sync::atomic::AtomicBool,
    pub revoked_people: Mutex<std::collections::HashSet<String>>,
}

impl MemoryKeys {
    pub(crate) fn add(&self, name: &str, role: Role) -> String {
        let new = keys::create(name, role, Timestamp::UNIX_EPOCH).unwrap();
        self.keys.lock().unwrap().insert(new.hash, new.key);
        new.secret
    }
    pub(crate) fn revoke(&self, secret: &str) {
        let mut keys = self.keys.lock().unwrap();
        keys.get_mut(&secret::hash(secret.as_bytes())).unwrap().revoked_at = Some(Timestamp::UNIX_EPOCH);
    }
}

impl KeyStore for MemoryKeys {
    fn find_key(&self, hash: &SecretHash) -> Result<Option<(ApiKey, SecretHash)>, McpError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(McpError::new(ErrorKind::StoreUnavailable, "broken"));
        }
        Ok(self.keys.lock().unwrap().get(hash).cloned().map(|key| (key, *hash)))
    }

    fn is_person_revoked(&self, name: &str) -> Result<bool, McpError> {
        Ok(self.revoked_people.lock().unwrap().contains(name))
    }
}

const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

fn remote() -> Option<IpAddr> {
    Some(IpAddr::from([203, 0, 113, 9]))
}

fn new_authenticator(mode: AuthMode) -> (Authenticator, Arc<MemoryKeys>) {
    let store = Arc::new(MemoryKeys::default());
    let config =
        Config { auth: countersign_config::AuthConfig { mode, oidc: None, tokens: Vec::new() }, ..Config::default() };
    (Authenticator::new(&config, Arc::clone(&store) as Arc<dyn KeyStore>), store)
}

fn bearer(key: &str) -> Vec<u8> {
    format!("Bearer {key}").into_bytes()
}

#[test]
fn local_mode_admits_loopback_without_key() {
    let (auth, store) = new_authenticator(AuthMode::Local);
    let key = store.add("ci", Role::Agent);
    assert_eq!(*auth.identify(None, LOOPBACK).unwrap().principal, Principal::local_agent());
    assert_eq!(*auth.identify(None, "::1".parse().ok()).unwrap().principal, Principal::local_agent());
    assert_eq!(*auth.identify(None, "::ffff:127.0.0.1".parse().ok()).unwrap().principal, Principal::local_agent());
    assert_eq!(auth.identify(Some(&bearer(&key)), LOOPBACK).unwrap().principal.name, "ci");
    for refused in [auth.identify(None, remote()), auth.identify(None, None)] {
        assert_eq!(refused.unwrap_err().kind, ErrorKind::Unauthorized);
    }
}

#[test]
fn wrong_key_is_refused_even_if_none_is_needed() {
    let (auth, _) = new_authenticator(AuthMode::Local);
    for bad in ["Bearer csk_wrong", "Bearer ", "Basic YTpi", ""] {
        let error = auth.identify(Some(bad.as_bytes()), LOOPBACK).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unauthorized, "{bad:?}");
    }
}

#[test]
fn loopback_needs_key_in_keys_mode_and_behind_proxy() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    auth.identify(None, LOOPBACK).unwrap_err();
    let key = store.add("ci", Role::Agent);
    auth.identify(Some(&bearer(&key)), remote()).unwrap();
    let config = Config { behind_tls_proxy: true, ..Config::default() };
    let proxied = Authenticator::new(&config, store);
    proxied.identify(None, LOOPBACK).unwrap_err();
    assert_eq!(*proxied.identify_local_process().unwrap().principal, Principal::local_agent());
    assert_eq!(auth.identify_local_process().unwrap_err().kind, ErrorKind::Unauthorized);
}

#[test]
fn cached_key_is_rechecked_after_max_age() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let key = store.add("ci", Role::Agent);
    let now = Instant::now();
    let identify = |at: Instant| auth.identify_at(Some(&bearer(&key)), LOOPBACK, || at);
    for _ in 0..100 {
        identify(now).unwrap();
    }
    assert_eq!(store.lookups.load(Ordering::Relaxed), 1);
    store.revoke(&key);
    identify(now + MAX_KEY_AGE / 2).unwrap();
    assert_eq!(identify(now + MAX_KEY_AGE).unwrap_err().kind, ErrorKind::Unauthorized);
    // An earlier cache entry must not make the key valid again.
    assert_eq!(identify(now).unwrap_err().kind, ErrorKind::Unauthorized);
}

#[test]
fn unreadable_store_admits_nobody() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let key = store.add("ci", Role::Agent);
    let now = Instant::now();
    auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now).unwrap();
    store.is_broken.store(true, Ordering::Relaxed);
    let late = auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + MAX_KEY_AGE);
    assert_eq!(late.unwrap_err().kind, ErrorKind::StoreUnavailable);
    store.is_broken.store(false, Ordering::Relaxed);
    auth.identify_at(Some(&bearer(&key)), LOOPBACK, || now + MAX_KEY_AGE).unwrap();
}

#[test]
fn guessing_is_limited_but_valid_keys_still_pass() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let known = store.add("alice", Role::Reviewer);
    let now = Instant::now();
    auth.identify_at(Some(&bearer(&known)), remote(), || now).unwrap();
    let mut kinds = Vec::new();
    for n in 0..12 {
        let guess = bearer(&format!("csk_{n:043}"));
        kinds.push(auth.identify_at(Some(&guess), remote(), || now).unwrap_err().kind);
    }
    assert_eq!(kinds[..10], [ErrorKind::Unauthorized; 10]);
    assert_eq!(kinds[10..], [ErrorKind::RateLimited; 2]);
    // An unused key works from the address with all the failures.
    let unused = store.add("bob", Role::Reviewer);
    auth.identify_at(Some(&bearer(&unused)), remote(), || now).unwrap();
    auth.identify_at(Some(&bearer(&known)), remote(), || now + MAX_KEY_AGE).unwrap();
    auth.identify_at(Some(&bearer(&known)), LOOPBACK, || now).unwrap();
}

#[test]
fn stale_key_is_limited_without_affecting_same_host() {
    let (auth, store) = new_authenticator(AuthMode::Local);
    let now = Instant::now();
    let stale = bearer(&format!("csk_{:043}", 7));
    let last_kind = (0..100).map(|_| auth.identify_at(Some(&stale), LOOPBACK, || now).unwrap_err().kind).last();
    assert_eq!(last_kind, Some(ErrorKind::RateLimited));
    assert_eq!(store.lookups.load(Ordering::Relaxed), 1);
    let fresh = store.add("alice", Role::Reviewer);
    auth.identify_at(Some(&bearer(&fresh)), LOOPBACK, || now).unwrap();
}

#[test]
fn revoked_key_fails_its_recheck() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let key = store.add("alice", Role::Reviewer);
    let now = Instant::now();
    let hash = secret::hash(key.as_bytes());
    assert_eq!(auth.recheck_key_at(&hash, now).unwrap().name, "alice");
    store.revoke(&key);
    auth.recheck_key_at(&hash, now).unwrap();
    assert_eq!(auth.recheck_key_at(&hash, now + MAX_KEY_AGE).unwrap_err().kind, ErrorKind::Unauthorized);
}

#[test]
fn cached_keys_are_bounded_even_for_streams() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let now = Instant::now();
    for _ in 0..=MAX_CACHED_KEYS {
        let hash = secret::hash(store.add("ci", Role::Agent).as_bytes());
        auth.recheck_key_at(&hash, now).unwrap();
    }
    assert_eq!(auth.cache.len(), MAX_CACHED_KEYS);
    let hash = secret::hash(store.add("ci", Role::Agent).as_bytes());
    auth.recheck_key_at(&hash, now + MAX_KEY_AGE).unwrap();
    assert_eq!(auth.cache.len(), 1, "outdated keys are removed");
}

#[test]
fn bearer_scheme_is_case_insensitive() {
    for good in ["Bearer abc", "bearer abc", "BEARER abc", "Bearer    abc", "Bearer abc  ", "Bearer abc\t"] {
        assert_eq!(parse_token(good.as_bytes()).unwrap(), "abc", "{good:?}");
    }
}

#[test]
fn malformed_header_is_unauthorized() {
    let bad: [&[u8]; 11] = [
        b"",
        b"Bearer",
        b"Bearer ",
        b"abc",
        b"Basic abc",
        b"Bearer\tabc",
        b"Bearer a b",
        b"Bearer a,b",
        b"Bearer \xff\xfe",
        b"Bearer abc, Bearer def",
        b" Bearer abc",
    ];
    for value in bad {
        assert_eq!(parse_token(value).unwrap_err().kind, ErrorKind::Unauthorized, "{value:?}");
    }
}

#[test]
fn header_may_be_long_only_if_tokens_are_accepted() {
    let header = |len: usize| format!("Bearer {}", "a".repeat(len)).into_bytes();
    let (auth, _) = new_authenticator(AuthMode::Keys);
    auth.parse_header(&header(500)).unwrap();
    auth.parse_header(&header(600)).unwrap_err();
    auth.tokens.set_issuers(&[issuer_config("https://id.example")]);
    auth.parse_header(&header(MAX_TOKEN_BYTES)).unwrap();
    auth.parse_header(&header(MAX_TOKEN_BYTES + 100)).unwrap_err();
}

#[test]
fn only_invalid_tokens_are_failed_attempts() {
    let (auth, _) = new_authenticator(AuthMode::Keys);
    let issuer = KnownIssuer::new(&auth.tokens);
    let kind_after = |count: usize, token: &str| {
        (0..count).map(|_| auth.identify(Some(&bearer(token)), remote()).unwrap_err().kind).last()
    };
    let expired = issuer.token_with(json!({ "exp": 1 }));
    assert_eq!(kind_after(30, &expired), Some(ErrorKind::Unauthorized));
    assert_eq!(kind_after(30, &issuer.token_of_a_new_key()), Some(ErrorKind::Unauthorized));
    assert_eq!(kind_after(30, &issuer.token_with(json!({ "scope": "" }))), Some(ErrorKind::Forbidden));
    assert_eq!(kind_after(30, &issuer.token_with(json!({ "aud": "x" }))), Some(ErrorKind::RateLimited));
    auth.identify(Some(&bearer(&issuer.token_with(json!({})))), remote()).unwrap();
}

#[test]
fn checked_token_is_identified_or_needs_its_issuer() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let issuer = KnownIssuer::new(&auth.tokens);
    let check = |token: &str| match auth.check_token(&bearer(token)) {
        Some(TokenCheck::Identified(identity)) => identity.principal.person_name().to_owned(),
        Some(TokenCheck::NeedsIssuer(asked)) if asked == token => "needs issuer".to_owned(),
        Some(TokenCheck::NeedsIssuer(other)) => panic!("{other}"),
        None => "refused".to_owned(),
    };
    let token = issuer.token_with(json!({}));
    assert_eq!(check(&token), "https://id.example#alice");
    assert_eq!(check(&issuer.token_of_a_new_key()), "needs issuer");
    assert_eq!(check(&issuer.token_with(json!({ "aud": "x" }))), "refused");
    assert_eq!(check("csk_key"), "refused");
    store.revoked_people.lock().unwrap().insert("https://id.example#alice".to_owned());
    assert_eq!(check(&token), "refused");
}

#[actix::test]
async fn issuer_is_not_asked_after_too_many_refused_tokens() {
    let (auth, _) = new_authenticator(AuthMode::Keys);
    let provider = FakeProvider::start().await;
    auth.tokens
        .set_issuers(&[TokenIssuer { audiences: vec!["gateway".to_owned()], ..with_introspection(&provider.issuer) }]);
    provider.set_token("known", json!({ "active": true, "aud": "gateway", "sub": "alice", "scope": "tools:read" }));
    auth.ask_issuer("known", remote()).await;
    for n in 0..11 {
        let token = format!("unknown-{n}");
        auth.check_issuer_limit(&token, remote()).unwrap();
        auth.ask_issuer(&token, remote()).await;
    }
    assert_eq!(auth.check_issuer_limit("unknown", remote()).unwrap_err().kind, ErrorKind::RateLimited);
    auth.check_issuer_limit("unknown", Some([192, 0, 2, 77].into())).unwrap();
    auth.check_issuer_limit("known", remote()).unwrap();
    auth.check_issuer_limit("eyJ.signed.token", remote()).unwrap();
    provider.stop().await;
}

#[actix::test]
async fn token_of_a_revoked_person_is_refused() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let issuer = KnownIssuer::new(&auth.tokens);
    let token = issuer.token_with(json!({}));
    let identity = auth.identify(Some(&bearer(&token)), remote()).unwrap();
    auth.check(&identity).unwrap();
    store.revoked_people.lock().unwrap().insert("https://id.example#alice".to_owned());
    let error = auth.identify(Some(&bearer(&token)), remote()).unwrap_err();
    assert_eq!((error.kind, &error.data["tokenError"]), (ErrorKind::Unauthorized, &json!("invalid_token")));
    assert_eq!(auth.check(&identity).unwrap_err().kind, ErrorKind::Unauthorized);
    assert_eq!(auth.wait_until_invalid(&identity).await.kind, ErrorKind::Unauthorized);
    let other = issuer.token_with(json!({ "sub": "bob" }));
    auth.identify(Some(&bearer(&other)), remote()).unwrap();
}

#[actix::test]
async fn only_newest_credential_ends_a_session() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let issuer = KnownIssuer::new(&auth.tokens);
    let new = auth.identify(Some(&bearer(&issuer.token_with(json!({})))), remote()).unwrap();
    let Credential::Token(token) = &new.credential else { panic!("{new:?}") };
    let expired = TokenCredential { expires_at: Timestamp::now().as_second(), ..TokenCredential::clone(token) };
    let old = Identity { credential: Credential::Token(Arc::new(expired)), ..new.clone() };
    let asked = AtomicUsize::new(0);
    // The client presents the new token while the old one is checked, and its person is revoked later.
    let newest = || match asked.fetch_add(1, Ordering::Relaxed) {
        0 => old.clone(),
        1 => new.clone(),
        _ => {
            store.revoked_people.lock().unwrap().insert("https://id.example#alice".to_owned());
            new.clone()
        }
    };
    assert_eq!(auth.wait_until_newest_invalid(newest).await.kind, ErrorKind::Unauthorized);
    assert_eq!(asked.into_inner(), 4);
}

#[actix::test]
async fn expired_token_keeps_access_until_person_is_revoked() {
    let (auth, store) = new_authenticator(AuthMode::Keys);
    let issuer = KnownIssuer::new(&auth.tokens);
    let mut identity = auth.identify(Some(&bearer(&issuer.token_with(json!({})))), remote()).unwrap();
    let Credential::Token(token) = &identity.credential else { panic!("{identity:?}") };
    let expired = TokenCredential { expires_at: Timestamp::now().as_second(), ..TokenCredential::clone(token) };
    identity.credential = Credential::Token(Arc::new(expired));
    assert_eq!(auth.check(&identity).unwrap_err().kind, ErrorKind::Unauthorized);
    let revoked = auth.wait_until_access_revoked(&identity);
    tokio::time::timeout(RECHECK_INTERVAL * 3 / 2, revoked).await.unwrap_err();
    store.revoked_people.lock().unwrap().insert("https://id.example#alice".to_owned());
    assert_eq!(auth.wait_until_access_revoked(&identity).await.kind, ErrorKind::Unauthorized);
}

#[test]
fn two_authorization_headers_are_refused() {
    let mut headers = HeaderMap::new();
    assert_eq!(authorization_header(&headers).unwrap(), None);
    headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
    assert_eq!(authorization_header(&headers).unwrap(), Some(b"Bearer a".as_slice()));
    headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
    assert_eq!(authorization_header(&headers).unwrap_err().kind, ErrorKind::Unauthorized);
}
