//! Turns a change that has ended into the answer to the call that it came from.

use serde_json::Value;

use crate::handlers::tools::is_the_tools_own;
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ToolResult;
use countersign_review::gateway_tools;
use countersign_routing::ToolRoute;

/// The call's answer.
#[derive(Debug)]
pub struct FinishedCall {
    pub result: ToolResult,
    /// The failure, if the call did not run or failed.
    pub failure: Option<ErrorKind>,
    /// Its `structuredContent` fits the tool's listed output schema.
    pub structured: bool,
}

impl FinishedCall {
    /// Creates the answer to a call that failed.
    #[must_use]
    pub fn failed(error: &McpError, route: &ToolRoute) -> Self {
        // Where an error's shape would break the tool's own output schema, its text says it all.
        let structured = route.allows_structured_error();
        Self { result: ToolResult::error(error), failure: Some(error.kind), structured }
    }
}

/// The outcome of a change.
#[derive(Debug)]
pub enum ChangeOutcome {
    Result(FinishedCall),
    /// The call ended with an error of the protocol, as it would have without a review.
    Error(McpError),
}

/// `None` while something may still happen to it, or while nobody knows how it ended.
#[must_use]
pub fn outcome_of(change: &Change) -> Option<ChangeOutcome> {
    let told = |kind| {
        let result = ToolResult { is_error: true, ..gateway_tools::pending_result(change) };
        Some(ChangeOutcome::Result(FinishedCall { result, failure: Some(kind), structured: true }))
    };
    match change.state {
        ChangeState::Applied => Some(ChangeOutcome::Result(applied(change))),
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

fn applied(change: &Change) -> FinishedCall {
    match own(change) {
        Some(result) => FinishedCall { result: with_edits(result, change), failure: None, structured: true },
        // A person said that it was done, or the answer is not kept any more.
        None => FinishedCall { result: gateway_tools::pending_result(change), failure: None, structured: true },
    }
}

fn failed(change: &Change) -> ChangeOutcome {
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
            (ErrorKind::UpstreamError, Some(number)) => McpError::from_upstream(kind, number, message, None),
            _ => McpError::new(kind, message).with("changeId", change.id.as_str()),
        };
        return ChangeOutcome::Error(error);
    }
    // The gateway's own shape of an error would break the tool's output schema; its text says it all.
    let structured = said["error"] != true;
    let result = match own {
        Some(result) => with_edits(ToolResult { is_error: true, ..result }, change),
        None => ToolResult { is_error: true, ..gateway_tools::pending_result(change) },
    };
    ChangeOutcome::Result(FinishedCall { result, failure: Some(kind), structured })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{json, value::to_raw_value};

    use super::*;
    use countersign_domain::changes::{ChangeFault, testing::change};

    fn over(state: ChangeState, result: Option<&ToolResult>, fault: Option<ErrorKind>) -> Option<ChangeOutcome> {
        outcome_of(&Change {
            result: result.map(|result| Arc::from(to_raw_value(result).unwrap())),
            fault: fault.map(|kind| ChangeFault { code: kind.code().into(), message: "why".into() }),
            ..change("chg_1", "ann", 3, state)
        })
    }

    #[test]
    fn a_call_is_over_when_its_change_is() {
        use ChangeState as S;
        for (state, failure) in [
            (S::Applied, Some(None)),
            (S::Rejected, Some(Some(ErrorKind::ChangeRejected))),
            (S::Expired, Some(Some(ErrorKind::ChangeExpired))),
            (S::Withdrawn, Some(Some(ErrorKind::Cancelled))),
            (S::Failed, Some(Some(ErrorKind::ToolExecution))),
            (S::Pending, None),
            (S::Approved, None),
            (S::Stale, None),
            (S::Executing, None),
            (S::OutcomeUnknown, None),
        ] {
            let found = over(state, None, None).map(|ending| match ending {
                ChangeOutcome::Result(settled) => {
                    assert_eq!(settled.result.is_error, settled.failure.is_some(), "{state:?}");
                    settled.failure
                }
                ChangeOutcome::Error(error) => panic!("{error}"),
            });
            assert_eq!(found, failure, "{state:?}");
        }
    }

    #[test]
    fn what_the_tool_said_is_the_answer() {
        let own = ToolResult::text("done", Some(&json!({ "n": 1 })));
        let Some(ChangeOutcome::Result(settled)) = over(ChangeState::Applied, Some(&own), None) else {
            panic!("a result")
        };
        assert_eq!((settled.result.content.get(), settled.structured), (own.content.get(), true));
        // The gateway's own shape of an error would break the tool's output schema.
        let error = ToolResult::error(&McpError::new(ErrorKind::ResourceNotFound, "gone"));
        for (own, structured) in [(&own, true), (&error, false)] {
            let failed = over(ChangeState::Failed, Some(own), Some(ErrorKind::ResourceNotFound));
            let Some(ChangeOutcome::Result(settled)) = failed else { panic!("a result") };
            assert_eq!((settled.failure, settled.structured), (Some(ErrorKind::ResourceNotFound), structured));
            assert!(settled.result.is_error);
        }
    }

    #[test]
    fn an_error_of_the_protocol_stays_one() {
        for kind in [ErrorKind::Timeout, ErrorKind::UpstreamError] {
            let Some(ChangeOutcome::Error(error)) = over(ChangeState::Failed, None, Some(kind)) else {
                panic!("an error")
            };
            assert_eq!((error.kind, error.data["changeId"].as_str()), (kind, Some("chg_1")));
        }
        let mut foreign = McpError::new(ErrorKind::UpstreamError, "theirs");
        foreign.data.insert("upstreamCode".into(), (-4711).into());
        let own = ToolResult::error(&foreign);
        let failed = over(ChangeState::Failed, Some(&own), Some(ErrorKind::UpstreamError));
        let Some(ChangeOutcome::Error(error)) = failed else { panic!("an error") };
        assert_eq!(error.passthrough.as_ref().unwrap().code, -4711, "with the server's own code");
    }
}
