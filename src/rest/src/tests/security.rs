//! Tests that callers without sufficient rights are refused.

use super::*;

#[actix::test]
async fn loopback_without_credential_is_refused() {
    let endpoints = Endpoints::open().await;
    let change = endpoints.propose_by("local-agent").await;
    let change_path = format!("/api/changes/{}", change.id);
    for path in [
        "/api/me",
        "/api/changes",
        &change_path,
        "/api/audit",
        "/api/sessions",
        "/api/servers",
        "/api/events",
        "/events",
    ] {
        let reply = endpoints.send("GET", path, &[], None).await;
        assert_eq!(reply.problem(401), "UNAUTHORIZED", "{path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let body = decision("approve", &change).to_string();
    for path in [format!("{change_path}/decision"), format!("{change_path}/settle"), "/api/sign-out".into()] {
        let reply = endpoints.send("POST", &path, &[("Content-Type", "application/json")], Some(&body)).await;
        assert_eq!(reply.problem(401), "UNAUTHORIZED", "{path}");
    }
    assert_eq!(endpoints.send("GET", "/api/openapi.json", &[], None).await.status, 200);
    endpoints.close().await;
}

#[actix::test]
async fn agent_cannot_see_or_decide_and_viewer_cannot_decide() {
    let endpoints = Endpoints::open().await;
    let agent = endpoints.key("ci", Role::Agent);
    let viewer = endpoints.key("vic", Role::Viewer);
    let change = endpoints.propose_by("local-agent").await;
    let decide = format!("/api/changes/{}/decision", change.id);
    for path in ["/api/me", "/api/changes", "/api/audit", "/api/sessions", "/api/servers", "/api/events", "/events"] {
        assert_eq!(endpoints.get(path, &agent).await.problem(403), "FORBIDDEN", "{path}");
    }
    for key in [&agent, &viewer] {
        assert_eq!(endpoints.post(&decide, key, &decision("approve", &change)).await.problem(403), "FORBIDDEN");
        assert_eq!(endpoints.post(&decide, key, &decision("reject", &change)).await.problem(403), "FORBIDDEN");
        let settle = json!({ "outcome": "applied", "version": change.version });
        let path = format!("/api/changes/{}/settle", change.id);
        assert_eq!(endpoints.post(&path, key, &settle).await.problem(403), "FORBIDDEN");
    }
    let headers = [("Content-Type", "application/json")];
    let reply = endpoints.send("POST", "/api/sign-in", &headers, Some(&json!({ "key": agent }).to_string())).await;
    assert_eq!(reply.problem(403), "FORBIDDEN");
    assert!(reply.header("set-cookie").is_none());
    assert_eq!(endpoints.changes.get(&change.id).await.unwrap().unwrap().state, ChangeState::Pending);
    endpoints.close().await;
}

#[actix::test]
async fn proposer_cannot_approve_own_change_in_any_role() {
    let endpoints = Endpoints::open().await;
    for role in [Role::Reviewer, Role::Admin] {
        let name = format!("{role:?}").to_lowercase();
        let change = endpoints.propose_by(&name).await;
        let path = format!("/api/changes/{}/decision", change.id);
        let key = endpoints.key(&name, role);
        assert_eq!(endpoints.post(&path, &key, &decision("approve", &change)).await.problem(403), "SELF_APPROVAL");
        // Another key of the same name is the same principal, and so is a sign-in with that key.
        let second = endpoints.key(&name, role);
        assert_eq!(endpoints.post(&path, &second, &decision("approve", &change)).await.problem(403), "SELF_APPROVAL");
        let (cookie, secret) = endpoints.sign_in(&json!({ "key": second })).await;
        let reply = send_as_browser(
            &endpoints,
            "POST",
            &path,
            Some(&cookie),
            Some(&secret),
            Some(&endpoints.origin()),
            &decision("approve", &change),
        )
        .await;
        assert_eq!(reply.problem(403), "SELF_APPROVAL");
    }
    assert_eq!(endpoints.provider.call_count(), 0);
    endpoints.close().await;
}

async fn send_as_browser(
    endpoints: &Endpoints,
    method: &str,
    path: &str,
    cookie: Option<&str>,
    secret: Option<&str>,
    origin: Option<&str>,
    body: &Value,
) -> Reply {
    let mut headers = vec![("Content-Type", "application/json")];
    headers.extend(cookie.map(|value| ("Cookie", value)));
    headers.extend(secret.map(|value| ("X-Countersign-Secret", value)));
    headers.extend(origin.map(|value| ("Origin", value)));
    let body = body.to_string();
    endpoints.send(method, path, &headers, (method == "POST").then_some(body.as_str())).await
}

#[actix::test]
async fn cookie_or_secret_alone_is_refused() {
    let endpoints = Endpoints::open().await;
    let (cookie, secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let (other_cookie, other_secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let change = endpoints.propose_by("ci").await;
    let path = format!("/api/changes/{}/decision", change.id);
    let own = endpoints.origin();
    let body = decision("approve", &change);
    for (cookie, secret) in [
        (Some(&cookie), None),
        (None, Some(&secret)),
        (Some(&cookie), Some(&other_secret)),
        (Some(&other_cookie), Some(&secret)),
        (Some(&"countersign_session=".to_owned()), Some(&secret)),
        (None, None),
    ] {
        let (cookie, secret) = (cookie.map(String::as_str), secret.map(String::as_str));
        let reply = send_as_browser(&endpoints, "POST", &path, cookie, secret, Some(&own), &body).await;
        assert_eq!(reply.problem(401), "UNAUTHORIZED", "{cookie:?} {secret:?}");
        let reply = send_as_browser(&endpoints, "GET", "/api/changes", cookie, secret, None, &body).await;
        assert_eq!(reply.problem(401), "UNAUTHORIZED", "{cookie:?} {secret:?}");
    }
    let reply = send_as_browser(&endpoints, "GET", "/api/me", Some(&cookie), Some(&secret), None, &body).await;
    assert_eq!(reply.json()["name"], codes::local_reviewer());
    let reply = send_as_browser(&endpoints, "POST", &path, Some(&cookie), Some(&secret), Some(&own), &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    endpoints.wait_for_state(&change.id, ChangeState::Applied).await;
    endpoints.close().await;
}

#[actix::test]
async fn sign_in_works_only_from_own_origin_and_port() {
    let endpoints = Endpoints::open_with(|c| c.transports.http.cors_origins = vec!["https://app.example".into()]).await;
    let (cookie, secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let change = endpoints.propose_by("ci").await;
    let path = format!("/api/changes/{}/decision", change.id);
    let body = decision("approve", &change);
    let port = endpoints.address.port();
    let (other_port, other_scheme, other_name) = (
        format!("http://127.0.0.1:{}", port ^ 1),
        format!("https://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
    );
    for origin in [
        "null",
        "http://evil.example",
        "https://app.example",
        "http://127.0.0.1",
        &other_port,
        &other_scheme,
        &other_name,
        "",
    ] {
        for method in ["POST", "GET"] {
            let path = if method == "POST" { path.as_str() } else { "/api/changes" };
            let reply =
                send_as_browser(&endpoints, method, path, Some(&cookie), Some(&secret), Some(origin), &body).await;
            assert_eq!(reply.problem(403), "FORBIDDEN", "{method} {origin:?}");
        }
    }
    let reply = send_as_browser(&endpoints, "POST", &path, Some(&cookie), Some(&secret), None, &body).await;
    assert_eq!(reply.problem(403), "FORBIDDEN", "a POST without Origin does not come from a page of the gateway");
    let headers = [("Host", "evil.example"), ("Cookie", cookie.as_str()), ("X-Countersign-Secret", secret.as_str())];
    assert_eq!(endpoints.send("GET", "/api/changes", &headers, None).await.problem(403), "FORBIDDEN");
    assert_eq!(endpoints.changes.get(&change.id).await.unwrap().unwrap().state, ChangeState::Pending);
    // A configured origin may use a key, but not the cookie.
    let key = format!("Bearer {}", endpoints.key("alice", Role::Reviewer));
    let reply =
        endpoints.send("GET", "/api/me", &[("Origin", "https://app.example"), ("Authorization", &key)], None).await;
    assert_eq!((reply.status, reply.header("access-control-allow-origin")), (200, Some("https://app.example")));
    assert!(reply.header("access-control-allow-credentials").is_none());
    endpoints.close().await;
}

#[actix::test]
async fn form_of_another_site_is_refused() {
    let endpoints = Endpoints::open().await;
    let (cookie, secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let change = endpoints.propose_by("ci").await;
    let path = format!("/api/changes/{}/decision", change.id);
    let body = decision("approve", &change).to_string();
    let own = endpoints.origin();
    // The request is refused even with all credentials, because the media type of a simple request is not JSON.
    let headers = [
        ("Content-Type", "text/plain"),
        ("Cookie", cookie.as_str()),
        ("X-Countersign-Secret", secret.as_str()),
        ("Origin", own.as_str()),
    ];
    assert_eq!(endpoints.send("POST", &path, &headers, Some(&body)).await.problem(415), "INVALID_REQUEST");
    let headers = [("Content-Type", "text/plain"), ("Cookie", cookie.as_str()), ("Origin", "https://evil.example")];
    assert_eq!(endpoints.send("POST", &path, &headers, Some(&body)).await.problem(403), "FORBIDDEN");
    let sign_in = json!({ "code": endpoints.code() }).to_string();
    let headers = [("Content-Type", "application/json"), ("Origin", "https://evil.example")];
    assert_eq!(endpoints.send("POST", "/api/sign-in", &headers, Some(&sign_in)).await.problem(403), "FORBIDDEN");
    endpoints.close().await;
}

#[actix::test]
async fn code_of_another_person_needs_consent_of_the_page() {
    let endpoints = Endpoints::open().await;
    let (cookie, secret) = endpoints.sign_in(&json!({ "key": endpoints.key("alice", Role::Reviewer) })).await;
    let (own, body) = (endpoints.origin(), json!({ "code": endpoints.code() }));
    let send = async |cookie: &str, secret: Option<&str>, body: &Value| {
        send_as_browser(&endpoints, "POST", "/api/sign-in", Some(cookie), secret, Some(&own), body).await
    };
    let refused = send(&cookie, Some(&secret), &body).await;
    assert_eq!(refused.problem(403), "FORBIDDEN");
    let names = json!({ "signedInAs": "alice", "signInAs": codes::local_reviewer() });
    assert_eq!((refused.json()["details"].clone(), refused.header("set-cookie")), (names, None));
    let accepted = send(&cookie, None, &body).await;
    assert_eq!(accepted.status, 200, "the code is not used up: {accepted:?}");
    let cookie = accepted.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let secret = accepted.json()["secret"].as_str().unwrap().to_owned();
    let again = send(&cookie, Some(&secret), &json!({ "code": endpoints.code() })).await;
    assert_eq!(again.status, 200, "the same person needs no consent: {again:?}");
    let (cookie, secret) = endpoints.sign_in(&json!({ "key": endpoints.key("bob", Role::Reviewer) })).await;
    let used = send(&cookie, Some(&secret), &body).await;
    assert_eq!(used.problem(401), "UNAUTHORIZED", "nothing is left to consent to");
    endpoints.close().await;
}

#[actix::test]
async fn code_works_once_and_guessing_is_limited() {
    let endpoints = Endpoints::open().await;
    let code = endpoints.code();
    endpoints.sign_in(&json!({ "code": code })).await;
    let headers = [("Content-Type", "application/json")];
    let attempt = async |body: Value| endpoints.send("POST", "/api/sign-in", &headers, Some(&body.to_string())).await;
    let again = attempt(json!({ "code": code })).await;
    assert_eq!(again.problem(401), "UNAUTHORIZED");
    assert!(again.header("set-cookie").is_none());
    for body in [
        json!({}),
        json!({ "code": code, "key": code }),
        json!({ "code": 5 }),
        json!({ "password": "x" }),
        json!({ "code": null }),
    ] {
        assert_eq!(attempt(body).await.problem(422), "VALIDATION_FAILED");
    }
    let fresh = endpoints.code();
    let mut limited = None;
    for n in 0..20 {
        let wrong = attempt(json!({ "code": format!("csc_{n:043}") })).await;
        if wrong.status == 429 {
            assert_eq!(wrong.problem(429), "RATE_LIMITED");
            assert!(wrong.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
            limited = Some(n);
            break;
        }
        assert_eq!(wrong.problem(401), "UNAUTHORIZED");
    }
    assert!(limited.is_some(), "guesses must be limited");
    assert_eq!(attempt(json!({ "code": fresh })).await.status, 200, "the right code works in spite of wrong codes");
    endpoints.close().await;
}

#[actix::test]
async fn guessing_keys_is_limited_but_valid_key_works() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    assert_eq!(endpoints.get("/api/me", &key).await.status, 200);
    let mut statuses = Vec::new();
    for n in 0..20 {
        statuses.push(endpoints.get("/api/me", &format!("csk_{n:043}")).await.status);
    }
    assert_eq!(statuses[0], 401);
    assert_eq!(statuses[19], 429);
    assert_eq!(endpoints.get("/api/me", &key).await.status, 200);
    endpoints.close().await;
}

#[actix::test]
async fn malformed_credential_is_unauthorized() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("alice", Role::Reviewer);
    for good in [format!("Bearer {key}"), format!("bearer {key}"), format!("BEARER   {key}"), format!("Bearer {key}  ")]
    {
        assert_eq!(endpoints.send("GET", "/api/me", &[("Authorization", &good)], None).await.status, 200, "{good}");
    }
    let long = format!("Bearer {}", "a".repeat(20_000));
    for bad in [
        key.clone(),
        format!("Basic {key}"),
        format!("Bearer{key}"),
        format!("Bearer\t{key}"),
        format!("Bearer {key},"),
        format!("Bearer {key} {key}"),
        format!("Bearer \"{key}\""),
        "Bearer".into(),
        String::new(),
        long,
        format!("Bearer {}", key.to_uppercase()),
        format!("Bearer {}", &key[..46]),
    ] {
        let reply = endpoints.send("GET", "/api/me", &[("Authorization", &bad)], None).await;
        assert_eq!(reply.problem(401), "UNAUTHORIZED", "{bad:.80}");
    }
    let value = format!("Bearer {key}");
    let twice = [("Authorization", value.as_str()), ("Authorization", value.as_str())];
    assert_eq!(endpoints.send("GET", "/api/me", &twice, None).await.problem(401), "UNAUTHORIZED");
    assert_eq!(endpoints.send("GET", &format!("/api/me?key={key}"), &[], None).await.problem(400), "INVALID_PARAMS");
    // A bad key is refused even with a valid sign-in.
    let (cookie, secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let headers =
        [("Authorization", "Bearer csk_no"), ("Cookie", cookie.as_str()), ("X-Countersign-Secret", secret.as_str())];
    assert_eq!(endpoints.send("GET", "/api/me", &headers, None).await.problem(401), "UNAUTHORIZED");
    endpoints.close().await;
}

#[actix::test]
async fn sign_out_ends_every_tab_and_clears_cookie() {
    let endpoints = Endpoints::open().await;
    let (cookie, secret) = endpoints.sign_in(&json!({ "code": endpoints.code() })).await;
    let none = json!({});
    let out = send_as_browser(
        &endpoints,
        "POST",
        "/api/sign-out",
        Some(&cookie),
        Some(&secret),
        Some(&endpoints.origin()),
        &none,
    )
    .await;
    assert_eq!((out.status, out.json()), (200, json!({})), "there is no session at a provider");
    let cleared = out.header("set-cookie").unwrap();
    assert!(cleared.starts_with("countersign_session=;") && cleared.contains("Max-Age=0"), "{cleared}");
    let reply = send_as_browser(&endpoints, "GET", "/api/me", Some(&cookie), Some(&secret), None, &none).await;
    assert_eq!(reply.problem(401), "UNAUTHORIZED");
    endpoints.close().await;
}

#[actix::test]
async fn sign_in_without_a_provider_names_the_problem() {
    let endpoints = Endpoints::open().await;
    let ask = async |path: &str| endpoints.send("GET", path, &[("Cookie", "countersign_sign_in=x")], None).await;
    assert_eq!(ask("/api/sign-in").await.json(), json!({ "provider": false }));
    for path in ["/api/sign-in/provider", "/api/sign-in/callback?code=c&state=s"] {
        let reply = ask(path).await;
        assert_eq!((reply.status, reply.header("location")), (302, Some("/#sign-in-problem=not-configured")));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    let cleared = ask("/api/sign-in/callback").await;
    let cookie = cleared.header("set-cookie").unwrap();
    assert!(cookie.starts_with("countersign_sign_in=;") && cookie.contains("SameSite=Lax"), "{cookie}");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    for body in ["", "logout_token=a&logout_token=b", "logout_token=a"] {
        let reply = endpoints.send("POST", "/api/sign-in/back-channel-logout", &form, Some(body)).await;
        assert_eq!(reply.problem(400), "INVALID_REQUEST", "{body}");
    }
    endpoints.close().await;
}

#[actix::test]
async fn sign_in_begins_on_its_own_host_and_keeps_cookies() {
    let provider = countersign_config::OidcConfig::new("https://id.example", "gateway");
    let endpoints = Endpoints::open_with(|config| {
        config.public_url = Some("https://gw.example/".to_owned());
        config.auth.oidc = Some(provider);
    })
    .await;
    let expected = json!({ "provider": true, "signInUrl": "https://gw.example/api/sign-in/provider" });
    assert_eq!(endpoints.send("GET", "/api/sign-in", &[], None).await.json(), expected);
    let cookie = [("Cookie", "countersign_sign_in=x")];
    let reply = endpoints.send("GET", "/api/sign-in/callback?code=c&state=s", &cookie, None).await;
    assert_eq!((reply.status, reply.header("location")), (302, Some("/#sign-in-problem=interrupted")));
    assert_eq!(reply.header("set-cookie"), None, "the sign-in of another tab can still be finished");
    endpoints.close().await;
}

#[actix::test]
async fn revoked_key_and_its_sign_ins_are_refused() {
    let endpoints = Endpoints::open().await;
    let new = keys::create("alice", Role::Reviewer, Timestamp::now()).unwrap();
    endpoints.stored.writer().insert(&new.key, &new.hash).unwrap();
    let (cookie, secret) = endpoints.sign_in(&json!({ "key": new.secret })).await;
    assert_eq!(endpoints.get("/api/me", &new.secret).await.status, 200);
    endpoints.stored.writer().revoke(&new.key.id, Timestamp::now()).unwrap();
    // This has the same effect as waiting for a second.
    endpoints.data.access.authentication.authenticator.forget_key(&new.hash);
    assert_eq!(endpoints.get("/api/me", &new.secret).await.problem(401), "UNAUTHORIZED");
    let reply = send_as_browser(&endpoints, "GET", "/api/me", Some(&cookie), Some(&secret), None, &json!({})).await;
    assert_eq!(reply.problem(401), "UNAUTHORIZED");
    endpoints.close().await;
}
