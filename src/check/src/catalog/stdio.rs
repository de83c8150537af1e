//! Checks of the stdio transport.

use std::time::Duration;

use countersign_child::guard::GuardReport;
use serde_json::{Value, json};

use super::{Check, Outcome, Verdict, check, compact_json};
use crate::{
    probe::{Conn, Probe, QUIET_PERIOD, ids_match},
    wire::{ProbeError, Stdio, Wire},
};

const PAGE: (&str, &str) = ("basic/transports#stdio", "basic/transports/stdio");
const SHUTDOWN: (&str, &str) = ("basic/lifecycle#shutdown", "basic/transports/stdio");

/// How long a server may take to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

pub(super) const CHECKS: &[Check] = &[
    check!(
        "stdio/stdout",
        Stdio,
        Must,
        Both,
        Stdio,
        PAGE,
        "Nothing but messages is written to stdout, each on one line.",
        "Write logs to stderr, and messages without line breaks in them.",
        stdout
    ),
    check!(
        "stdio/many-in-one-write",
        Stdio,
        Must,
        Both,
        Stdio,
        PAGE,
        "Messages that arrive in one piece are all answered.",
        "Read lines, and not what one read gives.",
        many_in_one
    ),
    check!(
        "stdio/one-in-many-writes",
        Stdio,
        Must,
        Both,
        Stdio,
        PAGE,
        "A message that arrives in pieces is answered.",
        "Read until the line is at its end.",
        one_in_many
    ),
    check!(
        "stdio/64-kib",
        Stdio,
        Must,
        Both,
        Stdio,
        PAGE,
        "A message of more than 64 KiB is answered.",
        "Read lines of any sensible length: a pipe holds 64 KiB, a message may be longer.",
        large
    ),
    check!(
        "stdio/4-mib",
        Stdio,
        Should,
        Both,
        Stdio,
        PAGE,
        "A message of 4 MiB is answered or refused.",
        "Read lines in pieces, and bound them with an error instead of hanging.",
        huge
    ),
    check!(
        "stdio/empty-line",
        Stdio,
        Should,
        Both,
        Stdio,
        PAGE,
        "An empty line hurts nobody.",
        "Skip empty lines.",
        empty_line
    ),
    check!(
        "stdio/crlf",
        Stdio,
        Should,
        Both,
        Stdio,
        PAGE,
        "A line that ends with CR and LF is a message too.",
        "Take white space at the end of a line away.",
        crlf
    ),
    check!(
        "stdio/end",
        Stdio,
        Must,
        Both,
        Stdio,
        SHUTDOWN,
        "The server ends within 5 s when its stdin is closed.",
        "End when stdin ends: clients wait for that before they kill.",
        end
    ),
    check!(
        "stdio/exit-code",
        Stdio,
        Should,
        Both,
        Stdio,
        SHUTDOWN,
        "It ends with the code 0 then.",
        "The end of stdin is no error: exit with 0.",
        exit_code
    ),
];

fn child_process(conn: &mut Conn) -> Result<&mut Stdio, ProbeError> {
    match &mut conn.wire {
        Wire::Stdio(wire) => Ok(wire),
        _ => Err(ProbeError::InvalidData("this is no child".to_owned())),
    }
}

fn probe_request(probe: &Probe, id: i64, more: &str) -> Value {
    let (method, params) = match (probe.is_modern(), more) {
        (true, more) => ("server/discover", json!({ "check": more })),
        (false, "") => ("ping", Value::Null),
        (false, more) => ("ping", json!({ "check": more })),
    };
    probe.message(Some(&id.into()), method, params)
}

