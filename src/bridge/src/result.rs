//! An upstream's result as its client gets it: the same bytes, but for what the other era has and the client's does not.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{Verb, content::Tailor};
use countersign_exchange::reply::Reply;
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    edit::{Op, edit, members, string},
    params::keys,
    splice,
};
use countersign_upstream::Negotiated;

/// What `resultType` says of a result (2026-07-28/basic/index, "ResultType").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    Complete,
    InputRequired,
    /// An extension's.
    Other(Cow<'a, str>),
}

/// The members of a result that decide what becomes of it.
#[derive(Debug, Default)]
pub struct Glance<'a> {
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

impl<'a> Glance<'a> {
    /// One pass over the result.
    #[must_use]
    pub fn at(result: &'a str) -> Self {
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

/// Between whom a result passes.
pub struct Dress<'a> {
    pub verb: Verb,
    pub client: Revision,
    pub upstream: &'a Negotiated,
    /// What exposed URIs begin with; empty where the upstream's own are used.
    pub scheme: &'a str,
    /// `{"io.modelcontextprotocol/serverInfo": …}` of the gateway, for an upstream that did not name itself.
    pub gateway_meta: &'a str,
}

impl<'a> Dress<'a> {
    fn tailor(&self) -> Tailor<'a> {
        Tailor { scheme: self.scheme, older: (self.client < self.upstream.revision).then_some(self.client) }
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
        let outcome = self.outcome(text, &Glance::at(text))?;
        Ok(outcome.reply(result))
    }

    /// What becomes of a result at which somebody has had a glance; of no extension's.
    ///
    /// # Errors
    /// As [`Self::reply`].
    pub fn outcome(&self, text: &str, glance: &Glance<'_>) -> Result<DressedResult, McpError> {
        if !text.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        let failure = (self.verb == Verb::Tool && glance.is_error).then_some(ErrorKind::ToolExecution);
        Ok(DressedResult { changed: self.changed(text, glance), failure })
    }

    /// The same for a result that stands inside another.
    ///
    /// # Errors
    /// As [`Self::reply`].
    pub fn text(&self, result: &str) -> Result<String, McpError> {
        if !result.starts_with('{') {
            return Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"));
        }
        Ok(self.changed(result, &Glance::at(result)).unwrap_or_else(|| result.to_owned()))
    }

    /// `None` where nothing has to change.
    fn changed(&self, text: &str, glance: &Glance<'_>) -> Option<String> {
        let (from, to) = (self.upstream.revision.era(), self.client.era());
        let tailor = self.tailor();
        let (content, structured) = self.content(&tailor, glance);
        let messages = glance.messages.and_then(|messages| tailor.messages(messages));
        let contents = glance.contents.and_then(|contents| tailor.contents(contents));
        let meta = if (from, to) == (Era::Legacy, Era::Modern) { self.server_info(glance) } else { None };
        let mut edits: Vec<(&str, Op<'_>)> = Vec::new();
        for (key, value) in [("content", &content), ("messages", &messages), ("contents", &contents), ("_meta", &meta)]
        {
            if let Some(value) = value {
                edits.push((key, Op::Set(value)));
            }
        }
        if structured == Structured::Drop {
            edits.push(("structuredContent", Op::Drop));
        }
        match (from, to) {
            (_, Era::Legacy) => {
                if glance.result_type.is_some() && from == Era::Modern {
                    edits.push(("resultType", Op::Drop));
                }
                if (glance.ttl.is_some() || glance.scope.is_some()) && from == Era::Modern {
                    edits.push(("ttlMs", Op::Drop));
                    edits.push(("cacheScope", Op::Drop));
                }
            }
            (Era::Legacy, Era::Modern) => {
                edits.push(("resultType", Op::Set(r#""complete""#)));
                if self.verb == Verb::Resource {
                    edits.push(("ttlMs", Op::Default("0")));
                    edits.push(("cacheScope", Op::Default(r#""private""#)));
                }
            }
            // Absent it means complete, but strict clients want to read that.
            (Era::Modern, Era::Modern) => {
                if glance.result_type.is_none() {
                    edits.push(("resultType", Op::Set(r#""complete""#)));
                }
            }
        }
        (!edits.is_empty()).then(|| edit(text, &edits))
    }

    /// The blocks, and whether `structuredContent` goes: it is then told as text, if nothing else is.
    fn content(&self, tailor: &Tailor<'_>, glance: &Glance<'_>) -> (Option<String>, Structured) {
        let rules = self.client.rules();
        let structured = glance.structured.filter(|value| {
            tailor.older.is_some()
                && (!rules.structured_content || (rules.structured_object_only && !value.starts_with('{')))
        });
        let Some(blocks) = glance.content else { return (None, Structured::of(structured)) };
        let changed = tailor.blocks(blocks);
        let told = match structured {
            Some(value) if countersign_protocol::edit::elements(blocks).next().is_none() => {
                Some(format!("[{}]", super::content::text(value)))
            }
            _ => changed,
        };
        (told, Structured::of(structured))
    }

    /// `_meta` with who answers in it (2026-07-28/basic/index, "Per-response protocol fields").
    fn server_info(&self, glance: &Glance<'_>) -> Option<String> {
        let meta = glance.meta.filter(|meta| meta.starts_with('{'));
        match (&self.upstream.server_info, meta) {
            (Some(info), None) => Some(splice::add_members("{}", &[(keys::SERVER_INFO, info.get())])),
            (Some(info), Some(meta)) => Some(edit(meta, &[(keys::SERVER_INFO, Op::Default(info.get()))])),
            (None, None) => Some(self.gateway_meta.to_owned()),
            (None, Some(_)) => None,
        }
    }
}

/// See [`Dress::outcome`].
pub struct DressedResult {
    /// `None` for a result that stays as it is.
    changed: Option<String>,
    failure: Option<ErrorKind>,
}

impl DressedResult {
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
