//! Small helpers for the text that modules write for models and people.
//!
//! What a caller wrote is hostile: on a line of ours it must not be able to start a line of its own.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use super::ToolResult;
use countersign_domain::changes::visible::visible;
use countersign_protocol::McpError;

/// The text on one line: line breaks as `⏎`, hidden characters made visible, cut after `max` characters.
#[must_use]
pub fn one_line(text: &str, max: usize) -> Cow<'_, str> {
    let cut = match text.char_indices().nth(max) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let mut shown = visible(cut);
    if shown.contains(['\n', '\t']) {
        shown = Cow::Owned(shown.replace('\n', " ⏎ ").replace('\t', " "));
    }
    if cut.len() < text.len() {
        shown.to_mut().push('…');
    }
    shown
}

/// An argument that a tool cannot accept: in `details.errors`, as the check against the input schema says it, where it stands
/// (a JSON pointer) and which rule it breaks.
#[must_use]
pub fn invalid_argument(pointer: &str, rule: &str, message: impl Into<String>) -> McpError {
    let message = message.into();
    let fault = json!({ "pointer": pointer, "rule": rule, "message": message });
    McpError::invalid(message, vec![fault])
}

#[derive(Serialize)]
struct TextBlock<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

/// One text block and the structured answer, written without a detour through a tree.
///
/// # Errors
/// When `structured` cannot be written as JSON.
pub fn tool_result(text: &str, structured: &impl Serialize) -> Result<ToolResult, serde_json::Error> {
    Ok(ToolResult {
        content: to_raw_value(&[TextBlock { kind: "text", text }])?,
        structured_content: Some(to_raw_value(structured)?),
        is_error: false,
    })
}

/// The texts of a `content` array, joined; other kinds of content are named.
#[must_use]
pub fn content_text(content: &RawValue) -> String {
    #[derive(serde::Deserialize)]
    struct Block {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        text: Option<String>,
    }
    let blocks: Vec<Block> = serde_json::from_str(content.get()).unwrap_or_default();
    let parts: Vec<String> =
        blocks.into_iter().map(|b| b.text.unwrap_or_else(|| format!("[{} content]", b.kind))).collect();
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(one_line("Fix login", 200), "Fix login");
        assert_eq!(one_line("a\nb\tc\u{202e}", 200), "a ⏎ b c\\u{202e}");
        assert_eq!(one_line("äöü", 2), "äö…");
        assert_eq!(one_line("äö", 2), "äö");
    }

    #[test]
    fn content_is_joined() {
        let content = RawValue::from_string(r#"[{"type":"text","text":"a"},{"type":"image"}]"#.into()).unwrap();
        assert_eq!(content_text(&content), "a\n[image content]");
        assert_eq!(content_text(&RawValue::from_string("3".into()).unwrap()), "");
    }
}
