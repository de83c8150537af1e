use super::*;
use crate::oauth::{
    challenge::Challenge,
    discovery::{DiscoveredResource, discover},
};
use countersign_config::UpstreamOAuth;

const PATH_METADATA: &str = "/.well-known/oauth-protected-resource/mcp";
const ROOT_METADATA: &str = "/.well-known/oauth-protected-resource";

async fn discover_with(server: &FakeServer, config: &UpstreamOAuth) -> Result<DiscoveredResource, OAuthError> {
    discover(&server.mcp_url(), None, config, None).await
}

async fn discover_default(server: &FakeServer) -> Result<DiscoveredResource, OAuthError> {
    discover_with(server, &UpstreamOAuth::default()).await
}

fn resource(server: &FakeServer, path: &str, issuer: &str) -> Value {
    json!({ "resource": format!("{}{path}", server.url), "authorization_servers": [issuer] })
}

#[actix::test]
async fn named_metadata_is_used_and_no_other_is_asked() {
    let server = FakeServer::start().await;
    let mut document = resource(&server, "/mcp", &server.url);
    document["scopes_supported"] = json!(["a", "b c", "a", "d"]);
    server.add("/custom.json", 200, document);
    server.add_metadata(json!({ "scopes_supported": ["a", "offline_access"] }));
    let challenge =
        Challenge { resource_metadata: Some(format!("{}/custom.json", server.url)), ..Challenge::default() };
    let found = discover(&server.mcp_url(), Some(&challenge), &UpstreamOAuth::default(), None).await.unwrap();
    assert_eq!(found.resource, format!("{}/mcp", server.url));
    assert_eq!(found.resource_scopes, Some(strings(&["a", "d"])));
    assert_eq!(found.authorization_server.issuer, server.url);
    assert_eq!(found.authorization_server.token_endpoint, format!("{}/token", server.url));
    assert_eq!(found.authorization_server.scopes_supported, Some(strings(&["a", "offline_access"])));
    assert!(found.authorization_server.has_pkce && found.authorization_server.names_issuer);
    assert_eq!(server.paths(), ["/custom.json", "/.well-known/oauth-authorization-server"]);
    // The URL of the challenge decides, even if nothing is there.
    let challenge = Challenge { resource_metadata: Some(format!("{}/none", server.url)), ..Challenge::default() };
    server.add(PATH_METADATA, 200, resource(&server, "/mcp", &server.url));
    let legacy = UpstreamOAuth { legacy: true, ..UpstreamOAuth::default() };
    let refused = discover(&server.mcp_url(), Some(&challenge), &legacy, None).await;
    assert_unusable(refused, "names no authorization server");
    server.stop().await;
}

#[actix::test]
async fn metadata_is_sought_at_the_path_and_then_at_the_root() {
    let server = FakeServer::start().await;
    let issuer = format!("{}/tenant1", server.url);
    server.add(ROOT_METADATA, 200, resource(&server, "", &issuer));
    server.add("/tenant1/.well-known/openid-configuration", 200, server.metadata(&issuer, json!({})));
    let found = discover_default(&server).await.unwrap();
    assert_eq!(found.resource, server.url, "the resource is sent as the server writes it");
    let expected = [
        PATH_METADATA,
        ROOT_METADATA,
        "/.well-known/oauth-authorization-server/tenant1",
        "/.well-known/openid-configuration/tenant1",
        "/tenant1/.well-known/openid-configuration",
    ];
    assert_eq!(server.paths(), expected);
    server.stop().await;
}

#[actix::test]
async fn other_json_at_a_well_known_url_is_skipped() {
    let server = FakeServer::start().await;
    server.add(PATH_METADATA, 200, json!({ "error": "nothing here" }));
    server.add("/.well-known/oauth-authorization-server", 200, json!({ "detail": "Not Found" }));
    assert_unusable(discover_default(&server).await, "missing field `resource`");
    server.add(ROOT_METADATA, 200, resource(&server, "/mcp", &server.url));
    assert_unusable(discover_default(&server).await, "missing field `issuer`");
    server.add("/.well-known/openid-configuration", 200, server.metadata(&server.url, json!({})));
    assert_eq!(discover_default(&server).await.unwrap().authorization_server.issuer, server.url);
    server.stop().await;
}

#[actix::test]
async fn resource_must_be_the_server_or_its_parent_path() {
    for (path, is_accepted) in
        [("/mcp", true), ("/mcp/", true), ("/", true), ("", true), ("/mc", false), ("/mcp/more", false), ("?q", false)]
    {
        let server = FakeServer::start().await;
        server.add(PATH_METADATA, 200, resource(&server, path, &server.url));
        server.add_metadata(json!({}));
        assert_eq!(discover_default(&server).await.is_ok(), is_accepted, "{path}");
        server.stop().await;
    }
    let server = FakeServer::start().await;
    let document = json!({ "resource": "https://evil.example/mcp", "authorization_servers": [server.url] });
    server.add(PATH_METADATA, 200, document);
    assert_unusable(discover_default(&server).await, "evil.example");
    assert_eq!(server.paths(), [PATH_METADATA]);
    server.stop().await;
}

