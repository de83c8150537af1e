//! Tokens of the provider that must be refused, one in each row, with a part of the reason.

use super::*;

const ISSUER: &str = "https://id.example";

/// A provider whose keys the gateway knows, and another key with the same id.
struct KnownProvider {
    provider: ConfiguredIdentityProvider,
    key: TestKey,
    other_key: TestKey,
}

impl KnownProvider {
    fn new() -> Self {
        let config = config(ISSUER).auth.oidc.unwrap();
        let client = client(&super::config(ISSUER));
        let issuer = Arc::clone(&client.provider.load_full().unwrap().issuer);
        let (key, other_key) = (TestKey::es256("one"), TestKey::es256("one"));
        let keys = KeySet::parse(&json!({ "keys": [key.public] })).unwrap();
        issuer.replace_snapshot(IssuerSnapshot {
            metadata: Metadata::default(),
            keys,
            read_at: now().as_millisecond(),
        });
        Self { provider: ConfiguredIdentityProvider { config, issuer }, key, other_key }
    }

    fn header(&self, changes: Value) -> Value {
        merge(&merge(&self.key.header(), json!({ "typ": "JWT" })), changes)
    }

    fn sign(&self, claims: &Value) -> String {
        self.key.sign(&self.header(json!({})), claims)
    }

    async fn check(&self, token: &str) -> Result<(), String> {
        let checked = self.provider.check_id_token(token, Some(NONCE), now()).await;
        checked.map(drop).map_err(|refusal| McpError::from(refusal).message.to_string())
    }

    async fn check_logout(&self, token: &str) -> Result<LogoutNotice, String> {
        let checked = self.provider.verify_logout_token(token, now()).await;
        checked.map_err(|refusal| McpError::from(refusal).message.to_string())
    }
}

#[track_caller]
fn assert_refused<T>(name: &str, checked: Result<T, String>, reason: &str) {
    match checked {
        Ok(_) => panic!("{name} is accepted"),
        Err(message) => assert!(message.contains(reason), "{name}: {message}"),
    }
}

#[actix::test]
async fn good_id_tokens_are_accepted() {
    let known = KnownProvider::new();
    let second = now().as_second();
    for changes in [
        json!({}),
        json!({ "aud": [CLIENT] }),
        json!({ "aud": [CLIENT, "other"], "azp": CLIENT }),
        json!({ "azp": CLIENT }),
        json!({ "exp": second - 59 }),
        json!({ "iat": second + 59, "nbf": second + 59 }),
    ] {
        let token = known.sign(&merge(&id_claims(ISSUER), changes.clone()));
        assert_eq!(known.check(&token).await, Ok(()), "{changes}");
    }
    let without_type = known.key.sign(&known.header(json!({ "typ": null })), &id_claims(ISSUER));
    assert_eq!(known.check(&without_type).await, Ok(()));
}

#[actix::test]
async fn id_tokens_with_wrong_claims_are_refused() {
    let known = KnownProvider::new();
    let second = now().as_second();
    for (name, changes, reason) in [
        ("other issuer", json!({ "iss": "https://other.example" }), "another issuer"),
        ("issuer with a slash", json!({ "iss": "https://id.example/" }), "another issuer"),
        ("no issuer", json!({ "iss": null }), "another issuer"),
        ("other audience", json!({ "aud": "other" }), "another audience"),
        ("no audience", json!({ "aud": null }), "no `aud`"),
        ("audience as number", json!({ "aud": 1 }), "neither a string nor an array"),
        ("several audiences without azp", json!({ "aud": [CLIENT, "other"] }), "no `azp`"),
        ("several audiences with other azp", json!({ "aud": [CLIENT, "other"], "azp": "other" }), "another client"),
        ("one audience with other azp", json!({ "azp": "other" }), "another client"),
        ("expired", json!({ "exp": second - 60 }), "expired"),
        ("no exp", json!({ "exp": null }), "no `exp`"),
        ("exp as text", json!({ "exp": "soon" }), "not a time"),
        ("not yet valid", json!({ "nbf": second + 61 }), "not valid yet"),
        ("issued in the future", json!({ "iat": second + 61 }), "in the future"),
        ("no iat", json!({ "iat": null }), "no `iat`"),
        ("other nonce", json!({ "nonce": "nonce-2" }), "nonce"),
        ("no nonce", json!({ "nonce": null }), "nonce"),
        ("nonce as list", json!({ "nonce": [NONCE] }), "nonce"),
        ("no subject", json!({ "sub": null }), "no `sub`"),
        ("empty subject", json!({ "sub": "" }), "not a non-empty string"),
        ("logout token", json!({ "events": { "http://schemas.openid.net/event/backchannel-logout": {} } }), "an event"),
    ] {
        let token = known.sign(&merge(&id_claims(ISSUER), changes));
        assert_refused(name, known.check(&token).await, reason);
    }
}

