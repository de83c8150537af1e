//! Measures CPU per call and latency, beside a bare endpoint that parses and answers JSON of the same size.

use std::{
    future::Future,
    net::Ipv4Addr,
    pin::Pin,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures_util::{TryStreamExt as _, future, stream::FuturesUnordered};
use serde_json::{Value, json};

use crate::{
    http::{ACCEPT, Http, modern, post},
    process::{RunSettings, Server},
    report::{self, goal, line, median, micros, percentile},
    ws::{self, Ws},
};

/// The number of connections for CPU measurements.
pub const CONNECTIONS: usize = 16;

pub type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// One connection that makes the same call again and again.
pub trait Caller {
    fn once(&mut self) -> CallFuture<'_>;
}

pub struct OverHttp(pub Http, pub Rc<Vec<u8>>);
impl Caller for OverHttp {
    fn once(&mut self) -> CallFuture<'_> {
        Box::pin(async {
            let (status, ..) = self.0.exchange(&self.1).await?;
            anyhow::ensure!(status == 200, "status {status}");
            Ok(())
        })
    }
}

pub struct OverWs(pub Ws, pub Rc<Vec<u8>>);
impl Caller for OverWs {
    fn once(&mut self) -> CallFuture<'_> {
        Box::pin(async { self.0.exchange(&self.1).await.map(|_| ()) })
    }
}

/// One measurement: how to call the gateway, and the bare endpoint with the same sizes.
struct BenchCase {
    name: &'static str,
    goal: f64,
    request: Rc<Vec<u8>>,
    over_ws: bool,
    bare: Rc<Vec<u8>>,
}

impl BenchCase {
    async fn callers(&self, port: u16, bare: bool, count: usize) -> Result<Vec<Box<dyn Caller>>> {
        let mut callers: Vec<Box<dyn Caller>> = Vec::new();
        for _ in 0..count {
            callers.push(match (bare, self.over_ws) {
                (true, _) => Box::new(OverHttp(Http::connect(port).await?, Rc::clone(&self.bare))),
                (false, false) => Box::new(OverHttp(Http::connect(port).await?, Rc::clone(&self.request))),
                (false, true) => Box::new(OverWs(Ws::open(port, Ipv4Addr::LOCALHOST).await?, Rc::clone(&self.request))),
            });
        }
        Ok(callers)
    }
}

/// Calls from all connections for that long; returns the number of calls. Only connections with an answer are polled,
/// because the load generator shares the caches of the measured servers.
pub async fn load(callers: &mut [Box<dyn Caller>], time: Duration) -> Result<u64> {
    let end = Instant::now() + time;
    let all: FuturesUnordered<_> = callers
        .iter_mut()
        .map(|caller| async move {
            let mut calls = 0u64;
            while Instant::now() < end {
                caller.once().await?;
                calls += 1;
            }
            anyhow::Ok(calls)
        })
        .collect();
    all.try_fold(0, |total, calls| future::ready(Ok(total + calls))).await
}

/// Returns the microseconds of the server's CPU for each call, and of the wall clock.
async fn cpu_per_call(server: &Server, case: &BenchCase, bare: bool, time: Duration) -> Result<(f64, f64)> {
    let mut callers = case.callers(server.port, bare, CONNECTIONS).await?;
    load(&mut callers, time / 4).await?;
    let (before, since) = (server.cpu()?, Instant::now());
    let calls = load(&mut callers, time).await?;
    let used = server.cpu()? - before;
    Ok((micros(used) / calls as f64, calls as f64 / since.elapsed().as_secs_f64()))
}

/// Returns sorted latencies of consecutive calls.
async fn latencies(server: &Server, case: &BenchCase, bare: bool, count: usize) -> Result<Vec<Duration>> {
    let mut callers = case.callers(server.port, bare, 1).await?;
    let mut times = Vec::with_capacity(count);
    for round in 0..count + count / 10 {
        let since = Instant::now();
        callers[0].once().await?;
        if round >= count / 10 {
            times.push(since.elapsed());
        }
    }
    times.sort_unstable();
    Ok(times)
}

/// Returns a request of that size to the bare endpoint, which asks for an answer of that size.
fn bare_request(port: u16, body: usize, answer: usize) -> Rc<Vec<u8>> {
    let around = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"pad":""}}"#.len();
    let pad = "x".repeat(body.saturating_sub(around));
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{"pad":"{pad}"}}}}"#);
    Rc::new(post(port, &format!("/{answer}"), &[ACCEPT], &body))
}

/// Returns the size of a request's body.
fn body_len(request: &[u8]) -> usize {
    request.windows(4).position(|four| four == b"\r\n\r\n").map_or(request.len(), |at| request.len() - at - 4)
}

