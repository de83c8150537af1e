//! Measures durable proposals per second, beside raw SQLite group commits of the same rows by as many writers.

use std::{
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rusqlite::{Connection, types::Value};
use serde_json::json;

use crate::{
    http::{Http, modern},
    process::{RunSettings, Server},
    report::{self, goal, line},
};

/// Clients that each wait until their change is durable before they propose the next.
pub const WRITERS: usize = 64;

/// Settings without limits on the number of changes.
pub const UNBOUNDED_LIMITS: [(&str, &str); 3] = [
    ("COUNTERSIGN_CHANGES__MAX_PENDING", "1000000"),
    ("COUNTERSIGN_CHANGES__MAX_PENDING_BYTES", "1000000000"),
    ("COUNTERSIGN_CHANGES__MAX_BYTES_PER_DAY", "0"),
];

/// Returns the sample project of the gateway's tracker.
pub async fn project(http: &mut Http, port: u16) -> Result<String> {
    let call = modern(port, "tools/call", json!({"name": "list_projects", "arguments": {}}));
    let projects = http.json(&call).await?;
    Ok(projects["result"]["structuredContent"]["projects"][0]["id"].as_str().context("no project")?.to_owned())
}

/// Makes `writers` clients propose until `time` is over, or until they have made `most` proposals. Returns the time and id of
/// each proposal.
pub async fn load(
    port: u16,
    project: &str,
    writers: usize,
    time: Duration,
    most: Option<usize>,
) -> Result<Vec<(Duration, String)>> {
    let end = Instant::now() + time;
    let each = most.map_or(usize::MAX, |most| most.div_ceil(writers));
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let writers: Vec<_> = (0..writers)
                .map(|writer| {
                    let project = project.to_owned();
                    tokio::task::spawn_local(async move {
                        let mut http = Http::connect(port).await?;
                        let mut proposed = Vec::new();
                        // Prepared once, so that the load costs little beside the measured work.
                        let mut request = proposal(port, &project, TITLE);
                        let at = request
                            .windows(TITLE.len())
                            .position(|part| part == TITLE.as_bytes())
                            .context("no title")?;
                        while Instant::now() < end && proposed.len() < each {
                            let title = format!("{:0width$}", proposed.len() * 1_000 + writer, width = TITLE.len());
                            request[at..at + TITLE.len()].copy_from_slice(title.as_bytes());
                            let began = Instant::now();
                            let (status, _, head) = http.exchange(&request).await?;
                            let body = http.body(head);
                            let (200, Some(id)) = (status, change_in(body)) else {
                                anyhow::bail!("{}", String::from_utf8_lossy(body));
                            };
                            proposed.push((began.elapsed(), id));
                        }
                        anyhow::Ok(proposed)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for writer in writers {
                all.extend(writer.await??);
            }
            anyhow::Ok(all)
        })
        .await
}

/// Returns the first change id in the text.
pub fn change_in(text: &[u8]) -> Option<String> {
    let at = text.windows(4).position(|part| part == b"chg_")?;
    Some(String::from_utf8_lossy(text.get(at..at + 28)?).into_owned())
}

pub async fn run(setting: &RunSettings) -> Result<()> {
    report::section(
        "Durable proposals, beside raw SQLite group commits of the same rows (WAL, synchronous=FULL, as many writers)",
        "scripts/bench proposals",
    );
    let time = if setting.quick { Duration::from_secs(2) } else { Duration::from_secs(6) };
    let gateway = Server::gateway(setting, &UNBOUNDED_LIMITS).await?;
    let key = gateway.reviewer(setting)?;
    let mut http = Http::connect(gateway.port).await?;
    let project = project(&mut http, gateway.port).await?;
    let first = propose(&mut http, gateway.port, &project, "The first").await?;
    let change = format!(
        "GET /api/changes/{first} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nAuthorization: Bearer {key}\r\n\r\n",
        gateway.port
    );
    let (_, whole, head) = http.exchange(change.as_bytes()).await?;
    let bytes = whole - head;

    let commits = commits_so_far(&mut http, gateway.port).await?;
    let (cpu, since) = (gateway.cpu()?, Instant::now());
    let proposed = load(gateway.port, &project, WRITERS, time, None).await?.len() as u64;
    let ours = proposed as f64 / since.elapsed().as_secs_f64();
    let cpu = (gateway.cpu()? - cpu).as_secs_f64() * 1e6 / proposed as f64;
    let grouped = proposed as f64 / (commits_so_far(&mut http, gateway.port).await? - commits);
    // On the same file system as the gateway's data.
    let folder = tempfile::tempdir_in(gateway.data())?;
    let (changes, commits) = raw(&gateway.data().join("countersign.db"), folder.path(), &first, time)?;
    let theirs = changes as f64 / time.as_secs_f64();
    line(
        "proposals",
        &format!(
            "{ours:7.0} a second by {WRITERS} clients, {grouped:4.1} a commit, {cpu:.0} µs CPU each, {bytes} bytes of JSON"
        ),
    );
    line(
        "raw group commits",
        &format!("{theirs:7.0} a second by {WRITERS} writers, {:4.1} a commit", changes as f64 / commits as f64),
    );
    goal("", format!("{:.2} times raw", ours / theirs), "≥ 0.5 times", ours / theirs >= 0.5);
    Ok(())
}

/// Returns the commits of the gateway's store, as it counts them itself.
async fn commits_so_far(http: &mut Http, port: u16) -> Result<f64> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    let (_, _, head) = http.exchange(request.as_bytes()).await?;
    let text = String::from_utf8_lossy(http.body(head)).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("countersign_store_commits_total"));
    Ok(line.and_then(|line| line.rsplit(' ').next()).context("no count of commits in /metrics")?.parse()?)
}

/// A title that is replaced in the bytes of a request.
const TITLE: &str = "000000000000000000000000";

/// Renders a request that proposes an issue with that title.
pub fn proposal(port: u16, project: &str, title: &str) -> Vec<u8> {
    let arguments = json!({"projectId": project, "title": title, "type": "Story", "description": "As long as one is."});
    modern(port, "tools/call", json!({"name": "create_issue", "arguments": arguments}))
}

/// Proposes a change and returns its id.
pub async fn propose(http: &mut Http, port: u16, project: &str, title: &str) -> Result<String> {
    let answer = http.json(&proposal(port, project, title)).await?;
    Ok(answer["result"]["structuredContent"]["changeId"].as_str().context("no change")?.to_owned())
}

/// The rows of one change in one table, to be inserted again under other ids.
struct RowTemplate {
    insert: String,
    row: Vec<Value>,
}

impl RowTemplate {
    /// Returns the row for the change `n`, with another number and id.
    fn row(&self, n: i64, old: &str, new: &str) -> Vec<Value> {
        let mut row = self.row.clone();
        row[0] = Value::Integer(n);
        for value in &mut row {
            if matches!(value, Value::Text(text) if text == old) {
                *value = Value::Text(new.to_owned());
            }
        }
        row
    }
}

/// Copies the schema and rows of one change in the gateway's store: its tables and indexes, and the rows of a proposal.
fn copy_change(store: &Path, raw: &Connection, change: &str) -> Result<Vec<RowTemplate>> {
    let store = Connection::open_with_flags(store, rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let mut templates = Vec::new();
    for (table, column) in [("changes", "id"), ("events", "change_id"), ("audit", "change_id")] {
        let mut schema = store
            .prepare("SELECT sql FROM sqlite_master WHERE tbl_name = ?1 AND sql IS NOT NULL ORDER BY type DESC")?;
        for sql in schema.query_map([table], |row| row.get::<_, String>(0))? {
            raw.execute_batch(&sql?)?;
        }
        let mut statement = store.prepare(&format!("SELECT * FROM {table} WHERE {column} = ?1"))?;
        let width = statement.column_count();
        let row = statement.query_row([change], |row| (0..width).map(|index| row.get(index)).collect())?;
        let marks = vec!["?"; width].join(", ");
        templates.push(RowTemplate { insert: format!("INSERT INTO {table} VALUES ({marks})"), row });
    }
    Ok(templates)
}

/// Measures writers that wait for their change to be durable, and one thread that commits everything pending: the same
/// rows in the same tables and indexes as a proposal's, and nothing else. Returns changes and commits.
fn raw(store: &Path, folder: &Path, change: &str, time: Duration) -> Result<(u64, u64)> {
    let connection = Connection::open(folder.join("raw.db"))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")?;
    let templates = copy_change(store, &connection, change)?;
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
    let (mut changes, mut commits) = (0, 0);
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        group.extend(queue.try_iter());
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for _ in &group {
            changes += 1;
            let id = format!("chg_{changes:024}");
            for template in &templates {
                let row = template.row(changes, change, &id);
                connection.prepare_cached(&template.insert)?.execute(rusqlite::params_from_iter(row))?;
            }
        }
        connection.execute_batch("COMMIT")?;
        commits += 1;
        for done in group {
            let _ = done.send(());
        }
    }
    for writer in writers {
        let _ = writer.join();
    }
    Ok((u64::try_from(changes)?, commits))
}
