//! The secrets that a configuration resolved, to be kept out of texts ([`countersign_protocol::redact`]).

use url::Url;

use super::{Config, Secret, UpstreamTarget, environment::Environment};

/// Words in a name that say that its value is a secret.
const TELLING: [&str; 9] = ["key", "token", "secret", "pass", "auth", "credential", "cookie", "dsn", "private"];
/// Variables that are no secrets, however they are used: whole names, and how names end.
const PLAIN: [&str; 10] = ["HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "HOSTNAME", "LANG", "TERM"];
const PLAIN_ENDS: [&str; 8] = ["_HOST", "_PORT", "_DIR", "_PATH", "_HOME", "_ENV", "_LEVEL", "_REGION"];

/// Bytes of the path of a webhook that may be a credential.
const MIN_PATH: usize = 16;

/// What came out of variables, and what stands in a place, or below a name, of credentials.
pub(super) fn of(config: &Config, env: &Environment) -> Vec<Secret> {
    let mut all: Vec<String> =
        env.used().into_iter().filter(|(name, _)| !is_plain(name)).map(|(_, value)| value).collect();
    for server in &config.upstreams {
        match &server.target {
            UpstreamTarget::Command { env, .. } => {
                let secrets = env.iter().filter(|(name, _)| is_telling(name));
                all.extend(secrets.map(|(_, Secret(value))| value.clone()));
            }
            UpstreamTarget::Url { urls, headers, .. } => {
                for (_, Secret(value)) in headers.iter().filter(|(name, _)| is_telling(name)) {
                    // The credential alone too, without what precedes it (`Bearer`).
                    all.extend(value.split_whitespace().next_back().map(str::to_owned));
                    all.push(value.clone());
                }
                urls.iter().for_each(|url| all.extend(in_url(url)));
            }
        }
    }
    for hook in &config.webhooks {
        // Its path may be a credential, unless it is too short for one.
        all.extend(Some(hook.url.0.path()).filter(|path| path.len() >= MIN_PATH).map(str::to_owned));
        all.extend(in_url(&hook.url.0));
    }
    if let Some(url) = config.store_server().and_then(|(url, _)| Url::parse(url).ok()) {
        all.extend(in_url(&url));
    }
    let docs = &config.modules.docs;
    let keys = [&docs.embeddings, &docs.generation].into_iter().flatten().filter_map(|model| model.key.as_ref());
    all.extend(keys.map(|Secret(key)| key.clone()));
    all.into_iter().map(Secret).collect()
}

fn is_plain(name: &str) -> bool {
    PLAIN.contains(&name) || name.starts_with("XDG_") || PLAIN_ENDS.iter().any(|end| name.ends_with(end))
}

fn is_telling(name: &str) -> bool {
    let name = name.to_lowercase();
    TELLING.iter().any(|word| name.contains(word)) && !name.contains("author_")
}

/// The password of an address, and what is given below a telling name in its query.
fn in_url(url: &Url) -> impl Iterator<Item = String> {
    let password = url.password().map(str::to_owned);
    let query = url.query_pairs().filter(|(name, _)| is_telling(name)).map(|(_, value)| value.into_owned());
    password.into_iter().chain(query)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Environment, Flags, Secret, load};

    #[test]
    fn secrets_come_from_variables_headers_and_telling_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(
            &file,
            "store: { url: 'postgres://u:pass-one@db.example/c' }\nmcpServers:\n  a: { command: x, args: ['--to', \
             '${WHERE}', '${APP_HOST}'], env: { MODE: plain-one, API_TOKEN: literal-one } }\n  b:\n    url: https://b.example/mcp?api_key=query-one&q=query-two\n    headers: \
             { Authorization: 'Bearer ${KEY}', X-Tenant: tenant-one }\n",
        )
        .unwrap();
        let vars = [("WHERE", "where-one"), ("APP_HOST", "host-one"), ("KEY", "key-one"), ("UNUSED", "unused-one")];
        let flags = Flags { config: Some(file), data: Some("d".into()), ..Flags::default() };
        let loaded = load(&flags, &Environment::of(Path::new("/"), &vars)).unwrap_or_else(|error| panic!("{error}"));
        let mut found: Vec<String> = loaded.secrets.into_iter().map(|Secret(value)| value).collect();
        found.sort();
        found.dedup();
        let expected = ["Bearer key-one", "key-one", "literal-one", "pass-one", "query-one", "where-one"];
        assert_eq!(found, expected);
    }
}
