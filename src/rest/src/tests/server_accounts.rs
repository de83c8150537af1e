//! Tests that a person connects and disconnects accounts at servers, with fake accounts.

use super::*;
use countersign_accounts::{AccountStatus, CONSENT_COOKIE, ConnectError, StartedConsent};
use countersign_config::AccountKind;
use countersign_domain::principal::Principal;
use countersign_protocol::McpError;

/// One account of each person at the server `pretend`, and one of the gateway at `shared`.
#[derive(Default)]
pub(super) struct FakeAccounts {
    connected: Mutex<Vec<String>>,
}

#[async_trait(?Send)]
impl ServerAccounts for FakeAccounts {
    async fn list_statuses(&self, principal: &Principal) -> Result<Vec<AccountStatus>, McpError> {
        let is_connected = self.connected.lock().unwrap().iter().any(|owner| owner == principal.person_name());
        let status = AccountStatus {
            server: "pretend".to_owned(),
            kind: AccountKind::Person,
            is_connected,
            may_connect: true,
            problem: (!is_connected).then(|| "<b>nobody has connected yet</b>".to_owned()),
            connected_at: is_connected.then_some(Timestamp::UNIX_EPOCH),
            issuer: is_connected.then(|| "https://id.example".to_owned()),
            scopes: vec!["read".to_owned()],
        };
        Ok(vec![status])
    }

    async fn begin_connection(&self, server: &str, principal: &Principal) -> Result<StartedConsent, ConnectError> {
        match server {
            "pretend" => Ok(StartedConsent {
                url: "https://id.example/authorize?state=1".to_owned(),
                cookie: principal.person_name().to_owned(),
            }),
            "shared" => Err(ConnectError::AdminOnly),
            "away" => Err(ConnectError::AuthorizationServerUnreachable),
            _ => Err(ConnectError::UnknownServer),
        }
    }

    async fn finish_connection(&self, query: &str, cookie: Option<&str>) -> Result<String, ConnectError> {
        match cookie {
            Some(owner) if query.contains("code=") => {
                self.connected.lock().unwrap().push(owner.to_owned());
                Ok("pre tend/".to_owned())
            }
            Some(_) => Err(ConnectError::Denied),
            None => Err(ConnectError::Interrupted),
        }
    }

    async fn disconnect(&self, _: &str, principal: &Principal) -> Result<bool, McpError> {
        let mut connected = self.connected.lock().unwrap();
        let before = connected.len();
        connected.retain(|owner| owner != principal.person_name());
        Ok(connected.len() < before)
    }

    fn connect_url(&self, server: &str) -> String {
        format!("http://127.0.0.1:9/#/servers/{server}/connect")
    }

    fn client_metadata(&self) -> Option<Value> {
        Some(json!({ "client_id": "https://gw.example/.well-known/oauth-client.json" }))
    }
}

impl Endpoints {
    async fn account(&self, key: &str) -> Value {
        self.get("/api/servers", key).await.json()["servers"][0]["account"].clone()
    }

    async fn delete(&self, path: &str, key: &str) -> Reply {
        self.send("DELETE", path, &[("Authorization", &format!("Bearer {key}"))], None).await
    }
}

