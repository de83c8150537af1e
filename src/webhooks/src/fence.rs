//! Fences webhook deliveries at the socket. A process that is suspended between its leadership check and the write
//! would finish the write when it resumes, although another node may have sent later events. Leadership is therefore
//! checked again directly before each write, with only a few instructions in between.

use std::{io, rc::Rc, sync::Arc};

use countersign_net::{fenced_client, tls};
use countersign_store::Nodes;

/// Returns a client whose connections accept writes only while this node is the leader.
pub fn client(nodes: Arc<dyn Nodes>) -> awc::Client {
    let fence = move || {
        if nodes.is_leader() {
            Ok(())
        } else {
            Err(io::Error::other("another node has become the leader and sends the deliveries"))
        }
    };
    fenced_client(Rc::new(fence), tls::public_config())
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
