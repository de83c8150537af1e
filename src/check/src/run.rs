//! Runs the checks, each with a time of its own.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::{
    LEGACY, MODERN, Options, Target,
    catalog::{self, Check, Verdict},
    probe::{Facts, Probe},
    report::{Checked, Report, Status, page},
    wire::Trouble,
};

/// What one check may take, beyond the time for one answer.
const STRETCH: u32 = 6;

/// Checks of a command that run at the same time: each starts a child of its own, which may take a second to be there. One that
/// ends a server that is shared would else be blamed on the others.
const AT_ONCE: usize = 4;

/// Hears of each check as it ends.
pub trait Progress: Send {
    fn begun(&mut self, server: &str, revision: &str, checks: usize);
    fn ended(&mut self, checked: &Checked);
}

/// Checks a server.
///
/// # Errors
/// A server that cannot be reached, or that speaks no revision that was asked for.
pub async fn check(target: &Target, options: &Options, progress: &mut dyn Progress) -> Result<Report, Trouble> {
    let began = Instant::now();
    let probe = opened(target, options).await?;
    let server = &probe.facts.opening;
    let info =
        if probe.is_modern() { &server["_meta"]["io.modelcontextprotocol/serverInfo"] } else { &server["serverInfo"] };
    let text = |name: &str| info[name].as_str().unwrap_or_default().chars().take(100).collect::<String>();
    let server = format!("{} {}", text("name"), text("version")).trim().to_owned();
    let chosen: Vec<&Check> = catalog::all()
        .filter(|check| check.concerns(&probe) && (options.only.is_empty() || options.only.contains(&check.group)))
        .collect();
    progress.begun(&server, &probe.revision, chosen.len());
    let at_once = match target {
        Target::Command { .. } => AT_ONCE,
        Target::Http { .. } | Target::WebSocket { .. } => 1,
    };
    let mut running = stream::iter(chosen).map(|check| one(probe.anew(), check)).buffered(at_once);
    let mut checks = Vec::new();
    while let Some(checked) = running.next().await {
        progress.ended(&checked);
        checks.push(checked);
    }
    Ok(Report {
        target: target.label(),
        transport: target.transport(),
        revision: probe.revision.to_string(),
        server,
        milliseconds: milliseconds(began.elapsed()),
        checks,
    })
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn one(probe: Probe, check: &'static Check) -> Checked {
    let began = Instant::now();
    let limit = probe.limit() * STRETCH + Duration::from_secs(5);
    let verdict = match tokio::time::timeout(limit, (check.run)(probe.clone())).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(trouble)) => Verdict::Fails(trouble.to_string()),
        Err(_) => Verdict::Fails(format!("it was not over within {limit:?}")),
    };
    let said = probe.take_transcript();
    let (status, why) = match verdict {
        Verdict::Holds => (Status::Passed, String::new()),
        Verdict::Fails(why) => (Status::Failed, why),
        Verdict::Skipped(why) => (Status::Skipped, why),
    };
    let told = if status == Status::Passed { Default::default() } else { said };
    Checked {
        id: check.id,
        group: check.group.as_str(),
        level: check.level,
        status,
        says: check.says,
        spec: page(check, &probe.revision),
        why,
        sent: told.sent,
        received: told.received,
        advice: (status == Status::Failed).then_some(check.advice),
        milliseconds: milliseconds(began.elapsed()),
    }
}

/// Finds out what the server speaks, and what it has.
async fn opened(target: &Target, options: &Options) -> Result<Probe, Trouble> {
    let wanted = options.revision.as_deref();
    let mut refused = None;
    for revision in std::iter::once(MODERN).chain(LEGACY) {
        if wanted.is_some_and(|wanted| wanted != revision) {
            continue;
        }
        let mut probe = Probe::new(target, options, revision);
        match opening(&probe).await {
            Ok(opening) => {
                // A server of the handshake era may answer with another revision than it was asked for.
                if let Some(said) = opening["protocolVersion"].as_str()
                    && said != revision
                    && wanted.is_none()
                    && LEGACY.contains(&said)
                {
                    probe = Probe::new(target, options, said);
                }
                probe.facts = Arc::new(facts(&probe, opening).await);
                probe.take_transcript();
                return Ok(probe);
            }
            Err(trouble @ Trouble::Unreachable(_)) => return Err(trouble),
            // Whoever does not even answer the handshake has none of its revisions: one time-out is enough.
            Err(trouble @ Trouble::Silent(_)) if revision != MODERN => return Err(trouble),
            Err(trouble) => refused = Some(trouble),
        }
    }
    Err(refused.unwrap_or_else(|| Trouble::Garbled("there is no such revision".to_owned())))
}

async fn opening(probe: &Probe) -> Result<Value, Trouble> {
    let mut conn = probe.connect().await?;
    if !probe.is_modern() {
        return conn.initialize(&probe.revision).await;
    }
    let response = conn.ask("server/discover", json!({})).await?;
    let result = &response["result"];
    match result["supportedVersions"].as_array() {
        Some(versions) if versions.iter().any(|version| version == MODERN) => Ok(result.clone()),
        _ => Err(Trouble::Garbled("server/discover names no revision that is known here".to_owned())),
    }
}

/// What it lists. A list that fails is empty here; a check says why.
async fn facts(probe: &Probe, opening: Value) -> Facts {
    let mut facts = Facts { opening, ..Facts::default() };
    let Ok(mut conn) = probe.open().await else { return facts };
    if facts.offers("tools") {
        facts.tools = conn.list("tools/list", "tools").await.unwrap_or_default();
    }
    if facts.offers("resources") {
        facts.resources = conn.list("resources/list", "resources").await.unwrap_or_default();
        facts.templates = conn.list("resources/templates/list", "resourceTemplates").await.unwrap_or_default();
    }
    if facts.offers("prompts") {
        facts.prompts = conn.list("prompts/list", "prompts").await.unwrap_or_default();
    }
    facts
}
