//! Compares the cost of a request with the gateway's own HTTP client, hyper and awc: the same MCP request to a plain
//! upstream on this machine, with its answer read whole within a limit.
//!
//! Instructions come from callgrind, as the difference between a long and a short run, so they are those of a request
//! in the steady state. CPU time comes from the scheduler's account of a process that does nothing else; the clients
//! run in turn, so that a busy moment of the machine affects all.

use std::{
    cell::RefCell,
    collections::HashMap,
    future::Future,
    io::{Read, Write},
    process::{Child, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use clap::{Parser, ValueEnum};
use futures_util::{StreamExt as _, future::LocalBoxFuture, stream::FuturesUnordered};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Uri,
    body::Incoming,
    client::conn::http1,
    header::{self, HeaderMap, HeaderName, HeaderValue},
};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioIo, TokioTimer},
};

// The gateway's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClientKind {
    /// The gateway's own client.
    Own,
    /// `hyper::client::conn::http1`, with a minimal pool.
    HyperConn,
    /// `hyper_util::client::legacy::Client`.
    HyperPool,
    Awc,
}

const CLIENT_KINDS: [ClientKind; 4] = [ClientKind::Own, ClientKind::HyperConn, ClientKind::HyperPool, ClientKind::Awc];

#[derive(Parser)]
struct Args {
    #[arg(long)]
    quick: bool,
    /// Runs as the upstream (used by the program itself).
    #[arg(long, hide = true)]
    serve: bool,
    /// Runs as one client: sends that many requests to that port (used by the program itself).
    #[arg(long, hide = true)]
    way: Option<ClientKind>,
    #[arg(long, hide = true, default_value_t = 0)]
    port: u16,
    #[arg(long, hide = true, default_value_t = 0)]
    requests: usize,
    #[arg(long, hide = true, default_value_t = 1)]
    at_once: usize,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if args.serve {
        return serve();
    }
    let Some(way) = args.way else { return compare(args.quick) };
    // Like a worker of the gateway: one thread that also runs all spawned tasks.
    let used = actix_web::rt::System::new().block_on(run(way, args.port, args.requests, args.at_once))?;
    println!("{}", used.as_nanos());
    Ok(())
}

// The clients.

/// The time that a connection may be idle and be used again, as in the gateway.
const MAX_IDLE: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum bytes of an answer, as in the gateway.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

const METHOD: &str = "tools/call";
const NAME: &str = "echo";

/// The headers of every request of a link.
const HEADERS: [(&str, &str); 4] = [
    ("user-agent", "countersign/0.1.0"),
    ("mcp-protocol-version", "2026-07-28"),
    ("content-type", "application/json"),
    ("accept", "application/json, text/event-stream"),
];

fn text() -> String {
    "All work and no play makes Jack a dull boy. ".repeat(5)
}

fn request() -> Bytes {
    let text = text();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"{METHOD}","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{{"name":"bench","version":"1"}},"io.modelcontextprotocol/clientCapabilities":{{}}}},"name":"{NAME}","arguments":{{"text":"{text}"}}}}}}"#
    )
    .into()
}

fn answer() -> String {
    let text = text();
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}],"resultType":"complete"}}}}"#
    )
}

trait Client {
    fn post(&self, body: Bytes) -> LocalBoxFuture<'_, Result<Bytes>>;
}

struct Own(countersign_upstream::testing::HttpPost);

impl Client for Own {
    fn post(&self, body: Bytes) -> LocalBoxFuture<'_, Result<Bytes>> {
        Box::pin(async move { Ok(self.0.send(METHOD, NAME, &body).await?) })
    }
}

struct Awc(awc::FrozenClientRequest);

impl Client for Awc {
    fn post(&self, body: Bytes) -> LocalBoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            use awc::http::header::{HeaderMap, HeaderName, HeaderValue};
            let mut extra = HeaderMap::new();
            extra.insert(HeaderName::from_static("mcp-method"), HeaderValue::from_static(METHOD));
            extra.insert(HeaderName::from_static("mcp-name"), HeaderValue::from_str(NAME)?);
            let mut response =
                self.0.extra_headers(extra).send_body(body).await.map_err(|error| anyhow::anyhow!("{error}"))?;
            ensure!(response.status() == 200, "status {}", response.status());
            ensure!(response.headers().get("content-encoding").is_none(), "compressed");
            Ok(response.body().limit(MAX_RESPONSE_BYTES).await?)
        })
    }
}

/// Builds the head that the hyper clients send.
fn hyper_request(uri: &Uri, headers: &HeaderMap, body: Bytes) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri.clone();
    let mut headers = headers.clone();
    headers.insert(HeaderName::from_static("mcp-method"), HeaderValue::from_static(METHOD));
    headers.insert(HeaderName::from_static("mcp-name"), HeaderValue::from_str(NAME)?);
    *request.headers_mut() = headers;
    Ok(request)
}

