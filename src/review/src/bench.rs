//! Measures durable proposals beside raw SQLite group commits of the same rows, in one run on one disk: a rate alone
//! says nothing. For `scripts/bench`; never used while serving.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use rusqlite::{Connection, params};
use serde_json::value::RawValue;

use super::{Changes, PendingConfig, Proposal, StartError};
use countersign_config::Config;
use countersign_domain::{
    changes::{Operation, Preview, PreviewNote, Proposer, Target, Terms, diff::DiffBuilder, fingerprint},
    principal::Principal,
};
use countersign_provider::{Provider, ProviderDirectory};
use countersign_store::{Place, Store, StoreError, sqlite::open};

/// What was measured.
#[derive(Clone, Debug)]
pub struct Rates {
    /// Callers at a time; also how many changes the raw baseline puts in one transaction.
    pub callers: usize,
    /// Of each round.
    pub proposals: usize,
    /// Durable proposals a second through [`Changes::propose`], round by round.
    pub proposals_per_second: Vec<f64>,
    /// The same rows a second, written by a bare connection, after each round.
    pub raw_per_second: Vec<f64>,
    /// Of all proposals.
    pub median: Duration,
    pub slowest: Duration,
}

impl Rates {
    /// Ours over the baseline's: the median of the rounds, so that a disturbance of one does not count.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        let mut ratios: Vec<f64> =
            self.proposals_per_second.iter().zip(&self.raw_per_second).map(|(ours, raw)| ours / raw).collect();
        ratios.sort_unstable_by(f64::total_cmp);
        ratios.get(ratios.len() / 2).copied().unwrap_or_default()
    }
}

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the baseline's thread failed")]
    Baseline,
    #[error("a proposal failed: {0}")]
    Propose(countersign_protocol::McpError),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

struct Nobody;
impl ProviderDirectory for Nobody {
    fn provider(&self, _: &str) -> Option<Arc<dyn Provider>> {
        None
    }
    fn tool_hash(&self, _: &str, _: &str) -> Option<String> {
        None
    }
    fn verdict(&self, _: &str, _: &str, _: &Principal, _: &RawValue) -> countersign_domain::policy::Verdict {
        countersign_domain::policy::Verdict::Deny
    }
    fn has_tools(&self, _: &str) -> bool {
        true
    }
}

/// In each round, proposes `proposals` changes of the size of a `create_issue`, `callers` at a time, into a new
/// database, then writes the very same rows without us. `dir` must be empty, on the disk to be measured; within a
/// running actix system.
///
/// # Errors
/// [`BenchError`]
pub async fn proposals(dir: &Path, callers: usize, proposals: usize, rounds: usize) -> Result<Rates, BenchError> {
    let mut times = Vec::with_capacity(proposals * rounds);
    let mut rates = Rates {
        callers,
        proposals,
        proposals_per_second: Vec::new(),
        raw_per_second: Vec::new(),
        median: Duration::ZERO,
        slowest: Duration::ZERO,
    };
    for round in 0..rounds {
        let (ours, baseline) = (dir.join(format!("ours-{round}")), dir.join(format!("raw-{round}")));
        let elapsed = one_round(&ours, callers, proposals, &mut times).await?;
        let raw = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("raw".into());
            thread.spawn_scoped(scope, || raw(&ours, &baseline, callers)).map(std::thread::ScopedJoinHandle::join)
        });
        let Ok(Ok(raw)) = raw else { return Err(BenchError::Baseline) };
        let raw = raw?;
        rates.proposals_per_second.push(per_second(proposals, elapsed));
        rates.raw_per_second.push(per_second(proposals, raw));
    }
    times.sort_unstable();
    rates.median = times.get(times.len() / 2).copied().unwrap_or_default();
    rates.slowest = times.last().copied().unwrap_or_default();
    Ok(rates)
}

#[allow(clippy::cast_precision_loss, reason = "a rate")]
fn per_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

async fn one_round(
    dir: &Path,
    callers: usize,
    proposals: usize,
    times: &mut Vec<Duration>,
) -> Result<Duration, BenchError> {
    let store: Arc<dyn Store> = Place::directory(dir).open()?;
    let config = PendingConfig {
        max_bytes_per_day: 0,
        max_pending: usize::MAX,
        max_pending_bytes: usize::MAX >> 1,
        max_proposals_per_minute: 0,
        ..PendingConfig::from(&Config::default().changes)
    };
    let changes = Changes::start(store, Arc::new(Nobody), config).await?;
    // Made before: what a provider's preview costs is not what is measured.
    let ready: Vec<Proposal> = (0..proposals).map(proposal).collect();
    let began = Instant::now();
    let mut running = stream::iter(ready)
        .map(|proposal| {
            let changes = changes.clone();
            async move {
                let began = Instant::now();
                changes.propose(proposal).await.map(|_| began.elapsed())
            }
        })
        .buffer_unordered(callers);
    while let Some(time) = running.next().await {
        times.push(time.map_err(BenchError::Propose)?);
    }
    let elapsed = began.elapsed();
    drop(running);
    changes.shutdown(Duration::from_secs(5)).await;
    Ok(elapsed)
}

