//! The tracker's tools as they are listed: names, descriptions for models, schemas, annotations.
//!
//! To add a tool:
//! 1. Define it here and put it into [`tools`]; name it in `the_tools_are_those_of_the_specification`.
//! 2. A read: parse its arguments in `queries.rs`, answer it in `reads.rs`, and route its name in `Provider::call`
//!    (`lib.rs`). A write: add a variant to `Write` in `args.rs`, parse its name and arguments there, check it and make
//!    its diff in `plan.rs`, and do it in `writes.rs`; the compiler asks for the last two. A call of it in
//!    `every_answer_fits_its_output_schema`, which misses each tool without one, finds what was left out.
//! 3. A write: say in `reading.rs` which reads show what its preview shows. An agent that may not make those reads is not
//!    shown the preview. The compiler asks for it, and `each_write_is_seen_by_who_may_read_what_it_rests_on` for a row.

use serde_json::{Value, json};

use super::{
    model::{HOURS_MAX, NAME_MAX, PROJECT_TEXT_MAX, Status, TEXT_MAX, TITLE_MAX},
    queries::{CURSOR_MAX, PAGE_DEFAULT, PAGE_MAX, QUERY_MAX, SEARCH_MAX},
    schema::{
        child, comment, count, deleted, described, history_entry, input, issue, issue_line, issue_ref, issue_type,
        next_cursor, nullable, object, one_or_many, person, priority, project, project_ref, search_hit, status, text,
        uuid,
    },
    workflow::Workflow,
};
use countersign_protocol::annotations::ToolAnnotations;
use countersign_provider::ToolDef;

fn def(
    name: &str,
    title: &str,
    description: &str,
    input_schema: Value,
    output_schema: Value,
    annotations: ToolAnnotations,
) -> ToolDef {
    ToolDef {
        name: name.to_owned(),
        title: title.to_owned(),
        description: description.to_owned(),
        input_schema,
        output_schema: Some(output_schema),
        annotations,
        self_service: false,
        long_running: false,
        read_only_when: None,
        raw: None,
    }
}

const READ: ToolAnnotations =
    ToolAnnotations { read_only_hint: true, destructive_hint: false, idempotent_hint: true, open_world_hint: false };
/// Adds something; doing it twice adds it twice.
const ADD: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: false, idempotent_hint: false, open_world_hint: false };
/// Replaces values; doing it twice changes nothing more.
const SET: ToolAnnotations =
    ToolAnnotations { read_only_hint: false, destructive_hint: true, idempotent_hint: true, open_world_hint: false };

fn issue_id() -> Value {
    described(issue_ref(), "Issue", "The issue: its UUID, or its key such as CORE-12.")
}

fn project_filter() -> Value {
    described(project_ref(), "Project", "Only issues of this project: its UUID, or its key such as CORE.")
}

fn limit(max: usize) -> Value {
    described(
        json!({ "type": "integer", "minimum": 1, "maximum": max, "default": PAGE_DEFAULT }),
        "Limit",
        "How many to answer with at most.",
    )
}

fn cursor() -> Value {
    described(text(0, CURSOR_MAX), "Cursor", "The `nextCursor` of the page before, with the same filters.")
}

fn title() -> Value {
    described(
        json!({ "type": "string", "minLength": 1, "maxLength": TITLE_MAX }),
        "Title",
        "What it is about, in one line.",
    )
}

fn estimated_hours() -> Value {
    json!({ "type": "number", "minimum": 0, "maximum": HOURS_MAX })
}

/// What a write of an issue answers with.
fn issue_answer(with_changed: bool) -> Value {
    let mut properties = vec![("issue", issue())];
    let mut required = vec!["issue"];
    if with_changed {
        let changed = json!({ "type": "array", "items": { "type": "string" } });
        properties.push(("changed", described(changed, "Changed fields", "The fields that changed.")));
        required.push("changed");
    }
    object(&properties, &required)
}

/// All tools, in the order in which they are listed.
pub(super) fn tools(workflow: &Workflow) -> Vec<ToolDef> {
    vec![
        list_projects(),
        list_issues(),
        get_issue(),
        search_issues(),
        create_project(),
        create_issue(),
        update_issue(),
        update_status(workflow),
        assign_issue(),
        add_comment(),
        delete_issue(),
    ]
}

