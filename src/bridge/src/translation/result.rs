//! Translates an upstream's result for its client. Only what the client's era lacks or requires is changed; unchanged
//! content is not copied.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::request::RequestedItem;
use countersign_domain::questions::ELICITATION;
use countersign_exchange::reply::{Reply, SERVER_META};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    json::{MemberEdit, edit, elements, map_elements, member, members, object, quoted, set_members, string},
    params::keys,
};
use countersign_upstream::NegotiatedSession;

/// The type of a result, which its `resultType` states (2026-07-28/basic/index, "ResultType").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResultType<'a> {
    Complete,
    InputRequired,
    /// A type that only an extension defines.
    Extension(Cow<'a, str>),
}

/// Returns `true` for the result of a tool that describes an error.
pub fn is_error_result(result: &str) -> bool {
    member(result, "isError") == Some("true")
}

/// Checks that an upstream's result is a JSON object.
///
/// # Errors
/// [`ErrorKind::NotBridgeable`] for any other value.
pub fn check_object(result: &str) -> Result<(), McpError> {
    if result.starts_with('{') {
        return Ok(());
    }
    Err(McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not an object"))
}

/// The members of a result that decide how it is handled, as JSON text.
#[derive(Debug, Default)]
pub struct ResultMembers<'a> {
    result_type: Option<&'a str>,
    pub is_error: bool,
    content: Option<&'a str>,
    messages: Option<&'a str>,
    contents: Option<&'a str>,
    structured_content: Option<&'a str>,
    meta: Option<&'a str>,
    pub ttl_ms: Option<&'a str>,
    pub cache_scope: Option<&'a str>,
}

impl<'a> ResultMembers<'a> {
    /// Finds the members in one pass over the result.
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
                "structuredContent" => parsed.structured_content = value,
                "_meta" => parsed.meta = value,
                "ttlMs" => parsed.ttl_ms = value,
                "cacheScope" => parsed.cache_scope = value,
                _ => {}
            }
        }
        parsed
    }

    /// Parses the type of the result. A missing `resultType`, or one that is not a string, means complete.
    pub fn parse_type(&self) -> ResultType<'a> {
        match self.result_type.and_then(string) {
            None => ResultType::Complete,
            Some(name) if name == "complete" => ResultType::Complete,
            Some(name) if name == "input_required" => ResultType::InputRequired,
            Some(name) => ResultType::Extension(name),
        }
    }
}

/// Adapts results and errors of an upstream to a client's revision.
pub struct ResponseAdapter<'a> {
    pub item: RequestedItem<'a>,
    pub client: Revision,
    pub upstream: &'a NegotiatedSession,
    /// The prefix of exposed URIs; empty if the upstream's own URIs are used.
    pub uri_prefix: &'a str,
}

