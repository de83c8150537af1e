//! Reads the checked-out branch and git's lock from the repository's own files.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::model::NO_BRANCH;

/// The maximum number of parent folders that are searched.
const MAX_PARENTS: usize = 32;
/// The maximum number of bytes of `HEAD`.
const MAX_HEAD_BYTES: u64 = 4096;
/// The maximum number of bytes of the name of a branch.
const MAX_NAME_BYTES: usize = 250;
/// The name in the `HEAD` of a repository with the reftable format, which keeps the real one in a binary table.
const REFTABLE_STUB: &str = ".invalid";
/// The number of digits of the commit that names a detached `HEAD`.
const COMMIT_DIGITS: usize = 12;
/// The age from which a lock is ignored: a process that was killed leaves its lock behind.
const MAX_LOCK_AGE: Duration = Duration::from_secs(30);

/// Returns the branch of the repository that contains `root`. Returns `last_branch` if both are missing, because a missing root
/// does not mean that another branch is checked out.
pub(super) fn checked_out_branch(root: &Path, last_branch: &str) -> String {
    match find_repository(root) {
        Some((_, branch)) => branch,
        None if root.exists() => NO_BRANCH.to_owned(),
        None => last_branch.to_owned(),
    }
}

/// Returns `true` if git holds the lock of the repository that contains `root`, as it does while it changes files.
pub(super) fn is_locked(root: &Path) -> bool {
    let Some((git_folder, _)) = find_repository(root) else { return false };
    let locked_at = fs::symlink_metadata(git_folder.join("index.lock")).and_then(|metadata| metadata.modified());
    locked_at.is_ok_and(|locked_at| locked_at.elapsed().is_ok_and(|age| age < MAX_LOCK_AGE))
}

/// Returns git's own folder of the repository that contains `root`, and the branch.
fn find_repository(root: &Path) -> Option<(PathBuf, String)> {
    root.ancestors().take(MAX_PARENTS).find_map(|folder| {
        let git_folder = resolve_git_folder(&folder.join(".git"))?;
        let branch = read_head(&git_folder)?;
        Some((git_folder, branch))
    })
}

fn resolve_git_folder(git: &Path) -> Option<PathBuf> {
    if !fs::symlink_metadata(git).ok()?.is_file() {
        return Some(git.to_owned());
    }
    // In a worktree or a submodule, the repository is elsewhere.
    let text = read_text(git)?;
    let path = PathBuf::from(text.strip_prefix("gitdir:")?.trim());
    Some(if path.is_absolute() { path } else { git.parent()?.join(path) })
}

/// Reads the branch from `HEAD`; see gitrepository-layout(5). It is `NO_BRANCH` for a repository with the reftable format, so that
/// the folders above it are not searched.
fn read_head(git_folder: &Path) -> Option<String> {
    let text = read_text(&git_folder.join("HEAD"))?;
    let name = match text.trim().strip_prefix("ref:") {
        Some(reference) => {
            let reference = reference.trim();
            reference.strip_prefix("refs/heads/").unwrap_or(reference).to_owned()
        }
        None => text.trim().chars().take(COMMIT_DIGITS).collect(),
    };
    if name == REFTABLE_STUB {
        return Some(NO_BRANCH.to_owned());
    }
    let is_name =
        !name.is_empty() && name.len() <= MAX_NAME_BYTES && name != NO_BRANCH && !name.chars().any(char::is_control);
    is_name.then_some(name)
}

fn read_text(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= MAX_HEAD_BYTES).then(|| fs::read_to_string(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_is_read_from_head() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("repo/docs");
        fs::create_dir_all(&root).unwrap();
        let branch_of = |root: &Path| checked_out_branch(root, "last");
        assert_eq!(branch_of(&root), NO_BRANCH);
        let git = dir.path().join("repo/.git");
        fs::create_dir_all(&git).unwrap();
        let head = |text: &str| {
            fs::write(git.join("HEAD"), text).unwrap();
            branch_of(&root)
        };
        assert_eq!(head("ref: refs/heads/main\n"), "main");
        assert_eq!(head("ref: refs/heads/feature/x y\n"), "feature/x y");
        assert_eq!(head("0123456789abcdef0123456789abcdef01234567\n"), "0123456789ab");
        for bad in ["", "ref:", "ref: refs/heads/", &"x".repeat(10_000), "ref: refs/heads/-", "ref: refs/heads/a\u{7}b"]
        {
            assert_eq!(head(bad), NO_BRANCH, "{bad:?}");
        }
        let tree = dir.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}\n", git.display())).unwrap();
        head("ref: refs/heads/dev\n");
        assert_eq!(branch_of(&tree), "dev");
        fs::write(tree.join(".git"), "gitdir: ../repo/.git\n").unwrap();
        assert_eq!(branch_of(&tree), "dev");
        // A repository with the reftable format, inside another repository.
        fs::create_dir(root.join(".git")).unwrap();
        fs::write(root.join(".git/HEAD"), "ref: refs/heads/.invalid\n").unwrap();
        assert_eq!(branch_of(&root), NO_BRANCH);
    }

    #[test]
    fn lock_of_a_worktree_is_found_until_it_is_old() {
        let dir = tempfile::tempdir().unwrap();
        let (git_folder, root) = (dir.path().join("repo/.git/worktrees/tree"), dir.path().join("tree/docs"));
        fs::create_dir_all(&git_folder).unwrap();
        fs::create_dir_all(&root).unwrap();
        assert!(!is_locked(&root));
        fs::write(git_folder.join("HEAD"), "ref: refs/heads/dev\n").unwrap();
        fs::write(dir.path().join("tree/.git"), "gitdir: ../repo/.git/worktrees/tree\n").unwrap();
        assert!(!is_locked(&root));
        let lock = fs::File::create(git_folder.join("index.lock")).unwrap();
        assert!(is_locked(&root));
        lock.set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(!is_locked(&root));
    }
}