fn hyper_headers(port: u16) -> Result<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(header::HOST, HeaderValue::from_str(&format!("127.0.0.1:{port}"))?);
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    Ok(headers)
}

/// Reads the whole body without copying if it is one chunk, as it nearly always is.
async fn read_body(response: hyper::Response<Incoming>) -> Result<Bytes> {
    ensure!(response.status() == 200, "status {}", response.status());
    ensure!(response.headers().get(header::CONTENT_ENCODING).is_none(), "compressed");
    let mut body = response.into_body();
    let (mut first, mut rest) = (Bytes::new(), None::<BytesMut>);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        match &mut rest {
            None if first.is_empty() => first = data,
            None => rest.insert(BytesMut::from(&*first)).extend_from_slice(&data),
            Some(all) => all.extend_from_slice(&data),
        }
        ensure!(rest.as_ref().map_or(first.len(), BytesMut::len) <= MAX_RESPONSE_BYTES, "too long");
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}

#[derive(Clone)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        actix_web::rt::spawn(async move { drop(future.await) });
    }
}

struct HyperPool {
    client: legacy::Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
    headers: HeaderMap,
}

impl Client for HyperPool {
    fn post(&self, body: Bytes) -> LocalBoxFuture<'_, Result<Bytes>> {
        Box::pin(async move { read_body(self.client.request(hyper_request(&self.uri, &self.headers, body)?).await?).await })
    }
}

struct HyperConn {
    port: u16,
    uri: Uri,
    headers: HeaderMap,
    authority: String,
}

struct IdleConnection {
    sender: http1::SendRequest<Full<Bytes>>,
    used: std::time::Instant,
}

thread_local! {
    static IDLING: RefCell<HashMap<String, Vec<IdleConnection>>> = RefCell::default();
}

impl HyperConn {
    fn take_idle(&self) -> Option<http1::SendRequest<Full<Bytes>>> {
        IDLING.with_borrow_mut(|idling| {
            let all = idling.get_mut(&self.authority)?;
            while let Some(kept) = all.pop() {
                if kept.used.elapsed() < MAX_IDLE && !kept.sender.is_closed() {
                    return Some(kept.sender);
                }
            }
            None
        })
    }

    async fn connect(&self) -> Result<http1::SendRequest<Full<Bytes>>> {
        let tcp = tokio::time::timeout(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(("127.0.0.1", self.port))).await??;
        tcp.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
        actix_web::rt::spawn(async move { drop(connection.await) });
        Ok(sender)
    }
}

impl Client for HyperConn {
    fn post(&self, body: Bytes) -> LocalBoxFuture<'_, Result<Bytes>> {
        Box::pin(async move {
            let mut sender = match self.take_idle() {
                Some(sender) => sender,
                None => self.connect().await?,
            };
            sender.ready().await?;
            let response = sender.send_request(hyper_request(&self.uri, &self.headers, body)?).await?;
            let body = read_body(response).await?;
            let kept = IdleConnection { sender, used: std::time::Instant::now() };
            IDLING.with_borrow_mut(|idling| match idling.get_mut(&self.authority) {
                Some(all) => all.push(kept),
                None => _ = idling.insert(self.authority.clone(), vec![kept]),
            });
            Ok(body)
        })
    }
}

