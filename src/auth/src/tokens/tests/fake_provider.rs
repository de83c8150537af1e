//! A server on loopback that answers as an issuer, and records the requests.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, dev::ServerHandle, http::StatusCode, rt, web};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::{TestKey, merge};

#[derive(Default)]
struct State {
    /// The paths of all requests.
    requests: Vec<String>,
    metadata: Value,
    keys: Vec<Value>,
    /// The answers about opaque tokens.
    tokens: BTreeMap<String, Value>,
    /// The `Authorization` header and the form of the last introspection.
    last_introspection: (String, String),
    /// The answers at other paths, or in place of the usual ones.
    pages: BTreeMap<String, (u16, String)>,
    status: u16,
}

pub struct FakeProvider {
    pub issuer: String,
    state: Arc<Mutex<State>>,
    server: ServerHandle,
}

impl FakeProvider {
    pub async fn start() -> Self {
        let state = Arc::new(Mutex::new(State { status: 200, ..State::default() }));
        let served = Arc::clone(&state);
        let server = HttpServer::new(move || {
            let state = Arc::clone(&served);
            App::new().default_service(web::to(move |request: HttpRequest, body: String| {
                let state = Arc::clone(&state);
                async move {
                    // Long enough that simultaneous requests overlap.
                    rt::time::sleep(Duration::from_millis(20)).await;
                    state.lock().unwrap().answer(&request, body)
                }
            }))
        });
        let server = server.workers(1).disable_signals().bind(("127.0.0.1", 0)).unwrap();
        let issuer = format!("http://{}", server.addrs()[0]);
        let server = server.run();
        let handle = server.handle();
        rt::spawn(server);
        let metadata = json!({
            "issuer": issuer,
            "jwks_uri": format!("{issuer}/jwks"),
            "introspection_endpoint": format!("{issuer}/introspect"),
        });
        state.lock().unwrap().metadata = metadata;
        Self { issuer, state, server: handle }
    }

    pub fn set_keys(&self, keys: &[&TestKey]) {
        self.state.lock().unwrap().keys = keys.iter().map(|key| key.public.clone()).collect();
    }

    pub fn change_metadata(&self, changes: Value) {
        let mut state = self.state.lock().unwrap();
        state.metadata = merge(&state.metadata, changes);
    }

    /// Sets the answer about an opaque token.
    pub fn set_token(&self, token: &str, answer: Value) {
        self.state.lock().unwrap().tokens.insert(token.to_owned(), answer);
    }

    /// Sets the status and the body of the answer at a path. The body of a redirect is its target.
    pub fn set_page(&self, path: &str, status: u16, body: impl Into<String>) {
        self.state.lock().unwrap().pages.insert(path.to_owned(), (status, body.into()));
    }

    /// Sets the status of all answers.
    pub fn set_status(&self, status: u16) {
        self.state.lock().unwrap().status = status;
    }

    pub fn count(&self, path: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|asked| *asked == path).count()
    }

    pub fn last_introspection(&self) -> (String, String) {
        self.state.lock().unwrap().last_introspection.clone()
    }

    pub async fn stop(&self) {
        self.server.stop(false).await;
    }

    /// Waits for a request that is sent in the background.
    pub async fn wait_for_count(&self, path: &str, count: usize) {
        for _ in 0..6000 {
            if self.count(path) >= count {
                return;
            }
            rt::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} requests of {path}", self.count(path));
    }
}

impl State {
    fn answer(&mut self, request: &HttpRequest, body: String) -> HttpResponse {
        let path = request.path().to_owned();
        self.requests.push(path.clone());
        if let Some((status, body)) = self.pages.get(&path) {
            let status = StatusCode::from_u16(*status).unwrap();
            return HttpResponse::build(status)
                .insert_header(("Location", body.chars().take(100).collect::<String>()))
                .body(body.clone());
        }
        let answer = match path.as_str() {
            "/.well-known/openid-configuration" => self.metadata.clone(),
            "/jwks" => json!({ "keys": self.keys }),
            "/introspect" => {
                let token = form_urlencoded::parse(body.as_bytes()).find(|(name, _)| name == "token").unwrap().1;
                let answer = self.tokens.get(token.as_ref()).cloned();
                let header = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
                self.last_introspection = (header.unwrap_or_default(), body.clone());
                answer.unwrap_or_else(|| json!({ "active": false }))
            }
            _ => return HttpResponse::NotFound().body("<h1>Not found</h1>"),
        };
        HttpResponse::build(StatusCode::from_u16(self.status).unwrap()).json(answer)
    }
}
