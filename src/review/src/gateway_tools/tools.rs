//! The gateway's tools as they are listed. A model learns here how to work with changes that wait for a person.

use std::time::Duration;

use serde_json::{Value, json};

use super::view::{line_schema, pending_output_schema};
use countersign_domain::changes::ChangeState;
use countersign_protocol::annotations::ToolAnnotations;
use countersign_provider::ToolDef;

/// The default number of changes on a page of `list_changes`.
pub(super) const DEFAULT_PAGE_SIZE: usize = 20;
pub(super) const MAX_PAGE_SIZE: usize = 100;
pub(super) const MAX_CURSOR_CHARS: usize = 64;
/// The wait of `wait_for_change` in seconds if the caller names none. It is below the timeout of common clients (60 s).
const DEFAULT_WAIT_SECONDS: u64 = 45;

const READ_ONLY: ToolAnnotations =
    ToolAnnotations { read_only_hint: true, destructive_hint: false, idempotent_hint: true, open_world_hint: false };

/// Returns the longest and the default wait, in seconds.
pub(super) fn wait_bounds(max_wait: Duration) -> (u64, u64) {
    let max = max_wait.as_secs().max(1);
    (max, DEFAULT_WAIT_SECONDS.min(max))
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false
    })
}

fn change_id_schema() -> Value {
    json!({
        "type": "string",
        "title": "Change",
        "description": "The id of the change, as the answer to the write gave it: chg_ and 24 characters.",
        "minLength": 5,
        "maxLength": 64
    })
}

fn tool_def(
    name: &str,
    title: &str,
    description: &str,
    input: Value,
    output: Value,
    annotations: ToolAnnotations,
) -> ToolDef {
    ToolDef {
        name: name.to_owned(),
        title: title.to_owned(),
        description: description.to_owned(),
        input_schema: input,
        output_schema: Some(output),
        annotations,
        self_service: true,
        long_running: name == "wait_for_change",
        read_only_when: None,
        raw: None,
    }
}

/// Returns the definitions of the tools. `max_wait` is the longest wait that they accept.
#[must_use]
pub fn tools(max_wait: Duration) -> Vec<ToolDef> {
    let (max, default) = wait_bounds(max_wait);
    let status: Vec<&str> =
        std::iter::once("open").chain(ChangeState::ALL.iter().map(|state| state.as_str())).collect();
    let change_id_input = object(&json!({ "changeId": change_id_schema() }), &["changeId"]);
    let mut wait_output = pending_output_schema();
    wait_output["properties"]["timedOut"] =
        json!({ "type": "boolean", "description": "The wait ended before the change was decided or done." });
    vec![
        tool_def(
            "get_change",
            "Get change",
            "Shows the state of a change that you proposed. Behind this gateway a write may become a pending change: \
             nothing is altered until a person approves it. The answer says the status, who decided and why, the \
             result once it was applied, and what to do next. After a rejection, heed the reviewer's reason.",
            change_id_input.clone(),
            pending_output_schema(),
            READ_ONLY,
        ),
        tool_def(
            "list_changes",
            "List changes",
            "Lists the changes that you proposed, newest first. `open` are those that have not ended: pending, stale, \
             approved, executing or of unknown outcome. Look here before you propose something again.",
            object(
                &json!({
                    "status": {
                        "type": "string",
                        "title": "Status",
                        "enum": status,
                        "description": "Only changes with this status; `open` for all that have not ended."
                    },
                    "limit": {
                        "type": "integer", "title": "Limit", "minimum": 1, "maximum": MAX_PAGE_SIZE, "default": DEFAULT_PAGE_SIZE,
                        "description": "The most changes to return."
                    },
                    "cursor": {
                        "type": "string", "title": "Cursor", "maxLength": MAX_CURSOR_CHARS,
                        "description": "The nextCursor of the page before, with the same status."
                    }
                }),
                &[],
            ),
            json!({
                "type": "object",
                "properties": {
                    "changes": { "type": "array", "items": line_schema() },
                    "nextCursor": { "type": ["string", "null"], "description": "Give it as `cursor` for the next page; null at the end." }
                },
                "required": ["changes", "nextCursor"]
            }),
            READ_ONLY,
        ),
        tool_def(
            "wait_for_change",
            "Wait for change",
            &format!(
                "Waits until a change that you proposed is decided and done, for at most timeoutSeconds (up to {max}), \
                 and answers as get_change does. If timedOut is true, nothing is wrong: call it again, or go on with \
                 work that does not depend on the change."
            ),
            object(
                &json!({
                    "changeId": change_id_schema(),
                    "timeoutSeconds": {
                        "type": "number", "title": "Time-out", "minimum": 1, "maximum": max, "default": default,
                        "description": "How many seconds to wait at most."
                    },
                    "until": {
                        "type": "string", "title": "Until", "enum": ["done", "decided"], "default": "done",
                        "description": "`done` waits for the outcome, `decided` only for the person's decision."
                    }
                }),
                &["changeId"],
            ),
            wait_output,
            READ_ONLY,
        ),
        tool_def(
            "withdraw_change",
            "Withdraw change",
            "Takes back a change that you proposed and that nobody has decided yet. Nothing is altered. Use it when \
             the change is no longer wanted, or before you propose a corrected one.",
            change_id_input,
            pending_output_schema(),
            ToolAnnotations { read_only_hint: false, ..READ_ONLY },
        ),
    ]
}
