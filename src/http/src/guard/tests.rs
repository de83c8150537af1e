use actix_http::encoding::Encoder;
use actix_web::{
    App,
    dev::ServiceResponse,
    http::{StatusCode, header::WWW_AUTHENTICATE},
    test, web,
};
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
    let absolute = respond(&Config::default(), post("http://evil.example/mcp", &[("host", "localhost:8080")])).await;
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
    let methods = response.headers().get(ACCESS_CONTROL_ALLOW_METHODS).unwrap().to_str().unwrap();
    for method in ["GET", "POST", "PUT", "DELETE"] {
        assert!(methods.split(", ").any(|allowed| allowed == method), "{method} in {methods}");
    }
    assert_eq!(response.headers().get(PRIVATE_NETWORK_ALLOW).unwrap(), "true");
    assert_eq!(respond(&with_cors(), preflight("https://evil.example")).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(respond(&Config::default(), preflight("https://app.example")).await.status(), StatusCode::FORBIDDEN);
}

#[test]
fn client_address_is_the_one_that_the_proxy_added() {
    let address_for = |proxied: bool, forwarded: &[&str]| {
        let request = test::TestRequest::default().peer_addr("10.0.0.1:5".parse().unwrap());
        let request = forwarded.iter().fold(request, |r, value| r.append_header(("x-forwarded-for", *value)));
        client_address(&request.to_http_request(), proxied).unwrap().to_string()
    };
    assert_eq!(address_for(false, &["1.1.1.1"]), "10.0.0.1", "a client cannot choose its address");
    assert_eq!(address_for(true, &[]), "10.0.0.1");
    assert_eq!(address_for(true, &["1.1.1.1"]), "1.1.1.1");
    assert_eq!(address_for(true, &["6.6.6.6, 1.1.1.1"]), "1.1.1.1");
    assert_eq!(address_for(true, &["6.6.6.6", "7.7.7.7 ,2001:db8::1"]), "2001:db8::1");
    assert_eq!(address_for(true, &["1.1.1.1, unknown"]), "10.0.0.1");
}

#[test]
fn all_cookies_of_the_dashboard_are_returned() {
    let cookie_values = |value: &str| {
        dashboard_cookies(&test::TestRequest::default().append_header(("cookie", value)).to_http_request())
    };
    let ours = dashboard_sign_ins::SESSION_COOKIE;
    assert_eq!(cookie_values(&format!("a=1; {ours}=x; {ours}2=z; {ours}=y")), ["x", "y"]);
    assert!(cookie_values("other=1").is_empty());
    assert!(dashboard_cookies(&test::TestRequest::default().to_http_request()).is_empty());
}

#[actix::test]
async fn tokens_in_urls_are_refused_at_all_endpoints() {
    let host = [("host", "localhost:8080")];
    for path in ["/mcp", "/ws", "/sse", "/messages", "/tools/x", "/api/changes", "/events", "/"] {
        for query in ["access_token=x", "a=b&access_token=x", "access_token"] {
            let response = respond(&Config::default(), post(&format!("{path}?{query}"), &host)).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST, "{path} {query}");
            let body: Value = test::read_body_json(response).await;
            let code = body["code"].as_str().or(body["error"]["data"]["code"].as_str());
            assert_eq!(code, Some("INVALID_REQUEST"), "{path} {query}");
        }
        let response = respond(&Config::default(), post(&format!("{path}?q=access_token"), &host)).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
    }
}

#[actix::test]
async fn pages_of_any_origin_read_the_metadata() {
    let headers = [("host", "localhost:8080"), ("origin", "https://evil.example")];
    let preflight = ("access-control-request-method", "GET");
    for path in [METADATA_PATH.to_owned(), format!("{METADATA_PATH}/ws")] {
        let response = respond(&with_cors(), post(&path, &headers).method(Method::GET)).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).unwrap(), "*");
        let request = post(&path, &headers).method(Method::OPTIONS).append_header(preflight);
        let response = respond(&Config::default(), request).await;
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).unwrap(), "*");
        let rebound = [("host", "evil.example"), ("origin", "https://evil.example")];
        assert_eq!(respond(&Config::default(), post(&path, &rebound)).await.status(), StatusCode::FORBIDDEN);
    }
}
