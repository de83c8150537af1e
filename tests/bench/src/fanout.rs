//! Measures change events to many open dashboards: the delay until all have them, and the cost.

use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::{
    http::{Http, modern},
    process::{RunSettings, Server},
    report::{self, line, micros, percentile},
};

pub async fn run(setting: &RunSettings) -> Result<()> {
    let (dashboards, events) = if setting.quick { (200, 10) } else { (1_000, 50) };
    report::section(&format!("Feed: {events} changes to {dashboards} dashboards (SSE)"), "scripts/bench fanout");
    let env = [
        ("COUNTERSIGN_TRANSPORTS__HTTP__MAX_CONNECTIONS", "5000"),
        ("COUNTERSIGN_LIMITS__MAX_STREAMS", "5000"),
        ("COUNTERSIGN_LIMITS__MAX_SESSIONS", "20000"),
    ];
    let gateway = Server::gateway(setting, &env).await?;
    let key = gateway.reviewer(setting)?;
    let mut http = Http::connect(gateway.port).await?;
    let call =
        |name: &str, arguments| modern(gateway.port, "tools/call", json!({"name": name, "arguments": arguments}));
    let projects = http.json(&call("list_projects", json!({}))).await?;
    let project =
        projects["result"]["structuredContent"]["projects"][0]["id"].as_str().context("no project")?.to_owned();

    let before = gateway.resident()?;
    let received = Rc::new(Cell::new(0usize));
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let mut tasks = Vec::new();
            for _ in 0..dashboards {
                let mut stream = Http::connect(gateway.port).await?.stream;
                let request = format!(
                    "GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {key}\r\n\r\n",
                    gateway.port
                );
                tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await?;
                let mut buffer = vec![0; 16 << 10];
                // The first event is the greeting; from here on the feed is live.
                let mut greeting = Vec::new();
                while !greeting.windows(5).any(|five| five == b"hello") {
                    let read = stream.read(&mut buffer).await?;
                    ensure!(read > 0, "a feed was refused: {}", String::from_utf8_lossy(&greeting));
                    greeting.extend_from_slice(&buffer[..read]);
                }
                let received = Rc::clone(&received);
                tasks.push(tokio::task::spawn_local(async move {
                    // Data lines may be cut anywhere, so their beginnings are counted across reads.
                    let pattern = b"event: change.";
                    let mut matched = 0;
                    while let Ok(read) = stream.read(&mut buffer).await
                        && read > 0
                    {
                        for byte in &buffer[..read] {
                            matched =
                                if *byte == pattern[matched] { matched + 1 } else { usize::from(*byte == pattern[0]) };
                            if matched == pattern.len() {
                                received.set(received.get() + 1);
                                matched = 0;
                            }
                        }
                    }
                }));
            }
            let connected = gateway.resident()?;
            let mut times = Vec::with_capacity(events);
            let (cpu, since) = (gateway.cpu()?, Instant::now());
            for event in 1..=events {
                let sent = Instant::now();
                let arguments = json!({"projectId": project, "title": format!("Event {event}"), "type": "Story"});
                http.json(&call("create_issue", arguments)).await?;
                while received.get() < event * dashboards {
                    ensure!(
                        sent.elapsed() < Duration::from_secs(30),
                        "{} of {} arrived",
                        received.get(),
                        event * dashboards
                    );
                    tokio::time::sleep(Duration::from_micros(200)).await;
                }
                times.push(sent.elapsed());
            }
            let used = gateway.cpu()? - cpu;
            let deliveries = (events * dashboards) as f64;
            times.sort_unstable();
            line(
                "from the proposal to the last dashboard",
                &format!(
                    "p50 {:.1} ms, p99 {:.1} ms, the load generator's reading included",
                    micros(percentile(&times, 0.5)) / 1000.0,
                    micros(percentile(&times, 0.99)) / 1000.0
                ),
            );
            line(
                "CPU",
                &format!(
                    "{:.1} µs a delivery, {:.1} ms an event to all; {:.0} deliveries/s",
                    micros(used) / deliveries,
                    micros(used) / 1000.0 / events as f64,
                    deliveries / since.elapsed().as_secs_f64()
                ),
            );
            line(
                "memory",
                &format!("{:.1} KiB a dashboard", (connected.saturating_sub(before)) as f64 / dashboards as f64),
            );
            for task in tasks {
                task.abort();
            }
            anyhow::Ok(())
        })
        .await
}
