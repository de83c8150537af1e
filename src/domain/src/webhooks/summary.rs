//! Texts about events for people: a headline and details.

use serde_json::Value;

use super::template::{TemplateValues, single_line};
use crate::changes::machine::SYSTEM;

/// Returns a clause about the event, without the summary of its change.
pub fn event_clause(values: &TemplateValues<'_>) -> String {
    let (kind, actor, server) = (values.get("type"), values.get("actor"), values.get("server"));
    let text = |pointer| values.text(pointer);
    match kind.as_str() {
        "change.created" => format!("{actor} proposed this change"),
        "change.voted" => match approval_progress(values) {
            Some(progress) => format!("Approved by {actor} ({progress}), more approvals needed"),
            None => format!("Approved by {actor}, more approvals needed"),
        },
        "change.edited" => format!("Edited by {actor}, needs a decision"),
        "change.approved" => format!("Approved by {actor}"),
        "change.unapproved" if actor == SYSTEM => "An approval no longer counts, needs a decision".to_owned(),
        "change.unapproved" => format!("{actor} took back the approval"),
        "change.rejected" => format!("Rejected by {actor}"),
        // It may have been approved. The comment says which.
        "change.expired" => "Expired before it ran".to_owned(),
        "change.escalated" => match values.names("/change/terms/escalate/to").as_str() {
            "" => "Nobody has decided yet, so others may decide too".to_owned(),
            names => format!("Nobody has decided yet, so {names} may decide too"),
        },
        "change.reminder" => "Still waits for a decision".to_owned(),
        "change.withdrawn" => format!("Withdrawn by {actor}"),
        "change.stale" => "Stale, it can no longer run as it was shown".to_owned(),
        "change.refreshed" => "Previewed again, needs a decision".to_owned(),
        "change.executing" => "Running".to_owned(),
        "change.asked" => "Running, and asks its client for input".to_owned(),
        "change.answered" => "Running again, its question has ended".to_owned(),
        "change.applied" => "Applied".to_owned(),
        "change.failed" => "Failed".to_owned(),
        "change.outcome_unknown" => "Outcome unknown, a reviewer must settle it".to_owned(),
        "change.settled" => format!("Settled by {actor}"),
        "change.verified" => match text("/change/verification/verified").as_str() {
            "matches" => "Read back, as approved",
            "differs" => "Read back, differs from what was approved",
            _ => "Could not be read back",
        }
        .to_owned(),
        "rule.created" => format!("{actor} created a standing rule: {}", rule_clause(values)),
        "rule.revoked" => format!("{actor} revoked a standing rule: {}", rule_clause(values)),
        "rule.orphaned" => format!("The creator of a standing rule may no longer decide: {}", rule_clause(values)),
        "rule.expired" => format!("A standing rule has ended: {}", rule_clause(values)),
        "provider.up" => format!("The server {server} is up again"),
        "provider.down" => format!("The server {server} is down"),
        "provider.breaker_opened" => format!("Calls to the server {server} are paused, too many failed"),
        "provider.breaker_closed" => format!("Calls to the server {server} go through again"),
        "provider.tools_waiting" => format!(
            "Tools of the server {server} are not accepted yet: {} new, {} changed",
            text("/new"),
            text("/changed")
        ),
        "provider.changed" if text("/what") == "revoked" => {
            format!("{actor} revoked the acceptance of {} of the server {server}", tools_clause(values))
        }
        "provider.changed" => format!("{actor} accepted {} of the server {server}", tools_clause(values)),
        "config.applied" if text("/result") == "unchanged" => {
            "The configuration file is valid again, the configuration has not changed".to_owned()
        }
        "config.applied" => "The configuration has changed".to_owned(),
        "config.refused" => "A new configuration was refused, the old one stays in force".to_owned(),
        "config.waiting" => "Configuration change needs consent".to_owned(),
        "webhook.failing" => format!("The webhook {} is failing", text("/webhook")),
        "webhook.recovered" => format!("The webhook {} works again", text("/webhook")),
        "webhook.test" => "Test".to_owned(),
        _ => kind,
    }
}

/// Formats the number of approvals, as in `1/2`.
fn approval_progress(values: &TemplateValues<'_>) -> Option<String> {
    let (approvals, required) = (values.get("change.approvals"), values.get("change.quorum"));
    (!approvals.is_empty() && !required.is_empty()).then(|| format!("{approvals}/{required}"))
}

/// Returns the headline of an event.
pub fn headline(values: &TemplateValues<'_>) -> String {
    match values.get("change.summary") {
        summary if summary.is_empty() => event_clause(values),
        summary => format!("{}: {summary}", event_clause(values)),
    }
}

