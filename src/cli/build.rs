//! Passes the commit and its date to the program, for `countersign --version`.
//!
//! They come from `COUNTERSIGN_COMMIT` and `COUNTERSIGN_COMMIT_DATE` (YYYY-MM-DD), or else from git. Without both, as in an
//! archive of the sources, they are empty. The time of the build is not used, so the same sources give the same program.

#![allow(clippy::print_stdout, reason = "Cargo reads what this script prints")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The number of characters of the commit's hash that are shown.
const SHOWN_HASH_CHARS: usize = 12;

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    let (commit, date) = match (variable("COUNTERSIGN_COMMIT"), variable("COUNTERSIGN_COMMIT_DATE")) {
        (None, None) => commit_of_repository().unwrap_or_default(),
        (commit, date) => (commit.unwrap_or_default(), date.unwrap_or_default()),
    };
    if !commit.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(format!("the commit {commit:?} (COUNTERSIGN_COMMIT) is not a hash"));
    }
    let is_date = date.len() == 10 && date.chars().all(|c| c.is_ascii_digit() || c == '-');
    if !date.is_empty() && !is_date {
        return Err(format!("the date {date:?} (COUNTERSIGN_COMMIT_DATE) is not in the form YYYY-MM-DD"));
    }
    let commit: String = commit.chars().take(SHOWN_HASH_CHARS).collect();
    let origin: Vec<&str> = [commit.as_str(), date.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
    let origin = if origin.is_empty() { String::new() } else { format!(" ({})", origin.join(" ")) };
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=BUILD_DATE={date}");
    println!("cargo::rustc-env=BUILD_VERSION={}{origin}", cargo_variable("CARGO_PKG_VERSION")?);
    Ok(())
}

/// Returns a variable that Cargo sets.
fn cargo_variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|error| format!("{name}: {error}"))
}

/// Returns the value of a variable; an empty one counts as unset.
fn variable(name: &str) -> Option<String> {
    println!("cargo::rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the hash and the date of the commit that is checked out, or `None` outside of a repository.
fn commit_of_repository() -> Option<(String, String)> {
    let root = Path::new(&cargo_variable("CARGO_MANIFEST_DIR").ok()?).join("../..").canonicalize().ok()?;
    // The sources may have been unpacked inside of a repository of something else.
    if PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    watch_head(&root);
    let line = git(&root, &["log", "-1", "--date=format-local:%Y-%m-%d", "--format=%H %cd"])?;
    let (commit, date) = line.split_once(' ')?;
    Some((commit.to_owned(), date.to_owned()))
}

/// Runs this script again when another commit is checked out. Every such move adds a line to the log of HEAD; without a log,
/// HEAD and its branch are watched.
fn watch_head(root: &Path) {
    let path = |name: &str| git(root, &["rev-parse", "--git-path", name]).map(|path| root.join(path));
    let branch = git(root, &["symbolic-ref", "--quiet", "HEAD"]);
    let log = path("logs/HEAD").filter(|path| path.is_file());
    let watched = match log {
        Some(log) => vec![log],
        None => [Some("HEAD"), branch.as_deref(), Some("packed-refs")].into_iter().flatten().filter_map(path).collect(),
    };
    // Cargo would run the script at every build for a path that does not exist.
    for path in watched.iter().filter(|path| path.is_file()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Returns the trimmed output of a git command, or `None` if it fails or prints nothing.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    // The date is the one in UTC.
    let output = Command::new("git").arg("-C").arg(root).args(arguments).env("TZ", "UTC").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}
