//! Renders a diff as lines of the screen, unified or side by side. Changed words are marked, and unchanged lines are folded.

use std::time::{Duration, Instant};

use ratatui::{
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::paint::{Theme, wrap};
use crate::changes::forms::{recipients_first, shown_lines};
use countersign_domain::{
    changes::{
        Diff, DiffLine, FieldDiff, LineOp,
        diff::{compare_words, text_lines},
    },
    text::plural,
};

/// The longest line, in bytes, in which changed words are marked.
const MAX_WORD_DIFF_BYTES: usize = 4 << 10;
/// The time limit for finding the changed words of one diff.
const WORD_DIFF_TIME_LIMIT: Duration = Duration::from_millis(60);

/// The layout of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiffLayout {
    pub width: usize,
    pub is_split: bool,
    pub is_unfolded: bool,
}

impl DiffLayout {
    /// Returns the width of each of two columns with a bar of three characters between them.
    pub fn column_width(self) -> usize {
        self.width.saturating_sub(3) / 2
    }
}

type Pieces = Vec<(String, Style)>;

struct DiffWriter {
    theme: Theme,
    layout: DiffLayout,
    deadline: Instant,
    /// Set if the texts of the field were not truncated.
    is_uncut: bool,
    lines: Vec<Line<'static>>,
}

/// Renders the fields of a diff, one after another.
pub fn render(diff: &Diff, layout: DiffLayout, theme: Theme) -> Vec<Line<'static>> {
    let mut out = DiffWriter {
        theme,
        layout,
        deadline: Instant::now() + WORD_DIFF_TIME_LIMIT,
        is_uncut: !diff.truncated,
        lines: Vec::new(),
    };
    for field in recipients_first(diff) {
        out.push_field(field);
    }
    if diff.fields.is_empty() {
        out.lines.push(Line::styled("  (nothing differs)", theme.dim()));
    }
    if diff.truncated {
        let text = "  The diff is larger than what is shown here; the arguments are shown in full.";
        out.lines.extend(wrap(&[(text.into(), theme.warn())], layout.width, &Span::raw(""), &Span::raw("  ")));
    }
    out.lines
}

impl DiffWriter {
    fn push_field(&mut self, field: &FieldDiff) {
        let mut title = vec![(format!("  {}", self.theme.visible(&field.label)), self.theme.bold())];
        if field.restricted {
            title.push(("  (the agent does not see this)".into(), self.theme.dim()));
        }
        let no_prefix = Span::raw("");
        self.lines.extend(wrap(&title, self.layout.width, &no_prefix, &no_prefix));
        self.push_compared_lines(&shown_lines(field), field.before.as_deref());
        self.lines.push(Line::default());
    }

    /// Renders lines in which unchanged ones of the text `before` are folded.
    fn push_compared_lines(&mut self, lines: &[DiffLine], before: Option<&str>) {
        let before: Vec<&str> = text_lines(before.unwrap_or_default()).collect();
        // The number of lines of the old text that precede `rest`.
        let mut position = 0_usize;
        let mut rest = lines;
        while let Some((line, tail)) = rest.split_first() {
            match line.op {
                LineOp::Equal => {
                    self.push_equal_line(&line.text);
                    (position, rest) = (position.saturating_add(1), tail);
                }
                LineOp::Note => {
                    let pieces = vec![(self.theme.visible_code(&line.text), self.theme.dim())];
                    self.push_unified_row(' ', self.theme.dim(), &pieces);
                    rest = tail;
                }
                LineOp::Skip => {
                    let count = line.text.parse::<usize>().unwrap_or(0);
                    let hidden = position.checked_add(count).and_then(|end| before.get(position..end));
                    match hidden {
                        // If the text was truncated, its last line was, too.
                        Some(hidden)
                            if self.layout.is_unfolded
                                && (self.is_uncut || position.saturating_add(count) < before.len()) =>
                        {
                            hidden.iter().for_each(|text| self.push_equal_line(text));
                        }
                        _ => self.push_folded_lines(&line.text),
                    }
                    (position, rest) = (position.saturating_add(count), tail);
                }
                LineOp::Delete | LineOp::Insert => {
                    let end = rest.iter().position(|l| !matches!(l.op, LineOp::Delete | LineOp::Insert));
                    let (run, tail) = rest.split_at(end.unwrap_or(rest.len()));
                    let lines_of = |op| run.iter().filter(|l| l.op == op).collect::<Vec<_>>();
                    let (old, new) = (lines_of(LineOp::Delete), lines_of(LineOp::Insert));
                    position = position.saturating_add(old.len());
                    self.push_replaced_lines(&old, &new);
                    rest = tail;
                }
            }
        }
    }

