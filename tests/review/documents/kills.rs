//! Tests of kills of the gateway while it writes or indexes documents.

use super::*;

#[test]
fn killed_write_keeps_file_and_runs_at_most_once() {
    let team = TestProject::new();
    let big = |mark: &str| format!("# Deployments\n\n{}\n", format!("{mark} line\n").repeat(40_000));
    let mut home = None;
    let mut outcomes = Vec::new();
    for round in 0..6_u32 {
        let before = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        let options = Options { config: Some(&team.config), ..Options::default() };
        let gateway = Gateway::on_home(home.take().unwrap_or_else(|| tempfile::tempdir().unwrap()), &options);
        let after = big(&format!("round {round}"));
        let change = tool(&gateway, "index_document", json!({ "path": "notes/deploy.md", "content": after }));
        let id = change["changeId"].as_str().unwrap_or_else(|| panic!("{change}")).to_owned();
        gateway.decide(&id, "approve");
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 12));
        let data = gateway.kill();
        let text = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        assert!(text == before || text == after, "the file has either the old or the new content");
        let gateway = Gateway::on_home(data, &options);
        let change = eventually("it is over", || {
            let change = gateway.change(&id);
            ["applied", "outcome_unknown", "failed"].iter().any(|state| change["state"] == *state).then_some(change)
        });
        let text = fs::read_to_string(team.file("notes/deploy.md")).unwrap();
        match change["state"].as_str().unwrap() {
            "applied" => assert_eq!(text, after),
            // A person looks, and nothing is retried. The file stays blocked until they settle the outcome.
            _ => {
                assert!(text == before || text == after);
                let outcome = if text == after { "applied" } else { "failed" };
                let settle = json!({ "outcome": outcome, "comment": "by a test", "version": change["version"] });
                let (status, settled) = gateway.api("POST", &format!("/api/changes/{id}/settle"), Some(&settle));
                assert_eq!(status, 200, "{settled}");
            }
        }
        outcomes.push(change["state"].as_str().unwrap().to_owned());
        home = Some(gateway.kill());
    }
    assert!(!outcomes.contains(&"failed".to_owned()), "{outcomes:?}");
}

#[test]
fn kill_during_indexing_loses_nothing() {
    let team = TestProject::new();
    for at in 0..4000 {
        let path = team.file(&format!("many/{}/{at}.md", at % 20));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("# Number {at}\n\nThe word of it is word{at}x.\n")).unwrap();
    }
    let options = Options { config: Some(&team.config), ..Options::default() };
    let mut home = tempfile::tempdir().unwrap();
    let count = |data: &Path| -> i64 {
        let indexes = fs::read_dir(data.join("docs")).into_iter().flatten().flatten();
        let counts =
            indexes.filter(|entry| entry.file_name().to_string_lossy().ends_with(".docs.db")).filter_map(|entry| {
                let conn = rusqlite::Connection::open(entry.path()).ok()?;
                conn.query_row("SELECT count(*) FROM documents", [], |row| row.get(0)).ok()
            });
        counts.max().unwrap_or_default()
    };
    let mut seen = vec![0];
    for _ in 0..3 {
        let gateway = Gateway::on_home(home, &options);
        let before = *seen.last().unwrap();
        eventually("more of it", || (count(&gateway.data()) > 3800.min(before + 100)).then_some(()));
        home = gateway.kill();
        seen.push(count(&home.path().join("data")));
    }
    assert!(seen.is_sorted(), "what was done is not done again: {seen:?}");
    let gateway = Gateway::on_home(home, &options);
    let active = tool(&gateway, "activate_project", json!({}));
    assert_eq!(active["total_docs"], 4003, "{active}");
    let found = tool(&gateway, "semantic_search", json!({ "query": "word3999x" }));
    assert_eq!(paths(&found)[0], "many/19/3999.md");
}
