//! A diff as lines of the screen: unified, or side by side where there is room, with changed words marked and
//! unchanged lines folded.

use std::time::{Duration, Instant};

use ratatui::{
    style::{Modifier, Style},
    text::{Line, Span},
};

use super::paint::{Paint, wrap};
use countersign_domain::{
    changes::{
        Diff, DiffLine, FieldDiff, LineOp,
        diff::{compare_words, text_lines},
    },
    text::plural,
};

/// Bytes of a line in which changed words are looked for.
const MAX_WORDS: usize = 4 << 10;
/// Time for the words of one diff.
const TIME: Duration = Duration::from_millis(60);

/// How a diff is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub width: usize,
    pub split: bool,
    pub unfolded: bool,
}

type Pieces = Vec<(String, Style)>;

struct Writer {
    paint: Paint,
    look: Look,
    deadline: Instant,
    /// The texts are not cut.
    whole: bool,
    lines: Vec<Line<'static>>,
}

/// The fields of a diff, one after another.
pub fn lines(diff: &Diff, look: Look, paint: Paint) -> Vec<Line<'static>> {
    let mut out = Writer { paint, look, deadline: Instant::now() + TIME, whole: !diff.truncated, lines: Vec::new() };
    for field in &diff.fields {
        out.field(field);
    }
    if diff.fields.is_empty() {
        out.lines.push(Line::styled("  (nothing differs)", paint.dim()));
    }
    if diff.truncated {
        let text = "  The diff is larger than what is shown here; the arguments are shown whole.";
        out.lines.extend(wrap(&[(text.into(), paint.warn())], look.width, &Span::raw(""), &Span::raw("  ")));
    }
    out.lines
}

impl Writer {
    fn field(&mut self, field: &FieldDiff) {
        let mut title = vec![(format!("  {}", self.paint.safe(&field.label)), self.paint.bold())];
        if field.restricted {
            title.push(("  (the agent does not see this)".into(), self.paint.dim()));
        }
        let none = Span::raw("");
        self.lines.extend(wrap(&title, self.look.width, &none, &none));
        if field.lines.is_empty() {
            let side = |op, text: &Option<String>| -> Vec<DiffLine> {
                let lines = text.iter().flat_map(|text| text_lines(text));
                lines.map(|text| DiffLine { op, text: text.to_owned() }).collect()
            };
            let (old, new) = (side(LineOp::Delete, &field.before), side(LineOp::Insert, &field.after));
            self.block(&old.iter().collect::<Vec<_>>(), &new.iter().collect::<Vec<_>>());
        } else {
            self.long(field);
        }
        self.lines.push(Line::default());
    }

    fn long(&mut self, field: &FieldDiff) {
        let before: Vec<&str> = text_lines(field.before.as_deref().unwrap_or_default()).collect();
        // Lines of the text before that are behind us.
        let mut at = 0_usize;
        let mut rest = field.lines.as_slice();
        while let Some((line, tail)) = rest.split_first() {
            match line.op {
                LineOp::Equal => {
                    self.equal(&line.text);
                    (at, rest) = (at.saturating_add(1), tail);
                }
                LineOp::Note => {
                    let pieces = vec![(self.paint.code(&line.text), self.paint.dim())];
                    self.row(' ', self.paint.dim(), &pieces);
                    rest = tail;
                }
                LineOp::Skip => {
                    let many = line.text.parse::<usize>().unwrap_or(0);
                    let hidden = at.checked_add(many).and_then(|end| before.get(at..end));
                    match hidden {
                        // Where the text was cut, its last line was, too.
                        Some(hidden)
                            if self.look.unfolded && (self.whole || at.saturating_add(many) < before.len()) =>
                        {
                            hidden.iter().for_each(|text| self.equal(text));
                        }
                        _ => self.skip(&line.text),
                    }
                    (at, rest) = (at.saturating_add(many), tail);
                }
                LineOp::Delete | LineOp::Insert => {
                    let end = rest.iter().position(|l| !matches!(l.op, LineOp::Delete | LineOp::Insert));
                    let (run, tail) = rest.split_at(end.unwrap_or(rest.len()));
                    let of = |op| run.iter().filter(|l| l.op == op).collect::<Vec<_>>();
                    let (old, new) = (of(LineOp::Delete), of(LineOp::Insert));
                    at = at.saturating_add(old.len());
                    self.block(&old, &new);
                    rest = tail;
                }
            }
        }
    }

    /// Lines that went and the lines that came in their place.
    fn block(&mut self, old: &[&DiffLine], new: &[&DiffLine]) {
        let (red, green) = (self.paint.bad(), self.paint.good());
        let mut left: Vec<Pieces> = old.iter().map(|l| vec![(self.paint.code(&l.text), red)]).collect();
        let mut right: Vec<Pieces> = new.iter().map(|l| vec![(self.paint.code(&l.text), green)]).collect();
        if old.len() == new.len() {
            for (at, (a, b)) in old.iter().zip(new).enumerate() {
                if let Some((a, b)) = self.words(&a.text, &b.text)
                    && let (Some(l), Some(r)) = (left.get_mut(at), right.get_mut(at))
                {
                    (*l, *r) = (a, b);
                }
            }
        }
        if self.look.split {
            for at in 0..left.len().max(right.len()) {
                self.pair(left.get(at), '-', right.get(at), '+');
            }
        } else {
            left.iter().for_each(|pieces| self.row('-', red, pieces));
            right.iter().for_each(|pieces| self.row('+', green, pieces));
        }
    }

