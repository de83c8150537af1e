use super::*;
use crate::oauth::registration::{
    ClientAddresses, ClientAuthMethod, Registration, known_registration, metadata_document, register,
};
use countersign_config::{Secret, UpstreamOAuth};

fn addresses() -> ClientAddresses {
    ClientAddresses::new("https://gw.example")
}

fn secret(text: &str) -> Option<Secret> {
    Some(Secret(text.to_owned()))
}

fn server_with(methods: Option<&[&str]>) -> AuthorizationServer {
    AuthorizationServer { token_auth_methods: methods.map(strings), ..AuthorizationServer::default() }
}

#[test]
fn configured_client_comes_before_the_metadata_document() {
    let server = AuthorizationServer {
        issuer: "https://id.example".to_owned(),
        accepts_client_metadata_documents: true,
        ..AuthorizationServer::default()
    };
    let mut config = UpstreamOAuth::default();
    let by_document = known_registration(&server, &config, &addresses()).unwrap();
    assert_eq!(by_document.client_id, "https://gw.example/.well-known/oauth-client.json");
    assert_eq!((by_document.auth_method, by_document.issuer.as_str()), (ClientAuthMethod::None, "https://id.example"));
    config.client_id = Some("own".to_owned());
    assert_eq!(known_registration(&server, &config, &addresses()).unwrap().client_id, "own");
    config.client_id = None;
    let local = ClientAddresses { metadata_url: None, ..addresses() };
    assert_eq!(known_registration(&server, &config, &local), None);
    assert_eq!(known_registration(&server_with(None), &config, &addresses()), None);
}

#[test]
fn configured_client_authenticates_as_the_server_supports() {
    let (basic, post, key) = ("client_secret_basic", "client_secret_post", "private_key_jwt");
    for (has_secret, has_key, methods, expected) in [
        (false, false, None, ClientAuthMethod::None),
        (true, false, None, ClientAuthMethod::ClientSecretBasic),
        (true, false, Some(&[basic, post][..]), ClientAuthMethod::ClientSecretBasic),
        (true, false, Some(&[post]), ClientAuthMethod::ClientSecretPost),
        (true, false, Some(&["none"]), ClientAuthMethod::ClientSecretBasic),
        (false, true, None, ClientAuthMethod::PrivateKeyJwt),
        (true, true, Some(&[basic, key]), ClientAuthMethod::PrivateKeyJwt),
        (true, true, Some(&[basic]), ClientAuthMethod::ClientSecretBasic),
    ] {
        let config = UpstreamOAuth {
            client_id: Some("own".to_owned()),
            client_secret: secret("s").filter(|_| has_secret),
            private_key: secret("k").filter(|_| has_key),
            ..UpstreamOAuth::default()
        };
        let known = known_registration(&server_with(methods), &config, &addresses()).unwrap();
        assert_eq!(known.auth_method, expected, "{has_secret} {has_key} {methods:?}");
        assert_eq!(known.dynamic_redirect_uri, None);
    }
}

async fn register_with(methods: Option<&[&str]>, answer: Value) -> (Result<Registration, OAuthError>, Vec<Value>) {
    let server = FakeServer::start().await;
    server.add("/register", 201, answer);
    let known = AuthorizationServer { token_auth_methods: methods.map(strings), ..server.authorization_server() };
    let result = register(&known, &addresses(), None).await;
    server.stop().await;
    let issuer = server.url.clone();
    if let Ok(registration) = &result {
        assert_eq!(registration.issuer, issuer);
    }
    (result, server.received().iter().map(|received| serde_json::from_str(&received.body).unwrap()).collect())
}

#[actix::test]
async fn registration_asks_for_what_the_server_supports() {
    let (registration, asked) =
        register_with(Some(&["none", "client_secret_post"]), json!({ "client_id": "c", "client_secret": "s" })).await;
    let registration = registration.unwrap();
    assert_eq!(registration.auth_method, ClientAuthMethod::ClientSecretPost);
    assert_eq!(registration.client_secret.as_deref(), Some("s"));
    assert_eq!(registration.dynamic_redirect_uri, Some(addresses().redirect_uri));
    let expected = json!({
        "client_name": "Countersign",
        "redirect_uris": ["https://gw.example/api/servers/callback"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
        "token_endpoint_auth_method": "client_secret_post",
    });
    assert_eq!(asked, [expected]);
}

#[actix::test]
async fn answer_of_the_registration_decides_the_method() {
    let with = |method: &str| json!({ "client_id": "c", "client_secret": "s", "token_endpoint_auth_method": method });
    for (methods, answer, expected) in [
        (None, json!({ "client_id": "c", "client_secret": "s" }), Some(ClientAuthMethod::ClientSecretBasic)),
        (None, json!({ "client_id": "c" }), Some(ClientAuthMethod::None)),
        (None, with("client_secret_post"), Some(ClientAuthMethod::ClientSecretPost)),
        (None, with("none"), Some(ClientAuthMethod::None)),
        (None, with("private_key_jwt"), None),
        (None, json!({ "client_id": "c", "token_endpoint_auth_method": "client_secret_basic" }), None),
        (Some(&["none"][..]), json!({ "client_id": "c", "client_secret": "s" }), Some(ClientAuthMethod::None)),
        (Some(&["tls_client_auth"]), json!({ "client_id": "c" }), None),
        (None, json!({ "client_id": "" }), None),
        (None, json!({ "client_id": "a\nb" }), None),
        (None, json!({}), None),
    ] {
        let (result, _) = register_with(methods, answer.clone()).await;
        assert_eq!(result.ok().map(|registration| registration.auth_method), expected, "{methods:?} {answer}");
    }
}

#[actix::test]
async fn refused_registration_names_the_error() {
    let server = FakeServer::start().await;
    server.add("/register", 400, json!({ "error": "invalid_redirect_uri", "error_description": "no" }));
    let refused = register(&server.authorization_server(), &addresses(), None).await;
    assert_eq!(refused, Err(OAuthError::Refused("invalid_redirect_uri".to_owned())));
    server.stop().await;
    let closed = AuthorizationServer { registration_endpoint: None, ..server.authorization_server() };
    assert_unusable(register(&closed, &addresses(), None).await, "`oauth.client_id` must be set");
}

#[test]
fn metadata_document_has_its_own_url_as_client_id() {
    let document = metadata_document(&addresses()).unwrap();
    assert_eq!(document["client_id"], "https://gw.example/.well-known/oauth-client.json");
    assert_eq!(document["token_endpoint_auth_method"], "none");
    assert_eq!(document["grant_types"], json!(["authorization_code", "refresh_token"]));
    let local =
        ClientAddresses { redirect_uri: "http://localhost:8700/api/servers/callback".to_owned(), ..addresses() };
    assert_eq!(metadata_document(&local).unwrap()["application_type"], "native");
    assert_eq!(metadata_document(&ClientAddresses { metadata_url: None, ..addresses() }), None);
}
