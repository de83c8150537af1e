//! Describes the gateway as a protected resource (RFC 9728), so that clients find the issuers of access tokens for it.

use actix_web::http::{
    StatusCode,
    header::{HeaderMap, HeaderValue, WWW_AUTHENTICATE},
};
use serde_json::{Value, json};

use countersign_auth::TokenVerifier;
use countersign_domain::principal::{AGENT_SCOPES, Scope};

/// The path of the metadata of `/mcp`. For the metadata of a certain endpoint, the endpoint's path is appended.
pub const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";

/// The endpoints with metadata of their own.
pub const ENDPOINTS: [&str; 3] = ["/mcp", "/ws", "/sse"];

/// Returns the metadata of an endpoint, or `None` if no issuer is configured or the gateway has no public URL.
pub fn metadata(tokens: &TokenVerifier, endpoint: &str) -> Option<Value> {
    let issuers = tokens.issuers();
    let url = public_url(tokens).filter(|_| !issuers.is_empty())?;
    let mut metadata = json!({
        "resource": format!("{url}{endpoint}"),
        "authorization_servers": issuers,
        "bearer_methods_supported": ["header"],
        "resource_name": "Countersign",
    });
    if tokens.uses_scopes() {
        metadata["scopes_supported"] = AGENT_SCOPES.split(' ').collect();
    }
    Some(metadata)
}

/// Adds the URL of the metadata to the challenge of a response, and to a 401 the scopes that a client of the path needs
/// (2026-07-28/basic/authorization). Where only roles count, no scopes are named: an issuer refuses unknown ones.
pub fn complete_challenge(tokens: &TokenVerifier, path: &str, status: StatusCode, headers: &mut HeaderMap) {
    let Some(url) = public_url(tokens).filter(|_| tokens.is_enabled()) else { return };
    let Some(challenge) = headers.get(WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()) else { return };
    // The challenge of a forwarded request was completed by the other node.
    if challenge.contains("resource_metadata=") {
        return;
    }
    let endpoint = match path {
        "/ws" => "/ws",
        "/sse" | "/messages" => "/sse",
        _ => "/mcp",
    };
    let separator = if challenge.contains('=') { "," } else { "" };
    let mut completed = format!(r#"{challenge}{separator} resource_metadata="{url}{METADATA_PATH}{endpoint}""#);
    if status == StatusCode::UNAUTHORIZED && tokens.uses_scopes() {
        let is_for_people = path == "/events" || path.starts_with("/api/");
        let scopes = if is_for_people { Scope::ChangesDecide.as_str() } else { AGENT_SCOPES };
        completed.push_str(&format!(r#", scope="{scopes}""#));
    }
    if let Ok(completed) = HeaderValue::try_from(completed) {
        headers.insert(WWW_AUTHENTICATE, completed);
    }
}

/// Returns the public URL of the gateway, with which its resource identifier begins.
fn public_url(tokens: &TokenVerifier) -> Option<&str> {
    tokens.resource()?.strip_suffix("/mcp")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use countersign_config::TokenIssuer;
    use countersign_domain::principal::Role;

    fn issuer(issuer: &str) -> TokenIssuer {
        TokenIssuer {
            issuer: issuer.to_owned(),
            audiences: Vec::new(),
            roles: BTreeMap::new(),
            groups_claim: "groups".into(),
            introspection: None,
            authorities: None,
        }
    }

    fn tokens(issuers: &[&str]) -> TokenVerifier {
        let issuers: Vec<TokenIssuer> = issuers.iter().map(|name| issuer(name)).collect();
        TokenVerifier::new(&issuers, Some("https://gw.example/mcp"))
    }

    fn completed(tokens: &TokenVerifier, path: &str, status: StatusCode, challenge: &'static str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        complete_challenge(tokens, path, status, &mut headers);
        headers.get(WWW_AUTHENTICATE).unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn metadata_names_endpoint_issuers_and_scopes() {
        let tokens = tokens(&["https://id.example", "https://id.example/b"]);
        let expected = json!({
            "resource": "https://gw.example/ws",
            "authorization_servers": ["https://id.example", "https://id.example/b"],
            "scopes_supported": ["tools:read", "tools:propose"],
            "bearer_methods_supported": ["header"],
            "resource_name": "Countersign",
        });
        assert_eq!(metadata(&tokens, "/ws"), Some(expected));
        tokens.set_issuers(&[]);
        assert_eq!(metadata(&tokens, "/ws"), None);
    }

    #[test]
    fn challenges_name_metadata_and_scopes() {
        let tokens = tokens(&["https://id.example"]);
        let url = |path: &str| format!(r#"resource_metadata="https://gw.example{METADATA_PATH}{path}""#);
        let (unauthorized, forbidden) = (StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
        let agent = r#"scope="tools:read tools:propose""#;
        for (path, status, challenge, added) in [
            ("/mcp", unauthorized, "Bearer", format!(" {}, {agent}", url("/mcp"))),
            ("/ws", unauthorized, r#"Bearer error="invalid_token""#, format!(", {}, {agent}", url("/ws"))),
            ("/messages", unauthorized, "Bearer", format!(" {}, {agent}", url("/sse"))),
            ("/tools/x", unauthorized, "Bearer", format!(" {}, {agent}", url("/mcp"))),
            ("/api/me", unauthorized, "Bearer", format!(r#" {}, scope="changes:decide""#, url("/mcp"))),
            (
                "/sse",
                forbidden,
                r#"Bearer error="insufficient_scope", scope="tools:read""#,
                format!(", {}", url("/sse")),
            ),
        ] {
            let complete = completed(&tokens, path, status, challenge);
            assert_eq!(complete, format!("{challenge}{added}"), "{path}");
        }
        let of_other_node = r#"Bearer resource_metadata="https://gw.example/x""#;
        assert_eq!(completed(&tokens, "/mcp", unauthorized, of_other_node), of_other_node);
        let roles = BTreeMap::from([("*".to_owned(), Role::Agent)]);
        tokens.set_issuers(&[TokenIssuer { roles, ..issuer("https://id.example") }]);
        let without_scopes = format!("Bearer {}", url("/mcp"));
        assert_eq!(completed(&tokens, "/mcp", unauthorized, "Bearer"), without_scopes, "roles decide");
        assert_eq!(metadata(&tokens, "/mcp").unwrap().get("scopes_supported"), None);
        tokens.set_issuers(&[]);
        assert_eq!(completed(&tokens, "/mcp", unauthorized, "Bearer"), "Bearer");
    }
}
