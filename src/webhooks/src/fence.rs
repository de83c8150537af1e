//! Fences webhook deliveries at the socket. A process that is suspended between its leadership check and the write
//! would finish the write when it resumes, although another node may have sent later events. Leadership is therefore
//! checked again directly before each write, with only a few instructions in between.

use std::{
    fmt, io,
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

/// A connection that accepts writes only while this node is the leader.
pub struct FencedStream {
    io: TcpStream,
    nodes: Arc<dyn Nodes>,
}

/// Returns a connector that opens [`FencedStream`] connections.
pub fn connector(
    nodes: Arc<dyn Nodes>,
) -> impl Service<ConnectInfo<Uri>, Response = Connection<Uri, FencedStream>, Error = ConnectError> + Clone {
    Connector::default().service().map(move |connection: Connection<Uri, TcpStream>| {
        let (io, uri) = connection.into_parts();
        Connection::new(uri, FencedStream { io, nodes: Arc::clone(&nodes) })
    })
}

impl FencedStream {
    fn writable_stream(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if self.nodes.is_leader() {
            Ok(Pin::new(&mut self.io))
        } else {
            Err(io::Error::other("another node has become the leader and sends the deliveries"))
        }
    }
}

impl fmt::Debug for FencedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.io.fmt(f)
    }
}

impl AsyncRead for FencedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for FencedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.writable_stream()?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl ActixStream for FencedStream {
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
        send::{DeliveryId, DeliverySender},
        testing::FakeNodes,
    };

    use super::*;

    /// Returns a webhook, and a thread that returns everything sent on its only connection.
    fn receiver() -> (WebhookConfig, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut config = WebhookConfig::sample("hook");
        config.url.0 = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let receiver = std::thread::spawn(move || {
            let (mut stream, mut read) = (listener.accept().unwrap().0, Vec::new());
            let mut chunk = [0; 4096];
            // The client keeps the connection open until it is dropped.
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                read.extend_from_slice(&chunk[..n]);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
            String::from_utf8(read).unwrap()
        });
        (config, receiver)
    }

    #[actix::test]
    async fn webhook_timestamp_uses_store_time() {
        let (config, receiver) = receiver();
        let nodes = Arc::new(FakeNodes::default());
        *nodes.now.lock().unwrap() = Some(jiff::Timestamp::from_second(1_000_000_000).unwrap());
        let sender = DeliverySender::for_any_node(nodes);
        let id = DeliveryId::new("1", None, "webhook.test", "{}");
        assert_eq!(sender.send(&config, &id, Bytes::new()).await, Ok(200));
        drop(sender);
        let read = receiver.join().unwrap().to_lowercase();
        assert!(read.contains("webhook-timestamp: 1000000000\r\n"), "{read}");
    }

    #[actix::test]
    async fn only_leader_writes_on_open_connection() {
        let (config, receiver) = receiver();
        let nodes = Arc::new(FakeNodes::default());
        let sender = DeliverySender::for_leader(Arc::clone(&nodes) as _);
        let send = async |text: &'static str| {
            let id = DeliveryId::new(text, None, "webhook.test", text);
            sender.send(&config, &id, Bytes::from_static(text.as_bytes())).await
        };
        nodes.leads.store(true, Ordering::SeqCst);
        assert_eq!(send("first").await, Ok(200));
        nodes.leads.store(false, Ordering::SeqCst);
        let failed = send("second").await.unwrap_err();
        assert!(failed.status.is_none() && failed.error.contains("another node has become the leader"), "{failed:?}");
        drop(sender);
        let read = receiver.join().unwrap();
        assert!(read.contains("first") && !read.contains("second"), "{read}");
    }
}
