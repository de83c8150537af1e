//! Exports the audit trail as JSON lines, and as CSV for spreadsheets.
//!
//! JSON lines contain all hashed data, so that the trail can be verified from them. In CSV, a cell that a spreadsheet
//! would treat as a formula is prefixed with an apostrophe, so CSV is only for reading.

use std::borrow::Cow;

use jiff::Timestamp;
use strum::{EnumString, IntoStaticStr};

use super::{ChangeState, audit::AuditEntry, digest::hex};

/// The file format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ExportFormat {
    Jsonl,
    Csv,
}

/// The time range of the exported entries.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeRange {
    /// Inclusive start.
    pub since: Option<Timestamp>,
    /// Exclusive end.
    pub until: Option<Timestamp>,
}

impl TimeRange {
    pub fn contains(&self, entry: &AuditEntry) -> bool {
        self.since.is_none_or(|since| entry.at >= since) && self.until.is_none_or(|until| entry.at < until)
    }
}

const COLUMNS: [&str; 10] = ["seq", "at", "changeId", "event", "from", "to", "actor", "details", "prevHash", "hash"];

impl ExportFormat {
    /// Parses the name of a format: `jsonl` or `csv`.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// Returns the file name extension.
    pub fn extension(self) -> &'static str {
        self.into()
    }

    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Jsonl => "application/jsonl",
            Self::Csv => "text/csv; charset=utf-8; header=present",
        }
    }

    /// Returns the text before the first entry.
    pub fn header(self) -> String {
        match self {
            Self::Jsonl => String::new(),
            Self::Csv => COLUMNS.join(",") + "\r\n",
        }
    }

    /// Appends an entry with its line break.
    pub fn write_entry(self, entry: &AuditEntry, out: &mut String) {
        match self {
            Self::Jsonl => {
                // Texts and numbers can always be serialized.
                out.push_str(&serde_json::to_string(entry).unwrap_or_default());
                out.push('\n');
            }
            Self::Csv => {
                let state = |state: Option<ChangeState>| state.map_or("", ChangeState::as_str);
                let cells = [
                    &entry.seq.to_string(),
                    &entry.at.to_string(),
                    entry.change_id.as_str(),
                    &entry.event,
                    state(entry.from),
                    state(entry.to),
                    &entry.actor,
                    entry.details.get(),
                    &hex(&entry.prev_hash),
                    &hex(&entry.hash),
                ];
                out.push_str(&cells.map(csv_cell).join(","));
                out.push_str("\r\n");
            }
        }
    }
}

/// Writes a cell as in RFC 4180, and disarms formulas.
fn csv_cell(text: &str) -> Cow<'_, str> {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    if !is_formula && !text.contains([',', '"', '\r', '\n', ';']) && text.trim() == text {
        return text.into();
    }
    let apostrophe = if is_formula { "'" } else { "" };
    format!("\"{apostrophe}{}\"", text.replace('"', "\"\"")).into()
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::changes::audit::GENESIS;

    fn entry(actor: &str) -> AuditEntry {
        AuditEntry {
            seq: 7,
            at: "2026-01-02T03:04:05Z".parse().unwrap(),
            change_id: String::new(),
            event: "approved".into(),
            from: Some(ChangeState::Pending),
            to: None,
            actor: actor.into(),
            details: RawValue::from_string(r#"{"comment":"a, \"b\"","n":1.10}"#.into()).unwrap(),
            prev_hash: GENESIS,
            hash: [1; 32],
        }
    }

    fn csv(actor: &str) -> String {
        let mut out = String::new();
        ExportFormat::Csv.write_entry(&entry(actor), &mut out);
        out
    }

    #[test]
    fn csv_cells_are_escaped() {
        for evil in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"] {
            assert!(csv(evil).contains(&format!(",\"'{evil}\",")), "{evil:?}");
        }
        assert!(csv("a\",\"b\r\nc").contains(",\"a\"\",\"\"b\r\nc\","));
        assert!(csv("alice").contains(",pending,,alice,\"{\"\"comment\"\":"));
        assert!(csv("alice").starts_with("7,2026-01-02T03:04:05Z,,approved,") && csv("alice").ends_with("01\r\n"));
    }

    #[test]
    fn json_lines_keep_details_unchanged() {
        let mut out = ExportFormat::Jsonl.header();
        ExportFormat::Jsonl.write_entry(&entry("=1"), &mut out);
        assert!(out.contains(r#""actor":"=1","details":{"comment":"a, \"b\"","n":1.10},"prevHash":"0000"#), "{out}");
        assert_eq!((out.lines().count(), out.ends_with('\n')), (1, true));
    }

    #[test]
    fn time_range_is_half_open() {
        let at = |text: &str| Some(text.parse().unwrap());
        let holds = |since, until| TimeRange { since, until }.contains(&entry("a"));
        assert!(holds(None, None) && holds(at("2026-01-02T03:04:05Z"), at("2026-01-02T03:04:06Z")));
        assert!(!holds(at("2026-01-02T03:04:06Z"), None) && !holds(None, at("2026-01-02T03:04:05Z")));
    }
}
