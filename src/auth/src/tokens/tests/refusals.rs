//! Tokens that must be refused, one in each row, with a part of the reason.

use ring::hmac;

use super::{signing::encode, *};

/// Two issuers whose keys the verifier knows.
struct Issuers {
    verifier: TokenVerifier,
    key: TestKey,
    other_key: TestKey,
}

impl Issuers {
    /// Creates two issuers. The first one has two keys of the same kind and one of each other.
    fn new() -> Self {
        let key = TestKey::es256("one");
        let more = [
            TestKey::es256("two"),
            TestKey::es384("p384"),
            TestKey::ed25519("ed"),
            TestKey::rsa("rsa", "RS256").published_with(json!({ "alg": "PS256" })),
        ];
        let other_key = TestKey::es256("other");
        let verifier = TokenVerifier::new(&[issuer_config(ISSUER), issuer_config(OTHER_ISSUER)], Some(RESOURCE));
        let keys: Vec<&TestKey> = more.iter().chain([&key]).collect();
        learn_keys(&verifier, ISSUER, &keys, now());
        learn_keys(&verifier, OTHER_ISSUER, &[&other_key], now());
        Self { verifier, key, other_key }
    }

    fn good(&self) -> String {
        self.key.sign(&self.key.header(), &claims(now()))
    }

    #[track_caller]
    fn assert_refused(&self, name: &str, token: &str, reason: &str) {
        match self.verifier.identify(token, now()) {
            Ok(_) => panic!("{name} is accepted"),
            Err(refusal) => {
                let error = McpError::from(refusal);
                assert!(error.message.contains(reason), "{name}: {}", error.message);
                assert_eq!((error.kind.status(), &error.data["tokenError"]), (401, &json!("invalid_token")), "{name}");
            }
        }
    }

    /// Checks tokens whose claims differ from good ones.
    #[track_caller]
    fn assert_claims_refused(&self, header: &Value, rows: &[(&str, Value, &str)]) {
        for (name, changes, reason) in rows {
            self.assert_refused(name, &self.key.sign(header, &merge(&claims(now()), changes.clone())), reason);
        }
    }
}

#[test]
fn good_token_is_accepted() {
    let issuers = Issuers::new();
    issuers.verifier.identify(&issuers.good(), now()).unwrap();
}

#[test]
fn tokens_with_wrong_claims_are_refused() {
    let issuers = Issuers::new();
    let second = now().as_second();
    let rows = [
        ("other audience", json!({ "aud": "https://gw2.example/mcp" }), "another audience"),
        ("audience with a slash", json!({ "aud": "https://gw.example/mcp/" }), "another audience"),
        ("audience in other case", json!({ "aud": "https://GW.example/mcp" }), "another audience"),
        ("audience that begins with ours", json!({ "aud": "https://gw.example/mcp?x" }), "another audience"),
        ("no audience", json!({ "aud": null }), "no `aud`"),
        ("audiences without ours", json!({ "aud": ["a", "https://gw2.example"] }), "another audience"),
        ("empty list of audiences", json!({ "aud": [] }), "another audience"),
        ("list of audiences with a number", json!({ "aud": [RESOURCE, 1] }), "neither a string nor an array"),
        ("audience as an object", json!({ "aud": { RESOURCE: 1 } }), "neither a string nor an array"),
        ("issuer that is not configured", json!({ "iss": "https://evil.example" }), "not configured"),
        ("issuer with a slash", json!({ "iss": "https://id.example/" }), "not configured"),
        ("issuer in other case", json!({ "iss": "https://ID.example" }), "not configured"),
        ("no issuer", json!({ "iss": null }), "no `iss`"),
        ("issuer as a list", json!({ "iss": [ISSUER] }), "`iss` is not a non-empty string"),
        ("expired", json!({ "exp": second - 600 }), "expired"),
        ("expired just outside the skew", json!({ "exp": second - 60 }), "expired"),
        ("no expiry", json!({ "exp": null }), "no `exp`"),
        ("expiry as text", json!({ "exp": (second + 600).to_string() }), "`exp` is not a time"),
        ("huge expiry", json!({ "exp": u64::MAX }), "`exp` is not a time"),
        ("huge fractional expiry", json!({ "exp": 1e300 }), "`exp` is not a time"),
        ("expiry in milliseconds", json!({ "exp": (second + 600) * 1000 }), "`exp` is not a time"),
        ("negative expiry", json!({ "exp": -1 }), "`exp` is not a time"),
        ("expiry as a boolean", json!({ "exp": true }), "`exp` is not a time"),
        ("not valid yet", json!({ "nbf": second + 61 }), "not valid yet"),
        ("start as text", json!({ "nbf": "now" }), "`nbf` is not a time"),
        ("issued in the future", json!({ "iat": second + 61 }), "issued in the future"),
        ("time of issue as a list", json!({ "iat": [second] }), "`iat` is not a time"),
        ("no subject", json!({ "sub": null }), "no `sub`"),
        ("empty subject", json!({ "sub": "" }), "`sub` is not a non-empty string"),
        ("subject as a number", json!({ "sub": 7 }), "`sub` is not a non-empty string"),
        ("long subject", json!({ "sub": "a".repeat(256) }), "too long"),
        ("long client id", json!({ "client_id": "a".repeat(256) }), "too long"),
        ("client id as a list", json!({ "client_id": ["agent"] }), "`client_id` is not a non-empty string"),
        ("token_use id", json!({ "token_use": "id" }), "token_use"),
        ("token_use refresh_token", json!({ "token_use": "refresh_token" }), "token_use"),
        ("refresh token of Keycloak", json!({ "typ": "Refresh" }), "`typ`"),
        ("ID token of Keycloak", json!({ "typ": "ID" }), "`typ`"),
        ("bound to a key (DPoP)", json!({ "cnf": { "jkt": "x" } }), "bound to a key"),
    ];
    issuers.assert_claims_refused(&issuers.key.header(), &rows);
}

