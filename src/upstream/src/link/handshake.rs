//! Opens a link of either era: the messages before the first request of a client.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Connector, Link, LinkError, Listener, NegotiatedSession, OutgoingRequest, Response, SilentListener, escape_excerpt,
};
use countersign_protocol::{
    Era, Revision,
    json::{MemberEdit, merge_meta},
    negotiate::ClientCapabilities,
    params::keys,
    rpc_error::RpcError,
};

/// The id of `initialize` and of `server/discover`. [`crate::server::Upstream::next_request_id`] begins with 1.
pub(super) const HANDSHAKE_ID: u64 = 0;

/// The id of [`fallback_initialize_request`], the greatest integer that every server can represent. No call uses this
/// id, because the answer may arrive late on a link that stays in use.
pub(super) const FALLBACK_HANDSHAKE_ID: u64 = i32::MAX as u64;

/// The time limit for a server to answer `initialize`. It is long, because some servers install themselves first.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);

/// The gateway's `Implementation` for upstreams, as JSON.
const CLIENT_INFO: &str =
    concat!(r#"{"name":"countersign","title":"Countersign","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Adds the `_meta` of a stateless request for a client with these capabilities (2026-07-28/basic/index#meta).
pub(crate) fn add_meta_for(params: &str, capabilities: &ClientCapabilities) -> String {
    let version = format!("\"{}\"", Revision::MODERN.as_str());
    let capabilities = capabilities.to_json(Revision::MODERN).to_string();
    merge_meta(
        params,
        &[
            (keys::PROTOCOL_VERSION, MemberEdit::Set(&version)),
            (keys::CLIENT_INFO, MemberEdit::Set(CLIENT_INFO)),
            (keys::CLIENT_CAPABILITIES, MemberEdit::Set(&capabilities)),
        ],
    )
}

/// Opens a link. If `known_session` is of the stateless era, nothing is sent; otherwise the link begins with `initialize` and
/// `notifications/initialized`.
///
/// # Errors
/// As [`Connector::connect`] and [`Link::request`]; [`LinkError::Protocol`] if the server answers `initialize` with an
/// error or an unknown revision, and [`LinkError::Lost`] if it does not answer in time.
pub async fn open(
    connector: &dyn Connector,
    known_session: Option<&NegotiatedSession>,
    capabilities: &ClientCapabilities,
    unsolicited: Arc<dyn Listener>,
) -> Result<(Arc<dyn Link>, NegotiatedSession), LinkError> {
    if let Some(session) = known_session.filter(|session| session.revision.era() == Era::Modern) {
        let link = connector.connect(unsolicited).await?;
        link.complete_handshake(session);
        return Ok((link, session.clone()));
    }
    let mut revision = Revision::NEWEST_LEGACY;
    loop {
        let link = connector.connect(Arc::clone(&unsolicited)).await?;
        let outcome = initialize(&*link, revision, capabilities).await;
        if let Ok(HandshakeOutcome::Done(negotiated)) = outcome {
            return Ok((link, negotiated));
        }
        link.close();
        match outcome? {
            // Servers should offer another revision in the result, but some list their revisions in an error.
            HandshakeOutcome::Offered(offered) if offered < revision => revision = offered,
            _ => return Err(LinkError::Protocol("it refuses every known revision".to_owned())),
        }
    }
}

enum HandshakeOutcome {
    Done(NegotiatedSession),
    Offered(Revision),
}

/// Returns the `initialize` request for a link on which `server/discover` was not answered in time. The link is
/// discarded if this request is answered first.
pub(super) fn fallback_initialize_request() -> OutgoingRequest {
    initialize_request(FALLBACK_HANDSHAKE_ID, Revision::NEWEST_LEGACY, &ClientCapabilities::default())
}

fn initialize_request(id: u64, revision: Revision, capabilities: &ClientCapabilities) -> OutgoingRequest {
    let params = format!(
        r#"{{"protocolVersion":"{}","capabilities":{},"clientInfo":{CLIENT_INFO}}}"#,
        revision.as_str(),
        capabilities.to_json(revision)
    );
    OutgoingRequest::new(id, "initialize", Some(&params))
}

/// Sends `initialize`, and `notifications/initialized` after a result.
async fn initialize(
    link: &dyn Link,
    revision: Revision,
    capabilities: &ClientCapabilities,
) -> Result<HandshakeOutcome, LinkError> {
    let outgoing = initialize_request(HANDSHAKE_ID, revision, capabilities);
    let timeout_error = |_| {
        let seconds = HANDSHAKE_TIMEOUT.as_secs();
        LinkError::Lost(format!("no answer to `initialize` within {seconds} seconds"))
    };
    // A server must not send anything but logs and pings before the answer (2025-11-25/basic/lifecycle, "Initialization").
    let answer = tokio::time::timeout(HANDSHAKE_TIMEOUT, link.request(&outgoing, Arc::new(SilentListener))).await;
    let error = match answer.map_err(timeout_error)?? {
        Response::Result(result) => {
            let negotiated = parse_initialize_result(&result)?;
            link.complete_handshake(&negotiated);
            link.send_initialized().await?;
            return Ok(HandshakeOutcome::Done(negotiated));
        }
        Response::Error(error) => error,
    };
    if let Some(offered) = supported_versions(&error).and_then(|versions| newest_revision(&versions, Era::Legacy)) {
        return Ok(HandshakeOutcome::Offered(offered));
    }
    Err(match error.status.filter(|status| !(200..300).contains(status)) {
        // With its status, the error may mean that the server speaks another transport (see `detect`).
        Some(status) => LinkError::Status { status, body: escape_excerpt(error.message.as_bytes()) },
        None => refusal_error("initialize", &error),
    })
}

/// Returns the error for a method that the server refuses.
pub(crate) fn refusal_error(method: &str, error: &RpcError) -> LinkError {
    let message = escape_excerpt(error.message.as_bytes());
    LinkError::Protocol(format!("it refuses `{method}`: {message} ({})", error.code))
}

/// Returns `data.supported` of an error.
pub(super) fn supported_versions(error: &RpcError) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let data: Data = serde_json::from_str(error.data.as_ref()?.get()).ok()?;
    Some(data.supported)
}

