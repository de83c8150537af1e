//! Parses unified diffs in tools' answers into lines.
//!
//! Inside a hunk, the line counts of its header decide, so that a file whose lines look like headers cannot forge one.

use std::borrow::Cow;

use countersign_domain::changes::LineOp;

/// Returns the lines of the diff, with the number of lines skipped between hunks. Text outside of hunks becomes notes.
pub fn parse_lines(text: &str) -> Vec<(LineOp, Cow<'_, str>)> {
    let mut out: Vec<(LineOp, Cow<'_, str>)> = Vec::new();
    // The lines of the current hunk that are still to come, in the old and in the new version.
    let (mut old_remaining, mut new_remaining) = (0_u64, 0_u64);
    let mut next_old_line = 1_u64;
    for line in unfenced(text).split('\n') {
        if (old_remaining, new_remaining) == (0, 0) {
            if let Some(hunk) = Hunk::parse(line) {
                if hunk.old_start > next_old_line {
                    out.push((LineOp::Skip, (hunk.old_start - next_old_line).to_string().into()));
                }
                (old_remaining, new_remaining) = (hunk.old_lines, hunk.new_lines);
                next_old_line = hunk.old_start.saturating_add(hunk.old_lines);
                // The hunk's section, usually the name of a function.
                if !hunk.section.is_empty() {
                    out.push((LineOp::Note, line.into()));
                }
                continue;
            }
            if line.starts_with("--- ") || line.starts_with("diff ") {
                next_old_line = 1;
            }
            out.push((LineOp::Note, line.into()));
            continue;
        }
        let (op, rest) = match line.as_bytes().first() {
            Some(b'+') => (LineOp::Insert, line.get(1..).unwrap_or_default()),
            Some(b'-') => (LineOp::Delete, line.get(1..).unwrap_or_default()),
            Some(b' ') => (LineOp::Equal, line.get(1..).unwrap_or_default()),
            // "\ No newline at end of file" belongs to neither version.
            Some(b'\\') => {
                out.push((LineOp::Note, line.into()));
                continue;
            }
            // Some programs strip the space of an empty line.
            None => (LineOp::Equal, line),
            Some(_) => {
                // Not a diff after all, so the rest is shown as it is.
                (old_remaining, new_remaining) = (0, 0);
                out.push((LineOp::Note, line.into()));
                continue;
            }
        };
        old_remaining = old_remaining.saturating_sub(u64::from(op != LineOp::Insert));
        new_remaining = new_remaining.saturating_sub(u64::from(op != LineOp::Delete));
        out.push((op, rest.into()));
    }
    while out.last().is_some_and(|(op, line)| matches!(op, LineOp::Equal | LineOp::Note) && line.is_empty()) {
        out.pop();
    }
    out
}

/// Returns the text without the Markdown fence around it.
fn unfenced(text: &str) -> &str {
    let ticks = text.len() - text.trim_start_matches('`').len();
    if ticks < 3 {
        return text;
    }
    let fence = &text[..ticks];
    let body = text.split_once('\n').map_or("", |(_, body)| body);
    let body = body.trim_end();
    body.strip_suffix(fence).unwrap_or(body)
}

/// The header of a hunk (`@@ -1,3 +1,2 @@ section`).
struct Hunk<'a> {
    old_start: u64,
    old_lines: u64,
    new_lines: u64,
    section: &'a str,
}

impl<'a> Hunk<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (ranges, section) = line.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old_range, new_range) = ranges.split_once(" +")?;
        let range = |text: &str| -> Option<(u64, u64)> {
            let (start, count) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse().ok()?, count.parse().ok()?))
        };
        let ((old_start, old_lines), (_, new_lines)) = (range(old_range)?, range(new_range)?);
        Some(Self { old_start, old_lines, new_lines, section: section.trim() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked_lines(text: &str) -> Vec<String> {
        let mark = |op| match op {
            LineOp::Equal => ' ',
            LineOp::Insert => '+',
            LineOp::Delete => '-',
            LineOp::Skip => '@',
            LineOp::Note => '#',
        };
        parse_lines(text).into_iter().map(|(op, line)| format!("{}{line}", mark(op))).collect()
    }

    #[test]
    fn parse_lines_classifies_each_line() {
        let text = "Staged changes:\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -3,2 +3,2 @@ fn x\n keep\n-old\n+new\n\\ No newline at end of file\n@@ -9 +9 @@\n-x\n+y\n";
        assert_eq!(
            marked_lines(text),
            [
                "#Staged changes:",
                "#diff --git a/a b/a",
                "#--- a/a",
                "#+++ b/a",
                "@2",
                "#@@ -3,2 +3,2 @@ fn x",
                " keep",
                "-old",
                "+new",
                "#\\ No newline at end of file",
                "@4",
                "-x",
                "+y"
            ]
        );
    }

    #[test]
    fn header_like_lines_inside_hunk_are_content() {
        let text = "@@ -1,3 +1,2 @@\n--- a/other\n-@@ -1 +1 @@\n kept\n+++ new\n";
        assert_eq!(marked_lines(text), ["--- a/other", "-@@ -1 +1 @@", " kept", "+++ new"]);
    }

    #[test]
    fn markdown_fence_is_removed_and_other_text_kept() {
        assert_eq!(marked_lines("````diff\n@@ -1 +1 @@\n-```\n+b\n````\n\n"), ["-```", "+b"]);
        assert_eq!(marked_lines("nothing to commit"), ["#nothing to commit"]);
        assert_eq!(marked_lines(""), Vec::<String>::new());
        assert_eq!(
            marked_lines("@@ -1,9999999999999999999999 +1 @@\n-x"),
            ["#@@ -1,9999999999999999999999 +1 @@", "#-x"]
        );
        assert_eq!(marked_lines("@@ -1,5 +1,5 @@\nrubbish\n-x"), ["#rubbish", "#-x"]);
    }
}