/// Returns the size of the body of the answer to a request.
async fn answer_len(port: u16, request: &[u8]) -> Result<usize> {
    let mut http = Http::connect(port).await?;
    http.json(request).await?;
    let (_, whole, head) = http.exchange(request).await?;
    Ok(whole - head)
}

async fn cases(gateway: &Server, bare: &Server) -> Result<Vec<BenchCase>> {
    let port = gateway.port;
    let mut http = Http::connect(port).await?;
    let session = http.session().await?;
    let headers = [ACCEPT, ("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25")];
    let legacy = |method: &str, params: &Value| {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        post(port, "/mcp", &headers, &body)
    };
    let projects = http.json(&legacy("tools/call", &json!({"name": "list_projects", "arguments": {}}))).await?;
    let project = &projects["result"]["structuredContent"]["projects"][0]["id"];
    let list = json!({"name": "list_issues", "arguments": {"projectId": project}});
    let issues = http.json(&legacy("tools/call", &list)).await?;
    let issue = issues["result"]["structuredContent"]["issues"][0]["id"].as_str().context("no issue")?.to_owned();
    let read = json!({"name": "get_issue", "arguments": {"issueId": issue}});

    let mut cases = Vec::new();
    for (name, goal, request) in [
        ("ping, HTTP 2025-11-25", 2.0, legacy("ping", &json!({}))),
        ("health/check, HTTP 2026-07-28", 2.0, modern(port, "health/check", json!({}))),
        ("get_issue, HTTP 2025-11-25", 4.0, legacy("tools/call", &read)),
        ("get_issue, HTTP 2026-07-28", 4.0, modern(port, "tools/call", read.clone())),
    ] {
        let answer = answer_len(port, &request).await?;
        let bare = bare_request(bare.port, body_len(&request), answer);
        cases.push(BenchCase { name, goal, request: Rc::new(request), over_ws: false, bare });
    }
    let mut socket = Ws::open(port, Ipv4Addr::LOCALHOST).await?;
    for (name, goal, method, params) in
        [("ping, WebSocket", 2.0, "ping", json!({})), ("get_issue, WebSocket", 4.0, "tools/call", read)]
    {
        let request = ws::request(method, &params);
        let answer = socket.exchange(&request).await?;
        let bare = bare_request(bare.port, request.len() - 6, answer);
        cases.push(BenchCase { name, goal, request: Rc::new(request), over_ws: true, bare });
    }
    Ok(cases)
}

pub async fn run(setting: &RunSettings) -> Result<()> {
    report::section(
        "Calls, beside a bare actix-web endpoint that parses and answers JSON of the same size",
        "scripts/bench calls",
    );
    let (time, rounds, count) =
        if setting.quick { (Duration::from_millis(800), 1, 1_000) } else { (Duration::from_secs(3), 3, 10_000) };
    let gateway = Server::gateway(setting, &[]).await?;
    let bare = Server::bare(setting).await?;
    for case in cases(&gateway, &bare).await?.into_iter().filter(|case| case.name.contains(&setting.case)) {
        let (mut ratios, mut ours, mut theirs, mut rates) = (vec![], vec![], vec![], vec![]);
        // In turn, so that a busy moment of the machine affects both.
        for _ in 0..rounds {
            let (our, rate) = cpu_per_call(&gateway, &case, false, time).await?;
            let (their, _) = cpu_per_call(&bare, &case, true, time).await?;
            ratios.push(our / their);
            ours.push(our);
            theirs.push(their);
            rates.push(rate);
        }
        let our = latencies(&gateway, &case, false, count).await?;
        let their = latencies(&bare, &case, true, count).await?;
        let ratio = median(ratios);
        let cpu = format!(
            "CPU {:6.1} µs, bare {:5.1} µs, {:7.0} calls/s ({CONNECTIONS} connections)",
            median(ours),
            median(theirs),
            median(rates)
        );
        line(case.name, &cpu);
        let at = |times: &[Duration], part| micros(percentile(times, part));
        let times = format!(
            "p50 {:6.0} µs, bare {:5.0} µs; p99 {:6.0} µs, bare {:5.0} µs (one by one)",
            at(&our, 0.5),
            at(&their, 0.5),
            at(&our, 0.99),
            at(&their, 0.99)
        );
        line("", &times);
        goal("", format!("{ratio:.2} times CPU"), &format!("≤ {} times", case.goal), ratio <= case.goal);
        let over = at(&our, 0.99) - at(&their, 0.99);
        goal("", format!("{:.2} ms at p99", over / 1000.0), "overhead far under 5 ms", over < 1000.0);
    }
    Ok(())
}
