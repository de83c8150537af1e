//! Finds the lines of the entries of a map in block style, replaces lines, and writes new ones.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{
    tree::{KeyValue, LocatedNode},
    yaml::{yaml_text, yaml_value},
};

/// The reason why the lines cannot be edited, as the end of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotEditableError(pub String);

impl NotEditableError {
    pub(super) fn new(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}

/// The lines of a text, each with its line break.
pub(super) struct Lines {
    lines: Vec<String>,
    /// The line break of the first line, with which new lines end.
    pub line_break: &'static str,
}

/// The lines of one entry: from the line of its key up to the line after its last one. Comments and empty lines after an entry
/// belong to it only if they are indented further than its key.
#[derive(Clone, Debug)]
pub(super) struct LineRange {
    pub start: usize,
    pub end: usize,
}

/// The lines of the entries of a map or of the items of a list, in block style.
#[derive(Debug)]
pub(super) struct Block {
    /// The number of spaces before each key or dash.
    pub indent: usize,
    pub entries: Vec<LineRange>,
}

impl Lines {
    /// Splits a text into lines.
    pub(super) fn new(text: &str) -> Result<Self, NotEditableError> {
        if text.replace("\r\n", "\n").contains('\r') {
            return Err(NotEditableError::new("it has line breaks of an unusual kind"));
        }
        let lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        let has_crlf = lines.first().is_some_and(|line| line.ends_with("\r\n"));
        Ok(Self { lines, line_break: if has_crlf { "\r\n" } else { "\n" } })
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn join(self) -> String {
        self.lines.concat()
    }

    pub(super) fn line(&self, index: usize) -> &str {
        self.lines.get(index).map_or("", String::as_str)
    }

    /// Adds a section at the end, after an empty line if the text has others.
    pub(super) fn append_section(&mut self, text: &str) {
        let is_blank = self.lines.iter().all(|line| line.trim().is_empty());
        let before = if is_blank { "" } else { self.line_break };
        self.insert(self.lines.len(), &format!("{before}{text}"));
    }

    /// Inserts lines before the line at `index`. The last line of a file may lack its line break, which is added then.
    pub(super) fn insert(&mut self, index: usize, text: &str) {
        if text.is_empty() {
            return;
        }
        if let Some(before) = index.checked_sub(1).and_then(|before| self.lines.get_mut(before))
            && !before.ends_with('\n')
        {
            before.push_str(self.line_break);
        }
        self.lines.insert(index.min(self.lines.len()), text.to_owned());
    }

    /// Replaces the lines from `start` up to `end` with a text.
    pub(super) fn replace(&mut self, start: usize, end: usize, text: &str) {
        let text = (!text.is_empty()).then(|| text.to_owned());
        self.lines.splice(start..end.min(self.lines.len()), text);
    }

    /// Checks that nothing but a comment follows the key on its line, so that its value begins on the next one.
    pub(super) fn check_block_key(&self, index: usize, key: &str) -> Result<(), NotEditableError> {
        match self.split_key_line(index, key)? {
            (_, "", _) => Ok(()),
            _ => Err(NotEditableError(format!("{key} is not written as indented lines"))),
        }
    }

    /// Replaces the empty value on the line of the key with another one, or with none if indented lines are to follow.
    pub(super) fn replace_empty_value(&mut self, index: usize, key: &str, value: &str) -> Result<(), NotEditableError> {
        let (start, old_value, rest) = self.split_key_line(index, key)?;
        let is_empty = matches!(old_value, "" | "null" | "~") || old_value.replace(' ', "") == "{}";
        if !is_empty {
            return Err(NotEditableError(format!("{key} is not written as indented lines")));
        }
        let line = format!("{start}{value}{rest}");
        if let Some(old_line) = self.lines.get_mut(index) {
            *old_line = line;
        }
        Ok(())
    }

    /// Splits the line of a key into the part up to its colon, its trimmed value, and the rest with comment and line break.
    fn split_key_line(&self, index: usize, key: &str) -> Result<(&str, &str, &str), NotEditableError> {
        let line = self.line(index);
        let body = line.trim_start_matches(' ');
        let spellings = [key.to_owned(), format!("\"{key}\""), format!("'{key}'"), yaml_text(key)];
        let after =
            spellings.iter().find_map(|spelling| body.strip_prefix(spelling.as_str())?.trim_start().strip_prefix(':'));
        let after = after.ok_or_else(|| NotEditableError(format!("the key {key} is written in an unusual form")))?;
        let start = line.split_at(line.len() - after.len()).0;
        let comment = after.find(" #").or_else(|| after.find("\t#")).unwrap_or(after.trim_end().len());
        // The spaces before the comment belong to the rest.
        let value = after.split_at(comment).0.trim_end();
        Ok((start, value.trim_start(), after.split_at(value.len()).1))
    }
}

impl Block {
    /// Finds the lines of the entries of a map between the lines `first` and `end`.
    pub(super) fn find(lines: &Lines, map: &[KeyValue], first: usize, end: usize) -> Result<Self, NotEditableError> {
        let position = |entry: &KeyValue| Some((index_of(entry.line)?, index_of(entry.column)?));
        let starts: Option<Vec<(usize, usize)>> = map.iter().map(position).collect();
        let starts = starts.ok_or_else(|| NotEditableError::new("the position of a key is unknown"))?;
        Self::from_starts(lines, &starts, first, end)
            .ok_or_else(|| NotEditableError::new("not every entry is on lines of its own"))
    }

