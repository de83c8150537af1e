//! A store in memory, and a server on loopback that answers as a protected server's metadata and as its authorization
//! server.

use std::{
    collections::{BTreeMap, VecDeque},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix_web::{App, HttpRequest, HttpResponse, HttpServer, http::StatusCode, rt, web};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use url::form_urlencoded;

use crate::IdentityProvider;
use countersign_config::{Authorities, OidcConfig, Secret};
use countersign_domain::{
    changes::Absence,
    policy::{KeyHolder, KeyHolders},
    principal::Role,
};
use countersign_protocol::McpError;
use countersign_store::{
    StoreError,
    accounts::{AccountKey, AccountStore, StoredAccount},
};

/// The roles of valid keys by their ids.
#[derive(Default)]
pub struct FakeKeys(pub BTreeMap<&'static str, Role>);

impl KeyHolders for FakeKeys {
    fn holder(&self, id: &str) -> Result<Option<KeyHolder>, McpError> {
        Ok(self.0.get(id).map(|role| KeyHolder { role: *role, claims: None }))
    }

    fn is_person_revoked(&self, _: &str) -> Result<bool, McpError> {
        Ok(false)
    }

    fn revocations(&self) -> Result<u64, McpError> {
        Ok(0)
    }

    fn refresh(&self) -> Result<(), McpError> {
        Ok(())
    }

    fn absences(&self) -> Result<Vec<Absence>, McpError> {
        Ok(Vec::new())
    }
}

/// The sign-in of one person at their identity provider, if there is one.
#[derive(Default)]
pub struct FakeSignIns {
    /// The person, and their ID token.
    pub id_token: Mutex<Option<(&'static str, String)>>,
}

impl IdentityProvider for FakeSignIns {
    fn id_token<'a>(&'a self, person: &'a str) -> LocalBoxFuture<'a, Result<Option<String>, McpError>> {
        let sign_in = self.id_token.lock().unwrap().clone();
        Box::pin(async move { Ok(sign_in.filter(|(name, _)| *name == person).map(|(_, id_token)| id_token)) })
    }

    fn config_for(&self, issuer: &str) -> Option<OidcConfig> {
        self.id_token.lock().unwrap().as_ref()?;
        let mut config = OidcConfig::new(issuer, "gateway");
        config.client_secret = Some(Secret("of-provider".to_owned()));
        Some(config)
    }
}

/// A store in memory, which several nodes can share.
#[derive(Default)]
pub struct MemoryStore {
    pub rows: Mutex<BTreeMap<AccountKey, StoredAccount>>,
    pub registrations: Mutex<BTreeMap<String, String>>,
    /// The number of writes of refreshed tokens that will fail.
    pub failures: Mutex<u32>,
    /// The number of times that an account was read.
    pub reads: AtomicUsize,
    versions: Mutex<i64>,
}

impl MemoryStore {
    fn next_version(&self) -> i64 {
        let mut last = self.versions.lock().unwrap();
        *last += 1;
        *last
    }

    fn change<T>(
        &self,
        key: &AccountKey,
        change: impl FnOnce(Option<&mut StoredAccount>) -> T,
    ) -> Result<T, StoreError> {
        Ok(change(self.rows.lock().unwrap().get_mut(key)))
    }
}

impl AccountStore for MemoryStore {
    fn account(&self, key: &AccountKey) -> Result<Option<StoredAccount>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Ok(self.rows.lock().unwrap().get(key).cloned())
    }

    fn accounts(&self) -> Result<Vec<StoredAccount>, StoreError> {
        let mut all: Vec<_> = self.rows.lock().unwrap().values().cloned().collect();
        all.sort_by_key(|row| row.connected_at);
        Ok(all)
    }

    fn connect_account(&self, account: &StoredAccount) -> Result<i64, StoreError> {
        let version = self.next_version();
        let row = StoredAccount { version, refreshing_since: None, ..account.clone() };
        self.rows.lock().unwrap().insert(account.key.clone(), row);
        Ok(version)
    }

    fn begin_refresh(&self, key: &AccountKey, version: i64, now: Timestamp) -> Result<bool, StoreError> {
        self.change(key, |row| match row {
            Some(row) if row.version == version && row.refreshing_since.is_none() => {
                row.refreshing_since = Some(now);
                true
            }
            _ => false,
        })
    }

    fn finish_refresh(&self, key: &AccountKey, version: i64, sealed: &str) -> Result<bool, StoreError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(StoreError::DiskFull);
        }
        let next = self.next_version();
        self.change(key, |row| match row {
            Some(row) if row.version == version => {
                (row.sealed, row.version, row.refreshing_since) = (sealed.to_owned(), next, None);
                true
            }
            _ => false,
        })
    }

    fn cancel_refresh(&self, key: &AccountKey, version: i64) -> Result<(), StoreError> {
        self.change(key, |row| {
            if let Some(row) = row.filter(|row| row.version == version) {
                row.refreshing_since = None;
            }
        })
    }

    fn remove_account(&self, key: &AccountKey) -> Result<bool, StoreError> {
        Ok(self.rows.lock().unwrap().remove(key).is_some())
    }

    fn registration(&self, issuer: &str) -> Result<Option<String>, StoreError> {
        Ok(self.registrations.lock().unwrap().get(issuer).cloned())
    }

    fn put_registration(&self, issuer: &str, sealed: &str) -> Result<(), StoreError> {
        self.registrations.lock().unwrap().insert(issuer.to_owned(), sealed.to_owned());
        Ok(())
    }
}

