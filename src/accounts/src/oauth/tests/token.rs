use std::{io::Read as _, net::TcpListener};

use super::*;
use crate::oauth::{
    dpop::DpopKey,
    enterprise::request_assertion,
    registration::{ClientAuthMethod, Registration},
    token::{Grant, TokenRequest, TokenResponse, request_token},
};
use countersign_config::Secret;

const CODE: Grant<'_> = Grant::Code { code: "c", verifier: "v", redirect_uri: "https://gw.example/cb" };

/// A client of the fake server.
struct Client {
    server: AuthorizationServer,
    registration: Registration,
    private_key: Option<Secret>,
    dpop: Option<DpopKey>,
    scopes: Vec<String>,
}

impl Client {
    fn new(server: &FakeServer, method: ClientAuthMethod) -> Self {
        let registration = Registration {
            issuer: server.url.clone(),
            client_id: "gate way".to_owned(),
            client_secret: Some("se:cret".to_owned()),
            auth_method: method,
            dynamic_redirect_uri: None,
        };
        let server = server.authorization_server();
        Self { server, registration, private_key: None, dpop: None, scopes: strings(&["read", "offline_access"]) }
    }

    fn token_request(&self) -> TokenRequest<'_> {
        TokenRequest {
            authorization_server: &self.server,
            trusted: None,
            registration: &self.registration,
            private_key: self.private_key.as_ref(),
            resource: "https://mcp.example/mcp",
            scopes: &self.scopes,
            dpop: self.dpop.as_ref(),
        }
    }

    async fn request(&self, grant: Grant<'_>) -> Result<TokenResponse, OAuthError> {
        request_token(&self.token_request(), grant, now()).await
    }
}

fn token() -> Value {
    json!({ "access_token": "t", "token_type": "bearer", "expires_in": 60 })
}

/// Sends a request to a server that answers with a status and a body.
async fn send(
    method: ClientAuthMethod,
    grant: Grant<'_>,
    status: u16,
    body: Value,
) -> (Result<TokenResponse, OAuthError>, ReceivedRequest) {
    let server = FakeServer::start().await;
    server.add("/token", status, body);
    let mut client = Client::new(&server, method);
    client.private_key = Some(Secret(DpopKey::generate().unwrap().into()));
    let answer = client.request(grant).await;
    server.stop().await;
    (answer, server.received().remove(0))
}

#[actix::test]
async fn each_grant_sends_its_fields_and_the_resource() {
    let exchange = Grant::IdentityAssertion { subject_token: "id", audience: "https://id.example" };
    for (grant, fields) in [
        (
            CODE,
            &[
                ("grant_type", Some("authorization_code")),
                ("code", Some("c")),
                ("code_verifier", Some("v")),
                ("redirect_uri", Some("https://gw.example/cb")),
                ("scope", None),
            ][..],
        ),
        (Grant::Refresh("r"), &[("grant_type", Some("refresh_token")), ("refresh_token", Some("r")), ("scope", None)]),
        (Grant::ClientCredentials, &[("grant_type", Some("client_credentials")), ("scope", Some("read"))]),
        (
            Grant::JwtBearer("j"),
            &[
                ("grant_type", Some("urn:ietf:params:oauth:grant-type:jwt-bearer")),
                ("assertion", Some("j")),
                ("scope", Some("read")),
            ],
        ),
        (
            exchange,
            &[
                ("grant_type", Some("urn:ietf:params:oauth:grant-type:token-exchange")),
                ("requested_token_type", Some("urn:ietf:params:oauth:token-type:id-jag")),
                ("subject_token_type", Some("urn:ietf:params:oauth:token-type:id_token")),
                ("subject_token", Some("id")),
                ("audience", Some("https://id.example")),
            ],
        ),
    ] {
        let (_, received) = send(ClientAuthMethod::None, grant, 200, token()).await;
        for (name, value) in fields.iter().copied().chain([("resource", Some("https://mcp.example/mcp"))]) {
            assert_eq!(received.field(name).as_deref(), value, "{name}: {}", received.body);
        }
        assert_eq!(received.headers["content-type"], "application/x-www-form-urlencoded");
    }
}

