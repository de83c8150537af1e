//! The documents of several branches.

use super::*;

/// Replaces `HEAD` in one step, as git does.
fn write_head(bench: &TestLibrary, branch: &str) {
    let git_folder = bench.root().join(".git");
    fs::create_dir_all(&git_folder).unwrap();
    fs::write(git_folder.join("HEAD.lock"), format!("ref: refs/heads/{branch}\n")).unwrap();
    fs::rename(git_folder.join("HEAD.lock"), git_folder.join("HEAD")).unwrap();
}

fn paths_of(project: &Arc<Project>, branch: &str) -> Vec<String> {
    let (entries, _) = project.tenant(Some(branch)).unwrap().docs.list("", 10).unwrap();
    entries.into_iter().map(|entry| entry.path).collect()
}

#[tokio::test]
async fn each_branch_is_its_own_tenant() {
    let mut bench = TestLibrary::new();
    bench.by_branch = true;
    write_head(&bench, "main");
    bench.put("a.md", "# Onmain");
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert_eq!((project.branch().as_str(), paths(&project)), ("main", vec!["a.md".to_owned()]));
    write_head(&bench, "dev");
    fs::remove_file(bench.folder().join("a.md")).unwrap();
    bench.put("b.md", "# Ondev");
    wait_until("the other branch", || project.branch() == "dev" && paths(&project) == ["b.md"]).await;
    assert!(found(&project, "onmain").is_empty());
    let main = project.tenant(Some("main")).unwrap();
    assert!(!main.is_current);
    assert_eq!(paths_of(&project, "main"), ["a.md"]);
    assert_eq!(project.tenant(Some("never")).err().unwrap().kind, ErrorKind::ProjectMismatch);
    assert_eq!(project.indexed_tenants().unwrap().len(), 2);
    project.forget(&main, None).unwrap();
    assert!(project.tenant(Some("main")).is_err());
    write_head(&bench, "main");
    wait_until("the branch is back with its current files", || {
        project.branch() == "main" && paths(&project) == ["b.md"]
    })
    .await;
}

#[tokio::test]
async fn checkout_leaves_the_index_of_the_old_branch() {
    let mut bench = TestLibrary::new();
    write_head(&bench, "main");
    bench.put("a.md", "# Onmain");
    let (root, observer) = (bench.root(), bench.project("observer", &bench.root()));
    bench.by_branch = true;
    let followed = bench.project("handbook", &root);
    let project = bench.open(vec![followed, observer]);
    let observer = Arc::clone(bench.library.as_ref().unwrap().project("observer").unwrap());
    wait_until_ready(&project).await;
    wait_until_ready(&observer).await;
    let lock = root.join(".git/index.lock");
    fs::write(&lock, "").unwrap();
    fs::remove_file(bench.folder().join("a.md")).unwrap();
    // A project without branches shows when the watchers have reported the changes.
    for path in ["b.md", "c.md"] {
        bench.put(path, "# Ondev");
        wait_until(path, || paths(&observer).contains(&path.to_owned())).await;
    }
    assert_eq!(paths(&project), ["a.md"]);
    // git releases the lock first. The test must not depend on the time between the two.
    write_head(&bench, "dev");
    fs::remove_file(lock).unwrap();
    wait_until("the other branch", || project.branch() == "dev" && paths(&project) == ["b.md", "c.md"]).await;
    assert_eq!(paths_of(&project, "main"), ["a.md"]);
}

#[tokio::test]
async fn missing_root_keeps_the_branch() {
    let mut bench = TestLibrary::new();
    bench.by_branch = true;
    write_head(&bench, "main");
    let project = bench.opened();
    wait_until_ready(&project).await;
    fs::rename(bench.root(), bench.dir.path().join("elsewhere")).unwrap();
    assert_eq!(project.read_branch(), "main");
    assert!(!project.follow_branch());
    assert_eq!(project.branch(), "main");
}
