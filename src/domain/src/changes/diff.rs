//! Builds the diff that a reviewer decides on: field by field, and line by line for long or multi-line text.
//!
//! Diffs are bounded in size and time. A truncated diff is marked ([`Diff::truncated`]), and a changed field is never
//! left out silently. The text is unchanged; displays escape hidden characters ([`crate::changes::visible`]).

use std::time::{Duration, Instant};

use similar::{
    Algorithm, DiffOp, DiffableStr, algorithms::IdentifyDistinct, capture_diff_deadline, diff_ratio, group_diff_ops,
};

use super::{Diff, DiffLine, FieldDiff, FieldFormat, LineOp};

/// The limits of one diff.
#[derive(Clone, Copy, Debug)]
pub struct DiffLimits {
    /// The maximum number of changed fields that are shown.
    pub fields: usize,
    /// The maximum size of one value, before or after.
    pub value_bytes: usize,
    /// The maximum size of all values and lines together.
    pub total_bytes: usize,
    /// The maximum number of lines of a text, on either side, that are compared line by line. Longer texts are truncated and
    /// shown as a whole.
    pub input_lines: usize,
    /// The maximum number of lines that are shown for one field.
    pub lines: usize,
    /// The number of unchanged lines that are shown around a change.
    pub context: usize,
    /// A value longer than this, in bytes, is shown line by line even if it is a single line.
    pub max_inline_bytes: usize,
    /// The time for all fields together. After this time the diff gets coarser but stays correct.
    pub time: Duration,
}

impl Default for DiffLimits {
    fn default() -> Self {
        Self {
            fields: 200,
            value_bytes: 64 << 10,
            total_bytes: 512 << 10,
            input_lines: 20_000,
            lines: 2_000,
            context: 3,
            max_inline_bytes: 160,
            time: Duration::from_millis(50),
        }
    }
}

/// Collects the fields of a diff. Unchanged fields are left out.
///
/// ```
/// use countersign_domain::changes::diff::DiffBuilder;
/// let diff = DiffBuilder::new()
///     .field("title", "Title", Some("Fix login"), Some("Fix the login"))
///     .field("type", "Type", Some("Bug"), Some("Bug"))
///     .finish();
/// assert_eq!(diff.fields.len(), 1);
/// assert!(!diff.truncated);
/// ```
#[derive(Debug)]
pub struct DiffBuilder {
    limits: DiffLimits,
    deadline: Instant,
    bytes: usize,
    diff: Diff,
}

impl Default for DiffBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl DiffBuilder {
    /// Creates a builder with the default limits.
    pub fn new() -> Self {
        Self::with_limits(DiffLimits::default())
    }

    pub fn with_limits(limits: DiffLimits) -> Self {
        Self { limits, deadline: Instant::now() + limits.time, bytes: 0, diff: Diff::default() }
    }

    /// Adds a field: its name in the entity, its label for people, and its text before and after (`None` if there is
    /// none).
    #[must_use]
    pub fn field(mut self, field: &str, label: &str, before: Option<&str>, after: Option<&str>) -> Self {
        self.add(field, label, before, after);
        self
    }

    /// Like [`DiffBuilder::field`], for use in loops.
    pub fn add(&mut self, field: &str, label: &str, before: Option<&str>, after: Option<&str>) {
        if before == after || self.is_full() {
            return;
        }
        // The lines are computed first, so that they show the change even if both values are truncated to the same text.
        let lines =
            if self.is_long(before) || self.is_long(after) { self.diff_lines(before, after) } else { Vec::new() };
        let before = before.map(|text| self.truncate(text));
        let after = after.map(|text| self.truncate(text));
        self.push(field, label, (before, after), lines);
    }

    /// Like [`DiffBuilder::add`], but always line by line, so that live state is not repeated in the values.
    pub fn add_line_diff(&mut self, field: &str, label: &str, before: Option<&str>, after: Option<&str>) {
        if before == after || self.is_full() {
            return;
        }
        let lines = self.diff_lines(before, after);
        self.push(field, label, (None, None), lines);
    }

