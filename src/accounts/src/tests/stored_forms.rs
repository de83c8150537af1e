//! Tests that stored tokens and cookies keep their form: nodes of an earlier version may run beside newer ones.

use serde_json::{Value, json};

use super::*;
use crate::oauth::dpop::DpopKey;
use countersign_store::accounts::{AccountStore as _, StoredAccount};

const TARGET: &str = "https://mcp.example";
const ISSUER: &str = "https://id.example";

/// The stored tokens, where `#` is the key for DPoP in JSON.
const TOKENS: &str = r##"{"access_token":"access","is_dpop":true,"received_at":"2026-11-30T10:00:00.5Z",
    "expires_at":"2026-11-30T11:00:00Z","refresh_token":"refresh","scopes":["read"],"requested":["read","write"],
    "discovered":{"resource":"https://mcp.example/mcp","resource_scopes":["read"],
        "metadata_url":"https://mcp.example/metadata","server":{"issuer":"https://id.example",
            "authorization_endpoint":"https://id.example/authorize","token_endpoint":"https://id.example/token",
            "registration_endpoint":"https://id.example/register","scopes_supported":["read"],
            "token_auth_methods":["private_key_jwt"],"grant_types":["refresh_token"],"has_pkce":true,"names_issuer":true,
            "accepts_client_metadata_documents":true,"dpop_algorithms":["ES256"],
            "reach":{"server":"https://mcp.example","issuer":"https://id.example"}}},
    "registration":{"issuer":"https://id.example","client_id":"ours","client_secret":"secret",
        "method":"client_secret_basic","dynamic_redirect_uri":"https://gw.example/api/servers/callback"},
    "dpop_key":#,"step_up":{"wanted":["write"],"since":"2026-11-30T10:30:00Z","consents":2},
    "ended":"renewal_refused","refused":"token_refused"}"##;

/// Stored tokens without the optional fields.
const BARE_TOKENS: &str = r#"{"access_token":"access","is_dpop":false,"received_at":"2026-11-30T10:00:00Z","scopes":[],
    "requested":[],"discovered":{"resource":"https://mcp.example/mcp","server":{"issuer":"https://id.example",
        "token_endpoint":"https://id.example/token","has_pkce":true,"names_issuer":false,
        "accepts_client_metadata_documents":false}},
    "registration":{"issuer":"https://id.example","client_id":"ours","method":"none"}}"#;

/// The content of the cookie of a consent, where `#` is the address of the provider.
const COOKIE: &str = r##"{"server":"notion","target":"TARGET","holder":"ann","by":"ann-agent","key_id":null,
    "discovered":{"resource":"#/mcp","resource_scopes":null,"metadata_url":null,"server":{"issuer":"#",
        "authorization_endpoint":"#/authorize","token_endpoint":"#/token","registration_endpoint":"#/register",
        "scopes_supported":null,"token_auth_methods":["none","client_secret_post"],"grant_types":null,"has_pkce":true,
        "names_issuer":false,"accepts_client_metadata_documents":false,"dpop_algorithms":null,
        "reach":{"server":"#","issuer":null}}},
    "registration":{"issuer":"#","client_id":"client-1","client_secret":null,"method":"none",
        "dynamic_redirect_uri":"http://127.0.0.1:9/api/servers/callback"},
    "redirect_uri":"http://127.0.0.1:9/api/servers/callback","state":"STATE","verifier":"VERIFIER","scopes":["read"],
    "is_dpop":false,"started_at":"TIME"}"##;

fn parse(text: &str) -> Value {
    text.parse().unwrap()
}

/// Returns the context in which the tokens of an account at the server `notion` are sealed.
fn context(target: &str, holder: &str) -> Vec<u8> {
    let lengths = [21, 6, target.len() as u64, holder.len() as u64].map(u64::to_be_bytes).concat();
    [&lengths[..], format!("countersign.account.1notion{target}{holder}").as_bytes()].concat()
}

