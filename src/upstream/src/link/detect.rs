//! Detects the era of a server (2026-07-28/basic/versioning, "Backward Compatibility with Initialization-Based
//! Versions"; basic/transports/stdio and basic/transports/streamable-http, "Backward Compatibility").
//!
//! The gateway prefers the stateless era. Only an answer determines the era. A failed connection, a request for
//! credentials or a server error does not.

use std::{sync::Arc, time::Duration};

use super::{
    Connector, Link, LinkError, LinkKind, Listener, NegotiatedSession, OutgoingRequest, Response, SilentListener,
    escape_excerpt,
    handshake::{
        self, HANDSHAKE_ID, add_meta_for, newest_revision, parse_discover_result, refusal_error, supported_versions,
    },
};
use countersign_protocol::{Era, ErrorKind, Revision, negotiate::ClientCapabilities, rpc_error::RpcError};

/// The time limit for a server to answer `server/discover` before it is asked for a handshake too.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for `server/discover` over HTTP, where servers always answer, at least with an error. A slow server
/// may be starting.
const HTTP_PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// The time to wait for the answer to `server/discover` after the answer to `initialize`, if both were sent.
const LATE_ANSWER_TIME: Duration = Duration::from_millis(500);

/// The error codes that only servers of the stateless era use (2026-07-28/basic/index, "Error Codes").
const HEADER_MISMATCH_CODE: i64 = ErrorKind::HeaderMismatch.number();
const MISSING_CAPABILITY_CODE: i64 = ErrorKind::MissingCapability.number();
const UNSUPPORTED_VERSION_CODE: i64 = ErrorKind::UnsupportedVersion.number();

/// The result of the detection.
pub struct DetectionResult {
    /// The connector for further links. It differs from the given one if the server speaks an older transport.
    pub connector: Arc<dyn Connector>,
    pub negotiated: NegotiatedSession,
    /// An open link that declares no capabilities.
    pub link: Arc<dyn Link>,
}

impl DetectionResult {
    pub fn era(&self) -> Era {
        self.negotiated.revision.era()
    }
}

/// Detects the era of a server and opens a first link.
///
/// # Errors
/// As [`handshake::open`]; [`LinkError::Lost`] if neither `server/discover` nor `initialize` was answered.
pub async fn detect(
    connector: Arc<dyn Connector>,
    unsolicited: Arc<dyn Listener>,
) -> Result<DetectionResult, LinkError> {
    let mut unanswered = None;
    if connector.era() != Some(Era::Legacy) {
        let link = connector.connect(Arc::clone(&unsolicited)).await?;
        let outcome = probe(&*link, &*connector).await;
        if let ProbeOutcome::Modern(negotiated) = outcome {
            link.complete_handshake(&negotiated);
            return Ok(DetectionResult { connector, negotiated, link });
        }
        link.close();
        match outcome {
            ProbeOutcome::Modern(_) | ProbeOutcome::Legacy => {}
            ProbeOutcome::Failed(error) => return Err(error),
            ProbeOutcome::Unanswered(error) => unanswered = Some(error),
        }
    }
    let error = match initialize(&connector, &unsolicited).await {
        Ok(detected) => return Ok(detected),
        Err(error) => error,
    };
    if let Some(older) = connector.fallback()
        && matches!(error, LinkError::Status { status: 400 | 404 | 405, .. })
    {
        match initialize(&older, &unsolicited).await {
            Ok(detected) => return Ok(detected),
            Err(error) => {
                let upstream = connector.server_name();
                tracing::debug!(upstream, %error, "the server does not speak HTTP+SSE either");
            }
        }
    }
    Err(unanswered.unwrap_or(error))
}

/// Opens a link of the handshake era.
async fn initialize(
    connector: &Arc<dyn Connector>,
    unsolicited: &Arc<dyn Listener>,
) -> Result<DetectionResult, LinkError> {
    let no_capabilities = ClientCapabilities::default();
    let (link, negotiated) = handshake::open(&**connector, None, &no_capabilities, Arc::clone(unsolicited)).await?;
    Ok(DetectionResult { connector: Arc::clone(connector), negotiated, link })
}

/// The outcome of `server/discover`.
enum ProbeOutcome {
    /// The server is of the stateless era.
    Modern(NegotiatedSession),
    /// The server is of the handshake era.
    Legacy,
    /// The era cannot be determined now, or no request to the server of the stateless era can succeed.
    Failed(LinkError),
    /// Only the answer to `initialize` can determine the era.
    Unanswered(LinkError),
}

