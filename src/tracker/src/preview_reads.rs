//! Lists the read calls that reveal the same data as the preview of a write. The proposer is shown the preview only if
//! policy allows them all of these calls.

use serde_json::{Value, json, value::RawValue};

use super::arguments::Write;
use countersign_protocol::McpError;

/// Returns the read calls for a write, each as a tool with its arguments.
///
/// # Errors
/// Fails if the arguments of the write are invalid.
pub(super) fn preview_reads(tool: &str, arguments: &RawValue) -> Result<Vec<(&'static str, Value)>, McpError> {
    let Some(write) = Write::parse(tool, arguments) else { return Ok(Vec::new()) };
    let write = write?;
    let values: Value = arguments.get().parse().unwrap_or_default();
    let mut reads = Vec::new();
    let issue = |id: &Value| ("get_issue", json!({ "issueId": id }));
    let people = || ("list_projects", json!({ "includePeople": true }));
    match write {
        Write::CreateProject { .. } => reads.push(("list_projects", json!({}))),
        Write::CreateIssue(_) | Write::Assign { .. } => reads.push(people()),
        // The preview reveals only the issues that the arguments name, which are added below.
        Write::UpdateIssue { .. } | Write::UpdateStatus { .. } | Write::Comment { .. } | Write::Delete { .. } => {}
    }
    reads.extend(
        ["issueId", "parentId"].iter().filter_map(|name| values.get(name)).filter(|id| id.is_string()).map(issue),
    );
    Ok(reads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tools::tools, workflow::Workflow};

    #[test]
    fn preview_reads_are_listed_for_each_write() {
        let reads_of = |tool: &str, arguments: Value| {
            let raw = RawValue::from_string(arguments.to_string()).unwrap();
            preview_reads(tool, &raw)
                .map(|reads| reads.into_iter().map(|(tool, args)| format!("{tool} {args}")).collect::<Vec<_>>())
        };
        let (id, project) = ("CORE-1", "67e55044-10b1-426f-9247-bb680e5fe0c8");
        let issue = r#"get_issue {"issueId":"CORE-1"}"#;
        let people = r#"list_projects {"includePeople":true}"#;
        let rows = [
            ("create_project", json!({ "name": "n" }), vec!["list_projects {}"]),
            ("create_issue", json!({ "projectId": project, "title": "t", "type": "Bug" }), vec![people]),
            ("update_issue", json!({ "issueId": id, "title": "t" }), vec![issue]),
            ("update_status", json!({ "issueId": id, "newStatus": "Done" }), vec![issue]),
            ("assign_issue", json!({ "issueId": id, "assigneeId": null }), vec![people, issue]),
            ("add_comment", json!({ "issueId": id, "content": "c" }), vec![issue]),
            ("delete_issue", json!({ "issueId": id }), vec![issue]),
        ];
        let workflow = Workflow::from_config(&Default::default()).unwrap();
        let writes = tools(&workflow).into_iter().filter(|tool| !tool.annotations.read_only_hint);
        assert_eq!(writes.map(|tool| tool.name).collect::<Vec<_>>(), rows.each_ref().map(|(tool, ..)| *tool));
        for (tool, arguments, expected) in rows {
            assert_eq!(reads_of(tool, arguments).unwrap(), expected, "{tool}");
        }
        assert!(reads_of("update_issue", json!({ "issueId": "no key" })).is_err(), "no issue can have this key");
        assert_eq!(reads_of("get_issue", json!({ "issueId": id })).unwrap(), Vec::<String>::new());
    }
}
