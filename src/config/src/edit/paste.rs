//! Reads servers from text that people paste: an `mcpServers` block, a file of another client, or an entry of the MCP registry
//! (`server.json`). Keys that the gateway does not know are left out, and a note says so.

use serde_json::Value;

use super::{Settings, registry_entry, set_in_section, set_key, words_of};
use crate::{error::quoted, load::strip_byte_order_mark, servers::KEYS, tree};

/// Maximum size in bytes of a text with servers.
pub const MAX_PASTE_BYTES: usize = 256 << 10;
/// Maximum number of servers in a text.
pub const MAX_PASTED_SERVERS: usize = 100;

/// The keys below which clients keep their servers.
const SECTION_KEYS: [&str; 5] = ["mcpServers", "mcp_servers", "servers", "context_servers", "extensions"];
/// The keys by which a map is recognized as a server.
const RECOGNIZED_KEYS: [&str; 6] = ["command", "cmd", "url", "serverUrl", "httpUrl", "uri"];
/// The name of this program, which clients may have as a server.
const OWN_PROGRAM: &str = "countersign";

/// A server as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct PastedServer {
    pub name: String,
    /// The settings, with the keys of the configuration file.
    pub settings: Settings,
    /// Notes for a person, such as the keys that were left out.
    pub notes: Vec<String>,
}

impl PastedServer {
    /// Returns `true` if the command of the server starts this gateway.
    pub fn is_gateway(&self) -> bool {
        let words = ["command", "args"].iter().filter_map(|key| self.settings.get(*key)).flat_map(words_of);
        words.filter_map(|word| word.rsplit('/').next()).any(|name| name.split('@').next() == Some(OWN_PROGRAM))
    }
}

/// The reason why no server could be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasteError {
    #[error("this is neither JSON nor YAML: {0}")]
    Syntax(String),
    #[error("the text is longer than {MAX_PASTE_BYTES} bytes")]
    TooLarge,
    #[error("there are more than {MAX_PASTED_SERVERS} servers")]
    TooMany,
    #[error("no server was found; paste an `mcpServers` block, one server with `command` or `url`, or a `server.json`")]
    NothingFound,
    #[error("the server has no name; give one")]
    NameMissing,
    #[error("{0}")]
    Unusable(String),
}

/// Reads the servers of a text. `name` is the name of a server that has none of its own.
///
/// # Errors
/// The text is not JSON or YAML, is too large, or contains no server.
pub fn parse_servers(text: &str, name: Option<&str>) -> Result<Vec<PastedServer>, PasteError> {
    if text.len() > MAX_PASTE_BYTES {
        return Err(PasteError::TooLarge);
    }
    read_servers(&parse(text)?, name)
}

/// Reads the servers of a parsed text ([`parse_servers`]).
///
/// # Errors
/// There are too many servers, or none.
pub fn read_servers(root: &Value, name: Option<&str>) -> Result<Vec<PastedServer>, PasteError> {
    let Value::Object(entries) = root else { return Err(PasteError::NothingFound) };
    if let Some(registry_entry) = registry_entry::find(entries) {
        return Ok(vec![registry_entry::read(registry_entry, name)?]);
    }
    if let Some(servers) = SECTION_KEYS.iter().find_map(|key| entries.get(*key)?.as_object()) {
        return read_map(servers);
    }
    if let Some(section @ Value::Object(_)) = entries.get("mcp") {
        return read_servers(section, name);
    }
    if is_server(entries) {
        let own_name = entries.get("name").and_then(Value::as_str);
        let name = name.or(own_name).ok_or(PasteError::NameMissing)?;
        return Ok(vec![read_server(name, entries)]);
    }
    read_map(entries)
}

/// Reads the servers of a map by name. Entries of another kind are left out.
fn read_map(servers: &Settings) -> Result<Vec<PastedServer>, PasteError> {
    if servers.len() > MAX_PASTED_SERVERS {
        return Err(PasteError::TooMany);
    }
    let read = |(name, server): (&String, &Value)| match server {
        Value::Object(entries) if is_server(entries) => Some(read_server(name, entries)),
        _ => None,
    };
    let found: Vec<PastedServer> = servers.iter().filter_map(read).collect();
    if found.is_empty() { Err(PasteError::NothingFound) } else { Ok(found) }
}

fn is_server(entries: &Settings) -> bool {
    RECOGNIZED_KEYS.iter().any(|key| entries.get(*key).is_some_and(Value::is_string))
}

/// Parses YAML, JSON, or JSON with comments and trailing commas.
fn parse(text: &str) -> Result<Value, PasteError> {
    let text = strip_byte_order_mark(text);
    let tree = tree::parse(text).or_else(|error| tree::parse(&without_json_comments(text)).map_err(|_| error));
    match tree {
        Ok(tree) => Ok(tree.node.to_json()),
        // JSON may write a character as two escapes (a surrogate pair), which YAML does not know.
        Err(error) => parse_json(text).ok_or(PasteError::Syntax(error.message)),
    }
}

