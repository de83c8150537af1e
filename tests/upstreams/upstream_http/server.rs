//! A scripted server over raw bytes, and helpers of its tests.

use std::{cell::RefCell, collections::VecDeque, future::Future, rc::Rc, sync::Arc, time::Duration};

use countersign_config::{Secret, UpstreamConfig, UpstreamTarget, UrlTransport};
use countersign_protocol::{Revision, negotiate::ClientCapabilities};
use countersign_provider::request::UpstreamRequest;
use countersign_upstream::{
    Connector, Link, LinkError, Listener, NegotiatedSession, OutgoingRequest, Response, UpstreamNotification,
    UrlConnector, handshake,
};
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};
use url::Url;

/// The time that a test waits for something that must happen.
const MAX_WAIT: Duration = Duration::from_secs(60);

pub async fn within_max_wait<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(MAX_WAIT, what).await.expect("it must happen")
}

/// One HTTP request as it was received.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice: {self:?}");
        value
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the method of the message in the body.
    pub fn rpc(&self) -> String {
        self.json()["method"].as_str().unwrap_or_default().to_owned()
    }

    pub fn id(&self) -> Value {
        self.json()["id"].clone()
    }
}

/// One connection to the server.
pub struct Conn {
    pub io: TcpStream,
    input: Vec<u8>,
    /// The number of the connection, from 0.
    pub number: usize,
    log: Log,
}

impl Conn {
    /// Reads the next request; `None` if the client has closed the connection.
    pub async fn request(&mut self) -> Option<Request> {
        let head = loop {
            if let Some(end) = self.input.windows(4).position(|w| w == b"\r\n\r\n") {
                break end;
            }
            if self.io.read_buf(&mut self.input).await.ok()? == 0 {
                return None;
            }
        };
        let text = String::from_utf8(self.input.drain(..head + 4).collect()).unwrap();
        let mut lines = text.lines();
        let mut first = lines.next().unwrap().split(' ');
        let mut request = Request {
            method: first.next().unwrap().to_owned(),
            path: first.next().unwrap().to_owned(),
            ..Request::default()
        };
        for line in lines {
            if let Some((name, value)) = line.split_once(": ") {
                request.headers.push((name.to_owned(), value.to_owned()));
            }
        }
        let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        while self.input.len() < length {
            if self.io.read_buf(&mut self.input).await.ok()? == 0 {
                return None;
            }
        }
        request.body = String::from_utf8(self.input.drain(..length).collect()).unwrap();
        self.log.0.borrow_mut().push(request.clone());
        self.log.1.notify_waiters();
        Some(request)
    }

    /// Writes bytes; returns `true` if all of them were written.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.io.write_all(bytes.as_ref()).await.is_ok()
    }

    pub async fn answer(&mut self, status: &str, headers: &str, body: &str) {
        self.write(format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())).await;
    }

    pub async fn json(&mut self, status: &str, body: &Value) {
        self.answer(status, "content-type: application/json\r\n", &body.to_string()).await;
    }

    pub async fn result(&mut self, request: &Request, result: Value) {
        self.json("200 OK", &json!({"jsonrpc": "2.0", "id": request.id(), "result": result})).await;
    }

    pub async fn accepted(&mut self) {
        self.answer("202 Accepted", "", "").await;
    }

    /// Writes the head of a chunked event stream.
    pub async fn stream(&mut self, headers: &str) {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n";
        self.write(format!("{head}{headers}\r\n")).await;
    }

    pub async fn chunk(&mut self, text: &str) -> bool {
        self.write(format!("{:x}\r\n{text}\r\n", text.len())).await
    }

    pub async fn event(&mut self, message: &Value) -> bool {
        self.chunk(&format!("event: message\ndata: {message}\n\n")).await
    }

    pub async fn end(&mut self) {
        self.write("0\r\n\r\n").await;
    }

    /// Waits until the client closes the connection.
    pub async fn closed(&mut self) {
        let mut rest = [0; 1024];
        while self.io.read(&mut rest).await.is_ok_and(|n| n > 0) {}
    }
}