/// Returns the newest known revision of that era.
pub(super) fn newest_revision(versions: &[String], era: Era) -> Option<Revision> {
    versions.iter().filter_map(|version| Revision::parse(version)).filter(|revision| revision.era() == era).max()
}

/// The members of `InitializeResult` and `DiscoverResult`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerDescription<'a> {
    protocol_version: Option<String>,
    supported_versions: Option<Vec<String>>,
    #[serde(borrow)]
    capabilities: Option<&'a RawValue>,
    /// `InitializeResult` and drafts of `DiscoverResult` have the member here.
    #[serde(borrow)]
    server_info: Option<&'a RawValue>,
    instructions: Option<String>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<DescriptionMeta<'a>>,
}

#[derive(Deserialize)]
struct DescriptionMeta<'a> {
    #[serde(borrow, rename = "io.modelcontextprotocol/serverInfo")]
    server_info: Option<&'a RawValue>,
}

impl ServerDescription<'_> {
    fn into_negotiated(self, revision: Revision) -> NegotiatedSession {
        let capabilities = self.capabilities.filter(|capabilities| capabilities.get().starts_with('{'));
        let server_info = self.meta.and_then(|meta| meta.server_info).or(self.server_info);
        NegotiatedSession {
            revision,
            capabilities: capabilities
                .map_or_else(|| RawValue::from_string("{}".into()).unwrap_or_default(), RawValue::to_owned)
                .into(),
            server_info: server_info.map(|info| Arc::from(info.to_owned())),
            instructions: self.instructions,
        }
    }
}

fn parse_initialize_result(result: &RawValue) -> Result<NegotiatedSession, LinkError> {
    let description: ServerDescription<'_> = serde_json::from_str(result.get())
        .map_err(|error| LinkError::Protocol(format!("its answer to `initialize` is malformed: {error}")))?;
    let version = description.protocol_version.as_deref().unwrap_or("(none)");
    let revision = Revision::parse(version).filter(|revision| revision.era() == Era::Legacy).ok_or_else(|| {
        let version = escape_excerpt(version.as_bytes());
        LinkError::Protocol(format!("it offers revision {version}, which the gateway does not support"))
    })?;
    Ok(description.into_negotiated(revision))
}

/// Parses a `DiscoverResult`. Returns `None` if it is not one, or has no version in common with the gateway.
pub(super) fn parse_discover_result(result: &RawValue) -> Option<NegotiatedSession> {
    let description: ServerDescription<'_> = serde_json::from_str(result.get()).ok()?;
    let revision = newest_revision(description.supported_versions.as_ref()?, Era::Modern)?;
    Some(description.into_negotiated(revision))
}

#[cfg(test)]
mod tests;