/// Parses JSON that may have comments and trailing commas.
pub fn parse_json(text: &str) -> Option<Value> {
    let plain = without_json_comments(strip_byte_order_mark(text));
    plain.parse().or_else(|_| without_trailing_commas(&plain).parse()).ok()
}

/// Returns JSON without commas before a closing bracket.
fn without_trailing_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', ',']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let token_len = if from.starts_with('"') { quoted_len(from) } else { 1 };
        let (token, after) = from.split_at(token_len);
        if token != "," || !after.trim_start().starts_with(['}', ']']) {
            out.push_str(token);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns the text without `//` and `/* */` comments outside of quoted strings.
fn without_json_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['"', '/']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let consumed_len = if from.starts_with("//") {
            from.find('\n').unwrap_or(from.len())
        } else if from.starts_with("/*") {
            out.push(' ');
            from.get(2..).and_then(|inside| inside.find("*/")).map_or(from.len(), |end| end + 4)
        } else {
            let token_len = if from.starts_with('"') { quoted_len(from) } else { 1 };
            out.push_str(from.get(..token_len).unwrap_or_default());
            token_len
        };
        rest = from.get(consumed_len..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// Returns the length of the quoted string at the beginning of the text.
fn quoted_len(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Converts the settings of any client to those of the configuration file.
fn read_server(name: &str, entries: &Settings) -> PastedServer {
    let (mut settings, mut notes) = (Settings::new(), Vec::new());
    let mut left_out = Vec::new();
    for (key, value) in entries {
        match (key.as_str(), value) {
            ("name" | "description" | "display_name" | "$schema", _) | ("disabled", Value::Bool(false)) => {}
            ("type" | "transport", Value::String(kind)) if kind.eq_ignore_ascii_case("stdio") => {}
            ("type", Value::String(kind)) if matches!(kind.as_str(), "streamableHttp" | "streamable_http") => {
                set_key(&mut settings, "type", "streamable-http");
            }
            ("enabled", Value::Bool(enabled)) => {
                if !enabled {
                    set_key(&mut settings, "disabled", true);
                }
            }
            ("autoApprove" | "alwaysAllow" | "trust", _) => {
                notes.push(format!("{key} is left out: the policy decides what runs without review"));
            }
            // The unit is not known: some clients use milliseconds, others seconds.
            ("timeout", Value::Number(_)) => left_out.push(key.as_str()),
            ("cmd", _) => set_key(&mut settings, "command", convert_value(value)),
            ("uri", _) => set_key(&mut settings, "url", convert_value(value)),
            ("env" | "envs", Value::Object(variables)) => set_all(&mut settings, "env", variables),
            ("env_keys" | "env_vars", Value::Array(names)) => {
                for name in names.iter().filter_map(Value::as_str) {
                    set_in_section(&mut settings, "env", name, format!("${{{name}}}"));
                }
            }
            ("headers" | "http_headers" | "requestHeaders", Value::Object(headers)) => {
                set_all(&mut settings, "headers", headers);
            }
            ("env_http_headers", Value::Object(headers)) => {
                for (header, variable) in headers.iter().filter_map(|(key, value)| Some((key, value.as_str()?))) {
                    set_in_section(&mut settings, "headers", header, format!("${{{variable}}}"));
                }
            }
            ("bearer_token_env_var", Value::String(variable)) => {
                set_in_section(&mut settings, "headers", "Authorization", format!("Bearer ${{{variable}}}"));
            }
            ("includeTools" | "enabled_tools", Value::Array(_)) => {
                set_in_section(&mut settings, "tools", "allow", value.clone());
            }
            ("excludeTools" | "disabled_tools", Value::Array(_)) => {
                set_in_section(&mut settings, "tools", "deny", value.clone());
            }
            (known, _) if KEYS.contains(&known) => set_key(&mut settings, known, convert_value(value)),
            (other, _) => left_out.push(other),
        }
    }
    if !left_out.is_empty() {
        let names: Vec<String> = left_out.iter().take(10).map(|key| quoted(key)).collect();
        notes.push(format!("left out, because the gateway does not know it: {}", names.join(", ")));
    }
    PastedServer { name: name.to_owned(), settings, notes }
}

/// Sets keys in a section of a server.
fn set_all(settings: &mut Settings, section: &str, entries: &Settings) {
    for (key, value) in entries {
        set_in_section(settings, section, key, convert_value(value));
    }
}

/// Returns the value with texts in place of the integers in lists, and with variables in place of the inputs for which some
/// clients ask (`${input:NAME}`).
fn convert_value(value: &Value) -> Value {
    match value {
        Value::Array(items) => {
            let convert = |item: &Value| match item {
                Value::Number(number) if !number.is_f64() => number.to_string().into(),
                other => convert_value(other),
            };
            items.iter().map(convert).collect()
        }
        Value::Object(entries) => {
            Value::Object(entries.iter().map(|(key, value)| (key.clone(), convert_value(value))).collect())
        }
        Value::String(text) => replace_inputs(text).into(),
        other => other.clone(),
    }
}

/// Replaces `${input:api-key}` with `${API_KEY}`.
fn replace_inputs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, from)) = rest.split_once("${input:") {
        let Some((name, after)) = from.split_once('}') else { break };
        out.push_str(&format!("{before}${{{}}}", super::references::variable_name(&[name])));
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::to_yaml;

    fn yaml(text: &str) -> String {
        let servers = parse_servers(text, Some("given")).unwrap_or_else(|error| panic!("{error}: {text}"));
        servers.iter().map(|server| to_yaml(&server.name, &server.settings).replace("mcpServers:\n", "")).collect()
    }

    #[test]
    fn blocks_of_all_clients_are_read() {
        let expected = "  files:\n    command: npx\n    args: [\"-y\", server, \"7\"]\n    env:\n      A: b\n";
        let server = r#""files": {"command": "npx", "args": ["-y", "server", 7], "env": {"A": "b"}}"#;
        for text in [
            format!("{{\"mcpServers\": {{{server}}}}}"),
            format!("{{\"servers\": {{{server}}}, \"inputs\": []}}"),
            format!("{{\"mcp\": {{\"servers\": {{{server}}}}}}}"),
            format!("{{{server}}}"),
            server.to_owned(),
            format!("// a comment\n{{ /* and \" one */ \"mcpServers\": {{{server},}},}}"),
            "mcpServers:\n  files: { command: npx, args: [-y, server, 7], env: { A: b } }\n".to_owned(),
            "extensions:\n  files: { type: stdio, enabled: true, cmd: npx, args: [-y, server, 7], envs: { A: b } }\n"
                .to_owned(),
        ] {
            assert_eq!(yaml(&text), expected, "{text}");
        }
        assert_eq!(
            yaml(r#"{"url": "https://a.example/mcp", "type": "streamableHttp"}"#).lines().next(),
            Some("  given:")
        );
    }

    #[test]
    fn client_settings_become_gateway_settings() {
        let text = r#"{"mcpServers": {"a": {"httpUrl": "https://a.example/mcp", "timeout": 30000, "trust": true,
            "headers": {"X": "${input:api-key}"}, "includeTools": ["get_*"], "excludeTools": ["b"], "enabled": false,
            "bearer_token_env_var": "TOKEN", "odd": 1}}}"#;
        let server = parse_servers(text, None).unwrap().remove(0);
        let expected = "mcpServers:\n  a:\n    httpUrl: https://a.example/mcp\n    headers:\n      X: \"${API_KEY}\"\n      \
                        Authorization: \"Bearer ${TOKEN}\"\n    tools:\n      allow: [\"get_*\"]\n      deny: [b]\n    \
                        disabled: true\n";
        assert_eq!(to_yaml("a", &server.settings), expected);
        assert!(server.notes[0].starts_with("trust is left out"), "{:?}", server.notes);
        assert!(server.notes[1].ends_with("`timeout`, `odd`"), "{:?}", server.notes);
    }

    #[test]
    fn gateway_itself_is_recognized() {
        let is_gateway = |text: &str| parse_servers(text, Some("x")).unwrap()[0].is_gateway();
        assert!(is_gateway(r#"{"command": "/usr/bin/countersign", "args": ["stdio"]}"#));
        assert!(is_gateway(r#"{"command": "npx", "args": ["-y", "countersign@0.1.0", "stdio"]}"#));
        assert!(!is_gateway(r#"{"command": "npx", "args": ["-y", "countersign-helper"]}"#));
    }

    #[test]
    fn texts_without_servers_are_refused() {
        for text in ["", "7", "{}", "[]", "{\"mcpServers\": {}}", "{\"a\": {\"b\": 1}}", "mcpServers: text"] {
            assert_eq!(parse_servers(text, None), Err(PasteError::NothingFound), "{text}");
        }
        assert!(matches!(parse_servers("{\"a\": ", None), Err(PasteError::Syntax(_))));
        assert_eq!(parse_servers("{\"command\": \"x\"}", None), Err(PasteError::NameMissing));
        assert_eq!(parse_servers(&" ".repeat(MAX_PASTE_BYTES + 1), None), Err(PasteError::TooLarge));
        let many: String = (0..=MAX_PASTED_SERVERS).map(|n| format!("a{n}: {{command: x}}\n")).collect();
        assert_eq!(parse_servers(&many, None), Err(PasteError::TooMany));
        assert!(parse_servers(&"[".repeat(10_000), None).is_err());
    }
}
