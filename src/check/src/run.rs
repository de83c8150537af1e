//! Runs the checks, each with its own time limit.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, future::LocalBoxFuture, stream};
use serde_json::{Value, json};

use crate::{
    LEGACY_REVISIONS, MODERN_REVISION, Options, Target,
    catalog::{self, Check, NotPassed, Outcome},
    probe::{Probe, ServerInfo, Transcript},
    report::{CheckResult, Report, Status, spec_page},
    wire::ProbeError,
};

/// A check may take this many answer timeouts, plus [`CHECK_OVERHEAD`].
const MAX_SLOW_ANSWERS: u32 = 6;
/// The part of a check's time limit that does not depend on the limit for one answer.
const CHECK_OVERHEAD: Duration = Duration::from_secs(5);

/// The number of checks of a command that run in parallel, each with its own child, which may take a second to start.
/// Checks of a shared server run one at a time, because a check that ends the server would make other checks fail.
const MAX_PARALLEL_CHECKS: usize = 4;

/// A step of a run.
pub enum Progress<'a> {
    /// The server answered, and this number of checks applies to it.
    Started {
        server: &'a str,
        revision: &'a str,
        checks: usize,
    },
    Finished(&'a CheckResult),
}

/// Checks a server. Boxed, so that the code of the checks is not compiled again in the crate that awaits them.
///
/// # Errors
/// The server cannot be reached, or does not support the requested revision.
pub fn check<'a>(
    target: &'a Target,
    options: &'a Options,
    progress: &'a mut dyn FnMut(Progress<'_>),
) -> LocalBoxFuture<'a, Result<Report, ProbeError>> {
    Box::pin(run_checks(target, options, progress))
}