#[actix::test]
async fn account_is_connected_in_the_browser_and_disconnected() {
    let endpoints = Endpoints::open().await;
    let (ann, bob) = (endpoints.key("ann", Role::Viewer), endpoints.key("bob", Role::Reviewer));
    let expected = json!({
        "as": "person", "connected": false, "mayConnect": true, "problem": "<b>nobody has connected yet</b>", "scopes": ["read"],
    });
    assert_eq!(endpoints.account(&ann).await, expected);
    let started = endpoints.post("/api/servers/pretend/connect", &ann, &json!({})).await;
    assert_eq!((started.status, started.json()), (200, json!({ "url": "https://id.example/authorize?state=1" })));
    let cookie = started.header("set-cookie").unwrap().to_owned();
    assert_eq!(cookie, format!("{CONSENT_COOKIE}=ann; HttpOnly; SameSite=Lax; Path=/api/servers; Max-Age=600"));

    let callback = async |query: &str, cookie: &str| {
        let reply = endpoints.send("GET", &format!("/api/servers/callback?{query}"), &[("Cookie", cookie)], None).await;
        assert_eq!((reply.status, reply.header("cache-control")), (302, Some("no-store")), "{reply:?}");
        let removes_cookie = reply.header("set-cookie").is_some_and(|cookie| cookie.contains("Max-Age=0"));
        (reply.header("location").unwrap().to_owned(), removes_cookie)
    };
    let page = |path: &str, removes_cookie| (path.to_owned(), removes_cookie);
    let pair = cookie.split(';').next().unwrap();
    let denied = page("/#/servers?connect-problem=denied", true);
    assert_eq!(callback("state=1&error=access_denied", pair).await, denied);
    let interrupted = page("/#/servers?connect-problem=interrupted", false);
    assert_eq!(callback("state=1&code=2", "other=1").await, interrupted, "another tab may still use the cookie");
    assert_eq!(endpoints.account(&ann).await, expected);
    assert_eq!(callback("state=1&code=2", pair).await, page("/#/servers/pre%20tend%2F?connected", true));

    let account = endpoints.account(&ann).await;
    assert_eq!(account["connected"], true);
    assert_eq!((&account["since"], &account["issuer"]), (&json!("1970-01-01T00:00:00Z"), &json!("https://id.example")));
    assert_eq!(endpoints.account(&bob).await["connected"], false, "an account is of one person");
    for disconnected in [true, false] {
        let reply = endpoints.delete("/api/servers/pretend/connection", &ann).await;
        assert_eq!((reply.status, reply.json()), (200, json!({ "disconnected": disconnected })));
    }
    endpoints.close().await;
}

#[actix::test]
async fn connection_that_cannot_begin_is_a_problem() {
    let endpoints = Endpoints::open().await;
    let key = endpoints.key("ann", Role::Reviewer);
    for (server, status, code) in
        [("shared", 403, "FORBIDDEN"), ("away", 502, "UPSTREAM_UNAVAILABLE"), ("nothing", 404, "NOT_FOUND")]
    {
        let reply = endpoints.post(&format!("/api/servers/{server}/connect"), &key, &json!({})).await;
        assert_eq!(reply.problem(status), code, "{server}");
        assert_eq!(reply.header("set-cookie"), None);
    }
    endpoints.close().await;
}

#[actix::test]
async fn connection_begins_only_on_the_host_of_its_end() {
    let endpoints = Endpoints::open().await;
    let authorization = format!("Bearer {}", endpoints.key("ann", Role::Reviewer));
    let (local_host, own_host) = (format!("localhost:{}", endpoints.address.port()), endpoints.address.to_string());
    let begin = async |host: &str| {
        let origin = format!("http://{host}");
        let headers = [
            ("Host", host),
            ("Origin", origin.as_str()),
            ("Authorization", authorization.as_str()),
            ("Content-Type", "application/json"),
        ];
        endpoints.send("POST", "/api/servers/pretend/connect", &headers, Some("{}")).await
    };
    let reply = begin(&local_host).await;
    assert_eq!(reply.problem(400), "INVALID_REQUEST");
    assert!(reply.text.contains("open http://127.0.0.1:9/#/servers/pretend/connect to"), "{reply:?}");
    assert_eq!(reply.header("set-cookie"), None, "it would not be sent to the other host");
    assert_eq!(begin(&own_host).await.status, 200);
    endpoints.close().await;
}

#[actix::test]
async fn agent_or_unknown_caller_connects_nothing() {
    let endpoints = Endpoints::open().await;
    let agent = endpoints.key("ci", Role::Agent);
    for (key, status) in [(agent.as_str(), 403), ("csk_unknown", 401)] {
        endpoints.post("/api/servers/pretend/connect", key, &json!({})).await.problem(status);
        endpoints.delete("/api/servers/pretend/connection", key).await.problem(status);
    }
    let page = [("Origin", "https://evil.example"), ("Content-Type", "application/json")];
    endpoints.send("POST", "/api/servers/pretend/connect", &page, Some("{}")).await.problem(403);
    endpoints.close().await;
}

#[actix::test]
async fn client_metadata_is_public() {
    let endpoints = Endpoints::open().await;
    let reply = endpoints.send("GET", "/.well-known/oauth-client.json", &[], None).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.json()["client_id"], "https://gw.example/.well-known/oauth-client.json");
    endpoints.close().await;
}
