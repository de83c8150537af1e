//! Tokens of the provider that must be refused, each in a test of its own. They differ from a token that is accepted in
//! one fault.

use super::{super::super::tests::test_rows, *};
use crate::fixtures;

const ISSUER: &str = "https://id.example";
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";

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
        let (issuer, sealer) = (Arc::clone(&client.provider.load_full().unwrap().issuer), Arc::clone(&client.sealer));
        let (key, other_key) = (TestKey::es256("one"), TestKey::es256("one"));
        let keys = KeySet::parse(&json!({ "keys": [key.public] })).unwrap();
        issuer.replace_snapshot(IssuerSnapshot {
            metadata: Metadata::default(),
            keys,
            read_at: now().as_millisecond(),
        });
        Self { provider: ConfiguredIdentityProvider { config, issuer, sealer }, key, other_key }
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
fn assert_refused<T>(checked: Result<T, String>, reason: &str) {
    let message = checked.err().expect("the token is accepted");
    assert!(message.contains(reason), "{message}");
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

mod id_tokens_with_wrong_claims_are_refused {
    use super::*;

    async fn assert_claims_refused(changes: Value, reason: &str) {
        let known = KnownProvider::new();
        assert_eq!(known.check(&known.sign(&id_claims(ISSUER))).await, Ok(()));
        assert_refused(known.check(&known.sign(&merge(&id_claims(ISSUER), changes))).await, reason);
    }

    fn second() -> i64 {
        now().as_second()
    }

    test_rows! { async assert_claims_refused;
        other_issuer: json!({ "iss": "https://other.example" }), "another issuer";
        issuer_with_a_slash: json!({ "iss": "https://id.example/" }), "another issuer";
        no_issuer: json!({ "iss": null }), "another issuer";
        other_audience: json!({ "aud": "other" }), "another audience";
        no_audience: json!({ "aud": null }), "no `aud`";
        audience_as_a_number: json!({ "aud": 1 }), "neither a string nor an array";
        several_audiences_without_azp: json!({ "aud": [CLIENT, "other"] }), "no `azp`";
        several_audiences_with_other_azp: json!({ "aud": [CLIENT, "other"], "azp": "other" }), "another client";
        one_audience_with_other_azp: json!({ "azp": "other" }), "another client";
        expired: json!({ "exp": second() - 60 }), "expired";
        no_expiry: json!({ "exp": null }), "no `exp`";
        expiry_as_text: json!({ "exp": "soon" }), "not a time";
        not_yet_valid: json!({ "nbf": second() + 61 }), "not valid yet";
        issued_in_the_future: json!({ "iat": second() + 61 }), "in the future";
        no_time_of_issue: json!({ "iat": null }), "no `iat`";
        other_nonce: json!({ "nonce": "nonce-2" }), "nonce";
        no_nonce: json!({ "nonce": null }), "nonce";
        nonce_as_a_list: json!({ "nonce": [NONCE] }), "nonce";
        no_subject: json!({ "sub": null }), "no `sub`";
        empty_subject: json!({ "sub": "" }), "not a non-empty string";
        logout_token: json!({ "events": { LOGOUT_EVENT: {} } }), "an event";
    }
}

mod id_tokens_with_wrong_headers_are_refused {
    use super::*;

    async fn assert_header_refused(changes: Value, reason: &str) {
        let known = KnownProvider::new();
        let sign = |changes: Value| known.key.sign(&known.header(changes), &id_claims(ISSUER));
        assert_eq!(known.check(&sign(json!({}))).await, Ok(()));
        assert_refused(known.check(&sign(changes)).await, reason);
    }

    test_rows! { async assert_header_refused;
        access_token: json!({ "typ": "at+jwt" }), "another kind";
        logout_token: json!({ "typ": "logout+jwt" }), "another kind";
        alg_none: json!({ "alg": "none" }), "not supported";
        alg_hs256: json!({ "alg": "HS256" }), "`alg` is not that of its key";
        alg_rs256: json!({ "alg": "RS256" }), "`alg` is not that of its key";
        critical_extension: json!({ "crit": ["exp"] }), "crit";
    }
}

mod malformed_id_tokens_are_refused {
    use super::*;

    /// Checks a token that `change` makes of a good one.
    async fn assert_changed_refused(change: impl Fn(&KnownProvider, &str) -> String, reason: &str) {
        let known = KnownProvider::new();
        let good = known.sign(&id_claims(ISSUER));
        assert_eq!(known.check(&good).await, Ok(()));
        assert_refused(known.check(&change(&known, &good)).await, reason);
    }

    fn unsigned_part(token: &str) -> &str {
        token.rsplit_once('.').unwrap().0
    }

    fn with_repeated_claim(known: &KnownProvider) -> String {
        let claims = format!("{},\"sub\":\"bob\"}}", id_claims(ISSUER).to_string().trim_end_matches('}'));
        known.key.sign_text(&known.header(json!({})).to_string(), &claims)
    }

    fn with_key_of_another(known: &KnownProvider) -> String {
        known.other_key.sign(&known.header(json!({})), &id_claims(ISSUER))
    }

    test_rows! { async assert_changed_refused;
        empty_token: |_, _| String::new(), "three parts";
        empty_signature: |_, good| format!("{}.", unsigned_part(good)), "signature is wrong";
        two_parts: |_, good| unsigned_part(good).to_owned(), "three parts";
        five_parts: |_, good| format!("{good}.a.b"), "three parts";
        huge_token: |_, _| "x".repeat(20_000), "too long";
        repeated_claim: |known, _| with_repeated_claim(known), "repeated";
        key_of_another_with_the_same_id: |known, _| with_key_of_another(known), "signature is wrong";
    }
}

fn logout_claims() -> Value {
    json!({
        "iss": ISSUER, "aud": CLIENT, "iat": now().as_second(), "exp": now().as_second() + 120,
        "jti": "1", "events": { LOGOUT_EVENT: {} }, "sub": "alice", "sid": "s1",
    })
}

mod wrong_logout_tokens_are_refused {
    use super::*;

    async fn assert_logout_refused(changes: Value, reason: &str) {
        let known = KnownProvider::new();
        known.check_logout(&known.sign(&logout_claims())).await.unwrap();
        assert_refused(known.check_logout(&known.sign(&merge(&logout_claims(), changes))).await, reason);
    }

    test_rows! { async assert_logout_refused;
        id_token: json!({ "events": null }), "no logout";
        other_event: json!({ "events": { "x": {} } }), "no logout";
        event_as_text: json!({ "events": LOGOUT_EVENT }), "no logout";
        nonce: json!({ "nonce": "n" }), "nonce";
        nobody: json!({ "sub": null, "sid": null }), "neither";
        no_id: json!({ "jti": null }), "no `jti`";
        other_audience: json!({ "aud": "other" }), "another audience";
        other_issuer: json!({ "iss": "https://other.example" }), "another issuer";
        expired: json!({ "exp": now().as_second() - 60 }), "expired";
    }
}

#[actix::test]
async fn logout_tokens_end_what_they_name() {
    let known = KnownProvider::new();
    let session = |subject: &str, sid: Option<&str>| ProviderSession {
        issuer: ISSUER.into(),
        sid: sid.map(str::to_owned),
        ..fixtures::session(subject, now())
    };
    let ends = async |changes: Value| {
        let header = known.header(json!({ "typ": "logout+jwt" }));
        let notice = known.check_logout(&known.key.sign(&header, &merge(&logout_claims(), changes))).await.unwrap();
        let sessions = [("alice", Some("s1")), ("alice", Some("s2")), ("bob", Some("s1")), ("alice", None)];
        sessions.map(|(subject, sid)| notice.ends(&session(subject, sid)))
    };
    assert_eq!(ends(json!({})).await, [true, false, false, false]);
    assert_eq!(ends(json!({ "sid": null })).await, [true, true, false, true]);
    assert_eq!(ends(json!({ "sub": null })).await, [true, false, true, false]);
}
