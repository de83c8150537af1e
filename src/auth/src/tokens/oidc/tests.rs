use serde_json::{Value, json};
use url::form_urlencoded;

use super::{
    super::{
        issuer::IssuerSnapshot,
        key_set::KeySet,
        metadata::Metadata,
        tests::{after, fake_provider::FakeProvider, merge, now, signing::TestKey},
    },
    *,
};
use countersign_domain::{changes::SignInTerms, principal::Role};
use countersign_protocol::McpError;

mod refusals;
mod required_sign_in;

const CLIENT: &str = "gateway";
const NONCE: &str = "nonce-1";

fn config(issuer: &str) -> Config {
    let mut oidc = OidcConfig::new(issuer, CLIENT);
    oidc.roles = [("platform".to_owned(), Role::Reviewer), ("security".to_owned(), Role::Admin)].into();
    let mut config = Config { public_url: Some("https://gw.example/".to_owned()), ..Config::default() };
    config.auth.oidc = Some(oidc);
    config
}

fn client(config: &Config) -> OidcClient {
    OidcClient::new(config, Sealer::new(&[7; 32]).unwrap())
}

/// Returns the claims of a good ID token.
fn id_claims(issuer: &str) -> Value {
    json!({
        "iss": issuer,
        "sub": "alice",
        "aud": CLIENT,
        "nonce": NONCE,
        "sid": "session-1",
        "name": "Alice",
        "groups": ["platform"],
        "iat": now().as_second(),
        "exp": now().as_second() + 600,
    })
}

/// A provider on loopback with one key, and the gateway as its client.
struct Fixture {
    provider: FakeProvider,
    key: TestKey,
    client: OidcClient,
}

impl Fixture {
    async fn start(adjust: impl FnOnce(&mut OidcConfig)) -> Self {
        let (provider, key) = (FakeProvider::start().await, TestKey::es256("one"));
        provider.set_keys(&[&key]);
        let issuer = &provider.issuer;
        provider.change_metadata(json!({
            "authorization_endpoint": format!("{issuer}/authorize?tenant=1"),
            "token_endpoint": format!("{issuer}/token"),
            "userinfo_endpoint": format!("{issuer}/userinfo"),
            "end_session_endpoint": format!("{issuer}/end?tenant=1"),
            "authorization_response_iss_parameter_supported": true,
        }));
        let mut config = config(issuer);
        config.auth.oidc.as_mut().map(adjust).unwrap();
        let client = client(&config);
        let fixture = Self { provider, key, client };
        fixture.set_userinfo(json!({}));
        fixture
    }

    fn set_userinfo(&self, changes: Value) {
        let userinfo = merge(&json!({ "sub": "alice" }), changes);
        self.provider.set_page("/userinfo", 200, userinfo.to_string());
    }

    /// Sets the answer of the token endpoint.
    fn set_tokens(&self, id_token: Option<Value>, refresh_token: &str) {
        let header = merge(&self.key.header(), json!({ "typ": "JWT" }));
        let id_token = id_token.map(|claims| self.key.sign(&header, &claims));
        let answer = json!({ "access_token": "at", "id_token": id_token, "refresh_token": refresh_token });
        self.provider.set_page("/token", 200, answer.to_string());
    }

    /// Begins a sign-in. Returns its state, its nonce and its cookie.
    async fn begin(&self) -> (String, String, String) {
        self.begin_with(None).await.0
    }

    /// Begins a sign-in for a decision. Returns its secrets and the provider's page.
    async fn begin_with(&self, required: Option<&SignInTerms>) -> ((String, String, String), Url) {
        let started = self.client.begin(required, now()).await.unwrap();
        let url = Url::parse(&started.url).unwrap();
        let find = |name: &str| url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
        assert_eq!(find("redirect_uri"), "https://gw.example/api/sign-in/callback");
        assert_eq!(
            (find("tenant"), find("code_challenge_method"), find("client_id")),
            ("1".into(), "S256".into(), CLIENT.into())
        );
        ((find("state"), find("nonce"), started.cookie), url.clone())
    }

    fn query(&self, state: &str) -> String {
        let issuer: String = form_urlencoded::byte_serialize(self.provider.issuer.as_bytes()).collect();
        format!("code=c1&state={state}&iss={issuer}")
    }

    /// Signs in with an ID token that has other claims.
    async fn sign_in(&self, changes: Value) -> Result<VerifiedPerson, SignInError> {
        self.sign_in_with(None, changes).await
    }

