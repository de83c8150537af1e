//! An upstream's result as its client gets it: the same bytes, but for what the other era has and the client's does not.

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
    /// An extension's.
    Other(Cow<'a, str>),
}

/// The members of a result that decide what becomes of it.
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
    /// One pass over the result.
    #[must_use]
    pub fn parse(result: &'a str) -> Self {
        let mut glance = Self::default();
        for member in members(result) {
            let value = Some(member.value);
            match member.key.as_ref() {
                "resultType" => glance.result_type = value,
                "isError" => glance.is_error = member.value == "true",
                "content" => glance.content = value,
                "messages" => glance.messages = value,
                "contents" => glance.contents = value,
                "structuredContent" => glance.structured = value,
                "_meta" => glance.meta = value,
                "ttlMs" => glance.ttl = value,
                "cacheScope" => glance.scope = value,
                _ => {}
            }
        }
        glance
    }

    /// Absent is complete; so is anything that is not even a string.
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
    fn tailor(&self) -> ContentAdapter<'a> {
        ContentAdapter { scheme: self.scheme, older: (self.client < self.upstream.revision).then_some(self.client) }
    }

    /// The reply that a result becomes.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] for a result that is no JSON object.
    pub fn reply(&self, result: Box<RawValue>) -> Result<Reply, McpError> {
        let text = result.get();
        if self.verb == Verb::Extension && text.starts_with('{') {
            // What its members mean is known to the two sides only.
            return Ok(Reply::passed_on(String::from(Box::<str>::from(result))));
        }
        let outcome = self.outcome(text, &ResultMembers::parse(text))?;
        Ok(outcome.reply(result))
    }

    /// Adapts a result whose members were parsed before. The result must not be that of an extension.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn outcome(&self, text: &str, glance: &ResultMembers<'_>) -> Result<AdaptedResult, McpError> {
        if !text.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        let failure = (self.verb == Verb::Tool && glance.is_error).then_some(ErrorKind::ToolExecution);
        Ok(AdaptedResult { changed: self.changed(text, glance), failure })
    }

    /// The same for a result that stands inside another.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn text(&self, result: &str) -> Result<String, McpError> {
        if !result.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        Ok(self.changed(result, &ResultMembers::parse(result)).unwrap_or_else(|| result.to_owned()))
    }

    /// `None` where nothing has to change.
    fn changed(&self, text: &str, glance: &ResultMembers<'_>) -> Option<String> {
        let (from, to) = (self.upstream.revision.era(), self.client.era());
        let tailor = self.tailor();
        let (content, structured) = self.content(&tailor, glance);
        let messages = glance.messages.and_then(|messages| tailor.messages(messages));
        let contents = glance.contents.and_then(|contents| tailor.contents(contents));
        let meta = if (from, to) == (Era::Legacy, Era::Modern) { self.server_info(glance) } else { None };
        let mut edits: Vec<(&str, MemberEdit<'_>)> = Vec::new();
        for (key, value) in [("content", &content), ("messages", &messages), ("contents", &contents), ("_meta", &meta)]
        {
            if let Some(value) = value {
                edits.push((key, MemberEdit::Set(value)));
            }
        }
        if structured == Structured::Drop {
            edits.push(("structuredContent", MemberEdit::Drop));
        }
        match (from, to) {
            (_, Era::Legacy) => {
                if glance.result_type.is_some() && from == Era::Modern {
                    edits.push(("resultType", MemberEdit::Drop));
                }
                if (glance.ttl.is_some() || glance.scope.is_some()) && from == Era::Modern {
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
            // Absent it means complete, but strict clients want to read that.
            (Era::Modern, Era::Modern) => {
                if glance.result_type.is_none() {
                    edits.push(("resultType", MemberEdit::Set(r#""complete""#)));
                }
            }
        }
        (!edits.is_empty()).then(|| edit(text, &edits))
    }

    /// The blocks, and whether `structuredContent` goes: it is then told as text, if nothing else is.
    fn content(&self, tailor: &ContentAdapter<'_>, glance: &ResultMembers<'_>) -> (Option<String>, Structured) {
        let rules = self.client.rules();
        let structured = glance.structured.filter(|value| {
            tailor.older.is_some()
                && (!rules.structured_content || (rules.structured_object_only && !value.starts_with('{')))
        });
        let Some(blocks) = glance.content else { return (None, Structured::of(structured)) };
        let changed = tailor.blocks(blocks);
        let told = match structured {
            Some(value) if elements(blocks).next().is_none() => Some(format!("[{}]", super::content::text(value))),
            _ => changed,
        };
        (told, Structured::of(structured))
    }

    /// `_meta` with who answers in it (2026-07-28/basic/index, "Per-response protocol fields").
    fn server_info(&self, glance: &ResultMembers<'_>) -> Option<String> {
        let meta = glance.meta.filter(|meta| meta.starts_with('{'));
        match (&self.upstream.server_info, meta) {
            (Some(info), None) => Some(add_members("{}", &[(keys::SERVER_INFO, info.get())])),
            (Some(info), Some(meta)) => Some(edit(meta, &[(keys::SERVER_INFO, MemberEdit::Default(info.get()))])),
            (None, None) => Some(SERVER_META.to_owned()),
            (None, Some(_)) => None,
        }
    }
}

/// See [`ResultAdapter::outcome`].
pub struct AdaptedResult {
    /// `None` for a result that stays as it is.
    changed: Option<String>,
    failure: Option<ErrorKind>,
}

impl AdaptedResult {
    /// The reply; `result` is the one that it is the outcome of.
    #[must_use]
    pub fn reply(self, result: Box<RawValue>) -> Reply {
        let json = self.changed.unwrap_or_else(|| String::from(Box::<str>::from(result)));
        Reply::passed_on(json).failing(self.failure)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Structured {
    Keep,
    Drop,
}

impl Structured {
    fn of(unfit: Option<&str>) -> Self {
        if unfit.is_some() { Self::Drop } else { Self::Keep }
    }
}

/// A result that needs input, as JSON.
#[must_use]
pub fn input_result<'q>(
    requests: impl Iterator<Item = (&'q str, &'q str, Option<&'q str>)>,
    state: Option<&str>,
    meta: &str,
) -> String {
    let mut out = String::from(r#"{"resultType":"input_required","inputRequests":{"#);
    for (at, (key, method, params)) in requests.enumerate() {
        if at > 0 {
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

    const OLD: Revision = Revision::V2025_11_25;
    const NEW: Revision = Revision::MODERN;

    fn translate(verb: Verb, (client, upstream): (Revision, Revision), result: &str) -> String {
        let upstream = negotiated(upstream);
        let dress = ResultAdapter { verb, client, upstream: &upstream, scheme: "" };
        dress.reply(RawValue::from_string(result.to_owned()).unwrap()).unwrap().json
    }

    #[test]
    fn only_what_one_era_has_and_the_other_lacks_is_changed() {
        let meta = &SERVER_META[1..];
        for (verb, eras, result, expected) in [
            (Verb::Tool, (OLD, OLD), r#"{ "content":[ ],"n":1e2 }"#, r#"{ "content":[ ],"n":1e2 }"#.to_owned()),
            (Verb::Tool, (NEW, NEW), r#"{"resultType":"complete","x":1}"#, r#"{"resultType":"complete","x":1}"#.into()),
            (Verb::Tool, (NEW, NEW), r#"{"x":1}"#, r#"{"x":1,"resultType":"complete"}"#.into()),
            (Verb::Tool, (OLD, NEW), r#"{"resultType":"complete","x":1,"ttlMs":5}"#, r#"{"x":1}"#.into()),
            // Of a server of its own era it is the server's own word.
            (Verb::Tool, (OLD, OLD), r#"{"resultType":"mine"}"#, r#"{"resultType":"mine"}"#.into()),
            (Verb::Tool, (NEW, OLD), r#"{"x":1}"#, format!(r#"{{"x":1,"_meta":{{{meta},"resultType":"complete"}}"#)),
            (
                Verb::Resource,
                (NEW, OLD),
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
    fn a_server_that_names_itself_is_named_and_no_other() {
        let info = RawValue::from_string(r#"{"name":"x"}"#.into()).unwrap();
        let upstream = NegotiatedSession { server_info: Some(Arc::from(info)), ..negotiated(OLD) };
        let dress = ResultAdapter { verb: Verb::Tool, client: NEW, upstream: &upstream, scheme: "" };
        let named = r#""io.modelcontextprotocol/serverInfo":{"name":"x"}"#;
        assert_eq!(dress.text("{}").unwrap(), format!(r#"{{"_meta":{{{named}}},"resultType":"complete"}}"#));
        let own = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"y"}}}"#;
        assert!(dress.text(own).unwrap().contains(r#"{"name":"y"}"#), "it says so itself");
    }

    #[test]
    fn structured_content_that_a_client_does_not_know_is_told_as_text_where_nothing_else_is() {
        let silent = r#"{"content":[],"structuredContent":[1,2]}"#;
        let telling = r#"{"content":[{"type":"text","text":"x"}],"structuredContent":[1,2]}"#;
        for (client, result, expected) in [
            (Revision::V2025_03_26, silent, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
            (Revision::V2025_06_18, silent, r#"{"content":[{"type":"text","text":"[1,2]"}]}"#),
            (OLD, telling, r#"{"content":[{"type":"text","text":"x"}]}"#),
            (OLD, r#"{"content":[],"structuredContent":{"a":1}}"#, r#"{"content":[],"structuredContent":{"a":1}}"#),
            (NEW, silent, r#"{"content":[],"structuredContent":[1,2],"resultType":"complete"}"#),
        ] {
            assert_eq!(translate(Verb::Tool, (client, NEW), result), expected, "{client:?}");
        }
    }

    #[test]
    fn a_failure_is_one_of_tools_only_and_a_result_is_an_object() {
        let upstream = negotiated(NEW);
        for (verb, failure) in [(Verb::Tool, Some(ErrorKind::ToolExecution)), (Verb::Prompt, None)] {
            let dress = ResultAdapter { verb, client: NEW, upstream: &upstream, scheme: "" };
            let reply = |text: &str| dress.reply(RawValue::from_string(text.to_owned()).unwrap());
            assert_eq!(reply(r#"{"isError":true}"#).unwrap().failure, failure);
            assert_eq!(reply(r#"{"isError":"true"}"#).unwrap().failure, None);
            assert_eq!(reply("[]").unwrap_err().kind, ErrorKind::NotBridgeable);
        }
    }

    #[test]
    fn a_result_is_complete_unless_it_says_otherwise() {
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
