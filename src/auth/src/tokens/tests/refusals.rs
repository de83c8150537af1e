//! Tokens that must be refused, each in a test of its own. They differ from a token that is accepted in one fault.

use std::sync::LazyLock;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use ring::hmac;

use super::{signing::encode, *};

const SECOND: i64 = NOW_SECOND;
/// The DER encoding of a public key on P-256 (RFC 5480), before its point.
const P256_KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Two issuers whose keys the verifier knows, and an attacker.
struct Issuers {
    verifier: TokenVerifier,
    key: TestKey,
    ed_key: TestKey,
    other_key: TestKey,
    attacker: TestKey,
}

/// The tests share the issuers, because each set of keys takes a while to make.
static ISSUERS: LazyLock<Issuers> = LazyLock::new(Issuers::new);

impl Issuers {
    /// Creates the issuers. The first one has two keys of the same kind and one of each other.
    fn new() -> Self {
        let (key, ed_key, other_key) = (TestKey::es256("one"), TestKey::ed25519("ed"), TestKey::es256("other"));
        let more = [
            TestKey::es256("two"),
            TestKey::es384("p384"),
            TestKey::rsa("rsa", "RS256").published_with(json!({ "alg": "PS256" })),
        ];
        let verifier = TokenVerifier::new(&[issuer_config(ISSUER), issuer_config(OTHER_ISSUER)], Some(RESOURCE));
        let keys: Vec<&TestKey> = more.iter().chain([&key, &ed_key]).collect();
        learn_keys(&verifier, ISSUER, &keys, now());
        learn_keys(&verifier, OTHER_ISSUER, &[&other_key], now());
        Self { verifier, key, ed_key, other_key, attacker: TestKey::es256("attacker") }
    }
}

fn good_token() -> String {
    ISSUERS.key.sign(&ISSUERS.key.header(), &claims(now()))
}

/// Checks that a token is refused for this reason, and that the one without its fault is accepted.
#[track_caller]
fn assert_refused(good: &str, faulty: &str, reason: &str) {
    ISSUERS.verifier.identify(good, now()).unwrap();
    assert_invalid(&ISSUERS.verifier, faulty, reason);
}

#[track_caller]
fn assert_invalid(verifier: &TokenVerifier, token: &str, reason: &str) {
    let error = McpError::from(verifier.identify(token, now()).expect_err("the token is accepted"));
    assert!(error.message.contains(reason), "{}", error.message);
    assert_eq!((error.kind.status(), &error.data["tokenError"]), (401, &json!("invalid_token")));
}

/// Checks a token whose claims differ from good ones.
#[track_caller]
fn assert_claims_refused(changes: Value, reason: &str) {
    assert_claims_refused_with(&ISSUERS.key.header(), changes, reason);
}

#[track_caller]
fn assert_claims_refused_with(header: &Value, changes: Value, reason: &str) {
    let sign = |claims: &Value| ISSUERS.key.sign(header, claims);
    assert_refused(&sign(&claims(now())), &sign(&merge(&claims(now()), changes)), reason);
}

mod tokens_with_wrong_claims_are_refused {
    use super::*;