#[test]
fn clock_skew_of_less_than_a_minute_is_tolerated() {
    let issuers = Issuers::new();
    let second = now().as_second();
    for changes in [json!({ "exp": second - 59 }), json!({ "nbf": second + 60 }), json!({ "iat": second + 60 })] {
        let token = issuers.key.sign(&issuers.key.header(), &merge(&claims(now()), changes.clone()));
        assert!(issuers.verifier.identify(&token, now()).is_ok(), "{changes}");
    }
}

#[test]
fn id_tokens_are_refused_unless_marked_as_access_tokens() {
    let issuers = Issuers::new();
    let header = merge(&issuers.key.header(), json!({ "typ": "JWT" }));
    let rows = [
        ("nonce", json!({ "nonce": "n" }), "an ID token"),
        ("at_hash", json!({ "at_hash": "h" }), "an ID token"),
        ("c_hash", json!({ "c_hash": "h" }), "an ID token"),
        ("only its client as audience", json!({ "client_id": null, "azp": RESOURCE }), "its own client"),
        ("logout token", json!({ "events": {} }), "reports an event"),
        ("auth_time without a scope", json!({ "auth_time": 1, "scope": null }), "describes a sign-in"),
        ("sid without a scope", json!({ "sid": "s", "scope": null }), "describes a sign-in"),
        ("neither a scope nor a client", json!({ "client_id": null, "scope": null }), "neither a scope nor a client"),
    ];
    issuers.assert_claims_refused(&header, &rows);
    let marked = issuers.key.sign(&issuers.key.header(), &merge(&claims(now()), json!({ "nonce": "n" })));
    issuers.verifier.identify(&marked, now()).unwrap();
}

