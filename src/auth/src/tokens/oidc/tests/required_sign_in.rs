//! Tests of sign-ins for a decision that requires a recent or a strong one.

use super::*;

fn required(max_age: Option<u64>, acr: &[&str]) -> SignInTerms {
    SignInTerms { max_age, acr: acr.iter().map(|acr| (*acr).to_owned()).collect() }
}

#[actix::test]
async fn sign_in_for_a_decision_asks_the_person_again() {
    let fixture = Fixture::start(|_| {}).await;
    let parameters = async |required: Option<&SignInTerms>| {
        let (_, url) = fixture.begin_with(required).await;
        ["prompt", "max_age", "acr_values"]
            .map(|name| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(parameters(None).await, [None, None, None]);
    assert_eq!(parameters(Some(&required(Some(300), &[]))).await, [some("login"), some("300"), None]);
    assert_eq!(parameters(Some(&required(None, &["a", "b"]))).await, [some("login"), None, some("a b")]);
    let offline = Fixture::start(|config| config.scopes.push("offline_access".into())).await;
    let (_, url) = offline.begin_with(Some(&required(Some(300), &[]))).await;
    assert!(url.query_pairs().any(|(key, value)| key == "prompt" && value == "login consent"), "{url}");
}

#[actix::test]
async fn provider_must_return_the_sign_in_that_was_asked_for() {
    let fixture = Fixture::start(|_| {}).await;
    let now = now().as_second();
    let recent = required(Some(300), &[]);
    let strong = required(None, &["mfa", "phr"]);
    let both = required(Some(300), &["mfa"]);
    for (required, claims, problem) in [
        (&recent, json!({ "auth_time": now }), None),
        (&recent, json!({ "auth_time": now - 360 }), None),
        (&recent, json!({ "auth_time": now - 361 }), Some(SignInError::NotRecent)),
        (&recent, json!({}), Some(SignInError::NotRecent)),
        (&recent, json!({ "auth_time": "now" }), Some(SignInError::NotRecent)),
        (&strong, json!({ "acr": "phr" }), None),
        (&strong, json!({ "acr": "pwd" }), Some(SignInError::NotStrong)),
        (&strong, json!({}), Some(SignInError::NotStrong)),
        (&both, json!({ "auth_time": now, "acr": "mfa" }), None),
        (&both, json!({ "auth_time": now }), Some(SignInError::NotStrong)),
        (&both, json!({ "acr": "mfa" }), Some(SignInError::NotRecent)),
    ] {
        assert_eq!(fixture.sign_in_with(Some(required), claims.clone()).await.err(), problem, "{required} {claims}");
    }
    // The UserInfo endpoint cannot vouch for the sign-in.
    fixture.set_userinfo(json!({ "auth_time": now, "acr": "mfa" }));
    assert_eq!(fixture.sign_in_with(Some(&both), json!({})).await.err(), Some(SignInError::NotRecent));
}

#[actix::test]
async fn session_keeps_the_time_of_its_own_sign_in() {
    let fixture = Fixture::start(|_| {}).await;
    let now = now().as_second();
    let signed_in = async |claims| fixture.sign_in(claims).await.unwrap().session;
    assert_eq!(signed_in(json!({ "auth_time": now + 9_000 })).await.auth_time, Some(now), "no time is in the future");
    let session = signed_in(json!({ "auth_time": now - 900, "acr": "pwd" })).await;
    assert_eq!((session.auth_time, session.acr.as_deref()), (Some(now - 900), Some("pwd")));
    let claims = merge(&id_claims(&fixture.provider.issuer), json!({ "nonce": null, "auth_time": now, "acr": "mfa" }));
    fixture.set_tokens(Some(claims), "r2");
    let Renewal::Renewed(renewed) = fixture.client.renew(&session, after(60)).await else { panic!("not renewed") };
    assert_eq!((renewed.session.auth_time, renewed.session.acr.as_deref()), (Some(now - 900), Some("pwd")));
    assert_eq!((renewed.person.claims.auth_time, renewed.person.claims.acr.as_deref()), (None, None));
}