    test_rows! { assert_claims_refused;
        other_audience: json!({ "aud": "https://gw2.example/mcp" }), "another audience";
        audience_with_a_slash: json!({ "aud": "https://gw.example/mcp/" }), "another audience";
        audience_in_other_case: json!({ "aud": "https://GW.example/mcp" }), "another audience";
        audience_that_begins_with_ours: json!({ "aud": "https://gw.example/mcp?x" }), "another audience";
        no_audience: json!({ "aud": null }), "no `aud`";
        list_of_other_audiences: json!({ "aud": ["a", "https://gw2.example"] }), "another audience";
        empty_list_of_audiences: json!({ "aud": [] }), "another audience";
        list_of_audiences_with_a_number: json!({ "aud": [RESOURCE, 1] }), "neither a string nor an array";
        audience_as_an_object: json!({ "aud": { RESOURCE: 1 } }), "neither a string nor an array";
        issuer_that_is_not_configured: json!({ "iss": "https://evil.example" }), "not configured";
        issuer_with_a_slash: json!({ "iss": "https://id.example/" }), "not configured";
        issuer_in_other_case: json!({ "iss": "https://ID.example" }), "not configured";
        no_issuer: json!({ "iss": null }), "no `iss`";
        issuer_as_a_list: json!({ "iss": [ISSUER] }), "`iss` is not a non-empty string";
        expired_long_ago: json!({ "exp": SECOND - 600 }), "expired";
        expired_just_outside_the_skew: json!({ "exp": SECOND - 60 }), "expired";
        no_expiry: json!({ "exp": null }), "no `exp`";
        expiry_as_text: json!({ "exp": (SECOND + 600).to_string() }), "`exp` is not a time";
        huge_expiry: json!({ "exp": u64::MAX }), "`exp` is not a time";
        huge_fractional_expiry: json!({ "exp": 1e300 }), "`exp` is not a time";
        expiry_in_milliseconds: json!({ "exp": (SECOND + 600) * 1000 }), "`exp` is not a time";
        negative_expiry: json!({ "exp": -1 }), "`exp` is not a time";
        expiry_as_a_boolean: json!({ "exp": true }), "`exp` is not a time";
        not_yet_valid: json!({ "nbf": SECOND + 61 }), "not valid yet";
        start_as_text: json!({ "nbf": "now" }), "`nbf` is not a time";
        issued_in_the_future: json!({ "iat": SECOND + 61 }), "issued in the future";
        time_of_issue_as_a_list: json!({ "iat": [SECOND] }), "`iat` is not a time";
        no_subject: json!({ "sub": null }), "no `sub`";
        empty_subject: json!({ "sub": "" }), "`sub` is not a non-empty string";
        subject_as_a_number: json!({ "sub": 7 }), "`sub` is not a non-empty string";
        long_subject: json!({ "sub": "a".repeat(256) }), "too long";
        long_client_id: json!({ "client_id": "a".repeat(256) }), "too long";
        client_id_as_a_list: json!({ "client_id": ["agent"] }), "`client_id` is not a non-empty string";
        id_token_by_its_use: json!({ "token_use": "id" }), "token_use";
        refresh_token_by_its_use: json!({ "token_use": "refresh_token" }), "token_use";
        refresh_token_of_keycloak: json!({ "typ": "Refresh" }), "`typ`";
        id_token_of_keycloak: json!({ "typ": "ID" }), "`typ`";
        token_bound_to_a_key: json!({ "cnf": { "jkt": "x" } }), "bound to a key";
    }
}

#[test]
fn clock_skew_of_less_than_a_minute_is_tolerated() {
    for changes in [json!({ "exp": SECOND - 59 }), json!({ "nbf": SECOND + 60 }), json!({ "iat": SECOND + 60 })] {
        let token = ISSUERS.key.sign(&ISSUERS.key.header(), &merge(&claims(now()), changes.clone()));
        assert!(ISSUERS.verifier.identify(&token, now()).is_ok(), "{changes}");
    }
}

mod id_tokens_are_refused_unless_marked_as_access_tokens {
    use super::*;

    #[track_caller]
    fn assert_unmarked_refused(changes: Value, reason: &str) {
        assert_claims_refused_with(&merge(&ISSUERS.key.header(), json!({ "typ": "JWT" })), changes, reason);
    }

    test_rows! { assert_unmarked_refused;
        nonce: json!({ "nonce": "n" }), "an ID token";
        at_hash: json!({ "at_hash": "h" }), "an ID token";
        c_hash: json!({ "c_hash": "h" }), "an ID token";
        client_as_the_only_audience: json!({ "client_id": null, "azp": RESOURCE }), "its own client";
        logout_token: json!({ "events": {} }), "reports an event";
        time_of_a_sign_in_without_a_scope: json!({ "auth_time": 1, "scope": null }), "describes a sign-in";
        session_without_a_scope: json!({ "sid": "s", "scope": null }), "describes a sign-in";
        no_scope_and_no_client: json!({ "client_id": null, "scope": null }), "neither a scope nor a client";
    }

    #[test]
    fn marked_token_is_accepted() {
        let marked = ISSUERS.key.sign(&ISSUERS.key.header(), &merge(&claims(now()), json!({ "nonce": "n" })));
        ISSUERS.verifier.identify(&marked, now()).unwrap();
    }
}

mod tokens_with_wrong_headers_are_refused {
    use super::*;

    #[track_caller]
    fn assert_header_refused(changes: Value, reason: &str) {
        let key = &ISSUERS.key;
        assert_refused(&good_token(), &key.sign(&merge(&key.header(), changes), &claims(now())), reason);
    }