    /// Signs in for a decision.
    async fn sign_in_with(
        &self,
        required: Option<&SignInTerms>,
        changes: Value,
    ) -> Result<VerifiedPerson, SignInError> {
        let ((state, nonce, cookie), _) = self.begin_with(required).await;
        let claims = merge(&id_claims(&self.provider.issuer), json!({ "nonce": nonce }));
        self.set_tokens(Some(merge(&claims, changes)), "r1");
        self.client.finish(&self.query(&state), Some(&cookie), now()).await
    }
}

#[actix::test]
async fn person_signs_in_with_claims_of_both_sources() {
    let fixture =
        Fixture::start(|config| config.require = [("email_verified".to_owned(), "true".to_owned())].into()).await;
    fixture.set_userinfo(json!({ "email_verified": true, "groups": ["security", "x"], "iss": "https://evil.example" }));
    let VerifiedPerson { person, session } = fixture.sign_in(json!({})).await.unwrap();
    assert_eq!((person.role, person.name.as_str()), (Some(Role::Admin), session.person().as_str()));
    let shown = person.claims.display_name.as_deref().unwrap();
    assert!(shown.starts_with("Alice (") && shown.contains(" at 127.0.0.1:"), "{shown}");
    assert_eq!(person.claims.groups, ["security", "x"]);
    assert!(!person.claims.json.contains("nonce") && !person.claims.json.contains("evil"), "{}", person.claims.json);
    assert_eq!((session.sid.as_deref(), session.has_refresh_token), (Some("session-1"), true));
    assert_eq!(session.ends_at, now() + MAX_SESSION_LIFETIME);
    let id_token = fixture.client.id_token(&session).unwrap();
    assert!(!session.tokens.contains(&id_token));
    let of_other = ProviderSession { issuer: "https://other.example".to_owned(), ..session.clone() };
    assert_eq!(fixture.client.id_token(&of_other), None);
    let url = fixture.client.end_session_url(&session, now()).unwrap();
    assert!(url.contains(&format!("id_token_hint={id_token}")));
    assert!(
        url.contains("/end?tenant=1&id_token_hint=")
            && url.ends_with("post_logout_redirect_uri=https%3A%2F%2Fgw.example%2F"),
        "{url}"
    );
}

#[actix::test]
async fn groups_come_from_userinfo_despite_oauth_metadata() {
    const OPENID_CONFIGURATION: &str = "/.well-known/openid-configuration";
    let fixture = Fixture::start(|_| {}).await;
    let issuer = &fixture.provider.issuer;
    let without_userinfo = json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/jwks"),
        "authorization_endpoint": format!("{issuer}/authorize?tenant=1"),
        "token_endpoint": format!("{issuer}/token"),
    });
    fixture.provider.set_page("/.well-known/oauth-authorization-server", 200, without_userinfo.to_string());
    fixture.set_userinfo(json!({ "groups": ["security"] }));
    let VerifiedPerson { person, session } = fixture.sign_in(json!({ "groups": null })).await.unwrap();
    assert_eq!(person.role, Some(Role::Admin));
    // The metadata are read again after five minutes.
    fixture.provider.set_page(OPENID_CONFIGURATION, 503, "");
    fixture.set_tokens(None, "r2");
    let Renewal::Renewed(renewed) = fixture.client.renew(&session, after(400)).await else { panic!("not renewed") };
    assert_eq!(renewed.person.role, Some(Role::Admin));
    assert_eq!(fixture.provider.count(OPENID_CONFIGURATION), 2);
    let new_client = client(&config(issuer));
    assert_eq!(new_client.begin(None, now()).await.err(), Some(SignInError::ProviderUnreachable));
}

#[actix::test]
async fn person_without_role_is_not_signed_in() {
    let fixture = Fixture::start(|config| config.require = [("hd".to_owned(), "example.com".to_owned())].into()).await;
    assert_eq!(fixture.sign_in(json!({ "hd": "other.example" })).await, Err(SignInError::NoRole));
    assert_eq!(fixture.sign_in(json!({ "hd": null })).await, Err(SignInError::NoRole));
    assert_eq!(fixture.sign_in(json!({ "hd": "example.com", "groups": ["x"] })).await, Err(SignInError::NoRole));
    assert_eq!(fixture.sign_in(json!({ "hd": "example.com", "groups": null })).await, Err(SignInError::NoRole));
    fixture.sign_in(json!({ "hd": ["a", "example.com"] })).await.unwrap();
}

