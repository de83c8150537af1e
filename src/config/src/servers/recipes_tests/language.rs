//! Tests variants, records, documents and lists of recipes against a fake server.

use super::*;

/// Creates a server whose `read` returns this text for each `id`, or an error without one.
fn server_with_texts(texts: &'static [(&'static str, &'static str)]) -> FakeServer {
    FakeServer::new(move |_, arguments| {
        let text = texts.iter().find(|(id, _)| arguments["id"] == *id);
        text.map_or_else(|| failure("404 not found"), |(_, text)| Ok(ToolResult::text(text, None)))
    })
}

/// Returns each field as its label and its text before and after.
fn fields(preview: &Preview) -> Vec<(&str, Option<&str>, Option<&str>)> {
    let fields = preview.diff.fields.iter();
    fields.map(|field| (field.label.as_str(), field.before.as_deref(), field.after.as_deref())).collect()
}

const ISSUE_RECIPE: &str = r#"{entity: issue, target: 'repo#{arguments.number}', variants: [
    {when: arguments.method == "update", operation: update, summary: 'Update issue {arguments.number}',
     before: {tool: read, arguments: {id: '{string(arguments.number)}', method: get}, as: json,
              ignore: [updated_at, labels.id]},
     after: {title?: arguments.title, state?: arguments.state, labels?: '{arguments.labels.map(l, {"name": l})}'}},
    {when: arguments.method == "create", operation: create, reads: [{tool: read, arguments: {id: list}}]},
    {when: arguments.method == "close", operation: '{arguments.hard ? "delete" : "update"}',
     reads: [{tool: read, arguments: {id: list}}]}]}"#;
const ISSUE: &str =
    r#"{"title":"Old","state":"open","updated_at":"10:00","labels":[{"name":"bug","id":7}],"user":{"login":"ann"}}"#;

#[tokio::test]
async fn variant_is_chosen_by_arguments() {
    let server = server_with_texts(&[("7", ISSUE), ("list", "2 issues")]);
    let update = preview(&server, ISSUE_RECIPE, &json!({ "method": "update", "number": 7, "title": "New" })).await;
    assert_eq!(fields(&update), [("title", Some("Old"), Some("New"))]);
    assert_eq!((update.operation, update.summary.as_str()), (Operation::Update, "Update issue 7"));
    assert_eq!(update.target.label, "repo#7");
    assert_eq!(server.calls()[0].1, json!({ "id": "7", "method": "get" }));
    let create = preview(&server, ISSUE_RECIPE, &json!({ "method": "create", "number": 8 })).await;
    assert_eq!(create.operation, Operation::Create);
    assert_eq!(fields(&create).last().unwrap().0, "read");

    let other = preview(&server, ISSUE_RECIPE, &json!({ "method": "lock", "number": 7 })).await;
    assert_eq!(other.note.failed.as_deref(), Some("the recipe has no variant for these arguments"));
    assert_eq!((other.target.label.as_str(), other.operation), ("repo#7", Operation::Call));
    let without = preview(&server, ISSUE_RECIPE, &json!({ "number": 7 })).await;
    assert_eq!(without.note.failed.as_deref(), Some("`when` looks at `method`, which is not there"));
}

#[tokio::test]
async fn operation_is_computed_from_arguments() {
    let server = server_with_texts(&[("list", "2 issues")]);
    let operation = async |hard: Value| {
        preview(&server, ISSUE_RECIPE, &json!({ "method": "close", "number": 7, "hard": hard })).await.operation
    };
    assert_eq!(operation(json!(true)).await, Operation::Delete);
    assert_eq!(operation(json!(false)).await, Operation::Update);
    assert_eq!(operation(json!("x")).await, Operation::Call, "an operation that cannot be computed claims nothing");
}

