//! Recipes and known reads for widely used servers that are shipped with the program (`config/previews`, `config/reads`).
//!
//! To add a recipe:
//! 1. Write it into the file of its server in `config/previews`, under the tool's own name. `docs/previews.md` and
//!    `config/countersign.yaml` explain the keys. It may call only read-only tools. `every_shipped_recipe_can_be_read`
//!    compiles it.
//! 2. For a server without a file, make one and add it to [`SHIPPED_RECIPE_SETS`], with what its packages and programs are
//!    called, or with its addresses: `every_recipe_file_is_shipped_with_server_aliases`. `known_reads.rs` explains `reads`.
//! 3. Call its tool on the real server in `tests/clients/previews.test.mjs` or, for many tools, in a file of the set
//!    (`tests/clients/previews-gitlab.test.mjs`): `every_shipped_recipe_is_tried_with_its_server`, in
//!    `src/config/src/servers/previews/tests.rs`, misses it otherwise.

use std::{io::Read as _, path::Path};

use flate2::bufread::DeflateDecoder;
use url::Url;

use crate::UpstreamTarget;

/// A set of recipes with the names and addresses that identify its server.
pub struct RecipeSet {
    pub name: &'static str,
    pub yaml: CompressedText,
    /// The known reads of the server.
    pub reads: CompressedText,
    /// Names of the server's packages, modules, programs and images.
    aliases: &'static [&'static str],
    /// Addresses at which the server is hosted. They include all paths below them.
    addresses: &'static [&'static str],
    /// The name that the server gives itself (`serverInfo.name`). Any server can give itself this name, so it identifies none.
    pub own_name: &'static str,
}

