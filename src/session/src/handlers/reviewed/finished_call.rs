//! Turns a change that has ended into the answer to its original call.

use serde_json::Value;

use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ToolResult;
use countersign_review::gateway_tools;
use countersign_routing::ToolRoute;

/// The answer to a call that has finished.
#[derive(Debug)]
pub struct FinishedCall {
    pub result: ToolResult,
    /// The failure, if the call did not run or failed.
    pub failure: Option<ErrorKind>,
    /// `true` if the `structuredContent` of the result fits the tool's listed output schema. Otherwise only the text is
    /// sent.
    pub fits_output_schema: bool,
    /// The id of the change, if the call became one.
    pub change_id: Option<String>,
}

impl FinishedCall {
    /// Creates the answer to a call that failed.
    pub fn from_error(error: &McpError, route: &ToolRoute) -> Self {
        let fits_output_schema = route.allows_structured_error();
        Self { result: ToolResult::error(error), failure: Some(error.kind), fits_output_schema, change_id: None }
    }
}

/// Returns `true` for a failure that the model can act on, and `false` for a failure of the gateway.
pub fn is_tool_failure(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Internal
            | ErrorKind::InvalidRequest
            | ErrorKind::InvalidParams
            | ErrorKind::MethodNotFound
            | ErrorKind::MissingCapability
            | ErrorKind::Overloaded
            | ErrorKind::RateLimited
            | ErrorKind::StoreUnavailable
            | ErrorKind::ShuttingDown
            | ErrorKind::Timeout
            | ErrorKind::Cancelled
            | ErrorKind::Unauthorized
            | ErrorKind::Forbidden
    )
}

/// Returns the outcome of a change: the answer to the call, or the protocol error with which the call ended, as it would have
/// without a review. Returns `None` while the state of the change may still change or its outcome is unknown.
#[must_use]
pub fn outcome_of(change: &Change) -> Option<Result<FinishedCall, McpError>> {
    let not_run = |kind| {
        let result = ToolResult { is_error: true, ..gateway_tools::change_result(change) };
        let change_id = Some(change.id.clone());
        Some(Ok(FinishedCall { result, failure: Some(kind), fits_output_schema: true, change_id }))
    };
    match change.state {
        ChangeState::Applied => Some(Ok(applied_call(change))),
        ChangeState::Failed => Some(failed_call(change)),
        ChangeState::Rejected => not_run(ErrorKind::ChangeRejected),
        ChangeState::Expired => not_run(ErrorKind::ChangeExpired),
        ChangeState::Withdrawn => not_run(ErrorKind::Cancelled),
        _ => None,
    }
}

/// Returns the tool's own answer, byte for byte.
fn tool_answer(change: &Change) -> Option<ToolResult> {
    serde_json::from_str(change.result.as_deref()?.get()).ok()
}

fn applied_call(change: &Change) -> FinishedCall {
    let result = match tool_answer(change) {
        Some(result) => with_edits_note(result, change),
        // A person settled the change as applied, or the answer is no longer stored.
        None => gateway_tools::change_result(change),
    };
    FinishedCall { result, failure: None, fits_output_schema: true, change_id: Some(change.id.clone()) }
}

fn failed_call(change: &Change) -> Result<FinishedCall, McpError> {
    let fault = change.fault.as_ref();
    let code = fault.map_or(ErrorKind::ToolExecution.code(), |fault| fault.code.as_str());
    let kind = ErrorKind::ALL.iter().copied().find(|kind| kind.code() == code).unwrap_or(ErrorKind::ToolExecution);
    let answer = tool_answer(change);
    let content = answer.as_ref().and_then(|result| result.structured_content.as_deref());
    let content: Value = content.and_then(|raw| raw.get().parse().ok()).unwrap_or_default();
    if kind == ErrorKind::UpstreamError || !is_tool_failure(kind) {
        let message = fault.map_or_else(|| "the approved call failed".to_owned(), |fault| fault.message.clone());
        let upstream_code = content["details"]["upstreamCode"].as_i64();
        return Err(match (kind, upstream_code) {
            (ErrorKind::UpstreamError, Some(upstream_code)) => {
                McpError::from_upstream(kind, upstream_code, message, None)
            }
            _ => McpError::new(kind, message).with("changeId", change.id.as_str()),
        });
    }
    // The gateway's own error structure does not fit the schema.
    let fits_output_schema = content["error"] != true;
    let result = match answer {
        Some(result) => with_edits_note(ToolResult { is_error: true, ..result }, change),
        None => ToolResult { is_error: true, ..gateway_tools::change_result(change) },
    };
    Ok(FinishedCall { result, failure: Some(kind), fits_output_schema, change_id: Some(change.id.clone()) })
}

/// Appends a note, after the tool's own content, if a reviewer has edited the arguments.
fn with_edits_note(mut result: ToolResult, change: &Change) -> ToolResult {
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

    fn outcome(
        state: ChangeState,
        result: Option<&ToolResult>,
        fault: Option<ErrorKind>,
    ) -> Option<Result<FinishedCall, McpError>> {
        outcome_of(&Change {
            result: result.map(|result| Arc::from(to_raw_value(result).unwrap())),
            fault: fault.map(|kind| ChangeFault { code: kind.code().into(), message: "why".into() }),
            ..change("chg_1", "ann", 3, state)
        })
    }

    #[test]
    fn call_has_outcome_once_change_ended() {
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
            let found = outcome(state, None, None).map(|ending| match ending {
                Ok(finished) => {
                    assert_eq!(finished.result.is_error, finished.failure.is_some(), "{state:?}");
                    finished.failure
                }
                Err(error) => panic!("{error}"),
            });
            assert_eq!(found, failure, "{state:?}");
        }
    }

    #[test]
    fn answer_of_tool_is_returned_unchanged() {
        let tool_result = ToolResult::text("done", Some(&json!({ "n": 1 })));
        let Some(Ok(finished)) = outcome(ChangeState::Applied, Some(&tool_result), None) else { panic!("a result") };
        assert_eq!((finished.result.content.get(), finished.fits_output_schema), (tool_result.content.get(), true));
        // The gateway's own error structure would violate the tool's output schema.
        let error = ToolResult::error(&McpError::new(ErrorKind::ResourceNotFound, "gone"));
        for (tool_result, fits_output_schema) in [(&tool_result, true), (&error, false)] {
            let failed = outcome(ChangeState::Failed, Some(tool_result), Some(ErrorKind::ResourceNotFound));
            let Some(Ok(finished)) = failed else { panic!("a result") };
            assert_eq!(
                (finished.failure, finished.fits_output_schema),
                (Some(ErrorKind::ResourceNotFound), fits_output_schema)
            );
            assert!(finished.result.is_error);
        }
    }

    #[test]
    fn protocol_error_stays_protocol_error() {
        for kind in [ErrorKind::Timeout, ErrorKind::UpstreamError] {
            let Some(Err(error)) = outcome(ChangeState::Failed, None, Some(kind)) else { panic!("an error") };
            assert_eq!((error.kind, error.data["changeId"].as_str()), (kind, Some("chg_1")));
        }
        let mut foreign = McpError::new(ErrorKind::UpstreamError, "theirs");
        foreign.data.insert("upstreamCode".into(), (-4711).into());
        let tool_result = ToolResult::error(&foreign);
        let failed = outcome(ChangeState::Failed, Some(&tool_result), Some(ErrorKind::UpstreamError));
        let Some(Err(error)) = failed else { panic!("an error") };
        assert_eq!(error.passthrough.as_ref().unwrap().code, -4711, "with the server's own code");
    }
}
