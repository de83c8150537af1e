//! The last moment before something goes out. A process that was stopped between a look at whether it leads and the write to a
//! receiver would go on with that write when it wakes, and another node may have sent what comes after it. So it is looked once
//! more right before each write: what is left between the two are a few instructions.

use std::{
    fmt,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use actix_rt::net::{ActixStream, Ready, TcpStream};
use actix_service::{Service, ServiceExt as _};
use actix_tls::connect::{ConnectError, ConnectInfo, Connection, Connector};
use awc::http::Uri;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use countersign_store::Nodes;

/// A connection on which only the node writes that leads.
pub struct Fenced {
    io: TcpStream,
    nodes: Arc<dyn Nodes>,
}

/// Connects with [`Fenced`] connections.
pub fn connector(
    nodes: Arc<dyn Nodes>,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, Fenced>, Error = ConnectError> + Clone {
    Connector::default().service().map(move |connection: Connection<Uri, TcpStream>| {
        let (io, uri) = connection.into_parts();
        Connection::new(uri, Fenced { io, nodes: Arc::clone(&nodes) })
    })
}

impl Fenced {
    fn writer(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.nodes.leads() { Ok(Pin::new(&mut self.io)) } else { Err(io::Error::other("another node sends by now")) }
    }
}

impl fmt::Debug for Fenced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.fmt(f)
    }
}

impl AsyncRead for Fenced {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Fenced {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writer()?.poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer()?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl ActixStream for Fenced {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(&self.io, cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(&self.io, cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        sync::atomic::Ordering,
    };

    use bytes::Bytes;
    use countersign_config::WebhookConfig;

    use crate::{
        send::{AttemptOutcome, Id, Sender},
        testing::Two,
    };

    use super::*;

    /// A webhook, and what is sent to it on the one connection that it takes.
    fn receiver() -> (WebhookConfig, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = WebhookConfig::sample("hook");
        config.url.0 = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut stream, mut read) = (listener.accept().unwrap().0, Vec::new());
            let mut chunk = [0; 4096];
            // Until the connection ends, which is kept until then.
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                read.extend_from_slice(&chunk[..n]);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
            String::from_utf8(read).unwrap()
        });
        (config, receiver)
    }

    #[actix::test]
    async fn webhook_timestamp_is_the_time_of_the_store() {
        let (config, receiver) = receiver();
        let nodes = Arc::new(Two::default());
        *nodes.now.lock().unwrap() = Some(jiff::Timestamp::from_second(1_000_000_000).unwrap());
        let sender = Sender::always(nodes);
        let id = Id::new("1", None, "webhook.test", "{}");
        assert_eq!(sender.send(&config, &id, Bytes::new()).await, AttemptOutcome::Delivered(200));
        drop(sender);
        let read = receiver.join().unwrap().to_lowercase();
        assert!(read.contains("webhook-timestamp: 1000000000\r\n"), "{read}");
    }

    #[actix::test]
    async fn only_the_node_that_leads_writes_also_on_a_connection_that_stands() {
        let (config, receiver) = receiver();
        let nodes = Arc::new(Two::default());
        let sender = Sender::leading(Arc::clone(&nodes) as _);
        let send = async |what: &'static str| {
            let id = Id::new(what, None, "webhook.test", what);
            sender.send(&config, &id, Bytes::from_static(what.as_bytes())).await
        };
        nodes.leads.store(true, Ordering::SeqCst);
        assert_eq!(send("first").await, AttemptOutcome::Delivered(200));
        nodes.leads.store(false, Ordering::SeqCst);
        let AttemptOutcome::Failed(failed) = send("second").await else { panic!("it was sent") };
        assert!(failed.status.is_none() && failed.error.contains("another node sends by now"), "{failed:?}");
        drop(sender);
        let read = receiver.join().unwrap();
        assert!(read.contains("first") && !read.contains("second"), "{read}");
    }
}