#[test]
fn tokens_with_wrong_headers_are_refused() {
    let issuers = Issuers::new();
    let (key, attacker) = (&issuers.key, TestKey::es256("attacker"));
    let rows = [
        ("alg none", json!({ "alg": "none" }), "`alg` is not supported"),
        ("alg None", json!({ "alg": "None" }), "`alg` is not supported"),
        ("no alg", json!({ "alg": null }), "`alg` is not supported"),
        ("alg as a list", json!({ "alg": ["ES256"] }), "`alg` is not supported"),
        ("alg in lower case", json!({ "alg": "es256" }), "`alg` is not supported"),
        ("alg of another curve", json!({ "alg": "ES384" }), "not that of its key"),
        ("alg of another kind of key", json!({ "alg": "RS256" }), "not that of its key"),
        ("alg ES512", json!({ "alg": "ES512" }), "`alg` is not supported"),
        ("unknown kid", json!({ "kid": "three" }), "its issuer does not have"),
        ("kid of another key", json!({ "kid": "two" }), "signature is wrong"),
        ("no kid, and two keys fit", json!({ "kid": null }), "does not say which key"),
        ("kid as a number", json!({ "kid": 1 }), "malformed"),
        ("kid of another issuer", json!({ "kid": "other" }), "its issuer does not have"),
        ("kid as a path", json!({ "kid": "../../dev/null" }), "its issuer does not have"),
        ("crit", json!({ "crit": ["exp"] }), "`crit`"),
        ("empty crit", json!({ "crit": [] }), "`crit`"),
        ("unencoded payload", json!({ "b64": false, "crit": ["b64"] }), "`crit`"),
        ("typ of a logout token", json!({ "typ": "logout+jwt" }), "`typ` in its header"),
        ("typ of an ID-JAG", json!({ "typ": "oauth-id-jag+jwt" }), "`typ` in its header"),
        ("typ of a DPoP proof", json!({ "typ": "dpop+jwt" }), "`typ` in its header"),
        ("typ as a list", json!({ "typ": ["JWT"] }), "malformed"),
    ];
    for (name, changes, reason) in rows {
        issuers.assert_refused(name, &key.sign(&merge(&key.header(), changes), &claims(now())), reason);
    }
    for (name, changes, reason) in [
        ("jku", json!({ "jku": "http://127.0.0.1:9/jwks" }), "its issuer does not have"),
        ("x5u", json!({ "x5u": "http://127.0.0.1:9/x5u" }), "its issuer does not have"),
        ("jwk", json!({ "jwk": attacker.public }), "its issuer does not have"),
        ("jwk with a known kid", json!({ "jwk": attacker.public, "kid": "one" }), "signature is wrong"),
        ("jku with a known kid", json!({ "jku": "http://127.0.0.1:9/jwks", "kid": "one" }), "signature is wrong"),
    ] {
        issuers.assert_refused(name, &attacker.sign(&merge(&attacker.header(), changes), &claims(now())), reason);
    }
}

#[test]
fn tokens_that_another_issuer_signed_are_refused() {
    let issuers = Issuers::new();
    let (key, other) = (&issuers.key, &issuers.other_key);
    let of_other = merge(&claims(now()), json!({ "iss": OTHER_ISSUER }));
    issuers.verifier.identify(&other.sign(&other.header(), &of_other), now()).unwrap();
    issuers.assert_refused("signed by another issuer", &other.sign(&other.header(), &claims(now())), "does not have");
    issuers.assert_refused("naming another issuer", &key.sign(&key.header(), &of_other), "does not have");
}

#[test]
fn tokens_signed_with_a_public_key_as_secret_are_refused() {
    let issuers = Issuers::new();
    let public = &issuers.key.public;
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", public["x"].as_str().unwrap());
    let point = public["x"].as_str().unwrap().as_bytes().to_vec();
    for (name, secret) in [("JWK", public.to_string().into_bytes()), ("PEM", pem.into_bytes()), ("x", point)] {
        let header = json!({ "typ": "at+jwt", "alg": "HS256", "kid": "one" });
        let signed = format!("{}.{}", encode(header.to_string()), encode(claims(now()).to_string()));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret), signed.as_bytes());
        issuers.assert_refused(name, &format!("{signed}.{}", encode(tag)), "not that of its key");
    }
}

#[test]
fn tokens_of_unusable_keys_are_refused() {
    let weak: Value = serde_json::from_str(include_str!("rsa-1024.json")).unwrap();
    let rsa = || TestKey::rsa("rsa", "RS256");
    let with = |changes: Value| rsa().published_with(changes);
    let verifier = TokenVerifier::new(&[issuer_config(ISSUER)], Some(RESOURCE));
    for (name, key, is_accepted) in [
        ("usual", rsa(), true),
        ("with a leading zero", with(json!({ "n": leading_zero(&rsa().public["n"]) })), true),
        ("use sig", with(json!({ "use": "sig", "key_ops": ["verify"], "alg": "RS256" })), true),
        ("use enc", with(json!({ "use": "enc" })), false),
        ("key_ops without verify", with(json!({ "key_ops": ["encrypt"] })), false),
        ("other alg", with(json!({ "alg": "PS256" })), false),
        ("alg for encryption", with(json!({ "alg": "RSA-OAEP" })), false),
        ("unknown kind", with(json!({ "kty": "oct", "k": "AAAA" })), false),
        ("malformed", with(json!({ "n": "not base64url!" })), false),
        ("RSA of 1024 bits", with(json!({ "kid": "rsa-1024", "n": weak["key"]["n"] })), false),
    ] {
        learn_keys(&verifier, ISSUER, &[&key], now());
        let token = key.sign(&key.header(), &claims(now()));
        assert_eq!(verifier.identify(&token, now()).is_ok(), is_accepted, "{name}");
    }
    let (token, key) = (weak["token"].as_str().unwrap(), rsa().published_with(weak["key"].clone()));
    learn_keys(&verifier, ISSUER, &[&key], now());
    assert!(verifier.identify(token, now()).is_err(), "signed with 1024 bits");
}

