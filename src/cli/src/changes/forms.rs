//! Shows fields of a diff in the form that suits their format: recipients first and one by one, rows as a table, lists item by
//! item, images by their size. The lines are not escaped: the caller makes hidden characters visible.

use std::borrow::Cow;

use super::rows::RowTable;
use countersign_domain::changes::{
    Diff, DiffLine, FieldDiff, FieldFormat, LineOp, diff::text_lines, image::ImageFacts,
};
use countersign_protocol::json;

/// Returns the fields in the order in which they are shown: recipients first.
pub fn recipients_first(diff: &Diff) -> impl Iterator<Item = &FieldDiff> {
    let is_first = |field: &&FieldDiff| field.format == FieldFormat::Recipients;
    diff.fields.iter().filter(is_first).chain(diff.fields.iter().filter(move |field| !is_first(field)))
}

/// Returns the lines of a field as they are shown: in its own form, or as text.
pub fn shown_lines(field: &FieldDiff) -> Cow<'_, [DiffLine]> {
    if let Some(lines) = formatted_lines(field) {
        return lines.into();
    }
    if !field.lines.is_empty() {
        return field.lines.as_slice().into();
    }
    let sides = [(LineOp::Delete, &field.before), (LineOp::Insert, &field.after)].into_iter();
    let side = |(op, text): (LineOp, &Option<String>)| -> Vec<DiffLine> {
        let lines = text.iter().flat_map(|text| text_lines(text));
        lines.map(|text| DiffLine { op, text: text.to_owned() }).collect()
    };
    sides.flat_map(side).collect()
}

