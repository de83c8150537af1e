//! Tests of the steps against a server on loopback, which is an MCP server and its authorization server.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, dev::ServerHandle, http::StatusCode, rt, web};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};
use url::{Url, form_urlencoded};

use super::{AllowedAddresses, OAuthError, discovery::AuthorizationServer};

mod authorization;
mod discovery;
mod registration;
mod signatures;
mod token;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

/// A request that the server received.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

impl ReceivedRequest {
    fn field(&self, name: &str) -> Option<String> {
        let mut fields = form_urlencoded::parse(self.body.as_bytes());
        fields.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }
}

/// The status, the DPoP nonce, and the body of an answer.
type Page = (u16, Option<&'static str>, String);

#[derive(Default)]
struct State {
    received: Vec<ReceivedRequest>,
    /// The answers at each path, in order. The last one is repeated.
    pages: BTreeMap<String, VecDeque<Page>>,
}

struct FakeServer {
    url: String,
    state: Arc<Mutex<State>>,
    server: ServerHandle,
}

impl FakeServer {
    async fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        let server = HttpServer::new(move || {
            let state = Arc::clone(&served);
            App::new().default_service(web::to(move |request: HttpRequest, body: String| {
                let answer = state.lock().unwrap().answer(&request, body);
                async move { answer }
            }))
        });
        let server = server.workers(1).disable_signals().bind(("127.0.0.1", 0)).unwrap();
        let url = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        rt::spawn(server);
        Self { url, state, server: handle }
    }

    /// Adds an answer at a path.
    fn add(&self, path: &str, status: u16, body: impl ToString) {
        self.add_with_nonce(path, status, None, body);
    }

    fn add_with_nonce(&self, path: &str, status: u16, nonce: Option<&'static str>, body: impl ToString) {
        let mut state = self.state.lock().unwrap();
        state.pages.entry(path.to_owned()).or_default().push_back((status, nonce, body.to_string()));
    }

    /// Adds the metadata of an authorization server at the root, with other members.
    fn add_metadata(&self, changes: Value) {
        self.add("/.well-known/oauth-authorization-server", 200, self.metadata(&self.url, changes));
    }

    fn metadata(&self, issuer: &str, changes: Value) -> Value {
        let mut document = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{}/authorize", self.url),
            "token_endpoint": format!("{}/token", self.url),
            "registration_endpoint": format!("{}/register", self.url),
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
        });
        document.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        document
    }

    fn mcp_url(&self) -> Url {
        Url::parse(&format!("{}/mcp", self.url)).unwrap()
    }

    fn authorization_server(&self) -> AuthorizationServer {
        AuthorizationServer {
            issuer: self.url.clone(),
            authorization_endpoint: Some(format!("{}/authorize", self.url)),
            token_endpoint: format!("{}/token?x=1", self.url),
            registration_endpoint: Some(format!("{}/register", self.url)),
            has_pkce: true,
            allowed_addresses: AllowedAddresses::new(&self.mcp_url(), None),
            ..AuthorizationServer::default()
        }
    }

    fn received(&self) -> Vec<ReceivedRequest> {
        self.state.lock().unwrap().received.clone()
    }

    fn paths(&self) -> Vec<String> {
        self.received().into_iter().map(|received| received.path).collect()
    }

    async fn stop(&self) {
        self.server.stop(false).await;
    }
}

impl State {
    fn answer(&mut self, request: &HttpRequest, body: String) -> HttpResponse {
        let headers = request.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
        let path = request.path().to_owned();
        let page = self.pages.get_mut(&path).map(|pages| match pages.len() {
            1 => pages[0].clone(),
            _ => pages.pop_front().unwrap(),
        });
        self.received.push(ReceivedRequest { path, headers, body });
        let Some((status, nonce, body)) = page else { return HttpResponse::NotFound().body("<h1>Not found</h1>") };
        let mut answer = HttpResponse::build(StatusCode::from_u16(status).unwrap());
        if let Some(nonce) = nonce {
            answer.insert_header(("DPoP-Nonce", nonce));
        }
        answer.insert_header(("Location", "/elsewhere")).body(body)
    }
}

/// Returns a part of a token: 0 for the header, 1 for the claims.
fn decode(token: &str, part: usize) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(part).unwrap()).unwrap()).unwrap()
}

#[track_caller]
fn assert_unusable<T: std::fmt::Debug>(result: Result<T, OAuthError>, text: &str) {
    match result {
        Err(OAuthError::Unusable(reason)) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other:?}"),
    }
}
