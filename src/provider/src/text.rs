//! Helpers for the text that modules write for models and people.
//!
//! Text from callers is hostile: within a line that the gateway writes, it must not be able to begin a line of its own.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::{
    json,
    value::{RawValue, to_raw_value},
};

use super::ToolResult;
use countersign_domain::{changes::visible::escape_hidden, text::truncate};
use countersign_protocol::{ErrorKind, McpError};

/// Returns the text on one line: line breaks become `⏎`, hidden characters are escaped, and the text is cut after `max`
/// characters.
pub fn one_line(text: &str, max: usize) -> Cow<'_, str> {
    let cut = truncate(text, max);
    let mut line = escape_hidden(cut);
    if line.contains(['\n', '\t']) {
        line = Cow::Owned(line.replace('\n', " ⏎ ").replace('\t', " "));
    }
    if cut.len() < text.len() {
        line.to_mut().push('…');
    }
    line
}

/// Returns the start of a URI, for an error about a resource that does not exist.
pub fn cut_uri(uri: &str) -> &str {
    truncate(uri, 512)
}

/// Returns the error for an invalid argument. Like a failed check of the input schema, it lists in `details.errors` the
/// JSON pointer and the rule that is broken.
pub fn invalid_argument(pointer: &str, rule: &str, message: impl Into<String>) -> McpError {
    let message = message.into();
    let fault = json!({ "pointer": pointer, "rule": rule, "message": message });
    McpError::validation_failed(message, vec![fault])
}

#[derive(Serialize)]
struct TextBlock<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

/// Returns a result with one text block and the structured answer, serialized without an intermediate tree.
///
/// # Errors
/// Fails if `structured` cannot be serialized as JSON.
pub fn tool_result(text: &str, structured: &impl Serialize) -> Result<ToolResult, serde_json::Error> {
    Ok(ToolResult {
        content: to_raw_value(&[TextBlock { kind: "text", text }])?,
        structured_content: Some(to_raw_value(structured)?),
        is_error: false,
    })
}

/// Returns the error for a call of a tool that a module does not have. `module` begins its message: `The tracker`.
pub fn unknown_tool_error(module: &str, tool: &str) -> McpError {
    let short_name = one_line(tool, 64).into_owned();
    McpError::new(ErrorKind::ToolNotFound, format!("{module} has no tool `{short_name}`.")).with("tool", short_name)
}

/// Joins the texts of a `content` array. Other kinds of content are represented by their name.
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
    fn one_line_escapes_breaks_and_truncates() {
        assert_eq!(one_line("Fix login", 200), "Fix login");
        assert_eq!(one_line("a\nb\tc\u{202e}", 200), "a ⏎ b c\\u{202e}");
        assert_eq!(one_line("äöü", 2), "äö…");
        assert_eq!(one_line("äö", 2), "äö");
    }

    #[test]
    fn content_text_joins_blocks() {
        let content = RawValue::from_string(r#"[{"type":"text","text":"a"},{"type":"image"}]"#.into()).unwrap();
        assert_eq!(content_text(&content), "a\n[image content]");
        assert_eq!(content_text(&RawValue::from_string("3".into()).unwrap()), "");
    }
}
