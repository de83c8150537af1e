//! The environment variables that a child process inherits.
//!
//! The list is closed: other variables, and all credentials, reach a child only through its own configuration. To add a
//! variable, add it to the list here and to the table in `docs/servers.md`.

use std::ffi::{OsStr, OsString};

/// Variables about the user, the locale and program locations. All variables that begin with `LC_` are included too.
const BASIC_VARIABLES: [&str; 7] = ["PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME"];

/// Variables that package runners (npx, uvx, pipx, bunx, deno) and their HTTP clients need for the network and their
/// caches. They are inherited in upper and lower case, as the programs read them.
pub const RUNNER_VARIABLES: [&str; 49] = [
    // Certificates.
    "NODE_EXTRA_CA_CERTS",
    "NODE_USE_SYSTEM_CA",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NIX_SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NPM_CONFIG_CAFILE",
    "PIP_CERT",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "DENO_CERT",
    "DENO_TLS_CA_STORE",
    // Proxies.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "NODE_USE_ENV_PROXY",
    "NPM_CONFIG_PROXY",
    "NPM_CONFIG_HTTPS_PROXY",
    "NPM_CONFIG_NOPROXY",
    "PIP_PROXY",
    // Caches and installed packages.
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "NPM_CONFIG_CACHE",
    "NPM_CONFIG_PREFIX",
    "NPM_CONFIG_OFFLINE",
    "NPM_CONFIG_PREFER_OFFLINE",
    "COREPACK_HOME",
    "PNPM_HOME",
    "BUN_INSTALL",
    "BUN_INSTALL_CACHE_DIR",
    "DENO_DIR",
    "PIP_CACHE_DIR",
    "PIPX_HOME",
    "UV_CACHE_DIR",
    "UV_TOOL_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "UV_OFFLINE",
    // Registries.
    "NPM_CONFIG_REGISTRY",
    "BUN_CONFIG_REGISTRY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "UV_INDEX",
    "UV_INDEX_URL",
    "UV_EXTRA_INDEX_URL",
    "UV_PYTHON_INSTALL_MIRROR",
];

/// The variables that a child inherits, and those withheld because of credentials.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct InheritedEnvironment {
    pub variables: Vec<(OsString, OsString)>,
    /// Names of listed variables whose URL contains a user or a password (`http://me:secret@proxy:3128`).
    pub withheld: Vec<String>,
}

impl InheritedEnvironment {
    /// Selects the variables of this process that a child inherits.
    pub fn from_process() -> Self {
        Self::new(std::env::vars_os())
    }

    /// Selects the variables that a child inherits.
    pub fn new(all: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let mut inherited = Self::default();
        for (variable, value) in all {
            let Some(name) = variable.to_str() else { continue };
            let is_for_runners = is_runner_variable(name);
            if is_for_runners && has_credentials(&value) {
                inherited.withheld.push(name.to_owned());
            } else if is_for_runners || BASIC_VARIABLES.contains(&name) || name.starts_with("LC_") {
                inherited.variables.push((variable, value));
            }
        }
        inherited
    }
}

fn is_runner_variable(name: &str) -> bool {
    RUNNER_VARIABLES.iter().any(|listed| *listed == name || listed.to_ascii_lowercase() == name)
}

/// Returns `true` if a URL in the value has a user or a password before its host.
fn has_credentials(value: &OsStr) -> bool {
    value.to_string_lossy().split_whitespace().any(|address| {
        // A proxy may be written without a scheme, and an index may have a name (`private=https://…`).
        let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        authority.contains('@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(all: &[(&str, &str)]) -> InheritedEnvironment {
        InheritedEnvironment::new(all.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
    }

    fn names(inherited: &InheritedEnvironment) -> Vec<&str> {
        inherited.variables.iter().map(|(name, _)| name.to_str().unwrap()).collect()
    }

    #[test]
    fn environment_without_listed_variables_is_empty() {
        let all = ["TERM", "COUNTERSIGN_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "NODE_OPTIONS", "NPM_TOKEN"];
        let all = all.map(|name| (name, "x"));
        assert_eq!(inherited(&all), InheritedEnvironment::default());
        // Programs read no variables in mixed case.
        assert_eq!(inherited(&[("Https_Proxy", "x"), ("path", "x")]), InheritedEnvironment::default());
    }

    #[test]
    fn page_lists_exactly_the_inherited_variables() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/servers.md");
        let page = std::fs::read_to_string(page).unwrap();
        let part = page
            .split("## Know what a server gets from the environment")
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        let rows =
            part.lines().filter(|line| line.starts_with("| ")).flat_map(|line| line.split('`').skip(1).step_by(2));
        let listed: Vec<&str> = rows.filter(|name| *name != "LC_*").collect();
        let expected: Vec<&str> = BASIC_VARIABLES.into_iter().chain(RUNNER_VARIABLES).collect();
        assert_eq!(sorted(listed), sorted(expected));
    }

    fn sorted(mut names: Vec<&str>) -> Vec<&str> {
        names.sort_unstable();
        names
    }

    #[test]
    fn environment_keeps_variables_of_package_runners() {
        let all = [
            "PATH",
            "LC_ALL",
            "UV_CACHE_DIR",
            "NODE_EXTRA_CA_CERTS",
            "HTTPS_PROXY",
            "https_proxy",
            "npm_config_registry",
        ];
        assert_eq!(names(&inherited(&all.map(|name| (name, "x")))), all);
    }

    #[test]
    fn addresses_with_credentials_are_withheld() {
        let inherited = inherited(&[
            ("HTTPS_PROXY", "http://me:secret@proxy:3128"),
            ("http_proxy", "me@proxy:3128"),
            ("ALL_PROXY", "socks5://proxy:1080"),
            ("UV_INDEX", "public=https://a.example/simple private=https://me:secret@b.example/simple"),
            ("PIP_INDEX_URL", "https://a.example/simple/@scope"),
            ("LC_ALL", "de_DE@euro"),
        ]);
        assert_eq!(inherited.withheld, ["HTTPS_PROXY", "http_proxy", "UV_INDEX"]);
        assert_eq!(names(&inherited), ["ALL_PROXY", "PIP_INDEX_URL", "LC_ALL"]);
    }
}
