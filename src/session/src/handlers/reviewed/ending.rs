//! What a change that is over means for the call that it came from.

use serde_json::Value;

use crate::handlers::tools::is_the_tools_own;
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ToolResult;
use countersign_review::gateway_tools;

/// The call's answer.
#[derive(Debug)]
pub struct Settled {
    pub result: ToolResult,
    /// What went wrong, if it did not run, or failed.
    pub failure: Option<ErrorKind>,
    /// Its `structuredContent` fits the tool's listed output schema.
    pub structured: bool,
}

/// How a change ended.
#[derive(Debug)]
pub enum Ending {
    Result(Settled),
    /// The call ended with an error of the protocol, as it would have without a review.
    Error(McpError),
}

/// `None` while something may still happen to it, or while nobody knows how it ended.
#[must_use]
pub fn ending(change: &Change) -> Option<Ending> {
    let told = |kind| {
        let result = ToolResult { is_error: true, ..gateway_tools::pending_result(change) };
        Some(Ending::Result(Settled { result, failure: Some(kind), structured: true }))
    };
    match change.state {
        ChangeState::Applied => Some(Ending::Result(applied(change))),
        ChangeState::Failed => Some(failed(change)),
        ChangeState::Rejected => told(ErrorKind::ChangeRejected),
        ChangeState::Expired => told(ErrorKind::ChangeExpired),
        ChangeState::Withdrawn => told(ErrorKind::Cancelled),
        _ => None,
    }
}

/// The tool's own answer, byte for byte.
fn own(change: &Change) -> Option<ToolResult> {
    serde_json::from_str(change.result.as_deref()?.get()).ok()
}

fn applied(change: &Change) -> Settled {
    match own(change) {
        Some(result) => Settled { result: with_edits(result, change), failure: None, structured: true },
        // A person said that it was done, or the answer is not kept any more.
        None => Settled { result: gateway_tools::pending_result(change), failure: None, structured: true },
    }
}

fn failed(change: &Change) -> Ending {
    let fault = change.fault.as_ref();
    let code = fault.map_or(ErrorKind::ToolExecution.code(), |fault| fault.code.as_str());
    let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.code() == code).unwrap_or(ErrorKind::ToolExecution);
    let own = own(change);
    let said = own.as_ref().and_then(|result| result.structured_content.as_deref());
    let said: Value = said.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    if kind == ErrorKind::UpstreamError || !is_the_tools_own(kind) {
        let message = fault.map_or_else(|| "the approved call failed".to_owned(), |fault| fault.message.clone());
        let number = said["details"]["upstreamCode"].as_i64();
        let error = match (kind, number) {
            (ErrorKind::UpstreamError, Some(number)) => McpError::foreign(kind, number, message, None),
            _ => McpError::new(kind, message).with("changeId", change.id.as_str()),
        };
        return Ending::Error(error);
    }
    // The gateway's own shape of an error would break the tool's output schema; its text says it all.
    let structured = said["error"] != true;
    let result = match own {
        Some(result) => with_edits(ToolResult { is_error: true, ..result }, change),
        None => ToolResult { is_error: true, ..gateway_tools::pending_result(change) },
    };
    Ending::Result(Settled { result, failure: Some(kind), structured })
}

/// Tells, after all that the tool itself says, that a reviewer has changed what the agent asked for.
fn with_edits(mut result: ToolResult, change: &Change) -> ToolResult {
    let Some(note) = gateway_tools::edits_note(change) else { return result };
    let block = serde_json::json!({ "type": "text", "text": note }).to_string();
    let content = result.content.get().trim_end();
    if let Some(blocks) = content.strip_suffix(']') {
        let comma = if blocks.trim_end().ends_with('[') { "" } else { "," };
        if let Ok(content) = serde_json::value::RawValue::from_string(format!("{blocks}{comma}{block}]")) {
            result.content = content;
        }
    }
    result
}