    /// Renders removed lines with the lines that replace them.
    fn push_replaced_lines(&mut self, old: &[&DiffLine], new: &[&DiffLine]) {
        let (red, green) = (self.theme.bad(), self.theme.good());
        let mut left: Vec<Pieces> = old.iter().map(|l| vec![(self.theme.visible_code(&l.text), red)]).collect();
        let mut right: Vec<Pieces> = new.iter().map(|l| vec![(self.theme.visible_code(&l.text), green)]).collect();
        if old.len() == new.len() {
            for ((old, new), (left, right)) in old.iter().zip(new).zip(left.iter_mut().zip(&mut right)) {
                if let Some(marked) = self.mark_changed_words(&old.text, &new.text) {
                    (*left, *right) = marked;
                }
            }
        }
        if self.layout.is_split {
            for at in 0..left.len().max(right.len()) {
                self.push_split_row(left.get(at), '-', right.get(at), '+');
            }
        } else {
            left.iter().for_each(|pieces| self.push_unified_row('-', red, pieces));
            right.iter().for_each(|pieces| self.push_unified_row('+', green, pieces));
        }
    }

    /// Returns both lines with the differing words marked, or `None` if marking would not help.
    fn mark_changed_words(&self, old: &str, new: &str) -> Option<(Pieces, Pieces)> {
        if old.len().max(new.len()) > MAX_WORD_DIFF_BYTES || Instant::now() > self.deadline {
            return None;
        }
        let compared = compare_words(old, new, self.deadline)?;
        let strong = Modifier::REVERSED.union(Modifier::BOLD);
        let (mut left, mut right) = (Pieces::new(), Pieces::new());
        for (op, word) in compared {
            let text = self.theme.visible_code(word);
            match op {
                LineOp::Delete => left.push((text, self.theme.bad().add_modifier(strong))),
                LineOp::Insert => right.push((text, self.theme.good().add_modifier(strong))),
                _ => {
                    left.push((text.clone(), self.theme.bad()));
                    right.push((text, self.theme.good()));
                }
            }
        }
        Some((left, right))
    }

    fn push_equal_line(&mut self, text: &str) {
        let pieces = vec![(self.theme.visible_code(text), Style::new())];
        if self.layout.is_split {
            self.push_split_row(Some(&pieces), ' ', Some(&pieces), ' ')
        } else {
            self.push_unified_row(' ', Style::new(), &pieces)
        }
    }

    fn push_folded_lines(&mut self, number: &str) {
        let folded = plural(number.parse().unwrap_or(0_u64), "unchanged line");
        let text = format!("    {} {folded} (z opens)", self.theme.symbol("⋯", "..."));
        self.lines.push(Line::styled(text, self.theme.dim()));
    }

    fn push_unified_row(&mut self, mark: char, style: Style, pieces: &[(String, Style)]) {
        let first = Span::styled(format!("  {mark} "), style);
        let next = Span::styled(format!("  {mark}{}", self.theme.symbol("↳", ">")), style);
        self.lines.extend(wrap(pieces, self.layout.width, &first, &next));
    }

    /// Renders two columns with a bar between them.
    fn push_split_row(&mut self, left: Option<&Pieces>, minus: char, right: Option<&Pieces>, plus: char) {
        let width = self.layout.column_width();
        let side = |pieces: Option<&Pieces>, mark: char, style: Style| {
            let Some(pieces) = pieces else { return Vec::new() };
            let first = Span::styled(format!("{mark} "), style);
            let next = Span::styled(format!("{mark}{}", self.theme.symbol("↳", ">")), style);
            wrap(pieces, width, &first, &next)
        };
        let mark_style = |mark, style| if mark == ' ' { Style::new() } else { style };
        let left = side(left, minus, mark_style(minus, self.theme.bad()));
        let right = side(right, plus, mark_style(plus, self.theme.good()));
        let bar = Span::styled(self.theme.symbol(" │ ", " | "), self.theme.dim());
        self.lines.extend(join_columns(&left, &right, width, &bar));
    }
}

