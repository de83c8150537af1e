//! A TCP connection, with or without TLS.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use url::Url;

use super::{Budget, ProbeError};
use countersign_net::tls;

/// A plain or TLS socket.
trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

/// A connection whose bytes count toward the budget of the run.
pub(super) struct Connection {
    socket: Box<dyn Socket>,
    budget: Arc<Budget>,
}

impl Connection {
    /// Connects to the host of a URL.
    pub async fn open(url: &Url, limit: Duration, budget: Arc<Budget>) -> Result<Self, ProbeError> {
        Ok(Self { socket: connect(url, limit).await?, budget })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ProbeError> {
        self.socket.write_all(bytes).await.map_err(|_| ProbeError::Closed)?;
        self.socket.flush().await.map_err(|_| ProbeError::Closed)
    }

    /// Appends received bytes to `into`, and returns their number; 0 means the end.
    pub async fn read(&mut self, into: &mut Vec<u8>) -> Result<usize, ProbeError> {
        let mut buffer = vec![0; 64 << 10];
        let count = self.socket.read(&mut buffer).await.map_err(|_| ProbeError::Closed)?;
        into.extend_from_slice(buffer.get(..count).unwrap_or_default());
        self.budget.charge(count)?;
        Ok(count)
    }
}

async fn connect(url: &Url, limit: Duration) -> Result<Box<dyn Socket>, ProbeError> {
    let unreachable = |error: &dyn std::fmt::Display| ProbeError::Unreachable(error.to_string());
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let connecting = async {
        let socket = TcpStream::connect((host.as_str(), port)).await.map_err(|error| unreachable(&error))?;
        socket.set_nodelay(true).map_err(|error| unreachable(&error))?;
        if !matches!(url.scheme(), "https" | "wss") {
            return Ok(Box::new(socket) as Box<dyn Socket>);
        }
        let name = ServerName::try_from(host.clone()).map_err(|error| unreachable(&error))?;
        let socket = TlsConnector::from(tls::client_config(tls::public_roots(), &[])).connect(name, socket).await;
        Ok(Box::new(socket.map_err(|error| unreachable(&error))?) as Box<dyn Socket>)
    };
    tokio::time::timeout(limit, connecting).await.unwrap_or(Err(ProbeError::Timeout(limit)))
}

/// Returns the value of the `Host` header.
pub(super) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns the path and query for the request line.
pub(super) fn request_target(url: &Url) -> String {
    url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()))
}
