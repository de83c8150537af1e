//! Picks from a diff, or from git's status, what concerns the files that a call names.
//!
//! Where it is not certain that a part speaks of other files only, it counts.

use countersign_domain::recipes::Shown;

/// The part that speaks of these paths. All of it where one of them is no plain path below the folder (a pattern, the
/// folder itself, one that leads elsewhere).
pub(super) fn part(text: &str, named: &[String], shown: Shown) -> String {
    let Some(named) = named.iter().map(|path| plain(path)).collect::<Option<Vec<_>>>() else { return text.to_owned() };
    match shown {
        Shown::Diff => of_diff(text, &named),
        Shown::Text => of_status(text, &named),
    }
}

/// The path as git writes it: relative, without empty parts.
fn plain(path: &str) -> Option<String> {
    let special = path.starts_with(['/', ':', '-', '~']) || path.contains(['*', '?', '[', '\\', '"']);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let usual = !special && !parts.is_empty() && !parts.contains(&"..");
    (usual && !path.chars().any(char::is_control)).then(|| parts.join("/"))
}

/// Whether they are the same, or one lies within the other.
fn meets(path: &str, named: &[String]) -> bool {
    let path = path.trim_end_matches('/');
    let within = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    named.iter().any(|name| name == path || within(path, name) || within(name, path))
}

/// Whatever stands before the first file, and the files that are named. A line of a file never begins at the left edge.
fn of_diff(text: &str, named: &[String]) -> String {
    let mut counts = true;
    let lines = text.split_inclusive('\n').filter(|line| {
        if let Some(header) = line.strip_prefix("diff --git ") {
            counts = header_path(header.trim_end()).is_none_or(|path| meets(path, named));
        } else if line.starts_with("diff --") {
            counts = true;
        }
        counts
    });
    lines.collect()
}

/// Of `a/x b/x`; none where the two differ, or where git had to quote them.
fn header_path(header: &str) -> Option<&str> {
    let middle = header.len() / 2;
    let (left, right) = (header.get(..middle)?, header.get(middle + 1..)?);
    if header.as_bytes().get(middle) != Some(&b' ') || header.contains('"') {
        return None;
    }
    if left == right {
        return Some(left);
    }
    let (left, right) = (left.split_once('/')?.1, right.split_once('/')?.1);
    (left == right).then_some(left)
}

/// The entries that are named, below their headings: git indents entries with a tab.
fn of_status(text: &str, named: &[String]) -> String {
    let mut out = String::new();
    let mut heading = None;
    for line in text.lines() {
        if !line.starts_with('\t') {
            if !line.starts_with(' ') && line.ends_with(':') {
                heading = Some(line);
            }
            continue;
        }
        let entry = line.trim();
        if !entry_counts(entry, named) {
            continue;
        }
        for line in heading.take().into_iter().chain([line]) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Of `modified:   x`, `renamed:    x -> y`, `x`, `x/`, `modified:   x (new commits)`, in whatever language.
fn entry_counts(entry: &str, named: &[String]) -> bool {
    let unlabelled = entry.split_once(':').map_or(entry, |(_, rest)| rest.trim_start());
    [entry, unlabelled].into_iter().any(|entry| {
        let unremarked = entry.rsplit_once(" (").map_or(entry, |(path, _)| path);
        entry.contains('"')
            || [entry, unremarked].into_iter().flat_map(|entry| entry.split(" -> ")).any(|path| meets(path, named))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|path| (*path).to_owned()).collect()
    }

    const DIFF: &str = "Unstaged changes:\ndiff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+diff --git a/b b/b\ndiff --git a/d/e f b/d/e f\n+e\ndiff --git \"a/\\303\\244\" \"b/\\303\\244\"\n+q\ndiff --git c c\n+n\n";

    #[test]
    fn of_a_diff_the_files_that_are_named() {
        let part = |paths: &[&str]| part(DIFF, &names(paths), Shown::Diff);
        assert_eq!(
            part(&["a.txt"]),
            "Unstaged changes:\ndiff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+diff --git a/b b/b\ndiff --git \"a/\\303\\244\" \"b/\\303\\244\"\n+q\n"
        );
        for within in ["d", "./d/", "d//e f"] {
            assert!(part(&[within]).contains("+e\n") && !part(&[within]).contains("a.txt"), "{within}");
        }
        assert!(part(&["c"]).contains("+n\n") && !part(&["c", "x"]).contains("+e"));
        assert!(!part(&["a"]).contains("a.txt"), "part of a name is no name");
        // What is not surely other files counts.
        for all in [".", "*.txt", "/repo/a.txt", "../x", ":/", "", "a/../b", "--", "\"a", "a\\b"] {
            assert_eq!(part(&["a.txt", all]), DIFF, "{all:?}");
        }
        assert_eq!(part(&[]), "Unstaged changes:\ndiff --git \"a/\\303\\244\" \"b/\\303\\244\"\n+q\n");
    }

    #[test]
    fn of_a_status_the_entries_that_are_named() {
        let status = "Repository status:\nOn branch main\nChanges to be committed:\n  (use \"git restore\")\n\tnew file:   a.txt\n\trenamed:    old -> new\n\nChanges not staged for commit:\n\tmodified:   a.txt\n\tmodified:   sub (new commits)\n\nUntracked files:\n\td/\n\tb: c\n\t\"\\303\\244\"\n";
        let part = |path: &str| part(status, &names(&[path]), Shown::Text);
        let quoted = "Untracked files:\n\t\"\\303\\244\"\n";
        let both =
            "Changes to be committed:\n\tnew file:   a.txt\nChanges not staged for commit:\n\tmodified:   a.txt\n";
        assert_eq!(part("a.txt"), format!("{both}{quoted}"));
        for renamed in ["old", "new"] {
            assert!(part(renamed).contains("renamed:"), "{renamed}");
        }
        assert!(part("sub").contains("new commits"));
        assert!(part("d/x/y").starts_with("Untracked files:\n\td/\n") && part("b: c").contains("b: c"));
        assert_eq!(part("other"), quoted);
        assert_eq!(part("*"), status);
    }
}
