//! Tests of previews that continue where an earlier step of a plan ends.

use super::*;
use countersign_domain::changes::{
    plan::{compose_over, is_written_by},
    testing::first_step,
};

#[actix::test]
async fn second_write_is_shown_over_the_first_one() {
    let bench = TestDocs::new().await;
    let put = |content: &str| json!({ "path": "new.md", "content": content });
    let fields = "---\ntitle: New\ntags: [a]\n---\n";
    let promote = |level: &str| json!({ "document_path": "note.md", "promotion_level": level });
    for (tool, first, second) in [
        ("index_document", put(&format!("{fields}# One\n")), put(&format!("{fields}# Two\n"))),
        ("index_document", put("# Three\n"), put("# Four\n")),
        ("update_promotion_level", promote("important"), promote("critical")),
    ] {
        let step = first_step("docs", bench.preview(tool, first.clone()).await.unwrap());
        let mut shown = bench.preview(tool, second.clone()).await.unwrap();
        assert!(is_written_by(&step, "docs", &shown));
        compose_over(&mut shown, [&step]);
        bench.call(tool, first).await.unwrap();
        let present = bench.preview(tool, second).await.unwrap();
        assert_eq!((shown.operation, shown.target), (present.operation, present.target));
        assert_eq!((shown.summary, shown.diff), (present.summary, present.diff));
    }
}

#[actix::test]
async fn write_over_another_kind_of_write_is_noted() {
    let bench = TestDocs::new().await;
    let put_of = |content: String| ("index_document", json!({ "path": "tools/driver.md", "content": content }));
    let put = put_of(TOOL.replace("Driver", "Pool"));
    let put_comment = put_of(TOOL.replace("summary: s", "summary: s # why"));
    let promote =
        ("update_promotion_level", json!({ "document_path": "tools/driver.md", "promotion_level": "critical" }));
    let delete = ("delete_documents", json!({ "paths": ["tools/driver.md"] }));
    for (first, second) in
        [(&delete, &put), (&put, &delete), (&put, &promote), (&put_comment, &promote), (&promote, &put)]
    {
        let step = first_step("docs", bench.preview(first.0, first.1.clone()).await.unwrap());
        let mut shown = bench.preview(second.0, second.1.clone()).await.unwrap();
        assert!(is_written_by(&step, "docs", &shown));
        compose_over(&mut shown, [&step]);
        assert_eq!(shown.diff.fields[0].field, "$plan", "{} after {}", second.0, first.0);
    }
}