    /// Adds lines that were compared elsewhere, or that only show a state.
    pub fn add_lines<'a>(
        &mut self,
        field: &str,
        label: &str,
        lines: impl IntoIterator<Item = (LineOp, std::borrow::Cow<'a, str>)>,
    ) {
        if self.is_full() {
            return;
        }
        let mut out = LineWriter { lines: Vec::new(), builder: self };
        for (op, line) in lines {
            if !out.push(op, &line) {
                break;
            }
        }
        let lines = out.lines;
        self.push(field, label, (None, None), lines);
    }

    fn push(
        &mut self,
        field: &str,
        label: &str,
        (before, after): (Option<String>, Option<String>),
        lines: Vec<DiffLine>,
    ) {
        let (field, label) = (field.to_owned(), label.to_owned());
        self.diff.fields.push(FieldDiff { field, label, before, after, lines, ..FieldDiff::default() });
    }

    /// Returns `true` if no further field fits, and then marks the diff as truncated.
    fn is_full(&mut self) -> bool {
        let full = self.diff.fields.len() >= self.limits.fields || self.bytes >= self.limits.total_bytes;
        self.diff.truncated |= full;
        full
    }

    /// Marks all fields but the first `fields` ones, if they show live state that the proposer could not read.
    pub fn restrict_after(&mut self, fields: usize, is_restricted: bool) {
        self.diff.fields.iter_mut().skip(fields).for_each(|field| field.restricted |= is_restricted);
    }

    /// Sets the format of all fields but the first `fields` ones.
    pub fn set_format_after(&mut self, fields: usize, format: FieldFormat) {
        self.diff.fields.iter_mut().skip(fields).for_each(|field| field.format = format);
    }

    pub fn len(&self) -> usize {
        self.diff.fields.len()
    }

    pub fn is_empty(&self) -> bool {
        self.diff.fields.is_empty()
    }

    #[must_use]
    pub fn finish(self) -> Diff {
        self.diff
    }

    fn is_long(&self, text: Option<&str>) -> bool {
        text.is_some_and(|t| t.len() > self.limits.max_inline_bytes || t.contains('\n'))
    }

    /// Returns the text within the limits, and marks the diff if it was truncated.
    fn truncate(&mut self, text: &str) -> String {
        let available = self.limits.value_bytes.min(self.limits.total_bytes.saturating_sub(self.bytes));
        let prefix = &text[..text.floor_char_boundary(available)];
        self.bytes += prefix.len();
        if prefix.len() == text.len() {
            return prefix.to_owned();
        }
        self.diff.truncated = true;
        format!("{prefix}…")
    }

    /// Compares two texts line by line. A final line break starts no further line. If only one text ends with a line
    /// break, its last line differs from the other's, and a note says so.
    fn diff_lines(&mut self, before: Option<&str>, after: Option<&str>) -> Vec<DiffLine> {
        let max = self.limits.input_lines;
        let end_differs =
            lacks_final_newline(before).zip(lacks_final_newline(after)).is_some_and(|(old, new)| old != new);
        let (Some(old), Some(new)) = (split_lines(before, max, end_differs), split_lines(after, max, end_differs))
        else {
            self.diff.truncated = true;
            return Vec::new();
        };
        let operations = diff_ops(Algorithm::Patience, &old, &new, Some(self.deadline));
        let mut out = LineWriter { lines: Vec::new(), builder: self };
        let mut compared_lines = 0;
        for group in group_diff_ops(operations, out.builder.limits.context) {
            let start = group.first().map_or(compared_lines, |op| op.old_range().start);
            out.skip(start.saturating_sub(compared_lines));
            for op in &group {
                compared_lines = op.old_range().end;
                for (op, line) in tagged_items(op, &old, &new) {
                    let without_break = line.strip_suffix('\n');
                    out.push(op, without_break.unwrap_or(line));
                    if end_differs && without_break.is_none() {
                        out.push(LineOp::Note, NO_FINAL_NEWLINE);
                    }
                }
            }
        }
        out.skip(old.len().saturating_sub(compared_lines));
        out.lines
    }
}

