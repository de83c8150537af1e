//! Compares SQLite with one and three gateways on one PostgreSQL: proposals and decisions per second, the delay of
//! events to the dashboards of all nodes, the cost of a proxied call, and the cost of forwarding a session's request.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    sync::Notify,
    task::JoinHandle,
};

use crate::{
    http::{ACCEPT, Http, post},
    process::{RunSettings, Server},
    proposals::{WRITERS, change_in, proposal},
    proxied,
    report::{self, goal, line, micros, percentile},
    store::{Postgres, measure, print_ratios, reviewer, start},
};

const NODES: usize = 3;
/// Proposals per second during the other measurements, and below the clients that make them.
const RATE: u32 = 300;
const CLIENTS: u32 = 12;

pub async fn run(setting: &RunSettings) -> Result<()> {
    let most = if setting.quick { 1_500 } else { 9_000 };
    report::section(
        &format!("Gateways on one PostgreSQL: {most} proposals and their rejections by {WRITERS} clients, and more"),
        "scripts/bench cluster",
    );
    let (mut sqlite, mut one, mut three) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if setting.quick { 1 } else { 3 } {
        sqlite.push(measure(setting, "SQLite", None, 1, most).await?);
        for (name, nodes, figures) in [("one node", 1, &mut one), ("three nodes", NODES, &mut three)] {
            let postgres = Postgres::start()?;
            figures.push(measure(setting, name, Some(&postgres.url), nodes, most).await?);
        }
    }
    print_ratios("one node beside SQLite", &one, &sqlite);
    print_ratios("three beside one", &three, &one);
    let postgres = Postgres::start()?;
    let (nodes, project) = start(setting, Some(&postgres.url), NODES).await?;
    let key = reviewer(setting, Some(&postgres.url), &nodes)?;
    let local = tokio::task::LocalSet::new();
    let count = if setting.quick { 100 } else { 1_000 };
    local
        .run_until(async {
            events("a proposal to all dashboards", &nodes, &project, &key, count).await?;
            let load = BackgroundLoad::start(&nodes, &project);
            events("the same under load", &nodes, &project, &key, count).await?;
            let rate = load.end()?;
            line("", &format!("the load: {rate:.0} other proposals a second at {NODES} nodes"));
            anyhow::Ok(())
        })
        .await?;
    sessions(&nodes, if setting.quick { 1_000 } else { 5_000 }).await?;
    drop(nodes);
    proxied::stores(setting, &Postgres::start()?.url).await
}

/// Clients at all nodes that propose at a steady rate.
struct BackgroundLoad {
    clients: Vec<JoinHandle<Result<()>>>,
    proposal_count: Rc<RefCell<u32>>,
    began: Instant,
}

impl BackgroundLoad {
    fn start(nodes: &[Server], project: &str) -> Self {
        let proposal_count = Rc::new(RefCell::new(0));
        let client = |n: u32, port: u16| {
            let (project, proposal_count) = (project.to_owned(), Rc::clone(&proposal_count));
            tokio::task::spawn_local(async move {
                let mut http = Http::connect(port).await?;
                let mut ticks = tokio::time::interval(Duration::from_secs(1) * CLIENTS / RATE);
                for proposed in 0.. {
                    ticks.tick().await;
                    let request = proposal(port, &project, &format!("load {n} {proposed}"));
                    let (status, _, head) = http.exchange(&request).await?;
                    ensure!(status == 200, "{status} {}", String::from_utf8_lossy(http.body(head)));
                    *proposal_count.borrow_mut() += 1;
                }
                Ok(())
            })
        };
        let clients = (0..CLIENTS).zip(nodes.iter().cycle()).map(|(n, node)| client(n, node.port)).collect();
        Self { clients, proposal_count, began: Instant::now() }
    }

    /// Stops the clients, and returns the rate that was achieved.
    fn end(self) -> Result<f64> {
        ensure!(self.clients.iter().all(|client| !client.is_finished()), "the load has ended early");
        self.clients.iter().for_each(JoinHandle::abort);
        Ok(f64::from(*self.proposal_count.borrow()) / self.began.elapsed().as_secs_f64())
    }
}

/// A dashboard that records when it heard of each change.
struct Dashboard {
    arrivals: Rc<RefCell<HashMap<String, Instant>>>,
    news: Rc<Notify>,
    reads: JoinHandle<Result<()>>,
}

impl Dashboard {
    async fn open(port: u16, key: &str) -> Result<Self> {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let request =
            format!("GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut stream = BufReader::new(stream);
        let (arrivals, news) = (Rc::new(RefCell::new(HashMap::new())), Rc::new(Notify::new()));
        let (recorded_arrivals, notifier) = (Rc::clone(&arrivals), Rc::clone(&news));
        let reads = tokio::task::spawn_local(async move {
            let (mut text, mut created) = (String::new(), false);
            loop {
                text.clear();
                ensure!(stream.read_line(&mut text).await? > 0, "the feed ended");
                if text.starts_with("event: ") {
                    created = text.starts_with("event: change.created");
                } else if created && text.starts_with("data: ") {
                    let change = change_in(text.as_bytes()).context("an event without its change")?;
                    recorded_arrivals.borrow_mut().insert(change, Instant::now());
                    notifier.notify_one();
                }
            }
        });
        Ok(Self { arrivals, news, reads })
    }

    async fn wait_for_event(&self, change: &str) -> Result<Instant> {
        loop {
            if let Some(when) = self.arrivals.borrow_mut().remove(change) {
                return Ok(when);
            }
            ensure!(!self.reads.is_finished(), "a dashboard's feed has ended");
            self.news.notified().await;
        }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.reads.abort();
    }
}

/// Measures the time from sending a proposal until the dashboards of all nodes have its event.
async fn events(name: &str, nodes: &[Server], project: &str, key: &str, count: usize) -> Result<()> {
    let first = nodes.first().context("no node")?;
    let mut dashboards = Vec::new();
    for node in nodes {
        dashboards.push(Dashboard::open(node.port, key).await?);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut http = Http::connect(first.port).await?;
    let (mut answer_times, mut event_times) = (Vec::new(), Vec::new());
    for n in 0..count {
        let request = proposal(first.port, project, &format!("{name} {n}"));
        let began = Instant::now();
        let (status, _, head) = http.exchange(&request).await?;
        ensure!(status == 200, "{status}");
        answer_times.push(began.elapsed());
        let change = change_in(http.body(head)).context("no change")?;
        let arrivals =
            futures_util::future::try_join_all(dashboards.iter().map(|dashboard| dashboard.wait_for_event(&change)));
        event_times.push(arrivals.await?.into_iter().max().context("no dashboard")?.duration_since(began));
    }
    answer_times.sort_unstable();
    event_times.sort_unstable();
    let ms = |times: &[Duration], part| percentile(times, part).as_secs_f64() * 1e3;
    line(
        name,
        &format!(
            "p50 {:.1} ms, p99 {:.1} ms (its own answer: p50 {:.1} ms, p99 {:.1} ms)",
            ms(&event_times, 0.5),
            ms(&event_times, 0.99),
            ms(&answer_times, 0.5),
            ms(&answer_times, 0.99)
        ),
    );
    goal("", format!("p99 {:.1} ms", ms(&event_times, 0.99)), "under 100 ms", ms(&event_times, 0.99) < 100.0);
    Ok(())
}

/// Measures pings of a session at its own node, and through another one.
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
        let cpu_per_ping = (here.cpu()? + other.cpu()? - before).as_secs_f64() * 1e6 / count as f64;
        figures.push((micros(percentile(&times, 0.5)), cpu_per_ping));
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
