//! The general HTTP client, built on awc.

use std::{sync::Arc, time::Duration};

use actix_rt::net::TcpStream;
use actix_service::ServiceExt as _;
use actix_tls::connect::{Connection, Connector};
use awc::{
    Client,
    error::{ConnectError, SendRequestError},
    http::Uri,
};
use rustls::ClientConfig;

use super::fence::{FencedStream, WriteFence};

/// Time limit for resolving the name and connecting, and again for the TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time after which an idle connection is closed. It is shorter than the idle timeouts of common TLS proxies, so that a
/// request rarely meets a connection that the other side is closing.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Age from which a connection gets no new requests.
pub const MAX_CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Builds a client for this thread. The client follows no redirects, and its user must limit the time of each request.
pub fn client(tls: Arc<ClientConfig>) -> Client {
    client_with_connector(Connector::default(), None, tls)
}

/// Builds a client like [`client`] that asks the fence directly before each write to a connection.
pub fn fenced_client(fence: WriteFence, tls: Arc<ClientConfig>) -> Client {
    client_with_connector(Connector::default(), Some(fence), tls)
}

/// Builds a client like [`client`], with another TCP connector and with or without a fence.
pub(super) fn client_with_connector(
    tcp_connector: Connector,
    fence: Option<WriteFence>,
    tls: Arc<ClientConfig>,
) -> Client {
    let tcp_connector = tcp_connector.service().map(move |connection: Connection<Uri, TcpStream>| {
        let (io, uri) = connection.into_parts();
        Connection::new(uri, FencedStream { io, fence: fence.clone() })
    });
    let http_connector = awc::Connector::new()
        .connector(tcp_connector)
        .rustls_0_23(tls)
        .timeout(CONNECT_TIMEOUT)
        .handshake_timeout(CONNECT_TIMEOUT)
        .conn_keep_alive(IDLE_TIMEOUT)
        .conn_lifetime(MAX_CONNECTION_AGE)
        // A limit would also count open streams. The callers have their own limits.
        .limit(0);
    Client::builder().connector(http_connector).disable_timeout().disable_redirects().finish()
}

/// Describes for people why a request has no answer.
pub fn describe_send_error(error: &SendRequestError) -> String {
    match error {
        // The client was connected, although its own text says that it failed to connect.
        SendRequestError::Connect(ConnectError::Disconnected) => {
            "the connection was closed before an answer".to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
    };

    use crate::tls;

    #[actix::test]
    async fn connection_closed_before_an_answer_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 1024]).unwrap();
        });
        let error = super::client(tls::public_config()).get(url).send().await.err().unwrap();
        assert_eq!(super::describe_send_error(&error), "the connection was closed before an answer");
        server.join().unwrap();
    }

    /// The brackets in the URI are not part of the address.
    #[actix::test]
    async fn client_connects_to_an_ipv6_address() {
        // Some machines have no IPv6.
        let Ok(listener) = TcpListener::bind("[::1]:0") else { return };
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        });
        let answer = super::client(tls::public_config()).get(url).send().await.unwrap();
        assert_eq!(answer.status(), 204);
        server.join().unwrap();
    }
}