/// Returns the lines of a field in its own form, or `None` if it is shown as text.
fn formatted_lines(field: &FieldDiff) -> Option<Vec<DiffLine>> {
    let (before, after) = (field.before.as_deref(), field.after.as_deref());
    if before.or(after).is_none() {
        return description_lines(&field.lines);
    }
    match field.format {
        FieldFormat::Recipients => recipient_lines(before, after),
        FieldFormat::Rows => RowTable::compare(before, after).map(|table| table.lines()),
        FieldFormat::Json => item_lines(before, after),
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

/// Returns each item of an array of scalars as unchanged, added or removed, without JSON syntax.
fn item_lines(before: Option<&str>, after: Option<&str>) -> Option<Vec<DiffLine>> {
    let (old, new) = (items(before)?, items(after)?);
    // If all items are strings, their quotes distinguish nothing.
    let are_texts = old.iter().chain(&new).all(|source| source.starts_with('"'));
    let texts = |sources: Vec<&str>| sources.into_iter().map(|source| item_text(source, are_texts)).collect::<Vec<_>>();
    let (old, new) = (texts(old), texts(new));
    let (mut start, mut end) = (0, 0);
    let shorter = old.len().min(new.len());
    while start < shorter && old[start] == new[start] {
        start += 1;
    }
    while end < shorter - start && old[old.len() - 1 - end] == new[new.len() - 1 - end] {
        end += 1;
    }
    let lines = |op, items: &[String]| items.iter().map(|text| DiffLine { op, text: text.clone() }).collect::<Vec<_>>();
    let lines = [
        lines(LineOp::Equal, &new[..start]),
        lines(LineOp::Delete, &old[start..old.len() - end]),
        lines(LineOp::Insert, &new[start..new.len() - end]),
        lines(LineOp::Equal, &new[new.len() - end..]),
    ];
    Some(lines.concat()).filter(|lines| !lines.is_empty())
}

/// Returns the JSON of each element of an array of scalars.
fn items(text: Option<&str>) -> Option<Vec<&str>> {
    let Some(text) = text else { return Some(Vec::new()) };
    let values: Vec<serde_json::Value> = serde_json::from_str(text).ok()?;
    let are_scalars = values.iter().all(|value| !value.is_object() && !value.is_array());
    are_scalars.then(|| json::elements(text.trim()).map(|(_, source)| source).collect())
}

/// Returns a text without its quotes if it has no escapes, and everything else as its JSON.
fn item_text(source: &str, is_text: bool) -> String {
    let plain = source.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    plain.filter(|text| is_text && !text.is_empty() && !text.contains('\\')).unwrap_or(source).to_owned()
}

/// Returns what was read beside a change without JSON syntax: an array item by item, a record by its fields.
fn description_lines(lines: &[DiffLine]) -> Option<Vec<DiffLine>> {
    let texts: Option<Vec<&str>> =
        lines.iter().map(|line| (line.op == LineOp::Equal).then_some(line.text.as_str())).collect();
    let text = texts?.join("\n");
    let texts = |items: Vec<&str>| items.into_iter().map(|source| item_text(source, true)).collect::<Vec<_>>();
    let item_texts: Vec<String> = match items(Some(&text)) {
        Some(items) => texts(items),
        None => {
            let record: serde_json::Map<String, serde_json::Value> = text.parse().ok()?;
            let members: Vec<_> = json::members(&text).collect();
            let value = |source: &str| match items(Some(source)) {
                Some(items) => Some(texts(items).join(", ")),
                None => (!source.starts_with(['{', '['])).then(|| item_text(source, true)),
            };
            let fields = members.iter().map(|member| Some(format!("{}: {}", member.key, value(member.value)?)));
            fields.collect::<Option<Vec<_>>>().filter(|fields| fields.len() == record.len())?
        }
    };
    if item_texts.is_empty() {
        return Some(vec![DiffLine { op: LineOp::Note, text: "(none)".to_owned() }]);
    }
    Some(item_texts.into_iter().map(|text| DiffLine { op: LineOp::Equal, text }).collect())
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
    fn items_are_compared_one_by_one() {
        let lines_of = |before, after| lines(before, after, FieldFormat::Json);
        let expected = [(LineOp::Equal, "bug"), (LineOp::Insert, "urgent"), (LineOp::Equal, "web")];
        let lines = lines_of(Some(r#"["bug","web"]"#), Some(r#"["bug","urgent","web"]"#));
        assert_eq!(lines.unwrap(), expected.map(|(op, text)| (op, text.to_owned())));
        let expected = [(LineOp::Delete, "12345678901234567890"), (LineOp::Delete, r#""a\nb""#)];
        let lines = lines_of(Some(r#"[12345678901234567890, "a\nb"]"#), Some("[]"));
        assert_eq!(lines.unwrap(), expected.map(|(op, text)| (op, text.to_owned())));
        let lines = lines_of(Some(r#"["1"]"#), Some("[1]")).unwrap();
        assert_eq!(lines, [(LineOp::Delete, r#""1""#.to_owned()), (LineOp::Insert, "1".to_owned())]);
        for text in ["[]", "{}", "[{}]", "[1", "[[1]]"] {
            assert_eq!(lines_of(None, Some(text)), None, "{text}");
        }
    }

    #[test]
    fn json_syntax_is_removed_from_reads() {
        let shown = |text: &str| {
            let lines: Vec<DiffLine> =
                text.lines().map(|line| DiffLine { op: LineOp::Equal, text: line.to_owned() }).collect();
            description_lines(&lines).map(|lines| lines.into_iter().map(|line| line.text).collect::<Vec<_>>())
        };
        assert_eq!(shown("[\n  \"a, b\",\n  \"c\"\n]").unwrap(), ["a, b", "c"]);
        assert_eq!(shown("[]").unwrap(), ["(none)"]);
        let record = "{\n  \"title\": \"The plan\",\n  \"labels\": [\"x\", \"y\"],\n  \"open\": true\n}";
        assert_eq!(shown(record).unwrap(), ["title: The plan", "labels: x, y", "open: true"]);
        for text in ["On branch main", "{\"a\": {}}", "{\"a\": [{}]}", "{\"a\": 1, \"a\": 2}", "[{}]", "12"] {
            assert_eq!(shown(text), None, "{text}");
        }
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