async fn stdout(probe: Probe) -> Outcome {
    let mut conn = probe.connect().await?;
    if !probe.is_modern() {
        // The raw answer is checked, without searching for it among other lines.
        let params = json!({ "protocolVersion": &*probe.revision, "capabilities": {}, "clientInfo": crate::probe::client_info() });
        conn.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string()).await?;
    }
    conn.send(&probe_request(&probe, 2, "").to_string()).await?;
    conn.send(&probe.message(Some(&3.into()), "check/no-such-method", json!({})).to_string()).await?;
    let mut wait = probe.limit();
    let mut came = 0;
    while let Some(received) = conn.receive(wait).await? {
        let message = received.json().unwrap_or_default();
        if message["jsonrpc"] != "2.0" && !message.is_array() {
            return Ok(Verdict::Fails(format!("it writes {}", compact_json(&received.text.into()))));
        }
        came += 1;
        if came >= if probe.is_modern() { 2 } else { 3 } {
            wait = QUIET_PERIOD;
        }
    }
    Ok(Verdict::Holds)
}

async fn check_ids_answered(conn: &mut Conn, probe: &Probe, expected: &[i64]) -> Outcome {
    let mut left: Vec<i64> = expected.to_vec();
    while !left.is_empty() {
        let Some(received) = conn.next_answer(probe.limit()).await? else {
            return Ok(Verdict::Fails(format!("{} of {} stay without an answer", left.len(), expected.len())));
        };
        let message = received.json().unwrap_or_default();
        left.retain(|expected| !ids_match(&message["id"], &(*expected).into()));
    }
    Ok(Verdict::Holds)
}

async fn many_in_one(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let expected: Vec<i64> = (200..220).collect();
    let lines: Vec<String> = expected.iter().map(|id| format!("{}\n", probe_request(&probe, *id, ""))).collect();
    probe.note_sent(&lines.concat());
    child_process(&mut conn)?.write_bytes(lines.concat().as_bytes()).await?;
    check_ids_answered(&mut conn, &probe, &expected).await
}

async fn one_in_many(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let line = format!("{}\n", probe_request(&probe, 300, "in pieces: ä€😀"));
    probe.note_sent(&line);
    for piece in line.as_bytes().chunks(7) {
        child_process(&mut conn)?.write_bytes(piece).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    check_ids_answered(&mut conn, &probe, &[300]).await
}

async fn check_size(probe: &Probe, bytes: usize) -> Outcome {
    let mut conn = probe.open().await?;
    conn.send(&probe_request(probe, 400, &"x".repeat(bytes)).to_string()).await?;
    match conn.response(&400.into()).await {
        Ok(_) => Ok(Verdict::Holds),
        Err(trouble) => Ok(Verdict::Fails(trouble.to_string())),
    }
}

async fn large(probe: Probe) -> Outcome {
    check_size(&probe, 70 << 10).await
}

async fn huge(probe: Probe) -> Outcome {
    check_size(&probe, 4 << 20).await
}

async fn empty_line(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    child_process(&mut conn)?.write_bytes(b"\n\n").await?;
    while conn.receive(QUIET_PERIOD).await?.is_some() {}
    conn.ensure_alive().await?;
    Ok(Verdict::Holds)
}

async fn crlf(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let line = format!("{}\r\n", probe_request(&probe, 500, ""));
    child_process(&mut conn)?.write_bytes(line.as_bytes()).await?;
    check_ids_answered(&mut conn, &probe, &[500]).await
}

async fn end(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let child = child_process(&mut conn)?;
    child.close_stdin();
    let ended = child.wait_for_exit(EXIT_LIMIT).await;
    Ok(Verdict::holds_if(ended.is_some(), || format!("it runs on; the end of its stderr: {}", child.stderr_tail())))
}

async fn exit_code(probe: Probe) -> Outcome {
    let mut conn = probe.open().await?;
    let child = child_process(&mut conn)?;
    child.close_stdin();
    match child.wait_for_exit(EXIT_LIMIT).await {
        None => Ok(Verdict::Skipped("it does not end".to_owned())),
        Some(GuardReport::Exited { status: 0 }) => Ok(Verdict::Holds),
        Some(GuardReport::Exited { status }) => {
            Ok(Verdict::Fails(format!("exit status {status}; the end of its stderr: {}", child.stderr_tail())))
        }
        Some(report) => Ok(Verdict::Fails(format!("{report:?}; the end of its stderr: {}", child.stderr_tail()))),
    }
}
