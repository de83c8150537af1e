//! Rejects servers whose command gives them access to the gateway's own files, because a server that can write or read these
//! files can approve changes or act as the gateway.

use std::path::{Component, Path, PathBuf};

use super::{
    Config, UpstreamConfig, UpstreamTarget,
    error::{invalid, quoted_key},
    reader::Reader,
    servers::KEY,
};

/// Reports each server whose program, arguments or working directory overlap with the data directory or
/// contain the configuration file, the file of a key or the tokens of `countersign login`. Servers with `allow_own_files: true`
/// are skipped.
pub(super) fn report_access(config: &Config, file: Option<&Path>, r: &mut Reader) {
    let logins = r.env.logins_file().filter(|path| path.exists());
    let keys = config.key_file.as_deref().into_iter().chain(config.tls.as_ref().map(|tls| tls.key.as_path()));
    let files = file.into_iter().chain(keys).chain(logins.as_deref()).map(resolve_path).collect();
    let own_paths = OwnPaths { data: resolve_path(&config.data), files, home: r.env.home() };
    for server in config.upstreams.iter().filter(|server| !server.allow_own_files) {
        let Some((key, covered)) = own_paths.find_covered_path(server) else { continue };
        let name = quoted_key(&server.name);
        let setting = key.split('[').next().unwrap_or_default();
        let origin = r.origin(&format!("{KEY}.{name}.{setting}"));
        let message =
            format!("the server {name} would get at the gateway's own files: this covers {}", covered.display());
        let remedy = "Name other folders, or set allow_own_files: true if it is to read and write them.";
        r.report(&format!("{KEY}.{name}.{key}"), origin, invalid(message, remedy));
    }
}

/// The gateway's own paths.
struct OwnPaths {
    data: PathBuf,
    /// Files outside the data directory.
    files: Vec<PathBuf>,
    home: Option<PathBuf>,
}

impl OwnPaths {
    /// Returns the first key of the server that covers one of our paths, and that path.
    fn find_covered_path(&self, server: &UpstreamConfig) -> Option<(String, &Path)> {
        let UpstreamTarget::Command { command, args, cwd, .. } = &server.target else { return None };
        // The server's own folder below the data directory is allowed.
        let server_dir = self.data.join("servers").join(&server.name);
        let cwd = cwd.as_deref().map(resolve_path);
        let base = cwd.as_deref().unwrap_or(&server_dir);
        let program = command.contains('/').then(|| ("command".to_owned(), resolve_path(Path::new(command))));
        let arguments = args.iter().enumerate().flat_map(|(index, arg)| {
            let resolve = move |text| (format!("args[{index}]"), resolve_path(&base.join(self.expand_tilde(text))));
            paths_in(arg).map(resolve)
        });
        let mut paths = cwd.iter().map(|cwd| ("cwd".to_owned(), cwd.clone())).chain(program).chain(arguments);
        paths.find_map(|(key, path)| Some((key, self.find_overlap(&path, &server_dir)?)))
    }

    /// Expands `~`, as many programs do with their arguments.
    fn expand_tilde(&self, text: &str) -> PathBuf {
        match (text.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(text),
        }
    }

    /// Returns our path that contains the given one or lies below it, unless that is in the server's own folder.
    fn find_overlap(&self, path: &Path, server_dir: &Path) -> Option<&Path> {
        if path.starts_with(server_dir) {
            return None;
        }
        if path.starts_with(&self.data) || self.data.starts_with(path) {
            return Some(&self.data);
        }
        self.files.iter().map(PathBuf::as_path).find(|file| file.starts_with(path))
    }
}

/// Returns the parts of an argument that may be paths: the whole argument, the parts after `=`, `:` or `,` (`--root=/x`,
/// `-v /x:/y`, `file:///x`), the words of a shell command (`sh -c "cat /x"`), and the value of a short option (`-C/x`).
fn paths_in(arg: &str) -> impl Iterator<Item = &str> {
    let short = arg.strip_prefix('-').and_then(|rest| rest.get(1..)).filter(|rest| rest.starts_with(['/', '~', '.']));
    let parts = arg.split(['=', ':', ',']);
    let words = arg.split(|c: char| c.is_whitespace() || "\"'`;|&<>()={}:,".contains(c));
    let words = words.filter(|word| word.len() > 1 && word.contains('/'));
    std::iter::once(arg).chain(short).chain(parts).chain(words).filter(|text| !text.is_empty() && !text.contains('\0'))
}

