//! Compares the two stores on one machine and disk: proposals and decisions per second, and their cost, at one gateway
//! or several.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    http::Http,
    process::{RunSettings, Server},
    proposals::{UNBOUNDED_LIMITS, WRITERS, load, project},
    report::{self, line, percentile},
};

/// A separate PostgreSQL with production settings for durability.
pub struct Postgres {
    child: Child,
    pub url: String,
}

impl Postgres {
    pub fn start() -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/postgres");
        let mut child = Command::new(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut url = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut url)?;
        ensure!(url.starts_with("postgres://"), "scripts/postgres does not start");
        Ok(Self { child, url: url.trim_end().to_owned() })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // The server ends with its stdin.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Rates per second.
pub struct Rates {
    pub proposals: f64,
    pub decisions: f64,
}

pub async fn run(setting: &RunSettings) -> Result<()> {
    let most = if setting.quick { 2_000 } else { 10_000 };
    report::section(
        &format!("Stores: {most} proposals and their rejections by {WRITERS} clients, one gateway each"),
        "scripts/bench store",
    );
    let postgres = Postgres::start()?;
    let (mut sqlite, mut server) = (Vec::new(), Vec::new());
    for _ in 0..if setting.quick { 1 } else { 3 } {
        sqlite.push(measure(setting, "SQLite", None, 1, most).await?);
        server.push(measure(setting, "PostgreSQL", Some(&postgres.url), 1, most).await?);
    }
    print_ratios("PostgreSQL beside SQLite", &server, &sqlite);
    Ok(())
}

/// Prints the median of the ratios of the rounds.
pub fn print_ratios(name: &str, these: &[Rates], those: &[Rates]) {
    let ratio = |of: fn(&Rates) -> f64| {
        report::median(these.iter().zip(those).map(|(this, that)| of(this) / of(that)).collect())
    };
    line(name, &format!("{:.2} times the proposals", ratio(|figures| figures.proposals)));
    line("", &format!("{:.2} times the decisions", ratio(|figures| figures.decisions)));
}

/// Starts so many gateways on the store at that URL, or one with SQLite; also returns their common sample project.
pub async fn start(setting: &RunSettings, url: Option<&str>, nodes: usize) -> Result<(Vec<Server>, String)> {
    let mut env = UNBOUNDED_LIMITS.to_vec();
    env.extend(url.map(|url| ("COUNTERSIGN_STORE__URL", url)));
    let mut servers = Vec::new();
    for _ in 0..nodes {
        servers.push(Server::gateway(setting, &env).await?);
    }
    if nodes > 1 {
        // Waits until all know of each other.
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    let port = servers.first().context("no gateway")?.port;
    let project = project(&mut Http::connect(port).await?, port).await?;
    Ok((servers, project))
}

/// Creates a reviewer's key for the gateways of that store.
pub fn reviewer(setting: &RunSettings, url: Option<&str>, servers: &[Server]) -> Result<String> {
    let env: Vec<_> = url.map(|url| ("COUNTERSIGN_STORE__URL", url)).into_iter().collect();
    servers.first().context("no gateway")?.create_key(setting, "reviewer", &env)
}

/// Makes [`WRITERS`] clients, spread over so many gateways, propose and then reject.
pub async fn measure(setting: &RunSettings, name: &str, url: Option<&str>, nodes: usize, most: usize) -> Result<Rates> {
    let (servers, project) = start(setting, url, nodes).await?;
    let key = reviewer(setting, url, &servers)?;
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    let all_cpu = || servers.iter().map(Server::cpu).sum::<Result<Duration>>();
    let (cpu, since) = (all_cpu()?, Instant::now());
    let loads = ports.iter().map(|port| {
        load(*port, &project, WRITERS.div_ceil(nodes), Duration::from_secs(120), Some(most.div_ceil(nodes)))
    });
    let proposed: Vec<_> = futures_util::future::try_join_all(loads).await?.into_iter().flatten().collect();
    let proposals = proposed.len() as f64 / since.elapsed().as_secs_f64();
    let cpu_per_request = (all_cpu()? - cpu).as_secs_f64() * 1e6 / proposed.len() as f64;
    let mut times: Vec<Duration> = proposed.iter().map(|(time, _)| *time).collect();
    print_rate(&format!("{name}, proposals"), proposals, &mut times, cpu_per_request);

    // The data that each decision must name is fetched before the clock starts.
    let mut shares: Vec<(u16, Vec<Vec<u8>>)> = (0..WRITERS).map(|writer| (ports[writer % nodes], Vec::new())).collect();
    let mut http = Http::connect(ports[0]).await?;
    for (n, (_, id)) in proposed.iter().enumerate() {
        let (port, share) = &mut shares[n % WRITERS];
        share.push(rejection(&mut http, *port, &key, id).await?);
    }
    let (cpu, since) = (all_cpu()?, Instant::now());
    let mut times = decide_all(shares).await?;
    let decided = times.len() as f64 / since.elapsed().as_secs_f64();
    let cpu_per_request = (all_cpu()? - cpu).as_secs_f64() * 1e6 / times.len() as f64;
    print_rate(&format!("{name}, decisions"), decided, &mut times, cpu_per_request);
    Ok(Rates { proposals, decisions: decided })
}

fn print_rate(name: &str, rate: f64, times: &mut [Duration], cpu: f64) {
    times.sort_unstable();
    let ms = |part| percentile(times, part).as_secs_f64() * 1e3;
    line(
        name,
        &format!(
            "{rate:7.0} a second, p50 {:.1} ms, p99 {:.1} ms, {cpu:.0} µs of the gateways' CPU each",
            ms(0.5),
            ms(0.99)
        ),
    );
}

/// Renders the rejection of a change for the node at that port, with the version and digest that `http` fetches.
pub async fn rejection(http: &mut Http, port: u16, key: &str, change: &str) -> Result<Vec<u8>> {
    let current = json_of(http, &get(http.port, key, &format!("/api/changes/{change}"))).await?;
    let body = json!({
        "decision": "reject", "comment": "", "version": current["version"], "digest": current["digest"],
    });
    Ok(post(port, key, &format!("/api/changes/{change}/decision"), &body))
}

/// Sends a decision.
pub async fn decide(http: &mut Http, request: &[u8]) -> Result<()> {
    let (status, _, head) = http.exchange(request).await?;
    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(http.body(head)));
    Ok(())
}

/// Sends the requests of each share with one client.
async fn decide_all(shares: Vec<(u16, Vec<Vec<u8>>)>) -> Result<Vec<Duration>> {
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let reviewers: Vec<_> = shares
                .into_iter()
                .map(|(port, share)| {
                    tokio::task::spawn_local(async move {
                        let mut http = Http::connect(port).await?;
                        let mut times = Vec::with_capacity(share.len());
                        for request in share {
                            let began = Instant::now();
                            decide(&mut http, &request).await?;
                            times.push(began.elapsed());
                        }
                        anyhow::Ok(times)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for reviewer in reviewers {
                all.extend(reviewer.await??);
            }
            anyhow::Ok(all)
        })
        .await
}

fn get(port: u16, key: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n\r\n").into_bytes()
}

fn post(port: u16, key: &str, path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

async fn json_of(http: &mut Http, request: &[u8]) -> Result<Value> {
    let (status, _, head) = http.exchange(request).await?;
    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(http.body(head)));
    Ok(serde_json::from_slice(http.body(head))?)
}
