//! Refuses foreign `Host` and `Origin` headers on every endpoint, and answers CORS requests of the configured origins. It never
//! allows a browser's cookies for another origin.

use actix_web::{
    HttpResponse, ResponseError as _,
    body::BoxBody,
    dev::ServiceRequest,
    http::{
        Method, StatusCode,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
            ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
        },
    },
};
use serde_json::json;

use crate::problem::Problem;
use countersign_auth::origin::{OriginRules, OriginVerdict};
use countersign_protocol::{ErrorKind, McpError};

/// HTTP methods that pages may use.
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, DELETE, OPTIONS");
/// Response headers that pages may read in addition to the CORS-safelisted ones.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, Content-Encoding, Allow",
);
/// Request headers that pages may send. `Mcp-Param-*` headers are added by name.
const ALLOWED_HEADERS: [&str; 9] = [
    "authorization",
    "content-type",
    "accept",
    "last-event-id",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "idempotency-key",
];
const PRIVATE_NETWORK_REQUEST: HeaderName = HeaderName::from_static("access-control-request-private-network");
const PRIVATE_NETWORK_ALLOW: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The CORS headers of a response.
pub enum Cors {
    /// Adds no headers, because no other origin may call.
    No,
    /// Adds `Vary`, because other origins may call and a cache must keep their responses apart.
    Vary,
    /// Allows the origin that sent the request to read the response.
    Origin(HeaderValue),
}

impl Cors {
    /// Adds the CORS headers to a response.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::No => return,
            Self::Vary => {}
            Self::Origin(origin) => {
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
            }
        }
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// Checks the `Host` and `Origin` of a request, and returns the CORS headers of its response.
///
/// # Errors
/// Returns the final response to a request that is refused, or to a preflight.
pub fn admit(rules: &OriginRules, request: &ServiceRequest) -> Result<Cors, Box<HttpResponse>> {
    match check_host_and_origin(rules, request) {
        Ok(OriginVerdict::CorsAllowed) => {}
        Ok(_) => return Ok(if rules.has_cors() { Cors::Vary } else { Cors::No }),
        Err(error) => {
            tracing::warn!(path = request.path(), peer = ?request.peer_addr(), "{}", error.message);
            return Err(Box::new(refusal(request.path(), &error)));
        }
    }
    let Some(origin) = request.headers().get(ORIGIN).cloned() else {
        // This cannot happen, because the verdict came from that header.
        return Err(Box::new(refusal(
            request.path(),
            &McpError::new(ErrorKind::Forbidden, "the Origin header is missing"),
        )));
    };
    if is_preflight(request) {
        return Err(Box::new(preflight(request.headers(), origin)));
    }
    Ok(Cors::Origin(origin))
}

/// Checks that the request is for this gateway and from an origin that may call.
fn check_host_and_origin(rules: &OriginRules, request: &ServiceRequest) -> Result<OriginVerdict, McpError> {
    let forbidden = |why| McpError::new(ErrorKind::Forbidden, why);
    let headers = request.headers();
    let mut hosts = headers.get_all(HOST);
    let header = hosts.next().map(HeaderValue::as_bytes);
    if hosts.next().is_some() {
        return Err(forbidden("more than one Host header"));
    }
    // HTTP/2, and HTTP/1.1 in absolute form, name the host in the target of the request. The header and the target must both
    // name this gateway.
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = header.or(target).ok_or_else(|| forbidden("the Host header is missing"))?;
    if !rules.is_own_host(host) || target.is_some_and(|target| !rules.is_own_host(target)) {
        return Err(forbidden("the Host header does not name this gateway; see allowed_hosts and public_url"));
    }
    let mut origins = headers.get_all(ORIGIN);
    let origin = origins.next().map(HeaderValue::as_bytes);
    if origins.next().is_some() {
        return Err(forbidden("more than one Origin header"));
    }
    match rules.check_origin(origin, host) {
        OriginVerdict::Forbidden => Err(forbidden("this Origin may not call; see transports.http.cors_origins")),
        verdict => Ok(verdict),
    }
}

