//! The result of a tool call.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use countersign_domain::text::truncate;
use countersign_protocol::{McpError, Revision};

/// The result of a tool call. [`Self::to_json`] encodes it for the client's revision.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResult {
    /// The `content` array, as JSON.
    pub content: Box<RawValue>,
    /// The structured answer, as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured_content: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_error: bool,
}

impl ToolResult {
    /// Returns a result with one text block and the same content in structured form.
    pub fn text(text: &str, structured: Option<&Value>) -> Self {
        let raw = |v: &Value| RawValue::from_string(v.to_string()).unwrap_or_default();
        Self {
            content: raw(&serde_json::json!([{ "type": "text", "text": text }])),
            structured_content: structured.map(raw),
            is_error: false,
        }
    }

    /// Returns the result of a failed call: `{"error": true, "code", "message", "details"}` as text and as
    /// `structuredContent`.
    pub fn error(error: &McpError) -> Self {
        // Details of the error itself, such as the invalid arguments, take precedence.
        let own_details = error.data.get("details").filter(|details| details.is_object());
        let details = own_details.cloned().unwrap_or_else(|| Value::Object(error.data.clone()));
        let body = serde_json::json!({
            "error": true,
            "code": error.kind.code(),
            "message": error.message,
            "details": details,
        });
        Self { is_error: true, ..Self::text(&body.to_string(), Some(&body)) }
    }

    /// Returns the result as JSON for a client of the revision. The structured content is left out if `structured` is `false`
    /// or the revision has none.
    pub fn to_json(&self, revision: Revision, structured: bool) -> String {
        let mut out = String::with_capacity(self.content.get().len() + 64);
        out.push_str(r#"{"content":"#);
        out.push_str(self.content.get());
        if structured
            && revision.rules().structured_content
            && let Some(content) = &self.structured_content
        {
            out.push_str(r#","structuredContent":"#);
            out.push_str(content.get());
        }
        if self.is_error {
            out.push_str(r#","isError":true"#);
        }
        out.push('}');
        out
    }

    /// Parses a server's answer to `tools/call`. Missing `content`, or one that is no array, counts as empty, and an
    /// answer without a `resultType` as complete (2026-07-28/basic/index, "ResultType").
    ///
    /// # Errors
    /// [`AnswerError`]
    pub fn from_answer(json: &str) -> Result<Self, AnswerError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer<'a> {
            #[serde(borrow, default)]
            content: Option<&'a RawValue>,
            #[serde(borrow, default)]
            structured_content: Option<&'a RawValue>,
            #[serde(default)]
            is_error: Option<bool>,
            #[serde(default)]
            result_type: Option<String>,
        }
        let answer: Answer<'_> =
            serde_json::from_str(json).map_err(|error| AnswerError::Unreadable(error.to_string()))?;
        match answer.result_type.as_deref() {
            None | Some("complete") => {}
            Some("input_required") => return Err(AnswerError::InputRequired),
            Some(other) => {
                let result_type = truncate(other, 64);
                return Err(AnswerError::Unreadable(format!("its resultType is {result_type:?}")));
            }
        }
        let content = match answer.content {
            Some(content) if content.get().starts_with('[') => content.to_owned(),
            _ => RawValue::from_string("[]".into()).unwrap_or_default(),
        };
        let structured_content = answer.structured_content.map(ToOwned::to_owned);
        Ok(Self { content, structured_content, is_error: answer.is_error.unwrap_or(false) })
    }
}

/// The reason why an answer to `tools/call` is not a complete result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerError {
    /// The server needs input first.
    InputRequired,
    /// The answer violates the protocol; the text says how.
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn structured_content_depends_on_revision() {
        let result = ToolResult { is_error: true, ..ToolResult::text("x", Some(&json!({ "a": 1 }))) };
        for (revision, structured, is_included) in [
            (Revision::V2025_03_26, true, false),
            (Revision::V2025_06_18, true, true),
            (Revision::MODERN, false, false),
        ] {
            let json: Value = serde_json::from_str(&result.to_json(revision, structured)).unwrap();
            let included = json.get("structuredContent").is_some();
            assert_eq!((included, &json["isError"]), (is_included, &json!(true)), "{revision:?}");
        }
    }
}
