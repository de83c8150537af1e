//! The JSON of a task in either era: the `Task` of 2025-11-25 (schema/2025-11-25) and that of the extension (ext-tasks,
//! "Tasks"). Members that both have pass unchanged.

use jiff::Timestamp;
use serde_json::json;

use super::result::is_error_result;
use countersign_protocol::{
    json::{MemberEdit, drop_meta_entry, edit, member, merge_meta, quoted},
    task::Status,
};

/// The key in `_meta` of all messages that belong to a task of 2025-11-25.
pub const RELATED_TASK_KEY: &str = "io.modelcontextprotocol/related-task";

/// The times of creation and last change of a task that the gateway itself keeps.
#[derive(Clone, Copy, Debug)]
pub struct TaskTimes {
    pub created: Timestamp,
    pub updated: Timestamp,
}

impl TaskTimes {
    pub fn now() -> Self {
        let now = Timestamp::now();
        Self { created: now, updated: now }
    }
}

/// Returns the task with another id.
pub fn with_task_id(task: &str, alias: &str) -> String {
    edit(task, &[("taskId", MemberEdit::Replace(&quoted(alias)))])
}

/// Converts a task of the extension into one of 2025-11-25: renames its times and removes its result, error and
/// questions. A completed task with an error result counts as failed there.
pub fn to_legacy(task: &str, alias: &str, status: Status) -> String {
    let has_failed = status == Status::Completed && member(task, "result").is_some_and(is_error_result);
    let status = if has_failed { Status::Failed } else { status };
    let (id, status) = (quoted(alias), quoted(status.as_str()));
    let ttl = member(task, "ttlMs").unwrap_or("null");
    let mut edits = vec![
        ("taskId", MemberEdit::Set(id.as_str())),
        ("status", MemberEdit::Set(status.as_str())),
        ("ttl", MemberEdit::Set(ttl)),
        ("ttlMs", MemberEdit::Drop),
        ("pollIntervalMs", MemberEdit::Drop),
        ("resultType", MemberEdit::Drop),
        ("result", MemberEdit::Drop),
        ("error", MemberEdit::Drop),
        ("inputRequests", MemberEdit::Drop),
        ("_meta", MemberEdit::Drop),
    ];
    edits.extend(member(task, "pollIntervalMs").map(|poll| ("pollInterval", MemberEdit::Set(poll))));
    edit(task, &edits)
}

/// Converts a task of 2025-11-25 into one of the extension with a status and one more member (`result`, `error` or
/// `inputRequests`, as JSON text).
pub fn to_modern(task: &str, alias: &str, status: Status, detail: Option<(&'static str, &str)>) -> String {
    let (id, status) = (quoted(alias), quoted(status.as_str()));
    let ttl = member(task, "ttl").unwrap_or("null");
    let mut edits = vec![
        ("taskId", MemberEdit::Set(id.as_str())),
        ("status", MemberEdit::Set(status.as_str())),
        ("ttlMs", MemberEdit::Set(ttl)),
        ("ttl", MemberEdit::Drop),
        ("pollInterval", MemberEdit::Drop),
        ("_meta", MemberEdit::Drop),
    ];
    edits.extend(member(task, "pollInterval").map(|poll| ("pollIntervalMs", MemberEdit::Set(poll))));
    edits.extend(detail.map(|(key, value)| (key, MemberEdit::Set(value))));
    edit(task, &edits)
}

/// Returns a task of 2025-11-25 that the gateway itself keeps.
pub fn local_task(alias: &str, status: Status, times: &TaskTimes) -> String {
    json!({
        "taskId": alias,
        "status": status.as_str(),
        "createdAt": times.created.to_string(),
        "lastUpdatedAt": times.updated.to_string(),
        "ttl": null,
        "pollInterval": 100,
    })
    .to_string()
}

/// Returns the object with the task named in its `_meta` (2025-11-25/basic/utilities/tasks, "Associating Task-Related
/// Messages").
pub fn with_related_task(object: &str, alias: &str) -> String {
    let task = json!({ "taskId": alias }).to_string();
    merge_meta(object, &[(RELATED_TASK_KEY, MemberEdit::Set(&task))])
}

/// Returns the object without the task in its `_meta`, which the other era does not know.
pub fn without_related_task(object: &str) -> String {
    drop_meta_entry(object, RELATED_TASK_KEY).unwrap_or_else(|| object.to_owned())
}

/// Returns the result with a `resultType`.
pub fn with_result_type(object: &str, kind: &str) -> String {
    edit(object, &[("resultType", MemberEdit::Set(&quoted(kind)))])
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENSION: &str = r#"{"resultType":"complete","taskId":"own","status":"completed","statusMessage":"ok","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:01Z","ttlMs":60000,"pollIntervalMs":250,"vendor":12345678901234567890123,"result":{"content":[],"isError":true}}"#;

    #[test]
    fn extension_task_converts_to_2025_task() {
        assert_eq!(
            to_legacy(EXTENSION, "a", Status::Completed),
            r#"{"taskId":"a","status":"failed","statusMessage":"ok","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:01Z","vendor":12345678901234567890123,"ttl":60000,"pollInterval":250}"#
        );
        let succeeded = EXTENSION.replace("true", "false");
        assert!(to_legacy(&succeeded, "a", Status::Completed).contains(r#""status":"completed""#));
    }

    #[test]
    fn task_of_2025_converts_to_extension_task() {
        let task = r#"{"taskId":"own","status":"working","ttl":null,"pollInterval":5,"createdAt":"x","_meta":{}}"#;
        assert_eq!(
            to_modern(task, "a", Status::Completed, Some(("result", r#"{"content":[1e400]}"#))),
            r#"{"taskId":"a","status":"completed","createdAt":"x","ttlMs":null,"pollIntervalMs":5,"result":{"content":[1e400]}}"#
        );
    }

    #[test]
    fn related_task_is_added_and_removed() {
        let with = with_related_task(r#"{"content":[],"_meta":{"k":1}}"#, "a");
        assert_eq!(with, r#"{"content":[],"_meta":{"k":1,"io.modelcontextprotocol/related-task":{"taskId":"a"}}}"#);
        assert_eq!(without_related_task(&with), r#"{"content":[],"_meta":{"k":1}}"#);
        assert_eq!(without_related_task(&with_related_task("{}", "a")), "{}");
    }
}