async fn run_checks(
    target: &Target,
    options: &Options,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, ProbeError> {
    let started_at = Instant::now();
    let deadline = tokio::time::Instant::now() + options.run_limit;
    let probe = Probe::new(target, options);
    let label = probe.redactor.redact(&target.label()).into_owned();
    let report = |revision: &str, server: String, checks, stopped: Option<String>| Report {
        target: label.clone(),
        transport: target.transport(),
        revision: revision.to_owned(),
        server,
        milliseconds: to_milliseconds(started_at.elapsed()),
        stopped,
        checks,
    };
    let time_limit_reason = || format!("it took longer than {} s", options.run_limit.as_secs());
    let discovered = tokio::time::timeout_at(deadline, discover_server(&probe)).await;
    let probe = match discovered.unwrap_or_else(|_| Err(ProbeError::RunEnded(time_limit_reason()))) {
        Ok(probe) => probe,
        // The server answers with wrong ids, so no other check can match its answers.
        Err(error @ ProbeError::WrongId { .. }) => {
            let probe = probe.with_revision(options.revision.as_deref().unwrap_or(LEGACY_REVISIONS[0]));
            let result = wrong_id_result(&probe, error);
            progress(Progress::Started { server: "", revision: &probe.revision, checks: 1 });
            progress(Progress::Finished(&result));
            return Ok(report(&probe.revision, String::new(), vec![result], None));
        }
        Err(error) => return Err(error.redact(&probe.redactor)),
    };
    let server = server_name(&probe);
    let selected: Vec<&Check> = catalog::checks()
        .filter(|check| options.groups.is_empty() || options.groups.contains(&check.group))
        .filter(|check| check.applies_to(&probe))
        .collect();
    progress(Progress::Started { server: &server, revision: &probe.revision, checks: selected.len() });
    let parallel_checks = match target {
        Target::Command { .. } => MAX_PARALLEL_CHECKS,
        Target::Http { .. } | Target::WebSocket { .. } => 1,
    };
    let mut running =
        stream::iter(&selected).map(|check| run_check(probe.with_new_transcript(), check)).buffered(parallel_checks);
    let mut results = Vec::new();
    let mut stopped = None;
    while stopped.is_none() {
        match tokio::time::timeout_at(deadline, running.next()).await {
            Ok(Some(result)) => {
                progress(Progress::Finished(&result));
                results.push(result);
                stopped = probe.budget.exceeded_reason();
            }
            Ok(None) => break,
            Err(_) => stopped = Some(time_limit_reason()),
        }
    }
    drop(running);
    for check in selected.iter().skip(results.len()) {
        let reason = stopped.as_deref().unwrap_or_default();
        let outcome = Err(NotPassed::Skipped(format!("the run was ended: {reason}")));
        let result = check_result(&probe, check, outcome, Transcript::default(), Duration::ZERO);
        progress(Progress::Finished(&result));
        results.push(result);
    }
    Ok(report(&probe.revision, server, results, stopped))
}

/// Returns the name and version that the server reports, without secrets.
fn server_name(probe: &Probe) -> String {
    let result = &probe.server_info.handshake_result;
    let info =
        if probe.is_modern() { &result["_meta"]["io.modelcontextprotocol/serverInfo"] } else { &result["serverInfo"] };
    let text = |member: &str| {
        let text = info[member].as_str().unwrap_or_default();
        probe.redactor.redact(text).chars().take(100).collect::<String>()
    };
    format!("{} {}", text("name"), text("version")).trim().to_owned()
}

/// Creates the result for a server whose responses have other ids than the requests.
fn wrong_id_result(probe: &Probe, error: ProbeError) -> CheckResult {
    let check = catalog::wrong_id_check();
    let reason = error.to_string();
    let received_messages = match error {
        ProbeError::WrongId { message, .. } => vec![message],
        _ => Vec::new(),
    };
    let transcript = Transcript { received_messages, ..Transcript::default() };
    check_result(probe, check, Err(NotPassed::Failed(reason)), transcript, Duration::ZERO)
}

fn to_milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

async fn run_check(probe: Probe, check: &'static Check) -> CheckResult {
    let started_at = Instant::now();
    let limit = probe.options.timeout * MAX_SLOW_ANSWERS + CHECK_OVERHEAD;
    let outcome = match tokio::time::timeout(limit, (check.run)(probe.clone())).await {
        Ok(outcome) => outcome,
        Err(_) => Err(NotPassed::Failed(format!("it did not complete within {limit:?}"))),
    };
    check_result(&probe, check, outcome, probe.take_transcript(), started_at.elapsed())
}

/// Creates the result of a check, with secrets masked.
fn check_result(probe: &Probe, check: &Check, outcome: Outcome, transcript: Transcript, time: Duration) -> CheckResult {
    let (status, reason) = match outcome {
        Ok(()) => (Status::Passed, String::new()),
        Err(NotPassed::Failed(reason)) => (Status::Failed, reason),
        Err(NotPassed::Skipped(reason)) => (Status::Skipped, reason),
    };
    let shown_messages = if status == Status::Passed { Transcript::default() } else { transcript };
    CheckResult {
        id: check.id,
        group: check.group.as_str(),
        level: check.level,
        status,
        requirement: check.requirement,
        spec: spec_page(check, &probe.revision),
        reason: probe.redactor.redact(&reason).into_owned(),
        sent_messages: shown_messages.sent_messages,
        received_messages: shown_messages.received_messages,
        advice: (status == Status::Failed).then_some(check.advice),
        milliseconds: to_milliseconds(time),
    }
}

/// Finds out which revision the server supports and what it offers.
async fn discover_server(probe: &Probe) -> Result<Probe, ProbeError> {
    let requested_revision = probe.options.revision.as_deref();
    let mut last_error = None;
    for revision in std::iter::once(MODERN_REVISION).chain(LEGACY_REVISIONS) {
        if requested_revision.is_some_and(|requested| requested != revision) {
            continue;
        }
        let mut probe = probe.with_revision(revision);
        match read_handshake_result(&probe).await {
            Ok(result) => {
                // A handshake server may answer with another revision than the requested one.
                if let Some(negotiated) = result["protocolVersion"].as_str()
                    && negotiated != revision
                    && requested_revision.is_none()
                    && LEGACY_REVISIONS.contains(&negotiated)
                {
                    probe = probe.with_revision(negotiated);
                }
                probe.server_info = Arc::new(read_server_info(&probe, result).await);
                probe.take_transcript();
                return Ok(probe);
            }
            Err(error @ (ProbeError::Unreachable(_) | ProbeError::UpgradeRefused(_) | ProbeError::RunEnded(_))) => {
                return Err(error);
            }
            // A server that does not answer the handshake supports no handshake revision, so one attempt is enough.
            Err(
                error @ (ProbeError::Timeout(_)
                | ProbeError::NoAnswer
                | ProbeError::NotRead(_)
                | ProbeError::WrongId { .. }),
            ) if revision != MODERN_REVISION => return Err(error),
            Err(error) => last_error = Some(error),
        }
    }
    Err(last_error.unwrap_or_else(|| ProbeError::UnknownRevision(requested_revision.unwrap_or_default().to_owned())))
}

/// Returns the result of `initialize` or `server/discover`.
async fn read_handshake_result(probe: &Probe) -> Result<Value, ProbeError> {
    let mut conn = probe.connect_without_handshake().await?;
    if !probe.is_modern() {
        return conn.initialize(&probe.revision).await;
    }
    let response = conn.ask("server/discover", json!({})).await?;
    let result = &response["result"];
    match result["supportedVersions"].as_array() {
        Some(versions) if versions.iter().any(|version| version == MODERN_REVISION) => Ok(result.clone()),
        _ => Err(ProbeError::InvalidData(format!("server/discover does not name the revision {MODERN_REVISION}"))),
    }
}

/// Reads the server's lists. A list that cannot be read is empty in the result; a check reports the failure.
async fn read_server_info(probe: &Probe, handshake_result: Value) -> ServerInfo {
    let mut server = ServerInfo { handshake_result, ..ServerInfo::default() };
    let Ok(mut conn) = probe.connect_ready().await else { return server };
    if server.offers("tools") {
        server.tools = conn.read_list("tools/list", "tools").await.unwrap_or_default();
    }
    if server.offers("resources") {
        server.resources = conn.read_list("resources/list", "resources").await.unwrap_or_default();
        server.templates = conn.read_list("resources/templates/list", "resourceTemplates").await.unwrap_or_default();
    }
    if server.offers("prompts") {
        server.prompts = conn.read_list("prompts/list", "prompts").await.unwrap_or_default();
    }
    server
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn stream_without_an_answer_is_not_a_timeout() {
        const RESPONSE: &str = "HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ncontent-length: 25\r\n\r\n\
                                data: {\"method\":\"note\"}\n\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap()).parse().unwrap();
        let server = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                assert!(socket.read(&mut [0; 4096]).await.unwrap() > 0);
                socket.write_all(RESPONSE.as_bytes()).await.unwrap();
            }
        });
        let target = Target::Http { url, headers: Vec::new() };
        let discovered = discover_server(&Probe::new(&target, &Options::default())).await;
        assert_eq!(discovered.map(drop), Err(ProbeError::NoAnswer));
        server.abort();
    }
}
