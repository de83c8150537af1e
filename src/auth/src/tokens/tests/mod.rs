use actix_web::rt;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::tokens::{issuer::IssuerSnapshot, key_set::KeySet, metadata::Metadata};
use countersign_config::IntrospectionClient;
use countersign_domain::principal::Role;
use countersign_protocol::McpError;

mod acceptance;
pub(crate) mod fake_provider;
mod introspection;
mod keys_of_issuers;
mod refusals;
pub(crate) mod signing;

use signing::TestKey;

const ISSUER: &str = "https://id.example";
const OTHER_ISSUER: &str = "https://other.example";
const RESOURCE: &str = "https://gw.example/mcp";

/// The second in which most tests run.
const NOW_SECOND: i64 = 1_800_000_000;

/// Defines a test for each row, which calls a function with the values of the row. A failure names the row and hides no
/// other one.
macro_rules! test_rows {
    (async $check:ident; $($name:ident: $($value:expr),+;)+) => {
        $(#[actix::test] async fn $name() { $check($($value),+).await; })+
    };
    ($check:ident; $($name:ident: $($value:expr),+;)+) => {
        $(#[test] fn $name() { $check($($value),+); })+
    };
}
pub(crate) use test_rows;

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(NOW_SECOND).unwrap()
}

pub(crate) fn after(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

pub(crate) fn issuer_config(issuer: &str) -> TokenIssuer {
    TokenIssuer {
        issuer: issuer.to_owned(),
        audiences: Vec::new(),
        roles: std::collections::BTreeMap::new(),
        groups_claim: "groups".to_owned(),
        introspection: None,
        authorities: None,
    }
}

pub(crate) fn with_introspection(issuer: &str) -> TokenIssuer {
    TokenIssuer { introspection: Some(IntrospectionClient::sample("gate way", "se:cret")), ..issuer_config(issuer) }
}

/// Gives the verifier the keys of an issuer, as if it had read them.
fn learn_keys(verifier: &TokenVerifier, issuer: &str, keys: &[&TestKey], at: Timestamp) {
    let documents: Vec<Value> = keys.iter().map(|key| key.public.clone()).collect();
    let keys = KeySet::parse(&json!({ "keys": documents })).unwrap();
    let snapshot = IssuerSnapshot { metadata: Metadata::default(), keys, read_at: at.as_millisecond() };
    verifier.find_issuer(issuer).unwrap().replace_snapshot(snapshot);
}

/// Returns the claims of a good access token.
fn claims(at: Timestamp) -> Value {
    json!({
        "iss": ISSUER,
        "sub": "alice",
        "aud": RESOURCE,
        "client_id": "agent",
        "scope": "openid tools:read tools:propose",
        "iat": at.as_second(),
        "exp": at.as_second() + 600,
    })
}

/// Returns an object with other members; `null` removes one.
pub(crate) fn merge(object: &Value, changes: Value) -> Value {
    let mut object = object.as_object().unwrap().clone();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(object.remove(name)),
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(object)
}

/// An issuer with one key, which the verifier of a test knows.
pub(crate) struct KnownIssuer {
    key: TestKey,
    at: Timestamp,
}

impl KnownIssuer {
    pub(crate) fn new(verifier: &TokenVerifier) -> Self {
        let (key, at) = (TestKey::es256("one"), Timestamp::now());
        let config = TokenIssuer { audiences: vec![RESOURCE.to_owned()], ..issuer_config(ISSUER) };
        verifier.set_issuers(&[config]);
        learn_keys(verifier, ISSUER, &[&key], at);
        Self { key, at }
    }

    pub(crate) fn token_with(&self, changes: Value) -> String {
        self.key.sign(&self.key.header(), &merge(&claims(self.at), changes))
    }

    pub(crate) fn token_of_a_new_key(&self) -> String {
        let key = TestKey::es256("two");
        key.sign(&key.header(), &claims(self.at))
    }
}
