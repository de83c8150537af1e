//! Tries a server beside the running ones: opens one link, reads the tools and ends the link. It calls no tool, and
//! nothing of the gateway changes.

use std::{path::Path, sync::Arc, time::Duration};

use futures_util::future::LocalBoxFuture;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    catalog::{Names, is_tool_allowed},
    link::{
        Connector, Link, LinkError, NegotiatedSession, SilentListener, connectors::create_connectors, detect,
        handshake::refusal_error,
    },
    server::{
        gateway_requests::{self, GatewayRequestError},
        status::era_name,
    },
    upkeep::lists::{ListEntries, TOOLS, read_pages},
};
use countersign_config::{ListsConfig, UpstreamConfig};
use countersign_domain::text::truncate;
use countersign_protocol::{
    ErrorKind,
    json::{member, string},
    redact::redact,
};

/// The time to wait for the last lines on stderr after a server has failed.
const STDERR_DELAY: Duration = Duration::from_millis(300);
/// The time limit for a server to end, after which its folder may be removed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of characters that are kept of a text of the server.
const MAX_TEXT_CHARS: usize = 300;
/// The maximum number of tools in a report.
const MAX_TOOLS: usize = 500;

/// The result of a trial of a server.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ServerTrial)]
pub struct TrialReport {
    /// `true` if the server answered and listed its tools.
    pub works: bool,
    /// The reason why it does not work, as the end of a sentence that begins with the name of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// `true` if the server answers, but requires an account, which people connect once it is configured.
    pub needs_account: bool,
    /// `stateless` or `handshake`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<&'static str>,
    /// The name and version that the server gives itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_name: Option<String>,
    pub tools: Vec<TrialTool>,
    /// Notes about tools that are not listed.
    pub notes: Vec<String>,
    /// The last lines on stderr, without secrets.
    pub stderr: Vec<String>,
}

/// A tool of a server that was tried.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrialTool {
    /// The server's own name of the tool.
    pub name: String,
    pub title: String,
    /// `true` if the tool says that it only reads.
    pub claims_read: bool,
    /// `false` if `tools` of the configuration leaves it out.
    pub offered: bool,
}

/// Tries a server for at most `limit`. A command without `cwd` runs in a folder of its own below `data`, which the caller may
/// remove afterwards. Runs on an actix thread. Boxed, so that its code is not compiled again in each crate that awaits it.
pub fn try_server<'a>(
    config: &'a Arc<UpstreamConfig>,
    data: &'a Path,
    max_message: usize,
    limit: Duration,
) -> LocalBoxFuture<'a, TrialReport> {
    Box::pin(async move {
        match create_connectors(config, data, max_message, None).into_iter().next() {
            Some(connector) => try_connector(config, connector, limit).await,
            None => failure("has no address".to_owned()),
        }
    })
}

fn failure(error: String) -> TrialReport {
    TrialReport { error: Some(error), ..TrialReport::default() }
}

/// Tries a server over this connector for at most `limit`.
pub(crate) async fn try_connector(
    config: &Arc<UpstreamConfig>,
    connector: Arc<dyn Connector>,
    limit: Duration,
) -> TrialReport {
    let mut report = match tokio::time::timeout(limit, read_tools(config, &connector)).await {
        Ok(Ok(report)) => report,
        Ok(Err(error)) => {
            let is_about_access = matches!(&error, LinkError::Unauthorized(_) | LinkError::Status { status: 401, .. });
            let needs_account = is_about_access && config.oauth.is_some();
            TrialReport { needs_account, ..failure(describe(&error)) }
        }
        Err(_) => failure(format!("did not answer within {} s", limit.as_secs())),
    };
    if report.error.is_some() {
        tokio::time::sleep(STDERR_DELAY).await;
    }
    report.stderr = connector.stderr().last_lines.into();
    report
}

/// Describes an error with the beginning of what the server sent.
fn describe(error: &LinkError) -> String {
    let text = match error {
        LinkError::Status { body, .. } if !body.trim().is_empty() => format!("{error}: {body}"),
        _ => error.to_string(),
    };
    shorten(&text)
}

/// Returns the beginning of a text of the server, without secrets.
fn shorten(text: &str) -> String {
    truncate(&redact(text), MAX_TEXT_CHARS).to_owned()
}

/// Opens a link, lists the tools and closes the link.
async fn read_tools(config: &UpstreamConfig, connector: &Arc<dyn Connector>) -> Result<TrialReport, LinkError> {
    let detected = detect::detect(Arc::clone(connector), Arc::new(SilentListener)).await?;
    let listed = list_tools(config, &*detected.link, &detected.negotiated).await;
    detected.link.close();
    let _ = tokio::time::timeout(END_TIMEOUT, detected.link.closed().cancelled()).await;
    let (tools, notes) = listed?;
    Ok(TrialReport {
        works: true,
        era: Some(era_name(detected.era())),
        own_name: name_and_version(&detected.negotiated),
        tools,
        notes,
        ..TrialReport::default()
    })
}

/// Lists the tools, and returns them with notes about those that are left out.
async fn list_tools(
    config: &UpstreamConfig,
    link: &dyn Link,
    negotiated: &NegotiatedSession,
) -> Result<(Vec<TrialTool>, Vec<String>), LinkError> {
    let limits = ListsConfig { entries: config.lists.entries.min(MAX_TOOLS), ..config.lists };
    let mut last_id = 0;
    let listed = read_pages(&TOOLS, limits, 0, async |params: &str| {
        last_id += 1;
        let (era, listener) = (negotiated.revision.era(), Arc::new(SilentListener));
        gateway_requests::send_request(link, era, last_id, "tools/list", params, listener).await
    });
    let listed = match listed.await {
        Ok(listed) => listed,
        // The server has no tools.
        Err(GatewayRequestError::Rpc(error)) if error.code == ErrorKind::MethodNotFound.number() => {
            ListEntries::empty()
        }
        Err(GatewayRequestError::Rpc(error)) => return Err(refusal_error("tools/list", &error)),
        Err(GatewayRequestError::Link(error)) => return Err(error),
        Err(error) => return Err(LinkError::Protocol(error.to_string())),
    };
    let mut notes = Vec::new();
    if listed.truncation.is_some() {
        notes.push("It has more tools than are listed here.".to_owned());
    }
    let names = Names::identity();
    let mut tools = Vec::new();
    for definition in &listed.all {
        match names.parse_tool(definition) {
            Ok(tool) => tools.push(TrialTool {
                offered: is_tool_allowed(config, &tool.name),
                claims_read: tool.annotations.read_only_hint,
                title: shorten(&tool.title),
                name: shorten(&tool.name),
            }),
            Err(error) => notes.push(shorten(&error.to_string())),
        }
    }
    notes.truncate(20);
    Ok((tools, notes))
}

/// Returns the name and version that the server gives itself.
fn name_and_version(negotiated: &NegotiatedSession) -> Option<String> {
    let info = negotiated.server_info.as_ref()?;
    let text = |key| member(info.get(), key).and_then(string);
    let name = text("name")?;
    Some(shorten(&text("version").map_or(name.to_string(), |version| format!("{name} {version}"))))
}