fn client(way: ClientKind, port: u16) -> Result<Rc<dyn Client>> {
    let url = format!("http://127.0.0.1:{port}/mcp");
    Ok(match way {
        Way::Own => Rc::new(Own(countersign_upstream::testing::HttpPost::new(&url.parse()?, &HEADERS)?)),
        Way::HyperConn => Rc::new(HyperConn {
            port,
            uri: Uri::from_static("/mcp"),
            headers: hyper_headers(port)?,
            authority: format!("127.0.0.1:{port}"),
        }),
        ClientKind::HyperPool => {
            let mut connector = HttpConnector::new();
            connector.set_nodelay(true);
            connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
            let client = legacy::Client::builder(LocalExecutor)
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(MAX_IDLE)
                .retry_canceled_requests(false)
                .build(connector);
            Rc::new(HyperPool { client, uri: url.parse()?, headers: hyper_headers(port)? })
        }
        ClientKind::Awc => {
            let client = awc::Client::builder().disable_timeout().disable_redirects().finish();
            let mut request = client
                .post(url)
                .insert_header(("accept-encoding", "identity"))
                .address(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
            for header in HEADERS {
                request = request.insert_header(header);
            }
            Rc::new(Awc(request.freeze().map_err(|error| anyhow::anyhow!("{error}"))?))
        }
    })
}

/// Returns the CPU time of this process for that many requests.
async fn run(way: ClientKind, port: u16, requests: usize, at_once: usize) -> Result<Duration> {
    let client = client(way, port)?;
    let (body, expected) = (request(), answer());
    let each = |requests: usize| {
        let all: FuturesUnordered<_> = (0..at_once)
            .map(|_| {
                let (client, body, expected) = (Rc::clone(&client), body.clone(), &expected);
                async move {
                    for _ in 0..requests / at_once {
                        let answer = client.post(body.clone()).await?;
                        ensure!(answer == expected.as_bytes(), "another answer");
                    }
                    anyhow::Ok(())
                }
            })
            .collect();
        all.fold(Ok(()), |all, one| std::future::ready(all.and(one)))
    };
    each(200 * at_once).await?;
    let before = cpu_time()?;
    each(requests).await?;
    Ok(cpu_time()? - before)
}

/// Returns the CPU time of this process, which has one thread.
fn cpu_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos = stat.split_whitespace().next().context("nothing in schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

// The upstream.

/// Prints its port, then answers every request alike, with a thread for each connection, until it is killed.
fn serve() -> Result<()> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    let body = answer();
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: application/json\r\ndate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{body}",
        body.len()
    );
    for connection in listener.incoming() {
        let (mut connection, answer) = (connection?, answer.clone());
        connection.set_nodelay(true)?;
        std::thread::spawn(move || -> Result<()> {
            let mut buffer = vec![0; 64 << 10];
            let mut filled = 0;
            loop {
                let read = connection.read(&mut buffer[filled..])?;
                if read == 0 {
                    return Ok(());
                }
                filled += read;
                if is_whole(&buffer[..filled]) {
                    filled = 0;
                    connection.write_all(answer.as_bytes())?;
                }
            }
        });
    }
    Ok(())
}

fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    bytes.len() >= end + 4 + length.unwrap_or_default()
}

struct Upstream(Child);

impl Drop for Upstream {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// The comparison.

fn compare(quick: bool) -> Result<()> {
    let program = std::env::current_exe()?;
    let mut child = Upstream(Command::new(&program).arg("--serve").stdout(Stdio::piped()).spawn()?);
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.0.stdout.as_mut().context("no output")?),
        &mut line,
    )?;
    let port = line.trim().to_owned();
    let arguments = |way: ClientKind, requests: usize, at_once: usize| {
        let way = way.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let (requests, at_once) = (requests.to_string(), at_once.to_string());
        ["--way", &way, "--port", &port, "--requests", &requests, "--at-once", &at_once].map(str::to_owned)
    };
    let (few, many) = if quick { (200, 700) } else { (1000, 4000) };
    let (requests, rounds) = if quick { (20_000, 3) } else { (40_000, 15) };
    println!("A request to a plain upstream and its whole answer: instructions one by one, and with 16 at once;");
    println!("µs of CPU in user space and kernel with 16 at once, the middle of {rounds} rounds");
    let mut cpu: HashMap<usize, Vec<f64>> = HashMap::new();
    for _ in 0..rounds {
        for (number, way) in CLIENT_KINDS.into_iter().enumerate() {
            let output = Command::new(&program).args(arguments(way, requests, 16)).output()?;
            ensure!(output.status.success(), "{way:?}: {}", String::from_utf8_lossy(&output.stderr));
            let nanos: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
            cpu.entry(number).or_default().push(nanos / 1000.0 / requests as f64);
        }
    }
    let mut own = None;
    for (number, way) in CLIENT_KINDS.into_iter().enumerate() {
        let mut instructions = [0.0; 2];
        for (at_once, instructions) in [1, 16].into_iter().zip(&mut instructions) {
            let [few_cost, many_cost] =
                [few, many].map(|requests| count_instructions(&program, &arguments(way, requests * 16, at_once)));
            *instructions = (many_cost? - few_cost?) / ((many - few) * 16) as f64;
        }
        let mut times = cpu.remove(&number).unwrap_or_default();
        times.sort_by(f64::total_cmp);
        let time = times[times.len() / 2];
        let [alone, together] = instructions;
        let (than_alone, than_together, than_time) = *own.get_or_insert((alone, together, time));
        println!(
            "  {:12} {alone:7.0} ({:+6.0})  {together:7.0} ({:+6.0})  {time:5.1} µs ({:+.1})",
            format!("{way:?}"),
            alone - than_alone,
            together - than_together,
            time - than_time
        );
    }
    Ok(())
}

/// Counts the instructions of the whole run.
fn count_instructions(program: &std::path::Path, arguments: &[String]) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--callgrind-out-file={}", folder.path().join("out").display())])
        .arg(program)
        .args(arguments)
        .output()
        .context("cannot start valgrind (Debian: valgrind)")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{text}");
    }
    text.lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, number)| number.trim().parse().ok())
        .with_context(|| format!("callgrind says nothing of what it collected:\n{text}"))
}
