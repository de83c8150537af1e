//! Reads the servers from the files of desktop clients, and never writes these files.

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::args::servers::ClientName;
use countersign_config::{
    Environment,
    edit::paste::{PastedServer, parse_json, read_servers},
    tree,
};

/// The size limit of a file, in bytes. Claude Code keeps the history of all projects in its file.
const MAX_FILE_BYTES: u64 = 32 << 20;

/// A server of a client.
pub(super) struct FoundServer {
    /// The client's name for people.
    pub client: String,
    pub server: PastedServer,
}

/// The format of a client's file.
#[derive(Clone, Copy)]
enum Format {
    /// JSON, possibly with comments.
    Json,
    Toml,
    Yaml,
}

/// The files in which a client may keep its servers.
struct ClientFiles {
    client: ClientName,
    label: &'static str,
    format: Format,
    paths: Vec<PathBuf>,
}

/// Returns the files of all clients. None is in the working directory, which may belong to somebody else.
fn client_files(env: &Environment) -> Vec<ClientFiles> {
    use ClientName::{ClaudeCode, ClaudeDesktop, Codex, Cursor, Gemini, Goose, Vscode};
    let below = |folder: Option<PathBuf>, paths: &[&str]| -> Vec<PathBuf> {
        folder.map(|folder| paths.iter().map(|path| folder.join(path)).collect()).unwrap_or_default()
    };
    let home = |paths: &[&str]| below(env.home(), paths);
    // Below ~/.config, or ~/Library/Application Support on macOS.
    let settings = |paths: &[&str]| {
        let mac = env.home().map(|home| home.join("Library/Application Support"));
        [below(env.config_home(), paths), below(mac, paths)].concat()
    };
    let codex = match env.var("CODEX_HOME") {
        Ok(Some(folder)) if Path::new(folder).is_absolute() => vec![Path::new(folder).join("config.toml")],
        _ => home(&[".codex/config.toml"]),
    };
    let files = |client, label, format, paths| ClientFiles { client, label, format, paths };
    let code = ["Code/User/mcp.json", "Code - Insiders/User/mcp.json", "VSCodium/User/mcp.json"];
    vec![
        files(ClaudeDesktop, "Claude Desktop", Format::Json, settings(&["Claude/claude_desktop_config.json"])),
        files(ClaudeCode, "Claude Code", Format::Json, home(&[".claude.json"])),
        files(Cursor, "Cursor", Format::Json, home(&[".cursor/mcp.json"])),
        files(Vscode, "VS Code", Format::Json, settings(&code)),
        files(Codex, "Codex", Format::Toml, codex),
        files(Gemini, "Gemini CLI", Format::Json, home(&[".gemini/settings.json"])),
        files(Goose, "Goose", Format::Yaml, below(env.config_home(), &["goose/config.yaml"])),
    ]
}

/// Returns the servers of all clients or of one, each name once, and notes about what was left out.
pub(super) fn find_servers(env: &Environment, only: Option<ClientName>) -> (Vec<FoundServer>, Vec<String>) {
    let (mut all, mut notes) = (Vec::<FoundServer>::new(), Vec::new());
    for files in client_files(env).iter().filter(|files| only.is_none_or(|client| client == files.client)) {
        for path in &files.paths {
            let servers = match read_file(path, files.format) {
                Ok(servers) => servers,
                Err(reason) => {
                    notes.push(format!("{} of {}: {reason}", path.display(), files.label));
                    continue;
                }
            };
            for server in servers {
                match all.iter().find(|found| found.server.name == server.name) {
                    None => all.push(FoundServer { client: files.label.to_owned(), server }),
                    Some(first) if first.server.settings == server.settings => {}
                    Some(first) => notes.push(format!(
                        "{} of {} differs from that of {}, which comes first",
                        server.name, files.label, first.client
                    )),
                }
            }
        }
    }
    (all, notes)
}