#[tokio::test]
async fn records_are_compared_by_field() {
    let server = server_with_texts(&[("7", ISSUE)]);
    let arguments = json!({ "method": "update", "number": 7, "state": "closed", "labels": ["bug", "new"] });
    let seen = preview(&server, ISSUE_RECIPE, &arguments).await;
    let labels: Vec<_> = fields(&seen).iter().map(|field| field.0).collect();
    assert_eq!(labels, ["title", "labels", "state"], "a title that stays as it is names the record");
    assert_eq!(lines(&seen, 0), ["#Old"]);
    assert_eq!(
        lines(&seen, 1),
        [" [", "   {", "     \"name\": \"bug\"", "+  },", "+  {", "+    \"name\": \"new\"", "   }", " ]"]
    );
    let same = preview(&server, ISSUE_RECIPE, &json!({ "method": "update", "number": 7, "title": "Old" })).await;
    assert_eq!(lines(&same, 1), ["#(nothing would change)"]);

    let nested = "{before: {tool: read, arguments: {id: '7'}, as: json, keep: [user, state]}, \
                   after: 'merge_deep(before, {\"user\": {\"login\": arguments.login}, \"title\": 1})'}";
    let seen = preview(&server, nested, &json!({ "login": "bob" })).await;
    assert_eq!(fields(&seen), [("user.login", Some("ann"), Some("bob"))], "`keep` also selects from `after`");
}