    test_rows! { assert_header_refused;
        alg_none: json!({ "alg": "none" }), "`alg` is not supported";
        alg_none_in_other_case: json!({ "alg": "None" }), "`alg` is not supported";
        no_alg: json!({ "alg": null }), "`alg` is not supported";
        alg_as_a_list: json!({ "alg": ["ES256"] }), "`alg` is not supported";
        alg_in_lower_case: json!({ "alg": "es256" }), "`alg` is not supported";
        alg_of_another_curve: json!({ "alg": "ES384" }), "not that of its key";
        alg_of_another_kind_of_key: json!({ "alg": "RS256" }), "not that of its key";
        alg_of_p521: json!({ "alg": "ES512" }), "`alg` is not supported";
        unknown_kid: json!({ "kid": "three" }), "its issuer does not have";
        kid_of_another_key: json!({ "kid": "two" }), "signature is wrong";
        no_kid_although_two_keys_fit: json!({ "kid": null }), "does not say which key";
        kid_as_a_number: json!({ "kid": 1 }), "malformed";
        kid_of_another_issuer: json!({ "kid": "other" }), "its issuer does not have";
        kid_as_a_path: json!({ "kid": "../../dev/null" }), "its issuer does not have";
        crit: json!({ "crit": ["exp"] }), "`crit`";
        empty_crit: json!({ "crit": [] }), "`crit`";
        unencoded_payload: json!({ "b64": false, "crit": ["b64"] }), "`crit`";
        typ_of_a_logout_token: json!({ "typ": "logout+jwt" }), "`typ` in its header";
        typ_of_an_id_jag: json!({ "typ": "oauth-id-jag+jwt" }), "`typ` in its header";
        typ_of_a_dpop_proof: json!({ "typ": "dpop+jwt" }), "`typ` in its header";
        typ_as_a_list: json!({ "typ": ["JWT"] }), "malformed";
    }

    #[test]
    fn alg_none_without_a_signature() {
        let header = json!({ "typ": "at+jwt", "alg": "none" });
        let unsigned = format!("{}.{}.", encode(header.to_string()), encode(claims(now()).to_string()));
        assert_refused(&good_token(), &unsigned, "`alg` is not supported");
    }
}

/// The header offers the key of an attacker, who signed the token. Nothing is fetched from the addresses.
mod tokens_that_bring_their_own_key_are_refused {
    use super::*;

    #[track_caller]
    fn assert_key_in_header_refused(changes: Value, reason: &str) {
        let sign = |key: &TestKey| key.sign(&merge(&key.header(), changes.clone()), &claims(now()));
        assert_refused(&sign(&ISSUERS.key), &sign(&ISSUERS.attacker), reason);
    }

    test_rows! { assert_key_in_header_refused;
        jku: json!({ "jku": "http://127.0.0.1:9/jwks" }), "its issuer does not have";
        jku_with_a_known_kid: json!({ "jku": "http://127.0.0.1:9/jwks", "kid": "one" }), "signature is wrong";
        x5u: json!({ "x5u": "http://127.0.0.1:9/x5u" }), "its issuer does not have";
        jwk: json!({ "jwk": ISSUERS.attacker.public }), "its issuer does not have";
        jwk_with_a_known_kid: json!({ "jwk": ISSUERS.attacker.public, "kid": "one" }), "signature is wrong";
    }
}

mod tokens_that_another_issuer_signed_are_refused {
    use super::*;

    /// Checks a token with this `iss` that the key of another issuer signed, beside one of its own key.
    #[track_caller]
    fn assert_foreign_key_refused(issuer: &str, own: &TestKey, foreign: &TestKey) {
        let sign = |key: &TestKey| key.sign(&key.header(), &merge(&claims(now()), json!({ "iss": issuer })));
        assert_refused(&sign(own), &sign(foreign), "does not have");
    }

    test_rows! { assert_foreign_key_refused;
        first_issuer: ISSUER, &ISSUERS.key, &ISSUERS.other_key;
        second_issuer: OTHER_ISSUER, &ISSUERS.other_key, &ISSUERS.key;
    }
}

mod tokens_signed_with_a_public_key_as_secret_are_refused {
    use super::*;

    #[track_caller]
    fn assert_secret_refused(secret: &[u8]) {
        let header = merge(&ISSUERS.key.header(), json!({ "alg": "HS256" }));
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims(now()).to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        assert_refused(&good_token(), &format!("{signed}.{}", encode(tag)), "not that of its key");
    }

