//! Translates a client's request for its upstream. Only the name, the URI and the client facts in `_meta` change; all
//! other bytes stay the same. The request is never parsed into a tree of values.

use std::borrow::Cow;

use compact_str::{CompactString, ToCompactString};
use smallvec::SmallVec;

use countersign_protocol::{
    Era, Revision,
    json::{MemberAction, MemberEdit, max_growth, members, push_quoted, replace_line_breaks},
    outline::{OutlinedObject, OutlinedParams},
    params::{LoggingLevel, keys},
};
use countersign_upstream::OutgoingRequest;

/// The kind of a request to an upstream, and the requested item under the upstream's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedItem<'a> {
    Tool(&'a str),
    Prompt(&'a str),
    /// `exposed_uri` is the URI that the client named.
    Resource {
        uri: &'a str,
        exposed_uri: &'a str,
    },
    /// The `ref` of a completion, as JSON text.
    Completion(&'a str),
    /// The id of a task that a tool runs as.
    Task(&'a str),
    /// The method of an extension, which the gateway does not know.
    Extension(&'a str),
}

impl<'a> RequestedItem<'a> {
    /// Returns the method; `None` for a task, about which there are several.
    #[must_use]
    pub const fn method(self) -> Option<&'a str> {
        match self {
            Self::Tool(_) => Some("tools/call"),
            Self::Prompt(_) => Some("prompts/get"),
            Self::Resource { .. } => Some("resources/read"),
            Self::Completion(_) => Some("completion/complete"),
            Self::Task(_) => None,
            Self::Extension(method) => Some(method),
        }
    }

    /// Returns the text that names the item.
    #[must_use]
    pub const fn text(self) -> &'a str {
        match self {
            Self::Tool(text) | Self::Prompt(text) | Self::Task(text) | Self::Resource { uri: text, .. } => text,
            Self::Completion(text) | Self::Extension(text) => text,
        }
    }

    /// Returns `true` for a call of a tool.
    #[must_use]
    pub const fn is_tool(self) -> bool {
        matches!(self, Self::Tool(_))
    }

    /// Returns `true` for a resource that is read.
    #[must_use]
    pub const fn is_resource(self) -> bool {
        matches!(self, Self::Resource { .. })
    }

    /// Returns `true` for a request of an extension.
    #[must_use]
    pub const fn is_extension(self) -> bool {
        matches!(self, Self::Extension(_))
    }
}

/// The facts about the client that an upstream receives.
#[derive(Clone, Debug, Default)]
pub struct DeclaredClient<'a> {
    /// `true` if the client's `params` contain the facts that the stateless era requires.
    pub is_modern: bool,
    /// `clientInfo` as JSON text, if the client's request does not contain it.
    pub info: Cow<'a, str>,
    /// `clientCapabilities` as JSON text, if they differ from those in the client's request.
    pub capabilities: Option<Cow<'a, str>>,
    /// The log level that a handshake-era client has set.
    pub log_level: Option<LoggingLevel>,
}

/// Returns the gateway's own `clientInfo`, for clients that do not name themselves.
pub fn client_info() -> &'static str {
    concat!(r#"{"name":"countersign","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
}

/// The parts of a request to an upstream that is not yet written.
#[derive(Clone, Debug)]
pub struct RequestDraft<'a> {
    pub method: &'a str,
    /// The client's own parameters.
    pub params: OutlinedParams<'a>,
    pub item: RequestedItem<'a>,
    pub declared_client: DeclaredClient<'a>,
    /// Members to add to the client's parameters, such as `inputResponses` and `requestState` of a further round.
    pub extra: &'a [(&'static str, &'a str)],
    /// `true` if a handshake-era upstream gets the client's `task`, with which it would run the call as a task.
    pub keeps_task: bool,
}