/// Returns the verdict on the origin of an admitted request, for stricter checks
/// ([`countersign_auth::dashboard::check_page_origin`]).
#[must_use]
pub fn origin_verdict(rules: &OriginRules, request: &actix_web::HttpRequest) -> OriginVerdict {
    let headers = request.headers();
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = headers.get(HOST).map(HeaderValue::as_bytes).or(target).unwrap_or_default();
    rules.check_origin(headers.get(ORIGIN).map(HeaderValue::as_bytes), host)
}

/// Returns JSON-RPC without an id on the MCP endpoints (2025-11-25/basic/transports, "Security Warning"), and a problem document
/// elsewhere.
fn refusal(path: &str, error: &McpError) -> HttpResponse<BoxBody> {
    if matches!(path, "/mcp" | "/sse" | "/messages" | "/ws") {
        let body = json!({
            "jsonrpc": "2.0",
            "error": { "code": error.kind.number(), "message": error.message, "data": error.data() },
        });
        return HttpResponse::build(StatusCode::FORBIDDEN).content_type("application/json").body(body.to_string());
    }
    Problem::from(error.clone()).error_response()
}

fn is_preflight(request: &ServiceRequest) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight(headers: &HeaderMap, origin: HeaderValue) -> HttpResponse<BoxBody> {
    let mut response = HttpResponse::NoContent();
    response
        .insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, origin))
        .insert_header((ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS))
        .insert_header((ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers)))
        .insert_header((ACCESS_CONTROL_MAX_AGE, "600"))
        .insert_header((
            VARY,
            "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
        ));
    if headers.get(&PRIVATE_NETWORK_REQUEST).is_some_and(|value| value == "true") {
        response.insert_header((PRIVATE_NETWORK_ALLOW, "true"));
    }
    response.finish()
}

/// Returns the allowed headers, with those `Mcp-Param-*` that the page requests (2026-07-28/basic/transports/streamable-http).
fn allowed_headers(headers: &HeaderMap) -> String {
    let mut allowed = ALLOWED_HEADERS.join(", ");
    let requested =
        headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok()).unwrap_or_default();
    for name in requested.split(',').map(str::trim).take(64) {
        let is_parameter = name.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("mcp-param-"));
        if is_parameter && HeaderName::try_from(name).is_ok() {
            allowed.push_str(", ");
            allowed.push_str(&name.to_ascii_lowercase());
        }
    }
    allowed
}

#[cfg(test)]
mod tests {

    use actix_http::encoding::Encoder;
    use actix_web::{App, dev::ServiceResponse, http::header::WWW_AUTHENTICATE, test, web};
    use serde_json::Value;

    use super::*;
    use crate::testing::front;
    use countersign_config::Config;

    async fn respond(config: &Config, request: test::TestRequest) -> ServiceResponse<Encoder<BoxBody>> {
        let app = App::new().default_service(web::to(|| async { "in" })).wrap(front(config));
        test::call_service(&test::init_service(app).await, request.to_request()).await
    }