    fn public_point() -> Vec<u8> {
        let coordinate = |name| URL_SAFE_NO_PAD.decode(ISSUERS.key.public[name].as_str().unwrap()).unwrap();
        [vec![4], coordinate("x"), coordinate("y")].concat()
    }

    fn public_pem() -> String {
        let text = STANDARD.encode([&P256_KEY_PREFIX[..], &public_point()].concat());
        let (first, second) = text.split_at(64);
        format!("-----BEGIN PUBLIC KEY-----\n{first}\n{second}\n-----END PUBLIC KEY-----\n")
    }

    test_rows! { assert_secret_refused;
        hs256_with_the_jwk: ISSUERS.key.public.to_string().as_bytes();
        hs256_with_the_pem: public_pem().as_bytes();
        hs256_with_the_point: &public_point();
    }
}

mod tokens_of_unusable_keys_are_refused {
    use super::*;

    fn rsa_key() -> TestKey {
        TestKey::rsa("rsa", "RS256")
    }

    fn weak_key() -> Value {
        serde_json::from_str(include_str!("rsa-1024.json")).unwrap()
    }

    fn verifier_of(key: &TestKey) -> TokenVerifier {
        let verifier = TokenVerifier::new(&[issuer_config(ISSUER)], Some(RESOURCE));
        learn_keys(&verifier, ISSUER, &[key], now());
        verifier
    }

    /// Checks a token whose issuer publishes the key with other members, beside the same one of a usual key.
    #[track_caller]
    fn assert_key_refused(changes: Value, reason: &str) {
        let key = rsa_key().published_with(changes);
        let usual = rsa_key().published_with(json!({ "kid": key.public["kid"] }));
        let token = key.sign(&key.header(), &claims(now()));
        verifier_of(&usual).identify(&token, now()).unwrap();
        assert_invalid(&verifier_of(&key), &token, reason);
    }

    test_rows! { assert_key_refused;
        key_for_encryption: json!({ "use": "enc" }), "does not have";
        key_without_verify: json!({ "key_ops": ["encrypt"] }), "does not have";
        key_of_another_algorithm: json!({ "alg": "PS256" }), "not that of its key";
        key_of_an_algorithm_for_encryption: json!({ "alg": "RSA-OAEP" }), "does not have";
        key_of_an_unknown_kind: json!({ "kty": "oct", "k": "AAAA" }), "does not have";
        malformed_key: json!({ "n": "not base64url!" }), "does not have";
        key_of_1024_bits: json!({ "kid": "rsa-1024", "n": weak_key()["key"]["n"] }), "does not have";
    }

    #[test]
    fn signature_of_1024_bits() {
        let weak = weak_key();
        let verifier = verifier_of(&rsa_key().published_with(weak["key"].clone()));
        assert_invalid(&verifier, weak["token"].as_str().unwrap(), "does not have");
    }

    #[test]
    fn usual_forms_of_a_key_are_accepted() {
        let number = URL_SAFE_NO_PAD.decode(rsa_key().public["n"].as_str().unwrap()).unwrap();
        for changes in [
            json!({ "n": encode([vec![0], number].concat()) }),
            json!({ "use": "sig", "key_ops": ["verify"], "alg": "RS256" }),
        ] {
            let key = rsa_key().published_with(changes);
            verifier_of(&key).identify(&key.sign(&key.header(), &claims(now())), now()).unwrap();
        }
    }
}

mod malformed_tokens_are_refused {
    use super::*;

    /// Checks a token that `change` makes of the three parts of a good one.
    #[track_caller]
    fn assert_parts_refused(change: impl Fn(&str, &str, &str) -> String, reason: &str) {
        let good = good_token();
        let [header, claims, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
        assert_refused(&good, &change(header, claims, signature), reason);
    }

    test_rows! { assert_parts_refused;
        empty_signature: |header, claims, _| format!("{header}.{claims}."), "signature is wrong";
        no_signature: |header, claims, _| format!("{header}.{claims}"), "three parts";
        no_claims: |header, _, signature| format!("{header}..{signature}"), "JSON objects";
        no_header: |_, claims, signature| format!(".{claims}.{signature}"), "not a JWT";
        header_only: |header, _, _| header.to_owned(), "not a JWT";
        four_parts: |header, claims, signature| format!("{header}.{claims}.{signature}.{signature}"), "three parts";
        five_parts_of_an_encrypted_token:
            |header, claims, signature| format!("{header}.{claims}.{signature}.{claims}.{signature}"), "three parts";
        padding: |header, claims, signature| format!("{header}.{claims}.{signature}=="), "not base64url";
        standard_base64:
            |header, claims, signature| format!("{header}.{claims}.+/{}", &signature[2..]), "not base64url";
        characters_of_no_base64: |header, _, signature| format!("{header}.~~~~.{signature}"), "not base64url";
        half_a_character_more:
            |header, claims, signature| format!("{header}.{claims}.{signature}A"), "signature is wrong";
        huge_token: |header, _, signature| format!("{header}.{}.{signature}", "A".repeat(MAX_TOKEN_BYTES)), "too long";
        opaque_token: |_, _, _| "0123456789abcdef".to_owned(), "not a JWT";
        empty_token: |_, _, _| String::new(), "not a JWT";
        claims_of_two_tokens:
            |header, claims, signature| format!("{header}.{claims}{claims}.{signature}"), "is malformed";
    }
}

mod tokens_of_malformed_json_are_refused {
    use super::*;

