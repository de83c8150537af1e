//! Upgrades: today's program on a data directory of an older one, and on one of a newer one, which it refuses.
//!
//! `upgrade/make.mjs` made the older data directory with the program that `upgrade/expected.json` names.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde::Deserialize;
use serde_json::{Value, json};
use support::{Gateway, LISTEN, Options, eventually, run};
use tempfile::TempDir;

use crate::clock::{faketime_env, faketime_library, set_clock};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/durability/upgrade");
const CONFIG: &str = include_str!("upgrade/countersign.yaml");

/// The content of the archive.
#[derive(Deserialize)]
struct Archive {
    /// When it was made, in seconds since 1970.
    time: i64,
    /// The keys by their names.
    keys: BTreeMap<String, String>,
    /// The ids of the changes by their states.
    changes: BTreeMap<String, String>,
}

fn archive() -> Archive {
    serde_json::from_str(include_str!("upgrade/expected.json")).unwrap()
}

/// Unpacks the older data directory into a new home.
fn unpack() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xzf"]).arg(Path::new(FOLDER).join("data.tar.gz")).arg("-C").arg(home.path());
    assert!(tar.status().unwrap().success());
    home
}

#[test]
fn older_data_directory_is_upgraded() {
    let Archive { time, keys, changes } = archive();
    let home = unpack();
    let identity = fs::read_to_string(home.path().join("data/identity.json")).unwrap();
    // An hour has passed for this gateway, so that the pending changes have not expired.
    set_clock(home.path(), time + 3600 - jiff::Timestamp::now().as_second());
    let (library, clock) = (faketime_library(), home.path().join("clock"));
    let env = faketime_env(&library, &clock).to_vec();
    let gateway = Gateway::on_home(home, &Options { env, config: Some(CONFIG) });
    let (carol, dave) = (keys["carol"].as_str(), keys["dave"].as_str());
    let change = |state: &str| gateway.api_as(carol, "GET", &format!("/api/changes/{}", changes[state]), None).1;
    let wait_for = |name: &str, state: &str| {
        eventually(&format!("{name} is {state}"), || Some(change(name)).filter(|change| change["state"] == state))
    };

    // The approved change had not run yet, and runs now. The one that was claimed is not repeated.
    let applied = wait_for("approved", "applied");
    assert_eq!(applied["decision"]["reviewer"], change("applied")["decision"]["reviewer"], "{applied}");
    for (name, state) in
        [("applied", "applied"), ("rejected", "rejected"), ("pending", "pending"), ("unknown", "outcome_unknown")]
    {
        let change = change(name);
        assert_eq!(change["state"], state, "{change}");
    }
    for (title, count) in [("Applied", 1), ("Approved", 1), ("Rejected", 0), ("Proposed", 0), ("Claimed", 0)] {
        assert_eq!(gateway.issues_titled(&format!("{title} before the upgrade")), count, "{title}");
    }

    // The keys have the same rights as before.
    let status = |name: &str| gateway.api_as(&keys[name], "GET", "/api/changes", None).0;
    assert_eq!(status("former"), 401, "this key was revoked");
    let decide = |key: &str, name: &str| {
        let change = change(name);
        let body = json!({"decision": "approve", "version": change["version"], "digest": change["digest"]});
        gateway.api_as(key, "POST", &format!("/api/changes/{}/decision", changes[name]), Some(&body))
    };
    assert_eq!(decide(&keys["desk"], "pending").0, 403, "an agent's key");
    assert_eq!(decide(carol, "pending").0, 200);
    wait_for("pending", "applied");
    let settle = json!({"outcome": "failed", "comment": "it had not run", "version": change("unknown")["version"]});
    let settled = gateway.api_as(carol, "POST", &format!("/api/changes/{}/settle", changes["unknown"]), Some(&settle));
    assert_eq!(settled.0, 200, "{}", settled.1);

    // The acceptance and the standing rule still count, so these calls are not reviewed. So does the first of two
    // approvals.
    eventually("the server is connected", || {
        let (_, listed) = gateway.api_as(carol, "GET", "/api/servers", None);
        let server = listed["servers"].as_array()?.iter().find(|server| server["name"] == "notes")?;
        Some(()).filter(|()| server["status"] == "up" && server["tools"] == 3)
    });
    for tool in ["read_note", "append_note"] {
        let path = format!("/tools/notes__{tool}");
        let answer = gateway.request("POST", &path, &[("Content-Type", "application/json")], b"{}");
        assert_eq!(answer.status, 200, "{tool}: {}", answer.text());
    }
    let (code, second) = decide(dave, "halfApproved");
    assert_eq!(code, 200, "{second}");
    wait_for("halfApproved", "applied");

    // The gateway works with it as with its own.
    let new = gateway.propose("Proposed after the upgrade");
    gateway.decide(&new, "approve");
    gateway.wait_for_state(&new, "applied");
    let (_, home) = gateway.stop();
    let data = home.path().join("data");
    let (code, out, err) = run(&["audit", "verify", "--data", data.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
    let id = |text: &str| serde_json::from_str::<Value>(text).unwrap()["id"].clone();
    assert_eq!(id(&fs::read_to_string(data.join("identity.json")).unwrap()), id(&identity));
}

#[test]
fn commands_refuse_an_older_store_and_upgrade_nothing() {
    let home = unpack();
    let data = home.path().join("data");
    let schema_version = || -> i64 {
        let conn = rusqlite::Connection::open(data.join("countersign.db")).unwrap();
        conn.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap()
    };
    let before = schema_version();
    let commands: [&[&str]; 6] = [
        &["keys", "list"],
        &["keys", "create", "--role", "agent", "--name", "new"],
        &["keys", "revoke", "key_1"],
        &["keys", "sign-out"],
        &["people", "list"],
        &["policy", "test", "create_issue"],
    ];
    for command in commands {
        let (code, out, err) = run(&[command, &["--data", data.to_str().unwrap()]].concat());
        assert_eq!(code, Some(69), "{command:?}: {out}{err}");
        for part in ["countersign.db", "older Countersign", "start the gateway of this version first"] {
            assert!(err.contains(part), "{command:?}: no {part:?} in {err}");
        }
        assert_eq!(schema_version(), before, "{command:?}");
    }
}

/// Sets the version of a database's schema.
fn set_schema_version(database: &Path, version: i32) {
    rusqlite::Connection::open(database).unwrap().pragma_update(None, "user_version", version).unwrap();
}

/// Returns the content of all files of a data directory.
fn contents(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    // The lock names the last process. SQLite's shared memory and an empty log are no data.
    let is_data = |(path, content): &(PathBuf, Vec<u8>)| {
        let name = path.to_string_lossy();
        !(name.ends_with("/lock") || name.ends_with("-shm") || name.ends_with("-wal") && content.is_empty())
    };
    files.map(|path| (path.clone(), fs::read(path).unwrap())).filter(is_data).collect()
}

#[test]
fn newer_files_are_refused_with_their_versions() {
    let first = Gateway::start();
    first.propose("Before the downgrade");
    let (_, home) = first.stop();
    let data = home.path().join("data");
    let folder = data.to_str().unwrap();
    let saved = contents(&data);
    for (file, change) in [
        ("countersign.db", None),
        ("tracker.db", None),
        ("identity.json", Some(r#"{"format": 99, "backend": "sqlite", "id": {"of": "a newer kind"}}"#)),
    ] {
        match change {
            Some(text) => fs::write(data.join(file), text).unwrap(),
            None => set_schema_version(&data.join(file), 99),
        }
        let before = contents(&data);
        let mut commands = vec![vec!["serve", "--listen", LISTEN]];
        if file != "tracker.db" {
            commands.extend([vec!["keys", "list"], vec!["audit", "verify"], vec!["backup", "copy.db"]]);
        }
        for command in commands {
            let (code, out, err) = run(&[&command[..], &["--data", folder]].concat());
            assert_eq!(code, Some(69), "{file}: {command:?}: {out}{err}");
            let found = if change.is_some() { "format 99" } else { "schema 99" };
            for part in [file, "newer Countersign", found, "knows up to", "run that version"] {
                assert!(err.contains(part), "{file}: {command:?}: no {part:?} in {err}");
            }
            let after = contents(&data);
            let changed: Vec<_> = after.iter().filter(|(path, content)| before.get(*path) != Some(*content)).collect();
            let changed: Vec<_> = changed.iter().map(|(path, _)| path).collect();
            assert!(changed.is_empty() && after.len() == before.len(), "{file}: {command:?} changed {changed:?}");
        }
        for (path, content) in &saved {
            fs::write(path, content).unwrap();
        }
    }
    let gateway = Gateway::on_home(home, &Options::default());
    assert_eq!(gateway.api("GET", "/api/changes", None).1["changes"].as_array().unwrap().len(), 1);
}

/// Returns the highest version that the program knows, from an error or a warning about a newer file.
fn known_version(text: &str) -> &str {
    let (_, rest) = text.split_once("knows up to ").or_else(|| text.split_once("known=")).unwrap();
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap()
}

#[test]
fn release_page_names_the_known_versions() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/release.md")).unwrap();
    let row = page.lines().find(|line| line.starts_with(concat!("| ", env!("CARGO_PKG_VERSION"), " |"))).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let home = unpack();
    let data = home.path().join("data");
    let serve = || run(&["serve", "--listen", LISTEN, "--data", data.to_str().unwrap()]).2;
    // The first file that is opened is refused first.
    set_schema_version(&data.join("tracker.db"), 99);
    assert_eq!(known_version(&serve()), cells[4], "tracker.db");
    set_schema_version(&data.join("countersign.db"), 99);
    assert_eq!(known_version(&serve()), cells[2], "countersign.db");
    fs::write(data.join("identity.json"), r#"{"format": 99}"#).unwrap();
    assert_eq!(known_version(&serve()), cells[5], "identity.json");
    let migrations =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../src/store/src/postgres/migrations")).unwrap();
    assert_eq!(migrations.count().to_string(), cells[3], "PostgreSQL");
}

/// An index contains only what its documents contain, so it is never a reason to refuse a data directory.
#[test]
fn newer_index_of_documents_is_built_again() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("handbook")).unwrap();
    fs::write(home.path().join("handbook/leave.md"), "# Leave\n\nAsk a week before.\n").unwrap();
    let config = "modules: {docs: {enabled: true, projects: {handbook: {root: handbook}}}}\n";
    let options = || Options { config: Some(config), ..Options::default() };
    let indexed = |gateway: &Gateway| {
        eventually("the document is indexed", || {
            let query = json!({"project_name": "handbook", "query": "leave"});
            Some(()).filter(|()| gateway.tool("semantic_search", query).to_string().contains("leave.md"))
        });
    };
    let gateway = Gateway::on_home(home, &options());
    indexed(&gateway);
    let (_, home) = gateway.stop();
    let files = fs::read_dir(home.path().join("data/docs")).unwrap().map(|entry| entry.unwrap().path());
    let indexes: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(".docs.db")).collect();
    assert_eq!(indexes.len(), 1, "{indexes:?}");
    set_schema_version(&indexes[0], 99);
    let gateway = Gateway::on_home(home, &options());
    indexed(&gateway);
    let log = gateway.log();
    let warning =
        log.lines().find(|line| line.contains("written by a newer Countersign")).unwrap_or_else(|| panic!("{log}"));
    assert!(warning.contains("found=99"), "{warning}");
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/release.md")).unwrap();
    assert!(page.contains(&format!("| {}; others are built again |", known_version(warning))), "{warning}");
}