fn proposal(n: usize) -> Proposal {
    let title = format!("Fix the login of the {n}th user");
    let description = "The form rejects passwords with a colon in them.\n\nSteps:\n1. open the form\n2. type a:b\n";
    let json = serde_json::json!({
        "projectId": "0d6b1a2e-7f4b-4f55-9f0a-1b2c3d4e5f60",
        "title": title,
        "type": "Bug",
        "description": description,
        "priority": "High",
    });
    let diff = DiffBuilder::new()
        .field("title", "Title", None, Some(&title))
        .field("type", "Type", None, Some("Bug"))
        .field("priority", "Priority", None, Some("High"))
        .field("description", "Description", None, Some(description))
        .finish();
    Proposal {
        proposer: Proposer {
            principal: "local-agent".into(),
            owner: None,
            key_id: None,
            client_name: Some("bench".into()),
            client_version: Some("1.0.0".into()),
            session: None,
            transport: "http".into(),
            revision: Some("2026-07-28".into()),
        },
        provider: "tracker".into(),
        tool: "create_issue".into(),
        tool_title: "Create issue".into(),
        tool_hash: fingerprint(&[("tool", "create_issue")]),
        served_by: Default::default(),
        arguments: Arc::from(RawValue::from_string(json.to_string()).unwrap_or_default()),
        preview: Preview {
            note: PreviewNote::default(),
            operation: Operation::Create,
            target: Target {
                entity_type: "issue".into(),
                id: None,
                label: title.clone(),
                lock_key: "project:0d6b1a2e-7f4b-4f55-9f0a-1b2c3d4e5f60".into(),
            },
            summary: format!("Create Bug “{title}” in CORE"),
            diff,
            fingerprint: fingerprint(&[("project", "CORE"), ("issues", "41")]),
        },
        review: None,
        terms: Terms::default(),
        client: None,
        idempotency_key: None,
        expire_after: Duration::from_secs(86_400),
    }
}

type ChangeRow = (String, i64, String, String, i64, String, String);
type AuditRow = (i64, String, String, String, String, String, String, Vec<u8>, Vec<u8>);

/// Copies the rows with nothing around them: one connection, prepared statements, `batch` changes a transaction, the
/// same settings and indexes.
fn raw(from: &Path, to: &Path, batch: usize) -> Result<Duration, BenchError> {
    let source = open::open_reader(from)?;
    let changes: Vec<ChangeRow> = source
        .prepare("SELECT id, version, state, principal, bytes, expires_at, body FROM changes ORDER BY no")?
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?)))?
        .collect::<Result<_, _>>()?;
    let events: Vec<(i64, String, String, String)> = source
        .prepare("SELECT seq, kind, change_id, data FROM events ORDER BY seq")?
        .query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))?
        .collect::<Result<_, _>>()?;
    let audit: Vec<AuditRow> = source
        .prepare("SELECT seq, at, change_id, event, to_state, actor, details, prev_hash, hash FROM audit ORDER BY seq")?
        .query_map([], |r| {
            Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?, r.get(7)?, r.get(8)?))
        })?
        .collect::<Result<_, _>>()?;
    let rows: Vec<_> = changes.into_iter().zip(events).zip(audit).collect();
    let conn = open::open_writer(to)?;
    let began = Instant::now();
    for batch in rows.chunks(batch.max(1)) {
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for ((change, event), audit) in batch {
            insert(&conn, change, event, audit)?;
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
    }
    Ok(began.elapsed())
}

fn insert(
    conn: &Connection,
    change: &ChangeRow,
    event: &(i64, String, String, String),
    audit: &AuditRow,
) -> Result<(), BenchError> {
    conn.prepare_cached(
        "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![change.0, change.1, change.2, change.3, change.4, change.5, change.6])?;
    conn.prepare_cached(
        "INSERT INTO audit (seq, at, change_id, event, to_state, actor, details, prev_hash, hash)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?
    .execute(params![audit.0, audit.1, audit.2, audit.3, audit.4, audit.5, audit.6, audit.7, audit.8])?;
    conn.prepare_cached("INSERT INTO events (seq, kind, change_id, data) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![event.0, event.1, event.2, event.3])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[actix::test]
    async fn it_measures_both_sides() {
        let dir = tempfile::tempdir().unwrap();
        let rates = proposals(dir.path(), 16, 64, 2).await.unwrap();
        assert!(rates.ratio() > 0.0 && rates.median <= rates.slowest);
    }

    /// `cargo test --release -p countersign-review bench -- --ignored --nocapture`
    #[actix::test]
    #[ignore = "a measurement"]
    async fn measure() {
        for callers in [64, 256, 1024] {
            let dir = tempfile::tempdir_in(".").unwrap();
            let rates = proposals(dir.path(), callers, 10_000, 9).await.unwrap();
            println!("{rates:.0?} ratio {:.2}", rates.ratio());
        }
    }
}