/// Returns further details on one line; may be empty.
pub fn details(values: &TemplateValues<'_>) -> String {
    let mut parts = Vec::new();
    let (kind, actor) = (values.get("type"), values.get("actor"));
    if kind.starts_with("change.") {
        let (server, tool) = (values.get("change.provider"), values.get("change.tool"));
        let short_name = tool.strip_prefix(server.as_str()).and_then(|rest| rest.strip_prefix("__")).unwrap_or(&tool);
        parts.push(format!("{server} / {short_name}"));
        let proposer = values.get("change.proposer");
        if proposer != actor {
            parts.push(format!("proposed by {proposer}"));
        }
    } else if !actor.is_empty() && kind.starts_with("config.") {
        parts.push(format!("by {actor}"));
    }
    if kind == "provider.tools_waiting" {
        parts.push(values.get("tools"));
    }
    // Only the first item of each list is shown; the dashboard shows all.
    let labelled = [
        ("comment", values.get("comment")),
        ("comment", values.text("/rule/comment")),
        ("until", values.text("/rule/expiresAt")),
        ("fault", values.get("change.fault")),
        ("error", if kind.starts_with("change.") { String::new() } else { values.get("error") }),
        ("loosens", values.text("/loosens/0/key")),
        ("problem", values.text("/problems/0/message")),
    ];
    parts.extend(
        labelled.into_iter().filter(|(_, text)| !text.is_empty()).map(|(label, text)| format!("{label}: {text}")),
    );
    parts.join(" · ")
}

fn rule_clause(values: &TemplateValues<'_>) -> String {
    let text = |pointer| values.text(pointer);
    let principal = Some(text("/rule/principal")).filter(|principal| !principal.is_empty());
    let arguments = if [text("/rule/argumentsHash"), text("/rule/matching/0/argument")].iter().all(String::is_empty) {
        "any arguments"
    } else {
        "certain arguments"
    };
    format!(
        "{} {} / {} with {arguments} by {}",
        text("/rule/verdict"),
        text("/rule/provider"),
        text("/rule/tool"),
        principal.as_deref().unwrap_or("everybody")
    )
}

fn tools_clause(values: &TemplateValues<'_>) -> String {
    match values.text("/count").parse() {
        Ok(1_u64) => format!("the tool {}", values.get("tools")),
        _ => format!("{} tools", values.text("/count")),
    }
}

/// Joins the names of a JSON array on one line.
pub fn join_names(value: &Value) -> String {
    let names = value.as_array().into_iter().flatten().filter_map(Value::as_str);
    single_line(&names.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::webhooks::event::event_types;

    fn headline_and_details(event: &Value) -> (String, String) {
        let values = TemplateValues::new(event, "l");
        (headline(&values), details(&values))
    }

    #[test]
    fn every_event_type_has_a_headline() {
        for kind in event_types() {
            let (headline, _) = headline_and_details(&json!({ "type": kind, "actor": "bob" }));
            assert!(!headline.contains(kind), "{headline}");
        }
    }

    #[test]
    fn expired_change_may_have_been_approved() {
        let change = json!({ "provider": "files", "tool": "files__write", "proposer": { "principal": "bot" } });
        let comment = "Approved, but not run by 2026-01-01T00:00:00Z";
        let event = json!({ "type": "change.expired", "actor": "system", "comment": comment, "change": change });
        let (headline, details) = headline_and_details(&event);
        assert_eq!(headline, "Expired before it ran");
        assert_eq!(details, format!("files / write · proposed by bot · comment: {comment}"));
    }

    #[test]
    fn non_change_events_have_headlines_and_details() {
        let rule = json!({ "verdict": "allow", "provider": "files", "tool": "write_file", "principal": null,
            "argumentsHash": null, "expiresAt": "2026-01-01T00:00:00Z" });
        for (event, expected) in [
            (
                json!({ "type": "rule.created", "actor": "bob", "rule": rule }),
                "bob created a standing rule: allow files / write_file with any arguments by everybody | until: 2026-01-01T00:00:00Z",
            ),
            (
                json!({ "type": "provider.down", "provider": "files", "error": "gone" }),
                "The server files is down | error: gone",
            ),
            (
                json!({ "type": "provider.tools_waiting", "provider": "files", "tools": ["a", "b"], "new": 1, "changed": 1 }),
                "Tools of the server files are not accepted yet: 1 new, 1 changed | a, b",
            ),
            (
                json!({ "type": "provider.changed", "provider": "files", "actor": "bob", "what": "revoked",
                    "tools": ["a"], "count": 1 }),
                "bob revoked the acceptance of the tool a of the server files | ",
            ),
            (
                json!({ "type": "config.refused", "problems": [{ "message": "no" }], "by": null }),
                "A new configuration was refused, the old one stays in force | problem: no",
            ),
            (
                json!({ "type": "config.applied", "result": "unchanged", "problems": [] }),
                "The configuration file is valid again, the configuration has not changed | ",
            ),
            (
                json!({ "type": "config.waiting", "loosens": [{ "key": "policy.default" }] }),
                "Configuration change needs consent | loosens: policy.default",
            ),
        ] {
            let (headline, details) = headline_and_details(&event);
            assert_eq!(format!("{headline} | {details}"), expected);
        }
    }
}