#[actix::test]
async fn answer_of_another_sign_in_is_refused() {
    let fixture = Fixture::start(|_| {}).await;
    let (state, nonce, cookie) = fixture.begin().await;
    let (other_state, _, other_cookie) = fixture.begin().await;
    fixture.set_tokens(Some(merge(&id_claims(&fixture.provider.issuer), json!({ "nonce": nonce }))), "r1");
    let good = fixture.query(&state);
    let finish = async |query: &str, cookie: Option<&str>, at| fixture.client.finish(query, cookie, at).await.err();
    let late = after(MAX_SIGN_IN_DURATION.as_secs());
    for (query, cookie, at) in [
        (good.as_str(), None, now()),
        (&good, Some(""), now()),
        (&good, Some(other_cookie.as_str()), now()),
        (&fixture.query(&other_state), Some(cookie.as_str()), now()),
        (&good.replace("state=", "estate="), Some(&cookie), now()),
        (&format!("{good}&state={state}"), Some(&cookie), now()),
        (&good, Some(&cookie), late),
        (&good, Some(&cookie[1..]), now()),
        (&format!("{good}&x={}", "x".repeat(code_flow::MAX_QUERY_LEN)), Some(&cookie), now()),
    ] {
        assert_eq!(finish(query, cookie, at).await, Some(SignInError::Interrupted), "{query}");
    }
    for query in [
        format!("code=c1&state={state}"),
        format!("code=c1&state={state}&iss=https%3A%2F%2Fother.example"),
        format!("error=access_denied&state={state}"),
        good.replace("code=c1", "code="),
    ] {
        assert_eq!(finish(&query, Some(&cookie), now()).await, Some(SignInError::ProviderUnusable), "{query}");
    }
    let denied = good.replace("code=c1", "error=access_denied&error_description=%3Cscript%3E");
    assert_eq!(finish(&denied, Some(&cookie), now()).await, Some(SignInError::Denied));
    assert_eq!(fixture.provider.count("/token"), 0, "no code was sent");
    assert_eq!(finish(&good, Some(&cookie), now()).await, None);
}

