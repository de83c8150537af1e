//! `servers add|edit|remove`: changes servers in the configuration file, without a gateway.

use std::{collections::BTreeSet, io, path::Path};

use serde_json::{Value, json};

use crate::{
    args::{
        ConnectArgs,
        servers::{AddArgs, EditArgs, RemoveArgs, TargetArgs},
    },
    config::print_lines,
    exit::{Exit, Failure},
    output::{Output, Style, confirm, one_line, should_ask},
    read_input,
};
use countersign_config::{
    Environment, Flags,
    edit::{
        EditError, PackageRunner, ServerChange, Settings, find_server,
        hidden::{hide_secrets, restore_secrets},
        is_same_value,
        paste::{MAX_PASTE_BYTES, PastedServer, parse_servers},
        references::{disable_without_variables, replace_secrets, variables_in},
        set_in_section, set_key, to_yaml,
    },
    load::{config_path, load_text},
};
use countersign_reload::{
    config_file::{ConfigFile, FileError},
    file_edits::{FileEditError, PreparedEdit, ServerChanges, prepare_edit},
};

/// The keys that a new package, address or command replaces.
const REPLACED_KEYS: [&str; 8] = ["command", "args", "url", "serverUrl", "httpUrl", "replicas", "type", "transport"];

/// The configuration file with the flags and the environment that apply to it.
pub(super) struct ConfigEditor {
    pub file: ConfigFile,
    pub flags: Flags,
    pub env: Environment,
    json: bool,
}

impl ConfigEditor {
    pub(super) fn open(args: &ConnectArgs) -> Result<Self, Failure> {
        let (flags, env) = (args.data.flags(), Environment::from_process());
        let path = config_path(&flags, &env)?.ok_or_else(|| {
            Failure::new(Exit::Usage, "there is no home directory, so name the configuration file with --config FILE")
        })?;
        let file = ConfigFile::read(&path).map_err(|error| edit_failure(error, &[]))?;
        // The secrets of the file are then masked wherever lines are shown. It may not load here, without the gateway's variables.
        if let Ok(loaded) = load_text(&path, file.text(), &flags, &env) {
            loaded.register_secrets();
        }
        Ok(Self { file, flags, env, json: args.json })
    }

    /// Shows the changes, asks, and saves them.
    pub(super) fn save(&self, edit: &Edit, asks: bool, out: &mut Output) -> Result<Exit, Failure> {
        let PreparedEdit { text, loaded, lines } = prepare_edit(&self.file, &edit.changes, &self.flags, &self.env)
            .map_err(|error| edit_failure(error, &edit.changes.unmasked))?;
        if !self.json {
            out.write_styled_line(Style::Bold, &self.file.path().to_string_lossy())?;
            print_lines(&lines, out)?;
            for note in &edit.notes {
                out.write_styled_line(Style::Yellow, &format!("! {note}"))?;
            }
            out.finish()?;
        }
        if asks && !confirm("\nWrite this?", "write the file", "Nothing was changed.")? {
            return Ok(Exit::Failed);
        }
        self.file.save(&text).map_err(|error| edit_failure(error, &edit.changes.unmasked))?;
        let names: Vec<&str> = edit.changes.unmasked.iter().map(ServerChange::name).collect();
        if self.json {
            let answer = json!({ "file": self.file.path(), "servers": names, "unsetVariables": edit.unset, "notes": edit.notes });
            out.write_json(&answer.to_string())?;
            return Ok(Exit::Ok);
        }
        out.write_line("")?;
        out.write_line(&format!("Saved. A running gateway reads the file at once; {}.", self.backup_note()))?;
        for server in loaded.iter().flat_map(|loaded| &loaded.config.upstreams) {
            if names.contains(&server.name.as_str()) && !server.previews.sets.is_empty() {
                out.write_line(&format!(
                    "{name} is the {} server, so its writes have previews; `countersign servers accept {name} --known-reads` lets \
                     its known reads run without review.",
                    server.previews.sets.join(", "),
                    name = server.name,
                ))?;
            }
        }
        Ok(Exit::Ok)
    }

    fn backup_note(&self) -> String {
        let backup = self.file.backup_path();
        if backup.exists() {
            format!("the previous one is {}", backup.display())
        } else {
            "there was none before".to_owned()
        }
    }
}

/// The changes to make, with notes for the person who makes them.
#[derive(Default)]
pub(super) struct Edit {
    pub changes: ServerChanges,
    pub notes: Vec<String>,
    /// The variables that are not set here.
    pub unset: BTreeSet<String>,
}

impl Edit {
    /// Plans the addition of servers, with references in place of their secrets.
    pub(super) fn for_new_servers(editor: &ConfigEditor, servers: Vec<PastedServer>) -> Self {
        let mut edit = Self::default();
        let mut file_variables = variables_in(editor.file.text());
        for mut server in servers {
            replace_secrets(&server.name, &mut server.settings, &file_variables);
            let unset = disable_without_variables(&mut server.settings, &editor.env, &BTreeSet::new());
            file_variables.extend(variables_in(&to_yaml(&server.name, &server.settings)));
            edit.add_notes(&server, unset);
            edit.changes.push(ServerChange::Add { name: server.name, settings: server.settings });
        }
        edit
    }

