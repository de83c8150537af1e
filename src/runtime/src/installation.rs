//! Finds out whether this program was installed at a permanent path, or runs from a cache of a package runner, which may
//! delete it at any time.

use std::path::{Path, PathBuf};

/// The way in which the program was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installation {
    /// The program stays at its path until a person removes it.
    Stable,
    /// `npx` runs the program from its cache.
    Npx,
    /// `uvx` runs the program from the cache of uv.
    Uvx,
    /// `pipx run` runs the program from its cache.
    Pipx,
}

impl Installation {
    /// Returns the installation of the running program. A program whose path is unknown counts as stable.
    pub fn current() -> Self {
        program_path().map_or(Self::Stable, |path| Self::from_path(&path))
    }

    /// Returns the installation of the program at a path.
    pub fn from_path(path: &Path) -> Self {
        let folders: Vec<_> = path.iter().filter_map(|folder| folder.to_str()).collect();
        let has = |name: &str| folders.contains(&name);
        if has("_npx") {
            Self::Npx
        } else if folders.iter().any(|name| name.starts_with("archive-v") || name.starts_with("environments-v")) {
            Self::Uvx
        } else if has("pipx") && has(".cache") {
            Self::Pipx
        } else {
            Self::Stable
        }
    }

    /// Returns a command of this program as a person types it.
    #[must_use]
    pub fn command(self, arguments: &str) -> String {
        let program = match self {
            Self::Stable => "countersign",
            Self::Npx => "npx countersign",
            Self::Uvx => "uvx countersign-gateway",
            Self::Pipx => "pipx run countersign-gateway",
        };
        format!("{program} {arguments}")
    }

    /// Returns the command and its first arguments with which other programs start this one, which is at `path`. It names a
    /// package runner in place of a path in its cache.
    #[must_use]
    pub fn start_command(self, path: PathBuf) -> (PathBuf, &'static [&'static str]) {
        match self {
            Self::Stable => (path, &[]),
            Self::Npx => ("npx".into(), &["-y", "countersign"]),
            Self::Uvx => ("uvx".into(), &["countersign-gateway"]),
            Self::Pipx => ("pipx".into(), &["run", "countersign-gateway"]),
        }
    }
}

/// Returns the path of the running program. If a package manager replaced the program while it ran, the
/// kernel appends ` (deleted)` to its path. This suffix is removed.
///
/// # Errors
/// The path is unknown.
pub fn program_path() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.filter(|_| !path.exists()).unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_runners_are_recognized_by_their_caches() {
        for (path, installation, command) in [
            ("/usr/bin/countersign", Installation::Stable, "countersign open"),
            ("/home/a/.local/bin/countersign", Installation::Stable, "countersign open"),
            (
                "/home/a/.local/share/uv/tools/countersign-gateway/bin/countersign",
                Installation::Stable,
                "countersign open",
            ),
            (
                "/home/a/.npm/_npx/0123/node_modules/@countersign/linux-x64/bin/countersign",
                Installation::Npx,
                "npx countersign open",
            ),
            ("/home/a/.cache/uv/archive-v0/x1/bin/countersign", Installation::Uvx, "uvx countersign-gateway open"),
            ("/tmp/cache/environments-v2/x/bin/countersign", Installation::Uvx, "uvx countersign-gateway open"),
            (
                "/home/a/.local/share/pipx/.cache/0a/bin/countersign",
                Installation::Pipx,
                "pipx run countersign-gateway open",
            ),
        ] {
            let found = Installation::from_path(Path::new(path));
            assert_eq!((found, found.command("open").as_str()), (installation, command), "{path}");
            let (program, arguments) = found.start_command(path.into());
            let names_path = program == Path::new(path) && arguments.is_empty();
            assert_eq!(names_path, installation == Installation::Stable, "{path}: {program:?} {arguments:?}");
        }
    }
}
