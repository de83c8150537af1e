//! Unified diffs, as tools answer with them, line by line.
//!
//! Within a hunk the numbers of its header count, so that a file whose lines look like headers forges none.

use std::borrow::Cow;

use countersign_domain::changes::LineOp;

/// The lines of the text, with what is left out between hunks; text around the hunks is a note.
#[must_use]
pub fn lines(text: &str) -> Vec<(LineOp, Cow<'_, str>)> {
    let mut out: Vec<(LineOp, Cow<'_, str>)> = Vec::new();
    let (mut old, mut new) = (0_u64, 0_u64);
    // The line of the old file that comes next, within one file.
    let mut next = 1_u64;
    for line in unfenced(text).split('\n') {
        if (old, new) == (0, 0) {
            if let Some(hunk) = Hunk::parse(line) {
                if hunk.old_start > next {
                    out.push((LineOp::Skip, (hunk.old_start - next).to_string().into()));
                }
                (old, new, next) = (hunk.old, hunk.new, hunk.old_start.saturating_add(hunk.old));
                // What a function's name or the like stands behind.
                if !hunk.rest.is_empty() {
                    out.push((LineOp::Note, line.into()));
                }
                continue;
            }
            if line.starts_with("--- ") || line.starts_with("diff ") {
                next = 1;
            }
            out.push((LineOp::Note, line.into()));
            continue;
        }
        let (op, rest) = match line.as_bytes().first() {
            Some(b'+') => (LineOp::Insert, line.get(1..).unwrap_or_default()),
            Some(b'-') => (LineOp::Delete, line.get(1..).unwrap_or_default()),
            Some(b' ') => (LineOp::Equal, line.get(1..).unwrap_or_default()),
            // "\ No newline at end of file" counts for neither side.
            Some(b'\\') => {
                out.push((LineOp::Note, line.into()));
                continue;
            }
            // Some programs strip the blank of an empty line.
            None => (LineOp::Equal, line),
            Some(_) => {
                // No diff after all: the rest is told as it is.
                (old, new) = (0, 0);
                out.push((LineOp::Note, line.into()));
                continue;
            }
        };
        old = old.saturating_sub(u64::from(op != LineOp::Insert));
        new = new.saturating_sub(u64::from(op != LineOp::Delete));
        out.push((op, rest.into()));
    }
    while out.last().is_some_and(|(op, line)| matches!(op, LineOp::Equal | LineOp::Note) && line.is_empty()) {
        out.pop();
    }
    out
}

/// The text without the Markdown fence around it.
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

struct Hunk<'a> {
    old_start: u64,
    old: u64,
    new: u64,
    rest: &'a str,
}

impl<'a> Hunk<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (ranges, rest) = line.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old, new) = ranges.split_once(" +")?;
        let range = |text: &str| -> Option<(u64, u64)> {
            let (start, count) = text.split_once(',').unwrap_or((text, "1"));
            Some((start.parse().ok()?, count.parse().ok()?))
        };
        let ((old_start, old), (_, new)) = (range(old)?, range(new)?);
        Some(Self { old_start, old, new, rest: rest.trim() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let mark = |op| match op {
            LineOp::Equal => ' ',
            LineOp::Insert => '+',
            LineOp::Delete => '-',
            LineOp::Skip => '@',
            LineOp::Note => '#',
        };
        lines(text).into_iter().map(|(op, line)| format!("{}{line}", mark(op))).collect()
    }

    #[test]
    fn a_diff_is_told_line_by_line() {
        let text = "Staged changes:\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -3,2 +3,2 @@ fn x\n keep\n-old\n+new\n\\ No newline at end of file\n@@ -9 +9 @@\n-x\n+y\n";
        assert_eq!(
            shown(text),
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
    fn lines_that_look_like_headers_are_content_within_a_hunk() {
        let text = "@@ -1,3 +1,2 @@\n--- a/other\n-@@ -1 +1 @@\n kept\n+++ new\n";
        assert_eq!(shown(text), ["--- a/other", "-@@ -1 +1 @@", " kept", "+++ new"]);
    }

    #[test]
    fn a_fence_goes_and_what_is_no_diff_stays() {
        assert_eq!(shown("````diff\n@@ -1 +1 @@\n-```\n+b\n````\n\n"), ["-```", "+b"]);
        assert_eq!(shown("nothing to commit"), ["#nothing to commit"]);
        assert_eq!(shown(""), Vec::<String>::new());
        assert_eq!(shown("@@ -1,9999999999999999999999 +1 @@\n-x"), ["#@@ -1,9999999999999999999999 +1 @@", "#-x"]);
        assert_eq!(shown("@@ -1,5 +1,5 @@\nrubbish\n-x"), ["#rubbish", "#-x"]);
    }
}
