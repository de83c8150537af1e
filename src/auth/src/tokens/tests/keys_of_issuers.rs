//! Tests of reading the keys of issuers: when they are read, and how long they are used.

use super::{fake_provider::FakeProvider, *};

const METADATA: &str = "/.well-known/openid-configuration";

/// A provider with one key, and a verifier that has not read it yet.
struct Fixture {
    provider: FakeProvider,
    verifier: Arc<TokenVerifier>,
    key: TestKey,
}

impl Fixture {
    async fn new() -> Self {
        let (provider, key) = (FakeProvider::start().await, TestKey::es256("one"));
        provider.set_keys(&[&key]);
        let verifier = Arc::new(TokenVerifier::new(&[issuer_config(&provider.issuer)], Some(RESOURCE)));
        Self { provider, verifier, key }
    }

    fn token(&self, key: &TestKey) -> String {
        let changes = json!({ "iss": self.provider.issuer, "exp": now().as_second() + 1_000_000 });
        key.sign(&key.header(), &merge(&claims(now()), changes))
    }

    /// Identifies a token as the gateway does for a request.
    async fn identify(&self, token: &str, at: Timestamp) -> Result<Arc<TokenCredential>, TokenRefusal> {
        self.verifier.ask_issuer(token, at).await;
        match self.verifier.identify(token, at)?.credential {
            Credential::Token(credential) => Ok(credential),
            other => panic!("{other:?}"),
        }
    }
}

#[actix::test]
async fn keys_are_read_once_before_the_first_token() {
    let fixture = Fixture::new().await;
    let token = fixture.token(&fixture.key);
    assert_eq!(fixture.verifier.identify(&token, now()).unwrap_err(), TokenRefusal::IssuerUnavailable);
    for second in 0..20 {
        fixture.identify(&token, after(second)).await.unwrap();
    }
    assert_eq!((fixture.provider.count(METADATA), fixture.provider.count("/jwks")), (1, 1));
    fixture.provider.stop().await;
}

