//! Recipes for servers that many people use, which come with the program (`config/previews`).
//!
//! To add a recipe:
//! 1. Write it into the file of its server in `config/previews`, by the tool's own name; `docs/previews.md` and
//!    `config/countersign.yaml` explain the keys. It may call only tools that read. `every_shipped_recipe_can_be_read`
//!    reads it.
//! 2. For a server without a file, make one and add it to [`SHIPPED`], with what its packages and programs are called:
//!    `every_file_of_recipes_is_shipped_and_its_server_is_known`.
//! 3. Call its tool on the real server in `tests/clients/previews.test.mjs`:
//!    `every_shipped_recipe_is_tried_with_its_server`, in `src/config/src/servers/previews.rs`, misses it otherwise.

use std::path::Path;

/// A set: its name, its file, and what its server is called where it is started.
pub struct Shipped {
    pub name: &'static str,
    pub yaml: &'static str,
    /// Names of packages, modules, programs and images.
    called: &'static [&'static str],
}

pub const SHIPPED: [Shipped; 3] = [
    Shipped {
        name: "filesystem",
        yaml: include_str!("../../../../config/previews/filesystem.yaml"),
        called: &["@modelcontextprotocol/server-filesystem", "mcp-server-filesystem", "mcp/filesystem"],
    },
    Shipped {
        name: "git",
        yaml: include_str!("../../../../config/previews/git.yaml"),
        called: &["mcp-server-git", "mcp_server_git", "mcp/git"],
    },
    Shipped {
        name: "memory",
        yaml: include_str!("../../../../config/previews/memory.yaml"),
        called: &["@modelcontextprotocol/server-memory", "mcp-server-memory", "mcp/memory"],
    },
];

#[must_use]
pub fn named(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|set| set.name == name)
}

/// The set for the server that this command starts, by the first of its words that names one.
#[must_use]
pub fn recognised(command: &str, args: &[String]) -> Option<&'static Shipped> {
    let program = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let words = std::iter::once(program).chain(args.iter().map(String::as_str));
    words.flat_map(|word| SHIPPED.iter().filter(move |set| set.called.iter().any(|name| is(word, name)))).next()
}

/// Whether the word is that name, with a version or without, or a file of the package of that name. A folder that has
/// the name of a server is none.
fn is(word: &str, name: &str) -> bool {
    let rest = match word.rsplit_once("node_modules/") {
        Some((_, package)) => package.strip_prefix(name).filter(|rest| rest.starts_with('/')),
        None => {
            word.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with(['@', '=', ':', '[', '~', '>']))
        }
    };
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(command: &str, args: &[&str]) -> Option<&'static str> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        recognised(command, &args).map(|set| set.name)
    }

    #[test]
    fn public_servers_are_known_by_their_packages() {
        assert_eq!(set("npx", &["-y", "@modelcontextprotocol/server-filesystem", "/srv"]), Some("filesystem"));
        assert_eq!(
            set("npx", &["-y", "@modelcontextprotocol/server-filesystem@2026.8.31", "/srv"]),
            Some("filesystem")
        );
        assert_eq!(set("node", &["/x/node_modules/@modelcontextprotocol/server-memory/dist/index.js"]), Some("memory"));
        assert_eq!(set("/usr/bin/mcp-server-git", &["--repository", "/r"]), Some("git"));
        assert_eq!(set("uvx", &["mcp-server-git==2026.1.1"]), Some("git"));
        assert_eq!(set("python3", &["-m", "mcp_server_git"]), Some("git"));
        assert_eq!(set("docker", &["run", "-i", "--rm", "mcp/git:latest"]), Some("git"));
    }

    #[test]
    fn every_file_of_recipes_is_shipped_and_its_server_is_known() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/previews");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        files.sort_unstable();
        assert_eq!(files, SHIPPED.each_ref().map(|set| set.name));
        for shipped in &SHIPPED {
            assert!(!shipped.called.is_empty(), "{}", shipped.name);
            for word in shipped.called {
                assert_eq!(set("npx", &[word]), Some(shipped.name), "{word}");
            }
        }
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        assert_eq!(set("npx", &["@modelcontextprotocol/server-everything"]), None);
        assert_eq!(set("npx", &["@evil/server-filesystem"]), None);
        assert_eq!(set("npx", &["@modelcontextprotocol/server-filesystem-evil"]), None);
        assert_eq!(set("my-server", &["/srv/mcp-server-git"]), None);
        // The first that is named is the server, whatever folder it is given.
        assert_eq!(set("npx", &["@modelcontextprotocol/server-filesystem", "mcp-server-git"]), Some("filesystem"));
    }
}
