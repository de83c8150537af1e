//! Checks of the stdio transport.

use std::time::Duration;

use countersign_child::guard::GuardReport;
use serde_json::{Value, json};

use super::{Check, Group, Outcome, SpecPages, compact_json, ensure, fail, skip};
use crate::{
    probe::{Probe, ProbeConnection, QUIET_PERIOD, ids_match, initialize_request},
    wire::{Stdio, Wire},
};

const PAGE: SpecPages = ("basic/transports#stdio", "basic/transports/stdio");
const SHUTDOWN: SpecPages = ("basic/lifecycle#shutdown", "basic/transports/stdio");

/// The time limit for a server to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

pub(super) const CHECKS: &[Check] = &[
    Check::new("stdio/stdout", Group::Stdio, |probe| Box::pin(check_stdout(probe)))
        .must("Nothing but messages is written to stdout, each on one line.")
        .advice("Write logs to stderr, and each message on a single line.")
        .spec(PAGE),
    Check::new("stdio/many-in-one-write", Group::Stdio, |probe| Box::pin(check_many_in_one_write(probe)))
        .must("Messages that arrive in one piece are all answered.")
        .advice("Split the input at line breaks: one read may return several messages.")
        .spec(PAGE),
    Check::new("stdio/one-in-many-writes", Group::Stdio, |probe| Box::pin(check_one_in_many_writes(probe)))
        .must("A message that arrives in pieces is answered.")
        .advice("Read until the end of the line: one read may return a part of a message.")
        .spec(PAGE),
    Check::new("stdio/64-kib", Group::Stdio, |probe| Box::pin(check_size(probe, 70 << 10)))
        .must("A message of more than 64 KiB is answered.")
        .advice("Read lines of any reasonable length: a message may be longer than the 64 KiB that a pipe holds.")
        .spec(PAGE),
    Check::new("stdio/4-mib", Group::Stdio, |probe| Box::pin(check_size(probe, 4 << 20)))
        .should("A message of 4 MiB is answered or refused.")
        .advice("Read long lines in pieces, and answer with an error above your limit instead of hanging.")
        .spec(PAGE),
    Check::new("stdio/empty-line", Group::Stdio, |probe| Box::pin(check_empty_line(probe)))
        .should("An empty line is ignored.")
        .advice("Skip empty lines.")
        .spec(PAGE),
    Check::new("stdio/crlf", Group::Stdio, |probe| Box::pin(check_crlf(probe)))
        .should("A line that ends with CR and LF is accepted.")
        .advice("Strip white space at the end of a line.")
        .spec(PAGE),
    Check::new("stdio/end", Group::Stdio, |probe| Box::pin(check_end(probe)))
        .must("The server exits within 5 s after its stdin is closed.")
        .advice("Exit when stdin ends: clients wait for that before they kill the process.")
        .spec(SHUTDOWN),
    Check::new("stdio/exit-code", Group::Stdio, |probe| Box::pin(check_exit_code(probe)))
        .should("The server exits with code 0 after its stdin is closed.")
        .advice("The end of stdin is not an error: exit with 0.")
        .spec(SHUTDOWN),
];

fn child_process(conn: &mut ProbeConnection) -> Outcome<&mut Stdio> {
    match &mut conn.wire {
        Wire::Stdio(wire) => Ok(wire),
        _ => fail("the server is not a child process".to_owned()),
    }
}

/// Builds a harmless request with an unknown parameter of this text.
fn request_with_text(probe: &Probe, id: i64, text: &str) -> Value {
    probe.message(Some(&id.into()), probe.harmless_method(), json!({ "check": text }))
}