#[actix::test]
async fn other_json_at_a_well_known_url_is_skipped() {
    let fixture = Fixture::new().await;
    fixture.provider.set_page("/.well-known/oauth-authorization-server", 200, r#"{"error":"not found"}"#);
    fixture.identify(&fixture.token(&fixture.key), now()).await.unwrap();
    fixture.provider.stop().await;
}

#[actix::test]
async fn simultaneous_tokens_read_the_keys_once() {
    let fixture = Fixture::new().await;
    let tokens: Vec<String> = (0..20).map(|_| fixture.token(&fixture.key)).collect();
    let tasks: Vec<_> = tokens
        .iter()
        .map(|token| {
            let (verifier, token) = (Arc::clone(&fixture.verifier), token.clone());
            rt::spawn(async move { verifier.ask_issuer(&token, now()).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(tokens.iter().all(|token| fixture.verifier.identify(token, now()).is_ok()));
    assert_eq!(fixture.provider.count("/jwks"), 1);
    fixture.provider.stop().await;
}

#[actix::test]
async fn token_waits_for_the_running_read_of_the_keys() {
    let fixture = Fixture::new().await;
    let (verifier, first) = (Arc::clone(&fixture.verifier), fixture.token(&fixture.key));
    let reading = rt::spawn(async move { verifier.ask_issuer(&first, now()).await });
    fixture.provider.wait_for_count(METADATA, 1).await;
    fixture.identify(&fixture.token(&fixture.key), now()).await.unwrap();
    reading.await.unwrap();
    assert_eq!(fixture.provider.count("/jwks"), 1);
    fixture.provider.stop().await;
}

#[actix::test]
async fn unknown_kid_reads_keys_once_in_ten_seconds() {
    let fixture = Fixture::new().await;
    fixture.identify(&fixture.token(&fixture.key), now()).await.unwrap();
    let unknown = fixture.token(&TestKey::es256("two"));
    for second in 0..30 {
        fixture.identify(&unknown, after(second)).await.unwrap_err();
    }
    assert_eq!(fixture.provider.count("/jwks"), 3);
    fixture.provider.stop().await;
}

#[actix::test]
async fn new_key_is_accepted_beside_the_old_one() {
    let fixture = Fixture::new().await;
    let (old, key) = (fixture.token(&fixture.key), TestKey::ed25519("two"));
    let new = fixture.token(&key);
    fixture.identify(&old, now()).await.unwrap();
    fixture.provider.set_keys(&[&fixture.key, &key]);
    fixture.identify(&new, after(1)).await.unwrap_err();
    fixture.identify(&new, after(10)).await.unwrap();
    fixture.identify(&old, after(10)).await.unwrap();
    fixture.provider.stop().await;
}

#[actix::test]
async fn removed_key_ends_its_tokens_and_streams() {
    let fixture = Fixture::new().await;
    let token = fixture.token(&fixture.key);
    let credential = fixture.identify(&token, now()).await.unwrap();
    fixture.provider.set_keys(&[&TestKey::es256("one")]);
    // The old keys are used until the new ones are there.
    fixture.identify(&token, after(300)).await.unwrap();
    fixture.provider.wait_for_count("/jwks", 2).await;
    let is_refused = || fixture.verifier.identify(&token, after(301)).is_err();
    for _ in 0..6000 {
        if is_refused() {
            break;
        }
        rt::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert!(is_refused());
    assert!(fixture.verifier.check(&credential, after(301)).is_err());
    fixture.provider.stop().await;
}

#[actix::test]
async fn open_stream_renews_the_keys() {
    let fixture = Fixture::new().await;
    let credential = fixture.identify(&fixture.token(&fixture.key), now()).await.unwrap();
    fixture.verifier.check_with_issuer(&credential, after(299)).await.unwrap();
    assert_eq!(fixture.provider.count("/jwks"), 1);
    fixture.verifier.check_with_issuer(&credential, after(300)).await.unwrap();
    fixture.provider.wait_for_count("/jwks", 2).await;
    fixture.provider.stop().await;
}

#[actix::test]
async fn old_keys_are_valid_for_a_day_without_the_provider() {
    let fixture = Fixture::new().await;
    let token = fixture.token(&fixture.key);
    let credential = fixture.identify(&token, now()).await.unwrap();
    fixture.provider.stop().await;
    for second in [300, 400, 3600, 86_399] {
        fixture.identify(&token, after(second)).await.unwrap();
        fixture.verifier.check_with_issuer(&credential, after(second)).await.unwrap();
    }
    assert_eq!(fixture.identify(&token, after(86_400)).await.unwrap_err(), TokenRefusal::IssuerUnavailable);
    assert!(fixture.verifier.check_with_issuer(&credential, after(86_400)).await.is_err());
}

#[actix::test]
async fn unreachable_provider_is_asked_again_after_two_seconds() {
    let fixture = Fixture::new().await;
    let token = fixture.token(&fixture.key);
    fixture.provider.set_status(503);
    for second in [0, 1] {
        assert_eq!(fixture.identify(&token, after(second)).await.unwrap_err(), TokenRefusal::IssuerUnavailable);
    }
    assert_eq!(fixture.provider.count(METADATA), 1);
    fixture.provider.set_status(200);
    fixture.identify(&token, after(4)).await.unwrap();
    fixture.provider.stop().await;
}

#[actix::test]
async fn hostile_metadata_and_keys_are_refused() {
    let trap = FakeProvider::start().await;
    let trap_url = format!("{}/jwks", trap.issuer);
    let foreign = trap_url.replace("127.0.0.1", "trap.example");
    let huge = format!("{{\"keys\":[],\"x\":\"{}\"}}", "a".repeat(300_000));
    for (name, metadata, page) in [
        ("another issuer", json!({ "issuer": "https://id.example" }), None),
        ("issuer with a slash", json!({ "issuer": format!("{}/", trap.issuer) }), None),
        ("no issuer", json!({ "issuer": null }), None),
        ("keys on http of another host", json!({ "jwks_uri": foreign }), None),
        ("keys in a file", json!({ "jwks_uri": "file:///etc/hostname" }), None),
        ("no keys", json!({ "jwks_uri": null }), None),
        ("introspection on http", json!({ "introspection_endpoint": "http://trap.example/" }), None),
        ("redirected metadata", json!({}), Some((METADATA, 302, trap_url.clone()))),
        ("redirected keys", json!({}), Some(("/jwks", 307, trap_url.clone()))),
        ("keys without a list", json!({}), Some(("/jwks", 200, "{\"keys\":{}}".to_owned()))),
        ("keys in no JSON", json!({}), Some(("/jwks", 200, "<html>".to_owned()))),
        ("huge keys", json!({}), Some(("/jwks", 200, huge.clone()))),
        ("huge metadata", json!({}), Some((METADATA, 200, huge.clone()))),
    ] {
        let fixture = Fixture::new().await;
        fixture.provider.change_metadata(metadata);
        if let Some((path, status, body)) = page {
            fixture.provider.set_page(path, status, body);
        }
        let outcome = fixture.identify(&fixture.token(&fixture.key), now()).await;
        assert_eq!(outcome, Err(TokenRefusal::IssuerUnavailable), "{name}");
        fixture.provider.stop().await;
    }
    assert_eq!(trap.count("/jwks"), 0);
    trap.stop().await;
}

#[actix::test]
async fn metadata_at_the_first_url_is_enough() {
    let fixture = Fixture::new().await;
    let metadata =
        json!({ "issuer": fixture.provider.issuer, "jwks_uri": format!("{}/jwks", fixture.provider.issuer) });
    fixture.provider.set_page("/.well-known/oauth-authorization-server", 200, metadata.to_string());
    fixture.identify(&fixture.token(&fixture.key), now()).await.unwrap();
    assert_eq!(fixture.provider.count(METADATA), 0);
    fixture.provider.stop().await;
}

#[test]
fn keys_beyond_the_maximum_are_counted() {
    let key = TestKey::es256("one").public;
    let counts = |count: usize| {
        let keys = KeySet::parse(&json!({ "keys": vec![&key; count] })).unwrap();
        (keys.len(), keys.unused_count)
    };
    assert_eq!((counts(100), counts(103)), ((100, 0), (100, 3)));
}