    /// Both lines with the words marked that differ; `None` where that says nothing.
    fn words(&self, old: &str, new: &str) -> Option<(Pieces, Pieces)> {
        if old.len().max(new.len()) > MAX_WORDS || Instant::now() > self.deadline {
            return None;
        }
        let compared = compare_words(old, new, self.deadline)?;
        let strong = Modifier::REVERSED.union(Modifier::BOLD);
        let (mut left, mut right) = (Pieces::new(), Pieces::new());
        for (op, word) in compared {
            let text = self.paint.code(word);
            match op {
                LineOp::Delete => left.push((text, self.paint.bad().add_modifier(strong))),
                LineOp::Insert => right.push((text, self.paint.good().add_modifier(strong))),
                _ => {
                    left.push((text.clone(), self.paint.bad()));
                    right.push((text, self.paint.good()));
                }
            }
        }
        Some((left, right))
    }

    fn equal(&mut self, text: &str) {
        let pieces = vec![(self.paint.code(text), Style::new())];
        if self.look.split {
            self.pair(Some(&pieces), ' ', Some(&pieces), ' ')
        } else {
            self.row(' ', Style::new(), &pieces)
        }
    }

    fn skip(&mut self, number: &str) {
        let folded = plural(number.parse().unwrap_or(0_u64), "unchanged line");
        let text = format!("    {} {folded} (z opens)", self.paint.sign("⋯", "..."));
        self.lines.push(Line::styled(text, self.paint.dim()));
    }

    fn row(&mut self, mark: char, style: Style, pieces: &[(String, Style)]) {
        let first = Span::styled(format!("  {mark} "), style);
        let next = Span::styled(format!("  {mark}{}", self.paint.sign("↳", ">")), style);
        self.lines.extend(wrap(pieces, self.look.width, &first, &next));
    }

    /// Two columns with a bar between them.
    fn pair(&mut self, left: Option<&Pieces>, minus: char, right: Option<&Pieces>, plus: char) {
        let half = self.look.width.saturating_sub(3) / 2;
        let side = |pieces: Option<&Pieces>, mark: char, style: Style| {
            let Some(pieces) = pieces else { return Vec::new() };
            let first = Span::styled(format!("{mark} "), style);
            let next = Span::styled(format!("{mark}{}", self.paint.sign("↳", ">")), style);
            wrap(pieces, half, &first, &next)
        };
        let of = |mark, style| if mark == ' ' { Style::new() } else { style };
        let left = side(left, minus, of(minus, self.paint.bad()));
        let right = side(right, plus, of(plus, self.paint.good()));
        let bar = self.paint.sign(" │ ", " | ");
        for at in 0..left.len().max(right.len()) {
            let mut row = left.get(at).cloned().unwrap_or_default();
            let gap = half.saturating_sub(row.width());
            row.push_span(Span::raw(" ".repeat(gap)));
            row.push_span(Span::styled(bar, self.paint.dim()));
            row.extend(right.get(at).cloned().unwrap_or_default());
            self.lines.push(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::diff::DiffBuilder;

    const PAINT: Paint = Paint { colour: true, unicode: true };

    fn text(diff: &Diff, look: Look) -> String {
        let lines = lines(diff, look, PAINT);
        lines.iter().map(|l| l.to_string().trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    fn long() -> Diff {
        let before: Vec<String> = (1..=20).map(|n| format!("line {n}")).collect();
        let mut after = before.clone();
        after[9] = "line ten\u{202e}".into();
        DiffBuilder::new().field("text", "Text\u{1b}", Some(&before.join("\n")), Some(&after.join("\n"))).finish()
    }

    #[test]
    fn context_is_folded_and_opens() {
        let look = Look { width: 60, split: false, unfolded: false };
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
        assert_eq!(text(&long(), look), folded, "\n{}", text(&long(), look));
        let open = text(&long(), Look { unfolded: true, ..look });
        assert!(
            open.contains("    line 1\n") && open.contains("    line 6\n    line 7") && open.ends_with("    line 20\n"),
            "{open}"
        );
    }

    #[test]
    fn side_by_side_in_columns() {
        let shown = text(&long(), Look { width: 63, split: true, unfolded: false });
        assert!(shown.contains("\n- line 10                      │ + line ten\\u{202e}\n"), "{shown}");
        assert!(shown.contains("\n  line 9                       │   line 9\n"), "{shown}");
    }

    #[test]
    fn the_words_that_differ_are_marked() {
        let diff = DiffBuilder::new().field("t", "T", Some("fix the login page"), Some("fix the logout page")).finish();
        let lines = lines(&diff, Look { width: 60, split: false, unfolded: false }, PAINT);
        let marked = |line: &Line<'_>| {
            let strong = line.spans.iter().filter(|s| s.style.add_modifier.contains(Modifier::REVERSED));
            strong.map(|s| s.content.to_string()).collect::<String>()
        };
        assert_eq!((marked(&lines[1]), marked(&lines[2])), ("login".to_owned(), "logout".to_owned()));
    }

    #[test]
    fn a_wrong_number_of_folded_lines_harms_nothing() {
        let mut diff = long();
        for line in &mut diff.fields[0].lines {
            if line.op == LineOp::Skip {
                line.text = usize::MAX.to_string();
            }
        }
        let shown = text(&diff, Look { width: 10, split: false, unfolded: true });
        assert!(shown.contains("unchanged"), "{shown}");
    }
}
