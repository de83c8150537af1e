//! Finds the rows in the answer of a server that ran a query: JSON, or a list as Python writes it.

use serde_json::{Map, Value};

use super::Row;
use crate::previews::fault::{Fault, redacted_line};

/// Maximum bytes of an answer.
const MAX_BYTES: usize = 4 << 20;
/// Maximum nesting of an answer.
const MAX_DEPTH: usize = 32;
/// Members in which servers put the rows: DBHub, Supabase and others.
const ROW_MEMBERS: [&str; 5] = ["data", "statements", "rows", "result", "results"];
/// Supabase puts the rows between two such tags.
const DATA_TAG: &str = "<untrusted-data-";

/// Returns the rows in the text of an answer.
pub(in crate::previews) fn parse_rows(tool: &str, text: &str) -> Result<Vec<Row>, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::new("answer", format!("the answer of {tool} is larger than {MAX_BYTES} bytes")));
    }
    find_rows_in_text(text, MAX_DEPTH).ok_or_else(|| {
        let reason = format!("the answer of {tool} has no rows: {}", redacted_line(text));
        Fault::new("answer", reason)
    })
}

fn find_rows_in_text(text: &str, depth: usize) -> Option<Vec<Row>> {
    let text = data_between_tags(text).unwrap_or(text).trim();
    let value = match text.parse::<Value>() {
        Ok(value) => value,
        Err(_) => PythonReader { rest: text }.read_whole()?,
    };
    find_rows(value, depth)
}

fn find_rows(value: Value, depth: usize) -> Option<Vec<Row>> {
    let depth = depth.checked_sub(1)?;
    match value {
        Value::Array(elements) => elements
            .into_iter()
            .map(|element| match element {
                Value::Object(row) => Some(row),
                _ => None,
            })
            .collect(),
        Value::Object(mut members) => {
            let name = ROW_MEMBERS.iter().find(|name| members.contains_key(**name))?;
            match (*name, members.swap_remove(*name)?) {
                // The results of several statements; a preview makes one query at a time.
                ("statements", Value::Array(mut results)) if results.len() == 1 => find_rows(results.pop()?, depth),
                ("statements", _) => None,
                (_, found) => find_rows(found, depth),
            }
        }
        Value::String(text) => find_rows_in_text(&text, depth),
        _ => None,
    }
}

/// Returns the text between the first opening tag that ends its line and its closing tag. The server repeats the random
/// name of the tag in the sentences around them.
fn data_between_tags(text: &str) -> Option<&str> {
    let begin = text.find(DATA_TAG)?;
    let tag = &text[begin..begin + text[begin..].find('>')? + 1];
    let closing = format!("</{}", &tag[1..]);
    let opening = format!("{tag}\n");
    let data = &text[text.find(&opening)? + opening.len()..];
    Some(&data[..data.find(&closing)?])
}

/// Reads the text form of Python values: lists, tuples, dicts, texts, numbers and `None`. Calls such as `Decimal('1')` are
/// kept as texts.
struct PythonReader<'t> {
    rest: &'t str,
}

