//! Whether what a server is started with covers the gateway's own files: whoever can write those decides on changes.

use std::path::{Component, Path, PathBuf};

use super::{
    Config, UpstreamConfig, UpstreamTarget,
    error::{Problem, quoted_key},
    reader::Reader,
    servers::KEY,
};

/// Servers whose program, arguments or working directory are, contain or lie in the data folder, or are or contain
/// the configuration file; unless they say `allow_own_files: true`.
pub(super) fn problems(config: &Config, file: Option<&Path>, r: &Reader) -> Vec<Problem> {
    let own = Own { data: real(&config.data), file: file.map(real), home: r.env.home() };
    let mut problems = Vec::new();
    for server in config.upstreams.iter().filter(|server| !server.allow_own_files) {
        let Some((key, covered)) = own.covered_by(server) else { continue };
        let name = quoted_key(&server.name);
        let place = key.split('[').next().unwrap_or_default();
        problems.push(Problem {
            origin: r.origin(&format!("{KEY}.{}.{place}", server.name)),
            key: Some(format!("{KEY}.{name}.{key}")),
            message: format!(
                "the server {name} would get at the gateway's own files: this covers {}",
                covered.display()
            ),
            remedy: "Name other folders, or set allow_own_files: true if it is to read and write them.".to_owned(),
        });
    }
    problems
}

struct Own {
    data: PathBuf,
    file: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Own {
    /// The key, and which of our paths it covers.
    fn covered_by(&self, server: &UpstreamConfig) -> Option<(String, &Path)> {
        let UpstreamTarget::Command { command, args, cwd, .. } = &server.target else { return None };
        // A folder of its own, which lies in the data folder and is no one else's.
        let given = self.data.join("servers").join(&server.name);
        if let Some(cwd) = cwd
            && let Some(covered) = self.covers(&real(cwd), &given)
        {
            return Some(("cwd".to_owned(), covered));
        }
        let base = cwd.as_deref().map_or_else(|| given.clone(), real);
        if command.contains('/')
            && let Some(covered) = self.covers(&real(Path::new(command)), &given)
        {
            return Some(("command".to_owned(), covered));
        }
        for (index, arg) in args.iter().enumerate() {
            for text in paths_in(arg) {
                let path = real(&base.join(self.expand(text)));
                if let Some(covered) = self.covers(&path, &given) {
                    return Some((format!("args[{index}]"), covered));
                }
            }
        }
        None
    }

    /// No shell does it, and programs do.
    fn expand(&self, text: &str) -> PathBuf {
        match (text.strip_prefix('~'), &self.home) {
            (Some(""), Some(home)) => home.clone(),
            (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
            _ => PathBuf::from(text),
        }
    }

    fn covers(&self, path: &Path, given: &Path) -> Option<&Path> {
        if path.starts_with(given) {
            return None;
        }
        if path.starts_with(&self.data) || self.data.starts_with(path) {
            return Some(&self.data);
        }
        self.file.as_deref().filter(|file| file.starts_with(path))
    }
}

/// What of an argument may be a path: the whole, what follows a `=`, `:` or `,` (`--root=/x`, `-v /x:/y`,
/// `file:///x`), what stands alone in the words of a shell (`sh -c "cat /x"`), and what follows a short option (`-C/x`).
fn paths_in(arg: &str) -> impl Iterator<Item = &str> {
    let short = arg
        .strip_prefix('-')
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .and_then(|rest| rest.get(1..))
        .filter(|rest| rest.starts_with(['/', '~', '.']));
    let parts = arg.split(['=', ':', ',']).skip(usize::from(!arg.contains(['=', ':', ','])));
    let words = arg
        .split(|c: char| c.is_whitespace() || "\"'`;|&<>()={}:,".contains(c))
        .filter(|word| word.len() > 1 && word.contains('/'));
    std::iter::once(arg).chain(short).chain(parts).chain(words).filter(|text| !text.is_empty() && !text.contains('\0'))
}

/// The path without links and dots, as far as it exists; what does not exist yet is taken as it is written.
fn real(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => {
                out.push(part);
                // Step by step, so that `..` after a link leads to where the link's target lies.
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

    fn own() -> (tempfile::TempDir, Own) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["home/state/data", "home/docs", "etc", "srv"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink(dir.path().join("home/state"), dir.path().join("srv/link")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("home"), dir.path().join("srv/up")).unwrap();
        let real = |below: &str| super::real(&dir.path().join(below));
        let own =
            Own { data: real("home/state/data"), file: Some(real("etc/c.yaml")), home: Some(dir.path().join("home")) };
        (dir, own)
    }

    fn server(command: &str, args: &[&str], cwd: Option<PathBuf>) -> UpstreamConfig {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let target = UpstreamTarget::Command { command: command.to_owned(), args, env: Default::default(), cwd };
        UpstreamConfig::new("s", target)
    }

    #[test]
    fn arguments_that_cover_own_files_are_found() {
        let (dir, own) = own();
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
            let found = own.covered_by(&server("npx", &["-y", &arg], None));
            assert_eq!(found.is_some(), covered, "{arg}");
            if let Some((key, _)) = found {
                assert_eq!(key, "args[1]");
            }
        }
    }

    #[test]
    fn the_working_directory_and_what_is_relative_to_it_count() {
        let (dir, own) = own();
        let at = |below: &str| Some(dir.path().join(below));
        let key = |server: &UpstreamConfig| own.covered_by(server).map(|(key, _)| key);
        assert_eq!(key(&server("x", &[], at("home"))).as_deref(), Some("cwd"));
        assert_eq!(key(&server("x", &[], at("etc"))).as_deref(), Some("cwd"));
        assert_eq!(key(&server("x", &[], at("home/docs"))), None);
        assert_eq!(key(&server("x", &["../state"], at("home/docs"))).as_deref(), Some("args[0]"));
        assert_eq!(key(&server("x", &["state"], at("home/docs"))), None);
        let inside = dir.path().join("home/state/data/run").display().to_string();
        assert_eq!(key(&server(&inside, &[], None)).as_deref(), Some("command"));
    }
}
