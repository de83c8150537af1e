//! Compares JSON arrays of objects row by row, and lays them out as a table.

use std::collections::{HashMap, HashSet};

use crate::output::{columns, one_line};
use countersign_domain::{
    changes::{DiffLine, LineOp},
    text::plural,
};
use countersign_protocol::json;

/// The most rows that are compared.
const MAX_ROWS: usize = 50;
/// The most columns of the screen that a cell is padded to. Longer cells are shown whole and shift the rest of their row.
const MAX_CELL_COLUMNS: usize = 32;

/// A row of a table: the JSON text of each value by its name.
type Row<'a> = Vec<(String, &'a str)>;

/// A table of rows before and after a write.
#[derive(Debug)]
pub struct RowTable<'a> {
    names: Vec<String>,
    rows: Vec<(Option<Row<'a>>, Option<Row<'a>>)>,
    /// The number of rows that are not compared.
    pub uncompared_rows: usize,
}

impl<'a> RowTable<'a> {
    /// Compares two texts; `None` stands for no rows. Returns `None` if a text is not an array of objects.
    pub fn compare(before: Option<&'a str>, after: Option<&'a str>) -> Option<Self> {
        let (old, new) = (parse_rows(before)?, parse_rows(after)?);
        let mut names: Vec<String> = Vec::new();
        let mut seen_names = HashSet::new();
        for (name, _) in old.iter().chain(&new).flatten() {
            if seen_names.insert(name.clone()) {
                names.push(name.clone());
            }
        }
        if names.is_empty() {
            return None;
        }
        let mut rows = pair_rows(old, new);
        let uncompared_rows = rows.len().saturating_sub(MAX_ROWS);
        rows.truncate(MAX_ROWS);
        Some(Self { names, rows, uncompared_rows })
    }

    /// Returns the lines of the table: its headings, then each row as unchanged, removed or added. A row that differs is both.
    pub fn lines(&self) -> Vec<DiffLine> {
        let cells = |row: &Row<'_>| -> Vec<String> {
            self.names.iter().map(|name| value_of(row, name).map_or_else(|| "-".to_owned(), cell_text)).collect()
        };
        let headings: Vec<String> = self.names.iter().map(|name| one_line(name).into_owned()).collect();
        let mut table = vec![(LineOp::Note, headings)];
        for (before, after) in &self.rows {
            match (before, after) {
                (Some(old), Some(new)) if self.names.iter().all(|name| value_of(old, name) == value_of(new, name)) => {
                    table.push((LineOp::Equal, cells(new)));
                }
                (before, after) => {
                    table.extend(before.iter().map(|row| (LineOp::Delete, cells(row))));
                    table.extend(after.iter().map(|row| (LineOp::Insert, cells(row))));
                }
            }
        }
        let widths: Vec<usize> = (0..self.names.len())
            .map(|at| {
                let widths = table.iter().filter_map(|(_, cells)| cells.get(at)).map(|cell| columns(cell));
                widths.filter(|width| *width <= MAX_CELL_COLUMNS).max().unwrap_or(MAX_CELL_COLUMNS)
            })
            .collect();
        let mut lines: Vec<DiffLine> =
            table.iter().map(|(op, cells)| DiffLine { op: *op, text: padded(cells, &widths) }).collect();
        if self.uncompared_rows > 0 {
            let more_rows = plural(self.uncompared_rows, "more row");
            lines.push(DiffLine {
                op: LineOp::Note,
                text: format!("Rows beyond {MAX_ROWS} are not compared: {more_rows}, which --json shows."),
            });
        }
        lines
    }
}

fn value_of<'a>(row: &Row<'a>, name: &str) -> Option<&'a str> {
    row.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

/// Joins the cells of a row, each padded to its width.
fn padded(cells: &[String], widths: &[usize]) -> String {
    let mut out = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        out.push_str(cell);
        out.extend(std::iter::repeat_n(' ', width.saturating_sub(columns(cell)) + 2));
    }
    out.truncate(out.trim_end().len());
    out
}

/// Returns the text of a value: a string without quotes, unless it has escapes or could be mistaken for another value.
fn cell_text(value: &str) -> String {
    let plain = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).filter(|text| {
        let is_ambiguous = text.is_empty()
            || text.contains('\\')
            || text.trim().len() < text.len()
            || text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '[' | '{'))
            || matches!(*text, "true" | "false" | "null");
        !is_ambiguous
    });
    one_line(plain.unwrap_or(value)).into_owned()
}

/// Reads an array of objects. Returns `None` for anything else, and if an object has the same name twice.
fn parse_rows(text: Option<&str>) -> Option<Vec<Row<'_>>> {
    let Some(text) = text else { return Some(Vec::new()) };
    let text = text.trim();
    serde_json::from_str::<Vec<serde_json::Map<String, serde_json::Value>>>(text).ok()?;
    json::elements(text)
        .map(|(_, object)| {
            let row: Row<'_> =
                json::members(object).map(|json::Member { key, value, .. }| (key.into_owned(), value)).collect();
            let names: HashSet<&String> = row.iter().map(|(name, _)| name).collect();
            (names.len() == row.len()).then_some(row)
        })
        .collect()
}

