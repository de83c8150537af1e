//! Replaces secrets in plain text with references to variables, so that the configuration file holds none.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Settings, set_key, texts_in, to_scalar_text, to_yaml};
use crate::{
    environment::Environment,
    servers::{
        URL_KEYS, oauth,
        redaction::{
            SECRET_PLACEHOLDER, is_secret_flag, is_secret_name, path_start, redact_argument, redact_credentials,
            redact_url, text_before_secret,
        },
    },
    variables,
};

/// The schemes before a credential in a header.
const SCHEMES: [&str; 6] = ["Bearer ", "bearer ", "Basic ", "basic ", "Token ", "token "];
/// Endings of names whose values are paths.
const PATH_NAME_SUFFIXES: [&str; 5] = ["file", "path", "dir", "directory", "folder"];
/// Maximum characters of the extension of a file.
const MAX_EXTENSION_CHARS: usize = 10;

/// A secret that was replaced by a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretReference {
    /// The variable that must hold the secret.
    pub variable: String,
    /// The key of the server at which the secret stood, such as `env.API_KEY`.
    pub key: String,
}

/// Returns the name of a variable for these parts, in capitals: `GITHUB_API_KEY` for `github` and `api-key`.
pub(super) fn variable_name(parts: &[&str]) -> String {
    let parts = parts.iter().map(|part| {
        let words = part.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_ascii_uppercase).collect::<Vec<_>>().join("_")
    });
    let name = parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("_");
    // The gateway reads variables that begin with its own name as keys of the configuration.
    match name.as_str() {
        "" => "SECRET".to_owned(),
        _ if name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with("COUNTERSIGN") => format!("MCP_{name}"),
        _ => name,
    }
}

