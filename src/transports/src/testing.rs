//! The endpoints of agents for tests, with their own data directory and without a port or a server.

use std::{net::SocketAddr, sync::Arc};

use actix_web::{
    App,
    http::{StatusCode, header::HeaderMap},
    test::{self, TestRequest},
    web,
};
use bytes::Bytes;
use jiff::Timestamp;

use crate::{endpoint::McpEndpoint, http};
use countersign_attach::Users;
use countersign_auth::keys;
use countersign_domain::principal::{Credential, Identity, Role};
use countersign_http::connections::Connections;
use countersign_session::testing::Gateway;

/// The endpoints, with the gateway behind them.
pub struct TestEndpoint {
    pub endpoint: Arc<McpEndpoint>,
    pub gateway: Gateway,
}

/// The response to a test request.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    /// Returns the error code, if the response is an error.
    pub fn code(&self) -> Option<String> {
        let body: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(body["error"]["data"]["code"].as_str()?.to_owned())
    }
}

impl TestEndpoint {
    /// Opens the endpoints with a configuration in YAML.
    pub async fn open(config: &str) -> Self {
        let gateway = Gateway::new(config).await;
        let (transports, sessions) = (&gateway.config.transports, Arc::clone(&gateway.sessions));
        let body_budget = Arc::clone(&sessions.server.status.body_budget);
        let connections = Arc::new(Connections::new(transports, body_budget, Users::default()));
        Self { endpoint: Arc::new(McpEndpoint::new(transports, sessions, connections)), gateway }
    }

    /// Creates a key, and returns the value of `Authorization` for it.
    pub fn key(&self, name: &str) -> String {
        let new = keys::create(name, Role::Agent, Timestamp::now()).unwrap();
        self.gateway.keys.writer().insert(&new.key, &new.hash).unwrap();
        format!("Bearer {}", new.secret)
    }

    /// Returns the identity of a key.
    pub fn identity(&self, key: &str) -> Identity {
        self.endpoint.sessions.authenticator.identify(Some(key.as_bytes()), None).unwrap()
    }

    /// Revokes a key.
    pub fn revoke(&self, key: &str) {
        let Identity { principal, credential: Credential::Key(hash) } = self.identity(key) else { panic!("no key") };
        self.gateway.keys.writer().revoke(principal.key_id.as_deref().unwrap(), Timestamp::now()).unwrap();
        self.endpoint.sessions.authenticator.forget_key(&hash);
    }

    /// Sends a request from this machine to the MCP and plain endpoints.
    pub async fn ask(&self, request: TestRequest) -> Reply {
        let app = App::new().app_data(web::Data::from(Arc::clone(&self.endpoint))).configure(http::routes);
        let app = test::init_service(app).await;
        let request = request.peer_addr(SocketAddr::from(([127, 0, 0, 1], 1))).to_request();
        let response = test::call_service(&app, request).await;
        let (status, headers) = (response.status(), response.headers().clone());
        Reply { status, headers, body: test::read_body(response).await }
    }
}
