use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{files::Files, *};
use crate::{
    index::Query,
    model::{Collection, Filter},
};
use countersign_config::DocsProject;
use countersign_protocol::ErrorKind;
use countersign_provider::{List, NoProgress, ProgressSink};

mod branches;
mod types;

/// A temporary root with data and a project.
struct TestLibrary {
    dir: tempfile::TempDir,
    library: Option<Arc<Library>>,
    events: broadcast::Sender<ProviderEvent>,
    by_branch: bool,
}

impl TestLibrary {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("root/know/problems")).unwrap();
        Self { dir, library: None, events: broadcast::channel(1000).0, by_branch: false }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn folder(&self) -> PathBuf {
        self.root().join("know")
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.folder().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn project(&self, name: &str, root: &Path) -> DocsProject {
        DocsProject {
            name: name.to_owned(),
            root: root.to_owned(),
            folder: "know".to_owned(),
            external_docs: Some("ext".to_owned()),
            by_branch: self.by_branch,
        }
    }

    fn opened(&mut self) -> Arc<Project> {
        let config = self.project("handbook", &self.root());
        self.open(vec![config])
    }

    fn open(&mut self, projects: Vec<DocsProject>) -> Arc<Project> {
        let config = DocsConfig { enabled: true, projects, embeddings: None, generation: None };
        let data = self.dir.path().join("data");
        let library = Library::open(&data, &config, None, &self.events).unwrap();
        let project = Arc::clone(&library.projects[0]);
        self.library = Some(library);
        project
    }

    fn files(&self) -> Files {
        Files::new(&self.root().canonicalize().unwrap(), "know", Some("ext"))
    }
}

/// Accepts any content for replacement or removal.
fn accept_any(_: Option<&[u8]>) -> bool {
    true
}

async fn wait_until_ready(project: &Project) {
    project.wait_until_synchronized(&NoProgress, &CancellationToken::new()).await.unwrap();
}

/// Waits until the condition holds; panics after a time that no machine needs.
async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn paths(project: &Arc<Project>) -> Vec<String> {
    let (entries, _) = project.tenant(None).unwrap().docs.list("", 10_000).unwrap();
    entries.into_iter().map(|entry| entry.path).collect()
}

fn found(project: &Arc<Project>, text: &str) -> Vec<String> {
    let filter = Filter::default();
    let query = Query { text, vector: None, filter: &filter, limit: 50, min_relevance: 0.0 };
    let found = project.tenant(None).unwrap().docs.search(&query).unwrap();
    found.hits.into_iter().map(|hit| hit.path).collect()
}

#[test]
fn file_is_written_as_a_whole_and_read_back() {
    let bench = TestLibrary::new();
    let files = bench.files();
    assert_eq!(files.read("a/b.md").unwrap(), None);
    files.write("a/b.md", b"one", &accept_any).unwrap();
    let path = bench.folder().join("a/b.md");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    // Only root may give a file to somebody else.
    let _ = chown(&path, Some(1), Some(1));
    let owner = || fs::metadata(&path).map(|metadata| (metadata.uid(), metadata.gid())).unwrap();
    let owner_before = owner();
    files.write("a/b.md", b"two", &accept_any).unwrap();
    assert_eq!(files.read("a/b.md").unwrap().unwrap(), b"two");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(owner(), owner_before);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file stays");
    files.remove("a/b.md", &accept_any).unwrap();
    files.remove("a/b.md", &accept_any).unwrap();
    assert!(!path.exists());
    // The folder of the documents may not exist yet.
    fs::remove_dir_all(bench.folder()).unwrap();
    files.write("x.md", b"new", &accept_any).unwrap();
    assert_eq!(files.walk().unwrap().files.len(), 1);
}

