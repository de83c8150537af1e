//! The types that a project defines.

use super::*;

/// Returns the type and the fault of the document.
fn checked(project: &Arc<Project>) -> (Option<String>, Option<String>) {
    let docs = Arc::clone(&project.tenant(None).unwrap().docs);
    let fault = docs.front_matter_stats(1).unwrap().faults.pop().map(|(_, fault)| fault);
    (docs.document("runbooks/a.md").unwrap().unwrap().doc_type, fault)
}

/// Writes the schema of the folder's type, which requires this field.
fn require_field(bench: &TestLibrary, field: &str) {
    let schema = format!("folder: runbooks\nrequired_fields: [{{name: {field}}}]\n");
    bench.put("schemas/runbook.schema.yaml", &schema);
}

/// Returns `true` if the document has the type of its folder, and lacks this field.
fn has_fault(project: &Arc<Project>, field: &str) -> bool {
    let (doc_type, fault) = checked(project);
    doc_type.as_deref() == Some("runbook") && fault.is_some_and(|fault| fault.contains(field))
}

#[tokio::test]
async fn changed_schema_reaches_indexed_documents() {
    let mut bench = TestLibrary::new();
    bench.put("runbooks/a.md", "---\ntitle: A\ndate: 2026-11-23\nsummary: s\nsignificance: integration\n---\n# A\n");
    // The file counts as unchanged by its time alone.
    let file = fs::File::options().write(true).open(bench.folder().join("runbooks/a.md")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::create_dir(bench.folder().join("schemas")).unwrap();
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert_eq!(checked(&project), (None, None));
    require_field(&bench, "service");
    wait_until("a new schema", || has_fault(&project, "service")).await;
    require_field(&bench, "owner");
    wait_until("a changed schema", || has_fault(&project, "owner")).await;
    bench.library = None;
    wait_until("its thread ends", || Arc::strong_count(&project) == 1).await;
    drop(project);
    require_field(&bench, "region");
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert!(has_fault(&project, "region"), "{:?}", checked(&project));
}
