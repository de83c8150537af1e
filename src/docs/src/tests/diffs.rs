//! Tests of the diffs that reviewers see.

use super::*;
use countersign_domain::changes::{LineOp, Operation};

#[actix::test]
async fn diff_shows_file_and_front_matter_fields() {
    let bench = TestDocs::new().await;
    let content = TOOL.replace("summary: s", "summary: s # why\ntags: [a, b]").replace('\n', "\r\n");
    let preview =
        bench.preview("index_document", json!({ "path": "tools/driver.md", "content": content })).await.unwrap();
    assert_eq!(preview.operation, Operation::Update);
    let fields: Vec<&str> = preview.diff.fields.iter().map(|field| field.field.as_str()).collect();
    assert_eq!(fields, ["file", "front_matter.tags"], "what is the same is left out, the line ends are not");
    assert_eq!(preview.diff.fields[1].after.as_deref(), Some("a\nb"));
    // The replaced content may not be UTF-8. Its bytes differ from a text of replacement characters.
    fs::write(bench.file("note.md"), [0xff, b'a']).unwrap();
    let preview = bench.preview("index_document", json!({ "path": "note.md", "content": "\u{fffd}a" })).await.unwrap();
    let before: Vec<_> = preview.diff.fields.iter().map(|field| field.before.as_deref().unwrap()).collect();
    assert_eq!(before, ["not UTF-8", "\\xffa"]);
}

#[actix::test]
async fn change_of_level_shows_the_front_matter() {
    let bench = TestDocs::new().await;
    for (path, content, expected_lines) in [
        (
            "note.md",
            "# Note\n",
            vec![(LineOp::Insert, "---"), (LineOp::Insert, "promotion_level: critical"), (LineOp::Insert, "---")],
        ),
        (
            "fields.md",
            "---\npromotion_level: standard # for now\n---\n# Note\n",
            vec![
                (LineOp::Equal, "---"),
                (LineOp::Delete, "promotion_level: standard # for now"),
                (LineOp::Insert, "promotion_level: critical"),
                (LineOp::Equal, "---"),
            ],
        ),
    ] {
        fs::write(bench.file(path), content).unwrap();
        let arguments = json!({ "document_path": path, "promotion_level": "critical" });
        let fields = bench.preview("update_promotion_level", arguments).await.unwrap().diff.fields;
        let names: Vec<&str> = fields.iter().map(|field| field.field.as_str()).collect();
        assert_eq!(names, ["promotion_level", "file.front_matter"], "{path}");
        let lines: Vec<_> = fields[1].lines.iter().map(|line| (line.op, line.text.as_str())).collect();
        assert_eq!(lines, expected_lines, "{path}");
    }
}