#[test]
fn file_with_unexpected_content_is_kept() {
    let bench = TestLibrary::new();
    bench.put("a.md", "by somebody else");
    let files = bench.files();
    let planned = |present: Option<&[u8]>| present == Some(b"as planned");
    for outcome in [files.write("a.md", b"new", &planned), files.remove("a.md", &planned)] {
        let error = outcome.unwrap_err();
        assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::ChangeStale, &"not_applied".into()));
    }
    let error = files.write("none.md", b"new", &planned).unwrap_err();
    assert_eq!(error.kind, ErrorKind::ChangeStale);
    assert_eq!(files.read("a.md").unwrap().unwrap(), b"by somebody else");
    assert_eq!(fs::read_dir(bench.folder()).unwrap().count(), 2, "no temporary file stays");
    bench.put("a.md", "as planned");
    files.remove("a.md", &planned).unwrap();
    assert_eq!(files.read("a.md").unwrap(), None);
}

#[test]
fn symbolic_links_are_refused() {
    let bench = TestLibrary::new();
    let outside = bench.dir.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("secret.md"), "secret").unwrap();
    let folder = bench.folder();
    symlink(outside.join("secret.md"), folder.join("link.md")).unwrap();
    symlink(&outside, folder.join("out")).unwrap();
    symlink("../../outside", folder.join("up")).unwrap();
    symlink("problems", folder.join("inner")).unwrap();
    symlink("nowhere.md", folder.join("dangling.md")).unwrap();
    let files = bench.files();
    for path in ["link.md", "out/secret.md", "up/secret.md", "inner/a.md", "dangling.md", "out/new.md", "up/x/new.md"] {
        let error = files.write(path, b"x", &accept_any).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FileSystem, "{path}");
        assert!(!matches!(files.read(path), Ok(Some(_))), "{path}");
        assert!(files.remove(path, &accept_any).is_err(), "{path}");
    }
    assert_eq!(fs::read_to_string(outside.join("secret.md")).unwrap(), "secret");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(files.walk().unwrap().files.is_empty());
    // The folder itself may be replaced by a link, too.
    fs::remove_dir_all(&folder).unwrap();
    symlink(&outside, &folder).unwrap();
    assert!(files.write("a.md", b"x", &accept_any).is_err() && files.walk().is_err());
}