    /// Checks a signed token whose header and claims `change` makes of the JSON of good ones.
    #[track_caller]
    fn assert_json_refused(change: impl Fn(String, String) -> (String, String), reason: &str) {
        let key = &ISSUERS.key;
        let (header, claims) = (key.header().to_string(), claims(now()).to_string());
        let good = key.sign_text(&header, &claims);
        let (header, claims) = change(header, claims);
        assert_refused(&good, &key.sign_text(&header, &claims), reason);
    }

    /// Puts a member before those of an object.
    fn insert_first(object: &str, member: &str) -> String {
        format!("{{{member},{}", &object[1..])
    }

    fn with_deep_member(claims: &str) -> String {
        insert_first(claims, &format!(r#""x":{}0{}"#, "[".repeat(40), "]".repeat(40)))
    }

    test_rows! { assert_json_refused;
        repeated_header: |header, claims| (insert_first(&header, r#""alg":"none""#), claims), "repeated";
        repeated_claim: |header, claims| (header, insert_first(&claims, r#""sub":"bob""#)), "repeated";
        claim_repeated_with_an_escape:
            |header, claims| (header, insert_first(&claims, r#""s\u0075b":"bob""#)), "repeated";
        repeated_inner_member: |header, claims| (header, insert_first(&claims, r#""x":{"a":1,"a":2}"#)), "repeated";
        claims_as_an_array: |header, claims| (header, format!("[{claims}]")), "JSON objects";
        claims_as_a_text: |header, _| (header, "\"claims\"".to_owned()), "JSON objects";
        two_objects: |header, claims| (header, format!("{claims}{claims}")), "JSON objects";
        nested_jwt: |header, _| (insert_first(&header, r#""cty":"JWT""#), good_token()), "JSON objects";
        deep_claims: |header, claims| (header, with_deep_member(&claims)), "deeply";
    }
}

mod changed_and_truncated_tokens_are_refused {
    use super::*;

    /// Checks all tokens that `changes` makes of a good one.
    fn assert_all_refused(key: &TestKey, changes: impl Fn(&str) -> Vec<String>) {
        let good = key.sign(&key.header(), &claims(now()));
        for token in changes(&good) {
            assert!(ISSUERS.verifier.identify(&token, now()).is_err(), "{token} of {good}");
        }
        ISSUERS.verifier.identify(&good, now()).unwrap();
    }

    fn truncate_anywhere(token: &str) -> Vec<String> {
        (0..token.len()).map(|length| token[..length].to_owned()).collect()
    }

    fn change_each_character(token: &str) -> Vec<String> {
        let change = |at: usize| {
            let other = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
            format!("{}{other}{}", &token[..at], &token[at + 1..])
        };
        (0..token.len()).map(change).collect()
    }

    test_rows! { assert_all_refused;
        truncated_es256: &ISSUERS.key, truncate_anywhere;
        truncated_ed25519: &ISSUERS.ed_key, truncate_anywhere;
        changed_es256: &ISSUERS.key, change_each_character;
        changed_ed25519: &ISSUERS.ed_key, change_each_character;
    }
}

#[test]
fn token_without_any_known_audience_is_refused() {
    let verifier = TokenVerifier::new(&[issuer_config(ISSUER)], None);
    learn_keys(&verifier, ISSUER, &[&ISSUERS.key], now());
    let error = verifier.identify(&good_token(), now()).unwrap_err();
    assert_eq!(error, TokenRefusal::invalid("the token is for another audience"));
}