/// Pairs rows by their first value if that identifies them on both sides and they keep their order, or else by their position.
/// An added row is where it is after the write.
fn pair_rows<'a>(old: Vec<Row<'a>>, new: Vec<Row<'a>>) -> Vec<(Option<Row<'a>>, Option<Row<'a>>)> {
    let key = old.first().or(new.first()).and_then(|row| row.first()).map(|(name, _)| name.clone()).unwrap_or_default();
    let positions = |rows: &[Row<'a>]| -> HashMap<&'a str, usize> {
        rows.iter().enumerate().filter_map(|(at, row)| Some((value_of(row, &key)?, at))).collect()
    };
    let new_positions = positions(&new);
    let partners: Vec<Option<usize>> = old.iter().map(|row| new_positions.get(value_of(row, &key)?).copied()).collect();
    let identifies = new_positions.len() == new.len() && positions(&old).len() == old.len();
    if !identifies || !partners.iter().flatten().is_sorted() {
        let rows = old.len().max(new.len());
        let (mut old, mut new) = (old.into_iter(), new.into_iter());
        return (0..rows).map(|_| (old.next(), new.next())).collect();
    }
    let mut new = new.into_iter().enumerate().peekable();
    let mut pairs = Vec::new();
    for (row, partner) in old.into_iter().zip(partners) {
        while let Some((_, added)) = new.next_if(|(at, _)| partner.is_some_and(|partner| *at < partner)) {
            pairs.push((None, Some(added)));
        }
        pairs.push((Some(row), partner.and_then(|_| new.next()).map(|(_, row)| row)));
    }
    pairs.extend(new.map(|(_, added)| (None, Some(added))));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked_lines(before: Option<&str>, after: Option<&str>) -> Vec<String> {
        let mark = |op| match op {
            LineOp::Insert => '+',
            LineOp::Delete => '-',
            _ => ' ',
        };
        let lines = RowTable::compare(before, after).unwrap().lines();
        lines.iter().map(|line| format!("{} {}", mark(line.op), line.text)).collect()
    }

    #[test]
    fn rows_are_paired_by_their_first_value_and_aligned() {
        let before = r#"[{"id":1,"name":"Ann"},{"id":2,"name":"Bob"},{"id":12345678901234567890,"name":"x\ny"}]"#;
        let after = r#"[{"id":2,"name":"Bobby"},{"id":12345678901234567890,"name":"x\ny"},{"id":4}]"#;
        let expected = [
            "  id                    name",
            "- 1                     Ann",
            "- 2                     Bob",
            "+ 2                     Bobby",
            r#"  12345678901234567890  "x\ny""#,
            "+ 4                     -",
        ];
        assert_eq!(marked_lines(Some(before), Some(after)), expected);
    }

    #[test]
    fn rows_without_identity_are_paired_by_position() {
        let expected = ["  a", "- x", "+ y", "  x"];
        assert_eq!(marked_lines(Some(r#"[{"a":"x"},{"a":"x"}]"#), Some(r#"[{"a":"y"},{"a":"x"}]"#)), expected);
    }

    #[test]
    fn rows_in_another_order_are_paired_by_position() {
        let expected = ["  id", "- 1", "+ 2", "- 2", "+ 1"];
        assert_eq!(marked_lines(Some(r#"[{"id":1},{"id":2}]"#), Some(r#"[{"id":2},{"id":1}]"#)), expected);
    }

    #[test]
    fn added_rows_are_where_they_are_after_the_write() {
        let (before, after) = (r#"[{"id":1},{"id":2},{"id":3}]"#, r#"[{"id":9},{"id":1},{"id":8},{"id":3},{"id":7}]"#);
        let expected = ["  id", "+ 9", "  1", "- 2", "+ 8", "  3", "+ 7"];
        assert_eq!(marked_lines(Some(before), Some(after)), expected);
    }

    #[test]
    fn rows_beyond_the_limit_are_counted() {
        let rows: Vec<String> = (0..53).map(|n| format!("{{\"n\":\"r{n}\"}}")).collect();
        let lines = marked_lines(None, Some(&format!("[{}]", rows.join(","))));
        assert_eq!(lines.len(), 1 + MAX_ROWS + 1);
        assert_eq!(lines.last().unwrap(), "  Rows beyond 50 are not compared: 3 more rows, which --json shows.");
    }

    #[test]
    fn other_texts_are_not_tables() {
        for text in ["", "[]", "{}", "[1]", r#"[{"a":1},2]"#, r#"[{"a":1,"a":2}]"#, "[{}]", r#"[{"a":1}] x"#] {
            assert!(RowTable::compare(None, Some(text)).is_none(), "{text}");
        }
    }
}
