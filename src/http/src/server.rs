//! The server of the HTTP endpoints. It accepts connections, with TLS or without, and serves each in the HTTP version that its
//! client speaks.
//!
//! It combines the services of actix-http as the server of actix-web does, except for HTTP/2 ([`crate::http2`]). Without TLS,
//! HTTP/2 is only served if other gateways share the store, because they forward requests with it.

use std::{
    cell::Cell,
    fmt,
    future::ready,
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use actix_http::{HttpService, Protocol, Request};
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, fn_factory, fn_service};
use actix_tls::accept::rustls_0_23::{Acceptor, TlsStream};
use actix_web::{
    Error, HttpResponse,
    body::MessageBody,
    dev::{AppConfig, Server, ServiceResponse},
    rt::net::TcpStream,
};
use tokio::time::timeout;

use crate::{
    connections::{ByteStream, Connection, Connections},
    http2::{self, Http2Service},
};
use countersign_config::HttpConfig;

/// The settings of the server.
#[derive(Clone)]
pub struct ServerSettings {
    pub http: HttpConfig,
    pub connections: Arc<Connections>,
    pub workers: usize,
    /// Maximum time that open requests may take once the server stops.
    pub drain: Duration,
    /// `true` if other gateways serve the same store.
    pub has_peers: bool,
}

/// The first bytes of a client that speaks HTTP/2 without TLS (RFC 9113, 3.3 and 3.4). No HTTP/1 request begins with these
/// bytes.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves the application on the socket.
///
/// # Errors
/// The socket cannot be used.
pub fn serve<F, I, S, B>(
    app: F,
    settings: ServerSettings,
    socket: TcpListener,
    tls: Option<rustls::ServerConfig>,
) -> io::Result<Server>
where
    F: Fn() -> I + Send + Clone + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<Request, Config = AppConfig, Response = ServiceResponse<B>> + 'static,
    S::Error: Into<Error> + 'static,
    S::InitError: fmt::Debug,
    S::Service: 'static,
    <S::Service as Service<Request>>::Future: 'static,
    B: MessageBody + 'static,
{
    let address = socket.local_addr()?;
    let builder = Server::build();
    let shutdown_signal = builder.graceful_shutdown_signal();
    let shutdown_signal = move || {
        let shutdown_signal = shutdown_signal.clone();
        async move { shutdown_signal.notified().await }
    };
    let builder = builder
        .workers(settings.workers)
        .max_concurrent_connections(settings.connections.max_accepted())
        .shutdown_timeout(settings.drain.as_secs().max(1))
        .disable_signals();
    let new_factory = move || {
        let (app, settings, shutdown_signal) = (app(), settings.clone(), shutdown_signal.clone());
        let app = app.into_factory().map_err(|error| error.into().error_response());
        fn_factory(move || {
            let app = app.new_service(AppConfig::default());
            let (settings, shutdown_signal) = (settings.clone(), shutdown_signal.clone());
            async move {
                let app = Rc::new(app.await.map_err(|error| {
                    tracing::error!(?error, "the HTTP endpoints cannot be set up on this worker thread")
                })?);
                let accepted = Rc::new(Cell::new(None));
                let (app_for_http1, accepted_for_http1) = (Rc::clone(&app), Rc::clone(&accepted));
                let http1 = HttpService::build()
                    .graceful_shutdown_signal(shutdown_signal.clone())
                    .keep_alive(settings.http.keep_alive)
                    .client_request_timeout(settings.http.header_timeout)
                    // A client that closes its side has gone away, so its request is cancelled.
                    .h1_allow_half_closed(false)
                    .local_addr(address)
                    .on_connect_ext(move |_: &ByteStream, data: &mut _| {
                        if let Some(connection) = accepted_for_http1.take() {
                            data.insert::<Rc<Connection>>(connection);
                        }
                    })
                    .finish(fn_factory(move || ready(Ok::<_, ()>(Rc::clone(&app_for_http1)))))
                    .new_service(())
                    .await?;
                let ServerSettings { http, connections, has_peers, .. } = settings;
                let http2 = Http2Service { app, http, has_peers };
                let worker = Rc::new(Worker { http1, http2, accepted, connections, shutdown_signal });
                Ok::<_, ()>(fn_service(move |io: ByteStream| Rc::clone(&worker).serve(io)))
            }
        })
    };
    let server = match tls {
        None => builder.listen("http", socket, move || {
            fn_service(|tcp: TcpStream| ready(Ok::<_, ()>(ByteStream::Left(tcp)))).and_then(new_factory())
        })?,
        Some(mut tls) => {
            tls.alpn_protocols = vec![http2::ALPN.to_vec(), b"http/1.1".to_vec()];
            builder.listen("https", socket, move || {
                Acceptor::new(tls.clone())
                    .map_err(|error| tracing::debug!(?error, "a TLS handshake failed"))
                    .map_init_err(|_| ())
                    .map(|tls: TlsStream<TcpStream>| ByteStream::Right(Box::new(tls)))
                    .and_then(new_factory())
            })?
        }
    };
    Ok(server.run())
}

/// Serves the connections of one thread.
struct Worker<H, S, E> {
    http1: H,
    http2: Http2Service<S>,
    /// The connection of the next call of `http1`, which takes the connection and attaches it to the requests.
    accepted: Rc<Cell<Option<Rc<Connection>>>>,
    connections: Arc<Connections>,
    /// Returns a future that ends when the server accepts no more connections.
    shutdown_signal: E,
}

impl<H, S, B, E, F> Worker<H, S, E>
where
    E: Fn() -> F,
    F: Future<Output = ()>,
    H: Service<(ByteStream, Protocol, Option<SocketAddr>)>,
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse> + 'static,
    B: MessageBody + 'static,
{
    /// Serves a connection until it ends.
    async fn serve(self: Rc<Self>, io: ByteStream) -> Result<(), ()> {
        let tcp = match &io {
            ByteStream::Left(tcp) => tcp,
            ByteStream::Right(tls) => tls.get_ref().0,
        };
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let peer = tcp.peer_addr().ok();
        let connection = Rc::new(Connection::open(&self.connections, tcp));
        let Http2Service { http, has_peers, .. } = &self.http2;
        let is_http2 = match &io {
            ByteStream::Right(tls) => tls.get_ref().1.alpn_protocol() == Some(http2::ALPN),
            ByteStream::Left(tcp) if *has_peers => {
                timeout(http.header_timeout, begins_http2(tcp)).await.map_err(drop)?
            }
            ByteStream::Left(_) => false,
        };
        if is_http2 {
            self.http2.serve(io, connection, (self.shutdown_signal)()).await;
            return Ok(());
        }
        self.accepted.set(Some(connection));
        self.http1.call((io, Protocol::Http1, peer)).await.map(drop).map_err(drop)
    }
}

/// Returns `true` if the client starts with the preface of HTTP/2. A preface that arrives in pieces of one or two bytes counts
/// as HTTP/1, which answers it with an error.
async fn begins_http2(tcp: &TcpStream) -> bool {
    let mut first = [0; HTTP2_PREFACE.len()];
    tcp.peek(&mut first).await.is_ok_and(|read| read >= 3 && HTTP2_PREFACE.starts_with(&first[..read]))
}