impl<'a> ResponseAdapter<'a> {
    fn content_adapter(&self) -> ContentAdapter<'a> {
        let older_revision = (self.client < self.upstream.revision).then_some(self.client);
        ContentAdapter { uri_prefix: self.uri_prefix, older_revision }
    }

    /// Converts a result into the reply.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] for a result that is not a JSON object.
    pub fn reply(&self, result: Box<RawValue>) -> Result<Reply, McpError> {
        let text = result.get();
        if self.item.is_extension() && text.starts_with('{') {
            // Only the two sides know what the members mean.
            return Ok(Reply::verbatim(String::from(Box::<str>::from(result))));
        }
        let adapted = self.adapt_parsed(text, &ResultMembers::parse(text))?;
        Ok(adapted.reply(result))
    }

    /// Adapts a result whose members were parsed before. It must not be a result of an extension.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn adapt_parsed(&self, text: &str, parsed: &ResultMembers<'_>) -> Result<AdaptedResult, McpError> {
        check_object(text)?;
        let failure = (self.item.is_tool() && parsed.is_error).then_some(ErrorKind::ToolExecution);
        Ok(AdaptedResult { changed: self.changed_text(text, parsed), failure })
    }

    /// Adapts a result that is part of another result.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub fn adapt_nested(&self, result: &str) -> Result<String, McpError> {
        check_object(result)?;
        Ok(self.changed_text(result, &ResultMembers::parse(result)).unwrap_or_else(|| result.to_owned()))
    }

    /// Returns the changed result, or `None` if it stays unchanged.
    fn changed_text(&self, text: &str, parsed: &ResultMembers<'_>) -> Option<String> {
        let (from, to) = (self.upstream.revision.era(), self.client.era());
        let adapter = self.content_adapter();
        let (content, drops_structured) = self.adapt_content(&adapter, parsed);
        let messages = parsed.messages.and_then(|messages| adapter.adapt_messages(messages));
        let contents = parsed.contents.and_then(|contents| adapter.adapt_contents(contents));
        let meta = if (from, to) == (Era::Legacy, Era::Modern) { self.meta_with_server_info(parsed) } else { None };
        let mut edits =
            set_members([("content", &content), ("messages", &messages), ("contents", &contents), ("_meta", &meta)]);
        if drops_structured {
            edits.push(("structuredContent", MemberEdit::Drop));
        }
        match (from, to) {
            (Era::Legacy, Era::Legacy) => {}
            (Era::Modern, Era::Legacy) => {
                // A result without these members is not copied.
                let members =
                    [("resultType", parsed.result_type), ("ttlMs", parsed.ttl_ms), ("cacheScope", parsed.cache_scope)];
                edits.extend(members.into_iter().filter_map(|(key, value)| value.map(|_| (key, MemberEdit::Drop))));
            }
            (Era::Legacy, Era::Modern) => {
                edits.push(("resultType", MemberEdit::Set(r#""complete""#)));
                if self.item.is_resource() {
                    edits.push(("ttlMs", MemberEdit::SetIfMissing("0")));
                    edits.push(("cacheScope", MemberEdit::SetIfMissing(r#""private""#)));
                }
            }
            // A missing `resultType` means complete, but strict clients require it, and the hints of resources too
            // (2026-07-28/server/utilities/caching).
            (Era::Modern, Era::Modern) => {
                if parsed.result_type.is_none() {
                    edits.push(("resultType", MemberEdit::Set(r#""complete""#)));
                }
                let is_resource = self.item.is_resource() && parsed.parse_type() == ResultType::Complete;
                if is_resource && parsed.ttl_ms.is_none() {
                    edits.push(("ttlMs", MemberEdit::Set("0")));
                }
                if is_resource && parsed.cache_scope.is_none() {
                    edits.push(("cacheScope", MemberEdit::Set(r#""private""#)));
                }
            }
        }
        (!edits.is_empty()).then(|| edit(text, &edits))
    }

    /// Returns the changed blocks, or `None` if they stay unchanged, and `true` if `structuredContent` is dropped.
    /// Dropped content becomes text if the result has no other content.
    fn adapt_content(&self, adapter: &ContentAdapter<'_>, parsed: &ResultMembers<'_>) -> (Option<String>, bool) {
        let rules = self.client.rules();
        let unsupported = parsed.structured_content.filter(|value| {
            adapter.older_revision.is_some()
                && (!rules.structured_content || (rules.structured_object_only && !value.starts_with('{')))
        });
        // Asked only if need be, because finding the first block reads all of it.
        let has_blocks = || parsed.content.is_some_and(|blocks| elements(blocks).next().is_some());
        let blocks = match unsupported {
            Some(value) if !has_blocks() => Some(format!("[{}]", text_block(value))),
            _ => parsed.content.and_then(|blocks| adapter.adapt_blocks(blocks)),
        };
        (blocks, unsupported.is_some())
    }

    /// Returns `_meta` with the name of the server (2026-07-28/basic/index, "Per-response protocol fields"), or `None` if
    /// it stays unchanged.
    fn meta_with_server_info(&self, parsed: &ResultMembers<'_>) -> Option<String> {
        let meta = parsed.meta.filter(|meta| meta.starts_with('{'));
        match (&self.upstream.server_info, meta) {
            (Some(info), None) => Some(object([(keys::SERVER_INFO, info.get())])),
            (Some(info), Some(meta)) => Some(edit(meta, &[(keys::SERVER_INFO, MemberEdit::SetIfMissing(info.get()))])),
            (None, None) => Some(SERVER_META.to_owned()),
            (None, Some(_)) => None,
        }
    }
}

/// The changes that [`ResponseAdapter::adapt_parsed`] makes to a result.
pub struct AdaptedResult {
    /// The changed result; `None` for a result that stays unchanged.
    changed: Option<String>,
    failure: Option<ErrorKind>,
}

impl AdaptedResult {
    /// Converts the adapted result into the reply. `result` is the original result.
    #[must_use]
    pub fn reply(self, result: Box<RawValue>) -> Reply {
        let json = self.changed.unwrap_or_else(|| String::from(Box::<str>::from(result)));
        Reply::verbatim(json).with_failure(self.failure)
    }
}

/// A request in `inputRequests`, which asks a stateless client for input.
#[derive(Clone, Copy, Debug)]
pub struct InputRequest<'q> {
    pub key: &'q str,
    pub method: &'q str,
    /// The parameters as JSON text.
    pub params: Option<&'q str>,
}

impl<'q> InputRequest<'q> {
    /// Creates the request for an elicitation.
    pub const fn elicitation(key: &'q str, params: &'q str) -> Self {
        Self { key, method: ELICITATION, params: Some(params) }
    }
}

/// Returns a result that asks for input, as JSON text.
pub fn input_required_result<'q>(
    requests: impl IntoIterator<Item = InputRequest<'q>>,
    state: Option<&str>,
    meta: &str,
) -> String {
    let (requests, state) = (input_requests(requests), state.map(quoted));
    let type_and_requests = [("resultType", r#""input_required""#), ("inputRequests", requests.as_str())];
    let state = state.iter().map(|state| ("requestState", state.as_str()));
    object(type_and_requests.into_iter().chain(state).chain([("_meta", meta)]))
}

/// Returns `inputRequests` as JSON text.
pub fn input_requests<'q>(requests: impl IntoIterator<Item = InputRequest<'q>>) -> String {
    let request = |InputRequest { key, method, params }: InputRequest<'q>| {
        let method = quoted(method);
        (key, object([("method", method.as_str())].into_iter().chain(params.map(|params| ("params", params)))))
    };
    let requests: Vec<(&str, String)> = requests.into_iter().map(request).collect();
    object(requests.iter().map(|(key, request)| (*key, request.as_str())))
}

/// Adapts content for one client: exposes URIs, and removes or replaces what the client's revision lacks. Its methods
/// return `None` for content that stays unchanged.
#[derive(Clone, Copy, Debug)]
struct ContentAdapter<'a> {
    /// The prefix of exposed URIs; empty if the upstream's own URIs are used.
    uri_prefix: &'a str,
    /// The client's revision, if it is older than the upstream's.
    older_revision: Option<Revision>,
}

impl ContentAdapter<'_> {
    /// Adapts the elements of an array, which is not read if no content has to be changed.
    fn adapt_elements<'t>(&self, array: &'t str, adapt: impl Fn(&'t str) -> Option<String>) -> Option<String> {
        let changes_nothing = self.uri_prefix.is_empty() && self.older_revision.is_none();
        if changes_nothing { None } else { map_elements(array, adapt) }
    }

    /// Adapts the `content` of a tool result.
    fn adapt_blocks(&self, array: &str) -> Option<String> {
        self.adapt_elements(array, |block| self.adapt_block(block))
    }

    /// Adapts the `messages` of a prompt.
    fn adapt_messages(&self, array: &str) -> Option<String> {
        self.adapt_elements(array, |message| {
            let content = self.adapt_block(member(message, "content")?)?;
            Some(edit(message, &[("content", MemberEdit::Replace(&content))]))
        })
    }

    /// Adapts the `contents` of a resource.
    fn adapt_contents(&self, array: &str) -> Option<String> {
        self.adapt_elements(array, |contents| self.adapt_resource(contents))
    }

    /// Adapts one block of content.
    fn adapt_block(&self, block: &str) -> Option<String> {
        let kind = member(block, "type").and_then(string).unwrap_or_default();
        let rules = self.older_revision.map(Revision::rules);
        if let Some(rules) = rules {
            match kind.as_ref() {
                "audio" if !rules.annotations => return Some(text_block(&format!("[audio, {}]", mime_type(block)))),
                "resource_link" if !rules.structured_content => return Some(text_block(&self.link_text(block))),
                _ => {}
            }
        }
        let annotations = rules
            .filter(|rules| !rules.structured_content)
            .and_then(|_| member(block, "annotations"))
            .and_then(|annotations| without_member(annotations, "lastModified"));
        let resource = match kind.as_ref() {
            "resource" => member(block, "resource").and_then(|resource| self.adapt_resource(resource)),
            _ => None,
        };
        let uri = if kind == "resource_link" { self.exposed_uri(block) } else { None };
        let mut edits = set_members([("annotations", &annotations), ("resource", &resource), ("uri", &uri)]);
        if let Some(rules) = rules {
            if !rules.structured_content && member(block, "_meta").is_some() {
                edits.push(("_meta", MemberEdit::Drop));
            }
            if !rules.icons && kind == "resource_link" && member(block, "icons").is_some() {
                edits.push(("icons", MemberEdit::Drop));
            }
        }
        (!edits.is_empty()).then(|| edit(block, &edits))
    }

    /// Adapts the contents of an embedded or read resource.
    fn adapt_resource(&self, resource: &str) -> Option<String> {
        let uri = self.exposed_uri(resource);
        let mut edits = set_members([("uri", &uri)]);
        if self.older_revision.is_some_and(|r| !r.rules().structured_content) && member(resource, "_meta").is_some() {
            edits.push(("_meta", MemberEdit::Drop));
        }
        (!edits.is_empty()).then(|| edit(resource, &edits))
    }

    /// Returns the exposed form of an object's `uri`, as JSON text.
    fn exposed_uri(&self, object: &str) -> Option<String> {
        let uri_prefix = Some(self.uri_prefix).filter(|uri_prefix| !uri_prefix.is_empty())?;
        let upstream_uri = string(member(object, "uri")?)?;
        Some(quoted(&format!("{uri_prefix}{upstream_uri}")))
    }

    /// Describes a resource link as text, for clients that do not know links.
    fn link_text(&self, block: &str) -> String {
        let uri = member(block, "uri").and_then(string).unwrap_or_default();
        let name = member(block, "title").or_else(|| member(block, "name")).and_then(string).unwrap_or_default();
        let description = member(block, "description").and_then(string).unwrap_or_default();
        let uri_prefix = self.uri_prefix;
        format!("[resource {uri_prefix}{uri} {name}{}{description}]", if description.is_empty() { "" } else { ": " })
    }
}

/// Returns a text block as JSON text.
fn text_block(text: &str) -> String {
    format!(r#"{{"type":"text","text":{}}}"#, quoted(text))
}

fn mime_type(block: &str) -> Cow<'_, str> {
    member(block, "mimeType").and_then(string).unwrap_or_default()
}

fn without_member(object: &str, key: &str) -> Option<String> {
    member(object, key).map(|_| edit(object, &[(key, MemberEdit::Drop)]))
}

#[cfg(test)]
mod tests;