    /// Adds the notes about a server and about the variables that it lacks.
    fn add_notes(&mut self, server: &PastedServer, unset: Vec<String>) {
        let name = &server.name;
        self.notes.extend(server.notes.iter().map(|note| format!("{name}: {note}")));
        if unset.is_empty() {
            return;
        }
        self.notes.push(format!(
            "{name} is disabled until {} {} set where the gateway is started; then: countersign servers edit {name} --enable",
            unset.join(", "),
            if unset.len() == 1 { "is" } else { "are" }
        ));
        self.unset.extend(unset);
    }
}

pub(super) fn add(args: &AddArgs, connect: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let editor = ConfigEditor::open(connect)?;
    let servers = read_target(&args.target, args.name.as_deref())?;
    let edit = Edit::for_new_servers(&editor, servers);
    let asks =
        args.target.from_json.is_some() && should_ask(connect.json, args.yes, Some("adding the servers of a text"))?;
    editor.save(&edit, asks, out)
}

pub(super) fn edit(args: &EditArgs, connect: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let editor = ConfigEditor::open(connect)?;
    let target = &args.target;
    let old = find_server(editor.file.text(), &args.name).map_err(|error| edit_failure(error, &[]))?;
    // The secrets that the file has stay as they are; only new ones are replaced.
    let mut server = PastedServer { name: args.name.clone(), settings: hide_secrets(&old), notes: Vec::new() };
    if target.from_json.is_some() {
        server = read_bare_target(target, &args.name)?;
    } else if target.is_given() {
        let new = read_bare_target(target, &args.name)?;
        let mut kept = std::mem::replace(&mut server.settings, new.settings);
        kept.retain(|key, _| !REPLACED_KEYS.contains(&key.as_str()));
        server.settings.append(&mut kept);
    }
    add_values(&mut server.settings, target)?;
    for key in &args.remove_env {
        remove_below(&mut server.settings, "env", key);
    }
    if args.enable {
        server.settings.shift_remove("disabled");
    }
    if args.disable {
        set_key(&mut server.settings, "disabled", true);
    }
    replace_secrets(&server.name, &mut server.settings, &variables_in(editor.file.text()));
    let old_variables = variables_in(&to_yaml(&args.name, &old));
    let unset = if args.enable {
        Vec::new()
    } else {
        disable_without_variables(&mut server.settings, &editor.env, &old_variables)
    };
    let masked_settings = server.settings.clone();
    restore_secrets(&mut server.settings, &old)
        .map_err(|key| Failure::new(Exit::Usage, format!("give the values of {} again", one_line(&key))))?;
    if is_same_value(&server.settings.clone().into(), &old.into()) {
        return Err(Failure::new(Exit::Usage, "nothing to change; see `countersign servers edit --help`"));
    }
    let mut edit = Edit::default();
    edit.add_notes(&server, unset);
    edit.changes.masked.push(ServerChange::Replace { name: server.name.clone(), settings: masked_settings });
    edit.changes.unmasked.push(ServerChange::Replace { name: server.name, settings: server.settings });
    let asks =
        target.from_json.is_some() && should_ask(connect.json, args.yes, Some("changing a server to that of a text"))?;
    editor.save(&edit, asks, out)
}

pub(super) fn remove(args: &RemoveArgs, connect: &ConnectArgs, out: &mut Output) -> Result<Exit, Failure> {
    let editor = ConfigEditor::open(connect)?;
    find_server(editor.file.text(), &args.name).map_err(|error| edit_failure(error, &[]))?;
    let asks = should_ask(connect.json, args.yes, Some("removing a server"))?;
    let mut edit = Edit::default();
    edit.changes.push(ServerChange::Remove { name: args.name.clone() });
    editor.save(&edit, asks, out)
}

/// Reads the servers that the arguments describe.
pub(super) fn read_target(target: &TargetArgs, name: Option<&str>) -> Result<Vec<PastedServer>, Failure> {
    let mut servers = match (name, &target.from_json) {
        (Some(name), _) => vec![read_bare_target(target, name)?],
        (None, Some(source)) => parse_source(source, None)?,
        (None, None) => return Err(Failure::new(Exit::Usage, "name the server")),
    };
    if servers.len() > 1 && !(target.env.is_empty() && target.header.is_empty()) {
        return Err(Failure::new(Exit::Usage, "the text has several servers, so give no --env and no --header"));
    }
    servers.iter_mut().try_for_each(|server| add_values(&mut server.settings, target))?;
    Ok(servers)
}

