//! Tests of opaque tokens, about which the issuer is asked.

use super::{fake_provider::FakeProvider, *};

const PATH: &str = "/introspect";
const TOKEN: &str = "opaque-7";

async fn start() -> (FakeProvider, Arc<TokenVerifier>) {
    let provider = FakeProvider::start().await;
    let verifier = Arc::new(TokenVerifier::new(&[with_introspection(&provider.issuer)], Some(RESOURCE)));
    (provider, verifier)
}

fn active(provider: &FakeProvider, changes: Value) -> Value {
    let base = json!({ "active": true, "iss": provider.issuer, "token_type": "Bearer" });
    merge(&merge(&claims(now()), base), changes)
}

/// Identifies the token as the gateway does for a request.
async fn identify(verifier: &TokenVerifier, at: Timestamp) -> Result<Identity, TokenRefusal> {
    verifier.ask_issuer(TOKEN, at).await;
    verifier.identify(TOKEN, at)
}

fn credential(identity: &Identity) -> &TokenCredential {
    let Credential::Token(credential) = &identity.credential else { panic!("not a token") };
    credential
}

#[actix::test]
async fn active_token_is_accepted_and_asked_about_every_ten_seconds() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({})));
    for second in 0..20 {
        let identity = identify(&verifier, after(second)).await.unwrap();
        assert_eq!(identity.principal.name, format!("{}#alice#agent", provider.issuer));
    }
    assert_eq!(provider.count(PATH), 2);
    let (header, form) = provider.last_introspection();
    // `gate+way:se%3Acret`
    assert_eq!(header, "Basic Z2F0ZSt3YXk6c2UlM0FjcmV0");
    assert_eq!(form, "token=opaque-7&token_type_hint=access_token");
    provider.stop().await;
}

#[actix::test]
async fn secret_is_sent_in_the_form_if_the_provider_wants_it() {
    let (provider, verifier) = start().await;
    provider.change_metadata(json!({ "introspection_endpoint_auth_methods_supported": ["client_secret_post"] }));
    provider.set_token(TOKEN, active(&provider, json!({})));
    identify(&verifier, now()).await.unwrap();
    let form = "token=opaque-7&token_type_hint=access_token&client_id=gate+way&client_secret=se%3Acret";
    assert_eq!(provider.last_introspection(), (String::new(), form.to_owned()));
    provider.stop().await;
}

mod unsuitable_answers_are_refused {
    use super::*;

    /// Checks an answer that differs from one that is accepted.
    async fn assert_answer_refused(changes: Value, reason: &str) {
        let (provider, verifier) = start().await;
        provider.set_token(TOKEN, active(&provider, json!({})));
        identify(&verifier, now()).await.unwrap();
        // The answer is forgotten with the configuration.
        verifier.set_issuers(&[]);
        verifier.set_issuers(&[with_introspection(&provider.issuer)]);
        provider.set_token(TOKEN, active(&provider, changes));
        let error = McpError::from(identify(&verifier, now()).await.expect_err("the answer is accepted"));
        assert!(error.message.contains(reason), "{}", error.message);
        provider.stop().await;
    }

    test_rows! { async assert_answer_refused;
        inactive: json!({ "active": false }), "unknown to its issuer";
        active_as_text: json!({ "active": "true" }), "unknown to its issuer";
        no_active: json!({ "active": null }), "unknown to its issuer";
        other_issuer: json!({ "iss": "https://id.example" }), "another issuer";
        other_audience: json!({ "aud": "https://gw2.example" }), "another audience";
        no_audience: json!({ "aud": null }), "no `aud`";
        expired: json!({ "exp": NOW_SECOND - 60 }), "expired";
        not_yet_valid: json!({ "nbf": NOW_SECOND + 61 }), "not valid yet";
        refresh_token: json!({ "token_type": "refresh_token" }), "token_type";
        token_bound_to_a_key: json!({ "token_type": "DPoP" }), "token_type";
        huge_answer: json!({ "x": "x".repeat(MAX_TOKEN_BYTES) }), "too long";
        nobody: json!({ "sub": null, "client_id": null }), "neither `sub` nor";
        no_scope_of_the_gateway: json!({ "scope": "openid" }), "no scope of this gateway";
    }
}