/// Returns the names of all variables that a text refers to.
pub fn variables_in(text: &str) -> BTreeSet<String> {
    let names = text.split("${").skip(1).map(|part| {
        let part = part.strip_prefix("env:").unwrap_or(part);
        part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_owned()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// Disables a server that requires variables which the environment does not set, because the file would not be valid otherwise.
/// Returns these variables. Those in `known` are not checked.
pub fn disable_without_variables(settings: &mut Settings, env: &Environment, known: &BTreeSet<String>) -> Vec<String> {
    let unset = unset_variables(settings, env, known);
    if !unset.is_empty() {
        set_key(settings, "disabled", true);
    }
    unset
}

/// Returns the variables that the settings of a server require and that the environment does not set, except those in `known`.
fn unset_variables(settings: &Settings, env: &Environment, known: &BTreeSet<String>) -> Vec<String> {
    let names: BTreeSet<String> =
        settings.values().flat_map(texts_in).flat_map(variables::required_variables).collect();
    let is_set = |name: &String| matches!(env.var_or_empty(name), Ok(Some(_)));
    names.into_iter().filter(|name| !known.contains(name) && !is_set(name)).collect()
}

/// Replaces everything in the settings of a server that looks like a secret, and returns the references.
/// `file_variables` holds the variables that the file uses; only this server's own ones are used again.
pub fn replace_secrets(
    server: &str,
    settings: &mut Settings,
    file_variables: &BTreeSet<String>,
) -> Vec<SecretReference> {
    let own_variables = variables_in(&to_yaml(server, settings));
    let used_names = file_variables.difference(&own_variables).cloned().collect();
    let mut replacer = Replacer { server, used_names, is_masking: false, replaced: Vec::new() };
    replacer.replace_in(settings);
    replacer.replaced
}

/// Returns the settings with a placeholder for everything that [`replace_secrets`] would replace. Everything else remains
/// visible, such as a variable that loads code.
pub fn mask_likely_secrets(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    Replacer { server: "", used_names: BTreeSet::new(), is_masking: true, replaced: Vec::new() }
        .replace_in(&mut settings);
    settings
}

/// Returns `true` if the text is a secret, or has one beside its references.
fn is_secret_value(name: &str, text: &str) -> bool {
    let text = variables::fill_defaults(text);
    let is_address = text.contains("://");
    // In an address with references, only some parts can be secret, whatever its name says.
    let is_named = is_secret_name(name) && !(is_address && text.contains("${")) && !variables::has_only_labels(&text);
    let text = remove_referenced_parts(&text);
    is_named || has_credential(&text) || is_address && redact_url(&text) != text || has_named_secret(&text)
}

/// Returns `true` if the text, apart from its references, has a word that looks like a credential.
fn has_credential(text: &str) -> bool {
    let literals = variables::remove_variables(text);
    redact_credentials(&literals) != literals
}

/// Returns `true` if a pair such as `a=b` has a secret value, or a credential in place of its name.
fn is_secret_pair(pair: &str) -> bool {
    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
    // A route may precede the name, as in `#/route?token=a`.
    let plain_name = name.rsplit(['#', '/', '?']).next().unwrap_or_default();
    has_credential(name) || !value.is_empty() && is_secret_value(plain_name, value)
}

/// Returns `true` if the text is a path below a folder that a variable names, as in `${HOME}/key.json`. The name of the text says
/// so, or the extension at its end.
fn is_referenced_path(name: &str, text: &str) -> bool {
    let (folder, path) = text.split_at(text.rfind('}').map_or(0, |end| end + 1));
    let is_path = text.starts_with("${")
        && variables::has_only_labels(folder)
        && path.starts_with('/')
        && !text.contains(char::is_whitespace);
    let name = name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase();
    let is_extension = |text: &str| {
        text.len() <= MAX_EXTENSION_CHARS
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let file = path.rsplit('/').next().unwrap_or_default();
    let has_extension = || file.rsplit_once('.').is_some_and(|(_, extension)| is_extension(extension));
    is_path && (PATH_NAME_SUFFIXES.iter().any(|suffix| name.ends_with(suffix)) || has_extension())
}

/// Returns `true` if a field of the text names a secret that is no reference, as in `Server=db;Password=hunter2`.
fn has_named_secret(text: &str) -> bool {
    let mut fields = text.split([' ', ';', ',']).filter(|field| field.contains('='));
    fields.any(|field| text_before_secret(field).is_some())
}

/// Returns an address without its user and its query if their secrets are references. Other texts are returned unchanged.
fn remove_referenced_parts(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://").filter(|_| text.contains("${")) else { return text.to_owned() };
    let (address, query) = rest.split_once('?').map_or((rest, None), |(address, query)| (address, Some(query)));
    let (authority, path) = address.split_at(address.find('/').unwrap_or(address.len()));
    let is_referenced = |user: &str| {
        let literals = variables::remove_variables(user);
        user.contains("${") && (literals.is_empty() || literals.ends_with(':'))
    };
    let host = authority.rsplit_once('@').filter(|(user, _)| is_referenced(user)).map_or(authority, |(_, host)| host);
    let is_secret = |pair: &str| pair.split_once('=').is_none_or(|(name, value)| is_secret_value(name, value));
    match query.filter(|query| query.split('&').any(is_secret)) {
        Some(query) => format!("{scheme}://{host}{path}?{query}"),
        None => format!("{scheme}://{host}{path}"),
    }
}

/// Replaces the secrets of one server.
struct Replacer<'a> {
    server: &'a str,
    used_names: BTreeSet<String>,
    /// `true` to write placeholders instead of references.
    is_masking: bool,
    replaced: Vec<SecretReference>,
}

impl Replacer<'_> {
    fn replace_in(&mut self, settings: &mut Settings) {
        for (key, value) in settings {
            match (key.as_str(), value) {
                ("env", Value::Object(entries)) => self.replace_values("env", entries, |name, text| {
                    // The name of a path may be that of the secret in the file.
                    is_secret_value(if is_referenced_path(name, text) { "" } else { name }, text)
                }),
                ("headers", Value::Object(entries)) => self.replace_values("headers", entries, is_secret_value),
                ("oauth", Value::Object(entries)) => self.replace_values("oauth", entries, |name, text| {
                    oauth::SECRET_KEYS.contains(&name) && !variables::has_only_labels(text)
                }),
                ("args", Value::Array(items)) => {
                    let mut previous = String::new();
                    for item in items {
                        let Value::String(text) = item else { continue };
                        let before = std::mem::replace(&mut previous, text.clone());
                        self.replace_argument(text, &before);
                    }
                }
                (key, Value::String(text)) if URL_KEYS.contains(&key) => self.replace_address(key, text),
                ("replicas", Value::Array(items)) => {
                    for item in items {
                        let Value::String(text) = item else { continue };
                        self.replace_address(key, text);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns a reference to the first variable of these names that nothing else uses, or else to a numbered one.
    fn create_reference(&mut self, key: String, names: &[String]) -> String {
        if self.is_masking {
            return SECRET_PLACEHOLDER.to_owned();
        }
        let numbered = (2..).map(|number| format!("{}_{number}", names.last().map_or("SECRET", String::as_str)));
        let mut names = names.iter().cloned().chain(numbered);
        let variable = names.find(|name| !self.used_names.contains(name)).unwrap_or_default();
        self.used_names.insert(variable.clone());
        let reference = format!("${{{variable}}}");
        self.replaced.push(SecretReference { variable, key });
        reference
    }

    /// Replaces the values of the entries that `is_secret` names, and keeps the scheme before a credential.
    fn replace_values(&mut self, section: &str, entries: &mut Settings, is_secret: impl Fn(&str, &str) -> bool) {
        for (name, value) in entries {
            if value.is_number() && is_secret(name, &to_scalar_text(value)) {
                *value = to_scalar_text(value).into();
            }
            let Value::String(text) = value else { continue };
            if text.is_empty() || text.contains(SECRET_PLACEHOLDER) || !is_secret(name, text) {
                continue;
            }
            let scheme = SCHEMES.iter().find(|scheme| text.starts_with(**scheme)).copied().unwrap_or_default();
            let full_name = variable_name(&[self.server, name]);
            let names = if section == "env" { vec![variable_name(&[name]), full_name] } else { vec![full_name] };
            *text = format!("{scheme}{}", self.create_reference(format!("{section}.{name}"), &names));
        }
    }

    /// Replaces the secret in an argument. `before` is the argument before it, which may be a flag.
    fn replace_argument(&mut self, text: &mut String, before: &str) {
        let judged = remove_referenced_parts(&variables::fill_defaults(text));
        let is_harmless = redact_argument(&judged, before) == variables::hide_values(&judged);
        if is_harmless || text.contains(SECRET_PLACEHOLDER) {
            return;
        }
        let follows_flag = is_secret_flag(before) && !text.starts_with('-');
        let label = if follows_flag { Some("") } else { text_before_secret(&judged) };
        let value_name = if follows_flag { before } else { label.unwrap_or_default() };
        let is_kept = |value: &str| variables::has_only_labels(value) || is_referenced_path(value_name, value);
        if label.and_then(|label| judged.strip_prefix(label)).is_some_and(is_kept) {
            return;
        }
        let start = if follows_flag || text.contains("://") { None } else { text_before_secret(text) };
        let start = start.unwrap_or_default().to_owned();
        let flag = Some(before).filter(|before| before.starts_with('-') && !before.contains(['=', ':', ' ']));
        let name = Some(start.as_str()).filter(|start| !start.is_empty()).or(flag);
        let name = name.filter(|name| !name.contains(char::is_whitespace) && name.len() < 64).unwrap_or("secret");
        let names = [variable_name(&[self.server, name])];
        *text = format!("{start}{}", self.create_reference("args".to_owned(), &names));
    }

    /// Replaces secrets in the path, the query and the fragment of a URL.
    fn replace_address(&mut self, key: &str, text: &mut String) {
        if text.contains(SECRET_PLACEHOLDER) {
            return;
        }
        // A fragment stays with what it follows: `?password=a#b` may hold one secret.
        let (address, rest) = text.split_at(text.find(['?', '#']).unwrap_or(text.len()));
        let (mark, pairs) = rest.split_at(rest.len().min(1));
        let (origin, path) = address.split_at(path_start(address));
        let names = [variable_name(&[self.server, "secret"])];
        let replace = |part: &str| {
            if has_credential(part) { self.create_reference(key.to_owned(), &names) } else { part.to_owned() }
        };
        let parts: Vec<String> = path.split('/').map(replace).collect();
        *text = format!("{origin}{}{mark}{}", parts.join("/"), self.replace_in_pairs(key, pairs));
    }

    /// Returns pairs such as `a=b&c=d` without their secrets.
    fn replace_in_pairs(&mut self, key: &str, pairs: &str) -> String {
        let pairs: Vec<String> = pairs
            .split('&')
            .map(|pair| {
                // What follows a `#` is the end of the value, or a pair of its own.
                if !is_secret_pair(pair) && !pair.split('#').any(is_secret_pair) {
                    return pair.to_owned();
                }
                let name = pair.split_once('=').map(|(name, _)| name).filter(|name| !has_credential(name));
                let names = [variable_name(&[self.server, name.unwrap_or("secret")])];
                let start = name.map(|name| format!("{name}=")).unwrap_or_default();
                format!("{start}{}", self.create_reference(key.to_owned(), &names))
            })
            .collect();
        pairs.join("&")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::paste::parse_servers;

    fn replaced(text: &str, file_variables: &[&str]) -> (String, Vec<String>) {
        let mut server = parse_servers(text, Some("a-b")).unwrap().remove(0);
        let file_variables = file_variables.iter().map(|name| (*name).to_owned()).collect();
        let references = replace_secrets("a-b", &mut server.settings, &file_variables);
        let yaml = to_yaml("a-b", &server.settings);
        (yaml, references.into_iter().map(|reference| format!("{} {}", reference.key, reference.variable)).collect())
    }

    #[test]
    fn secrets_become_references() {
        let text = r#"{"command": "npx", "args": ["-y", "server", "--api-key", "hunter2", "--token=abc", "--port", "80",
            "postgres://u:p@h/d", "ghp_0123456789abcdef"], "env": {"API_TOKEN": "x1", "LEVEL": "warn", "KEPT": "${KEPT}",
            "OTHER": "sk-0123456789abcdef", "MAX_TOKENS_NOTE": ""}}"#;
        let (yaml, references) = replaced(text, &[]);
        for secret in ["hunter2", "abc", "u:p@h", "ghp_", "x1", "sk-"] {
            assert!(!yaml.contains(secret), "{secret}: {yaml}");
        }
        assert!(yaml.contains(r#""--token=${A_B_TOKEN}""#) && yaml.contains("LEVEL: warn"), "{yaml}");
        assert_eq!(
            references,
            [
                "args A_B_API_KEY",
                "args A_B_TOKEN",
                "args A_B_SECRET",
                "args A_B_SECRET_2",
                "env.API_TOKEN API_TOKEN",
                "env.OTHER OTHER"
            ]
        );
    }

    #[test]
    fn secrets_beside_references_are_replaced() {
        let text = r#"{"command": "x", "args": ["postgres://${DBUSER}:Sup3rSecret@db/x", "--token=${P}Sup3rSecret",
            "--api-key", "${X:-Sup3rSecret}", "sh -c 'TOKEN=Sup3rSecret exec x ${Y}'"], "env": {"API_KEY": "${P}Sup3rSecret",
            "B_KEY": "${X:-Sup3rSecret}", "C_URL": "postgres://${DBUSER}:Sup3rSecret@db/x",
            "D_URL": "https://h/?a=${A}&key=Sup3rSecret"}, "headers": {"Authorization": "Bearer Sup3rSecret${P}"}}"#;
        let (yaml, references) = replaced(text, &[]);
        assert!(!yaml.contains("Sup3rSecret") && references.len() == 9, "{yaml} {references:?}");
        let (yaml, _) =
            replaced(r#"{"url": "https://h/${P}?key=${X:-Sup3rSecret}&a=${P}Sup3rSecret&token=${P}x"}"#, &[]);
        assert!(yaml.contains("https://h/${P}?key=${A_B_KEY}&a=${P}Sup3rSecret&token=${A_B_TOKEN}"), "{yaml}");
    }

    #[test]
    fn secrets_after_variables_and_in_fragments_are_replaced() {
        let text = r#"{"command": "x", "args": ["--token", "${A}/hunter2", "--header=Authorization: Bearer ${T}/hunter2"],
            "env": {"API_TOKEN": "${P}/hunter2", "API_KEY": "${H}/services/T0/hunter2", "B_KEY": "hunter:${X}",
            "C_KEY": "${A}/hunter2.Xy", "TOKEN_FILE": "${A}/sk-hunter2hunter2"},
            "headers": {"X-Secret": "${A}/hunter2", "X-Token": "${A}/hunter2.json", "X-Key": "Bearer ${T}/hunter2"}}"#;
        let (yaml, references) = replaced(text, &[]);
        assert!(!yaml.contains("hunter") && references.len() == 10, "{yaml} {references:?}");
        let (yaml, _) = replaced(r#"{"url": "https://h/mcp?token=${A}/hunter2&b=c#token=hunter2&part=2"}"#, &[]);
        assert!(yaml.contains("https://h/mcp?token=${A_B_TOKEN}&b=${A_B_B}&part=2"), "{yaml}");
    }

    #[test]
    fn secrets_anywhere_after_the_path_of_a_url_are_replaced() {
        for (end, kept) in [
            ("#sk-ant-api03-aaaaaaaaaaaaaaaaaaaaaaaa", "#${A_B_SECRET}"),
            ("#/route?token=Sup3rSecret", "#/route?token=${A_B_ROUTE_TOKEN}"),
            ("#part=2&token=Sup3rSecret", "#part=2&token=${A_B_TOKEN}"),
            ("?x=y#ghp_aaaaaaaaaaaaaaaa", "?x=${A_B_X}"),
            ("?password=pa#ssword", "?password=${A_B_PASSWORD}"),
            ("?password=#ssword", "?password=${A_B_PASSWORD}"),
            ("?password=pa#https://h/${A}", "?password=${A_B_PASSWORD}"),
            ("?a=b&#token=Sup3rSecret", "?a=b&#token=${A_B_TOKEN}"),
            ("#token=#Sup3rSecret", "#token=${A_B_TOKEN}"),
            ("?ghp_aaaaaaaaaaaaaaaa", "?${A_B_SECRET}"),
            ("?ghp_aaaaaaaaaaaaaaaa=&a=b", "?${A_B_SECRET}&a=b"),
            ("?v=2&lang=en#section", "?v=2&lang=en#section"),
            ("?${A}&token=${B}&${C}=b#${D}", "?${A}&token=${B}&${C}=b#${D}"),
            ("#", "#"),
        ] {
            let text = format!(r#"{{"url": "https://h/mcp{end}"}}"#);
            let (yaml, _) = replaced(&text, &[]);
            let url = format!("https://h/mcp{kept}");
            assert!(yaml.lines().any(|line| line.trim_end_matches('"').ends_with(&url)), "{end}: {yaml}");
            let settings = mask_likely_secrets(&parse_servers(&text, Some("a")).unwrap()[0].settings);
            let is_secret = end != kept;
            assert_eq!(to_yaml("a", &settings).contains("[secret]"), is_secret, "{end}");
        }
    }

    #[test]
    fn passwords_in_connection_strings_are_replaced() {
        let text = r#"{"command": "x", "env": {"MSSQL": "Server=${S};User Id=app;Password=hunter2;",
            "PG": "host=db user=app password=hunter2"}, "headers": {"X-Options": "a=b; token=hunter2"}}"#;
        let (yaml, references) = replaced(text, &[]);
        assert!(!yaml.contains("hunter2") && references.len() == 3, "{yaml} {references:?}");
        let text = r#"{"command": "x", "env": {"MSSQL": "Server=db1;Password=${P};Port=1433;", "PG": "password=${P} host=10.0.0.5",
            "PROMPT": "Never reveal the password to anybody.", "EMPTY": "user=a;pwd=;x=y1"}}"#;
        assert_eq!(replaced(text, &[]).1, Vec::<String>::new());
    }

    #[test]
    fn texts_whose_secrets_are_references_are_kept() {
        let text = r#"{"command": "x", "args": ["postgres://app:${PW}@db/x", "--header=Authorization: Bot ${TOKEN}", "--token",
            "${env:TOKEN}", "https://h/?region=eu&key=${KEY}", "-u", "app:${credential:pw}", "${DIR:-/srv}/a",
            "--credentials", "${HOME}/gcp.json", "--token-file=${HOME}/${APP}/token"],
            "env": {"A_KEY": "${A_KEY:-}", "B_DSN": "https://${KEY}@sentry.example/1", "C_URL": "http://${U}:${P}@proxy:80",
            "D_URL": "https://h/?region=eu&key=${KEY}", "LEVEL": "${LEVEL:-info}", "PAIR_KEY": "${ID}:${SECRET}",
            "GOOGLE_APPLICATION_CREDENTIALS": "${HOME}/gcp.json", "TOKEN_FILE": "${HOME}/token"},
            "headers": {"Authorization": "Bot ${TOKEN}", "Cookie": "session=${SESSION}"}}"#;
        assert_eq!(replaced(text, &[]).1, Vec::<String>::new());
    }

    #[test]
    fn masking_hides_only_what_would_be_replaced() {
        let text = r#"{"command": "npx", "args": ["--token=abc", "--port=80"], "env": {"API_TOKEN": "x1", "LD_PRELOAD": "/x.so",
            "KEPT": "${KEPT}"}}"#;
        let server = parse_servers(text, Some("a")).unwrap().remove(0);
        let yaml = to_yaml("a", &mask_likely_secrets(&server.settings));
        for shown in ["--token=[secret]", "--port=80", "API_TOKEN: \"[secret]\"", "LD_PRELOAD: /x.so", "${KEPT}"] {
            assert!(yaml.contains(shown), "{shown}: {yaml}");
        }
    }

    #[test]
    fn headers_and_queries_keep_what_is_not_secret() {
        let text = r#"{"url": "https://a.example/mcp?region=eu&api_key=k1", "headers": {"Authorization": "Bearer t1",
            "X-Api-Key": "k2", "X-Region": "eu"}}"#;
        let (yaml, references) = replaced(text, &["A_B_API_KEY"]);
        assert!(yaml.contains("?region=eu&api_key=${A_B_API_KEY_2}"), "{yaml}");
        assert!(
            yaml.contains(r#"Authorization: "Bearer ${A_B_AUTHORIZATION}""#) && yaml.contains("X-Region: eu"),
            "{yaml}"
        );
        assert_eq!(references.len(), 3, "{references:?}");
    }

    #[test]
    fn secrets_in_paths_and_numbers_are_replaced() {
        let text = r#"{"url": "https://a0123456789bcdef01234.example/s/a0123456789bcdef01234/mcp", "headers": {"X-Api-Key": 12345678, "N": 1}}"#;
        let (yaml, references) = replaced(text, &[]);
        assert!(yaml.contains("https://a0123456789bcdef01234.example/s/${A_B_SECRET}/mcp"), "{yaml}");
        assert!(yaml.contains("${A_B_X_API_KEY}") && yaml.contains("N: 1"), "{yaml}");
        assert_eq!(references.len(), 2, "{references:?}");
    }

    #[test]
    fn taken_variable_gets_no_second_meaning() {
        let (yaml, _) = replaced(r#"{"command": "x", "env": {"API_KEY": "one"}}"#, &["API_KEY"]);
        assert!(yaml.contains("API_KEY: \"${A_B_API_KEY}\""), "{yaml}");
        assert_eq!(variables_in("a: ${ONE} b: ${env:TWO:-x} $${"), ["ONE", "TWO"].map(str::to_owned).into());
        assert_eq!(variable_name(&["countersign-key"]), "MCP_COUNTERSIGN_KEY");
    }

    #[test]
    fn variables_that_nobody_sets_are_named() {
        let server =
            parse_servers(r#"{"command": "x", "args": ["${A}", "${B:-c}", "$${C}"], "env": {"D": "${D}"}}"#, Some("x"));
        let env = Environment::new(std::path::Path::new("/"), &[("D", "")]);
        assert_eq!(unset_variables(&server.unwrap()[0].settings, &env, &BTreeSet::new()), ["A"]);
    }
}