impl PythonReader<'_> {
    fn read_whole(mut self) -> Option<Value> {
        let value = self.read(MAX_DEPTH)?;
        self.rest.trim().is_empty().then_some(value)
    }

    fn take(&mut self, token: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn read(&mut self, depth: usize) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.rest = self.rest.trim_start();
        match self.rest.chars().next()? {
            '[' => self.read_list(['[', ']'], depth),
            '(' => self.read_list(['(', ')'], depth),
            '{' => self.read_dict(depth),
            '\'' | '"' => self.read_text().map(Value::String),
            _ => self.read_word(depth),
        }
    }

    /// Reads the elements between two brackets, which commas separate.
    fn read_elements(
        &mut self,
        [opening, closing]: [char; 2],
        mut read_element: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        if !self.take(opening) {
            return None;
        }
        while !self.take(closing) {
            read_element(self)?;
            if !self.take(',') {
                return self.take(closing).then_some(());
            }
        }
        Some(())
    }

    fn read_list(&mut self, brackets: [char; 2], depth: usize) -> Option<Value> {
        let mut elements = Vec::new();
        self.read_elements(brackets, |reader| {
            elements.push(reader.read(depth)?);
            Some(())
        })?;
        Some(Value::Array(elements))
    }

    fn read_dict(&mut self, depth: usize) -> Option<Value> {
        let mut members = Map::new();
        self.read_elements(['{', '}'], |reader| {
            reader.rest = reader.rest.trim_start();
            let key = reader.read_text()?;
            (reader.take(':') && members.insert(key, reader.read(depth)?).is_none()).then_some(())
        })?;
        Some(Value::Object(members))
    }

    fn read_text(&mut self) -> Option<String> {
        let quote = self.rest.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1);
        while let Some((index, next)) = characters.next() {
            match next {
                '\\' => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    escape @ ('x' | 'u' | 'U') => {
                        let digits = match escape {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let digits: String = characters.by_ref().take(digits).map(|(_, digit)| digit).collect();
                        text.push(char::from_u32(u32::from_str_radix(&digits, 16).ok()?)?);
                    }
                    other => text.push(other),
                },
                _ if next == quote => {
                    self.rest = &self.rest[index + 1..];
                    return Some(text);
                }
                _ => text.push(next),
            }
        }
        None
    }

    fn read_word(&mut self, depth: usize) -> Option<Value> {
        let whole = self.rest;
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-');
        let end = whole.find(|c| !is_part(c)).unwrap_or(whole.len());
        let word = &whole[..end];
        self.rest = &whole[end..];
        match word {
            "" => None,
            "None" => Some(Value::Null),
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            // Bytes, and calls of constructors.
            "b" if self.rest.starts_with(['\'', '"']) => {
                self.read_text()?;
                Some(consumed(whole, self.rest).into())
            }
            _ if self.rest.starts_with('(') => {
                self.read_arguments(depth)?;
                Some(consumed(whole, self.rest).into())
            }
            _ => Some(word.parse::<Value>().unwrap_or_else(|_| word.into())),
        }
    }

    /// Skips the arguments of a call, some of which may be named.
    fn read_arguments(&mut self, depth: usize) -> Option<()> {
        self.read_elements(['(', ')'], |reader| {
            reader.read(depth)?;
            if reader.take('=') { reader.read(depth).map(|_| ()) } else { Some(()) }
        })
    }
}

/// Returns the part of `whole` before `rest`, which is its end.
fn consumed<'t>(whole: &'t str, rest: &str) -> &'t str {
    &whole[..whole.len() - rest.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows(text: &str) -> Option<Value> {
        parse_rows("t", text).ok().map(|rows| rows.into_iter().map(Value::Object).collect())
    }

    #[test]
    fn rows_of_dbhub_and_supabase_are_found() {
        let dbhub = json!({"success": true, "data": {"statements": [{"sql": "…", "rows": [{"n": "2"}], "count": 1}]}});
        assert_eq!(rows(&dbhub.to_string()), Some(json!([{"n": "2"}])));
        let tag = "untrusted-data-1b4e";
        let text =
            format!("Below … within the below <{tag}> boundaries.\n\n<{tag}>\n[{{\"n\":\"</x>\"}}]\n</{tag}>\n\nUse …");
        let supabase = json!({ "result": text });
        assert_eq!(rows(&supabase.to_string()), Some(json!([{"n": "</x>"}])));
        assert_eq!(rows(&text), Some(json!([{"n": "</x>"}])));
        assert_eq!(rows("[]"), Some(json!([])));
    }

    #[test]
    fn rows_in_python_form_are_found() {
        let text = r#"[{'id': 1, 'b': b'\x00\'', "it's": 'a\'b"\n\xe9\u20ac', 'n': None, 'r': 2e+300, 't': (1, True), 'd': Decimal('1.50'), 'e': {}}]"#;
        let expected = json!([{
            "id": 1, "b": r"b'\x00\''", "it's": "a'b\"\né€", "n": null, "r": 2e300, "t": [1, true], "d": "Decimal('1.50')", "e": {}
        }]);
        assert_eq!(rows(text), Some(expected));
        let moment = "[{'at': datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)}]";
        let expected = "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)";
        assert_eq!(rows(moment), Some(json!([{ "at": expected }])));
    }

    #[test]
    fn other_answers_have_no_rows() {
        let deep = "[".repeat(1000);
        for text in [
            "Database error: no such column: x",
            "",
            "[1, 2]",
            "[{'a': 1}] and more",
            "[{'a': 1, 'a': 2}]",
            "{\"success\": false, \"error\": \"x\"}",
            "{\"data\": {\"statements\": [{\"rows\": []}, {\"rows\": []}]}}",
            "{\"rows\": {\"rows\": 5}}",
            "[{'a': '\\x",
            "<untrusted-data-1>\n[",
            deep.as_str(),
        ] {
            assert_eq!(rows(text), None, "{text}");
        }
        assert_eq!(rows(&"x".repeat(MAX_BYTES + 1)), None);
    }
}