#[actix::test]
async fn client_is_the_subject_of_a_token_without_one() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({ "sub": null, "exp": null, "iss": null })));
    let identity = identify(&verifier, now()).await.unwrap();
    assert_eq!(identity.principal.name, format!("{}#agent#agent", provider.issuer));
    provider.stop().await;
}

#[actix::test]
async fn simultaneous_introspections_send_one_request() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({})));
    let ask = |at: Timestamp| {
        let verifier = Arc::clone(&verifier);
        rt::spawn(async move { verifier.ask_issuer(TOKEN, at).await })
    };
    let tasks: Vec<_> = (0..20).map(|n| ask(now() - SignedDuration::from_millis(n))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(verifier.identify(TOKEN, now()).is_ok());
    assert_eq!((provider.count(PATH), provider.count("/jwks")), (1, 1));
    provider.stop().await;
}

#[actix::test]
async fn revoked_token_ends_its_streams_within_ten_seconds() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({})));
    let identity = identify(&verifier, now()).await.unwrap();
    provider.set_token(TOKEN, json!({ "active": false }));
    let credential = credential(&identity);
    verifier.check_with_issuer(credential, after(9)).await.unwrap();
    assert_eq!(verifier.check_with_issuer(credential, after(10)).await, Err(TokenRefusal::Expired));
    assert!(verifier.check(credential, after(10)).is_err());
    // However often its client tries, this is not a failed attempt to authenticate.
    assert_eq!(identify(&verifier, after(30)).await.unwrap_err(), TokenRefusal::Expired);
    provider.stop().await;
}

#[actix::test]
async fn flood_of_unknown_tokens_does_not_delay_known_ones() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({})));
    identify(&verifier, now()).await.unwrap();
    let ask = |n: usize| {
        let verifier = Arc::clone(&verifier);
        rt::spawn(async move { verifier.ask_issuer(&format!("unknown-{n}"), after(10)).await })
    };
    let flood: Vec<_> = (0..200).map(ask).collect();
    provider.wait_for_count(PATH, 2).await;
    identify(&verifier, after(10)).await.unwrap();
    for task in flood {
        task.await.unwrap();
    }
    // One request before the flood, 16 of the flood, and one about the known token.
    assert_eq!(provider.count(PATH), 1 + 16 + 1);
    assert_eq!(verifier.identify("unknown-199", after(10)).unwrap_err(), TokenRefusal::IssuerUnavailable);
    assert!(verifier.running_introspections.is_empty());
    provider.stop().await;
}

#[test]
fn failed_introspections_are_logged_every_ten_seconds() {
    let issuer = Issuer::new(with_introspection(ISSUER), Vec::new(), 0);
    let logged: Vec<i64> = (0..25).filter(|second| issuer.record_warning_if_due(after(*second))).collect();
    assert_eq!(logged, [0, 10, 20]);
}

#[actix::test]
async fn failed_introspection_ends_no_stream() {
    let (provider, verifier) = start().await;
    provider.set_token(TOKEN, active(&provider, json!({})));
    let identity = identify(&verifier, now()).await.unwrap();
    let credential = credential(&identity);
    provider.set_status(500);
    assert_eq!(identify(&verifier, after(10)).await.unwrap_err(), TokenRefusal::IssuerUnavailable);
    assert_eq!(verifier.check_with_issuer(credential, after(11)).await, Err(TokenRefusal::IssuerUnavailable));
    verifier.check(credential, after(11)).unwrap();
    provider.set_status(200);
    verifier.check_with_issuer(credential, after(13)).await.unwrap();
    identify(&verifier, after(13)).await.unwrap();
    provider.stop().await;
}