#[actix::test]
async fn id_tokens_with_wrong_header_or_signature_are_refused() {
    let known = KnownProvider::new();
    let claims = id_claims(ISSUER);
    let good = known.sign(&claims);
    for (name, changes, reason) in [
        ("access token", json!({ "typ": "at+jwt" }), "another kind"),
        ("logout token", json!({ "typ": "logout+jwt" }), "another kind"),
        ("none", json!({ "alg": "none" }), "not supported"),
        ("HS256", json!({ "alg": "HS256" }), "`alg` is not that of its key"),
        ("RS256", json!({ "alg": "RS256" }), "`alg` is not that of its key"),
        ("critical extension", json!({ "crit": ["exp"] }), "crit"),
    ] {
        assert_refused(name, known.check(&known.key.sign(&known.header(changes), &claims)).await, reason);
    }
    let forged = known.other_key.sign(&known.header(json!({})), &claims);
    assert_refused("key of another with the same id", known.check(&forged).await, "signature is wrong");
    let (signed, _) = good.rsplit_once('.').unwrap();
    for (name, token, reason) in [
        ("empty", String::new(), "three parts"),
        ("no signature", format!("{signed}."), "signature is wrong"),
        ("two parts", signed.to_owned(), "three parts"),
        ("five parts", format!("{good}.a.b"), "three parts"),
        ("too long", "x".repeat(20_000), "too long"),
    ] {
        assert_refused(name, known.check(&token).await, reason);
    }
    let twice = format!("{},\"sub\":\"bob\"}}", claims.to_string().trim_end_matches('}'));
    let twice = known.key.sign_text(&known.header(json!({})).to_string(), &twice);
    assert_refused("repeated claim", known.check(&twice).await, "repeated");
}

#[actix::test]
async fn logout_tokens_end_what_they_name() {
    let known = KnownProvider::new();
    let events = json!({ "http://schemas.openid.net/event/backchannel-logout": {} });
    let good = json!({
        "iss": ISSUER, "aud": CLIENT, "iat": now().as_second(), "exp": now().as_second() + 120,
        "jti": "1", "events": events, "sub": "alice", "sid": "s1",
    });
    for (name, changes, reason) in [
        ("ID token", json!({ "events": null }), "no logout"),
        ("other event", json!({ "events": { "x": {} } }), "no logout"),
        ("event as text", json!({ "events": "http://schemas.openid.net/event/backchannel-logout" }), "no logout"),
        ("nonce", json!({ "nonce": "n" }), "nonce"),
        ("nobody", json!({ "sub": null, "sid": null }), "neither"),
        ("no id", json!({ "jti": null }), "no `jti`"),
        ("other audience", json!({ "aud": "other" }), "another audience"),
        ("other issuer", json!({ "iss": "https://other.example" }), "another issuer"),
        ("expired", json!({ "exp": now().as_second() - 60 }), "expired"),
    ] {
        assert_refused(name, known.check_logout(&known.sign(&merge(&good, changes))).await, reason);
    }
    let session = |subject: &str, sid: Option<&str>| ProviderSession {
        issuer: ISSUER.into(),
        subject: subject.into(),
        sid: sid.map(str::to_owned),
        tokens: String::new(),
        auth_time: None,
        acr: None,
        has_refresh_token: false,
        ends_at: now(),
    };
    let ends = async |changes: Value| {
        let header = known.header(json!({ "typ": "logout+jwt" }));
        let notice = known.check_logout(&known.key.sign(&header, &merge(&good, changes))).await.unwrap();
        let sessions = [("alice", Some("s1")), ("alice", Some("s2")), ("bob", Some("s1")), ("alice", None)];
        sessions.map(|(subject, sid)| notice.ends(&session(subject, sid)))
    };
    assert_eq!(ends(json!({})).await, [true, false, false, false]);
    assert_eq!(ends(json!({ "sid": null })).await, [true, true, false, true]);
    assert_eq!(ends(json!({ "sub": null })).await, [true, false, true, false]);
}