/// Appends lines until the limits are reached.
struct LineWriter<'a> {
    lines: Vec<DiffLine>,
    builder: &'a mut DiffBuilder,
}

impl LineWriter<'_> {
    fn skip(&mut self, unchanged: usize) {
        if unchanged > 0 {
            self.push(LineOp::Skip, &unchanged.to_string());
        }
    }

    /// Appends a line. Returns `false`, and marks the diff as truncated, if the limits are reached.
    fn push(&mut self, op: LineOp, line: &str) -> bool {
        let limits = self.builder.limits;
        let has_room = self.lines.len() < limits.lines && self.builder.bytes < limits.total_bytes;
        if has_room {
            let text = self.builder.truncate(line);
            self.lines.push(DiffLine { op, text });
        }
        self.builder.diff.truncated |= !has_room;
        has_room
    }
}

/// Computes the operations that turn `old` into `new`. Texts are mapped to numbers first, so that all comparisons share
/// one instance of the generic code.
fn diff_ops(algorithm: Algorithm, old: &[&str], new: &[&str], deadline: Option<Instant>) -> Vec<DiffOp> {
    let ids = IdentifyDistinct::<u32>::new(old, 0..old.len(), new, 0..new.len());
    capture_diff_deadline(algorithm, ids.old_lookup(), ids.old_range(), ids.new_lookup(), ids.new_range(), deadline)
}

/// Iterates over the items of one operation: the common ones, or the deleted and then the inserted ones.
fn tagged_items<'a>(op: &DiffOp, old: &[&'a str], new: &[&'a str]) -> impl Iterator<Item = (LineOp, &'a str)> {
    let (first, added) = match op {
        DiffOp::Equal { .. } => (LineOp::Equal, &[][..]),
        _ => (LineOp::Delete, &new[op.new_range()]),
    };
    old[op.old_range()].iter().map(move |text| (first, *text)).chain(added.iter().map(|text| (LineOp::Insert, *text)))
}

/// Compares the operator's own texts line by line, without limits. Lines include their line break.
pub fn compare_lines<'a>(before: &'a str, after: &'a str) -> Vec<(LineOp, &'a str)> {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    diff_ops(Algorithm::Myers, &old, &new, None).iter().flat_map(|op| tagged_items(op, &old, &new)).collect()
}

/// Compares two lines word by word, including the separators. Returns `None` if less than 30 % are equal, because such
/// a comparison is not helpful. After the deadline it gets coarser.
pub fn compare_words<'a>(before: &'a str, after: &'a str, deadline: Instant) -> Option<Vec<(LineOp, &'a str)>> {
    let (old, new) = (before.tokenize_words(), after.tokenize_words());
    let operations = diff_ops(Algorithm::Myers, &old, &new, Some(deadline));
    (diff_ratio(&operations, old.len(), new.len()) >= 0.3)
        .then(|| operations.iter().flat_map(|op| tagged_items(op, &old, &new)).collect())
}

/// Shown after a last line without a line break, if the other text ends with a line break.
const NO_FINAL_NEWLINE: &str = "\\ No line break at the end";

/// Iterates over the lines of a text without their breaks. A final line break starts no line, and an empty text is one empty line.
pub fn text_lines(text: &str) -> impl Iterator<Item = &str> {
    text.strip_suffix('\n').unwrap_or(text).split('\n')
}

/// Returns `true` if the last line has no line break, or `None` for an empty text.
fn lacks_final_newline(text: Option<&str>) -> Option<bool> {
    text.filter(|text| !text.is_empty()).map(|text| !text.ends_with('\n'))
}

