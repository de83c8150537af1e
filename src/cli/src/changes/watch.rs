//! `changes watch`: prints every event of the feed as it arrives. After a lost connection, reading resumes at the last
//! event, so that no change event is missed or shown twice.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    feed::{self, FeedUpdate},
    render,
};
use crate::{
    client::Client,
    exit::{Exit, Failure},
    moment::{Since, format_local_time},
    output::{Output, Style, format_tool, print_note},
};
use countersign_domain::changes::{ChangeState, Operation, Proposer, Verification};
use countersign_protocol::event_stream::Event;

/// Prints the events after `since`, including past ones; without it, those from now on.
pub async fn run(client: &Client, since: Option<Since>, out: &mut Output) -> Result<Exit, Failure> {
    // The feed can only be read from a number on, so events since a moment are searched from the beginning.
    let (last_seq, since_time) = match since {
        None => (None, None),
        Some(Since::Event(seq)) => (Some(seq), None),
        Some(Since::Moment(moment)) => (Some(0), Some(moment)),
    };
    let mut was_connected = false;
    let following = feed::follow(client, last_seq, async |update, last_seq: &mut Option<u64>| {
        match update {
            FeedUpdate::Connected if was_connected => print_note("Connected again."),
            FeedUpdate::Connected => {
                was_connected = true;
                if !client.json {
                    print_note("Watching. Ctrl-C ends it.");
                }
            }
            FeedUpdate::Event(event) => {
                handle_event(&event, last_seq, since_time, client.json, out)?;
            }
            FeedUpdate::Lost => print_note("The connection to the gateway was lost; trying again."),
        }
        Ok(())
    });
    tokio::select! {
        _ = tokio::signal::ctrl_c() => Ok(Exit::Ok),
        ended = following => ended.map(|()| Exit::Ok),
    }
}

/// The data of an event. All fields are optional, so that events of a newer gateway are still shown.
#[derive(Deserialize)]
struct EventData {
    #[serde(rename = "type")]
    kind: String,
    at: Option<Timestamp>,
    actor: Option<String>,
    comment: Option<String>,
    change: Option<EventChange>,
    session: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventChange {
    id: String,
    version: u64,
    operation: Operation,
    summary: String,
    provider: String,
    tool: String,
    proposer: Proposer,
    fault: Option<countersign_domain::changes::ChangeFault>,
    verification: Option<Verification>,
    state: Option<ChangeState>,
    approvals: Option<u32>,
    quorum: Option<u32>,
}

impl EventChange {
    /// Returns the number of approvals so far, if more than one is required.
    fn approval_progress(&self) -> Option<String> {
        let quorum = self.quorum.filter(|quorum| *quorum > 1 && self.state == Some(ChangeState::Pending))?;
        Some(format!("  {}/{quorum}", self.approvals.unwrap_or(0)))
    }
}

fn handle_event(
    event: &Event,
    last_seq: &mut Option<u64>,
    since_time: Option<Timestamp>,
    json: bool,
    out: &mut Output,
) -> Result<(), Failure> {
    let text = String::from_utf8_lossy(&event.data);
    let data: Value = text.parse().unwrap_or_default();
    let seq = data["seq"].as_u64();
    let data: Option<EventData> = serde_json::from_value(data).ok();
    if let (Some(seq), Some(last)) = (seq, *last_seq)
        && seq <= last
        && !matches!(event.name.as_str(), "hello" | "reset")
    {
        return Ok(());
    }
    let is_start = *last_seq == Some(0);
    // The greeting has the current position, so that a connection lost before the first event can resume. A reset may
    // have a lower number than the last event, after a restore from a backup.
    *last_seq = seq.or(*last_seq);
    if event.name == "hello" {
        return Ok(());
    }
    // A reset has no time. At the start of a search it only says that the oldest events are deleted.
    let at = data.as_ref().and_then(|data| data.at);
    if since_time.is_some_and(|since| at.map_or(is_start, |at| at < since)) {
        return Ok(());
    }
    if json {
        // The event is printed on exactly one line, whatever line breaks the stream had.
        out.write_json(&text.replace('\n', " "))?;
    } else if let Some(data) = data {
        print_event(&data, out)?;
    }
    out.finish()?;
    Ok(out.ensure_open()?)
}

fn print_event(data: &EventData, out: &mut Output) -> Result<(), Failure> {
    let time = data.at.map(|at| format_local_time(at, "%H:%M:%S")).unwrap_or_default();
    out.write_styled(Style::Dim, &time)?;
    let kind = data.kind.strip_prefix("change.").unwrap_or(&data.kind);
    out.write_text("  ")?;
    out.write_styled(event_style(kind), &format!("{kind:<16}"))?;
    if let Some(change) = &data.change {
        let (verb, rest) = render::split_summary(change.operation, &change.summary);
        out.write_text(&format!("{}  {verb} {rest}", change.id))?;
        let actor = data.actor.as_deref().unwrap_or(&change.proposer.principal);
        let origin = format!("  ({} v{}, by {actor})", format_tool(&change.provider, &change.tool), change.version);
        out.write_styled(Style::Dim, &origin)?;
        if let Some(progress) = change.approval_progress() {
            out.write_styled(Style::Cyan, &progress)?;
        }
        if let Some(fault) = &change.fault {
            out.write_styled(Style::Yellow, &format!("  {}: {}", fault.code, fault.message))?;
        }
        if let Some(verification) = change.verification.as_ref().filter(|_| kind == "verified") {
            let style = render::verification_style(verification.verified);
            out.write_styled(style, &format!("  {}", verification.describe()))?;
        }
    } else if let Some(session) = &data.session {
        let text = |key: &str| session[key].as_str().unwrap_or("?");
        let (id, client) = (text("id"), text("clientName"));
        out.write_text(&format!("{id}  {client} over {} as {}", text("transport"), text("principal")))?;
    }
    if let Some(comment) = data.comment.as_deref().filter(|c| !c.is_empty()) {
        out.write_text(&format!("  “{comment}”"))?;
    }
    Ok(out.write_line("")?)
}

fn event_style(kind: &str) -> Style {
    match kind {
        "created" | "refreshed" | "edited" => Style::Cyan,
        "approved" | "applied" | "voted" | "executing" | "settled" => Style::Green,
        "rejected" | "failed" | "outcome_unknown" => Style::Red,
        "stale" | "expired" | "withdrawn" | "unapproved" | "escalated" | "reminder" => Style::Yellow,
        _ => Style::Dim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, data: Value) -> Event {
        Event { name: kind.into(), data: data.to_string().into_bytes() }
    }

    fn created(seq: u64) -> Event {
        let change = serde_json::json!({
            "id": "chg_1", "version": 1, "state": "pending", "provider": "tracker", "tool": "create_issue",
            "toolTitle": "Create issue", "operation": "CREATE", "summary": "Create “\u{202e}x\u{1b}[2J”\nforged line",
            "target": {"entityType": "issue", "id": null, "label": "x", "lockKey": "k"},
            "proposer": {"principal": "local-agent", "transport": "http"},
        });
        let data = serde_json::json!({"type": "change.created", "seq": seq, "at": "2027-01-01T00:00:00Z",
            "actor": "local-agent", "comment": null, "change": change});
        event("change.created", data)
    }

    #[test]
    fn every_event_is_one_line_and_shown_once() {
        let mut out = Output::memory(false);
        let mut last_seq = None;
        handle_event(
            &event("hello", serde_json::json!({"type": "hello", "seq": 4})),
            &mut last_seq,
            None,
            false,
            &mut out,
        )
        .unwrap();
        assert_eq!(last_seq, Some(4));
        for seq in [5, 5, 4, 6] {
            handle_event(&created(seq), &mut last_seq, None, false, &mut out).unwrap();
        }
        let session = serde_json::json!({"type": "session.opened", "at": "2027-01-01T00:00:00Z",
            "session": {"id": "abcdefgh…", "clientName": "evil\n", "transport": "http", "principal": "p"}});
        handle_event(&event("session.opened", session), &mut last_seq, None, false, &mut out).unwrap();
        let text = out.contents();
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.contains(r"“\u{202e}x\u{1b}[2J”\nforged line"), "{text}");
        assert!(text.contains("  Create “\\u{202e}x"), "the verb is shown once: {text}");
        assert!(text.contains("(tracker / create_issue v1, by local-agent)"), "{text}");
        assert!(text.contains("abcdefgh…  evil\\n over http as p"), "{text}");
        assert_eq!(last_seq, Some(6));
    }