#[derive(Clone, Default)]
pub struct Log(Rc<RefCell<Vec<Request>>>, Rc<Notify>);

impl Log {
    pub fn all(&self) -> Vec<Request> {
        self.0.borrow().clone()
    }

    pub fn rpcs(&self) -> Vec<String> {
        self.all().iter().map(|r| if r.method == "POST" { r.rpc() } else { r.method.clone() }).collect()
    }

    /// Waits for the first request that matches.
    pub async fn find(&self, is: impl Fn(&Request) -> bool) -> Request {
        within_max_wait(async {
            loop {
                let next = self.1.notified();
                if let Some(found) = self.0.borrow().iter().find(|r| is(r)) {
                    return found.clone();
                }
                next.await;
            }
        })
        .await
    }
}

/// The server, which ends with the test's thread.
pub struct Server {
    pub url: Url,
    pub log: Log,
    pub connections: Rc<RefCell<usize>>,
    task: actix_web::rt::task::JoinHandle<()>,
}

impl Server {
    pub async fn start<F: Future<Output = ()> + 'static>(script: impl Fn(Conn) -> F + 'static) -> Self {
        Self::start_on(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), script)
    }

    pub fn start_on<F: Future<Output = ()> + 'static>(
        listener: TcpListener,
        script: impl Fn(Conn) -> F + 'static,
    ) -> Self {
        let url = Url::parse(&format!("http://{}/mcp", listener.local_addr().unwrap())).unwrap();
        let (log, connections) = (Log::default(), Rc::new(RefCell::new(0)));
        let (own, count) = (log.clone(), Rc::clone(&connections));
        let task = actix_web::rt::spawn(async move {
            let mut running = Vec::new();
            while let Ok((io, _)) = listener.accept().await {
                io.set_nodelay(true).unwrap();
                let number = *count.borrow();
                *count.borrow_mut() += 1;
                let conn = Conn { io, input: Vec::new(), number, log: own.clone() };
                running.push(Abort(actix_web::rt::spawn(script(conn))));
            }
        });
        Self { url, log, connections, task }
    }

    /// Starts a server that answers every request on every connection with this function.
    pub async fn start_for_each_request<F: Future<Output = Conn> + 'static>(
        answer: impl Fn(Conn, Request) -> F + 'static,
    ) -> Self {
        let answer = Rc::new(answer);
        Self::start(move |mut conn| {
            let answer = Rc::clone(&answer);
            async move {
                while let Some(request) = conn.request().await {
                    conn = answer(conn, request).await;
                }
            }
        })
        .await
    }

    pub fn connector(&self) -> Arc<dyn Connector> {
        connector(&self.url, &[], UrlTransport::Auto)
    }

    /// Opens a link in the stateless era.
    pub async fn modern(&self) -> Arc<dyn Link> {
        let link = self.connector().connect(RecordingListener::new()).await.unwrap();
        link.complete_handshake(&negotiated(Revision::MODERN));
        link
    }

    /// Opens a link and performs the handshake.
    pub async fn legacy(&self, unsolicited: Arc<RecordingListener>) -> Arc<dyn Link> {
        legacy(&*self.connector(), unsolicited).await.unwrap()
    }
}

struct Abort(actix_web::rt::task::JoinHandle<()>);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ending the task ends its connections.
impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn legacy(
    connector: &dyn Connector,
    unsolicited: Arc<RecordingListener>,
) -> Result<Arc<dyn Link>, LinkError> {
    let nothing = ClientCapabilities::default();
    handshake::open(connector, None, &nothing, unsolicited).await.map(|(link, _)| link)
}

pub fn connector(url: &Url, headers: &[(&str, &str)], transport: UrlTransport) -> Arc<dyn Connector> {
    let headers = headers.iter().map(|(n, v)| ((*n).to_owned(), Secret((*v).to_owned()))).collect();
    let target = UpstreamTarget::Url { urls: vec![url.clone()], headers, transport };
    Arc::new(UrlConnector::new(url, &UpstreamConfig::new("s", target), None))
}

