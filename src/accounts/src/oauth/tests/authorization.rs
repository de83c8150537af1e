use super::*;
use crate::oauth::{
    authorization::{build_authorization_request, read_code, scopes_to_request},
    discovery::DiscoveredResource,
    registration::{ClientAuthMethod, Registration},
};
use countersign_auth::tokens::code_flow::code_challenge;

const ISSUER: &str = "https://id.example";

fn discovered() -> DiscoveredResource {
    DiscoveredResource {
        resource: "https://mcp.example/mcp".to_owned(),
        resource_scopes: Some(strings(&["read", "write"])),
        metadata_url: None,
        authorization_server: AuthorizationServer {
            issuer: ISSUER.to_owned(),
            authorization_endpoint: Some("https://id.example/authorize?tenant=1#x".to_owned()),
            has_pkce: true,
            ..AuthorizationServer::default()
        },
    }
}

fn registration() -> Registration {
    Registration {
        issuer: ISSUER.to_owned(),
        client_id: "own".to_owned(),
        client_secret: None,
        auth_method: ClientAuthMethod::None,
        dynamic_redirect_uri: None,
    }
}

fn query(url: &Url) -> BTreeMap<String, String> {
    url.query_pairs().into_owned().collect()
}

#[test]
fn request_has_pkce_state_and_resource() {
    let redirect = "https://gw.example/api/servers/callback";
    let begun =
        build_authorization_request(&discovered(), &registration(), redirect, &strings(&["read", "write"]), false)
            .unwrap();
    assert!(
        begun.url.as_str().starts_with("https://id.example/authorize?tenant=1&response_type=code&"),
        "{}",
        begun.url
    );
    assert!(!begun.url.as_str().contains('#'));
    let query = query(&begun.url);
    for (name, value) in [
        ("client_id", "own"),
        ("redirect_uri", redirect),
        ("state", &begun.state),
        ("code_challenge", &code_challenge(&begun.verifier)),
        ("code_challenge_method", "S256"),
        ("resource", "https://mcp.example/mcp"),
        ("scope", "read write"),
    ] {
        assert_eq!(query.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(begun.verifier.len(), 43);
    assert_ne!(begun.state, begun.verifier);
    assert!(!query.contains_key("prompt"));
}

#[test]
fn scopes_are_optional_and_offline_access_asks_for_consent() {
    let begun = build_authorization_request(&discovered(), &registration(), "https://gw.example/", &[], false).unwrap();
    assert!(!query(&begun.url).contains_key("scope"));
    let scopes = strings(&["read", "offline_access"]);
    let begun =
        build_authorization_request(&discovered(), &registration(), "https://gw.example/", &scopes, false).unwrap();
    assert_eq!(query(&begun.url)["prompt"], "consent");
}

#[test]
fn server_without_pkce_is_refused_unless_legacy() {
    let mut discovered = discovered();
    discovered.authorization_server.has_pkce = false;
    let begin_with = |discovered: &DiscoveredResource, legacy| {
        build_authorization_request(discovered, &registration(), "https://gw.example/", &[], legacy)
    };
    assert_unusable(begin_with(&discovered, false), "PKCE");
    let legacy = begin_with(&discovered, true).unwrap();
    assert_eq!(query(&legacy.url)["code_challenge_method"], "S256");
    discovered.authorization_server.authorization_endpoint = Some("http://id.example/authorize".to_owned());
    assert_unusable(begin_with(&discovered, true), "https");
    discovered.authorization_server.authorization_endpoint = None;
    assert_unusable(begin_with(&discovered, true), "no authorization endpoint");
}

#[test]
fn code_is_read_only_from_an_answer_of_the_issuer() {
    let own = "code=c&state=s&iss=https%3A%2F%2Fid.example";
    assert_eq!(read_code(own, "s", ISSUER, true), Ok("c".to_owned()));
    assert_unusable(read_code(own, "s", "https://id.example/", true), "not from this issuer");
    assert_unusable(read_code("code=c&state=s", "s", ISSUER, true), "not from this issuer");
    assert_unusable(read_code("code=c&state=x", "s", ISSUER, false), "does not belong to this request");
    let denied = "error=access_denied&error_description=x&state=s";
    assert_eq!(read_code(denied, "s", ISSUER, false), Err(OAuthError::Refused("access_denied".to_owned())));
    // An error of another issuer is not shown either.
    assert_unusable(read_code(&format!("{denied}&iss=https%3A%2F%2Fevil.example"), "s", ISSUER, false), "issuer");
}

#[test]
fn scopes_come_from_the_challenge_or_else_from_the_resource() {
    let discovered = discovered();
    let scopes = |configured: &[&str], granted: &[&str], challenged: Option<&[&str]>| {
        let challenged = challenged.map(strings);
        scopes_to_request(&strings(configured), &strings(granted), challenged.as_deref(), &discovered)
    };
    assert_eq!(scopes(&[], &[], Some(&["basic"])), ["basic"]);
    assert_eq!(scopes(&[], &[], None), ["read", "write"]);
    assert_eq!(scopes(&["own"], &[], None), ["own"]);
    assert_eq!(scopes(&[], &["basic"], Some(&["write", "basic"])), ["basic", "write"]);
    assert_eq!(scopes(&["own"], &["basic"], Some(&["write"])), ["own", "basic", "write"]);
    let unknown = DiscoveredResource { resource_scopes: None, ..discovered.clone() };
    assert!(scopes_to_request(&[], &[], None, &unknown).is_empty());
}

#[test]
fn offline_access_is_asked_only_where_it_is_offered() {
    let mut discovered = discovered();
    let scopes = |discovered: &DiscoveredResource, configured: &[&str]| {
        scopes_to_request(&strings(configured), &[], None, discovered)
    };
    assert_eq!(scopes(&discovered, &["own", "offline_access"]), ["own"]);
    discovered.authorization_server.scopes_supported = Some(strings(&["read"]));
    assert_eq!(scopes(&discovered, &[]), ["read", "write"]);
    discovered.authorization_server.scopes_supported = Some(strings(&["read", "offline_access"]));
    assert_eq!(scopes(&discovered, &[]), ["read", "write", "offline_access"]);
    assert_eq!(scopes(&discovered, &["offline_access", "own"]), ["offline_access", "own"]);
}
