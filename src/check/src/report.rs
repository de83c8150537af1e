//! The results of a run, for people, programs and CI.

use serde::Serialize;
use serde_json::{Value, json};

use crate::catalog::{Check, Level};

/// The status of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Passed,
    Failed,
    /// The check does not apply to this server, or could not be run.
    Skipped,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckResult {
    /// The group and the name of the check, as in `tools/list`.
    pub id: &'static str,
    /// The name of the group, as `--only` selects it.
    pub group: &'static str,
    /// The level of the requirement. Only a failed *must* fails the run.
    pub level: Level,
    pub status: Status,
    /// The requirement that is checked.
    #[serde(rename = "says")]
    pub requirement: &'static str,
    /// The page of the specification.
    pub spec: String,
    /// The reason why the check failed or was skipped; empty if it passed.
    #[serde(rename = "why", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The last messages that were sent, truncated; empty if the check passed.
    #[serde(rename = "sent")]
    pub sent_messages: Vec<String>,
    /// The last messages that were received, truncated; empty if the check passed.
    #[serde(rename = "received")]
    pub received_messages: Vec<String>,
    /// The advice for fixing a failure; `None` unless the check failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
    /// The duration of the check.
    pub milliseconds: u64,
}

/// The results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The command with its arguments, or the URL without user, password and query.
    pub target: String,
    /// `stdio`, `http` or `websocket`.
    pub transport: &'static str,
    /// The revision of the protocol that the checks used.
    pub revision: String,
    /// `name version`, as reported by the server.
    pub server: String,
    /// The duration of the run.
    pub milliseconds: u64,
    /// The reason why the run ended before all checks were complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// The results in the order in which the checks ran.
    pub checks: Vec<CheckResult>,
}

impl Report {
    /// Counts the checks with this status and, unless it is `None`, this level.
    pub fn count(&self, status: Status, level: Option<Level>) -> usize {
        let counted = |check: &&CheckResult| check.status == status && level.is_none_or(|level| check.level == level);
        self.checks.iter().filter(counted).count()
    }

    /// Returns `true` if the run was complete and no required check failed. Skipped checks count as passed.
    pub fn complies(&self) -> bool {
        self.stopped.is_none() && self.count(Status::Failed, Some(Level::Must)) == 0
    }

    /// Formats the report as a JSON object.
    pub fn to_json(&self) -> Value {
        let mut json = json!(self);
        json["complies"] = self.complies().into();
        json
    }

    /// Formats the report as JUnit XML for CI systems. A failed *should* check is not a failure there.
    pub fn to_junit(&self) -> String {
        let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        out.push_str(&format!(
            "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escape_xml(&format!("{} ({}, {})", self.target, self.transport, self.revision)),
            self.checks.len() + usize::from(self.stopped.is_some()),
            self.count(Status::Failed, Some(Level::Must)) + usize::from(self.stopped.is_some()),
            self.count(Status::Skipped, None) + self.count(Status::Failed, Some(Level::Should)),
            seconds(self.milliseconds),
        ));
        for check in &self.checks {
            out.push_str(&format!(
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">",
                check.group,
                escape_xml(check.id),
                seconds(check.milliseconds)
            ));
            let details = format!(
                "{}\n{}\nspecification: {}\nsent: {}\nreceived: {}\n{}",
                check.requirement,
                check.reason,
                check.spec,
                check.sent_messages.join("\n"),
                check.received_messages.join("\n"),
                check.advice.unwrap_or_default()
            );
            match (check.status, check.level) {
                (Status::Passed, _) => {}
                (Status::Failed, Level::Must) => {
                    out.push_str(&format!(
                        "<failure message=\"{}\">{}</failure>",
                        escape_xml(&check.reason),
                        escape_xml(&details)
                    ));
                }
                (Status::Failed, Level::Should) => {
                    out.push_str(&format!("<skipped message=\"should: {}\"/>", escape_xml(&check.reason)));
                }
                (Status::Skipped, _) => out.push_str(&format!("<skipped message=\"{}\"/>", escape_xml(&check.reason))),
            }
            out.push_str("</testcase>\n");
        }
        if let Some(reason) = &self.stopped {
            let reason = escape_xml(&format!("the run was ended: {reason}"));
            out.push_str(&format!(
                "  <testcase classname=\"run\" name=\"run\"><failure message=\"{reason}\"/></testcase>\n"
            ));
        }
        out.push_str("</testsuite>\n");
        out
    }
}

/// Escapes text for XML 1.0, in elements and attributes.
fn escape_xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\t' => out.push_str("&#9;"),
            '\n' => out.push_str("&#10;"),
            '\r' => out.push_str("&#13;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Returns the page of the specification for a check.
pub(crate) fn spec_page(check: &Check, revision: &str) -> String {
    let (legacy, modern) = check.spec;
    let page = if revision == crate::MODERN_REVISION { modern } else { legacy };
    // The first revision describes messages on a separate page.
    match page.strip_prefix("basic/index#").filter(|_| revision == "2024-11-05") {
        Some("messages") => format!("{revision}/basic/messages"),
        Some(anchor) => format!("{revision}/basic/messages#{anchor}"),
        None => format!("{revision}/{page}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(status: Status, level: Level) -> Report {
        let result = CheckResult {
            id: "a/b",
            group: "messages",
            level,
            status,
            requirement: "A response has an id.",
            spec: "2025-11-25/basic/index".into(),
            reason: "<it> is \"not\"\t\r\n\u{1}".into(),
            sent_messages: vec!["{}".into()],
            received_messages: Vec::new(),
            advice: None,
            milliseconds: 5,
        };
        Report {
            target: "x & y".into(),
            transport: "stdio",
            revision: "2025-11-25".into(),
            server: String::new(),
            milliseconds: 7,
            stopped: None,
            checks: vec![result],
        }
    }

    #[test]
    fn only_must_checks_fail_a_run() {
        assert!(!report(Status::Failed, Level::Must).complies());
        assert!(report(Status::Failed, Level::Should).complies());
        assert!(report(Status::Skipped, Level::Must).complies());
        assert_eq!(report(Status::Failed, Level::Should).to_json()["complies"], true);
        let stopped = Report { stopped: Some("too late".into()), ..report(Status::Passed, Level::Must) };
        assert!(!stopped.complies());
        assert!(stopped.to_junit().contains("failures=\"1\""));
    }

    #[test]
    fn junit_escapes_server_text() {
        let xml = report(Status::Failed, Level::Must).to_junit();
        for part in ["failures=\"1\"", "x &amp; y", "&lt;it&gt; is &quot;not&quot;&#9;&#13;&#10;\u{fffd}"] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains('\u{1}'));
        assert!(report(Status::Failed, Level::Should).to_junit().contains("failures=\"0\""));
    }
}