#[actix::test]
async fn wrong_answers_of_the_provider_sign_nobody_in() {
    let fixture = Fixture::start(|_| {}).await;
    let unusable = Err(SignInError::ProviderUnusable);
    assert_eq!(fixture.sign_in(json!({ "nonce": "other" })).await, unusable);
    assert_eq!(fixture.sign_in(json!({ "aud": "other" })).await, unusable);
    fixture.set_userinfo(json!({ "sub": "mallory" }));
    assert_eq!(fixture.sign_in(json!({})).await, unusable);
    fixture.set_userinfo(json!({}));
    fixture.sign_in(json!({})).await.unwrap();
    let (state, _, cookie) = fixture.begin().await;
    for (status, body) in [
        (400, r#"{"error":"invalid_grant"}"#),
        (401, r#"{"error":"invalid_client"}"#),
        (200, "{}"),
        (200, "<html>"),
        (302, "/"),
    ] {
        fixture.provider.set_page("/token", status, body);
        assert_eq!(
            fixture.client.finish(&fixture.query(&state), Some(&cookie), now()).await,
            unusable,
            "{status} {body}"
        );
    }
    fixture.provider.stop().await;
    assert_eq!(
        fixture.client.finish(&fixture.query(&state), Some(&cookie), now()).await,
        Err(SignInError::ProviderUnreachable)
    );
    let new_client = client(&config(&fixture.provider.issuer));
    assert_eq!(new_client.begin(None, now()).await.err(), Some(SignInError::ProviderUnreachable));
}

#[actix::test]
async fn renewal_brings_new_claims_or_ends_the_session() {
    let fixture = Fixture::start(|_| {}).await;
    let session = fixture.sign_in(json!({})).await.unwrap().session;
    let renew = async |session: &ProviderSession| fixture.client.renew(session, after(60)).await;
    let issuer = fixture.provider.issuer.clone();
    let claims = |changes: Value| merge(&merge(&id_claims(&issuer), json!({ "nonce": null })), changes);
    // Without a new ID token, the claims come from the old one and from the UserInfo endpoint.
    fixture.set_tokens(None, "r2");
    fixture.set_userinfo(json!({ "groups": ["security"] }));
    let Renewal::Renewed(renewed) = renew(&session).await else { panic!("not renewed") };
    assert_eq!((renewed.person.role, renewed.session.ends_at), (Some(Role::Admin), session.ends_at));
    assert_ne!(renewed.session.tokens, session.tokens);
    fixture.set_userinfo(json!({}));
    fixture.set_tokens(Some(claims(json!({ "groups": [] }))), "r3");
    let Renewal::Renewed(lost) = renew(&renewed.session).await else { panic!("not renewed") };
    assert_eq!(lost.person.role, None);
    fixture.set_tokens(Some(claims(json!({ "sub": "mallory" }))), "r4");
    fixture.set_userinfo(json!({ "sub": "mallory" }));
    let Renewal::Unknown(Some(kept)) = renew(&session).await else { panic!("the new refresh token is lost") };
    assert!(kept.tokens != session.tokens && kept.subject == session.subject);
    for (status, body, ends) in [
        (400, r#"{"error":"invalid_grant"}"#, true),
        (400, "", true),
        (400, "<html>", false),
        (401, r#"{"error":"invalid_client"}"#, false),
        (403, r#"{"error":"invalid_grant"}"#, true),
        (403, r#"{"error":"access_denied"}"#, false),
        (403, "<html>", false),
        (404, r#"{"error":"Not Found"}"#, false),
        (408, r#"{"error":"invalid_grant"}"#, false),
        (429, r#"{"error":"invalid_grant"}"#, false),
        (503, r#"{"error":"invalid_grant"}"#, false),
        (500, "{}", false),
        (200, "<html>", false),
    ] {
        fixture.provider.set_page("/token", status, body);
        assert_eq!(matches!(renew(&session).await, Renewal::Ended), ends, "{status} {body}");
    }
    fixture.provider.stop().await;
    assert!(matches!(renew(&session).await, Renewal::Unknown(None)));
    let other_key = OidcClient::new(&config(&issuer), Sealer::new(&[8; 32]).unwrap());
    assert!(matches!(other_key.renew(&session, now()).await, Renewal::Ended));
    let other_provider = client(&config("https://other.example"));
    assert!(matches!(other_provider.renew(&session, now()).await, Renewal::Ended));
    fixture.client.set_provider(None);
    assert!(matches!(renew(&session).await, Renewal::Ended));
}

#[actix::test]
async fn session_outlives_minutes_without_the_provider() {
    let fixture = Fixture::start(|_| {}).await;
    let VerifiedPerson { person, session } = fixture.sign_in(json!({})).await.unwrap();
    let (state, _, cookie) = fixture.begin().await;
    fixture.provider.set_status(503);
    fixture.provider.set_page("/token", 503, "");
    // The keys are due for renewal after five minutes.
    for second in [1, 60, 400] {
        assert!(matches!(fixture.client.renew(&session, after(second)).await, Renewal::Unknown(None)), "{second}");
        let finished = fixture.client.finish(&fixture.query(&state), Some(&cookie), after(second)).await;
        assert_eq!(finished.err(), Some(SignInError::ProviderUnreachable), "{second}");
    }
    fixture.provider.set_status(200);
    fixture.set_tokens(None, "r2");
    let Renewal::Renewed(renewed) = fixture.client.renew(&session, after(420)).await else { panic!("not renewed") };
    assert_eq!((renewed.person.role, renewed.session.ends_at), (person.role, session.ends_at));
}

#[actix::test]
async fn claim_that_left_userinfo_is_lost_despite_old_id_token() {
    let fixture = Fixture::start(|config| config.require = [("hd".to_owned(), "example.com".to_owned())].into()).await;
    fixture.set_userinfo(json!({ "groups": ["platform"] }));
    let mut session = fixture.sign_in(json!({ "hd": "example.com" })).await.unwrap().session;
    // Only the first ID token has `hd`.
    for (groups, role) in [
        (json!(["platform"]), Some(Role::Reviewer)),
        (json!(null), None),
        (json!(null), None),
        (json!(["security"]), Some(Role::Admin)),
        (json!([]), None),
    ] {
        fixture.set_tokens(None, "r2");
        fixture.set_userinfo(json!({ "groups": groups }));
        let Renewal::Renewed(renewed) = fixture.client.renew(&session, after(60)).await else { panic!("not renewed") };
        assert_eq!(renewed.person.role, role, "{groups}");
        session = renewed.session;
    }
}

#[actix::test]
async fn people_are_reassessed_by_their_last_claims() {
    let fixture = Fixture::start(|_| {}).await;
    let person = fixture.sign_in(json!({ "oid": "o1" })).await.unwrap().person;
    assert_eq!(person.claims.other_names, [format!("{}#o1", fixture.provider.issuer)]);
    assert_eq!(fixture.client.reassess(&person), person);
    let mut stricter = fixture.client.config().unwrap();
    stricter.roles = [("platform".to_owned(), Role::Viewer)].into();
    fixture.client.set_provider(Some(&stricter));
    assert_eq!(fixture.client.reassess(&person).role, Some(Role::Viewer));
    fixture.client.set_provider(None);
    assert_eq!(fixture.client.reassess(&person).role, None);
}
