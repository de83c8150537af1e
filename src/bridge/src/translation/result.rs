//! Translates an upstream's result for its client. Only what the client's era lacks or requires is changed.

use std::borrow::Cow;

use serde_json::{Value, value::RawValue};

use super::{content::ContentAdapter, request::Verb};
use countersign_exchange::reply::{Reply, SERVER_META};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    json::{MemberEdit, add_members, edit, elements, members, string},
    params::keys,
};
use countersign_upstream::NegotiatedSession;

/// The meaning of `resultType` (2026-07-28/basic/index, "ResultType").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    Complete,
    InputRequired,
    /// A result type of an extension.
    Other(Cow<'a, str>),
}

/// The members of a result that decide how it is handled.
#[derive(Debug, Default)]
pub struct ResultMembers<'a> {
    pub result_type: Option<&'a str>,
    pub is_error: bool,
    content: Option<&'a str>,
    messages: Option<&'a str>,
    contents: Option<&'a str>,
    structured: Option<&'a str>,
    meta: Option<&'a str>,
    /// `ttlMs` and `cacheScope`, as JSON text.
    pub ttl: Option<&'a str>,
    pub scope: Option<&'a str>,
}

impl<'a> ResultMembers<'a> {
    /// Finds the members in one pass over the result.
    #[must_use]
    pub fn parse(result: &'a str) -> Self {
        let mut parsed = Self::default();
        for member in members(result) {
            let value = Some(member.value);
            match member.key.as_ref() {
                "resultType" => parsed.result_type = value,
                "isError" => parsed.is_error = member.value == "true",
                "content" => parsed.content = value,
                "messages" => parsed.messages = value,
                "contents" => parsed.contents = value,
                "structuredContent" => parsed.structured = value,
                "_meta" => parsed.meta = value,
                "ttlMs" => parsed.ttl = value,
                "cacheScope" => parsed.scope = value,
                _ => {}
            }
        }
        parsed
    }

    /// Returns the kind of the result. A missing `resultType`, or one that is no string, means complete.
    #[must_use]
    pub fn kind(&self) -> Kind<'a> {
        match self.result_type.and_then(string) {
            None => Kind::Complete,
            Some(kind) if kind == "complete" => Kind::Complete,
            Some(kind) if kind == "input_required" => Kind::InputRequired,
            Some(kind) => Kind::Other(kind),
        }
    }
}

/// Adapts results of an upstream to a client's revision.
pub struct ResultAdapter<'a> {
    pub verb: Verb,
    pub client: Revision,
    pub upstream: &'a NegotiatedSession,
    /// The prefix of exposed URIs; empty if the upstream's own URIs are used.
    pub scheme: &'a str,
}