/// Resolves links and dots in the existing part of a path, and keeps the rest as it is written.
fn resolve_path(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => {
                out.push(part);
                // Resolved step by step, so that `..` after a link is relative to its target.
                if let Ok(resolved) = out.canonicalize() {
                    out = resolved;
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_paths() -> (tempfile::TempDir, OwnPaths) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["home/state/data", "home/docs", "etc", "srv"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("home/state"), dir.path().join("srv/link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("home"), dir.path().join("srv/up")).unwrap();
        let real = |below: &str| super::resolve_path(&dir.path().join(below));
        let own_paths = OwnPaths {
            data: real("home/state/data"),
            files: vec![real("etc/c.yaml")],
            home: Some(dir.path().join("home")),
        };
        (dir, own_paths)
    }

    fn server(command: &str, args: &[&str], cwd: Option<PathBuf>) -> UpstreamConfig {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let target = UpstreamTarget::Command { command: command.to_owned(), args, env: Default::default(), cwd };
        UpstreamConfig::new("s", target)
    }

    #[test]
    fn arguments_that_cover_own_files_are_found() {
        let (dir, own_paths) = own_paths();
        let root = dir.path().display().to_string();
        let cases = [
            ("/", true),
            ("~", true),
            ("~/", true),
            ("~/state/../state", true),
            ("~/docs", false),
            ("~other", false),
            ("$R", true),
            ("$R/home", true),
            ("$R/home/docs", false),
            ("$R/home/docs/../state/data/x", true),
            ("$R/home/state/data", true),
            ("$R/home/state/database", false),
            ("$R/home/state/data/servers/s/notes", false),
            ("$R/home/state/data/servers/s2", true),
            ("$R/home/state/data/servers/s/..", true),
            ("$R/srv/link", true),
            ("$R/srv/link/data/new/file", true),
            ("$R/srv/up/docs", false),
            ("$R/srv/link/../docs", false),
            ("$R/etc", true),
            ("$R/etc/c.yaml", true),
            ("$R/etc/other.yaml", false),
            ("--root=$R/home", true),
            ("-C$R/home", true),
            ("-y", false),
            ("$R/srv:$R/home", true),
            ("file://$R/etc", true),
            ("a,$R/etc", true),
            ("cat $R/home/docs/x >$R/home/state/data/x", true),
            ("cat '$R/etc/c.yaml'; ls", true),
            ("cat $R/home/docs/x", false),
            ("@modelcontextprotocol/server-filesystem", false),
            ("https://example.com/", false),
            ("", false),
            (".", false),
            ("..", true),
            ("../../gateway.db", true),
        ];
        for (arg, covered) in cases {
            let arg = arg.replace("$R", &root);
            let found = own_paths.find_covered_path(&server("npx", &["-y", &arg], None));
            assert_eq!(found.is_some(), covered, "{arg}");
            if let Some((key, _)) = found {
                assert_eq!(key, "args[1]");
            }
        }
    }

    #[test]
    fn cwd_and_paths_relative_to_it_are_checked() {
        let (dir, own_paths) = own_paths();
        let path_below = |below: &str| Some(dir.path().join(below));
        let key = |server: &UpstreamConfig| own_paths.find_covered_path(server).map(|(key, _)| key);
        assert_eq!(key(&server("x", &[], path_below("home"))).as_deref(), Some("cwd"));
        assert_eq!(key(&server("x", &[], path_below("etc"))).as_deref(), Some("cwd"));
        assert_eq!(key(&server("x", &[], path_below("home/docs"))), None);
        assert_eq!(key(&server("x", &["../state"], path_below("home/docs"))).as_deref(), Some("args[0]"));
        assert_eq!(key(&server("x", &["state"], path_below("home/docs"))), None);
        let inside = dir.path().join("home/state/data/run").display().to_string();
        assert_eq!(key(&server(&inside, &[], None)).as_deref(), Some("command"));
    }
}