/// The answers of the fake provider, and the requests that it received.
#[derive(Default)]
pub struct ProviderState {
    /// Another authorization server that the server's metadata names.
    pub issuer_of_server: Option<String>,
    /// The next answers of the token endpoint, which precede the usual ones.
    pub answers: VecDeque<(u16, Value)>,
    /// The token requests.
    pub forms: Vec<BTreeMap<String, String>>,
    pub registrations: usize,
    pub refuses_registrations: bool,
    /// The requests for the server's metadata.
    pub discoveries: usize,
    pub issues_refresh_tokens: bool,
    /// The token endpoint holds its answers until there is a permit.
    token_gate: Option<Arc<Semaphore>>,
    issued: usize,
}

/// A server on loopback that is an authorization server and has the metadata of an MCP server.
#[derive(Clone)]
pub struct FakeProvider {
    pub url: String,
    pub state: Arc<Mutex<ProviderState>>,
}

impl FakeProvider {
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts the provider with a certificate for `localhost` of an authority of its own, which is returned.
    pub fn start_with_tls() -> (Self, Authorities) {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| dir.path().join(name));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
            .args(["-addext", "basicConstraints=CA:FALSE", "-out"])
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let certificate = CertificateDer::from_pem_file(certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let tls = ServerConfig::builder().with_no_client_auth();
        let tls = tls.with_single_cert(vec![certificate.clone()], key).unwrap();
        (Self::start_with(Some(tls)), Authorities { file: "ca.pem".into(), certificates: vec![certificate] })
    }

    fn start_with(tls: Option<ServerConfig>) -> Self {
        let state = Arc::new(Mutex::new(ProviderState { issues_refresh_tokens: true, ..ProviderState::default() }));
        let served = Arc::clone(&state);
        let server = HttpServer::new(move || {
            let state = Arc::clone(&served);
            App::new().default_service(web::to(move |request: HttpRequest, body: String| {
                let state = Arc::clone(&state);
                async move {
                    let (gate, answer) = {
                        let mut state = state.lock().unwrap();
                        (state.token_gate.clone(), state.answer(&request, &body))
                    };
                    if let Some(gate) = gate.filter(|_| request.path() == "/token") {
                        drop(gate.acquire().await.unwrap());
                    }
                    answer
                }
            }))
        });
        let (server, address) = (server.workers(1).disable_signals(), ("127.0.0.1", 0));
        let (server, host) = match tls {
            Some(tls) => (server.bind_rustls_0_23(address, tls).unwrap(), "https://localhost"),
            None => (server.bind(address).unwrap(), "http://127.0.0.1"),
        };
        let url = format!("{host}:{}", server.addrs()[0].port());
        rt::spawn(server.run());
        Self { url, state }
    }

    pub fn count(&self, grant: &str) -> usize {
        let forms = &self.state.lock().unwrap().forms;
        forms.iter().filter(|form| form["grant_type"].ends_with(grant)).count()
    }

    /// Holds the answers of the token endpoint until a permit is added.
    pub fn hold_tokens(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.state.lock().unwrap().token_gate = Some(Arc::clone(&gate));
        gate
    }

    /// Waits until a token is requested with this grant.
    pub async fn wait_for_request(&self, grant: &str) {
        while self.count(grant) == 0 {
            rt::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub fn last_form(&self) -> BTreeMap<String, String> {
        self.state.lock().unwrap().forms.last().unwrap().clone()
    }

    /// Sets the next answer of the token endpoint.
    pub fn push_answer(&self, status: u16, body: Value) {
        self.state.lock().unwrap().answers.push_back((status, body));
    }
}

impl ProviderState {
    fn answer(&mut self, request: &HttpRequest, body: &str) -> HttpResponse {
        let url = format!("{}://{}", request.connection_info().scheme(), request.connection_info().host());
        match request.path() {
            "/.well-known/oauth-protected-resource/mcp" => {
                self.discoveries += 1;
                HttpResponse::Ok().json(json!({
                    "resource": format!("{url}/mcp"),
                    "authorization_servers": [self.issuer_of_server.as_ref().unwrap_or(&url)],
                }))
            }
            "/.well-known/oauth-authorization-server" => HttpResponse::Ok().json(json!({
                "issuer": url,
                "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}/token"),
                "registration_endpoint": format!("{url}/register"),
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
            })),
            "/register" if self.refuses_registrations => {
                HttpResponse::Forbidden().json(json!({ "error": "access_denied" }))
            }
            "/register" => {
                self.registrations += 1;
                let id = format!("client-{}", self.registrations);
                HttpResponse::Created().json(json!({ "client_id": id, "token_endpoint_auth_method": "none" }))
            }
            "/token" => {
                self.forms.push(form_urlencoded::parse(body.as_bytes()).into_owned().collect());
                if let Some((status, body)) = self.answers.pop_front() {
                    return HttpResponse::build(StatusCode::from_u16(status).unwrap()).json(body);
                }
                self.issued += 1;
                let mut answer = json!({
                    "access_token": format!("access-{}", self.issued),
                    "token_type": "Bearer",
                    "expires_in": 3600,
                });
                if self.issues_refresh_tokens {
                    answer["refresh_token"] = format!("refresh-{}", self.issued).into();
                }
                HttpResponse::Ok().json(answer)
            }
            _ => HttpResponse::NotFound().finish(),
        }
    }
}