pub fn negotiated(revision: Revision) -> NegotiatedSession {
    let capabilities: Box<RawValue> = serde_json::from_str("{}").unwrap();
    NegotiatedSession { revision, capabilities: Arc::from(capabilities), server_info: None, instructions: None }
}

/// Records notifications and requests.
pub struct RecordingListener {
    notifications: parking_lot::Mutex<VecDeque<UpstreamNotification>>,
    requests: mpsc::UnboundedSender<UpstreamRequest>,
    received: tokio::sync::Mutex<mpsc::UnboundedReceiver<UpstreamRequest>>,
    notify: Notify,
}

impl RecordingListener {
    pub fn new() -> Arc<Self> {
        let (requests, received) = mpsc::unbounded_channel();
        Arc::new(Self {
            notifications: parking_lot::Mutex::default(),
            requests,
            received: tokio::sync::Mutex::new(received),
            notify: Notify::new(),
        })
    }

    pub fn methods(&self) -> Vec<String> {
        self.notifications.lock().iter().map(|n| n.method.clone()).collect()
    }

    pub async fn next_notification(&self) -> UpstreamNotification {
        within_max_wait(async {
            loop {
                let bell = self.notify.notified();
                if let Some(first) = self.notifications.lock().pop_front() {
                    return first;
                }
                bell.await;
            }
        })
        .await
    }

    pub async fn next_request(&self) -> UpstreamRequest {
        within_max_wait(async { self.received.lock().await.recv().await.unwrap() }).await
    }
}

impl Listener for RecordingListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        self.notifications.lock().push_back(notification);
        self.notify.notify_waiters();
    }

    fn handle_request(&self, request: UpstreamRequest) {
        self.requests.send(request).unwrap();
    }
}

pub fn call(id: u64) -> OutgoingRequest {
    OutgoingRequest { name: Some("echo".into()), ..OutgoingRequest::new(id, "tools/call", Some(r#"{"name":"echo"}"#)) }
}

pub async fn ask(link: &Arc<dyn Link>, outgoing: OutgoingRequest) -> Result<Response, LinkError> {
    within_max_wait(link.request(&outgoing, RecordingListener::new())).await
}

/// Returns the text of a result, or a description of the error.
pub fn text(response: Result<Response, LinkError>) -> String {
    match response {
        Ok(Response::Result(result)) => result.get().to_owned(),
        other => format!("{other:?}"),
    }
}

/// Answers `initialize` and related requests like [`session`], and accepts any other message without an answer.
pub async fn accept_in_session(conn: Conn, request: Request, revision: &str) -> Conn {
    match session(conn, request, revision).await {
        Ok(conn) => conn,
        Err((mut conn, _)) => {
            conn.accepted().await;
            conn
        }
    }
}

/// Answers `initialize` and related requests of a handshake server with a session; `Err` returns any other request.
pub async fn session(mut conn: Conn, request: Request, revision: &str) -> Result<Conn, (Conn, Request)> {
    match (request.method.as_str(), request.rpc().as_str()) {
        ("POST", "initialize") => {
            let result = json!({"protocolVersion": revision, "capabilities": {"tools": {}}, "serverInfo": {"name": "l", "version": "1"}});
            let body = json!({"jsonrpc": "2.0", "id": request.id(), "result": result}).to_string();
            conn.answer("200 OK", "content-type: application/json\r\nMcp-Session-Id: s-1\r\n", &body).await;
        }
        ("POST", "notifications/initialized") => conn.accepted().await,
        ("GET", _) if request.header("last-event-id").is_none() => {
            conn.answer("405 Method Not Allowed", "allow: POST\r\n", "").await;
        }
        ("DELETE", _) => conn.answer("200 OK", "", "").await,
        _ => return Err((conn, request)),
    }
    Ok(conn)
}
