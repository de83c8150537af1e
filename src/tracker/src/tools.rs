//! Defines the tools: names, descriptions for models, schemas and annotations.
//!
//! To add a tool:
//! 1. Define its arguments in `arguments.rs`, put it into [`tools`], and name it in
//!    `tools_match_the_specification`.
//! 2. A read: answer it in `reads.rs`, and route its name in `Provider::call` (`lib.rs`). A write: add a variant to
//!    `Write`, check it and make its diff in `plan.rs`, and carry it out in `writes.rs`; the compiler requires the last
//!    two. Call it in `answers_match_output_schemas`, which fails for each tool that it does not call.
//! 3. A write: name in `preview_reads.rs` the reads that reveal the data of its preview. An agent that may not make
//!    those reads is not shown the preview. The compiler requires this, and `preview_reads_are_listed_for_each_write`
//!    requires a row.

use serde_json::json;

use super::{
    arguments::{
        AddComment, AssignIssue, CreateIssue, CreateProject, DeleteIssue, GetIssue, ListIssues, ListProjects,
        SearchIssues, UpdateIssue, UpdateStatus,
    },
    model::Status,
    reads::{IssueAnswer, IssuesAnswer, ProjectsAnswer},
    search::SearchAnswer,
    workflow::Workflow,
    writes::{ChangedIssue, CreatedComment, CreatedIssue, CreatedProject, DeletedIssue},
};
use countersign_protocol::annotations::ToolAnnotations;
use countersign_provider::ToolDef;

/// Returns all tools in the order of `tools/list`.
pub(super) fn tools(workflow: &Workflow) -> Vec<ToolDef> {
    let transitions: String = Status::ALL
        .iter()
        .map(|from| {
            let to: Vec<&str> = workflow.allowed_from(*from).iter().map(|status| status.as_str()).collect();
            format!(" {from} to {}.", if to.is_empty() { "nowhere".to_owned() } else { to.join(", ") })
        })
        .collect();
    let mut tools = vec![
        ToolDef::for_types::<ListProjects, ProjectsAnswer>(
            "list_projects",
            "List projects",
            "Lists the tracker's projects by key, with their ids and numbers of issues. With includePeople, it also lists \
             the people to whom issues can be assigned.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<ListIssues, IssuesAnswer>(
            "list_issues",
            "List issues",
            "Lists issues, newest first, filtered by project, status, type, priority, assignee, parent and words. \
             For the next page, pass the nextCursor of the answer as cursor. Use search_issues to rank issues by relevance \
             and to search comments.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<GetIssue, IssueAnswer>(
            "get_issue",
            "Get issue",
            "Reads all fields of one issue, given by its UUID or its key, and the statuses to which it may move. The \
             argument include adds its newest comments, its children and its history.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<SearchIssues, SearchAnswer>(
            "search_issues",
            "Search issues",
            "Searches the keys, titles, descriptions and comments of issues, and lists the best matches first. The query \
             is plain words, and the last one may be the beginning of a word. If no issue has all words, the answer \
             lists issues with some of them, and partial is true.",
            ToolAnnotations::READ_ONLY,
        ),
        ToolDef::for_types::<CreateProject, CreatedProject>(
            "create_project",
            "Create project",
            "Creates a project. Its key begins the keys of its issues (CORE-12) and never changes. Without a \
             given key, it is derived from the name.",
            ToolAnnotations::ADDING,
        ),
        // The plan checks that a Task has a parent, with a better message than `if`/`then` would give.
        ToolDef::for_types::<CreateIssue, CreatedIssue>(
            "create_issue",
            "Create issue",
            "Creates an Epic, Story, Task or Bug in a project. It starts in Backlog. Its key (such as CORE-12) is \
             assigned when the change is applied. A Task needs a parent that is a Story or an Epic.",
            ToolAnnotations::ADDING,
        ),
        ToolDef::for_types::<UpdateIssue, ChangedIssue>(
            "update_issue",
            "Update issue",
            "Changes fields of an issue: title, description, type, priority, estimatedHours, parentId. Fields that are \
             not given stay unchanged. Use update_status for the status, and assign_issue for the assignee.",
            ToolAnnotations::REPLACING,
        ),
        ToolDef::for_types::<UpdateStatus, ChangedIssue>(
            "update_status",
            "Update status",
            &format!("Moves an issue to another status, as the workflow allows:{transitions}"),
            ToolAnnotations::REPLACING,
        ),
        ToolDef::for_types::<AssignIssue, ChangedIssue>(
            "assign_issue",
            "Assign issue",
            "Assigns an issue to a person, or to nobody. list_projects with includePeople lists the people and their ids.",
            ToolAnnotations::REPLACING,
        ),
        ToolDef::for_types::<AddComment, CreatedComment>(
            "add_comment",
            "Add comment",
            "Adds a comment to an issue, in Markdown. You are its author.",
            ToolAnnotations::ADDING,
        ),
        ToolDef::for_types::<DeleteIssue, DeletedIssue>(
            "delete_issue",
            "Delete issue",
            "Deletes an issue and its comments permanently. Only its history stays. An issue with children cannot be \
             deleted. To close an issue, use update_status with Done or Cancelled instead.",
            ToolAnnotations::REPLACING,
        ),
    ];
    for tool in &mut tools {
        tool.input_schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    }
    tools
}