#[test]
fn link_swapped_in_during_access_is_refused() {
    let bench = TestLibrary::new();
    let outside = bench.dir.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    let (files, folder) = (bench.files(), bench.folder());
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = fs::remove_dir_all(folder.join("d"));
                let _ = symlink(&outside, folder.join("d"));
                let _ = fs::remove_file(folder.join("d"));
                let _ = fs::create_dir(folder.join("d"));
            }
        });
        for _ in 0..500 {
            let _ = files.write("d/x.md", b"x", &accept_any);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn other_files_are_left_alone() {
    let bench = TestLibrary::new();
    let folder = bench.folder();
    bench.put("good.md", "# Good");
    bench.put("GOOD2.Markdown", "# Good");
    for name in ["a.txt", ".hidden.md", ".git/x.md", "bad\u{202e}name.md", " space.md", ".countersign-abc.tmp"] {
        bench.put(name, "x");
    }
    fs::create_dir(folder.join("folder.md")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(folder.join("fifo.md")).status().unwrap();
    assert!(fifo.success());
    let socket = std::os::unix::net::UnixListener::bind(folder.join("socket.md")).unwrap();
    let walked = bench.files().walk().unwrap();
    let names: Vec<&str> = walked.files.iter().map(|found| found.path.as_str()).collect();
    assert_eq!(names, ["GOOD2.Markdown", "good.md"]);
    assert_eq!(walked.leftovers, [".countersign-abc.tmp"]);
    // Opening a pipe does not block.
    for path in ["fifo.md", "folder.md", "socket.md"] {
        assert!(bench.files().read(path).is_err(), "{path}");
        assert!(bench.files().write(path, b"x", &accept_any).is_err(), "{path}");
    }
    drop(socket);
    fs::write(folder.join("huge.md"), vec![b'x'; files::MAX_FILE_BYTES + 1]).unwrap();
    assert!(bench.files().read("huge.md").is_err());
}

#[test]
fn failed_write_is_reported_and_keeps_the_file() {
    let bench = TestLibrary::new();
    bench.put("a.md", "before");
    // A file cannot have files below it.
    let error = bench.files().write("a.md/b.md", b"x", &accept_any).unwrap_err();
    assert_eq!(error.kind, ErrorKind::FileSystem);
    assert!(!error.to_string().contains(bench.dir.path().to_str().unwrap()), "{error}");
    let long = format!("{}.md", "x".repeat(300));
    assert!(bench.files().write(&long, b"x", &accept_any).is_err());
    assert_eq!(bench.files().read("a.md").unwrap().unwrap(), b"before");
}

/// Not a test: the child process that the next test kills.
#[test]
fn writes_until_it_is_killed() {
    let Some(root) = std::env::var_os("DOCS_WRITER_ROOT") else { return };
    let files = Files::new(Path::new(&root), "know", None);
    for round in 0_u64.. {
        let line = if round % 2 == 0 { "a" } else { "b" };
        files.write("w.md", line.repeat(300_000).as_bytes(), &accept_any).unwrap();
    }
}

#[test]
fn killed_write_keeps_file_and_leftovers_are_removed() {
    let bench = TestLibrary::new();
    bench.put("w.md", &"a".repeat(300_000));
    let myself = std::env::current_exe().unwrap();
    let (mut leftovers, mut round) = (0, 0);
    // At least one child must be killed while it writes, or the test shows nothing. On a busy machine it begins late.
    while round < 15 || leftovers == 0 {
        let mut child = std::process::Command::new(&myself)
            .args(["--exact", "library::tests::writes_until_it_is_killed", "--nocapture"])
            .env("DOCS_WRITER_ROOT", bench.root())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(40 + round * 7));
        child.kill().unwrap();
        child.wait().unwrap();
        let text = fs::read(bench.folder().join("w.md")).unwrap();
        assert!(text.len() == 300_000 && text.iter().all(|byte| *byte == text[0]), "round {round}");
        leftovers += bench.files().walk().unwrap().leftovers.len();
        let walked = bench.files().walk().unwrap();
        bench.files().remove_leftovers(&walked.leftovers);
        assert!(bench.files().walk().unwrap().leftovers.is_empty());
        assert!(round < 200, "no child was killed while it wrote");
        round += 1;
    }
}

#[tokio::test]
async fn folder_changes_reach_the_index() {
    let mut bench = TestLibrary::new();
    bench.put("problems/a.md", "# Alpha\n\nzebra");
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert_eq!(found(&project, "zebra"), ["problems/a.md"]);
    let mut events = bench.events.subscribe();
    bench.put("problems/b.md", "# Beta\n\ngiraffe");
    wait_until("created", || found(&project, "giraffe") == ["problems/b.md"]).await;
    bench.put("problems/a.md", "# Alpha\n\nlion, and a longer text");
    wait_until("changed", || found(&project, "lion") == ["problems/a.md"] && found(&project, "zebra").is_empty()).await;
    fs::rename(bench.folder().join("problems/b.md"), bench.folder().join("c.md")).unwrap();
    wait_until("renamed", || paths(&project) == ["c.md", "problems/a.md"]).await;
    fs::remove_file(bench.folder().join("c.md")).unwrap();
    wait_until("deleted", || paths(&project) == ["problems/a.md"]).await;
    bench.put("new/deep/d.md", "# Delta");
    wait_until("a new folder", || paths(&project).contains(&"new/deep/d.md".to_owned())).await;
    fs::rename(bench.folder().join("new"), bench.folder().join("other")).unwrap();
    wait_until("a renamed folder", || paths(&project) == ["other/deep/d.md", "problems/a.md"]).await;
    fs::remove_dir_all(bench.folder().join("other")).unwrap();
    wait_until("a removed folder", || paths(&project) == ["problems/a.md"]).await;
    let mut reported = Vec::new();
    while let Ok(event) = events.try_recv() {
        match event {
            ProviderEvent::ResourcesUpdated(uris) => reported.extend(uris),
            ProviderEvent::ListChanged(List::Resources) => reported.push("list".to_owned()),
            other => panic!("{other:?}"),
        }
    }
    for expected in ["docs://handbook/problems/b.md", "docs://handbook/problems/a.md", "docs://handbook/c.md", "list"] {
        assert!(reported.iter().any(|uri| uri == expected), "{expected}: {reported:?}");
    }
}

#[tokio::test]
async fn recreated_folder_is_followed() {
    let mut bench = TestLibrary::new();
    fs::remove_dir_all(bench.folder()).unwrap();
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert!(paths(&project).is_empty());
    bench.put("a.md", "# A");
    wait_until("it came", || paths(&project) == ["a.md"]).await;
    fs::remove_dir_all(bench.folder()).unwrap();
    wait_until("it went", || paths(&project).is_empty()).await;
    bench.put("b.md", "# B");
    wait_until("it came again", || paths(&project) == ["b.md"]).await;
    bench.put("c.md", "# C");
    wait_until("and is watched", || paths(&project).len() == 2).await;
    // A missing root does not mean that the documents were removed.
    fs::rename(bench.root(), bench.dir.path().join("elsewhere")).unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(paths(&project).len(), 2);
}

struct ProgressLog(std::sync::Mutex<Vec<(f64, f64)>>);
impl ProgressSink for ProgressLog {
    fn progress(&self, progress: f64, total: Option<f64>, _: Option<&str>) {
        self.0.lock().unwrap().push((progress, total.unwrap()));
    }
    fn has_listener(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn indexing_reports_progress_and_resumes() {
    let mut bench = TestLibrary::new();
    for number in 0..1500 {
        bench.put(&format!("d{}/{number}.md", number % 10), &format!("# Number {number}\n\nword{number}\n"));
    }
    let project = bench.opened();
    let reported = ProgressLog(std::sync::Mutex::default());
    let never = CancellationToken::new();
    let waits = project.wait_until_synchronized(&reported, &never);
    // During the scan, searches use the documents that are indexed already.
    let looked = async {
        wait_until("a document is indexed", || !paths(&project).is_empty()).await;
        let indexed_count = paths(&project).len();
        assert!((1..=1500).contains(&indexed_count));
    };
    let (waited, ()) = tokio::join!(waits, looked);
    waited.unwrap();
    assert_eq!(paths(&project).len(), 1500);
    let reported = reported.0.into_inner().unwrap();
    assert!(
        reported.is_sorted() && reported.iter().all(|(done, total)| *total == 1500.0 && done < total),
        "{reported:?}"
    );
    assert!(!reported.is_empty());

    // Half of it now, and the rest after the next start.
    drop(project);
    bench.library = None;
    let data = bench.dir.path().join("data");
    fs::remove_dir_all(&data).unwrap();
    let project = bench.opened();
    wait_until("half", || paths(&project).len() >= 300).await;
    let ids = |project: &Arc<Project>| project.tenant(None).unwrap().docs.stamps().unwrap();
    project.stop();
    drop(project);
    bench.library = None;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let project = bench.opened();
    wait_until_ready(&project).await;
    assert_eq!((paths(&project).len(), ids(&project).len()), (1500, 1500));
    assert_eq!(found(&project, "word1499")[0], "d9/1499.md");
}

#[tokio::test]
async fn search_finds_nothing_of_another_project() {
    let mut bench = TestLibrary::new();
    let other = bench.dir.path().join("other");
    fs::create_dir_all(other.join("know")).unwrap();
    fs::write(other.join("know/a.md"), "# Other\n\nelephant").unwrap();
    bench.put("a.md", "# Mine\n\nzebra");
    let configs = vec![bench.project("one", &bench.root()), bench.project("two", &other)];
    bench.open(configs);
    let library = bench.library.as_ref().unwrap();
    let (first_project, second_project) = (library.project("one").unwrap(), library.project("two").unwrap());
    wait_until_ready(first_project).await;
    wait_until_ready(second_project).await;
    assert_eq!((found(first_project, "zebra").len(), found(first_project, "elephant").len()), (1, 0));
    assert_eq!((found(second_project, "zebra").len(), found(second_project, "elephant").len()), (0, 1));
    assert_ne!(first_project.path_hash, second_project.path_hash);
    assert!(library.project("three").is_none());
}

#[tokio::test]
async fn moved_root_is_another_tenant() {
    let mut bench = TestLibrary::new();
    bench.put("a.md", "# A");
    let project = bench.opened();
    wait_until_ready(&project).await;
    let before = project.path_hash.clone();
    drop(project);
    bench.library = None;
    let moved = bench.dir.path().join("moved");
    fs::rename(bench.root(), &moved).unwrap();
    let config = bench.project("handbook", &moved);
    let project = bench.open(vec![config]);
    wait_until_ready(&project).await;
    assert_ne!(project.path_hash, before);
    let hashes: Vec<String> =
        project.indexed_tenants().unwrap().iter().map(|indexed| indexed.tenant.path_hash.clone()).collect();
    assert!(hashes.contains(&before) && hashes.len() == 2);
}

#[tokio::test]
async fn external_docs_are_separate_from_documents() {
    let mut bench = TestLibrary::new();
    fs::create_dir_all(bench.root().join("ext")).unwrap();
    fs::write(bench.root().join("ext/page.md"), "# Page").unwrap();
    bench.put("a.md", "# A");
    let mut config = bench.project("handbook", &bench.root());
    config.folder = String::new();
    let project = bench.open(vec![config]);
    wait_until_ready(&project).await;
    assert_eq!(paths(&project), ["know/a.md"]);
    let indexed = project.tenant(None).unwrap();
    let (external, _) = indexed.external.as_ref().unwrap().list("", 10).unwrap();
    assert_eq!(external[0].path, "page.md");
    assert!(project.files.check_path("ext/new.md").is_err() && project.files.check_path("extra/new.md").is_ok());
}

#[tokio::test]
async fn changed_file_is_indexed_only_by_its_own_collection() {
    let mut bench = TestLibrary::new();
    fs::create_dir_all(bench.root().join("ext")).unwrap();
    fs::write(bench.root().join("ext/page.md"), "# Page").unwrap();
    let mut config = bench.project("handbook", &bench.root());
    config.folder = String::new();
    let project = bench.open(vec![config]);
    wait_until_ready(&project).await;
    fs::write(bench.root().join("ext/page.md"), "# Changed").unwrap();
    bench.put("bad\u{202e}name.md", "# Bad");
    let external = project.tenant(None).unwrap().external.clone().unwrap();
    let title = || external.document("page.md").unwrap().map(|entry| entry.title);
    wait_until("the reference documentation", || title().as_deref() == Some("Changed")).await;
    // The watcher of the documents reports this file after the others.
    bench.put("last.md", "# Last");
    wait_until("the documents", || paths(&project).contains(&"know/last.md".to_owned())).await;
    assert_eq!(paths(&project), ["know/last.md"]);
}

#[tokio::test]
async fn project_without_a_root_does_not_start() {
    let bench = TestLibrary::new();
    let projects = vec![bench.project("x", &bench.dir.path().join("nowhere"))];
    let config = DocsConfig { enabled: true, projects, embeddings: None, generation: None };
    let error = Library::open(bench.dir.path(), &config, None, &bench.events).err().unwrap();
    assert!(error.to_string().contains("the project x") && error.to_string().contains("nowhere"), "{error}");
}

#[tokio::test]
async fn refreshed_file_is_indexed_on_return() {
    let mut bench = TestLibrary::new();
    let project = bench.opened();
    wait_until_ready(&project).await;
    for round in 0..20 {
        bench.put("r.md", &format!("# Round\n\nvalue{round}"));
        project.refresh(Collection::Docs, vec!["r.md".to_owned(), "nothing.md".to_owned()]).await.unwrap();
        assert_eq!(found(&project, &format!("value{round}")), ["r.md"]);
    }
    fs::write(bench.folder().join("r.md"), [0xff, 0xfe]).unwrap();
    project.refresh(Collection::Docs, vec!["r.md".to_owned()]).await.unwrap();
    assert!(paths(&project).is_empty(), "a file that is not text is skipped");
}