/// Reads the only server that the arguments describe, without the variables and headers of the arguments.
fn read_bare_target(target: &TargetArgs, name: &str) -> Result<PastedServer, Failure> {
    let usage = |message: &str| Failure::new(Exit::Usage, message);
    if let Some(source) = &target.from_json {
        let mut servers = parse_source(source, Some(name))?;
        return match servers.pop() {
            Some(server) if servers.is_empty() => Ok(PastedServer { name: name.to_owned(), ..server }),
            _ => Err(usage("the text has several servers, so give no name")),
        };
    }
    let mut settings = Settings::new();
    match (&target.package, &target.url, target.command.split_first()) {
        (Some(package), None, _) => {
            let (command, mut args) = package_command(package)?;
            args.extend(target.command.iter().cloned());
            set_key(&mut settings, "command", command);
            set_key(&mut settings, "args", args);
        }
        (None, Some(url), None) => set_key(&mut settings, "url", url.as_str()),
        (None, None, Some((command, args))) => {
            set_key(&mut settings, "command", command.as_str());
            if !args.is_empty() {
                set_key(&mut settings, "args", args);
            }
        }
        _ => {
            return Err(usage(
                "say what the server is: --package PACKAGE, --url URL, --from-json FILE, or -- COMMAND ARGS",
            ));
        }
    }
    Ok(PastedServer { name: name.to_owned(), settings, notes: Vec::new() })
}

/// Returns the command that runs a package, and its arguments up to the package.
fn package_command(package: &str) -> Result<(&'static str, Vec<String>), Failure> {
    let (kind, name) = match package.split_once(':') {
        Some((kind @ ("npm" | "pypi" | "docker"), name)) => (kind, name),
        _ if package.starts_with('@') => ("npm", package),
        _ => ("", package),
    };
    if name.is_empty() || name.starts_with('-') {
        return Err(Failure::new(Exit::Usage, format!("{} is not the name of a package", one_line(package))));
    }
    let PackageRunner { command, leading_args, .. } = PackageRunner::for_registry(kind).ok_or_else(|| {
        let message = format!("say where the package is: npm:{name}, pypi:{name} or docker:{name}");
        Failure::new(Exit::Usage, one_line(&message))
    })?;
    Ok((command, leading_args.iter().copied().chain([name]).map(str::to_owned).collect()))
}

/// Adds the variables and headers of the arguments.
pub(super) fn add_values(settings: &mut Settings, target: &TargetArgs) -> Result<(), Failure> {
    for pair in &target.env {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| Failure::new(Exit::Usage, "write --env KEY=VALUE, or --env 'KEY=${NAME}' for a secret"))?;
        set_in_section(settings, "env", key, value);
    }
    for pair in &target.header {
        let (key, value) =
            pair.split_once(':').ok_or_else(|| Failure::new(Exit::Usage, "write --header 'NAME: VALUE'"))?;
        set_in_section(settings, "headers", key.trim(), value.trim());
    }
    Ok(())
}

/// Reads servers from a file, or from stdin for `-`. A single server without a name gets this one.
fn parse_source(source: &Path, name: Option<&str>) -> Result<Vec<PastedServer>, Failure> {
    let text = read_input(source, MAX_PASTE_BYTES as u64 + 1).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Failure::new(Exit::Failed, "the text is not UTF-8"),
        _ => Failure::new(Exit::Unavailable, format!("{}: {error}", one_line(&source.to_string_lossy()))),
    })?;
    parse_servers(&text, name).map_err(|error| Failure::new(Exit::Failed, one_line(&error.to_string())))
}

/// Removes a key from a section of a server, and the section if it is then empty.
fn remove_below(settings: &mut Settings, section: &str, key: &str) {
    if let Some(Value::Object(entries)) = settings.get_mut(section) {
        entries.shift_remove(key);
        if entries.is_empty() {
            settings.shift_remove(section);
        }
    }
}

/// Converts the reason why the file was not edited into a failure, with the lines to paste if that helps.
fn edit_failure(error: impl Into<FileEditError>, changes: &[ServerChange]) -> Failure {
    let error = error.into();
    let exit = match &error {
        FileEditError::File(FileError::Changed(_)) => Exit::Conflict,
        FileEditError::File(_) | FileEditError::NotRecorded(_) => Exit::Unavailable,
        FileEditError::Edit(EditError::NoSuchServer(_)) => Exit::NotFound,
        FileEditError::Edit(EditError::Syntax { .. } | EditError::UserInAddress(_)) | FileEditError::Invalid(_) => {
            Exit::Config
        }
        FileEditError::Edit(_) | FileEditError::Overridden(_) | FileEditError::NoFile => Exit::Failed,
    };
    let lines = match &error {
        FileEditError::Edit(EditError::NotEditable { yaml, .. }) => yaml.clone(),
        FileEditError::File(FileError::ReadOnly { .. }) => changes.iter().map(ServerChange::to_yaml).collect(),
        _ => String::new(),
    };
    let mut message = one_line(&error.to_string()).into_owned();
    if !lines.is_empty() {
        message.push_str("\nWrite this into it:\n\n");
        for line in lines.lines() {
            message.push_str(&format!("{}\n", one_line(line)));
        }
    }
    Failure::new(exit, message.trim_end())
}