fn list_projects() -> ToolDef {
    let people = described(
        json!({ "type": "boolean", "default": false }),
        "Include people",
        "Also list the people whom issues can be assigned to, with their ids.",
    );
    def(
        "list_projects",
        "List projects",
        "Lists the tracker's projects by key, with their ids and numbers of issues. With includePeople it also lists \
         the people whom issues can be assigned to.",
        input(&[("includePeople", people), ("limit", limit(PAGE_MAX)), ("cursor", cursor())], &[]),
        object(
            &[
                ("projects", json!({ "type": "array", "items": project() })),
                ("people", json!({ "type": "array", "items": person() })),
                ("nextCursor", next_cursor()),
            ],
            &["projects", "nextCursor"],
        ),
        READ,
    )
}

fn list_issues() -> ToolDef {
    let properties = [
        ("projectId", project_filter()),
        ("status", described(one_or_many(&status()), "Status", "Only issues in this status, or in one of these.")),
        ("type", described(one_or_many(&issue_type()), "Type", "Only issues of this type, or of one of these.")),
        (
            "priority",
            described(one_or_many(&priority()), "Priority", "Only issues of this priority, or of one of these."),
        ),
        (
            "assigneeId",
            described(
                nullable(&uuid()),
                "Assignee",
                "Only issues assigned to this person; null: those without an assignee.",
            ),
        ),
        (
            "parentId",
            described(
                nullable(&issue_ref()),
                "Parent",
                "Only children of this issue (UUID or key); null: those without a parent.",
            ),
        ),
        (
            "text",
            described(text(0, QUERY_MAX), "Text", "Only issues with all these words in key, title or description."),
        ),
        ("limit", limit(PAGE_MAX)),
        ("cursor", cursor()),
    ];
    def(
        "list_issues",
        "List issues",
        "Lists issues, newest first, filtered by project, status, type, priority, assignee, parent and words. \
         Pages: give the nextCursor of the answer as cursor. Use search_issues to find by relevance and in comments.",
        input(&properties, &[]),
        object(
            &[("issues", json!({ "type": "array", "items": issue_line() })), ("nextCursor", next_cursor())],
            &["issues", "nextCursor"],
        ),
        READ,
    )
}

fn get_issue() -> ToolDef {
    let include = json!({
        "type": "array",
        "items": { "type": "string", "enum": ["comments", "children", "history"] },
        "uniqueItems": true,
        "maxItems": 3
    });
    def(
        "get_issue",
        "Get issue",
        "Reads one issue by its UUID or its key: all fields, and the statuses that it may go to. With include also its \
         newest comments, its children, and its history.",
        input(
            &[("issueId", issue_id()), ("include", described(include, "Include", "What to add to the issue."))],
            &["issueId"],
        ),
        object(
            &[
                ("issue", issue()),
                ("comments", json!({ "type": "array", "items": comment() })),
                ("children", json!({ "type": "array", "items": child() })),
                ("history", json!({ "type": "array", "items": history_entry() })),
            ],
            &["issue"],
        ),
        READ,
    )
}

fn search_issues() -> ToolDef {
    def(
        "search_issues",
        "Search issues",
        "Full-text search over keys, titles, descriptions and comments of issues, best first. The query is plain words; \
         the last may be the beginning of one. If no issue has all words, issues with some of them are answered and \
         partial is true.",
        input(
            &[
                ("query", described(text(1, QUERY_MAX), "Query", "Words to look for.")),
                ("projectId", project_filter()),
                ("limit", limit(SEARCH_MAX)),
            ],
            &["query"],
        ),
        object(
            &[
                ("results", json!({ "type": "array", "items": search_hit() })),
                ("partial", described(json!({ "type": "boolean" }), "Partial", "No issue has all words.")),
                ("hasMore", json!({ "type": "boolean" })),
            ],
            &["results", "partial", "hasMore"],
        ),
        READ,
    )
}

fn create_project() -> ToolDef {
    let key = json!({ "type": "string", "pattern": "^[A-Z]{2,10}$" });
    def(
        "create_project",
        "Create project",
        "Creates a project. Its key begins the keys of its issues (CORE-12) and never changes; without one it is made \
         from the name.",
        input(
            &[
                ("name", described(text(1, NAME_MAX), "Name", "What people call the project.")),
                ("key", described(key, "Key", "2 to 10 capital letters, not used by another project.")),
                (
                    "description",
                    described(text(0, PROJECT_TEXT_MAX), "Description", "What the project is for, in Markdown."),
                ),
            ],
            &["name"],
        ),
        object(&[("project", project())], &["project"]),
        ADD,
    )
}

