//! Tests that a preview shows the arguments that its recipe does not name.

use countersign_domain::recipes::NamedArguments;

use super::*;

const BEFORE: &str = "before: {tool: read, arguments: {id: arguments.id}, as: json}";

/// Creates a server whose `read` returns a page.
fn page_server() -> FakeServer {
    FakeServer::with_text(r#"{"title":"Old","secret":"s"}"#)
}

/// Returns the fields of the preview: the name, and the value after.
async fn shown_fields(yaml: &str, arguments: Value) -> Vec<(String, String)> {
    let preview = preview(&page_server(), yaml, &arguments).await;
    assert_eq!(preview.note.failed, None, "{yaml}");
    let fields = preview.diff.fields.into_iter();
    fields.map(|field| (field.field, field.after.unwrap_or_default())).collect()
}

/// Returns the names of the arguments that the recipe, which has no variants, does not name.
fn unnamed(yaml: &str, arguments: &Value) -> Vec<String> {
    let recipe = recipe(yaml);
    let text = arguments.to_string();
    let unnamed = NamedArguments::for_recipe(&recipe, &[], true).unnamed(&text);
    let mut names: Vec<String> = unnamed.into_iter().map(|argument| argument.name).collect();
    names.sort();
    names
}

fn pairs(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn unnamed_argument_is_shown_beside_the_comparison() {
    let yaml = format!("{{{BEFORE}, after: {{title: arguments.title}}}}");
    let arguments = json!({ "$content": "x", "force": true, "id": 1, "notify": ["a"], "title": "New" });
    let expected =
        pairs(&[("$content.title", "New"), ("arguments.$content", "x"), ("force", "true"), ("notify", r#"["a"]"#)]);
    assert_eq!(shown_fields(&yaml, arguments.clone()).await, expected);
    // Without a state after, all arguments are shown already.
    let reads = "{reads: [{tool: read, arguments: {id: arguments.id}}]}";
    let all = shown_fields(reads, arguments).await;
    assert_eq!(
        all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
        ["arguments.$content", "force", "id", "notify", "title", "$read1"]
    );
}

#[tokio::test]
async fn long_argument_is_bounded_and_marked_as_truncated() {
    let yaml = format!("{{{BEFORE}, after: {{title: arguments.title}}}}");
    let arguments = json!({ "id": 1, "title": "New", "text": "x".repeat(100_000) });
    for yaml in [yaml.as_str(), "{reads: [{tool: read, arguments: {id: arguments.id}}]}"] {
        let preview = preview(&page_server(), yaml, &arguments).await;
        let text = preview.diff.fields.iter().find(|field| field.field == "text").unwrap();
        assert!(text.after.as_ref().is_some_and(|text| text.ends_with('…')), "{yaml}");
        assert!(preview.diff.truncated, "{yaml}");
    }
}

#[tokio::test]
async fn condition_names_only_the_arguments_whose_values_it_states() {
    let yaml = format!(
        "{{{BEFORE}, variants: [{{when: 'has(arguments.draft) && size(arguments.tags) > 0 && arguments.all(k, k != \"x\") \
         && arguments.method == \"update\" && arguments.mode != \"test\"', after: {{title: arguments.title}}}}]}}"
    );
    let arguments =
        json!({ "id": 1, "title": "New", "draft": false, "tags": ["a"], "method": "update", "mode": "fast" });
    let expected = pairs(&[("$content.title", "New"), ("draft", "false"), ("tags", r#"["a"]"#), ("mode", "fast")]);
    assert_eq!(shown_fields(&yaml, arguments).await, expected);
}

#[tokio::test]
async fn argument_that_is_only_in_a_cut_summary_is_shown() {
    let yaml = format!("{{summary: 'Save: {{arguments.message}}', {BEFORE}, after: {{title: arguments.title}}}}");
    let arguments = |message: &str| json!({ "id": 1, "title": "New", "message": message });
    assert_eq!(shown_fields(&yaml, arguments("Short\n")).await, pairs(&[("$content.title", "New")]));
    let long = "First line\n\nCloses #7";
    assert_eq!(shown_fields(&yaml, arguments(long)).await.pop().unwrap().0, "message");
    assert_eq!(shown_fields(&yaml, arguments(&"x".repeat(500))).await.pop().unwrap().0, "message");
}

#[tokio::test]
async fn dry_run_accounts_for_the_whole_call() {
    let yaml = "{dry_run: {arguments: {dryRun: true}}}";
    assert_eq!(shown_fields(yaml, json!({ "path": "p", "text": "t" })).await.len(), 1);
}

#[test]
fn unnamed_parts_of_arguments_are_found() {
    let page =
        json!({ "id": 1, "page": { "title": "t", "icon": "i" }, "list": [{ "a": 1, "b": 2 }, "x"], "empty": {} });
    for (after, expected) in [
        ("arguments.page.title", &["empty", "list", "page.icon"][..]),
        ("arguments.page", &["empty", "list"]),
        ("arguments.list[0].a", &["empty", "list[0].b", "list[1]", "page"]),
        ("[arguments.list.map(l, l.a), arguments.empty.x]", &["list[0].b", "list[1]", "page"]),
        ("arguments.list.filter(l, l != 1)", &["empty", "page"]),
        (r#"{"names": arguments.map(k, k), "n": size(arguments)}"#, &["empty", "list", "page"]),
        ("arguments", &[]),
        ("merge(before, arguments)", &[]),
        (r#"merge(arguments, {"list": 1, "page": arguments.page.title})"#, &["list", "page.icon"]),
        ("merge(before, arguments.page)", &["empty", "list"]),
        ("has(arguments.page) ? before : arguments.empty", &["list", "page"]),
    ] {
        assert_eq!(unnamed(&format!("{{{BEFORE}, after: '{after}'}}"), &page), expected, "{after}");
    }
    let fields = "after: {a: arguments.page.title, list: arguments.list}";
    assert_eq!(unnamed(&format!("{{{BEFORE}, {fields}}}"), &page), ["empty", "page.icon"]);
}

#[test]
fn fields_that_are_left_out_do_not_show_arguments() {
    let arguments = json!({ "id": 1, "title": "t", "body": "b", "fields": { "title": "t", "status": "s" },
        "document": "title: t", "rows": [{ "title": "t", "status": "s" }] });
    let before = "before: {tool: read, arguments: {id: arguments.id}, as: json, keep: [title, id]}";
    for (after, expected) in [
        ("'merge(before, arguments)'", &["body", "document", "fields", "rows"][..]),
        ("'merge(before, arguments.fields)'", &["body", "document", "fields.status", "rows", "title"]),
        ("{title: arguments.title, body: arguments.body}", &["body", "document", "fields", "rows"]),
        ("arguments.document", &["body", "fields", "rows", "title"]),
        ("arguments.rows", &["body", "document", "fields", "rows[0].status", "title"]),
    ] {
        assert_eq!(unnamed(&format!("{{{before}, after: {after}}}"), &arguments), expected, "{after}");
    }
}

#[test]
fn elements_of_a_list_are_named_by_their_parts() {
    let arguments = json!({ "branch": "b", "files": [{ "path": "a", "content": "x", "mode": "exec" }, { "path": "b", "content": "y" }] });
    let read = |label: &str| {
        format!(
            "{{label: '{label}', before: {{for_each: arguments.files, tool: read, arguments: {{path: element.path, \
             ref: 'refs/{{arguments.branch}}'}}}}, after: element.content}}"
        )
    };
    assert_eq!(unnamed(&read("Content"), &arguments), ["files[0].mode"]);
    assert_eq!(unnamed(&read("{element}"), &arguments), Vec::<String>::new());
    // The list of another read does not show more of it.
    let other = "{before: {tool: read, arguments: {id: arguments.branch}}, after: arguments.branch, \
                 reads: [{for_each: arguments.files, tool: read, arguments: {path: element.path}}]}";
    assert_eq!(unnamed(other, &arguments), ["files[0].content", "files[0].mode", "files[1].content"]);
}

#[test]
fn verification_does_not_name_arguments() {
    let yaml = format!(
        "{{{BEFORE}, after: {{title: arguments.title}}, verify: {{tool: read, arguments: {{id: arguments.path}}, as: json}}}}"
    );
    assert_eq!(unnamed(&yaml, &json!({ "id": 1, "title": "t", "path": "p" })), ["path"]);
}
