//! The arguments of a change as lines for a terminal: each once. What the diff shows word for word is named and not
//! repeated; texts of several lines are laid out as lines. Nothing here is harmless yet: whoever prints it makes hidden
//! characters visible.

use std::borrow::Cow;

use crate::output::{indented, route};
use countersign_domain::{
    changes::{Change, Diff, FieldDiff, LineOp, PreviewKind, diff::text_lines},
    text::plural,
};
use countersign_protocol::json;

/// See the module's page.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    pub lines: Vec<String>,
    /// Names of those that the diff shows.
    pub elsewhere: Vec<String>,
}

impl Arguments {
    /// Of a change: all of them where nothing previews it.
    pub fn of(change: &Change) -> Self {
        let diff = Some(&change.diff).filter(|diff| !is_call(change) && !diff.truncated);
        Self::beside(change.arguments.get(), diff)
    }

    /// Beside a diff.
    pub fn beside(raw: &str, diff: Option<&Diff>) -> Self {
        let mut out = Self::default();
        for json::Member { key, value, .. } in json::members(raw) {
            let text = json::string(value);
            if let (Some(text), Some(diff)) = (&text, diff)
                && diff.fields.iter().any(|field| shows(field, text))
            {
                out.elsewhere.push(key.into_owned());
                continue;
            }
            let name = name(&key);
            match text {
                Some(text) if text.contains('\n') => {
                    out.lines.push(format!("{name}:"));
                    out.lines.extend(text_lines(&text).map(|line| format!("  | {line}")));
                    if !text.ends_with('\n') {
                        out.lines.push("  \\ no line break at the end".to_owned());
                    }
                }
                _ => {
                    let mut lines = indented(value);
                    lines.insert_str(0, &format!("{name}: "));
                    out.lines.extend(lines.split('\n').map(str::to_owned));
                }
            }
        }
        if out.lines.is_empty() && out.elsewhere.is_empty() {
            out.lines.push("(none)".to_owned());
        }
        out
    }

    /// What is said of those that stand in the diff.
    pub fn remark(&self) -> Option<String> {
        (!self.elsewhere.is_empty()).then(|| format!("{}: as the diff shows", self.elsewhere.join(", ")))
    }
}

/// Whether the change's arguments stand for what it would do.
pub fn is_call(change: &Change) -> bool {
    change.preview.kind == PreviewKind::Arguments
}

/// What else is told of a call, as that its tool describes itself: labels and texts.
pub fn told_beside(change: &Change) -> Vec<(&str, String)> {
    let fields = change.diff.fields.iter().filter(|field| field.field.starts_with('$'));
    let text = |field: &FieldDiff| match &field.after {
        Some(text) if field.lines.is_empty() => text.clone(),
        _ => field.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>().join("\n"),
    };
    fields.map(|field| (field.label.as_str(), text(field))).collect()
}

/// Where the call goes: the tool, and what is behind its server's name.
pub fn place(change: &Change) -> String {
    let at = change.served_by.as_ref().filter(|by| !by.fingerprint.is_empty());
    let at = at.map_or_else(String::new, |by| format!(", {}", by.label));
    route(&change.provider, &change.tool) + &at
}

/// What a change that was approved and is still pending waits for.
pub fn waits_for(change: &Change) -> String {
    let quorum = usize::try_from(change.terms.quorum.max(1)).unwrap_or(usize::MAX);
    let missing = quorum.saturating_sub(change.approvals());
    format!("Approved; it waits for {}.", plural(missing, "more approval"))
}

/// A diff of a call without the fields that only repeat arguments.
pub fn without_arguments(diff: &Diff) -> Diff {
    let fields = diff.fields.iter().filter(|field| field.field.starts_with('$')).cloned().collect();
    // The arguments stand beside it whole.
    Diff { fields, truncated: false }
}

/// A name that nothing else can pass for.
fn name(key: &str) -> Cow<'_, str> {
    let plain = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
    if plain { Cow::Borrowed(key) } else { Cow::Owned(serde_json::Value::from(key).to_string()) }
}

/// Whether a field shows this text, but for lines that are folded because they stay as they are.
fn shows(field: &FieldDiff, text: &str) -> bool {
    if let Some(after) = &field.after {
        return after == text;
    }
    // Lines do not tell whether the last one has a line break.
    let mut rest = text.split('\n');
    for line in &field.lines {
        let as_it_is = match line.op {
            LineOp::Equal | LineOp::Insert => rest.next() == Some(line.text.as_str()),
            LineOp::Skip => match line.text.parse::<usize>() {
                Ok(0) => true,
                Ok(folded) => rest.nth(folded - 1).is_some(),
                Err(_) => false,
            },
            LineOp::Delete => true,
            LineOp::Note => false,
        };
        if !as_it_is {
            return false;
        }
    }
    rest.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::diff::DiffBuilder;

    fn of(raw: &str, diff: &Diff) -> (Vec<String>, Vec<String>) {
        let Arguments { lines, elsewhere } = Arguments::beside(raw, Some(diff));
        (lines, elsewhere)
    }

    #[test]
    fn what_the_diff_shows_is_not_repeated() {
        let before = (1..=30).map(|n| format!("line {n}")).collect::<Vec<_>>().join("\n");
        let after = before.replace("line 15", "line fifteen");
        let diff = DiffBuilder::new().field("c", "Content", Some(&before), Some(&after)).finish();
        let raw = |content: &str| serde_json::json!({ "path": "/a", "content": content }).to_string();
        let (lines, elsewhere) = of(&raw(&after), &diff);
        assert_eq!((lines, elsewhere), (vec![r#"path: "/a""#.to_owned()], vec!["content".to_owned()]));
        // Another text than the one that is shown is told whole, wherever it differs.
        for other in [after.replace("fifteen", "16"), format!("{after}\nmore"), before, String::new()] {
            assert!(of(&raw(&other), &diff).1.is_empty(), "{other}");
        }
        let short = DiffBuilder::new().field("t", "Title", Some("old"), Some("new")).finish();
        assert_eq!(
            of(r#"{"title":"new","n":12345678901234567890123,"old":"old"}"#, &short).0,
            ["n: 12345678901234567890123", r#"old: "old""#]
        );
        // A field whose lines only tell something shows no argument.
        let mut told = DiffBuilder::new();
        told.add_lines("$read1", "Status", [(LineOp::Note, "clean".into())]);
        assert!(of(r#"{"message":"clean"}"#, &told.finish()).1.is_empty());
    }

    #[test]
    fn every_argument_is_told_and_none_passes_for_another() {
        let raw = r#"{"a":"x\n  b: 1","b":{"c":[1]},"d\ne":"\"q\"","":null}"#;
        let Arguments { lines, elsewhere } = Arguments::beside(raw, None);
        let expected = [
            "a:",
            "  | x",
            "  |   b: 1",
            "  \\ no line break at the end",
            "b: {",
            "  \"c\": [",
            "    1",
            "  ]",
            "}",
            r#""d\ne": "\"q\"""#,
            r#""": null"#,
        ];
        assert_eq!((lines, elsewhere), (expected.map(str::to_owned).to_vec(), Vec::new()));
        assert_eq!(Arguments::beside("{}", None).lines, ["(none)"]);
        assert_eq!(Arguments::beside(r#"{"a":"hello\n"}"#, None).lines, ["a:", "  | hello"]);
        assert_eq!(Arguments::beside(r#"{"a":"hello\n\n"}"#, None).lines, ["a:", "  | hello", "  | "]);
    }
}