/// Returns a store with one account of ann, whose tokens are this text.
fn store_with(tokens: &str) -> (Arc<MemoryStore>, Arc<SealedStore>, AccountKey) {
    let key = AccountKey { server: "notion".to_owned(), holder: "ann".into() };
    let (store, now) = (Arc::new(MemoryStore::default()), Timestamp::now());
    let row = StoredAccount {
        key: key.clone(),
        target: TARGET.to_owned(),
        issuer: ISSUER.to_owned(),
        sealed: sealer().seal(&context(TARGET, "ann"), tokens).unwrap(),
        version: 0,
        refreshing_since: None,
        connected_at: now,
    };
    store.connect_account(&row).unwrap();
    let sealed = SealedStore::new(Arc::clone(&store) as _, sealer());
    (store, sealed, key)
}

#[actix::test]
async fn stored_tokens_keep_their_form() {
    let pem = String::from(DpopKey::generate().unwrap());
    let text = TOKENS.replace('#', &json!(pem).to_string());
    let (store, sealed, key) = store_with(&text);
    let tokens = sealed.read(&key, TARGET).await.unwrap().unwrap().tokens;
    assert_eq!((tokens.refresh_token.as_deref(), tokens.issuer()), (Some("refresh"), ISSUER));
    assert_eq!(tokens.origin.dpop_key.clone().map(String::from), Some(pem));
    assert!(tokens.has_requested(&["write".to_owned()]) && tokens.step_up.as_ref().unwrap().consents == 2);

    sealed.connect_account(&key, TARGET, &tokens, Timestamp::now()).await.unwrap();
    let row = store.account(&key).unwrap().unwrap();
    assert_eq!(parse(&sealer().open(&context(TARGET, "ann"), &row.sealed).unwrap()), parse(&text));
}

#[actix::test]
async fn optional_fields_of_stored_tokens_may_be_missing() {
    let (_store, sealed, key) = store_with(BARE_TOKENS);
    let tokens = sealed.read(&key, TARGET).await.unwrap().unwrap().tokens;
    assert!(tokens.refresh_token.is_none() && tokens.origin.dpop_key.is_none() && tokens.step_up.is_none());
    assert!(tokens.is_valid(Timestamp::now()));
}

#[actix::test]
async fn account_with_an_unreadable_key_counts_as_not_connected() {
    for key_text in ["\"no key\"", "1"] {
        let (_store, sealed, key) = store_with(&TOKENS.replace('#', key_text));
        assert!(sealed.read(&key, TARGET).await.unwrap().is_none());
    }
}

#[actix::test]
async fn cookie_of_a_consent_keeps_its_form() {
    let oauth = UpstreamOAuth { scopes: vec!["read".to_owned()], ..UpstreamOAuth::default() };
    let (fixture, now) = (Fixture::new(oauth), Timestamp::now());
    let started = fixture.node().begin_consent("notion", &person("ann"), now).await.unwrap();
    let open = |cookie: &str| parse(&sealer().open(b"countersign.connect.1", cookie).unwrap());
    let cookie = open(&started.cookie);
    let target = fixture.server().target.fingerprint();
    let text = COOKIE.replace('#', &fixture.provider.url).replace("TARGET", &target).replace("TIME", &now.to_string());
    let text = text.replace("STATE", cookie["state"].as_str().unwrap());
    let text = text.replace("VERIFIER", cookie["verifier"].as_str().unwrap());
    assert_eq!(cookie, parse(&text));

    let old_cookie = sealer().seal(b"countersign.connect.1", &text).unwrap();
    let (query, keys) = (answer_query(&started.url), FakeKeys::default());
    fixture.node().finish_consent(&query, Some(&old_cookie), &keys, now).await.unwrap();
    let row = fixture.store.account(&fixture.key("ann")).unwrap().unwrap();
    let tokens = parse(&sealer().open(&context(&target, "ann"), &row.sealed).unwrap());
    assert_eq!((&tokens["access_token"], &tokens["discovered"]), (&json!("access-1"), &cookie["discovered"]));
    assert_eq!((&tokens["registration"], &tokens["requested"]), (&cookie["registration"], &cookie["scopes"]));
    assert_eq!((&tokens["dpop_key"], tokens.as_object().unwrap().len()), (&Value::Null, 13));
}

#[test]
fn gateway_is_written_as_an_empty_name() {
    let key = AccountKey { server: "notion".to_owned(), holder: AccountHolder::Gateway };
    let text = r#"{"server":"notion","holder":""}"#;
    assert_eq!(serde_json::to_string(&key).unwrap(), text);
    assert_eq!(serde_json::from_str::<AccountKey>(text).unwrap(), key);
}