/// A text that the build script has compressed (`src/config/build.rs`).
pub struct CompressedText(&'static [u8]);

impl CompressedText {
    /// Returns the text, which is empty if the data is damaged.
    pub fn inflate(&self) -> String {
        let mut text = String::new();
        DeflateDecoder::new(self.0).read_to_string(&mut text).map(|_| text).unwrap_or_default()
    }
}

/// Embeds the files of the set with this name. Everything by which its server is recognized must be added.
macro_rules! recipe_set {
    ($name:literal) => {
        RecipeSet {
            name: $name,
            yaml: CompressedText(include_bytes!(concat!(env!("OUT_DIR"), "/previews/", $name, ".yaml"))),
            reads: CompressedText(include_bytes!(concat!(env!("OUT_DIR"), "/reads/", $name, ".yaml"))),
            aliases: &[],
            addresses: &[],
            own_name: "",
        }
    };
}

pub static SHIPPED_RECIPE_SETS: [RecipeSet; 20] = [
    RecipeSet {
        aliases: &["mcp-atlassian", "mcp_atlassian", "ghcr.io/sooperset/mcp-atlassian"],
        own_name: "Atlassian MCP",
        ..recipe_set!("atlassian")
    },
    RecipeSet {
        addresses: &["https://mcp.atlassian.com"],
        own_name: "atlassian-mcp-server",
        ..recipe_set!("atlassian-hosted")
    },
    RecipeSet {
        aliases: &["@bytebase/dbhub", "dbhub", "bytebase/dbhub"],
        own_name: "DBHub MCP Server",
        ..recipe_set!("dbhub")
    },
    RecipeSet {
        aliases: &["@modelcontextprotocol/server-filesystem", "mcp-server-filesystem", "mcp/filesystem"],
        own_name: "secure-filesystem-server",
        ..recipe_set!("filesystem")
    },
    RecipeSet { aliases: &["mcp-server-git", "mcp_server_git", "mcp/git"], own_name: "mcp-git", ..recipe_set!("git") },
    RecipeSet {
        aliases: &[
            "ghcr.io/github/github-mcp-server",
            "github-mcp-server",
            "github.com/github/github-mcp-server/cmd/github-mcp-server",
        ],
        addresses: &["https://api.githubcopilot.com/mcp"],
        own_name: "github-mcp-server",
        ..recipe_set!("github")
    },
    RecipeSet {
        aliases: &["@zereight/mcp-gitlab", "mcp-gitlab", "zereight-mcp-gitlab", "zereight050/gitlab-mcp"],
        own_name: "zereight-gitlab-mcp-server",
        ..recipe_set!("gitlab")
    },
    RecipeSet {
        aliases: &["workspace-mcp", "workspace_mcp", "ghcr.io/taylorwilsdon/google_workspace_mcp"],
        own_name: "google_workspace",
        ..recipe_set!("google-workspace")
    },
    RecipeSet {
        aliases: &[
            "kubernetes-mcp-server",
            "kubernetes-mcp-server-linux-amd64",
            "kubernetes-mcp-server-linux-arm64",
            "kubernetes-mcp-server-darwin-arm64",
            "quay.io/containers/kubernetes_mcp_server",
            "mcp-server-kubernetes",
            "flux159/mcp-server-kubernetes",
        ],
        own_name: "kubernetes-mcp-server",
        ..recipe_set!("kubernetes")
    },
    RecipeSet {
        addresses: &["https://mcp.linear.app/mcp", "https://mcp.linear.app/sse"],
        own_name: "Linear",
        ..recipe_set!("linear")
    },
    RecipeSet {
        aliases: &["@modelcontextprotocol/server-memory", "mcp-server-memory", "mcp/memory"],
        own_name: "memory-server",
        ..recipe_set!("memory")
    },
    RecipeSet {
        aliases: &["mongodb-mcp-server", "mongodb/mongodb-mcp-server"],
        own_name: "MongoDB MCP Server",
        ..recipe_set!("mongodb")
    },
    RecipeSet {
        aliases: &["@notionhq/notion-mcp-server", "notion-mcp-server", "mcp/notion"],
        own_name: "Notion API",
        ..recipe_set!("notion")
    },
    RecipeSet {
        addresses: &["https://mcp.notion.com/mcp", "https://mcp.notion.com/sse"],
        own_name: "Notion MCP",
        ..recipe_set!("notion-hosted")
    },
    RecipeSet {
        aliases: &["@playwright/mcp", "playwright-mcp", "mcr.microsoft.com/playwright/mcp", "mcp/playwright"],
        own_name: "Playwright",
        ..recipe_set!("playwright")
    },
    RecipeSet {
        aliases: &[
            "slack-mcp-server",
            "slack-mcp-server-linux-amd64",
            "slack-mcp-server-linux-arm64",
            "slack-mcp-server-darwin-arm64",
            "ghcr.io/korotovsky/slack-mcp-server",
        ],
        own_name: "Slack MCP Server",
        ..recipe_set!("slack")
    },
    RecipeSet { addresses: &["https://mcp.slack.com/mcp"], own_name: "Slack", ..recipe_set!("slack-hosted") },
    RecipeSet {
        aliases: &["mcp-server-sqlite", "mcp_server_sqlite", "mcp/sqlite"],
        own_name: "sqlite",
        ..recipe_set!("sqlite")
    },
    RecipeSet {
        aliases: &["@stripe/mcp"],
        addresses: &["https://mcp.stripe.com"],
        own_name: "stripe-mcp",
        ..recipe_set!("stripe")
    },
    RecipeSet {
        aliases: &["@supabase/mcp-server-supabase", "mcp-server-supabase"],
        addresses: &["https://mcp.supabase.com/mcp"],
        own_name: "supabase",
        ..recipe_set!("supabase")
    },
];

pub fn find_by_name(name: &str) -> Option<&'static RecipeSet> {
    SHIPPED_RECIPE_SETS.iter().find(|set| set.name == name)
}

/// Returns the set of the server at this target, which its command or all its addresses identify.
pub fn find_by_target(target: &UpstreamTarget) -> Option<&'static RecipeSet> {
    match target {
        UpstreamTarget::Command { command, args, .. } => find_by_command(command, args),
        UpstreamTarget::Url { urls, .. } => SHIPPED_RECIPE_SETS.iter().find(|set| {
            let is_known = |url: &Url| set.addresses.iter().any(|address| is_at_address(url, address));
            !urls.is_empty() && urls.iter().all(is_known)
        }),
    }
}

