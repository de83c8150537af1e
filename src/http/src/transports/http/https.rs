//! The server of the HTTP endpoints where they speak TLS.
//!
//! It is put together here as actix-web's own would be, but for the limit of streams that it announces
//! ([`super::settings`]).

use std::{fmt, io, net::TcpListener, sync::Arc, time::Duration};

use actix_http::{HttpService, Protocol, Request, Response};
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, map_config};
use actix_tls::accept::{
    TlsError,
    rustls_0_23::{Acceptor, TlsStream},
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{AppConfig, Server},
    rt::net::TcpStream,
};

use super::settings::Announcing;
use crate::connections::{Connection, Connections};
use countersign_config::HttpConfig;

/// How the server serves.
#[derive(Clone)]
pub struct Serving {
    pub http: HttpConfig,
    pub connections: Arc<Connections>,
    pub workers: usize,
    /// How long requests may still run at the end.
    pub drain: Duration,
}

/// Bytes of bodies that a client may send before they were read: on one stream, and on one connection of HTTP/2.
pub const STREAM_WINDOW: u32 = 64 << 10;
pub const CONNECTION_WINDOW: u32 = 128 << 10;

/// Serves the application with TLS.
///
/// # Errors
/// The socket cannot be used.
pub fn serve<F, I, S, B>(app: F, serving: Serving, socket: TcpListener, tls: rustls::ServerConfig) -> io::Result<Server>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: fmt::Debug,
    S::Response: Into<Response<B>> + 'static,
    S::Service: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    let mut tls = tls;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let address = socket.local_addr()?;
    let builder = Server::build();
    let ends = builder.graceful_shutdown_signal();
    let server = builder
        .workers(serving.workers)
        .max_concurrent_connections(serving.connections.accepted_at_most())
        .shutdown_timeout(serving.drain.as_secs().max(1))
        .disable_signals()
        .listen("https", socket, move || {
            let (ends, connections) = (ends.clone(), Arc::clone(&serving.connections));
            let streams = serving.http.max_concurrent_streams;
            let service = HttpService::build()
                .graceful_shutdown_signal(move || {
                    let ends = ends.clone();
                    async move { ends.notified().await }
                })
                .keep_alive(serving.http.keep_alive)
                .client_request_timeout(serving.http.header_timeout)
                .h1_allow_half_closed(false)
                .h2_initial_window_size(STREAM_WINDOW)
                .h2_initial_connection_window_size(CONNECTION_WINDOW)
                .local_addr(address)
                .on_connect_ext(move |io: &Announcing<TlsStream<TcpStream>>, data: &mut _| {
                    Connection::register(&connections, io.get_ref(), data);
                });
            let app = app().into_factory().map_err(|error| error.into().error_response());
            let service = service.finish(map_config(app, |()| AppConfig::default()));
            Acceptor::new(tls.clone())
                .map_init_err(|_| ())
                .map_err(TlsError::into_service_error)
                .and_then(move |io: TlsStream<TcpStream>| async move {
                    let (tcp, session) = io.get_ref();
                    let peer = tcp.peer_addr().ok();
                    if let Err(error) = tcp.set_nodelay(true) {
                        tracing::debug!(%error, "no TCP_NODELAY");
                    }
                    let is_http2 = session.alpn_protocol() == Some(b"h2");
                    Ok(if is_http2 {
                        (Announcing::new(io, streams), Protocol::Http2, peer)
                    } else {
                        (Announcing::plain(io), Protocol::Http1, peer)
                    })
                })
                .and_then(service.map_err(TlsError::Service))
        })?;
    Ok(server.run())
}
