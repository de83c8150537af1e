//! Collects the secrets of a loaded configuration, so that texts can be redacted ([`countersign_protocol::redact`]).

use url::Url;

use super::{
    Config, Secret, UpstreamOAuth, UpstreamTarget, environment::Environment, servers::redaction::has_secret_part,
    variables::CREDENTIAL_PREFIX,
};

/// Parts of a name that mark its value as a secret, besides those of [`has_secret_part`].
const SECRET_NAME_HINTS: [&str; 4] = ["key", "pass", "auth", "private"];
/// Variables that never hold secrets: whole names, and suffixes of names.
const PLAIN_VARIABLES: [&str; 10] =
    ["HOME", "USER", "LOGNAME", "PATH", "PWD", "SHELL", "TMPDIR", "HOSTNAME", "LANG", "TERM"];
const PLAIN_VARIABLE_SUFFIXES: [&str; 8] = ["_HOST", "_PORT", "_DIR", "_PATH", "_HOME", "_ENV", "_LEVEL", "_REGION"];

/// Minimum bytes of a webhook's path to be treated as a credential.
const MIN_SECRET_PATH_LEN: usize = 16;

/// Returns the values of variables and credentials that the configuration uses, and all values whose keys or names indicate
/// credentials.
pub(super) fn collect_secrets(config: &Config, env: &Environment) -> Vec<Secret> {
    let used_variables = env.used_variables().into_iter().filter(|(name, _)| !is_plain_variable(name));
    let mut all: Vec<Secret> = used_variables.map(|(_, value)| Secret(value)).collect();
    for server in &config.upstreams {
        match &server.target {
            UpstreamTarget::Command { env, .. } => {
                all.extend(env.iter().filter(|(name, _)| suggests_secret(name)).map(|(_, secret)| secret.clone()));
            }
            UpstreamTarget::Url { urls, headers, .. } => {
                for (_, secret) in headers.iter().filter(|(name, _)| suggests_secret(name)) {
                    // Also the credential alone, without its scheme (`Bearer`).
                    let credential = secret.0.split_whitespace().next_back();
                    all.extend(credential.map(|credential| Secret(credential.to_owned())));
                    all.push(secret.clone());
                }
                all.extend(urls.iter().flat_map(secrets_in_url));
            }
        }
        all.extend(server.oauth.iter().flat_map(UpstreamOAuth::secrets).cloned());
    }
    for hook in &config.webhooks.enabled {
        let url = &hook.url.0;
        // The path may be a credential unless it is too short.
        let path = Some(url.path()).filter(|path| path.len() >= MIN_SECRET_PATH_LEN);
        all.extend(path.map(|path| Secret(path.to_owned())));
        all.extend(secrets_in_url(url));
    }
    if let Some(url) = config.store_server().and_then(|(url, _)| Url::parse(url).ok()) {
        all.extend(secrets_in_url(&url));
    }
    let docs = &config.modules.docs;
    all.extend([&docs.embeddings, &docs.generation].into_iter().flatten().filter_map(|model| model.key.clone()));
    all.extend(config.auth.oidc.iter().filter_map(|provider| provider.client_secret.clone()));
    let introspection = config.auth.tokens.iter().filter_map(|issuer| issuer.introspection.as_ref());
    all.extend(introspection.map(|client| client.secret.clone()));
    all
}

fn is_plain_variable(name: &str) -> bool {
    if name.starts_with(CREDENTIAL_PREFIX) {
        return false;
    }
    PLAIN_VARIABLES.contains(&name)
        || name.starts_with("XDG_")
        || PLAIN_VARIABLE_SUFFIXES.iter().any(|end| name.ends_with(end))
}

/// Returns `true` if the value of this name should be masked. That includes all values that listings of servers hide.
fn suggests_secret(name: &str) -> bool {
    // The name of an author, as in `GIT_AUTHOR_NAME`, is not a secret.
    let words = name.to_lowercase().replace("author_", "");
    !PLAIN_VARIABLES.contains(&name)
        && (has_secret_part(name) || SECRET_NAME_HINTS.iter().any(|hint| words.contains(hint)))
}

/// Returns the password of a URL, and the values of query parameters with secret names.
fn secrets_in_url(url: &Url) -> impl Iterator<Item = Secret> {
    let password = url.password().map(str::to_owned);
    let query = url.query_pairs().filter(|(name, _)| suggests_secret(name)).map(|(_, value)| value.into_owned());
    password.into_iter().chain(query).map(Secret)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::suggests_secret;
    use crate::{Environment, Flags, Secret, load, load::load_text};
    use countersign_protocol::redact::redact;

    #[test]
    fn secrets_are_collected_from_variables_headers_and_names() {
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
        let loaded = load(&flags, &Environment::new(Path::new("/"), &vars)).unwrap_or_else(|error| panic!("{error}"));
        let mut found: Vec<String> = loaded.secrets.into_iter().map(|Secret(value)| value).collect();
        found.sort();
        found.dedup();
        let expected = ["Bearer key-one", "key-one", "literal-one", "pass-one", "query-one", "where-one"];
        assert_eq!(found, expected);
    }

    #[test]
    fn values_of_names_with_secret_parts_are_masked() {
        for name in [
            "API_KEY_2",
            "Authorization",
            "AUTHOR_TOKEN",
            "BEARER",
            "DB_PWD",
            "GIT_AUTHOR_KEY_ID",
            "PRIVATE_PEM",
            "X-Hub-Signature",
            "token[]",
        ] {
            assert!(suggests_secret(name), "{name}");
        }
        for name in ["GIT_AUTHOR_NAME", "MODE", "PWD", "X-Tenant"] {
            assert!(!suggests_secret(name), "{name}");
        }
    }

    #[test]
    fn text_that_is_only_validated_masks_nothing() {
        let flags = Flags { data: Some("d".into()), ..Flags::default() };
        let env = Environment::new(Path::new("/"), &[("NAME", "not-masked-2")]);
        let text = "mcpServers: { a: { command: x, args: ['${NAME}'], env: { MY_KEY: not-masked-1 } } }";
        let loaded = load_text(Path::new("/c.yaml"), text, &flags, &env).unwrap_or_else(|error| panic!("{error}"));
        assert!(env.used_variables().is_empty());
        assert_eq!(redact("not-masked-1 not-masked-2"), "not-masked-1 not-masked-2");
        loaded.register_secrets();
        assert_eq!(redact("not-masked-1 not-masked-2"), "[secret] [secret]");
    }
}
