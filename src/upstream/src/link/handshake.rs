//! Opens a link of either era: what is said on it before the first request of a client.

use std::{sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{Connector, Link, LinkError, Listener, Negotiated, Outgoing, Response, UpstreamNotification};
use countersign_protocol::{Era, Revision, capabilities::ClientCapabilities};
use countersign_provider::request::UpstreamRequest;

/// The id of `handshake_revision` and of `server/discover`; [`crate::server::Upstream::mint`] starts at 1.
pub const FIRST_ID: u64 = 0;

/// The id of [`second_question`]: its answer may come late, on a link that is kept because the first question was
/// answered after all, so none of the ids that calls get may be it. The greatest that every server can hold.
pub(crate) const SECOND_ID: u64 = i32::MAX as u64;

/// How long a server may take to answer `handshake_revision`: it may install itself first.
pub const OPENING: Duration = Duration::from_secs(60);

/// How the gateway names itself to upstreams: an `Implementation`, as JSON.
#[must_use]
pub fn client_info() -> &'static str {
    concat!(r#"{"name":"countersign","title":"Countersign","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
}

/// Connects and shakes hands: `handshake_revision` and `notifications/initialized` in the handshake era, nothing in the
/// stateless one, where `known` is what discovery said.
///
/// # Errors
/// As [`Connector::connect`] and [`Link::parse_request`]; [`LinkError::Protocol`] if the server answers `handshake_revision` with an
/// error, with a revision that the gateway does not have, or not within [`OPENING`].
pub async fn open(
    connector: &dyn Connector,
    era: Era,
    known: Option<&Negotiated>,
    capabilities: &ClientCapabilities,
    unsolicited: Arc<dyn Listener>,
) -> Result<(Arc<dyn Link>, Negotiated), LinkError> {
    match (era, known) {
        (Era::Modern, Some(known)) => {
            let link = connector.connect(unsolicited).await?;
            link.opened(known);
            Ok((link, known.clone()))
        }
        (Era::Modern, None) => {
            let link = connector.connect(unsolicited).await?;
            let limit = tokio::time::timeout(OPENING, super::detect::discover(&*link)).await;
            match limit.unwrap_or_else(|_| Err(late("server/discover"))) {
                Ok(negotiated) => {
                    link.opened(&negotiated);
                    Ok((link, negotiated))
                }
                Err(error) => {
                    link.close();
                    Err(error)
                }
            }
        }
        (Era::Legacy, _) => {
            let mut revision = Revision::NEWEST_LEGACY;
            loop {
                let link = connector.connect(Arc::clone(&unsolicited)).await?;
                let error = match shake(&*link, revision, capabilities).await {
                    Ok(Shaken::Done(negotiated)) => return Ok((link, negotiated)),
                    // Servers should offer another revision in the result; some say what they have in an error.
                    Ok(Shaken::Wants(other)) if other < revision => {
                        revision = other;
                        link.close();
                        continue;
                    }
                    Ok(Shaken::Wants(_)) => LinkError::Protocol("it refuses every known revision".to_owned()),
                    Err(error) => error,
                };
                link.close();
                return Err(error);
            }
        }
    }
}

enum Shaken {
    Done(Negotiated),
    Wants(Revision),
}

/// `handshake_revision` on a link on which `server/discover` was not answered in time. The link is thrown away where this one is
/// answered first.
pub(crate) fn second_question() -> Outgoing {
    let params = params(Revision::NEWEST_LEGACY, &ClientCapabilities::default());
    Outgoing::new(SECOND_ID, "initialize", Some(&params))
}

fn params(revision: Revision, capabilities: &ClientCapabilities) -> String {
    format!(
        r#"{{"protocolVersion":"{}","capabilities":{},"clientInfo":{}}}"#,
        revision.as_str(),
        capabilities.to_json(revision),
        client_info()
    )
}

async fn shake(link: &dyn Link, revision: Revision, capabilities: &ClientCapabilities) -> Result<Shaken, LinkError> {
    let params = params(revision, capabilities);
    let outgoing = Outgoing::new(FIRST_ID, "initialize", Some(&params));
    let answer = tokio::time::timeout(OPENING, link.request(&outgoing, Arc::new(Deaf))).await;
    let error = match answer.map_err(|_| late("initialize"))?? {
        Response::Result(result) => {
            let negotiated = initialized(&result)?;
            link.opened(&negotiated);
            link.notify("notifications/initialized", None).await?;
            return Ok(Shaken::Done(negotiated));
        }
        Response::Error(error) => error,
    };
    if let Some(other) = error.data.as_ref().and_then(|data| offered(data.get())) {
        return Ok(Shaken::Wants(other));
    }
    let status = error.status.filter(|status| !(200..300).contains(status));
    Err(match status {
        // With its status the error may mean another transport (see `detect`).
        Some(status) => LinkError::Status { status, body: super::received::shown(error.message.as_bytes()) },
        None => {
            let message = super::received::shown(error.message.as_bytes());
            LinkError::Protocol(format!("it refuses `initialize`: {message} ({})", error.code))
        }
    })
}

fn late(method: &str) -> LinkError {
    LinkError::Lost(format!("no answer to `{method}` within {} seconds", OPENING.as_secs()))
}

/// The newest handshake-era revision in `data.supported` of an error.
fn offered(data: &str) -> Option<Revision> {
    #[derive(Deserialize)]
    struct Data {
        supported: Vec<String>,
    }
    let data: Data = serde_json::from_str(data).ok()?;
    data.supported.iter().filter_map(|text| Revision::parse(text)).filter(|r| r.era() == Era::Legacy).max()
}

#[derive(Deserialize)]
struct InitializeResult<'a> {
    #[serde(rename = "protocolVersion")]
    version: String,
    #[serde(borrow, default)]
    capabilities: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "serverInfo")]
    server_info: Option<&'a RawValue>,
    #[serde(default)]
    instructions: Option<String>,
}

/// What an `InitializeResult` says.
fn initialized(result: &RawValue) -> Result<Negotiated, LinkError> {
    let result: InitializeResult<'_> = serde_json::from_str(result.get())
        .map_err(|e| LinkError::Protocol(format!("its answer to `initialize` is malformed: {e}")))?;
    let revision = Revision::parse(&result.version).filter(|revision| revision.era() == Era::Legacy);
    let revision = revision.ok_or_else(|| {
        let version = super::received::shown(result.version.as_bytes());
        LinkError::Protocol(format!("it offers revision {version}, which the gateway does not have"))
    })?;
    Ok(Negotiated {
        revision,
        capabilities: object(result.capabilities),
        server_info: result.server_info.map(|info| Arc::from(info.to_owned())),
        instructions: result.instructions,
        ttl_ms: None,
    })
}

/// The object, or an empty one where there is none.
pub(crate) fn object(raw: Option<&RawValue>) -> Arc<RawValue> {
    match raw {
        Some(raw) if raw.get().starts_with('{') => Arc::from(raw.to_owned()),
        _ => Arc::from(serde_json::value::to_raw_value(&json!({})).unwrap_or_default()),
    }
}

/// Hears nothing: before the handshake is done a server must send nothing but logs and pings
/// (25/basic/lifecycle, "Initialization").
pub(crate) struct Deaf;

impl Listener for Deaf {
    fn notification(&self, notification: UpstreamNotification) {
        tracing::debug!(method = notification.method, "a notification before the handshake is done");
    }

    fn request(&self, request: UpstreamRequest) {
        tracing::debug!(method = request.method, "a request before the handshake is done");
    }
}

#[cfg(test)]
mod tests;