/// Sends `server/discover` on a link that is discarded unless the server is of the stateless era. A child process may
/// exit because of an unknown request, so the end of a link with one stream counts as an answer too.
async fn probe(link: &dyn Link, connector: &dyn Connector) -> ProbeOutcome {
    let (upstream, has_single_stream) = (connector.server_name(), connector.kind() == LinkKind::SingleStream);
    let limit = if has_single_stream { PROBE_TIMEOUT } else { HTTP_PROBE_TIMEOUT };
    let mut discovery = std::pin::pin!(discover(link));
    let outcome = match tokio::time::timeout(limit, &mut discovery).await {
        Ok(outcome) => outcome,
        Err(_) if has_single_stream => {
            // The server may not know the request, or still be starting: many install themselves first, and ending them
            // would leave half an installation behind. Its first answer determines the era.
            let seconds = limit.as_secs();
            tracing::debug!(upstream, "no answer to server/discover within {seconds} s, asking for a handshake too");
            let fallback = handshake::fallback_initialize_request();
            tokio::select! {
                biased;
                outcome = &mut discovery => outcome,
                // A server that reads both at once may answer them in any order.
                _ = link.request(&fallback, Arc::new(SilentListener)) => {
                    match tokio::time::timeout(LATE_ANSWER_TIME, &mut discovery).await {
                        Ok(outcome) => outcome,
                        Err(_) => return ProbeOutcome::Legacy,
                    }
                }
            }
        }
        Err(_) => {
            let error = format!("no answer to `server/discover` within {} s", limit.as_secs());
            return ProbeOutcome::Unanswered(LinkError::Lost(error));
        }
    };
    match outcome {
        Ok(outcome) => outcome,
        Err(LinkError::SessionGone) => ProbeOutcome::Legacy,
        Err(LinkError::Lost(reason)) if has_single_stream => {
            tracing::debug!(upstream, %reason, "no answer to server/discover: a server of the handshake era");
            ProbeOutcome::Legacy
        }
        Err(LinkError::Protocol(reason)) => {
            tracing::debug!(upstream, %reason, "not an answer to server/discover: a server of the handshake era");
            ProbeOutcome::Legacy
        }
        // With a success such as `202 Accepted`, the server has not recognized the request.
        Err(LinkError::Status { status, .. }) if status < 300 || is_client_error(status) => ProbeOutcome::Legacy,
        Err(error) => ProbeOutcome::Failed(error),
    }
}

/// Returns `true` for a client error that is not about access, so that the server has examined the request.
pub(crate) fn is_client_error(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 401 | 403 | 407 | 429)
}

/// Returns `true` if the refusal of a request shows that the server may speak another era than the link, because it was
/// replaced meanwhile (2026-07-28/basic/transports/streamable-http, "Backward Compatibility"). `code` is that of the
/// JSON-RPC error, if there is one.
pub(crate) fn may_be_other_era(era: Era, status: Option<u16>, code: Option<i64>) -> bool {
    match (era, code) {
        (_, Some(UNSUPPORTED_VERSION_CODE)) => true,
        (Era::Modern, Some(-32603..=-32601 | -32099..=-32020)) => false,
        // The method, a slow client or a large request can be the reason for the other statuses.
        (Era::Modern, _) => {
            status.is_some_and(|status| is_client_error(status) && !matches!(status, 404 | 408 | 413 | 431))
        }
        (Era::Legacy, code) => status == Some(400) && code == Some(HEADER_MISMATCH_CODE),
    }
}

/// Returns `true` if the refusal of a handshake-era request may be about the `_meta` that stateless requests have. It
/// may also be about the request itself.
pub(crate) fn may_lack_meta(era: Era, status: Option<u16>, code: Option<i64>) -> bool {
    era == Era::Legacy && status == Some(400) && matches!(code, Some(-32602 | -32600))
}

/// Sends `server/discover`, and once more after an error that names what the request lacks.
///
/// # Errors
/// As [`Link::request`].
async fn discover(link: &dyn Link) -> Result<ProbeOutcome, LinkError> {
    let refused = |error: &RpcError| ProbeOutcome::Failed(refusal_error("server/discover", error));
    let mut capabilities = ClientCapabilities::default();
    let mut earlier = None;
    // Some servers refuse the first request while they restart.
    for _ in 0..2 {
        let params = add_meta_for("{}", &capabilities);
        let outgoing = OutgoingRequest::new(HANDSHAKE_ID, "server/discover", Some(&params));
        let error = match link.request(&outgoing, Arc::new(SilentListener)).await? {
            Response::Result(result) => {
                return Ok(match (parse_discover_result(&result), earlier) {
                    (Some(negotiated), _) => ProbeOutcome::Modern(negotiated),
                    (None, None) => ProbeOutcome::Legacy,
                    (None, Some(error)) => refused(&error),
                });
            }
            Response::Error(error) => error,
        };
        match (error.code, error.status) {
            (UNSUPPORTED_VERSION_CODE, _) => match supported_versions(&error) {
                // The supported versions are unknown, or include this one.
                None => {}
                Some(versions) if versions.iter().any(|version| version == Revision::MODERN.as_str()) => {}
                Some(versions) if newest_revision(&versions, Era::Legacy).is_some() => return Ok(ProbeOutcome::Legacy),
                Some(_) => return Ok(refused(&error)),
            },
            (MISSING_CAPABILITY_CODE, _) => {
                capabilities.elicitation_form = true;
                capabilities.elicitation_url = true;
                capabilities.sampling = true;
                capabilities.roots = true;
            }
            (HEADER_MISMATCH_CODE, _) => {}
            (_, _) if let Some(earlier) = &earlier => return Ok(refused(earlier)),
            // The server has not examined the request.
            (_, Some(status @ (401 | 403 | 407 | 429 | 500..=599))) => {
                let body = escape_excerpt(error.message.as_bytes());
                return Ok(ProbeOutcome::Failed(LinkError::Status { status, body }));
            }
            _ => return Ok(ProbeOutcome::Legacy),
        }
        earlier = Some(error);
    }
    Ok(earlier.as_ref().map_or(ProbeOutcome::Legacy, refused))
}

#[cfg(test)]
mod tests;