fn leading_zero(number: &Value) -> String {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    encode([vec![0], URL_SAFE_NO_PAD.decode(number.as_str().unwrap()).unwrap()].concat())
}

#[test]
fn malformed_tokens_are_refused() {
    let issuers = Issuers::new();
    let good = issuers.good();
    let parts: Vec<&str> = good.split('.').collect();
    let [header, claims, signature] = parts[..] else { panic!("{good}") };
    let rows = [
        ("empty signature", format!("{header}.{claims}."), "signature is wrong"),
        ("no signature", format!("{header}.{claims}"), "three parts"),
        ("no claims", format!("{header}..{signature}"), "JSON objects"),
        ("no header", format!(".{claims}.{signature}"), "not a JWT"),
        ("header only", header.to_owned(), "not a JWT"),
        ("four parts", format!("{good}.{signature}"), "three parts"),
        ("nested (encrypted)", format!("{header}.{claims}.{signature}.{claims}.{signature}"), "three parts"),
        ("padding", format!("{header}.{claims}.{signature}=="), "not base64url"),
        ("standard base64", format!("{header}.{claims}.+/{}", &signature[2..]), "not base64url"),
        ("characters of no base64", format!("{header}.~~~~.{signature}"), "not base64url"),
        ("half a character more", format!("{good}A"), "signature is wrong"),
        ("huge", format!("{header}.{}.{signature}", "A".repeat(MAX_TOKEN_BYTES)), "too long"),
        ("opaque", "0123456789abcdef".to_owned(), "not a JWT"),
        ("empty", String::new(), "not a JWT"),
        ("claims of two tokens", format!("{header}.{claims}{claims}.{signature}"), "is malformed"),
    ];
    for (name, token, reason) in rows {
        issuers.assert_refused(name, &token, reason);
    }
    let key = &issuers.key;
    let (header, claims) = (key.header().to_string(), super::claims(now()).to_string());
    let repeat = |text: &str, member: &str| format!("{{{member},{}", &text[1..]);
    for (name, header, claims, reason) in [
        ("repeated header", repeat(&header, r#""alg":"none""#), claims.clone(), "repeated"),
        ("repeated claim", header.clone(), repeat(&claims, r#""sub":"bob""#), "repeated"),
        ("claim repeated with an escape", header.clone(), repeat(&claims, r#""s\u0075b":"bob""#), "repeated"),
        ("repeated inner member", header.clone(), repeat(&claims, r#""x":{"a":1,"a":2}"#), "repeated"),
        ("claims as an array", header.clone(), format!("[{claims}]"), "JSON objects"),
        ("claims as a text", header.clone(), "\"claims\"".to_owned(), "JSON objects"),
        ("two objects", header.clone(), format!("{claims}{claims}"), "JSON objects"),
        ("nested JWT", merge(&key.header(), json!({ "cty": "JWT" })).to_string(), good.clone(), "JSON objects"),
        (
            "deep claims",
            header.clone(),
            repeat(&claims, &format!(r#""x":{}0{}"#, "[".repeat(40), "]".repeat(40))),
            "deeply",
        ),
    ] {
        issuers.assert_refused(name, &key.sign_text(&header, &claims), reason);
    }
}

#[test]
fn changed_and_truncated_tokens_are_refused() {
    let ed = TestKey::ed25519("ed");
    let issuers = Issuers::new();
    let verifier = TokenVerifier::new(&[issuer_config(ISSUER)], Some(RESOURCE));
    learn_keys(&verifier, ISSUER, &[&ed, &issuers.key], now());
    for good in [ed.sign(&ed.header(), &claims(now())), issuers.key.sign(&issuers.key.header(), &claims(now()))] {
        for length in 0..good.len() {
            assert!(verifier.identify(&good[..length], now()).is_err(), "{length} of {}", good.len());
        }
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            let token = String::from_utf8(bytes).unwrap();
            assert!(verifier.identify(&token, now()).is_err(), "character {at} of {good}");
        }
        verifier.identify(&good, now()).unwrap();
    }
}

#[test]
fn token_without_any_known_audience_is_refused() {
    let issuers = Issuers::new();
    let verifier = TokenVerifier::new(&[issuer_config(ISSUER)], None);
    learn_keys(&verifier, ISSUER, &[&issuers.key], now());
    let error = verifier.identify(&issuers.good(), now()).unwrap_err();
    assert_eq!(error, Refusal::invalid("the token is for another audience"));
}
