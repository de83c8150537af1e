//! Which era a server speaks (2026-07-28/basic/versioning, "Backward Compatibility with Initialization-Based
//! Versions"; basic/transports/stdio and basic/transports/streamable-http, "Backward Compatibility").
//!
//! A server of both eras is spoken to in the stateless one. Only an answer is a verdict: a server that cannot be
//! reached, asks for credentials or fails has said nothing of its era.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Connector, Link, LinkError, Listener, Negotiated, Outgoing, Response,
    handshake::{self, Deaf, FIRST_ID, client_info, object},
};
use countersign_protocol::{Era, Revision, capabilities::ClientCapabilities, rpc_error::RpcError};

/// How long a server may take to answer `server/discover` before it counts as one that does not know it.
pub const PROBE: Duration = Duration::from_secs(5);

/// Over HTTP servers always answer, if only with an error; one that is slow may be starting.
pub const PROBE_HTTP: Duration = Duration::from_secs(15);

/// How long `server/discover` may be answered after `handshake_revision`, where both were asked.
const TURN: Duration = Duration::from_millis(500);

/// What was found out.
pub struct Detected {
    /// Makes further links; another one than was asked with where the server turned out to speak an older transport.
    pub connector: Arc<dyn Connector>,
    pub era: Era,
    pub negotiated: Negotiated,
    /// Opened and usable, declaring no capabilities, if the probe made one.
    pub link: Option<Arc<dyn Link>>,
}

enum Verdict {
    Modern(Negotiated),
    Legacy,
    /// It has not answered in time; what it says to `handshake_revision` tells.
    Unclear(LinkError),
}

/// Finds the era of a server and opens a first link.
///
/// # Errors
/// The [`LinkError`] that kept it from a verdict.
pub async fn detect(
    connector: Arc<dyn Connector>,
    unsolicited: &dyn Fn() -> Arc<dyn Listener>,
) -> Result<Detected, LinkError> {
    let limit = if connector.probe_apart() { PROBE } else { PROBE_HTTP };
    detect_within(limit, connector, unsolicited).await
}

async fn detect_within(
    limit: Duration,
    connector: Arc<dyn Connector>,
    unsolicited: &dyn Fn() -> Arc<dyn Listener>,
) -> Result<Detected, LinkError> {
    let mut unclear = None;
    if connector.era() != Some(Era::Legacy) {
        let link = connector.connect(unsolicited()).await?;
        let verdict = probe(&*link, connector.probe_apart(), limit).await;
        if let Ok(Verdict::Modern(negotiated)) = verdict {
            link.opened(&negotiated);
            return Ok(Detected { connector, era: Era::Modern, negotiated, link: Some(link) });
        }
        link.close();
        if let Verdict::Unclear(error) = verdict? {
            unclear = Some(error);
        }
    }
    let error = match initialize(&connector, unsolicited).await {
        Ok(detected) => return Ok(detected),
        Err(error) => error,
    };
    if let Some(older) = connector.fallback()
        && matches!(error, LinkError::Status { status: 400 | 404 | 405, .. })
    {
        match initialize(&older, unsolicited).await {
            Ok(detected) => return Ok(detected),
            Err(e) => tracing::debug!(upstream = connector.describe(), error = %e, "nor does it speak HTTP+SSE"),
        }
    }
    Err(unclear.unwrap_or(error))
}

async fn initialize(
    connector: &Arc<dyn Connector>,
    unsolicited: &dyn Fn() -> Arc<dyn Listener>,
) -> Result<Detected, LinkError> {
    let nothing = ClientCapabilities::default();
    let (link, negotiated) = handshake::open(&**connector, Era::Legacy, None, &nothing, unsolicited()).await?;
    Ok(Detected { connector: Arc::clone(connector), era: Era::Legacy, negotiated, link: Some(link) })
}

/// `apart`: the link is thrown away, so that its end is an answer too.
async fn probe(link: &dyn Link, apart: bool, limit: Duration) -> Result<Verdict, LinkError> {
    let mut asked = std::pin::pin!(ask(link));
    let outcome = match tokio::time::timeout(limit, &mut asked).await {
        Ok(outcome) => outcome,
        Err(_) if apart => {
            // It may not know the question, or still be on its way: many install themselves at their first start, and
            // to end them meanwhile would leave half an installation behind. What it answers first tells.
            tracing::debug!("no answer to server/discover within {} s, asking for a handshake too", limit.as_secs());
            let second = handshake::second_question();
            tokio::select! {
                biased;
                outcome = &mut asked => outcome,
                // A server that reads both at once may answer them in any order.
                _ = link.request(&second, Arc::new(Deaf)) => match tokio::time::timeout(TURN, &mut asked).await {
                    Ok(outcome) => outcome,
                    Err(_) => return Ok(Verdict::Legacy),
                },
            }
        }
        Err(_) => {
            let error = format!("no answer to `server/discover` within {} s", limit.as_secs());
            return Ok(Verdict::Unclear(LinkError::Lost(error)));
        }
    };
    match outcome {
        Ok(Asked::Modern(negotiated)) => Ok(Verdict::Modern(negotiated)),
        Ok(Asked::Legacy) => Ok(Verdict::Legacy),
        Ok(Asked::Refused(error)) => Err(error),
        Err(LinkError::Lost(why)) if apart => {
            tracing::debug!(%why, "no answer to server/discover: a server of the handshake era");
            Ok(Verdict::Legacy)
        }
        Err(LinkError::Protocol(why)) => {
            tracing::debug!(%why, "not an answer to server/discover: a server of the handshake era");
            Ok(Verdict::Legacy)
        }
        Err(LinkError::SessionGone) => Ok(Verdict::Legacy),
        Err(LinkError::Status { status, .. })
            if (400..500).contains(&status) && !matches!(status, 401 | 403 | 407 | 429) =>
        {
            Ok(Verdict::Legacy)
        }
        // `202 Accepted` and such: it took the request for something else.
        Err(LinkError::Status { status, .. }) if (200..300).contains(&status) => Ok(Verdict::Legacy),
        Err(error) => Err(error),
    }
}

