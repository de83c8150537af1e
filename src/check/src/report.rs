//! What came out, for people, for programs and for CI.

use serde::Serialize;
use serde_json::{Value, json};

use crate::catalog::{Check, Level};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Passed,
    Failed,
    /// It does not concern this server, or could not be tried.
    Skipped,
}

/// One check and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub id: &'static str,
    pub group: &'static str,
    pub level: Level,
    pub status: Status,
    /// What has to be so.
    pub says: &'static str,
    /// Where the specification says it.
    pub spec: String,
    /// Why it failed or was skipped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub why: String,
    pub sent: Vec<String>,
    pub received: Vec<String>,
    /// How to mend it; nothing where nothing is broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<&'static str>,
    pub milliseconds: u64,
}

/// All of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub target: String,
    pub transport: &'static str,
    pub revision: String,
    /// `name version`, as the server says.
    pub server: String,
    pub milliseconds: u64,
    /// Why the run was ended before all checks were over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    pub checks: Vec<Checked>,
}

impl Report {
    #[must_use]
    pub fn count(&self, status: Status, level: Option<Level>) -> usize {
        let counted = |check: &&Checked| check.status == status && level.is_none_or(|level| check.level == level);
        self.checks.iter().filter(counted).count()
    }

    /// Whether everything was checked, and nothing failed that must hold.
    #[must_use]
    pub fn complies(&self) -> bool {
        self.stopped.is_none() && self.count(Status::Failed, Some(Level::Must)) == 0
    }

    /// One object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = json!(self);
        json["complies"] = self.complies().into();
        json
    }

    /// As CI systems read it. A failed *should* is no failure there either.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let seconds = |milliseconds: u64| milliseconds as f64 / 1000.0;
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        out.push_str(&format!(
            "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{:.3}\">\n",
            escaped(&format!("{} ({}, {})", self.target, self.transport, self.revision)),
            self.checks.len() + usize::from(self.stopped.is_some()),
            self.count(Status::Failed, Some(Level::Must)) + usize::from(self.stopped.is_some()),
            self.count(Status::Skipped, None) + self.count(Status::Failed, Some(Level::Should)),
            seconds(self.milliseconds),
        ));
        for check in &self.checks {
            out.push_str(&format!(
                "  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">",
                check.group,
                escaped(check.id),
                seconds(check.milliseconds)
            ));
            let said = format!(
                "{}\n{}\nspecification: {}\nsent: {}\nreceived: {}\n{}",
                check.says,
                check.why,
                check.spec,
                check.sent.join("\n"),
                check.received.join("\n"),
                check.advice.unwrap_or_default()
            );
            match (check.status, check.level) {
                (Status::Passed, _) => {}
                (Status::Failed, Level::Must) => {
                    out.push_str(&format!("<failure message=\"{}\">{}</failure>", escaped(&check.why), escaped(&said)));
                }
                (Status::Failed, Level::Should) => {
                    out.push_str(&format!("<skipped message=\"should: {}\"/>", escaped(&check.why)));
                }
                (Status::Skipped, _) => out.push_str(&format!("<skipped message=\"{}\"/>", escaped(&check.why))),
            }
            out.push_str("</testcase>\n");
        }
        if let Some(why) = &self.stopped {
            let why = escaped(&format!("the run was ended: {why}"));
            out.push_str(&format!(
                "  <testcase classname=\"run\" name=\"run\"><failure message=\"{why}\"/></testcase>\n"
            ));
        }
        out.push_str("</testsuite>\n");
        out
    }
}

/// What XML 1.0 can have in a text or an attribute.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The page of the specification that a check stands on.
pub(crate) fn page(check: &Check, revision: &str) -> String {
    let (legacy, modern) = check.spec;
    let page = if revision == crate::MODERN { modern } else { legacy };
    // The first revision has messages on a page of their own.
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
        let checked = Checked {
            id: "a/b",
            group: "messages",
            level,
            status,
            says: "It is so",
            spec: "2025-11-25/basic/index".into(),
            why: "<it> is \"not\"\u{1}".into(),
            sent: vec!["{}".into()],
            received: Vec::new(),
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
            checks: vec![checked],
        }
    }

    #[test]
    fn only_must_checks_fail_a_run() {
        assert!(!report(Status::Failed, Level::Must).complies());
        assert!(report(Status::Failed, Level::Should).complies());
        assert!(report(Status::Skipped, Level::Must).complies());
        assert_eq!(report(Status::Failed, Level::Should).to_json()["complies"], true);
        let stopped = Report { stopped: Some("too late".into()), ..report(Status::Passed, Level::Must) };
        assert!(!stopped.complies() && stopped.to_junit().contains("failures=\"1\""));
    }

    #[test]
    fn junit_escapes_server_text() {
        let xml = report(Status::Failed, Level::Must).to_junit();
        assert!(
            xml.contains("failures=\"1\"")
                && xml.contains("x &amp; y")
                && xml.contains("&lt;it&gt; is &quot;not&quot;")
        );
        assert!(!xml.contains('\u{1}'));
        assert!(report(Status::Failed, Level::Should).to_junit().contains("failures=\"0\""));
    }
}