/// Reads the servers of a file. A file that does not exist has none.
fn read_file(path: &Path, format: Format) -> Result<Vec<PastedServer>, String> {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
        Ok(meta) if !meta.is_file() => return Err("not a file".to_owned()),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("the file is too large".to_owned());
    }
    let text = String::from_utf8(bytes).map_err(|_| "the file is not UTF-8".to_owned())?;
    let root = match format {
        Format::Json => sections_of_json(&parse_json(&text).ok_or("the file is not JSON")?),
        Format::Toml => toml::from_str::<Value>(&text).map_err(|_| "the file is not TOML")?,
        Format::Yaml => tree::parse(&text).map_err(|error| error.message)?.node.to_json(),
    };
    // A file without servers is not a problem.
    Ok(read_sections(&root))
}

/// Returns the servers in the settings of a client, including those of the projects of Claude Code, below `mcpServers`.
fn sections_of_json(root: &Value) -> Value {
    let mut servers = serde_json::Map::new();
    let projects = root.get("projects").and_then(Value::as_object).into_iter().flat_map(serde_json::Map::values);
    let sections = [root].into_iter().chain(projects);
    for section in sections.flat_map(|section| [section.get("mcpServers"), section.get("servers")]) {
        for (name, server) in section.and_then(Value::as_object).into_iter().flatten() {
            if !servers.contains_key(name) {
                servers.insert(name.clone(), server.clone());
            }
        }
    }
    serde_json::json!({ "mcpServers": servers })
}

/// Reads the servers below the key that the settings have for them.
fn read_sections(root: &Value) -> Vec<PastedServer> {
    let keys = ["mcpServers", "mcp_servers", "extensions"];
    let section = keys.iter().find_map(|key| root.get(key)).cloned().unwrap_or_default();
    read_servers(&serde_json::json!({ "mcpServers": section }), None).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(home: &Path, path: &str, text: &str) {
        let path = home.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn servers_of_every_client_are_found() {
        let home = tempfile::tempdir().unwrap();
        let server = |name: &str| format!("\"{name}\": {{\"command\": \"{name}-server\"}}");
        let block = |name: &str| format!("{{\"mcpServers\": {{{}}}}}", server(name));
        for (path, text) in [
            (".config/Claude/claude_desktop_config.json", block("desktop")),
            (
                ".claude.json",
                format!("{{\"projects\": {{\"/p\": {}}}, \"mcpServers\": {{{}}}}}", block("project"), server("code")),
            ),
            (".cursor/mcp.json", block("cursor")),
            (".config/Code/User/mcp.json", format!("{{ // mine\n \"servers\": {{{}}},}}", server("vscode"))),
            (".codex/config.toml", "[mcp_servers.codex]\ncommand = \"codex-server\"\nenv = { A = \"1\" }\n".to_owned()),
            (".gemini/settings.json", block("gemini")),
            (
                ".config/goose/config.yaml",
                "extensions:\n  goose: { type: stdio, cmd: goose-server, enabled: true }\n  dev: { type: builtin }\n"
                    .to_owned(),
            ),
        ] {
            write(home.path(), path, &text);
        }
        let env = Environment::new(Path::new("/"), &[("HOME", home.path().to_str().unwrap())]);
        let names = |only| {
            let (found, notes) = find_servers(&env, only);
            assert_eq!(notes, Vec::<String>::new());
            found.into_iter().map(|found| format!("{}: {}", found.client, found.server.name)).collect::<Vec<_>>()
        };
        let expected = [
            "Claude Desktop: desktop",
            "Claude Code: code",
            "Claude Code: project",
            "Cursor: cursor",
            "VS Code: vscode",
            "Codex: codex",
            "Gemini CLI: gemini",
            "Goose: goose",
        ];
        assert_eq!(names(None), expected);
        assert_eq!(names(Some(ClientName::Goose)), ["Goose: goose"]);
    }

    #[test]
    fn unusable_files_are_named_and_others_are_read() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), ".cursor/mcp.json", "{");
        write(home.path(), ".gemini/settings.json", "{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}");
        fs::create_dir_all(home.path().join(".claude.json")).unwrap();
        let env = Environment::new(Path::new("/"), &[("HOME", home.path().to_str().unwrap())]);
        let (found, notes) = find_servers(&env, None);
        assert_eq!(found.len(), 1);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].contains("not a file") && notes[1].contains("not JSON"), "{notes:?}");
    }
}