#[actix::test]
async fn client_authenticates_by_its_method() {
    let (answer, basic) = send(ClientAuthMethod::ClientSecretBasic, CODE, 200, token()).await;
    answer.unwrap();
    // `gate+way:se%3Acret`, each part encoded as in a form.
    assert_eq!(basic.headers["authorization"], "Basic Z2F0ZSt3YXk6c2UlM0FjcmV0");
    assert_eq!((basic.field("client_id"), basic.field("client_secret")), (None, None));
    let (_, post) = send(ClientAuthMethod::ClientSecretPost, CODE, 200, token()).await;
    assert_eq!(post.field("client_id").as_deref(), Some("gate way"));
    assert_eq!(post.field("client_secret").as_deref(), Some("se:cret"));
    let (_, public) = send(ClientAuthMethod::None, CODE, 200, token()).await;
    assert_eq!(public.field("client_id").as_deref(), Some("gate way"));
    assert_eq!(public.field("client_secret"), None);
    let (_, signed) = send(ClientAuthMethod::PrivateKeyJwt, CODE, 200, token()).await;
    let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
    assert_eq!(signed.field("client_assertion_type").as_deref(), Some(kind));
    let claims = decode(&signed.field("client_assertion").unwrap(), 1);
    assert_eq!(claims["iss"], "gate way");
    assert_eq!(claims["aud"], format!("http://{}", signed.headers["host"]), "the issuer, not the endpoint");
    for received in [post, public, signed] {
        assert!(!received.headers.contains_key("authorization"));
    }
}

#[actix::test]
async fn credentials_go_only_to_the_issuer_that_they_are_for() {
    let server = FakeServer::start().await;
    let mut client = Client::new(&server, ClientAuthMethod::ClientSecretBasic);
    client.registration.issuer = "https://other.example".to_owned();
    assert_unusable(client.request(CODE).await.map(drop), "another authorization server");
    let mut client = Client::new(&server, ClientAuthMethod::PrivateKeyJwt);
    assert_unusable(client.request(CODE).await.map(drop), "no private key");
    client.registration.auth_method = ClientAuthMethod::ClientSecretPost;
    client.registration.client_secret = None;
    assert_unusable(client.request(CODE).await.map(drop), "no secret");
    assert!(server.received().is_empty());
    server.stop().await;
}

#[actix::test]
async fn workload_may_identify_itself_by_assertion_alone() {
    let server = FakeServer::start().await;
    server.add("/token", 200, token());
    let mut client = Client::new(&server, ClientAuthMethod::None);
    client.registration.client_id = String::new();
    client.request(Grant::JwtBearer("j")).await.unwrap();
    assert_eq!(server.received()[0].field("client_id"), None);
    server.stop().await;
}

#[actix::test]
async fn answer_is_read_with_its_lifetime_and_scopes() {
    let in_seconds = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).ok();
    for (changes, expires_at, scopes, refresh_token) in [
        (json!({}), in_seconds(60), None, None),
        (json!({ "expires_in": null }), None, None, None),
        (json!({ "expires_in": "90" }), in_seconds(90), None, None),
        (json!({ "expires_in": 1e18 }), in_seconds(365 * 24 * 3600), None, None),
        (json!({ "scope": "offline_access read" }), in_seconds(60), None, None),
        (json!({ "scope": "read" }), in_seconds(60), Some(strings(&["read"])), None),
        (json!({ "refresh_token": "r" }), in_seconds(60), None, Some("r".to_owned())),
        (json!({ "refresh_token": "" }), in_seconds(60), None, None),
    ] {
        let mut body = token();
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let answer = send(ClientAuthMethod::None, CODE, 200, body).await.0.unwrap();
        assert_eq!((answer.access_token.as_str(), answer.is_dpop), ("t", false));
        assert_eq!((answer.expires_at, answer.scopes, answer.refresh_token), (expires_at, scopes, refresh_token));
    }
}

#[actix::test]
async fn answer_that_breaks_a_rule_is_unusable_and_not_shown() {
    for changes in [
        json!({ "access_token": "hunter2\r\nX: y" }),
        json!({ "access_token": "hunter2 " }),
        json!({ "access_token": "" }),
        json!({ "access_token": "hunter2".repeat(3000) }),
        json!({ "access_token": ["hunter2"] }),
        json!({ "refresh_token": "hunter2\u{7}" }),
        json!({ "token_type": "mac" }),
        json!({ "token_type": "DPoP" }),
        json!({ "token_type": null }),
        json!({ "expires_in": -1 }),
        json!({ "expires_in": "soon" }),
    ] {
        let mut body = token();
        body.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let error = send(ClientAuthMethod::None, CODE, 200, body).await.0.err().unwrap();
        assert!(matches!(&error, OAuthError::Unusable(text) if !text.contains("hunter2")), "{changes}: {error}");
    }
}