fn create_issue() -> ToolDef {
    let mut default_priority = priority();
    default_priority["default"] = json!("Medium");
    let properties = [
        ("projectId", described(uuid(), "Project", "The UUID of the project (see list_projects).")),
        ("title", title()),
        (
            "type",
            described(
                issue_type(),
                "Type",
                "What kind of work it is. A Task needs a parent that is a Story or an Epic.",
            ),
        ),
        ("description", described(text(0, TEXT_MAX), "Description", "The details, in Markdown.")),
        ("priority", described(default_priority, "Priority", "How urgent it is.")),
        (
            "assigneeId",
            described(uuid(), "Assignee", "The UUID of the person who does it (see list_projects with includePeople)."),
        ),
        ("estimatedHours", described(estimated_hours(), "Estimated hours", "How much work it is thought to be.")),
        (
            "parentId",
            described(
                uuid(),
                "Parent",
                "The UUID of the issue that this one is part of, in the same project. A Task needs one.",
            ),
        ),
    ];
    // That a Task needs a parent is checked against the live state, with a better message than `if`/`then` gives.
    let schema = input(&properties, &["projectId", "title", "type"]);
    def(
        "create_issue",
        "Create issue",
        "Creates an Epic, Story, Task or Bug in a project. It starts in Backlog; its key (such as CORE-12) is allotted \
         when the change is applied. A Task needs a parent that is a Story or an Epic.",
        schema,
        issue_answer(false),
        ADD,
    )
}

fn update_issue() -> ToolDef {
    let properties = [
        ("issueId", issue_id()),
        ("title", title()),
        (
            "description",
            described(text(0, TEXT_MAX), "Description", "The whole new description, in Markdown; empty clears it."),
        ),
        ("type", described(issue_type(), "Type", "The new type; parent and children must still fit.")),
        ("priority", described(priority(), "Priority", "The new priority.")),
        (
            "estimatedHours",
            described(nullable(&estimated_hours()), "Estimated hours", "The new estimate; null clears it."),
        ),
        ("parentId", described(nullable(&uuid()), "Parent", "The UUID of the new parent; null for none.")),
    ];
    let mut schema = input(&properties, &["issueId"]);
    schema["minProperties"] = json!(2);
    def(
        "update_issue",
        "Update issue",
        "Changes fields of an issue: title, description, type, priority, estimatedHours, parentId. Only what is given \
         changes. For the status use update_status, for the assignee assign_issue.",
        schema,
        issue_answer(true),
        SET,
    )
}

fn update_status(workflow: &Workflow) -> ToolDef {
    let mut rules = String::new();
    for from in Status::ALL {
        let to: Vec<&str> = workflow.allowed(*from).iter().map(|s| s.as_str()).collect();
        let to = if to.is_empty() { "nowhere".to_owned() } else { to.join(", ") };
        rules.push_str(&format!(" {from} to {to}."));
    }
    def(
        "update_status",
        "Update status",
        &format!("Moves an issue to another status, as the workflow allows:{rules}"),
        input(
            &[("issueId", issue_id()), ("newStatus", described(status(), "New status", "The status to move it to."))],
            &["issueId", "newStatus"],
        ),
        issue_answer(true),
        SET,
    )
}

fn assign_issue() -> ToolDef {
    def(
        "assign_issue",
        "Assign issue",
        "Assigns an issue to a person, or to nobody. list_projects with includePeople lists the people and their ids.",
        input(
            &[
                ("issueId", issue_id()),
                ("assigneeId", described(nullable(&uuid()), "Assignee", "The UUID of the person; null for nobody.")),
            ],
            &["issueId", "assigneeId"],
        ),
        issue_answer(true),
        SET,
    )
}

fn add_comment() -> ToolDef {
    def(
        "add_comment",
        "Add comment",
        "Adds a comment to an issue, in Markdown. You are its author.",
        input(
            &[
                ("issueId", issue_id()),
                ("content", described(text(1, TEXT_MAX), "Content", "What to say, in Markdown.")),
            ],
            &["issueId", "content"],
        ),
        object(
            &[("comment", comment()), ("issueId", uuid()), ("issueKey", json!({ "type": "string" }))],
            &["comment", "issueId", "issueKey"],
        ),
        ADD,
    )
}

fn delete_issue() -> ToolDef {
    def(
        "delete_issue",
        "Delete issue",
        "Deletes an issue with its comments, for good. Only its history stays. An issue with children cannot be \
         deleted. To close one, use update_status with Done or Cancelled instead.",
        input(&[("issueId", issue_id())], &["issueId"]),
        object(&[("deleted", deleted()), ("deletedComments", count())], &["deleted", "deletedComments"]),
        SET,
    )
}