/// What a server says of itself, in the stateless era.
///
/// # Errors
/// As [`Link::parse_request`]; [`LinkError::Protocol`] if it is not a server of this era after all.
pub async fn discover(link: &dyn Link) -> Result<Negotiated, LinkError> {
    match ask(link).await? {
        Asked::Modern(negotiated) => Ok(negotiated),
        Asked::Refused(error) => Err(error),
        Asked::Legacy => Err(LinkError::Protocol("it does not know `server/discover` any longer".to_owned())),
    }
}

enum Asked {
    Modern(Negotiated),
    Legacy,
    /// Surely of the stateless era, and still there is no talking to it.
    Refused(LinkError),
}

/// The errors that only servers of the stateless era know (2026-07-28/basic/index, "Error Codes").
const HEADER_MISMATCH: i64 = -32020;
const MISSING_CAPABILITY: i64 = -32021;
const UNSUPPORTED_VERSION: i64 = -32022;

async fn ask(link: &dyn Link) -> Result<Asked, LinkError> {
    let mut capabilities = "{}";
    let mut error = None;
    // Once more after an error that says how to do it better; suites and restarting servers refuse the first one.
    for _ in 0..2 {
        let outgoing =
            Outgoing { repeatable: true, ..Outgoing::new(FIRST_ID, "server/discover", Some(&envelope(capabilities))) };
        let refusal = match link.request(&outgoing, Arc::new(Deaf)).await? {
            Response::Result(result) => {
                return Ok(match (discovered(&result), error) {
                    (Some(negotiated), _) => Asked::Modern(negotiated),
                    (None, None) => Asked::Legacy,
                    (None, Some(error)) => Asked::Refused(refused(&error)),
                });
            }
            Response::Error(refusal) => refusal,
        };
        match refusal.code {
            UNSUPPORTED_VERSION => match supported(&refusal) {
                // What it supports is not said: it may be this one.
                None => {}
                Some(versions) if versions.iter().any(|v| v == Revision::MODERN.as_str()) => {}
                Some(versions) if versions.iter().any(|v| is_legacy(v)) => return Ok(Asked::Legacy),
                Some(_) => return Ok(Asked::Refused(refused(&refusal))),
            },
            MISSING_CAPABILITY => capabilities = r#"{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}"#,
            HEADER_MISMATCH => {}
            _ => match error {
                None => return Ok(http_verdict(&refusal)),
                Some(error) => return Ok(Asked::Refused(refused(&error))),
            },
        }
        error = Some(refusal);
    }
    Ok(error.map_or(Asked::Legacy, |error| Asked::Refused(refused(&error))))
}

/// Any other error is a legacy server's, except with a status that says that nobody has looked at the request.
fn http_verdict(error: &RpcError) -> Asked {
    match error.status {
        Some(status @ (401 | 403 | 407 | 429 | 500..=599)) => {
            Asked::Refused(LinkError::Status { status, body: super::received::shown(error.message.as_bytes()) })
        }
        _ => Asked::Legacy,
    }
}

fn refused(error: &RpcError) -> LinkError {
    let message = super::received::shown(error.message.as_bytes());
    LinkError::Protocol(format!("it refuses `server/discover`: {message} ({})", error.code))
}

fn envelope(capabilities: &str) -> String {
    format!(
        r#"{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{}","io.modelcontextprotocol/clientInfo":{},"io.modelcontextprotocol/clientCapabilities":{capabilities}}}}}"#,
        Revision::MODERN.as_str(),
        client_info()
    )
}

fn is_legacy(version: &str) -> bool {
    Revision::parse(version).is_some_and(|revision| revision.era() == Era::Legacy)
}

fn supported(error: &RpcError) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let data: Data = serde_json::from_str(error.data.as_ref()?.get()).ok()?;
    Some(data.supported)
}

/// What a `DiscoverResult` says, if it is one and has a version in common with the gateway.
fn discovered(result: &RawValue) -> Option<Negotiated> {
    #[derive(Deserialize)]
    struct DiscoverResult<'a> {
        #[serde(rename = "supportedVersions")]
        versions: Vec<String>,
        #[serde(borrow, default)]
        capabilities: Option<&'a RawValue>,
        #[serde(default)]
        instructions: Option<String>,
        #[serde(borrow, default, rename = "_meta")]
        meta: Option<Meta<'a>>,
        /// Where drafts had it.
        #[serde(borrow, default, rename = "serverInfo")]
        server_info: Option<&'a RawValue>,
        #[serde(default, rename = "ttlMs")]
        ttl_ms: Option<serde_json::Number>,
    }
    #[derive(Deserialize)]
    struct Meta<'a> {
        #[serde(borrow, default, rename = "io.modelcontextprotocol/serverInfo")]
        server_info: Option<&'a RawValue>,
    }
    let result: DiscoverResult<'_> = serde_json::from_str(result.get()).ok()?;
    let revision =
        result.versions.iter().filter_map(|v| Revision::parse(v)).filter(|r| r.era() == Era::Modern).max()?;
    let info = result.meta.and_then(|meta| meta.server_info).or(result.server_info);
    Some(Negotiated {
        revision,
        capabilities: object(result.capabilities),
        server_info: info.map(|info| Arc::from(info.to_owned())),
        instructions: result.instructions,
        ttl_ms: result.ttl_ms.and_then(|ttl| ttl.as_u64()),
    })
}

#[cfg(test)]
mod tests;