#[actix::test]
async fn failure_tells_whether_the_request_was_processed() {
    let refusal = json!({ "error": "invalid_grant", "error_description": "x" });
    for status in [400, 401, 403] {
        let refused = send(ClientAuthMethod::None, Grant::Refresh("r"), status, refusal.clone()).await.0.err();
        assert_eq!(refused, Some(OAuthError::Refused("invalid_grant".to_owned())), "{status}");
    }
    let refusal = json!({ "error": "bad_refresh_token" });
    let refused = send(ClientAuthMethod::None, Grant::Refresh("r"), 200, refusal).await.0.err();
    assert_eq!(refused, Some(OAuthError::Refused("bad_refresh_token".to_owned())), "GitHub refuses like this");
    for (status, expected) in [(429, Some(true)), (500, Some(false)), (503, Some(true)), (302, None), (404, None)] {
        let error = send(ClientAuthMethod::None, Grant::Refresh("r"), status, json!({})).await.0.err().unwrap();
        let is_unprocessed = match &error {
            OAuthError::Unavailable { is_unprocessed, .. } => Some(*is_unprocessed),
            _ => None,
        };
        assert_eq!(is_unprocessed, expected, "{status} {error:?}");
    }
    let server = FakeServer::start().await;
    let client = Client::new(&server, ClientAuthMethod::None);
    server.stop().await;
    let error = client.request(Grant::Refresh("r")).await.err().unwrap();
    assert!(matches!(error, OAuthError::Unavailable { is_unprocessed: true, .. }), "{error:?}");
}

#[actix::test]
async fn request_may_be_processed_if_connection_ends_early() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = FakeServer::start().await;
    let mut client = Client::new(&server, ClientAuthMethod::None);
    client.server.token_endpoint = format!("http://{}/token", listener.local_addr().unwrap());
    let reader = std::thread::spawn(move || listener.accept().unwrap().0.read(&mut [0; 4096]).unwrap());
    let error = client.request(Grant::Refresh("r")).await.err().unwrap();
    assert!(matches!(error, OAuthError::Unavailable { is_unprocessed: false, .. }), "{error:?}");
    assert!(reader.join().unwrap() > 0);
    server.stop().await;
}

#[actix::test]
async fn demand_for_a_nonce_is_met_once() {
    let server = FakeServer::start().await;
    let mut client = Client::new(&server, ClientAuthMethod::None);
    client.dpop = Some(DpopKey::generate().unwrap());
    let demand = json!({ "error": "use_dpop_nonce" });
    server.add_with_nonce("/token", 400, Some("n1"), &demand);
    server.add("/token", 200, json!({ "access_token": "t", "token_type": "DPoP" }));
    assert!(client.request(CODE).await.unwrap().is_dpop);
    let proofs: Vec<Value> = server.received().iter().map(|received| decode(&received.headers["dpop"], 1)).collect();
    assert_eq!(proofs.len(), 2);
    assert_eq!((proofs[0].get("nonce"), &proofs[1]["nonce"]), (None, &json!("n1")));
    assert_ne!(proofs[0]["jti"], proofs[1]["jti"]);
    assert_eq!(proofs[0]["htm"], "POST");
    assert_eq!(proofs[0]["htu"], format!("{}/token", server.url));
    assert_eq!(proofs[0].get("ath"), None);
    server.stop().await;

    let server = FakeServer::start().await;
    let mut client = Client::new(&server, ClientAuthMethod::None);
    client.dpop = Some(DpopKey::generate().unwrap());
    server.add_with_nonce("/token", 400, Some("n1"), &demand);
    let refused = client.request(CODE).await.err();
    assert_eq!(refused, Some(OAuthError::Refused("use_dpop_nonce".to_owned())));
    assert_eq!(server.received().len(), 2);
    server.stop().await;
}

#[actix::test]
async fn token_that_is_not_bound_is_refused_with_dpop() {
    let server = FakeServer::start().await;
    let mut client = Client::new(&server, ClientAuthMethod::None);
    client.dpop = Some(DpopKey::generate().unwrap());
    server.add("/token", 200, token());
    assert_unusable(client.request(CODE).await.map(drop), "not of the type");
    server.stop().await;
}

#[actix::test]
async fn id_token_is_exchanged_at_its_issuer() {
    let provider = FakeServer::start().await;
    provider.add("/.well-known/openid-configuration", 200, provider.metadata(&provider.url, json!({})));
    let jag = "urn:ietf:params:oauth:token-type:id-jag";
    provider.add("/token", 200, json!({ "access_token": "jag", "token_type": "N_A", "issued_token_type": jag }));
    let claims = json!({ "iss": provider.url, "aud": ["gateway", "other"], "sub": "alice" });
    let id_token = format!("e30.{}.x\n", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let mut client = Client::new(&provider, ClientAuthMethod::None);
    client.server.issuer = "https://id.example".to_owned();
    let request = client.token_request();
    let no_config = |_: &str| None;
    assert_eq!(request_assertion(&id_token, no_config, &request, now()).await, Ok("jag".to_owned()));
    let received = provider.received().pop().unwrap();
    assert_eq!(received.field("audience").as_deref(), Some("https://id.example"));
    assert_eq!(received.field("client_id").as_deref(), Some("gateway"));
    assert_eq!(received.field("subject_token").as_deref(), Some(id_token.trim()));
    assert_unusable(request_assertion("opaque", no_config, &request, now()).await, "not an ID token");
    provider.stop().await;
}