#[tokio::test]
async fn value_that_changes_only_its_type_is_shown_as_json() {
    let server = FakeServer::with_text(r#"{"active":true,"replicas":3,"tags":["a"]}"#);
    let recipe = "{before: {tool: read, as: json}, \
                   after: {active: arguments.active, replicas: arguments.replicas, tags: arguments.tags}}";
    let arguments = json!({ "active": "true", "replicas": "3", "tags": "[\n  \"a\"\n]" });
    let seen = preview(&server, recipe, &arguments).await;
    let expected = [
        ("active", Some("true"), Some(r#""true""#)),
        ("replicas", Some("3"), Some(r#""3""#)),
        ("tags", Some("[\n  \"a\"\n]"), Some(r#""[\n  \"a\"\n]""#)),
    ];
    assert_eq!(fields(&seen), expected);
}

#[tokio::test]
async fn ignored_fields_are_not_fingerprinted() {
    let later: &str = Box::leak(ISSUE.replace("10:00", "11:00").replace("\"id\":7", "\"id\":8").into_boxed_str());
    let moved: &str = Box::leak(ISSUE.replace("ann", "bob").into_boxed_str());
    let arguments = json!({ "method": "update", "number": 7, "title": "New" });
    let mut fingerprints = Vec::new();
    for text in [ISSUE, later, moved] {
        let server = FakeServer::with_text(text);
        fingerprints.push(preview(&server, ISSUE_RECIPE, &arguments).await.fingerprint);
    }
    assert_eq!(fingerprints[0], fingerprints[1]);
    assert_ne!(fingerprints[0], fingerprints[2]);
}

const APPLY_RECIPE: &str = r#"{target: '{yaml(arguments.resource).metadata.name}',
    before: {tool: read, arguments: {id: '{yaml(arguments.resource).metadata.name}',
                                     namespace?: '{yaml(arguments.resource).metadata.namespace}'},
             as: yaml, ignore: [metadata.managedFields, status], missing: "not found"},
    after: 'merge_deep(before, yaml(arguments.resource))', label: Object}"#;

#[tokio::test]
async fn kubernetes_objects_are_compared_as_yaml() {
    let server = server_with_texts(&[(
        "web",
        "kind: Deployment\nmetadata:\n  name: web\n  managedFields: [1]\nspec:\n  replicas: 1\n  paused: false\nstatus:\n  n: 1\n",
    )]);
    let resource = |name: &str| json!({ "resource": format!("kind: Deployment\nmetadata:\n  name: {name}\nspec:\n  replicas: 3\n") });
    let seen = preview(&server, APPLY_RECIPE, &resource("web")).await;
    let expected = ["@2", "   name: web", " spec:", "   paused: false", "-  replicas: 1", "+  replicas: 3"];
    assert_eq!(lines(&seen, 0), expected);
    assert_eq!((seen.target.label.as_str(), server.calls()[0].1.clone()), ("web", json!({ "id": "web" })));
    let created = preview(&server, APPLY_RECIPE, &resource("api")).await;
    assert_eq!((created.operation, lines(&created, 0)), (Operation::Create, vec!["#(does not exist)".to_owned()]));
    assert_eq!(created.diff.fields[0].label, "Object (now)");
    assert!(lines(&created, 1).contains(&"+  replicas: 3".to_owned()));

    let broken = preview(&server, APPLY_RECIPE, &json!({ "resource": "kind: [" })).await;
    assert_eq!(broken.note.failed.as_deref(), Some("`id` looks at a text that is not one YAML document"));
    let nonsense = preview(&FakeServer::with_text("a: [b"), APPLY_RECIPE, &resource("web")).await;
    let problem = "what the answer of s__read has at /content/0/text is not YAML";
    assert_eq!(nonsense.note.failed.as_deref(), Some(problem));
}

const PUSH_RECIPE: &str = "{label: '{element.path}', after: element.content, \
    before: {for_each: arguments.files, tool: read, arguments: {id: element.path, mode?: element.mode}, missing: '404'}}";

#[tokio::test]
async fn each_element_has_its_own_diff() {
    let server = server_with_texts(&[("a", "1\n2\n"), ("b", "x")]);
    let files = json!({ "files": [{ "path": "a", "content": "1\n3\n" }, { "path": "new", "content": "n", "mode": 1 }, { "path": "b", "content": "x" }] });
    let seen = preview(&server, PUSH_RECIPE, &files).await;
    let labels: Vec<_> = fields(&seen).iter().map(|field| field.0).collect();
    assert_eq!(labels, ["a", "new (now)", "new", "b"]);
    assert_eq!(
        (lines(&seen, 0), lines(&seen, 3)),
        (vec![" 1".into(), "-2".into(), "+3".into()], vec!["#(nothing would change)".into()])
    );
    assert_eq!(seen.operation, Operation::Update);
    assert!(server.calls().contains(&("s__read".to_owned(), json!({ "id": "new", "mode": 1 }))));

    let many = |count: usize| json!({ "files": vec![json!({ "path": "a", "content": "" }); count] });
    assert!(preview(&server, PUSH_RECIPE, &many(50)).await.note.is_live());
    let too_many = preview(&server, PUSH_RECIPE, &many(51)).await;
    assert_eq!(too_many.note.failed.as_deref(), Some("`for_each` gives 51 elements; at most 50 can be shown"));
    let none = preview(&server, PUSH_RECIPE, &many(0)).await;
    assert!(none.note.failed.unwrap().contains("an empty list"));
    let text = preview(&server, PUSH_RECIPE, &json!({ "files": "a" })).await;
    assert_eq!(text.note.failed.as_deref(), Some("`for_each` does not give a list"));
    let without = preview(&server, PUSH_RECIPE, &json!({ "files": [{ "path": "a" }] })).await;
    assert_eq!(without.note.failed.as_deref(), Some("`after` looks at `content`, which is not there"));
    let reads = "{reads: [{for_each: arguments.ids, label: 'Page {element}', tool: read, arguments: {id: element}}]}";
    let seen = preview(&server, reads, &json!({ "ids": ["a", "b"] })).await;
    assert_eq!(fields(&seen).iter().map(|field| field.0).collect::<Vec<_>>(), ["ids", "Page a", "Page b"]);
}

#[tokio::test]
async fn selection_that_leaves_nothing_means_missing() {
    let yaml = "{before: {tool: read, arguments: {id: a}, as: json, keep: '\"error\" in found ? null : found'}, after: {x: 1}}";
    let seen = preview(&server_with_texts(&[("a", r#"{"error":"none"}"#)]), yaml, &json!({})).await;
    assert_eq!((seen.operation, fields(&seen)), (Operation::Create, vec![("Now", None, None), ("x", None, Some("1"))]));
    let deleted = "{operation: delete, before: {tool: read, arguments: {id: a}, as: json}}";
    let seen = preview(&server_with_texts(&[("a", r#"{"x":1,"y":null}"#)]), deleted, &json!({})).await;
    assert_eq!((seen.operation, fields(&seen)), (Operation::Delete, vec![("x", Some("1"), None)]));
}

#[tokio::test]
async fn reviewer_sees_what_a_recipe_was_tried_with() {
    let server = server_with_texts(&[("a", "x")]);
    let read = "reads: [{tool: read, arguments: {id: a}}]";
    let tried = async |yaml: String| preview(&server, &yaml, &json!({})).await.note.tried;
    assert_eq!(tried(format!("{{{read}}}")).await.as_deref(), Some("none"));
    assert_eq!(tried(format!("{{tried: [p 1, p 2], {read}}}")).await.as_deref(), Some("p 1, p 2"));
}

#[tokio::test]
async fn reviewer_sees_how_a_question_is_answered() {
    let server = server_with_texts(&[("a", "x")]);
    let yaml = "{reads: [{tool: read, arguments: {id: a}}], \
                confirm: {question: '^Delete ', answer: {name: arguments.path, sure: true}}}";
    let mut recipe = recipe(yaml);
    let arguments = json!({ "path": "p" });
    let shown = async |recipe: &Recipe| {
        let preview = make_preview_with(&server, &ALLOW_ALL, recipe, &arguments).await.preview;
        (lines(&preview, 2).remove(0), preview.fingerprint)
    };
    let (trusted, first) = shown(&recipe).await;
    assert!(trusted.contains(r#"matches /^Delete /, the answer is: accept {"name":"p","sure":true}"#), "{trusted}");
    recipe.set_trust(false);
    assert_eq!(shown(&recipe).await, (trusted, first.clone()), "the tool is accepted");
    server.0.accepted.store(false, Ordering::SeqCst);
    let (untrusted, second) = shown(&recipe).await;
    assert!(untrusted.contains("is not answered"), "{untrusted}");
    assert_ne!(first, second);
}

#[tokio::test]
async fn answer_that_does_not_fit_fails_with_reason() {
    let server =
        server_with_texts(&[("t", "plain"), ("l", "[1]"), ("n", "12345678901234567890123"), ("k", r#"{"x":1,"x":2}"#)]);
    let at = "what the answer of s__read has at /content/0/text";
    let ambiguous = format!(
        "{at} is too large or too deeply nested, or has duplicate or reserved keys or numbers that are not exact"
    );
    for (read, after, reason) in [
        ("{id: t}, as: json", "before", format!("{at} is not JSON")),
        ("{id: n}, as: json", "before", ambiguous.clone()),
        ("{id: k}, as: json", "before", ambiguous),
        ("{id: t}, ignore: x", "before", format!("{at} has no fields; if it is JSON, write as: json")),
        ("{id: l}, as: json", "{x: 1}", "`after` sets fields, but what `before` reads has none".to_owned()),
        ("{id: l}, as: json", "'\"{\"'", "`after` is not JSON".to_owned()),
        ("{id: 'a {arguments.none}'}", "before", "`id` looks at `none`, which is not there".to_owned()),
        ("{id: gone}", "before", "s__read answered: 404 not found".to_owned()),
    ] {
        let yaml = format!("{{before: {{tool: read, arguments: {read}}}, after: {after}}}");
        let seen = preview(&server, &yaml, &json!({ "path": "p" })).await;
        assert_eq!(seen.note.failed.as_ref(), Some(&reason), "{yaml}");
        assert!(!seen.note.is_live());
    }
}

#[tokio::test]
async fn operation_has_its_own_recipe() {
    let yaml = "{operation: arguments.op, summary: 'Run {arguments.op}', operations: {Get: {}, \
                Refund: {operation: create, target: arguments.id, reads: [{tool: read, arguments: {id: arguments.id}}]}}}";
    let server = server_with_texts(&[("a", "x")]);
    let refund = preview(&server, yaml, &json!({ "op": "Refund", "id": "a" })).await;
    assert_eq!((refund.operation, refund.target.label.as_str()), (Operation::Create, "a"));
    assert_eq!((refund.summary.as_str(), refund.note.kind), ("Run Refund", PreviewKind::BeforeAfter));
    let get = preview(&server, yaml, &json!({ "op": "Get" })).await;
    assert_eq!((get.note.kind, get.note.failed), (PreviewKind::Arguments, None), "known, but without a preview");
    let other = preview(&server, yaml, &json!({ "op": "Delete" })).await;
    assert_eq!(other.note.failed.as_deref(), Some("the recipe does not know the operation that the arguments name"));
}

#[tokio::test]
async fn literal_numbers_are_sent_as_they_are_written() {
    let server = FakeServer::with_text("x");
    let yaml = "{reads: [{tool: read, arguments: {id: 18446744073709551615, ratio: 0.5, numbers: [-1]}}]}";
    preview(&server, yaml, &json!({ "path": "p" })).await;
    assert_eq!(server.calls()[0].1, json!({ "id": u64::MAX, "ratio": 0.5, "numbers": [-1] }));
}
