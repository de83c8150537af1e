//! Durable proposals a second, beside raw SQLite group commits of rows of the same size by as many writers.

use std::{
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::{
    http::{Http, modern},
    process::{Server, Setting},
    report::{self, goal, line},
};

/// Clients that each wait for their own change to be durable before they propose the next.
const WRITERS: usize = 64;

pub async fn run(setting: &Setting) -> Result<()> {
    report::section(
        "Durable proposals, beside raw SQLite group commits (WAL, synchronous=FULL, same writers, same bytes a row)",
        "scripts/bench proposals",
    );
    let time = if setting.quick { Duration::from_secs(2) } else { Duration::from_secs(6) };
    let big = "1000000000";
    let env = [("COUNTERSIGN_CHANGES__MAX_PENDING", "10000000"), ("COUNTERSIGN_CHANGES__MAX_PENDING_BYTES", big)];
    let gateway = Server::gateway(setting, &env).await?;
    let key = gateway.reviewer(setting)?;
    let mut http = Http::connect(gateway.port).await?;
    let projects =
        http.json(&modern(gateway.port, "tools/call", json!({"name": "list_projects", "arguments": {}}))).await?;
    let project =
        projects["result"]["structuredContent"]["projects"][0]["id"].as_str().context("no project")?.to_owned();

    let first = propose(&mut http, gateway.port, &project, "The first").await?;
    let change = format!(
        "GET /api/changes/{first} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {key}\r\n\r\n",
        gateway.port
    );
    let (_, whole, head) = http.exchange(change.as_bytes()).await?;
    let bytes = whole - head;

    let (cpu, since, end) = (gateway.cpu()?, Instant::now(), Instant::now() + time);
    let local = tokio::task::LocalSet::new();
    let proposed = local
        .run_until(async {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (project, port) = (project.clone(), gateway.port);
                    tokio::task::spawn_local(async move {
                        let mut http = Http::connect(port).await?;
                        let mut count = 0u64;
                        while Instant::now() < end {
                            propose(&mut http, port, &project, &format!("Proposal {count} of {writer}")).await?;
                            count += 1;
                        }
                        anyhow::Ok(count)
                    })
                })
                .collect();
            let mut total = 0;
            for writer in writers {
                total += writer.await??;
            }
            anyhow::Ok(total)
        })
        .await?;
    let ours = proposed as f64 / since.elapsed().as_secs_f64();
    let cpu = (gateway.cpu()? - cpu).as_secs_f64() * 1e6 / proposed as f64;
    // On the same file system as the gateway's data.
    let folder = tempfile::tempdir_in(gateway.data())?;
    let (rows, commits) = raw(folder.path(), bytes, time)?;
    let theirs = rows as f64 / time.as_secs_f64();
    line(
        "proposals",
        &format!("{ours:7.0} a second by {WRITERS} clients, {cpu:.0} µs CPU each, {bytes} bytes a change"),
    );
    line(
        "raw group commits",
        &format!("{theirs:7.0} rows a second, {:.1} rows a commit", rows as f64 / commits.max(1) as f64),
    );
    goal("", format!("{:.2} times raw", ours / theirs), "≥ 0.5 times", ours / theirs >= 0.5);
    Ok(())
}

async fn propose(http: &mut Http, port: u16, project: &str, title: &str) -> Result<String> {
    let arguments = json!({"projectId": project, "title": title, "type": "Story", "description": "As long as one is."});
    let answer =
        http.json(&modern(port, "tools/call", json!({"name": "create_issue", "arguments": arguments}))).await?;
    Ok(answer["result"]["structuredContent"]["changeId"].as_str().context("no change")?.to_owned())
}

/// Writers that wait for their row to be durable; one thread that commits whatever has come. Gives rows and commits.
fn raw(folder: &Path, bytes: usize, time: Duration) -> Result<(u64, u64)> {
    let connection = rusqlite::Connection::open(folder.join("raw.db"))?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE rows (id INTEGER PRIMARY KEY, body BLOB NOT NULL);",
    )?;
    let (sender, queue): (SyncSender<SyncSender<()>>, Receiver<SyncSender<()>>) = sync_channel(WRITERS);
    let end = Instant::now() + time;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let (done, durable) = sync_channel(1);
                while Instant::now() < end && sender.send(done.clone()).is_ok() && durable.recv().is_ok() {}
            })
        })
        .collect();
    drop(sender);
    let body = vec![b'x'; bytes];
    let (mut rows, mut commits) = (0, 0);
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        group.extend(queue.try_iter());
        connection.execute_batch("BEGIN IMMEDIATE")?;
        {
            let mut insert = connection.prepare_cached("INSERT INTO rows (body) VALUES (?1)")?;
            for _ in &group {
                insert.execute([&body])?;
            }
        }
        connection.execute_batch("COMMIT")?;
        rows += group.len() as u64;
        commits += 1;
        for done in group {
            let _ = done.send(());
        }
    }
    for writer in writers {
        let _ = writer.join();
    }
    Ok((rows, commits))
}
