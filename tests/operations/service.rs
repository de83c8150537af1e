//! Tests of what packages and service managers use: the version, the health probe, the manual pages, notifications and
//! credentials of systemd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use regex::Regex;
use serde_json::Value;
use support::cli::Home;

use crate::docs::ROOT;

#[test]
fn version_names_commit_features_and_schemas() {
    let home = Home::new();
    let text = home.run(&["--version"]).ends(0).stdout();
    // An archive of the sources has no commit.
    let form = Regex::new(r"^countersign (\d+\.\d+\.\d+)(?: \(([0-9a-f]{12}) (\d{4}-\d\d-\d\d)\))?\n$").unwrap();
    let parts = form.captures(&text).unwrap_or_else(|| panic!("{text:?}"));
    let part = |number: usize| parts.get(number).map_or(Value::Null, |part| part.as_str().into());
    let json = home.run(&["version", "--json"]).ends(0).stdout();
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["version"], &json["commit"], &json["date"]), (&part(1), &part(2), &part(3)));
    assert!(json["features"].as_array().unwrap().contains(&"postgresql".into()), "{json}");
    assert!(json["protocolVersions"].as_array().unwrap().contains(&"2025-11-25".into()), "{json}");
    home.run(&["version"]).ends(0).says(&[&text, "features: docs, ", "schema versions of the store: "]);

    // The schema versions are those of a new store.
    home.run(&["keys", "create", "--role", "agent", "--name", "a"]).ends(0);
    let store = rusqlite::Connection::open(home.data().join("countersign.db")).unwrap();
    let version: i64 = store.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(json["schemaVersions"]["sqlite"], version, "{json}");
    let migrations = fs::read_dir(Path::new(ROOT).join("src/store/src/postgres/migrations")).unwrap().count();
    assert_eq!(json["schemaVersions"]["postgresql"], migrations, "{json}");
}

/// The build script of the command line, compiled, and a folder that looks like a copy of the repository.
struct BuildScript {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl BuildScript {
    fn compile() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("copy/src/cli")).unwrap();
        let program = folder.path().join("script");
        let source = Path::new(ROOT).join("src/cli/build.rs");
        let rustc = Path::new(env!("CARGO")).with_file_name("rustc");
        let compiled = Command::new(rustc).arg("--edition=2024").arg("-o").arg(&program).arg(source).status().unwrap();
        assert!(compiled.success());
        Self { folder, program }
    }

    fn copy(&self) -> PathBuf {
        self.folder.path().join("copy").canonicalize().unwrap()
    }

    /// Runs the script in the copy; returns what it tells Cargo, or its error.
    fn run(&self, vars: &[(&str, &str)]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("CARGO_PKG_VERSION", "1.2.3");
        command.env("CARGO_MANIFEST_DIR", self.copy().join("src/cli")).envs(vars.iter().copied());
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn git(&self, folder: &Path, arguments: &[&str]) {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder).args(["-c", "user.name=a", "-c", "user.email=a@b.example"]).args(arguments);
        // One in the morning in this zone is the day before in UTC.
        command.env_clear().env("PATH", "/usr/bin:/bin").env("GIT_COMMITTER_DATE", "2026-03-02T01:00:00+02:00");
        assert!(command.env("HOME", self.folder.path()).output().unwrap().status.success(), "git {arguments:?}");
    }
}

#[test]
fn build_takes_the_commit_from_git_or_the_environment() {
    let script = BuildScript::compile();
    let copy = script.copy();
    let version = |told: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix("cargo::rustc-env=BUILD_VERSION="));
        line.unwrap_or_else(|| panic!("{told}")).to_owned()
    };
    // An archive that was unpacked inside of another repository has no commit of its own.
    script.git(script.folder.path(), &["init", "--quiet"]);
    script.git(script.folder.path(), &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    assert_eq!(version(&script.run(&[]).unwrap()), "1.2.3");
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let vars = [("COUNTERSIGN_COMMIT", commit), ("COUNTERSIGN_COMMIT_DATE", "2026-11-26")];
    assert_eq!(version(&script.run(&vars).unwrap()), "1.2.3 (0123456789ab 2026-11-26)");
    for wrong in [("COUNTERSIGN_COMMIT", "main"), ("COUNTERSIGN_COMMIT_DATE", "today")] {
        let error = script.run(&[wrong]).unwrap_err();
        assert!(error.contains(wrong.0), "{error}");
    }

    script.git(&copy, &["init", "--quiet"]);
    script.git(&copy, &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    let told = script.run(&[]).unwrap();
    let form = Regex::new(r"^1\.2\.3 \([0-9a-f]{12} 2026-03-01\)$").unwrap();
    assert!(form.is_match(&version(&told)), "{told}");
    assert_eq!(script.run(&[]).unwrap(), told, "the same commit gives the same output");
    let watched: Vec<_> = told.lines().filter_map(|line| line.strip_prefix("cargo::rerun-if-changed=")).collect();
    let log = copy.join(".git/logs/HEAD");
    assert_eq!(watched, ["build.rs", log.to_str().unwrap()], "only another commit runs it again");
    // Without a log of HEAD, its branch is watched.
    fs::remove_file(log).unwrap();
    let told = script.run(&[]).unwrap();
    assert!(told.contains("/.git/HEAD\n") && told.contains("/.git/refs/heads/"), "{told}");
    assert_eq!(version(&script.run(&vars).unwrap()), "1.2.3 (0123456789ab 2026-11-26)");
}
