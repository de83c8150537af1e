//! Shows fields of a diff in the form that suits their format: recipients first and one by one, rows as a table, images by
//! their size. The lines are not escaped: the caller makes hidden characters visible.

use super::rows::RowTable;
use countersign_domain::changes::{Diff, DiffLine, FieldDiff, FieldFormat, LineOp, image::ImageFacts};
use countersign_protocol::json;

/// Returns the fields in the order in which they are shown: recipients first.
pub fn recipients_first(diff: &Diff) -> impl Iterator<Item = &FieldDiff> {
    let is_first = |field: &&FieldDiff| field.format == FieldFormat::Recipients;
    diff.fields.iter().filter(is_first).chain(diff.fields.iter().filter(move |field| !is_first(field)))
}

/// Returns the lines of a field in its own form, or `None` if it is shown as text.
pub fn formatted_lines(field: &FieldDiff) -> Option<Vec<DiffLine>> {
    let (before, after) = (field.before.as_deref(), field.after.as_deref());
    before.or(after)?;
    match field.format {
        FieldFormat::Recipients => recipient_lines(before, after),
        FieldFormat::Rows => RowTable::compare(before, after).map(|table| table.lines()),
        FieldFormat::Image => image_lines(before, after),
        _ => None,
    }
}

/// Returns `true` if the form of the field shows its whole value.
pub fn is_shown_in_full(field: &FieldDiff) -> bool {
    match field.format {
        FieldFormat::Image => false,
        FieldFormat::Rows => RowTable::compare(field.before.as_deref(), field.after.as_deref())
            .is_none_or(|table| table.uncompared_rows == 0),
        _ => true,
    }
}

/// Returns each recipient as unchanged, added or removed.
fn recipient_lines(before: Option<&str>, after: Option<&str>) -> Option<Vec<DiffLine>> {
    let (old, new) = (recipients(before)?, recipients(after)?);
    let line = |op, text: &String| DiffLine { op, text: text.clone() };
    let kept_or_added = new.iter().map(|name| {
        let op = if old.contains(name) { LineOp::Equal } else { LineOp::Insert };
        line(op, name)
    });
    let removed = old.iter().filter(|name| !new.contains(name)).map(|name| line(LineOp::Delete, name));
    let lines: Vec<DiffLine> = kept_or_added.chain(removed).collect();
    Some(lines).filter(|lines| !lines.is_empty())
}

/// Reads a JSON array of strings, or names separated by commas, semicolons or line breaks.
fn recipients(text: Option<&str>) -> Option<Vec<String>> {
    let text = text.unwrap_or_default().trim();
    if text.starts_with('{') {
        return None;
    }
    if text.starts_with('[') {
        serde_json::from_str::<Vec<String>>(text).ok()?;
        return json::elements(text).map(|(_, name)| json::string(name).map(|name| name.into_owned())).collect();
    }
    Some(text.split([',', ';', '\n']).map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

fn image_lines(before: Option<&str>, after: Option<&str>) -> Option<Vec<DiffLine>> {
    let line = |op, text: Option<&str>| match text {
        Some(text) => Some(vec![DiffLine { op, text: ImageFacts::from_text(text)?.to_string() }]),
        None => Some(Vec::new()),
    };
    Some([line(LineOp::Delete, before)?, line(LineOp::Insert, after)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::diff::DiffBuilder;

    fn field(before: Option<&str>, after: Option<&str>, format: FieldFormat) -> FieldDiff {
        let mut builder = DiffBuilder::new();
        builder.add("f", "F", before, after);
        builder.set_format_after(0, format);
        builder.finish().fields.into_iter().next().unwrap()
    }

    fn lines(before: Option<&str>, after: Option<&str>, format: FieldFormat) -> Option<Vec<(LineOp, String)>> {
        let lines = formatted_lines(&field(before, after, format))?;
        Some(lines.into_iter().map(|line| (line.op, line.text)).collect())
    }

    #[test]
    fn recipients_are_compared_one_by_one() {
        let expected = [(LineOp::Equal, "a@x"), (LineOp::Insert, "c, d"), (LineOp::Delete, "b@x")];
        let lines_of = |after| lines(Some("a@x, b@x"), Some(after), FieldFormat::Recipients);
        assert_eq!(lines_of(r#"["a@x","c, d"]"#).unwrap(), expected.map(|(op, text)| (op, text.to_owned())));
        assert_eq!(lines_of(r#"["a@x",1]"#), None);
        assert_eq!(lines_of(r#"["a@x"…"#), None);
    }

    #[test]
    fn form_that_shows_less_than_the_value_says_so() {
        let rows = |count: usize| format!("[{}]", vec![r#"{"a":1}"#; count].join(","));
        assert!(is_shown_in_full(&field(None, Some(&rows(50)), FieldFormat::Rows)));
        assert!(!is_shown_in_full(&field(None, Some(&rows(51)), FieldFormat::Rows)));
        assert!(!is_shown_in_full(&field(None, Some("x"), FieldFormat::Image)));
        assert_eq!(lines(None, Some("not an image"), FieldFormat::Image), None);
    }
}
