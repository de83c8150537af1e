use serde_json::json;

use super::{super::tests::fake_provider::FakeProvider, *};

const TOKENS: &str = r#"{"access_token":"a1","refresh_token":"r1","expires_in":60}"#;

async fn start() -> (FakeProvider, PublicClient) {
    let provider = FakeProvider::start().await;
    let issuer = &provider.issuer;
    provider.change_metadata(json!({
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "device_authorization_endpoint": format!("{issuer}/device"),
        "authorization_response_iss_parameter_supported": true,
    }));
    provider.set_page("/token", 200, TOKENS);
    let client = PublicClient::discover(settings(issuer), None).await.unwrap();
    (provider, client)
}

fn settings(issuer: &str) -> ClientSettings {
    ClientSettings {
        issuer: issuer.to_owned(),
        client_id: "cli".to_owned(),
        scopes: vec!["openid".to_owned(), "changes:decide".to_owned()],
        resource: Some("https://gw.example/mcp".to_owned()),
    }
}

#[actix::test]
async fn only_the_answer_to_the_request_gives_tokens() {
    let (provider, client) = start().await;
    let request = client.request_authorization("http://127.0.0.1:9/callback").unwrap();
    let find = |name: &str| request.url.query_pairs().find(|(key, _)| key == name).unwrap().1.into_owned();
    assert_eq!(find("resource"), "https://gw.example/mcp");
    assert_eq!((find("scope"), find("code_challenge_method")), ("openid changes:decide".into(), "S256".into()));
    let redeem = async |query: &str| client.redeem_response(&request, query).await;
    for wrong in ["code=c&state=other", "error=access_denied&state=other", "", "code=c"] {
        let error = redeem(wrong).await.unwrap_err();
        assert!(matches!(error, GrantError::Response(AuthorizationResponseError::OtherRequest)), "{wrong}: {error}");
    }
    let state = find("state");
    let error = redeem(&format!("code=c&state={state}&iss=https://evil.example")).await.unwrap_err();
    assert!(matches!(error, GrantError::Response(AuthorizationResponseError::OtherIssuer)), "{error}");
    let own = format!("state={state}&iss={}", provider.issuer);
    let error = redeem(&format!("error=access_denied&{own}")).await.unwrap_err();
    assert!(matches!(error, GrantError::Response(AuthorizationResponseError::Refused(_))), "{error}");
    assert_eq!(provider.count("/token"), 0);
    let tokens = redeem(&format!("code=c&{own}")).await.unwrap();
    assert_eq!((tokens.refresh_token.as_deref(), tokens.expires_in), (Some("r1"), Some(60)));
    assert!(!format!("{tokens:?}").contains("a1"));
}

#[actix::test]
async fn device_code_is_redeemed_once_the_person_confirmed_it() {
    let (provider, client) = start().await;
    let answer =
        json!({ "device_code": "d", "user_code": "A-B", "verification_uri": "https://id/device", "expires_in": 600 });
    provider.set_page("/device", 200, answer.to_string());
    let device = client.authorize_device().await.unwrap();
    assert_eq!((device.interval().as_secs(), device.lifetime().as_secs()), (5, 600));
    provider.set_page("/token", 400, r#"{"error":"authorization_pending"}"#);
    let error = client.redeem_device_code(&device).await.unwrap_err();
    assert!(matches!(error, GrantError::Refused(code) if code == "authorization_pending"));
    provider.set_page("/token", 200, TOKENS);
    assert_eq!(client.redeem_device_code(&device).await.unwrap().access_token, "a1");
}

#[actix::test]
async fn lifetimes_are_read_as_texts_and_shortened() {
    let (provider, client) = start().await;
    let year = 365 * 24 * 3600;
    for (lifetime, expected) in [(json!("90"), 90), (json!(90.5), 90), (json!(u64::MAX), year)] {
        let tokens = json!({ "access_token": "a1", "expires_in": lifetime });
        provider.set_page("/token", 200, tokens.to_string());
        assert_eq!(client.refresh("r1").await.unwrap().expires_in, Some(expected));
        let device = json!({
            "device_code": "d", "user_code": "A-B", "verification_uri": "https://id/device",
            "expires_in": lifetime, "interval": lifetime,
        });
        provider.set_page("/device", 200, device.to_string());
        let device = client.authorize_device().await.unwrap();
        assert_eq!((device.interval().as_secs(), device.lifetime().as_secs()), (expected, expected));
    }
    provider.set_page("/token", 200, r#"{"access_token":"a1","expires_in":"soon"}"#);
    assert!(matches!(client.refresh("r1").await.unwrap_err(), GrantError::Unusable(_)));
}

#[actix::test]
async fn failures_of_the_provider_are_distinguished() {
    let (provider, client) = start().await;
    assert!(!client.revoke("r1").await.unwrap(), "it has no endpoint for that");
    provider.set_page("/token", 400, r#"{"error":"invalid_grant"}"#);
    assert!(matches!(client.refresh("r1").await.unwrap_err(), GrantError::Refused(code) if code == "invalid_grant"));
    provider.set_page("/token", 200, r#"{"access_token":7,"refresh_token":"hush"}"#);
    let error = client.refresh("r1").await.unwrap_err();
    assert!(matches!(error, GrantError::Unusable(_)) && !error.to_string().contains("hush"), "{error}");
    provider.stop().await;
    assert!(matches!(client.refresh("r1").await.unwrap_err(), GrantError::Unreachable(_)));
    let error = PublicClient::discover(settings("http://127.0.0.1:1"), None).await.err().unwrap();
    assert!(matches!(error, GrantError::Unreachable(_)), "{error}");
}

#[actix::test]
async fn oauth_metadata_come_before_openid_configuration() {
    let provider = FakeProvider::start().await;
    let issuer = &provider.issuer;
    let metadata = json!({ "issuer": issuer, "device_authorization_endpoint": format!("{issuer}/device") });
    provider.set_page("/.well-known/oauth-authorization-server", 200, metadata.to_string());
    let client = PublicClient::discover(settings(issuer), None).await.unwrap();
    assert!(client.has_device_grant());
    assert_eq!(provider.count("/.well-known/openid-configuration"), 0);
}

#[actix::test]
async fn unavailable_metadata_counts_as_unreachable() {
    let provider = FakeProvider::start().await;
    let discover = async || PublicClient::discover(settings(&provider.issuer), None).await.err().unwrap();
    provider.set_status(503);
    let error = discover().await;
    assert!(matches!(error, GrantError::Unreachable(_)), "{error}");
    provider.set_status(404);
    let error = discover().await;
    assert!(matches!(error, GrantError::Unusable(_)), "{error}");
}