/// Splits a text into lines, with their line breaks if `with_breaks` is set. Returns `None` if there are more than
/// `max`. An empty text has no lines.
fn split_lines(text: Option<&str>, max: usize, with_breaks: bool) -> Option<Vec<&str>> {
    let lines = text.unwrap_or_default().split_inclusive('\n').take(max + 1);
    let lines: Vec<&str> =
        lines.map(|line| if with_breaks { line } else { line.strip_suffix('\n').unwrap_or(line) }).collect();
    (lines.len() <= max).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single_field(before: Option<&str>, after: Option<&str>) -> FieldDiff {
        let diff = DiffBuilder::new().field("f", "F", before, after).finish();
        assert!(!diff.truncated);
        diff.fields.into_iter().next().unwrap()
    }

    fn rendered_lines(field: &FieldDiff) -> Vec<String> {
        field
            .lines
            .iter()
            .map(|l| {
                let op = match l.op {
                    LineOp::Equal => ' ',
                    LineOp::Insert => '+',
                    LineOp::Delete => '-',
                    LineOp::Skip => '@',
                    LineOp::Note => '#',
                };
                format!("{op}{}", l.text)
            })
            .collect()
    }

    #[test]
    fn unchanged_fields_are_left_out() {
        let diff = DiffBuilder::new()
            .field("a", "A", None, None)
            .field("b", "B", Some("x"), Some("x"))
            .field("c", "C", None, Some("x"))
            .field("d", "D", Some("x"), None)
            .finish();
        let names: Vec<_> = diff.fields.iter().map(|f| f.field.as_str()).collect();
        assert_eq!(names, ["c", "d"]);
        assert!(diff.fields.iter().all(|f| f.lines.is_empty()));
    }

    #[test]
    fn lines_are_compared_with_folded_context() {
        let before: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
        let mut after = before.clone();
        after[9] = "ten".into();
        let field = single_field(Some(&before.join("\n")), Some(&after.join("\n")));
        assert_eq!(rendered_lines(&field), ["@6", " 7", " 8", " 9", "-10", "+ten", " 11", " 12", " 13", "@7"]);
    }

    #[test]
    fn compare_lines_includes_line_breaks() {
        let compared = compare_lines("a: 1\nb: 2\n", "a: 1\nb: 3\nc: 4");
        let expected = [
            (LineOp::Equal, "a: 1\n"),
            (LineOp::Delete, "b: 2\n"),
            (LineOp::Insert, "b: 3\n"),
            (LineOp::Insert, "c: 4"),
        ];
        assert_eq!(compared, expected);
        assert!(compare_lines("", "").is_empty());
    }

    #[test]
    fn words_are_compared_in_similar_lines_only() {
        let far_deadline = || Instant::now() + Duration::from_secs(60);
        let compared = compare_words("a  good day", "a  bad day", far_deadline()).unwrap();
        let expected = [
            (LineOp::Equal, "a"),
            (LineOp::Equal, "  "),
            (LineOp::Delete, "good"),
            (LineOp::Insert, "bad"),
            (LineOp::Equal, " "),
            (LineOp::Equal, "day"),
        ];
        assert_eq!(compared, expected);
        assert_eq!(compare_words("one", "two", far_deadline()), None);
        let same = ["\u{3000}", "x", " "].map(|text| (LineOp::Equal, text));
        assert_eq!(compare_words("\u{3000}x ", "\u{3000}x ", far_deadline()).unwrap(), same);
    }

    #[test]
    fn missing_final_newline_and_cr_are_shown() {
        let note = "#\\ No line break at the end";
        assert_eq!(rendered_lines(&single_field(Some("a\nb"), Some("a\nb\n"))), [" a", "-b", note, "+b"]);
        assert_eq!(rendered_lines(&single_field(Some("a\nb\n"), Some("a\nb\nc"))), [" a", " b", "+c", note]);
        assert_eq!(rendered_lines(&single_field(Some("a"), Some("a\n"))), ["-a", note, "+a"]);
        assert_eq!(rendered_lines(&single_field(Some("a\r\nb"), Some("a\nb"))), ["-a\r", "+a", " b"]);
    }

    #[test]
    fn final_newline_begins_no_line() {
        assert_eq!(rendered_lines(&single_field(None, Some("hello\n"))), ["+hello"]);
        assert_eq!(rendered_lines(&single_field(Some("hello\n"), None)), ["-hello"]);
        assert_eq!(rendered_lines(&single_field(Some("hello\n"), Some("hello\nworld\n"))), [" hello", "+world"]);
        assert_eq!(
            rendered_lines(&single_field(Some("a\nb"), Some("a\nb\nc"))),
            [" a", " b", "+c"],
            "neither text ends with a line break"
        );
        // An empty line is a line, and an empty text has none.
        assert_eq!(rendered_lines(&single_field(Some(""), Some("\n"))), ["+"]);
        assert_eq!(rendered_lines(&single_field(Some("a\n"), Some("a\n\n"))), [" a", "+"]);
        assert_eq!(text_lines("a\n\nb\n").collect::<Vec<_>>(), ["a", "", "b"]);
    }

    #[test]
    fn new_text_is_all_inserted() {
        assert_eq!(rendered_lines(&single_field(None, Some("a\nb"))), ["+a", "+b"]);
        assert_eq!(rendered_lines(&single_field(Some("a\nb"), None)), ["-a", "-b"]);
    }

    #[test]
    fn truncated_diff_is_marked() {
        let long = "é".repeat(40 << 10);
        let diff = DiffBuilder::new().field("f", "F", None, Some(&long)).finish();
        assert!(diff.truncated);
        let after = diff.fields[0].after.as_deref().unwrap();
        assert!(after.len() <= (64 << 10) + '…'.len_utf8() && after.ends_with('…'));

        let limits = DiffLimits { fields: 1, ..DiffLimits::default() };
        let diff =
            DiffBuilder::with_limits(limits).field("a", "A", None, Some("1")).field("b", "B", None, Some("1")).finish();
        assert!(diff.truncated);
        assert_eq!(diff.fields.len(), 1);
    }

    #[test]
    fn change_at_end_of_long_text_is_shown() {
        let lines: Vec<String> = (0..10_000).map(|n| format!("line {n} of a long text")).collect();
        let before = lines.join("\n");
        let after = format!("{before}!");
        let diff = DiffBuilder::new().field("f", "F", Some(&before), Some(&after)).finish();
        let rendered = rendered_lines(&diff.fields[0]);
        assert_eq!(rendered.last().unwrap(), "+line 9999 of a long text!");
        assert!(diff.truncated, "the values themselves are truncated");
    }

    #[test]
    fn hostile_sizes_stay_within_the_budget() {
        let before = "a\n".repeat(1 << 20);
        let after = "b\n".repeat(1 << 20);
        let mut builder = DiffBuilder::new();
        for n in 0..300 {
            builder.add(&n.to_string(), "F", Some(&before), Some(&after));
        }
        let diff = builder.finish();
        assert!(diff.truncated);
        assert!(serde_json::to_vec(&diff).unwrap().len() < 4 << 20);

        let mut builder = DiffBuilder::new();
        let (before, after): (String, String) = (0..15_000).map(|n| (format!("{n}\n"), format!("{}\n", n * 7))).unzip();
        builder.add("f", "F", Some(&before), Some(&after));
        let diff = builder.finish();
        assert!(diff.truncated && diff.fields[0].lines.len() <= 2_000);
    }

    proptest::proptest! {
        #[test]
        fn diff_lines_reconstruct_both_texts(before in "[ab\n]{1,60}", after in "[ab\n]{1,60}") {
            let limits = DiffLimits { context: 1000, max_inline_bytes: 0, ..DiffLimits::default() };
            let diff = DiffBuilder::with_limits(limits).field("f", "F", Some(&before), Some(&after)).finish();
            if let Some(field) = diff.fields.first() {
                let side = |excluded: LineOp| {
                    let lines = field.lines.iter().filter(|l| l.op != excluded && l.op != LineOp::Note);
                    lines.map(|l| l.text.as_str()).collect::<Vec<_>>()
                };
                proptest::prop_assert_eq!(side(LineOp::Insert), text_lines(&before).collect::<Vec<_>>());
                proptest::prop_assert_eq!(side(LineOp::Delete), text_lines(&after).collect::<Vec<_>>());
                let noted = field.lines.iter().filter(|l| l.op == LineOp::Note).count();
                proptest::prop_assert_eq!(noted, usize::from(before.ends_with('\n') != after.ends_with('\n')));
            } else {
                proptest::prop_assert_eq!(before, after);
            }
        }
    }
}