async fn check_stdout(probe: Probe) -> Outcome {
    let mut conn = probe.connect_without_handshake().await?;
    if !probe.is_modern() {
        // The answer is read below with all other lines, because each line is checked.
        conn.send(&initialize_request(&1.into(), &probe.revision).to_string()).await?;
    }
    conn.send(&probe.harmless_request(2).to_string()).await?;
    conn.send(&probe.message(Some(&3.into()), "check/no-such-method", json!({})).to_string()).await?;
    let mut wait = probe.options.timeout;
    let mut received_count = 0;
    while let Some(incoming) = conn.receive(wait).await? {
        let message = incoming.json().unwrap_or_default();
        if message["jsonrpc"] != "2.0" && !message.is_array() {
            return fail(format!("it writes {}", compact_json(&incoming.text.into())));
        }
        received_count += 1;
        if received_count >= if probe.is_modern() { 2 } else { 3 } {
            wait = QUIET_PERIOD;
        }
    }
    Ok(())
}

/// Fails unless each of the ids is answered.
async fn ensure_ids_answered(conn: &mut ProbeConnection, probe: &Probe, expected: &[i64]) -> Outcome {
    let mut unanswered: Vec<i64> = expected.to_vec();
    while !unanswered.is_empty() {
        let Some(reply) = conn.next_response(probe.options.timeout).await? else {
            return fail(format!("{} of {} requests get no answer", unanswered.len(), expected.len()));
        };
        let message = reply.json().unwrap_or_default();
        unanswered.retain(|expected| !ids_match(&message["id"], &(*expected).into()));
    }
    Ok(())
}

async fn check_many_in_one_write(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let expected: Vec<i64> = (200..220).collect();
    let lines: String = expected.iter().map(|id| format!("{}\n", probe.harmless_request(*id))).collect();
    probe.record_sent(&lines);
    child_process(&mut conn)?.write_bytes(lines.as_bytes()).await?;
    ensure_ids_answered(&mut conn, &probe, &expected).await
}

async fn check_one_in_many_writes(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let line = format!("{}\n", request_with_text(&probe, 300, "in pieces: ä€😀"));
    probe.record_sent(&line);
    for piece in line.as_bytes().chunks(7) {
        child_process(&mut conn)?.write_bytes(piece).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    ensure_ids_answered(&mut conn, &probe, &[300]).await
}

/// Sends a request with a text of this size, and fails unless it is answered.
async fn check_size(probe: Probe, bytes: usize) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    conn.send(&request_with_text(&probe, 400, &"x".repeat(bytes)).to_string()).await?;
    conn.receive_response(&400.into()).await?;
    Ok(())
}

async fn check_empty_line(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    probe.record_sent("\n\n");
    child_process(&mut conn)?.write_bytes(b"\n\n").await?;
    while conn.receive(QUIET_PERIOD).await?.is_some() {}
    Ok(conn.ensure_answers_with_result().await?)
}

async fn check_crlf(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let line = format!("{}\r\n", probe.harmless_request(500));
    probe.record_sent(&line);
    child_process(&mut conn)?.write_bytes(line.as_bytes()).await?;
    ensure_ids_answered(&mut conn, &probe, &[500]).await
}

async fn check_end(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let child = child_process(&mut conn)?;
    child.close_stdin();
    let exit_report = child.wait_for_exit(EXIT_LIMIT).await;
    ensure(exit_report.is_some(), || format!("it still runs; the end of its stderr: {}", child.stderr_tail()))
}

async fn check_exit_code(probe: Probe) -> Outcome {
    let mut conn = probe.connect_ready().await?;
    let child = child_process(&mut conn)?;
    child.close_stdin();
    let outcome = match child.wait_for_exit(EXIT_LIMIT).await {
        Some(GuardReport::Exited { status: 0 }) => return Ok(()),
        Some(GuardReport::Exited { status }) => format!("exit status {status}"),
        Some(GuardReport::Killed { signal }) => format!("ended by signal {signal}"),
        None | Some(GuardReport::Started { .. } | GuardReport::Failed { .. }) => return skip("it does not exit"),
    };
    fail(format!("{outcome}; the end of its stderr: {}", child.stderr_tail()))
}