    /// Finds the lines of the items of a list between the lines `first` and `end`. Each item begins with a dash.
    pub(super) fn find_items(
        lines: &Lines,
        items: &[LocatedNode],
        first: usize,
        end: usize,
    ) -> Result<Self, NotEditableError> {
        let position = |item: &LocatedNode| {
            let line = index_of(item.line)?;
            let body = lines.line(line).trim_start_matches(' ');
            body.starts_with("- ").then_some((line, lines.line(line).len() - body.len()))
        };
        let starts: Option<Vec<(usize, usize)>> = items.iter().map(position).collect();
        starts
            .and_then(|starts| Self::from_starts(lines, &starts, first, end))
            .ok_or_else(|| NotEditableError::new("not every rule begins on a line of its own"))
    }

    /// Returns the block of the entries that begin at these lines and columns. Returns `None` unless each begins on a line of its
    /// own between `first` and `end`, and all have the same indentation.
    fn from_starts(lines: &Lines, starts: &[(usize, usize)], first: usize, end: usize) -> Option<Self> {
        let indent = starts.first().map_or(0, |(_, column)| *column);
        let is_alone = |(line, column): &(usize, usize)| {
            *column == indent && lines.line(*line).get(..indent).is_some_and(|before| before.bytes().all(|b| b == b' '))
        };
        let is_ascending = starts.windows(2).all(|pair| matches!(pair, [before, next] if before.0 < next.0));
        let is_inside = starts.iter().all(|(line, _)| (first..end).contains(line));
        if !is_ascending || !is_inside || !starts.iter().all(is_alone) {
            return None;
        }
        let ends = starts.iter().skip(1).map(|(line, _)| *line).chain([end]);
        let entries = starts
            .iter()
            .zip(ends)
            .map(|(&(start, _), end)| LineRange { start, end: content_end(lines, start, end, indent) });
        Some(Self { indent, entries: entries.collect() })
    }

    /// Returns the lines of the entry at `index` of the map.
    pub(super) fn find_range(&self, index: usize) -> Result<LineRange, NotEditableError> {
        self.entries.get(index).cloned().ok_or_else(|| NotEditableError::new("the position of a key is unknown"))
    }

    /// Returns the line after the last entry.
    pub(super) fn end(&self) -> usize {
        self.entries.last().map_or(0, |range| range.end)
    }
}

/// Converts a line or column of the parser, which counts from 1; `None` if it is unknown.
fn index_of(number: u64) -> Option<usize> {
    usize::try_from(number).ok()?.checked_sub(1)
}

/// Returns the end of an entry without the comments and empty lines after it.
fn content_end(lines: &Lines, start: usize, end: usize, indent: usize) -> usize {
    let is_trailing = |line: &str| {
        let body = line.trim_start_matches([' ', '\t']);
        let is_document_end = line.trim_end() == "...";
        body.trim().is_empty() || is_document_end || (body.starts_with('#') && line.len() - body.len() <= indent)
    };
    let mut end = end;
    while end > start + 1 && is_trailing(lines.line(end - 1)) {
        end -= 1;
    }
    end
}

/// Appends a key with its value: a map on indented lines, and any other value on the line of the key.
pub(super) fn format_entry(out: &mut String, indent: usize, key: &str, value: &Value, line_break: &str) {
    let _ = write!(out, "{:indent$}{}:", "", yaml_text(key));
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            out.push_str(line_break);
            for (key, value) in entries {
                format_entry(out, indent + 2, key, value, line_break);
            }
        }
        other => {
            let _ = write!(out, " {}{line_break}", yaml_value(other, &yaml_text));
        }
    }
}
