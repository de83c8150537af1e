//! The server of the HTTP endpoints: takes connections, with TLS or without, and has each served in the version of HTTP that
//! it speaks.
//!
//! It is put together here as actix-web's own would be, but for HTTP/2 ([`crate::http2`]). Without TLS that is spoken only
//! beside other gateways, which hand requests on to each other so.

use std::{
    cell::Cell,
    fmt,
    future::ready,
    io::{self, IoSlice},
    net::{SocketAddr, TcpListener},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use actix_codec::{AsyncRead, AsyncWrite, ReadBuf};
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
    connections::{Connection, Connections},
    http2,
    io::Io,
};
use countersign_config::HttpConfig;

/// How the server serves.
#[derive(Clone)]
pub struct Serving {
    pub http: HttpConfig,
    pub connections: Arc<Connections>,
    pub workers: usize,
    /// How long requests may still run at the end.
    pub drain: Duration,
    /// Other gateways serve the same store.
    pub has_peers: bool,
}

/// How the client of HTTP/2 without TLS begins (RFC 9113, 3.3 and 3.4). No method of HTTP/1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves the application on that socket.
///
/// # Errors
/// The socket cannot be used.
pub fn serve<F, I, S, B>(
    app: F,
    serving: Serving,
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
    let ends = builder.graceful_shutdown_signal();
    let ends = move || {
        let ends = ends.clone();
        async move { ends.notified().await }
    };
    let builder = builder
        .workers(serving.workers)
        .max_concurrent_connections(serving.connections.accepted_at_most())
        .shutdown_timeout(serving.drain.as_secs().max(1))
        .disable_signals();
    let connections = move || {
        let (app, serving, ends) = (app(), serving.clone(), ends.clone());
        let app = app.into_factory().map_err(|error| error.into().error_response());
        fn_factory(move || {
            let app = app.new_service(AppConfig::default());
            let (serving, ends) = (serving.clone(), ends.clone());
            async move {
                let app =
                    Rc::new(app.await.map_err(|error| tracing::error!(?error, "the endpoints cannot be set up"))?);
                let shared = Rc::clone(&app);
                let http1 = HttpService::build()
                    .graceful_shutdown_signal(ends.clone())
                    .keep_alive(serving.http.keep_alive)
                    .client_request_timeout(serving.http.header_timeout)
                    // A client that closes its side has gone away: its request is cancelled, not finished for nobody.
                    .h1_allow_half_closed(false)
                    .local_addr(address)
                    .on_connect_ext(|accepted: &Accepted, data: &mut _| {
                        if let Some(connection) = accepted.connection.take() {
                            data.insert(connection);
                        }
                    })
                    .finish(fn_factory(move || ready(Ok::<_, ()>(Rc::clone(&shared)))))
                    .new_service(())
                    .await?;
                let worker = Rc::new(Worker { http1, app, serving, ends });
                Ok::<_, ()>(fn_service(move |io: Io| Rc::clone(&worker).serve(io)))
            }
        })
    };
    let server = match tls {
        None => builder.listen("http", socket, move || {
            fn_service(|tcp: TcpStream| ready(Ok::<_, ()>(Io::Plain(tcp)))).and_then(connections())
        })?,
        Some(mut tls) => {
            tls.alpn_protocols = vec![http2::ALPN.to_vec(), b"http/1.1".to_vec()];
            builder.listen("https", socket, move || {
                Acceptor::new(tls.clone())
                    .map_err(|error| tracing::debug!(?error, "no TLS handshake"))
                    .map_init_err(|_| ())
                    .map(|tls: TlsStream<TcpStream>| Io::Tls(Box::new(tls)))
                    .and_then(connections())
            })?
        }
    };
    Ok(server.run())
}

/// What serves the connections of one thread.
struct Worker<H, S, E> {
    http1: H,
    app: Rc<S>,
    serving: Serving,
    /// Ends when the server takes no more.
    ends: E,
}

impl<H, S, B, E, F> Worker<H, S, E>
where
    E: Fn() -> F,
    F: Future<Output = ()>,
    H: Service<(Accepted, Protocol, Option<SocketAddr>)>,
    S: Service<Request, Response = ServiceResponse<B>, Error = HttpResponse> + 'static,
    B: MessageBody + 'static,
{
    /// Until the connection ends.
    async fn serve(self: Rc<Self>, io: Io) -> Result<(), ()> {
        let tcp = io.tcp();
        if let Err(error) = tcp.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let peer = tcp.peer_addr().ok();
        let connection = Connection::open(&self.serving.connections, tcp);
        let http = &self.serving.http;
        let is_http2 = match &io {
            Io::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(http2::ALPN),
            Io::Plain(tcp) if self.serving.has_peers => {
                timeout(http.header_timeout, begins_http2(tcp)).await.map_err(drop)?
            }
            Io::Plain(_) => false,
        };
        if is_http2 {
            http2::serve(io, Rc::new(connection), Rc::clone(&self.app), (http, self.serving.has_peers), (self.ends)())
                .await;
            return Ok(());
        }
        let accepted = Accepted { io, connection: Cell::new(Some(connection)) };
        self.http1.call((accepted, Protocol::Http1, peer)).await.map(drop).map_err(drop)
    }
}

/// Whether what comes first is the beginning of HTTP/2. What comes byte by byte counts as HTTP/1, where it is an error.
async fn begins_http2(tcp: &TcpStream) -> bool {
    let mut first = [0; PREFACE.len()];
    tcp.peek(&mut first).await.is_ok_and(|read| read >= 3 && PREFACE.starts_with(&first[..read]))
}

/// A connection of HTTP/1, and what is known of it until its requests have it.
struct Accepted {
    io: Io,
    connection: Cell<Option<Connection>>,
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