impl<'a> ResultAdapter<'a> {
    fn content_adapter(&self) -> ContentAdapter<'a> {
        ContentAdapter { scheme: self.scheme, older: (self.client < self.upstream.revision).then_some(self.client) }
    }

    /// Converts a result into the reply.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] for a result that is no JSON object.
    pub fn reply(&self, result: Box<RawValue>) -> Result<Reply, McpError> {
        let text = result.get();
        if self.verb == Verb::Extension && text.starts_with('{') {
            // Only the two sides know what the members mean.
            return Ok(Reply::passed_on(String::from(Box::<str>::from(result))));
        }
        let outcome = self.outcome(text, &ResultMembers::parse(text))?;
        Ok(outcome.reply(result))
    }

    /// Adapts a result whose members were parsed before. It must not be a result of an extension.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn outcome(&self, text: &str, parsed: &ResultMembers<'_>) -> Result<AdaptedResult, McpError> {
        if !text.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        let failure = (self.verb == Verb::Tool && parsed.is_error).then_some(ErrorKind::ToolExecution);
        Ok(AdaptedResult { changed: self.changed(text, parsed), failure })
    }

    /// Adapts a result that is part of another result.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn text(&self, result: &str) -> Result<String, McpError> {
        if !result.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        Ok(self.changed(result, &ResultMembers::parse(result)).unwrap_or_else(|| result.to_owned()))
    }

    /// Returns the changed result, or `None` if it stays unchanged.
    fn changed(&self, text: &str, parsed: &ResultMembers<'_>) -> Option<String> {
        let (from, to) = (self.upstream.revision.era(), self.client.era());
        let adapter = self.content_adapter();
        let (content, structured) = self.content(&adapter, parsed);
        let messages = parsed.messages.and_then(|messages| adapter.messages(messages));
        let contents = parsed.contents.and_then(|contents| adapter.contents(contents));
        let meta = if (from, to) == (Era::Legacy, Era::Modern) { self.server_info(parsed) } else { None };
        let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
        for (key, value) in [("content", &content), ("messages", &messages), ("contents", &contents), ("_meta", &meta)]
        {
            if let Some(value) = value {
                edits.push((key, MemberEdit::Set(value)));
            }
        }
        if structured == StructuredContent::Drop {
            edits.push(("structuredContent", MemberEdit::Drop));
        }
        match (from, to) {
            (_, Era::Legacy) => {
                if parsed.result_type.is_some() && from == Era::Modern {
                    edits.push(("resultType", MemberEdit::Drop));
                }
                if (parsed.ttl.is_some() || parsed.scope.is_some()) && from == Era::Modern {
                    edits.push(("ttlMs", MemberEdit::Drop));
                    edits.push(("cacheScope", MemberEdit::Drop));
                }
            }
            (Era::Legacy, Era::Modern) => {
                edits.push(("resultType", MemberEdit::Set(r#""complete""#)));
                if self.verb == Verb::Resource {
                    edits.push(("ttlMs", MemberEdit::Default("0")));
                    edits.push(("cacheScope", MemberEdit::Default(r#""private""#)));
                }
            }
            // A missing `resultType` means complete, but strict clients require it.
            (Era::Modern, Era::Modern) => {
                if parsed.result_type.is_none() {
                    edits.push(("resultType", MemberEdit::Set(r#""complete""#)));
                }
            }
        }
        (!edits.is_empty()).then(|| edit(text, &edits))
    }

    /// Returns the changed blocks, and whether `structuredContent` is dropped. Dropped content becomes text if the
    /// result has no other content.
    fn content(&self, adapter: &ContentAdapter<'_>, parsed: &ResultMembers<'_>) -> (Option<String>, StructuredContent) {
        let rules = self.client.rules();
        let structured = parsed.structured.filter(|value| {
            adapter.older.is_some()
                && (!rules.structured_content || (rules.structured_object_only && !value.starts_with('{')))
        });
        let Some(blocks) = parsed.content else { return (None, StructuredContent::for_unsupported(structured)) };
        let changed = adapter.blocks(blocks);
        let blocks = match structured {
            Some(value) if elements(blocks).next().is_none() => Some(format!("[{}]", super::content::text(value))),
            _ => changed,
        };
        (blocks, StructuredContent::for_unsupported(structured))
    }

    /// Returns `_meta` with the name of the server (2026-07-28/basic/index, "Per-response protocol fields").
    fn server_info(&self, parsed: &ResultMembers<'_>) -> Option<String> {
        let meta = parsed.meta.filter(|meta| meta.starts_with('{'));
        match (&self.upstream.server_info, meta) {
            (Some(info), None) => Some(add_members("{}", &[(keys::SERVER_INFO, info.get())])),
            (Some(info), Some(meta)) => Some(edit(meta, &[(keys::SERVER_INFO, MemberEdit::Default(info.get()))])),
            (None, None) => Some(SERVER_META.to_owned()),
            (None, Some(_)) => None,
        }
    }
}

/// The changes that [`ResultAdapter::outcome`] makes to a result.
pub struct AdaptedResult {
    /// The changed result; `None` for a result that stays unchanged.
    changed: Option<String>,
    failure: Option<ErrorKind>,
}

impl AdaptedResult {
    /// Converts the outcome into the reply. `result` is the original result.
    #[must_use]
    pub fn reply(self, result: Box<RawValue>) -> Reply {
        let json = self.changed.unwrap_or_else(|| String::from(Box::<str>::from(result)));
        Reply::passed_on(json).failing(self.failure)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StructuredContent {
    Keep,
    Drop,
}

impl StructuredContent {
    fn for_unsupported(content: Option<&str>) -> Self {
        if content.is_some() { Self::Drop } else { Self::Keep }
    }
}

/// Returns a result that asks for input, as JSON.
#[must_use]
pub fn input_result<'q>(
    requests: impl Iterator<Item = (&'q str, &'q str, Option<&'q str>)>,
    state: Option<&str>,
    meta: &str,
) -> String {
    let mut out = String::from(r#"{"resultType":"input_required","inputRequests":{"#);
    for (index, (key, method, params)) in requests.enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(&Value::from(key).to_string());
        out.push_str(r#":{"method":"#);
        out.push_str(&Value::from(method).to_string());
        if let Some(params) = params {
            out.push_str(r#","params":"#);
            out.push_str(params);
        }
        out.push('}');
    }
    out.push('}');
    if let Some(state) = state {
        out.push_str(&format!(r#","requestState":{}"#, Value::from(state)));
    }
    out.push_str(r#","_meta":"#);
    out.push_str(meta);
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use countersign_upstream::testing::negotiated;

    const LEGACY: Revision = Revision::V2025_11_25;
    const MODERN: Revision = Revision::MODERN;

    fn translate(verb: Verb, (client, upstream): (Revision, Revision), result: &str) -> String {
        let upstream = negotiated(upstream);
        let adapter = ResultAdapter { verb, client, upstream: &upstream, scheme: "" };
        adapter.reply(RawValue::from_string(result.to_owned()).unwrap()).unwrap().json
    }

    #[test]
    fn only_differences_between_eras_are_changed() {
        let meta = &SERVER_META[1..];
        for (verb, eras, result, expected) in [
            (Verb::Tool, (LEGACY, LEGACY), r#"{ "content":[ ],"n":1e2 }"#, r#"{ "content":[ ],"n":1e2 }"#.to_owned()),
            (
                Verb::Tool,
                (MODERN, MODERN),
                r#"{"resultType":"complete","x":1}"#,
                r#"{"resultType":"complete","x":1}"#.into(),
            ),
            (Verb::Tool, (MODERN, MODERN), r#"{"x":1}"#, r#"{"x":1,"resultType":"complete"}"#.into()),
            (Verb::Tool, (LEGACY, MODERN), r#"{"resultType":"complete","x":1,"ttlMs":5}"#, r#"{"x":1}"#.into()),
            // A server of the client's own era may use the member for its own purpose.
            (Verb::Tool, (LEGACY, LEGACY), r#"{"resultType":"mine"}"#, r#"{"resultType":"mine"}"#.into()),
            (
                Verb::Tool,
                (MODERN, LEGACY),
                r#"{"x":1}"#,
                format!(r#"{{"x":1,"_meta":{{{meta},"resultType":"complete"}}"#),
            ),
            (
                Verb::Resource,
                (MODERN, LEGACY),
                r#"{"contents":[],"ttlMs":7}"#,
                format!(
                    r#"{{"contents":[],"ttlMs":7,"_meta":{{{meta},"resultType":"complete","cacheScope":"private"}}"#
                ),
            ),
        ] {
            assert_eq!(translate(verb, eras, result), expected, "{eras:?}");
        }
    }

    #[test]
    fn server_info_is_added_unless_result_has_one() {
        let info = RawValue::from_string(r#"{"name":"x"}"#.into()).unwrap();
        let upstream = NegotiatedSession { server_info: Some(Arc::from(info)), ..negotiated(LEGACY) };
        let adapter = ResultAdapter { verb: Verb::Tool, client: MODERN, upstream: &upstream, scheme: "" };
        let named = r#""io.modelcontextprotocol/serverInfo":{"name":"x"}"#;
        assert_eq!(adapter.text("{}").unwrap(), format!(r#"{{"_meta":{{{named}}},"resultType":"complete"}}"#));
        let with_server_info = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"y"}}}"#;
        assert!(
            adapter.text(with_server_info).unwrap().contains(r#"{"name":"y"}"#),
            "the result's own server info stays"
        );
    }

    #[test]
    fn unsupported_structured_content_becomes_text_if_alone() {
        let without_blocks = r#"{"content":[],"structuredContent":[1,2]}"#;
        let with_blocks = r#"{"content":[{"type":"text","text":"x"}],"structuredContent":[1,2]}"#;
        for (client, result, expected) in [
            (Revision::V2025_03_26, without_blocks, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
            (Revision::V2025_06_18, without_blocks, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
            (LEGACY, with_blocks, r#"{"content":[{"type":"text","text":"x"}]}"#),
            (LEGACY, r#"{"content":[],"structuredContent":{"a":1}}"#, r#"{"content":[],"structuredContent":{"a":1}}"#),
            (MODERN, without_blocks, r#"{"content":[],"structuredContent":[1,2],"resultType":"complete"}"#),
        ] {
            assert_eq!(translate(Verb::Tool, (client, MODERN), result), expected, "{client:?}");
        }
    }

    #[test]
    fn only_tool_results_fail_and_results_are_objects() {
        let upstream = negotiated(MODERN);
        for (verb, failure) in [(Verb::Tool, Some(ErrorKind::ToolExecution)), (Verb::Prompt, None)] {
            let adapter = ResultAdapter { verb, client: MODERN, upstream: &upstream, scheme: "" };
            let reply = |text: &str| adapter.reply(RawValue::from_string(text.to_owned()).unwrap());
            assert_eq!(reply(r#"{"isError":true}"#).unwrap().failure, failure);
            assert_eq!(reply(r#"{"isError":"true"}"#).unwrap().failure, None);
            assert_eq!(reply("[]").unwrap_err().kind, ErrorKind::NotBridgeable);
        }
    }

    #[test]
    fn result_without_known_type_is_complete() {
        for (result, kind) in [
            ("{}", Kind::Complete),
            (r#"{"resultType":"complete"}"#, Kind::Complete),
            (r#"{"resultType":7}"#, Kind::Complete),
            (r#"{"resultType":"input\u005frequired"}"#, Kind::InputRequired),
            (r#"{"resultType":"task"}"#, Kind::Other("task".into())),
        ] {
            assert_eq!(ResultMembers::parse(result).kind(), kind, "{result}");
        }
    }
}
