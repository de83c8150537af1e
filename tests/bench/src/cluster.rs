//! One gateway and three on one PostgreSQL: proposals a second, how long an event takes to the dashboards of other nodes, and
//! what it costs to hand a session's request on.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::{
    http::{ACCEPT, Http, post},
    process::{Server, Setting},
    proposals::{UNBOUND, load, project, proposal},
    report::{self, line, micros, percentile},
    store::Postgres,
};

const NODES: usize = 3;

pub async fn run(setting: &Setting) -> Result<()> {
    let most = if setting.quick { 1_500 } else { 9_000 };
    report::section(
        &format!("Gateways on one PostgreSQL: {most} proposals, events, sessions elsewhere"),
        "scripts/bench cluster",
    );
    let (one, three) = (proposals(setting, 1, most).await?, proposals(setting, NODES, most).await?);
    line("three beside one", &format!("{:.2} times the proposals", three / one));
    let postgres = Postgres::start()?;
    let (nodes, _) = start(setting, &postgres.url, NODES).await?;
    let first = nodes.first().context("no node")?;
    let key = first.reviewer_with(setting, &[("COUNTERSIGN_STORE__URL", &postgres.url)])?;
    events(&nodes, &key, if setting.quick { 100 } else { 500 }).await?;
    sessions(&nodes, if setting.quick { 1_000 } else { 5_000 }).await
}

async fn start(setting: &Setting, url: &str, nodes: usize) -> Result<(Vec<Server>, Vec<String>)> {
    let mut env = UNBOUND.to_vec();
    env.push(("COUNTERSIGN_STORE__URL", url));
    let (mut servers, mut projects) = (Vec::new(), Vec::new());
    for _ in 0..nodes {
        let server = Server::gateway(setting, &env).await?;
        let mut http = Http::connect(server.port).await?;
        projects.push(project(&mut http, server.port).await?);
        servers.push(server);
    }
    // Until all have heard of each other.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    Ok((servers, projects))
}

async fn proposals(setting: &Setting, nodes: usize, most: usize) -> Result<f64> {
    let postgres = Postgres::start()?;
    let (servers, projects) = start(setting, &postgres.url, nodes).await?;
    let cpu = || servers.iter().map(Server::cpu).sum::<Result<Duration>>();
    let (before, since) = (cpu()?, Instant::now());
    let loads = servers.iter().zip(&projects);
    let loads = loads.map(|(server, project)| load(server.port, project, Duration::from_secs(120), Some(most / nodes)));
    let mut times: Vec<Duration> = Vec::new();
    for proposed in futures_util::future::try_join_all(loads).await? {
        times.extend(proposed.into_iter().map(|(time, _)| time));
    }
    let rate = times.len() as f64 / since.elapsed().as_secs_f64();
    let spent = (cpu()? - before).as_secs_f64() * 1e6 / times.len() as f64;
    times.sort_unstable();
    let ms = |part| percentile(&times, part).as_secs_f64() * 1e3;
    line(
        &format!("{nodes} node{}, proposals", if nodes == 1 { "" } else { "s" }),
        &format!(
            "{rate:7.0} a second, p50 {:.1} ms, p99 {:.1} ms, {spent:.0} µs of the gateways' CPU each",
            ms(0.5),
            ms(0.99)
        ),
    );
    Ok(rate)
}

/// A dashboard's stream: each line as it comes.
async fn dashboard(port: u16, key: &str) -> Result<BufReader<tokio::net::TcpStream>> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(BufReader::new(stream))
}

/// The number of the next event of a change.
async fn next_created(stream: &mut BufReader<tokio::net::TcpStream>) -> Result<()> {
    loop {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await? > 0, "the feed ended");
        if line.starts_with("event: change.created") {
            return Ok(());
        }
    }
}

/// From the moment that a proposal is sent to the one at which all dashboards, one at each node, have its event.
async fn events(nodes: &[Server], key: &str, count: usize) -> Result<()> {
    let first = nodes.first().context("no node")?;
    let project = project(&mut Http::connect(first.port).await?, first.port).await?;
    let mut streams = Vec::new();
    for node in nodes {
        streams.push(dashboard(node.port, key).await?);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut http = Http::connect(first.port).await?;
    let (mut own, mut all) = (Vec::new(), Vec::new());
    for n in 0..count {
        let request = proposal(first.port, &project, &format!("event {n}"));
        let began = Instant::now();
        let (status, ..) = http.exchange(&request).await?;
        ensure!(status == 200, "{status}");
        own.push(began.elapsed());
        futures_util::future::try_join_all(streams.iter_mut().map(next_created)).await?;
        all.push(began.elapsed());
    }
    own.sort_unstable();
    all.sort_unstable();
    let ms = |times: &[Duration], part| percentile(times, part).as_secs_f64() * 1e3;
    line(
        "a proposal to the dashboards of all nodes",
        &format!(
            "p50 {:.1} ms, p99 {:.1} ms (its own answer: p50 {:.1} ms, p99 {:.1} ms)",
            ms(&all, 0.5),
            ms(&all, 0.99),
            ms(&own, 0.5),
            ms(&own, 0.99)
        ),
    );
    Ok(())
}

/// Pings of a session at its own node, and through another one.
async fn sessions(nodes: &[Server], count: usize) -> Result<()> {
    let [here, other, ..] = nodes else { return Ok(()) };
    let session = Http::connect(here.port).await?.session().await?;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}).to_string();
    let mut figures: Vec<(f64, f64)> = Vec::new();
    for port in [here.port, other.port] {
        let headers = [("Mcp-Session-Id", session.as_str()), ("MCP-Protocol-Version", "2025-11-25"), ACCEPT];
        let request = post(port, "/mcp", &headers, &body);
        let mut http = Http::connect(port).await?;
        for _ in 0..100 {
            http.exchange(&request).await?;
        }
        let before = here.cpu()? + other.cpu()?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            let (status, _, head) = http.exchange(&request).await?;
            let answer: Value = serde_json::from_slice(http.body(head))?;
            ensure!(status == 200 && answer["result"].is_object(), "{status} {answer}");
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let spent = (here.cpu()? + other.cpu()? - before).as_secs_f64() * 1e6 / count as f64;
        figures.push((micros(percentile(&times, 0.5)), spent));
    }
    if let [(own, own_cpu), (handed, handed_cpu)] = figures[..] {
        line("a ping of a session at its node", &format!("p50 {own:.0} µs, {own_cpu:.0} µs of CPU"));
        line(
            "the same through another node",
            &format!("p50 {handed:.0} µs, {handed_cpu:.0} µs of CPU at both: {:.1} times", handed_cpu / own_cpu),
        );
    }
    Ok(())
}