/// Joins the lines of two columns to rows with a bar between them.
pub fn join_columns(
    left: &[Line<'static>],
    right: &[Line<'static>],
    width: usize,
    bar: &Span<'static>,
) -> Vec<Line<'static>> {
    // A line's style covers its whole row, so each half is styled by its spans.
    let spans = |line: &Line<'static>| -> Vec<Span<'static>> {
        line.spans.iter().map(|span| span.clone().patch_style(line.style)).collect()
    };
    let row = |at: usize| {
        let mut row = Line::from(left.get(at).map(spans).unwrap_or_default());
        row.push_span(Span::raw(" ".repeat(width.saturating_sub(row.width()))));
        row.push_span(bar.clone());
        row.extend(right.get(at).into_iter().flat_map(spans));
        row
    };
    (0..left.len().max(right.len())).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{FieldFormat, diff::DiffBuilder};

    const THEME: Theme = Theme { colour: true, unicode: true };

    fn text(diff: &Diff, layout: DiffLayout) -> String {
        let lines = render(diff, layout, THEME);
        lines.iter().map(|l| l.to_string().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    fn long() -> Diff {
        let before: Vec<String> = (1..=20).map(|n| format!("line {n}")).collect();
        let mut after = before.clone();
        after[9] = "line ten\u{202e}".into();
        DiffBuilder::new().field("text", "Text\u{1b}", Some(&before.join("\n")), Some(&after.join("\n"))).finish()
    }

    #[test]
    fn context_is_folded_until_unfolded() {
        let layout = DiffLayout { width: 60, is_split: false, is_unfolded: false };
        let folded = "  Text\\u{1b}
    ⋯ 6 unchanged lines (z opens)
    line 7
    line 8
    line 9
  - line 10
  + line ten\\u{202e}
    line 11
    line 12
    line 13
    ⋯ 7 unchanged lines (z opens)
";
        assert_eq!(text(&long(), layout), folded, "\n{}", text(&long(), layout));
        let open = text(&long(), DiffLayout { is_unfolded: true, ..layout });
        assert!(
            open.contains("    line 1\n") && open.contains("    line 6\n    line 7") && open.ends_with("    line 20\n"),
            "{open}"
        );
    }

    #[test]
    fn split_diff_is_shown_in_two_columns() {
        let shown = text(&long(), DiffLayout { width: 63, is_split: true, is_unfolded: false });
        assert!(shown.contains("\n- line 10                      │ + line ten\\u{202e}\n"), "{shown}");
        assert!(shown.contains("\n  line 9                       │   line 9\n"), "{shown}");
    }

    #[test]
    fn recipients_come_first_and_rows_are_a_table() {
        let mut builder = DiffBuilder::new();
        builder.add("rows", "Rows", Some(r#"[{"id":1,"n":"a"}]"#), Some(r#"[{"id":1,"n":"b"},{"id":20,"n":"c"}]"#));
        builder.set_format_after(0, FieldFormat::Rows);
        builder.add("to", "To", Some("a@x"), Some("a@x, b\u{202e}@x"));
        builder.set_format_after(1, FieldFormat::Recipients);
        let shown = text(&builder.finish(), DiffLayout { width: 60, is_split: false, is_unfolded: false });
        let expected = "  To
    a@x
  + b\\u{202e}@x

  Rows
    id  n
  - 1   a
  + 1   b
  + 20  c
";
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn changed_words_are_marked() {
        let diff = DiffBuilder::new().field("t", "T", Some("fix the login page"), Some("fix the logout page")).finish();
        let lines = render(&diff, DiffLayout { width: 60, is_split: false, is_unfolded: false }, THEME);
        let marked = |line: &Line<'_>| {
            let strong = line.spans.iter().filter(|s| s.style.add_modifier.contains(Modifier::REVERSED));
            strong.map(|s| s.content.to_string()).collect::<String>()
        };
        assert_eq!((marked(&lines[1]), marked(&lines[2])), ("login".to_owned(), "logout".to_owned()));
    }

    #[test]
    fn wrong_number_of_folded_lines_is_tolerated() {
        let mut diff = long();
        for line in &mut diff.fields[0].lines {
            if line.op == LineOp::Skip {
                line.text = usize::MAX.to_string();
            }
        }
        let shown = text(&diff, DiffLayout { width: 10, is_split: false, is_unfolded: true });
        assert!(shown.contains("unchanged"), "{shown}");
    }
}
