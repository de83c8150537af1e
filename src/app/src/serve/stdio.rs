//! Serves MCP to processes of this machine: on the attach socket, and on stdin and stdout.

use std::sync::Arc;

use tokio::{io::BufReader, net::UnixStream};

use countersign_attach::{
    Users,
    hello::{self, Hello, HelloOutcome},
    socket::Listener,
};
use countersign_auth::Authenticator;
use countersign_domain::principal::{Identity, Principal};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;
use countersign_transports::{endpoint::McpEndpoint, lines};

/// The server of the attach socket. Each connection is a session of a local process.
pub struct AttachServer {
    pub endpoint: Arc<McpEndpoint>,
    pub listener: Listener,
    pub users: Users,
    /// `true` if the gateway ends when a newer program asks it to.
    pub is_detached: bool,
}

impl AttachServer {
    /// Serves connections until the gateway shuts down. Must run on an actix arbiter.
    pub async fn run(self) {
        loop {
            let stream = tokio::select! {
                stream = self.listener.accept() => stream,
                () = self.endpoint.shutdown.cancelled() => return,
            };
            match stream {
                Ok(stream) => {
                    let user = self.users.add_user();
                    let served = serve_process(Arc::clone(&self.endpoint), stream, self.is_detached);
                    background::spawn(async move {
                        served.await;
                        drop(user);
                    });
                }
                Err(error) => {
                    tracing::error!(%error, "the attach socket failed; `countersign stdio` cannot connect any more");
                    return;
                }
            }
        }
    }
}

/// Serves a process after its handshake, which may instead end a detached gateway.
async fn serve_process(endpoint: Arc<McpEndpoint>, stream: UnixStream, is_detached: bool) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(64 << 10, reader);
    let identify = |hello: &Hello| {
        stdio_identity(&endpoint.sessions.authenticator, hello.key.as_deref()).map_err(|error| error.to_string())
    };
    match hello::accept_handshake(&mut reader, &mut writer, is_detached, identify).await {
        Ok(Some(HelloOutcome::Serve(identity))) => lines::serve(endpoint, identity, reader, writer).await,
        Ok(Some(HelloOutcome::Leave(version))) => {
            tracing::info!(version, "a newer program replaces this gateway");
            endpoint.shutdown.cancel();
        }
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "the handshake of an attached process failed"),
    }
}

/// Returns the identity of a process on stdio or the attach socket. In `auth.mode: local`, a process without a key is
/// the local agent, because only this user can open the socket.
///
/// # Errors
/// Fails if the key is missing or invalid, or if it may decide on changes: an agent with such a key could approve its
/// own proposals.
pub fn stdio_identity(authenticator: &Authenticator, key: Option<&str>) -> Result<Identity, McpError> {
    let identity = match key {
        Some(key) => authenticator.identify_key(key, None)?,
        None => authenticator.identify_local_process()?,
    };
    let Principal { name, role, .. } = &*identity.principal;
    if !role.may_decide() {
        return Ok(identity);
    }
    let keyless_hint = match authenticator.identify_local_process() {
        Ok(_) => ", or start it without a key: here an agent needs none",
        Err(_) => "",
    };
    let message = format!(
        "the key of {name} may decide on changes (role {}), and an agent must not hold such a key. Give the agent a key \
         of its own, `export COUNTERSIGN_AGENT_KEY=$(countersign keys create --role agent --name NAME)`{keyless_hint}",
        role.as_str()
    );
    Err(McpError::new(ErrorKind::Forbidden, message))
}