/// Returns `true` if the URL is the address or below it.
fn is_at_address(url: &Url, address: &str) -> bool {
    let Ok(address) = Url::parse(address) else { return false };
    let rest = url.path().strip_prefix(address.path().trim_end_matches('/'));
    url.origin() == address.origin() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the set of the server that a command starts: that of the first word which names a known server.
fn find_by_command(command: &str, args: &[String]) -> Option<&'static RecipeSet> {
    let program = Path::new(command).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let words = std::iter::once(program).chain(args.iter().map(String::as_str));
    words
        .flat_map(|word| {
            SHIPPED_RECIPE_SETS.iter().filter(move |set| set.aliases.iter().any(|name| is_name_of_server(word, name)))
        })
        .next()
}

/// Returns `true` if the word is this name with an optional version, or a file of the package of this name. A folder
/// with the same name does not count.
fn is_name_of_server(word: &str, name: &str) -> bool {
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
        find_by_command(command, &args).map(|set| set.name)
    }

    #[test]
    fn public_servers_are_recognized_by_package() {
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
        let image = "ghcr.io/github/github-mcp-server:v1.10.1";
        assert_eq!(set("docker", &["run", "-i", "-e", "GITHUB_PERSONAL_ACCESS_TOKEN", image, "stdio"]), Some("github"));
        assert_eq!(set("/usr/local/bin/github-mcp-server", &["stdio"]), Some("github"));
        assert_eq!(set("uvx", &["mcp-atlassian==0.23.1"]), Some("atlassian"));
        assert_eq!(set("npx", &["-y", "@zereight/mcp-gitlab"]), Some("gitlab"));
        assert_eq!(set("npx", &["-y", "kubernetes-mcp-server@latest"]), Some("kubernetes"));
        assert_eq!(set("npx", &["mcp-server-kubernetes"]), Some("kubernetes"));
        assert_eq!(set("npx", &["-y", "@notionhq/notion-mcp-server"]), Some("notion"));
        assert_eq!(set("npx", &["-y", "slack-mcp-server@latest", "--transport", "stdio"]), Some("slack"));
        assert_eq!(set("uvx", &["workspace-mcp", "--tools", "gmail"]), Some("google-workspace"));
    }

    #[test]
    fn every_recipe_file_is_shipped_with_server_aliases() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/previews");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().map(name).collect();
        files.sort_unstable();
        assert_eq!(files, SHIPPED_RECIPE_SETS.each_ref().map(|set| set.name));
        for shipped in &SHIPPED_RECIPE_SETS {
            assert!(!shipped.aliases.is_empty() || !shipped.addresses.is_empty(), "{}", shipped.name);
            assert!(!shipped.own_name.is_empty(), "{}", shipped.name);
            for word in shipped.aliases {
                assert_eq!(set("npx", &[word]), Some(shipped.name), "{word}");
            }
        }
    }

    #[test]
    fn hosted_server_is_recognized_at_and_below_its_address() {
        let is_known = |url: &str| is_at_address(&Url::parse(url).unwrap(), "https://mcp.example.com/mcp");
        assert!(is_known("https://mcp.example.com/mcp") && is_known("https://MCP.example.com:443/mcp/readonly?x=1"));
        for other in [
            "http://mcp.example.com/mcp",
            "https://mcp.example.com/",
            "https://mcp.example.com/mcp2",
            "https://mcp.example.com/other/../mcp2",
            "https://mcp.example.com:8443/mcp",
            "https://mcp.example.com.evil.example/mcp",
        ] {
            assert!(!is_known(other), "{other}");
        }
        for shipped in &SHIPPED_RECIPE_SETS {
            let is_https = |address: &&str| Url::parse(address).is_ok_and(|url| url.scheme() == "https");
            assert!(shipped.addresses.iter().all(is_https), "{}", shipped.name);
        }
    }

    #[test]
    fn similar_names_are_not_recognized() {
        assert_eq!(set("npx", &["@modelcontextprotocol/server-everything"]), None);
        assert_eq!(set("npx", &["@evil/server-filesystem"]), None);
        assert_eq!(set("npx", &["@modelcontextprotocol/server-filesystem-evil"]), None);
        assert_eq!(set("my-server", &["/srv/mcp-server-git"]), None);
        // The first known name decides, and the folder in the arguments does not.
        assert_eq!(set("npx", &["@modelcontextprotocol/server-filesystem", "mcp-server-git"]), Some("filesystem"));
    }
}
