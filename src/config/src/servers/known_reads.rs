//! Known reads of widely used servers (`config/reads`).
//!
//! To add or renew a list:
//! 1. Read and try the server, and name each tool that only reads in the file of its server, below the package with its
//!    version. A tool whose recipe makes a dry run is named below `dry_runs`, one that runs SQL below `sql_reads`. Write
//!    `sha256:` in place of the hash.
//! 2. Run `RENEW_READS=1 node --test tests/clients/{known-reads,previews-*}.test.mjs`. It starts the servers that the tests install and
//!    writes the hashes of their definitions. Without the variable, it compares them.
//! 3. Keep the entries of older versions, because people use them.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::shipped_recipes::{self, RecipeSet, SHIPPED_RECIPE_SETS};
use crate::UpstreamConfig;
use countersign_domain::policy::known_reads::{KnownReads, KnownTool};

/// The known reads of the packages of one server.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PackageReads {
    /// The package and its version.
    package: String,
    /// Hashes of the definitions of tools that only read.
    #[serde(default)]
    reads: BTreeMap<String, String>,
    /// Hashes of the definitions of tools whose dry run only reads.
    #[serde(default)]
    dry_runs: BTreeMap<String, String>,
    /// Hashes of the definitions of tools that run SQL and have a recipe of the kind `sql`.
    #[serde(default)]
    sql_reads: BTreeMap<String, String>,
}

static SHIPPED_READS: LazyLock<Vec<KnownReads>> =
    LazyLock::new(|| SHIPPED_RECIPE_SETS.iter().map(reads_of_set).collect());

/// Returns the known reads of a shipped set. A list that cannot be read is empty, and a test ensures that there is none.
fn reads_of_set(set: &RecipeSet) -> KnownReads {
    let mut known_reads = KnownReads::new(set.name);
    for package in serde_saphyr::from_str::<Vec<PackageReads>>(&set.reads.inflate()).unwrap_or_default() {
        known_reads.packages.push(package.package);
        let reads = package.reads.into_iter().map(|read| (read, KnownTool::Read));
        let dry_runs = package.dry_runs.into_iter().map(|dry_run| (dry_run, KnownTool::DryRun));
        let sql_reads = package.sql_reads.into_iter().map(|sql_read| (sql_read, KnownTool::SqlRead));
        for ((tool, hash), effect) in reads.chain(dry_runs).chain(sql_reads) {
            known_reads.add(tool, hash, effect);
        }
    }
    known_reads
}

impl UpstreamConfig {
    /// Returns the known reads of the server that the command or the address identifies, or else of the only server
    /// whose recipes the operator named for this one.
    pub fn known_reads(&self) -> Option<&'static KnownReads> {
        let named_set = match self.previews.sets.as_slice() {
            [name] => Some(*name),
            _ => None,
        };
        let set = shipped_recipes::find_by_target(&self.target).map(|set| set.name).or(named_set)?;
        SHIPPED_READS.iter().find(|known| known.recipe_set == set)
    }

    /// Returns the name of the recipe set for a server that calls itself `own_name`, unless the server is known. The name is
    /// only a hint, because any server can use it.
    pub fn suggested_set(&self, own_name: &str) -> Option<&'static str> {
        let set = SHIPPED_RECIPE_SETS.iter().find(|set| set.own_name == own_name)?;
        self.known_reads().is_none().then_some(set.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UpstreamTarget;
    use countersign_domain::recipes::Recipes;

    fn server(command: &str, sets: &[&'static str]) -> UpstreamConfig {
        let target = UpstreamTarget::Command {
            command: command.to_owned(),
            args: Vec::new(),
            env: Default::default(),
            cwd: None,
        };
        let previews = Recipes { sets: sets.to_vec(), ..Recipes::default() };
        UpstreamConfig { previews, ..UpstreamConfig::new("s", target) }
    }

    #[test]
    fn every_shipped_list_can_be_read() {
        for set in &SHIPPED_RECIPE_SETS {
            serde_saphyr::from_str::<Vec<PackageReads>>(&set.reads.inflate()).unwrap();
            let known = reads_of_set(set);
            assert!(!known.packages.is_empty(), "{}", set.name);
            for (tool, listed) in known.definitions() {
                for (hash, _) in listed {
                    let digits = hash.strip_prefix("sha256:").unwrap();
                    assert!(digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{tool}: {hash}");
                }
            }
        }
    }

    #[test]
    fn server_is_known_by_its_command_or_its_named_recipes() {
        let set = |server: &UpstreamConfig| server.known_reads().map(|known| known.recipe_set);
        assert_eq!(set(&server("mcp-server-git", &[])), Some("git"));
        assert_eq!(set(&server("mcp-server-git", &["memory"])), Some("git"), "the command decides");
        assert_eq!(set(&server("my-server", &["memory"])), Some("memory"));
        assert_eq!(set(&server("my-server", &["memory", "git"])), None, "it cannot be both");
        assert_eq!(set(&server("my-server", &[])), None);
    }

    #[test]
    fn own_name_of_a_server_is_only_a_hint() {
        let unknown = server("my-server", &[]);
        assert_eq!(unknown.suggested_set("memory-server"), Some("memory"));
        assert_eq!(unknown.known_reads(), None);
        assert_eq!(unknown.suggested_set("something"), None);
        assert_eq!(server("mcp-server-memory", &[]).suggested_set("memory-server"), None, "it is known already");
    }
}