    fn post(path: &str, headers: &[(&'static str, &str)]) -> test::TestRequest {
        let request = test::TestRequest::with_uri(path).method(Method::POST);
        headers.iter().fold(request, |request, header| request.append_header(*header))
    }

    fn with_cors() -> Config {
        let mut config = Config::default();
        config.transports.http.cors_origins = vec!["https://app.example".into()];
        config
    }

    #[actix::test]
    async fn dns_rebinding_is_refused_in_the_format_of_the_endpoint() {
        let refused: [&[(&'static str, &str)]; 7] = [
            &[("host", "evil.example:8080")],
            &[("host", "evil.example:8080"), ("origin", "http://evil.example:8080")],
            &[("host", "localhost:8080"), ("origin", "http://evil.example")],
            &[("host", "localhost:8080"), ("origin", "null")],
            &[("host", "localhost:8080"), ("host", "evil.example")],
            &[("host", "localhost:8080"), ("origin", "http://localhost:8080"), ("origin", "http://evil.example")],
            &[],
        ];
        for headers in refused {
            for path in ["/mcp", "/ws", "/messages?sessionId=x"] {
                let response = respond(&Config::default(), post(path, headers)).await;
                assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path} {headers:?}");
                let body: Value = test::read_body_json(response).await;
                assert_eq!(body["error"]["data"]["code"], "FORBIDDEN");
                assert!(body.get("id").is_none());
            }
            for path in ["/api/changes", "/", "/tools/x", "/health"] {
                let response = respond(&Config::default(), post(path, headers)).await;
                assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path} {headers:?}");
                assert_eq!(response.headers().get("content-type").unwrap(), crate::problem::MEDIA_TYPE);
            }
        }
    }

    #[actix::test]
    async fn own_pages_and_programs_pass() {
        for headers in [
            vec![("host", "localhost:8080")],
            vec![("host", "localhost:8080"), ("origin", "http://localhost:8080")],
            vec![("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:8080")],
        ] {
            let response = respond(&Config::default(), post("/mcp", &headers)).await;
            assert_eq!(response.status(), StatusCode::OK, "{headers:?}");
            assert!(response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).is_none());
            assert!(response.headers().get(VARY).is_none());
        }
        let absolute =
            respond(&Config::default(), post("http://evil.example/mcp", &[("host", "localhost:8080")])).await;
        assert_eq!(absolute.status(), StatusCode::FORBIDDEN, "the host in the target is checked too");
        let http2 = respond(&Config::default(), post("http://localhost:8080/mcp", &[])).await;
        assert_eq!(http2.status(), StatusCode::OK);
    }

    #[actix::test]
    async fn configured_origin_gets_cors_without_credentials() {
        let headers = [("host", "localhost:8080"), ("origin", "https://app.example")];
        let response = respond(&with_cors(), post("/mcp", &headers)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).unwrap(), "https://app.example");
        assert!(
            response.headers().get(ACCESS_CONTROL_EXPOSE_HEADERS).unwrap().to_str().unwrap().contains("Mcp-Session-Id")
        );
        assert_eq!(response.headers().get(VARY).unwrap(), "Origin");
        assert!(response.headers().get("access-control-allow-credentials").is_none());
        let own = respond(&with_cors(), post("/mcp", &headers[..1])).await;
        assert_eq!(own.headers().get(VARY).unwrap(), "Origin");
        assert!(own.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).is_none());
        assert!(own.headers().get(WWW_AUTHENTICATE).is_none());
    }

    #[actix::test]
    async fn preflights_are_answered_for_configured_origins_only() {
        let preflight = |origin: &str| {
            post(
                "/mcp",
                &[
                    ("host", "localhost:8080"),
                    ("origin", origin),
                    ("access-control-request-method", "POST"),
                    (
                        "access-control-request-headers",
                        "authorization, Mcp-Param-Region, x-countersign-secret, mcp-param-a b",
                    ),
                    ("access-control-request-private-network", "true"),
                ],
            )
            .method(Method::OPTIONS)
        };
        let response = respond(&with_cors(), preflight("https://app.example")).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        let allowed = response.headers().get(ACCESS_CONTROL_ALLOW_HEADERS).unwrap().to_str().unwrap();
        for name in ["authorization", "mcp-session-id", "mcp-protocol-version", "last-event-id", "mcp-param-region"] {
            assert!(allowed.split(", ").any(|a| a == name), "{name} in {allowed}");
        }
        assert!(!allowed.contains("secret") && !allowed.contains("a b"), "{allowed}");
        assert_eq!(response.headers().get(PRIVATE_NETWORK_ALLOW).unwrap(), "true");
        assert_eq!(respond(&with_cors(), preflight("https://evil.example")).await.status(), StatusCode::FORBIDDEN);
        assert_eq!(respond(&Config::default(), preflight("https://app.example")).await.status(), StatusCode::FORBIDDEN);
    }
}
