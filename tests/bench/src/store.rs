//! The two stores beside each other, on one machine and one disk: proposals and decisions a second, and what they cost.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::{
    http::Http,
    process::{Server, Setting},
    proposals::{UNBOUND, WRITERS, load, project},
    report::{self, line, percentile},
};

/// A PostgreSQL of its own, which writes to the disk as one does that somebody relies on.
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
        // It ends with its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

struct Figures {
    proposals: f64,
    decisions: f64,
}

pub async fn run(setting: &Setting) -> Result<()> {
    let most = if setting.quick { 2_000 } else { 10_000 };
    report::section(
        &format!("Stores: {most} proposals and their rejections by {WRITERS} clients, one gateway each"),
        "scripts/bench store",
    );
    let postgres = Postgres::start()?;
    let (mut sqlite, mut server) = (Vec::new(), Vec::new());
    for _ in 0..if setting.quick { 1 } else { 3 } {
        sqlite.push(measure(setting, "SQLite", None, most).await?);
        server.push(measure(setting, "PostgreSQL", Some(&postgres.url), most).await?);
    }
    let ratio = |of: fn(&Figures) -> f64| {
        let figures = server.iter().zip(&sqlite).map(|(server, sqlite)| of(server) / of(sqlite));
        report::median(figures.collect())
    };
    line("PostgreSQL beside SQLite", &format!("{:.2} times the proposals", ratio(|figures| figures.proposals)));
    line("", &format!("{:.2} times the decisions", ratio(|figures| figures.decisions)));
    Ok(())
}

async fn measure(setting: &Setting, name: &str, url: Option<&str>, most: usize) -> Result<Figures> {
    let mut env = UNBOUND.to_vec();
    env.extend(url.map(|url| ("COUNTERSIGN_STORE__URL", url)));
    let gateway = Server::gateway(setting, &env).await?;
    let key = gateway.reviewer_with(setting, &env)?;
    let port = gateway.port;
    let mut http = Http::connect(port).await?;
    let project = project(&mut http, port).await?;
    let (cpu, since) = (gateway.cpu()?, Instant::now());
    let proposed = load(port, &project, Duration::from_secs(120), Some(most)).await?;
    let proposals = proposed.len() as f64 / since.elapsed().as_secs_f64();
    let spent = (gateway.cpu()? - cpu).as_secs_f64() * 1e6 / proposed.len() as f64;
    let mut times: Vec<Duration> = proposed.iter().map(|(time, _)| *time).collect();
    shown(&format!("{name}, proposals"), proposals, &mut times, spent);

    // What each decision has to name is looked up before the clock runs.
    let mut decisions = Vec::with_capacity(proposed.len());
    for (_, id) in &proposed {
        let change = json_of(&mut http, &get(port, &key, &format!("/api/changes/{id}"))).await?;
        let body = json!({
            "decision": "reject", "comment": "", "version": change["version"], "digest": change["digest"],
        });
        decisions.push(post(port, &key, &format!("/api/changes/{id}/decision"), &body));
    }
    let (cpu, since) = (gateway.cpu()?, Instant::now());
    let mut times = decide(port, decisions).await?;
    let decided = times.len() as f64 / since.elapsed().as_secs_f64();
    let spent = (gateway.cpu()? - cpu).as_secs_f64() * 1e6 / times.len() as f64;
    shown(&format!("{name}, decisions"), decided, &mut times, spent);
    Ok(Figures { proposals, decisions: decided })
}

fn shown(name: &str, rate: f64, times: &mut [Duration], cpu: f64) {
    times.sort_unstable();
    let ms = |part| percentile(times, part).as_secs_f64() * 1e3;
    line(
        name,
        &format!(
            "{rate:7.0} a second, p50 {:.1} ms, p99 {:.1} ms, {cpu:.0} µs of the gateway's CPU each",
            ms(0.5),
            ms(0.99)
        ),
    );
}

/// As many clients as there are writers make these requests.
async fn decide(port: u16, requests: Vec<Vec<u8>>) -> Result<Vec<Duration>> {
    let mut shares: Vec<Vec<Vec<u8>>> = (0..WRITERS).map(|_| Vec::new()).collect();
    for (n, request) in requests.into_iter().enumerate() {
        shares[n % WRITERS].push(request);
    }
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let reviewers: Vec<_> = shares
                .into_iter()
                .map(|share| {
                    tokio::task::spawn_local(async move {
                        let mut http = Http::connect(port).await?;
                        let mut times = Vec::with_capacity(share.len());
                        for request in share {
                            let began = Instant::now();
                            let (status, _, head) = http.exchange(&request).await?;
                            ensure!(status == 200, "{status} {}", String::from_utf8_lossy(http.body(head)));
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