/// Writes a request for an upstream of `revision`. [`countersign_upstream::Upstream::next_request_id`] provides the id.
#[must_use]
pub fn write_request(id: u64, revision: Revision, draft: &RequestDraft<'_>) -> OutgoingRequest {
    let id_text = id.to_compact_string();
    let meta = adapt_meta(&id_text, revision, draft);
    let item_member = match draft.item {
        RequestedItem::Tool(name) | RequestedItem::Prompt(name) => Some(("name", quoted(name))),
        RequestedItem::Resource { uri, .. } => Some(("uri", quoted(uri))),
        RequestedItem::Task(id) => Some(("taskId", quoted(id))),
        RequestedItem::Completion(json) => Some(("ref", json.into())),
        RequestedItem::Extension(_) => None,
    };
    let mut edits: Edits<'_> = item_member.iter().map(|(key, value)| (*key, MemberEdit::Set(value))).collect();
    match &meta {
        MemberAction::Keep => {}
        MemberAction::Drop => edits.push(("_meta", MemberEdit::Drop)),
        MemberAction::Set(text) => edits.push(("_meta", MemberEdit::Set(text))),
    }
    for (key, value) in draft.extra {
        edits.push((key, MemberEdit::Set(value)));
    }
    let drops_answers = match revision.era() {
        // These members answer the gateway, which asked the questions on the upstream's behalf.
        Era::Legacy => draft.declared_client.is_modern,
        // A handshake-era client has no such members. The gateway adds the answers and the state of this call to `extra`.
        Era::Modern => {
            !draft.declared_client.is_modern
                && !matches!(draft.item, RequestedItem::Task(_) | RequestedItem::Extension(_))
        }
    };
    if drops_answers {
        for key in ["inputResponses", "requestState"] {
            edits.push((key, MemberEdit::Drop));
        }
    }
    if !draft.keeps_task && revision.era() == Era::Legacy {
        edits.push(("task", MemberEdit::Drop));
    }
    let mut body = String::with_capacity(96 + draft.params.object.text().len() + max_growth(&edits));
    body.push_str(r#"{"jsonrpc":"2.0","id":"#);
    body.push_str(&id_text);
    body.push_str(r#","method":"#);
    body.push_str(&quoted(draft.method));
    body.push_str(r#","params":"#);
    draft.params.object.edit_into(&mut body, &edits);
    body.push('}');
    let mut body = body.into_bytes();
    replace_line_breaks(&mut body);
    OutgoingRequest {
        id,
        method: draft.method.into(),
        body: body.into(),
        name: match draft.item {
            RequestedItem::Completion(_) | RequestedItem::Extension(_) => None,
            item => Some(item.text().into()),
        },
        headers: Vec::new(),
        is_repeatable: false,
        waits_for_task: false,
        permit: None,
    }
}

/// Adapts the client's `_meta` to an upstream of `revision`. `id` is the progress token of the request.
fn adapt_meta(id: &str, revision: Revision, draft: &RequestDraft<'_>) -> MemberAction {
    let declared_client = &draft.declared_client;
    let (version, level);
    let mut edits: Edits<'_> = SmallVec::new();
    edits.push((keys::PROGRESS_TOKEN, MemberEdit::Replace(id)));
    let meta = match revision.era() {
        Era::Legacy => {
            let Some(meta) = draft.params.meta else { return MemberAction::Keep };
            for key in [keys::PROTOCOL_VERSION, keys::CLIENT_INFO, keys::CLIENT_CAPABILITIES, keys::LOG_LEVEL] {
                edits.push((key, MemberEdit::Drop));
            }
            meta
        }
        Era::Modern => {
            version = quoted(revision.as_str());
            edits.push((keys::PROTOCOL_VERSION, MemberEdit::Set(&version)));
            let info: &str = &declared_client.info;
            edits.push((
                keys::CLIENT_INFO,
                if declared_client.is_modern { MemberEdit::SetIfMissing(info) } else { MemberEdit::Set(info) },
            ));
            edits.push((
                keys::CLIENT_CAPABILITIES,
                match &declared_client.capabilities {
                    Some(capabilities) => MemberEdit::Set(capabilities),
                    None => MemberEdit::SetIfMissing("{}"),
                },
            ));
            if !declared_client.is_modern {
                level = declared_client.log_level.map(|level| quoted(level.as_str()));
                edits.push((
                    keys::LOG_LEVEL,
                    match &level {
                        Some(level) => MemberEdit::Set(level),
                        None => MemberEdit::Drop,
                    },
                ));
            }
            draft.params.meta.unwrap_or(OutlinedObject::EMPTY)
        }
    };
    let edited = meta.edit(&edits);
    if edited == meta.text() {
        // For example, a stateless client states exactly the facts that its upstream should get.
        MemberAction::Keep
    } else if members(&edited).next().is_none() {
        // All members concerned the other era.
        MemberAction::Drop
    } else {
        MemberAction::Set(edited)
    }
}

/// The edits of a request. A call rarely needs more than six.
type Edits<'a> = SmallVec<[(&'a str, MemberEdit<'a>); 6]>;

/// Returns a string as JSON text.
fn quoted(text: &str) -> CompactString {
    let mut out = CompactString::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(revision: Revision, draft: &RequestDraft<'_>) -> String {
        let outgoing = write_request(7, revision, draft);
        String::from_utf8(outgoing.body.to_vec()).unwrap()
    }

    fn draft<'a>(params: &'a str, declared_client: DeclaredClient<'a>) -> RequestDraft<'a> {
        // The leaked outline lives until the end of the test process.
        let params = Box::leak(Box::new(countersign_protocol::outline::Outline::new(params))).params(params);
        let item = RequestedItem::Extension("tools/call");
        RequestDraft { method: "tools/call", params, item, declared_client, extra: &[], keeps_task: true }
    }

    const MODERN: &str = concat!(
        "{ \"name\":\"x__a\",\n\"arguments\":{\"n\":12345678901234567890123,\"z\":1,\"a\":1.10},\"vendor\":[ 1 ],",
        "\"_meta\":{\"a.b/c\":1.0,\"progressToken\":\"t\",\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",",
        "\"io.modelcontextprotocol/clientInfo\":{\"name\":\"c\",\"version\":\"1\",\"x\":1e2},",
        "\"io.modelcontextprotocol/clientCapabilities\":{\"sampling\":{}},\"traceparent\":\"00-1-2-3\"},",
        "\"inputResponses\":{},\"requestState\":\"s\"}"
    );

    #[test]
    fn stateless_facts_are_removed_for_handshake_upstream() {
        let declared_client = DeclaredClient { is_modern: true, ..DeclaredClient::default() };
        let draft = RequestDraft { item: RequestedItem::Tool("a"), ..draft(MODERN, declared_client) };
        assert_eq!(
            body(Revision::V2025_11_25, &draft),
            concat!(
                "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":",
                "{ \"name\":\"a\", \"arguments\":{\"n\":12345678901234567890123,\"z\":1,\"a\":1.10},\"vendor\":[ 1 ],",
                "\"_meta\":{\"a.b/c\":1.0,\"progressToken\":7,\"traceparent\":\"00-1-2-3\"}}}"
            )
        );
        let bare = r#"{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let draft = super::tests::draft(bare, DeclaredClient { is_modern: true, ..DeclaredClient::default() });
        assert!(body(Revision::V2025_11_25, &draft).ends_with(r#""params":{"name":"a"}}"#));
    }

    #[test]
    fn only_progress_token_changes_between_stateless_peers() {
        let declared_client = DeclaredClient { is_modern: true, info: "{}".into(), ..DeclaredClient::default() };
        let whole =
            |params: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{params}}}");
        let translated_body = body(Revision::V2026_07_28, &draft(MODERN, declared_client.clone()));
        let expected = MODERN.replace("\"progressToken\":\"t\"", "\"progressToken\":7").replace('\n', " ");
        assert_eq!(translated_body, whole(&expected));
        let without = MODERN.replace("\"progressToken\":\"t\",", "").replace('\n', " ");
        assert_eq!(body(Revision::V2026_07_28, &draft(&without, declared_client.clone())), whole(&without));
        // Facts that differ from those that the upstream should get are replaced.
        let version = "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"";
        let escaped = without.replace(version, "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-2\\u0038\"");
        assert_eq!(body(Revision::V2026_07_28, &draft(&escaped, declared_client.clone())), whole(&without));
        let without_capabilities = DeclaredClient { capabilities: Some("{}".into()), ..declared_client.clone() };
        let translated_body = body(Revision::V2026_07_28, &draft(&without, without_capabilities));
        assert_eq!(translated_body, whole(&without.replace("{\"sampling\":{}}", "{}")));
        let unnamed = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let translated_body = body(Revision::V2026_07_28, &draft(unnamed, declared_client));
        assert!(
            translated_body.contains(keys::CLIENT_INFO) && translated_body.contains(keys::CLIENT_CAPABILITIES),
            "{translated_body}"
        );
    }

    #[test]
    fn client_facts_are_added_for_stateless_upstream() {
        let declared_client = DeclaredClient {
            info: r#"{"name":"old"}"#.into(),
            capabilities: Some(r#"{"roots":{}}"#.into()),
            log_level: Some(LoggingLevel::Warning),
            ..DeclaredClient::default()
        };
        let extra = [("inputResponses", r#"{"k":{"n":1e400}}"#), ("requestState", r#""s\u0041""#)];
        let draft = RequestDraft {
            extra: &extra,
            ..draft(r#"{"name":"a","_meta":{"progressToken":3,"x":[1 ]}}"#, declared_client)
        };
        assert_eq!(
            body(Revision::V2026_07_28, &draft),
            concat!(
                r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":7,"x":[1 ],"#,
                r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"old"},"#,
                r#""io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/logLevel":"warning"},"#,
                r#""inputResponses":{"k":{"n":1e400}},"requestState":"s\u0041"}}"#
            )
        );
    }

    #[test]
    fn request_between_handshake_peers_is_unchanged() {
        let text = r#"{"arguments":{ },"name":"é","_meta":{"k":1}, "task":{"ttl":1}}"#;
        let translated_body = body(Revision::V2025_06_18, &draft(text, DeclaredClient::default()));
        assert!(translated_body.ends_with(&format!(r#""params":{text}}}"#)));
    }
}