#[actix::test]
async fn metadata_of_another_issuer_is_refused() {
    for issuer in ["https://attacker.example", "{}/", "{}/tenant"] {
        let server = FakeServer::start().await;
        let claimed = issuer.replace("{}", &server.url);
        server.add(PATH_METADATA, 200, resource(&server, "/mcp", &server.url));
        server.add("/.well-known/oauth-authorization-server", 200, server.metadata(&claimed, json!({})));
        server.add("/.well-known/openid-configuration", 200, server.metadata(&server.url, json!({})));
        assert_unusable(discover_default(&server).await, "the issuer in the document");
        server.stop().await;
    }
}

#[actix::test]
async fn configured_issuer_is_chosen_or_nothing() {
    let server = FakeServer::start().await;
    let mut document = resource(&server, "/mcp", "https://first.example");
    document["authorization_servers"] = json!(["https://first.example", server.url]);
    server.add(PATH_METADATA, 200, document);
    server.add_metadata(json!({}));
    let chosen = UpstreamOAuth { issuer: Some(server.url.clone()), ..UpstreamOAuth::default() };
    assert_eq!(discover_with(&server, &chosen).await.unwrap().authorization_server.issuer, server.url);
    let other = UpstreamOAuth { issuer: Some("https://other.example".to_owned()), ..UpstreamOAuth::default() };
    assert_unusable(discover_with(&server, &other).await, "configured issuer");
    server.stop().await;
    // A server without metadata may still have a configured issuer.
    let server = FakeServer::start().await;
    server.add_metadata(json!({}));
    let chosen = UpstreamOAuth { issuer: Some(server.url.clone()), ..UpstreamOAuth::default() };
    let found = discover_with(&server, &chosen).await.unwrap();
    assert_eq!(found.resource, format!("{}/mcp", server.url));
    server.stop().await;
}

#[actix::test]
async fn server_without_metadata_needs_legacy() {
    let server = FakeServer::start().await;
    assert_unusable(discover_default(&server).await, "names no authorization server");
    let legacy = UpstreamOAuth { legacy: true, ..UpstreamOAuth::default() };
    let found = discover_with(&server, &legacy).await.unwrap().authorization_server;
    let expected = AuthorizationServer {
        issuer: server.url.clone(),
        authorization_endpoint: Some(format!("{}/authorize", server.url)),
        token_endpoint: format!("{}/token", server.url),
        registration_endpoint: Some(format!("{}/register", server.url)),
        allowed_addresses: found.allowed_addresses.clone(),
        ..AuthorizationServer::default()
    };
    assert_eq!(found, expected);
    let endpoint = format!("{}/oauth/token", server.url);
    server.add_metadata(json!({ "token_endpoint": endpoint, "issuer": format!("{}/", server.url) }));
    let found = discover_with(&server, &legacy).await.unwrap().authorization_server;
    assert_eq!((found.token_endpoint, found.issuer), (endpoint, format!("{}/", server.url)));
    server.stop().await;
}

#[actix::test]
async fn failing_server_counts_as_unreachable() {
    let server = FakeServer::start().await;
    server.add(PATH_METADATA, 503, "");
    let legacy = UpstreamOAuth { legacy: true, ..UpstreamOAuth::default() };
    let error = discover_with(&server, &legacy).await.unwrap_err();
    assert!(matches!(error, OAuthError::Unavailable { is_unprocessed: false, .. }), "{error:?}");
    server.stop().await;
    let error = discover_with(&server, &legacy).await.unwrap_err();
    // The connection of the first request may end only after the second one is sent.
    assert!(matches!(error, OAuthError::Unavailable { .. }), "{error:?}");
}

#[actix::test]
async fn redirects_and_long_answers_are_refused() {
    let server = FakeServer::start().await;
    server.add(PATH_METADATA, 302, "");
    server.add("/elsewhere", 200, resource(&server, "/mcp", &server.url));
    assert_unusable(discover_default(&server).await, "names no authorization server");
    assert_eq!(server.paths(), [PATH_METADATA, ROOT_METADATA]);
    server.add(ROOT_METADATA, 200, "1".repeat(300 * 1024));
    assert_unusable(discover_default(&server).await, "cannot be read");
    server.stop().await;
}

#[actix::test]
async fn endpoint_out_of_reach_makes_the_metadata_unusable() {
    for (member, url) in [
        ("token_endpoint", "http://id.example/token"),
        ("token_endpoint", "https://169.254.169.254/token"),
        ("authorization_endpoint", "javascript:alert(1)"),
        ("registration_endpoint", "http://10.0.0.1/register"),
    ] {
        let server = FakeServer::start().await;
        server.add(PATH_METADATA, 200, resource(&server, "/mcp", &server.url));
        server.add_metadata(json!({ member: url }));
        assert_unusable(discover_default(&server).await, url);
        server.stop().await;
    }
    let public = Url::parse("https://mcp.example/mcp").unwrap();
    let server = FakeServer::start().await;
    let challenge = Challenge { resource_metadata: Some(format!("{}/x", server.url)), ..Challenge::default() };
    let refused = discover(&public, Some(&challenge), &UpstreamOAuth::default(), None).await;
    assert_unusable(refused, "nor in the network of the server");
    assert!(server.paths().is_empty());
    server.stop().await;
}
