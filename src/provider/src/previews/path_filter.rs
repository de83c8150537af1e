//! Filters a diff or a git status by the files that a call names.
//!
//! Parts that might concern a named file are kept.

use countersign_domain::recipes::DisplayFormat;

/// Returns the parts that concern these paths, or the whole text if one of them is not a plain path inside the folder
/// (a pattern, the folder itself, a path that leaves it).
pub(super) fn filter_by_paths(text: &str, paths: &[String], display_format: DisplayFormat) -> String {
    let Some(paths) = paths.iter().map(|path| normalized_path(path)).collect::<Option<Vec<_>>>() else {
        return text.to_owned();
    };
    match display_format {
        DisplayFormat::Diff => filter_diff(text, &paths),
        _ => filter_status(text, &paths),
    }
}

/// Returns the path as git writes it: relative and without empty parts.
fn normalized_path(path: &str) -> Option<String> {
    let is_special = path.starts_with(['/', ':', '-', '~']) || path.contains(['*', '?', '[', '\\', '"']);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let is_inside_folder = !is_special && !parts.is_empty() && !parts.contains(&"..");
    (is_inside_folder && !path.chars().any(char::is_control)).then(|| parts.join("/"))
}

/// Returns `true` if the path equals one of the names, contains it or lies inside it.
fn overlaps_any(path: &str, paths: &[String]) -> bool {
    let path = path.trim_end_matches('/');
    let is_inside = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    paths.iter().any(|name| name == path || is_inside(path, name) || is_inside(name, path))
}

/// Keeps the lines before the first file and the sections of the named files. A line of content never begins with
/// `diff`.
fn filter_diff(text: &str, paths: &[String]) -> String {
    let mut is_kept = true;
    let lines = text.split_inclusive('\n').filter(|line| {
        if let Some(header) = line.strip_prefix("diff --git ") {
            is_kept = path_of_header(header.trim_end()).is_none_or(|path| overlaps_any(path, paths));
        } else if line.starts_with("diff --") {
            is_kept = true;
        }
        is_kept
    });
    lines.collect()
}

/// Returns the path in `a/x b/x`; `None` if the two differ or git had to quote them.
fn path_of_header(header: &str) -> Option<&str> {
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

/// Keeps the named entries and their headings. Git indents entries with a tab.
fn filter_status(text: &str, paths: &[String]) -> String {
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
        if !entry_concerns_paths(entry, paths) {
            continue;
        }
        for line in heading.take().into_iter().chain([line]) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Matches entries such as `modified:   x`, `renamed:    x -> y`, `x`, `x/` and `modified:   x (new commits)` in any
/// language.
fn entry_concerns_paths(entry: &str, paths: &[String]) -> bool {
    let unlabelled = entry.split_once(':').map_or(entry, |(_, rest)| rest.trim_start());
    [entry, unlabelled].into_iter().any(|entry| {
        let unremarked = entry.rsplit_once(" (").map_or(entry, |(path, _)| path);
        entry.contains('"')
            || [entry, unremarked]
                .into_iter()
                .flat_map(|entry| entry.split(" -> "))
                .any(|path| overlaps_any(path, paths))
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
    fn diff_is_filtered_to_named_files() {
        let filter = |paths: &[&str]| filter_by_paths(DIFF, &names(paths), DisplayFormat::Diff);
        assert_eq!(
            filter(&["a.txt"]),
            "Unstaged changes:\ndiff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+diff --git a/b b/b\ndiff --git \"a/\\303\\244\" \"b/\\303\\244\"\n+q\n"
        );
        for within in ["d", "./d/", "d//e f"] {
            assert!(filter(&[within]).contains("+e\n") && !filter(&[within]).contains("a.txt"), "{within}");
        }
        assert!(filter(&["c"]).contains("+n\n") && !filter(&["c", "x"]).contains("+e"));
        assert!(!filter(&["a"]).contains("a.txt"), "a prefix of a file name does not match");
        // Paths that may match any file keep the whole text.
        for all in [".", "*.txt", "/repo/a.txt", "../x", ":/", "", "a/../b", "--", "\"a", "a\\b"] {
            assert_eq!(filter(&["a.txt", all]), DIFF, "{all:?}");
        }
        assert_eq!(filter(&[]), "Unstaged changes:\ndiff --git \"a/\\303\\244\" \"b/\\303\\244\"\n+q\n");
    }

    #[test]
    fn status_is_filtered_to_named_entries() {
        let status = "Repository status:\nOn branch main\nChanges to be committed:\n  (use \"git restore\")\n\tnew file:   a.txt\n\trenamed:    old -> new\n\nChanges not staged for commit:\n\tmodified:   a.txt\n\tmodified:   sub (new commits)\n\nUntracked files:\n\td/\n\tb: c\n\t\"\\303\\244\"\n";
        let filter = |path: &str| filter_by_paths(status, &names(&[path]), DisplayFormat::Text);
        let quoted = "Untracked files:\n\t\"\\303\\244\"\n";
        let sections =
            "Changes to be committed:\n\tnew file:   a.txt\nChanges not staged for commit:\n\tmodified:   a.txt\n";
        assert_eq!(filter("a.txt"), format!("{sections}{quoted}"));
        for renamed in ["old", "new"] {
            assert!(filter(renamed).contains("renamed:"), "{renamed}");
        }
        assert!(filter("sub").contains("new commits"));
        assert!(filter("d/x/y").starts_with("Untracked files:\n\td/\n") && filter("b: c").contains("b: c"));
        assert_eq!(filter("other"), quoted);
        assert_eq!(filter("*"), status);
    }
}