    #[test]
    fn watch_continues_after_a_reset_to_a_lower_number() {
        for since_time in [None, Some(Timestamp::UNIX_EPOCH)] {
            let (mut out, mut last_seq) = (Output::memory(false), Some(6));
            let reset = event("reset", serde_json::json!({"type": "reset", "seq": 3}));
            for event in [reset, created(4), created(4), created(5)] {
                handle_event(&event, &mut last_seq, since_time, false, &mut out).unwrap();
            }
            let text = out.contents();
            assert!(text.lines().count() == 3 && text.trim_start().starts_with("reset"), "{text}");
            assert_eq!(last_seq, Some(5));
        }
    }

    #[test]
    fn events_before_the_given_moment_are_left_out() {
        let shown = |moment: &str| {
            let mut out = Output::memory(false);
            let mut last_seq = Some(0);
            let reset = event("reset", serde_json::json!({"type": "reset", "seq": 2}));
            for event in [reset, created(5)] {
                handle_event(&event, &mut last_seq, Some(moment.parse().unwrap()), false, &mut out).unwrap();
            }
            assert_eq!(last_seq, Some(5));
            out.contents().lines().count()
        };
        assert_eq!(
            (shown("2026-12-31T23:59:59Z"), shown("2027-01-01T00:00:00Z"), shown("2027-01-01T00:00:01Z")),
            (1, 1, 0)
        );
    }

    #[test]
    fn event_line_shows_quorum_progress() {
        let line = |more: Value| {
            let Event { data, .. } = created(1);
            let mut data: Value = serde_json::from_slice(&data).unwrap();
            data["change"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let mut out = Output::memory(false);
            handle_event(&event("change.voted", data), &mut None, None, false, &mut out).unwrap();
            out.contents()
        };
        let two = |state| line(serde_json::json!({ "approvals": 1, "quorum": 2, "state": state }));
        assert!(two("pending").contains("  1/2"), "{}", two("pending"));
        assert!(!two("approved").contains("/2"));
        assert!(!line(serde_json::json!({ "approvals": 0, "quorum": 1 })).contains("0/1"));
    }

    #[test]
    fn json_event_is_printed_on_one_line() {
        let mut out = Output::memory(false);
        let mut last_seq = None;
        handle_event(&created(1), &mut last_seq, None, true, &mut out).unwrap();
        let text = out.contents();
        assert_eq!(text.lines().count(), 1);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["seq"], 1);
    }
}
