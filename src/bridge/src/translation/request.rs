//! A client's request as its upstream gets it: the same bytes, but for the name, the URI and what `_meta` says of the
//! client. Never through a tree of values.

use std::borrow::Cow;

use compact_str::{CompactString, ToCompactString};
use smallvec::SmallVec;

use countersign_protocol::{
    Era, Revision,
    json::{MemberEdit, one_line, push_quoted},
    outline::{OutlinedObject, OutlinedParams},
    params::{LoggingLevel, keys},
};
use countersign_upstream::Outgoing;

/// The kind of a request to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Tool,
    Prompt,
    Resource,
    Complete,
    /// A request that the gateway does not know; its method is the subject.
    Extension,
}

impl Verb {
    /// `None` for what the gateway has no word for.
    #[must_use]
    pub const fn method(self) -> Option<&'static str> {
        match self {
            Self::Tool => Some("tools/call"),
            Self::Prompt => Some("prompts/get"),
            Self::Resource => Some("resources/read"),
            Self::Complete => Some("completion/complete"),
            Self::Extension => None,
        }
    }
}

/// The requested item, under the upstream's own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject<'a> {
    /// `params.name`
    Name(&'a str),
    /// `params.uri`
    Uri(&'a str),
    /// `params.taskId`
    Task(&'a str),
    /// `params.ref`, whole, as JSON text.
    Reference(&'a str),
    /// The method of an extension, whose parameters the gateway does not know.
    Method(&'a str),
    None,
}

impl<'a> Subject<'a> {
    /// Returns the text that names the item.
    #[must_use]
    pub const fn text(self) -> &'a str {
        match self {
            Self::Name(text) | Self::Uri(text) | Self::Task(text) => text,
            Self::Reference(text) | Self::Method(text) => text,
            Self::None => "",
        }
    }
}

/// For whom an upstream is asked, as far as it is told.
#[derive(Clone, Debug, Default)]
pub struct Speaker<'a> {
    /// Its `params` say of it what the stateless era wants said.
    pub modern: bool,
    /// `clientInfo`, as JSON text, where its request does not carry it.
    pub info: Cow<'a, str>,
    /// `clientCapabilities`, as JSON text, where others than those in the request hold.
    pub capabilities: Option<Cow<'a, str>>,
    /// The log messages that a handshake-era client wants.
    pub log_level: Option<LoggingLevel>,
}

/// Returns the gateway's own `clientInfo`, for clients that do not name themselves.
#[must_use]
pub fn client_info() -> &'static str {
    concat!(r#"{"name":"countersign","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
}

/// A request to be written for an upstream.
#[derive(Clone, Debug)]
pub struct Draft<'a> {
    pub method: &'a str,
    /// The client's own.
    pub params: OutlinedParams<'a>,
    pub subject: Subject<'a>,
    pub speaker: Speaker<'a>,
    /// Members that it gets beside the client's: `inputResponses` and `requestState` of a further round.
    pub more: &'a [(&'static str, &'a str)],
}

/// Writes a request under the id that [`countersign_upstream::Upstream::next_request_id`] gave, for an upstream of that revision.
#[must_use]
pub fn for_upstream(id: u64, revision: Revision, draft: &Draft<'_>) -> Outgoing {
    let number = id.to_compact_string();
    let meta = meta_for(&number, revision, draft);
    let own = match draft.subject {
        Subject::Name(own) => Some(("name", quoted(own))),
        Subject::Uri(own) => Some(("uri", quoted(own))),
        Subject::Task(own) => Some(("taskId", quoted(own))),
        Subject::Reference(json) => Some(("ref", json.into())),
        Subject::Method(_) | Subject::None => None,
    };
    let mut edits: Edits<'_> = own.iter().map(|(key, own)| (*key, MemberEdit::Set(own))).collect();
    match &meta {
        Meta::Same => {}
        Meta::Gone => edits.push(("_meta", MemberEdit::Drop)),
        Meta::New(text) => edits.push(("_meta", MemberEdit::Set(text))),
    }
    for (key, value) in draft.more {
        edits.push((key, MemberEdit::Set(value)));
    }
    if draft.speaker.modern && revision.era() == Era::Legacy {
        // They answer the gateway, which asked in the upstream's place.
        for key in ["inputResponses", "requestState"] {
            edits.push((key, MemberEdit::Drop));
        }
    }
    let room = draft.params.object.text().len()
        + own.as_ref().map_or(0, |(_, own)| own.len())
        + 96
        + draft.more.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    let mut body = String::with_capacity(room + if let Meta::New(text) = &meta { text.len() } else { 0 });
    body.push_str(r#"{"jsonrpc":"2.0","id":"#);
    body.push_str(&number);
    body.push_str(r#","method":"#);
    body.push_str(&quoted(draft.method));
    body.push_str(r#","params":"#);
    draft.params.object.edit_into(&mut body, &edits);
    body.push('}');
    let mut body = body.into_bytes();
    one_line(&mut body);
    Outgoing {
        id,
        method: draft.method.into(),
        body: body.into(),
        name: match draft.subject {
            Subject::Name(own) | Subject::Uri(own) | Subject::Task(own) => Some(own.into()),
            Subject::Reference(_) | Subject::Method(_) | Subject::None => None,
        },
        headers: Vec::new(),
        repeatable: false,
        permit: None,
    }
}

enum Meta {
    /// As the client wrote it.
    Same,
    Gone,
    New(String),
}

fn meta_for(id: &str, revision: Revision, draft: &Draft<'_>) -> Meta {
    let speaker = &draft.speaker;
    let (version, level);
    let mut edits: Edits<'_> = SmallVec::new();
    edits.push((keys::PROGRESS_TOKEN, MemberEdit::Replace(id)));
    match revision.era() {
        Era::Legacy => {
            let Some(meta) = draft.params.meta else { return Meta::Same };
            for key in [keys::PROTOCOL_VERSION, keys::CLIENT_INFO, keys::CLIENT_CAPABILITIES, keys::LOG_LEVEL] {
                edits.push((key, MemberEdit::Drop));
            }
            let edited = meta.edit(&edits);
            if edited == meta.text() {
                return Meta::Same;
            }
            // Nothing is left of it that the upstream could want.
            if countersign_protocol::json::members(&edited).next().is_none() { Meta::Gone } else { Meta::New(edited) }
        }
        Era::Modern => {
            version = quoted(revision.as_str());
            edits.push((keys::PROTOCOL_VERSION, MemberEdit::Set(&version)));
            let info: &str = &speaker.info;
            edits.push((
                keys::CLIENT_INFO,
                if speaker.modern { MemberEdit::Default(info) } else { MemberEdit::Set(info) },
            ));
            edits.push((
                keys::CLIENT_CAPABILITIES,
                match &speaker.capabilities {
                    Some(capabilities) => MemberEdit::Set(capabilities),
                    None => MemberEdit::Default("{}"),
                },
            ));
            if !speaker.modern {
                level = speaker.log_level.map(|level| quoted(level.as_str()));
                edits.push((
                    keys::LOG_LEVEL,
                    match &level {
                        Some(level) => MemberEdit::Set(level),
                        None => MemberEdit::Drop,
                    },
                ));
            }
            let meta = draft.params.meta.unwrap_or(OutlinedObject::EMPTY);
            let edited = meta.edit(&edits);
            // So it is where a stateless client says everything just as its upstream is to be told.
            if edited == meta.text() { Meta::Same } else { Meta::New(edited) }
        }
    }
}

/// As many as a call nearly always has.
type Edits<'a> = SmallVec<[(&'a str, MemberEdit<'a>); 6]>;

/// JSON text of a string.
fn quoted(text: &str) -> CompactString {
    let mut out = CompactString::with_capacity(text.len() + 2);
    push_quoted(&mut out, text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(revision: Revision, draft: &Draft<'_>) -> String {
        let outgoing = for_upstream(7, revision, draft);
        String::from_utf8(outgoing.body.to_vec()).unwrap()
    }

    fn draft<'a>(params: &'a str, speaker: Speaker<'a>) -> Draft<'a> {
        // For the time of the tests.
        let params = Box::leak(Box::new(countersign_protocol::outline::Outline::new(params))).params(params);
        Draft { method: "tools/call", params, subject: Subject::None, speaker, more: &[] }
    }

    const MODERN: &str = concat!(
        "{ \"name\":\"x__a\",\n\"arguments\":{\"n\":12345678901234567890123,\"z\":1,\"a\":1.10},\"vendor\":[ 1 ],",
        "\"_meta\":{\"a.b/c\":1.0,\"progressToken\":\"t\",\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",",
        "\"io.modelcontextprotocol/clientInfo\":{\"name\":\"c\",\"version\":\"1\",\"x\":1e2},",
        "\"io.modelcontextprotocol/clientCapabilities\":{\"sampling\":{}},\"traceparent\":\"00-1-2-3\"},",
        "\"inputResponses\":{},\"requestState\":\"s\"}"
    );

    #[test]
    fn towards_the_handshake_era_only_the_envelope_goes() {
        let speaker = Speaker { modern: true, ..Speaker::default() };
        let draft = Draft { subject: Subject::Name("a"), ..draft(MODERN, speaker) };
        assert_eq!(
            body(Revision::V2025_11_25, &draft),
            concat!(
                "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":",
                "{ \"name\":\"a\", \"arguments\":{\"n\":12345678901234567890123,\"z\":1,\"a\":1.10},\"vendor\":[ 1 ],",
                "\"_meta\":{\"a.b/c\":1.0,\"progressToken\":7,\"traceparent\":\"00-1-2-3\"}}}"
            )
        );
        let bare = r#"{"name":"a","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let draft = super::tests::draft(bare, Speaker { modern: true, ..Speaker::default() });
        assert!(body(Revision::V2025_11_25, &draft).ends_with(r#""params":{"name":"a"}}"#));
    }

    #[test]
    fn between_stateless_peers_nothing_but_the_token_changes() {
        let speaker = Speaker { modern: true, info: "{}".into(), ..Speaker::default() };
        let whole =
            |params: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{params}}}");
        let got = body(Revision::V2026_07_28, &draft(MODERN, speaker.clone()));
        let expected = MODERN.replace("\"progressToken\":\"t\"", "\"progressToken\":7").replace('\n', " ");
        assert_eq!(got, whole(&expected));
        let without = MODERN.replace("\"progressToken\":\"t\",", "").replace('\n', " ");
        assert_eq!(body(Revision::V2026_07_28, &draft(&without, speaker.clone())), whole(&without));
        // What is said otherwise than it is to be told is told as it is to be.
        let version = "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\"";
        let escaped = without.replace(version, "\"io.modelcontextprotocol/protocolVersion\":\"2026-07-2\\u0038\"");
        assert_eq!(body(Revision::V2026_07_28, &draft(&escaped, speaker.clone())), whole(&without));
        let less = Speaker { capabilities: Some("{}".into()), ..speaker.clone() };
        let got = body(Revision::V2026_07_28, &draft(&without, less));
        assert_eq!(got, whole(&without.replace("{\"sampling\":{}}", "{}")));
        let unnamed = r#"{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}"#;
        let got = body(Revision::V2026_07_28, &draft(unnamed, speaker));
        assert!(got.contains(keys::CLIENT_INFO) && got.contains(keys::CLIENT_CAPABILITIES), "{got}");
    }

    #[test]
    fn towards_the_stateless_era_the_envelope_is_stamped() {
        let speaker = Speaker {
            info: r#"{"name":"old"}"#.into(),
            capabilities: Some(r#"{"roots":{}}"#.into()),
            log_level: Some(LoggingLevel::Warning),
            ..Speaker::default()
        };
        let more = [("inputResponses", r#"{"k":{"n":1e400}}"#), ("requestState", r#""s\u0041""#)];
        let draft = Draft { more: &more, ..draft(r#"{"name":"a","_meta":{"progressToken":3,"x":[1 ]}}"#, speaker) };
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
    fn handshake_peers_pass_on_what_they_wrote() {
        let text = r#"{"arguments":{ },"name":"é","_meta":{"k":1}, "task":{"ttl":1}}"#;
        let got = body(Revision::V2025_06_18, &draft(text, Speaker::default()));
        assert!(got.ends_with(&format!(r#""params":{text}}}"#)));
    }
}
