use super::*;

const GOOD: &str = "---\ndoc_type: tool\ntitle: T\ndate: 2026-11-23\nsummary: s\nsignificance: integration\ntool_name: x\n\
                    version: '1.10'\nknowledge_type: gotcha\n---\n# T\n";

fn faults_of(types: &DocTypes, path: &str, text: &str) -> Vec<(String, String)> {
    match types.check(path, text) {
        Err(DocumentRefusal::Schema { faults }) => {
            faults.into_iter().map(|fault| (fault.pointer, fault.rule)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn built_in_types_have_folders_and_fields() {
    let types = DocTypes::built_in();
    let all: Vec<(&str, &str)> = types.all().map(|kind| (kind.name.as_str(), kind.folder.as_str())).collect();
    let expected = [
        ("problem", "problems"),
        ("insight", "insights"),
        ("codebase", "codebase"),
        ("tool", "tools"),
        ("style", "styles"),
    ];
    assert_eq!(all, expected);
    assert!(types.all().all(|kind| kind.schema_path.is_none() && !kind.description.is_empty()));
    assert_eq!(types.type_for_path("tools/a/b.md").unwrap().name, "tool");
    assert!(types.type_for_path("tools.md").is_none() && types.type_for_path("toolsx/a.md").is_none());
}

#[test]
fn check_names_every_fault() {
    let types = DocTypes::built_in();
    assert_eq!(types.check("tools/x.md", GOOD).unwrap().document.title, "T");
    assert_eq!(types.check("notes/x.md", "# Anything\n").unwrap().document.doc_type, None);

    let bad = GOOD
        .replace("'1.10'", "1.10")
        .replace("gotcha", "trick")
        .replace("2026-11-23", "yesterday")
        .replace("title: T\n", "");
    let mut faults = faults_of(&types, "tools/x.md", &bad);
    faults.sort();
    let expected = [("", "required"), ("/date", "format"), ("/knowledge_type", "enum"), ("/version", "type")];
    assert_eq!(faults, expected.map(|(pointer, rule)| (pointer.to_owned(), rule.to_owned())));

    assert_eq!(faults_of(&types, "problems/x.md", GOOD), [("/doc_type".to_owned(), "folder".to_owned())]);
    assert_eq!(faults_of(&types, "x.md", GOOD), [("/doc_type".to_owned(), "folder".to_owned())]);
    assert_eq!(faults_of(&types, "tools/x.md", "# None\n").len(), 8, "a document in a type's folder is of the type");
    assert_eq!(faults_of(&types, "x.md", "---\npromotion_level: huge\n---\n")[0].0, "/promotion_level");
    assert_eq!(faults_of(&types, "x.md", "---\na: 1\na: 2\n---\n")[0].1, "yaml");
    assert_eq!(faults_of(&types, "x.md", "---\ndoc_type: [tool]\n---\n")[0].0, "/doc_type");
    let unknown = types.check("x.md", "---\ndoc_type: novel\n---\n").unwrap_err();
    assert!(
        matches!(unknown, DocumentRefusal::UnknownType { ref name, ref known_types } if name == "novel" && known_types.len() == 5)
    );
    assert!(matches!(types.check("x.md", "a\0b"), Err(DocumentRefusal::Unparsable { .. })));
}

#[test]
fn invalid_value_is_reported_with_all_allowed_ones() {
    let bad = GOOD.replace("integration", "huge").replace("gotcha", "trick");
    let summary = DocTypes::built_in().check("tools/x.md", &bad).unwrap_err().summary();
    let all = "\"huge\" is not one of \"architectural\", \"behavioral\", \"performance\", \"correctness\", \"convention\", \
               \"integration\"";
    assert!(summary.contains(all) && summary.contains("/knowledge_type: \"trick\" is not one of "), "{summary}");
    assert!(!summary.contains("other candidates"), "{summary}");
    // They come first, however many other faults there are.
    let bad = "---\ndoc_type: tool\ndate: never\nsummary: 1\nsignificance: huge\n---\n";
    let refusal = DocTypes::built_in().check("tools/x.md", bad).unwrap_err();
    let summary = refusal.summary();
    assert!(summary.starts_with("/significance: \"huge\" is not one of ") && summary.contains(" more"), "{summary}");
}

#[test]
fn project_types_are_read_in_both_forms() {
    let lists = "name: api-contract\ndescription: Contracts\nfolder: api-contracts\nrequired_fields:\n  - name: endpoint\n    type: string\n  \
                 - name: change_type\n    type: enum\n    values: [new, breaking]\noptional_fields:\n  - {name: since, type: date}\n";
    let schema = r#"{"description": "Runbooks", "folder": "ops/runbooks", "type": "object", "properties": {"service": {"type": "string", "pattern": "^[a-z]+$"}}, "required": ["service"]}"#;
    let files = vec![
        ("schemas/api-contract.schema.yaml".to_owned(), lists.to_owned()),
        ("schemas/runbook.schema.json".to_owned(), schema.to_owned()),
    ];
    let (types, left_out) = DocTypes::with_custom(files);
    assert_eq!(left_out, Vec::new());
    let common = "title: T\ndate: 2026-11-23\nsummary: s\nsignificance: integration";
    let contract = format!("---\ndoc_type: api-contract\n{common}\nendpoint: /x\nchange_type: new\n---\n");
    assert_eq!(
        types.check("api-contracts/a.md", &contract).unwrap().document.doc_type.as_deref(),
        Some("api-contract")
    );
    assert_eq!(faults_of(&types, "api-contracts/a.md", &contract.replace("new", "old"))[0].0, "/change_type");
    let runbook = format!("---\ndoc_type: runbook\n{common}\nservice: web\n---\n");
    assert!(types.check("ops/runbooks/a.md", &runbook).is_ok());
    assert_eq!(faults_of(&types, "ops/runbooks/a.md", &runbook.replace("web", "WEB"))[0].1, "pattern");
    assert_eq!(types.get("runbook").unwrap().schema_path.as_deref(), Some("schemas/runbook.schema.json"));
}

#[test]
fn invalid_type_is_skipped_with_its_reason() {
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    // Each of forty definitions refers to the next one twice.
    let twice = |n: usize| format!("  a{n}: {{allOf: [{{$ref: '#/$defs/a{0}'}}, {{$ref: '#/$defs/a{0}'}}]}}\n", n + 1);
    let doubling = format!(
        "type: object\nallOf: [{{$ref: '#/allOf/1/$defs/a0'}}]\n$defs:\n{}  a40: {{type: object}}\n",
        (0..40).map(twice).collect::<String>()
    )
    .replace("'#/$defs", "'#/allOf/1/$defs");
    let cases = [
        ("schemas/problem.schema.yaml", "required_fields: []", "name or folder is that of the type problem"),
        ("schemas/mine.schema.yaml", "folder: tools\nrequired_fields: []", "that of the type tool"),
        ("schemas/mine.schema.yaml", "folder: ../up\nrequired_fields: []", "below the folder"),
        ("schemas/mine.schema.yaml", "folder: /etc\nrequired_fields: []", "below the folder"),
        ("schemas/mine.schema.yaml", "folder: schemas\nrequired_fields: []", "that of the schemas"),
        ("schemas/mine.schema.yaml", "name: 'a b'\nrequired_fields: []", "other characters"),
        ("schemas/mine.schema.yaml", "a: 1", "neither required_fields nor properties"),
        ("schemas/mine.schema.yaml", "- a", "not a map"),
        ("schemas/mine.schema.yaml", "required_fields: [{name: a, type: enum}]", "no values"),
        ("schemas/mine.schema.yaml", "required_fields: [{name: a, type: blob}]", "has the unknown type blob"),
        ("schemas/mine.schema.yaml", "properties: {a: {$ref: 'https://example.com/x.json'}}", ""),
        ("schemas/mine.schema.yaml", "properties: {a: {$ref: 'file:///etc/passwd'}}", ""),
        ("schemas/mine.schema.yaml", "properties: {a: {pattern: '(?<=a)b'}}", ""),
        ("schemas/mine.schema.yaml", "properties: {a: {pattern: 'x{100000}{100000}'}}", ""),
        ("schemas/mine.schema.yaml", &deep, ""),
        ("schemas/mine.schema.yaml", &doubling, "too intricate"),
    ];
    for (path, text, reason) in cases {
        let (types, left_out) = DocTypes::with_custom(vec![(path.to_owned(), text.to_owned())]);
        assert_eq!(types.all().count(), 5, "{text}");
        assert!(left_out.len() == 1 && left_out[0].1.contains(reason), "{text}: {left_out:?}");
    }
    let many =
        (0..60).map(|number| (format!("schemas/t{number}.schema.yaml"), "required_fields: []".to_owned())).collect();
    assert_eq!(DocTypes::with_custom(many).0.all().count(), 55);
}
