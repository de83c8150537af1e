//! Reads an entry of the MCP registry (`server.json`): a package that a runner starts, or a remote address.

use serde_json::Value;

use super::{
    Settings,
    paste::{PasteError, PastedServer},
    references::variable_name,
    set_key,
};
use crate::error::quoted;

/// Returns the text of a key, unless it is empty.
fn text_in<'a>(entries: &'a Settings, key: &str) -> Option<&'a str> {
    entries.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// Returns the maps in the list of a key.
fn maps_in<'a>(entries: &'a Settings, key: &str) -> impl Iterator<Item = &'a Settings> + use<'a> {
    entries.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

fn is_true(entries: &Settings, key: &str) -> bool {
    entries.get(key) == Some(&Value::Bool(true))
}

/// Returns the entry if these are those of a `server.json`, or of a response of the registry that contains one.
pub(super) fn find(entries: &Settings) -> Option<&Settings> {
    if let Some(Value::Object(server)) = entries.get("server") {
        return find(server);
    }
    let has_list = |key| entries.get(key).is_some_and(Value::is_array);
    (has_list("packages") || has_list("remotes")).then_some(entries)
}

/// Reads the first package that the gateway can start, or else the first remote address.
pub(super) fn read(entries: &Settings, name: Option<&str>) -> Result<PastedServer, PasteError> {
    let own_name = text_in(entries, "name").and_then(|name| name.rsplit('/').next());
    let name = name.or(own_name).ok_or(PasteError::NameMissing)?;
    let mut server = PastedServer { name: name.to_owned(), settings: Settings::new(), notes: Vec::new() };
    let mut packages = maps_in(entries, "packages");
    let package = packages.find_map(|package| Some((package, PackageRunner::for_package(package)?)));
    if let Some((package, runner)) = package {
        server.settings = read_package(package, &runner)?;
    } else if let Some(remote) = maps_in(entries, "remotes").next() {
        let url = text_in(remote, "url").ok_or(PasteError::NothingFound)?;
        set_key(&mut server.settings, "url", url);
        if text_in(remote, "type") == Some("sse") {
            set_key(&mut server.settings, "type", "sse");
        }
        let headers = read_variables(maps_in(remote, "headers"), |header| variable_name(&[name, header]))?;
        if !headers.is_empty() {
            set_key(&mut server.settings, "headers", headers);
        }
    } else {
        let message = "the entry has no package of npm, PyPI or a container registry, and no remote address";
        return Err(PasteError::Unusable(message.to_owned()));
    }
    Ok(server)
}

/// The program that starts packages of a registry.
pub struct PackageRunner {
    /// The name of the program.
    pub command: &'static str,
    /// The arguments before the package.
    pub leading_args: &'static [&'static str],
    /// The text between the identifier of a package and its version.
    version_separator: &'static str,
}

impl PackageRunner {
    /// Returns the runner for packages of `npm`, `pypi` or `docker` (`oci`), or `None` for another registry.
    pub fn for_registry(registry: &str) -> Option<Self> {
        let (command, leading_args, version_separator): (_, &[&str], _) = match registry {
            "npm" => ("npx", &["-y"], "@"),
            "pypi" => ("uvx", &[], "=="),
            "oci" | "docker" => ("docker", &["run", "-i", "--rm"], ":"),
            _ => return None,
        };
        Some(Self { command, leading_args, version_separator })
    }

    fn for_package(package: &Settings) -> Option<Self> {
        Self::for_registry(text_in(package, "registryType").or_else(|| text_in(package, "registry_name"))?)
    }
}

/// Returns the settings of a server that is a package.
fn read_package(package: &Settings, runner: &PackageRunner) -> Result<Settings, PasteError> {
    let identifier = text_in(package, "identifier").or_else(|| text_in(package, "name"));
    let identifier = identifier.ok_or(PasteError::NothingFound)?;
    let variables = read_variables(maps_in(package, "environmentVariables"), |name| variable_name(&[name]))?;
    let mut args: Vec<String> = runner.leading_args.iter().map(|arg| (*arg).to_owned()).collect();
    if runner.command == "docker" {
        args.extend(variables.keys().flat_map(|name| ["-e".to_owned(), name.clone()]));
    }
    args.extend(read_arguments(maps_in(package, "runtimeArguments"))?);
    args.push(match text_in(package, "version").filter(|version| *version != "latest") {
        // The identifier may have a version already. The colon of a host's port and the `@` of an npm scope are not in its
        // last part.
        Some(version) if !identifier.rsplit('/').next().is_some_and(|name| name.contains([':', '@'])) => {
            format!("{identifier}{}{version}", runner.version_separator)
        }
        _ => identifier.to_owned(),
    });
    args.extend(read_arguments(maps_in(package, "packageArguments"))?);
    let mut settings = Settings::new();
    set_key(&mut settings, "command", runner.command);
    set_key(&mut settings, "args", args);
    if !variables.is_empty() {
        set_key(&mut settings, "env", variables);
    }
    Ok(settings)
}

/// Returns the words of the arguments that have a value.
///
/// # Errors
/// [`PasteError::Unusable`] if a person must choose a value.
fn read_arguments<'a>(arguments: impl Iterator<Item = &'a Settings>) -> Result<Vec<String>, PasteError> {
    let mut words = Vec::new();
    for argument in arguments {
        let name = text_in(argument, "name").filter(|_| text_in(argument, "type") == Some("named"));
        let value = text_in(argument, "value").or_else(|| text_in(argument, "default"));
        if value.is_none() && is_true(argument, "isRequired") {
            let label = name.or_else(|| text_in(argument, "valueHint")).unwrap_or("an argument");
            let message = format!("the entry leaves {} to you; add the server by its command instead", quoted(label));
            return Err(PasteError::Unusable(message));
        }
        // Without a value, an optional argument is left out, and so is a flag.
        if let Some(value) = value {
            words.extend(name.map(str::to_owned));
            words.push(value.to_owned());
        }
    }
    Ok(words)
}

/// Returns the variables or headers that are secret, required or have a default. Secret ones become references.
///
/// # Errors
/// [`PasteError::Unusable`] if a name is given twice.
fn read_variables<'a>(
    all: impl Iterator<Item = &'a Settings>,
    variable: impl Fn(&str) -> String,
) -> Result<Settings, PasteError> {
    let values = all.filter_map(|entry| {
        let name = text_in(entry, "name")?;
        let fixed = text_in(entry, "value").or_else(|| text_in(entry, "default")).filter(|value| !value.contains('{'));
        let value = match fixed {
            Some(value) if !is_true(entry, "isSecret") => value.to_owned(),
            _ if is_true(entry, "isRequired") => format!("${{{}}}", variable(name)),
            _ => return None,
        };
        Some((name, value))
    });
    let mut settings = Settings::new();
    for (name, value) in values {
        if settings.contains_key(name) {
            return Err(PasteError::Unusable(format!("the entry names {} twice", quoted(name))));
        }
        set_key(&mut settings, name, value);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::super::{paste::parse_servers, to_yaml};

    #[test]
    fn package_of_a_registry_entry_is_started_by_its_runner() {
        let entry = |registry: &str, identifier: &str| {
            format!(
                r#"{{"$schema": "x", "name": "io.github.a/files", "version": "1.2.0", "packages": [{{"registryType": "mcpb",
                "identifier": "https://x"}}, {{"registryType": "{registry}", "identifier": "{identifier}", "version": "1.2.0",
                "transport": {{"type": "stdio"}},
                "packageArguments": [{{"type": "positional", "value": "/srv"}}, {{"type": "named", "name": "--mode", "default": "ro"}},
                    {{"type": "named", "name": "--optional"}}],
                "environmentVariables": [{{"name": "API_KEY", "isSecret": true, "isRequired": true}},
                    {{"name": "LEVEL", "default": "warn"}}, {{"name": "UNUSED"}}]}}]}}"#
            )
        };
        let yaml = |text: &str| {
            let server = parse_servers(text, None).unwrap().remove(0);
            to_yaml(&server.name, &server.settings)
        };
        let env = "    env:\n      API_KEY: \"${API_KEY}\"\n      LEVEL: warn\n";
        for (registry, identifier, command) in [
            ("npm", "@a/files", "npx\n    args: [\"-y\", \"@a/files@1.2.0\", /srv, \"--mode\", ro]\n"),
            ("npm", "@a/files@1.0.0", "npx\n    args: [\"-y\", \"@a/files@1.0.0\", /srv, \"--mode\", ro]\n"),
            ("pypi", "files", "uvx\n    args: [files==1.2.0, /srv, \"--mode\", ro]\n"),
            (
                "oci",
                "localhost:5000/files",
                "docker\n    args: [run, \"-i\", \"--rm\", \"-e\", API_KEY, \"-e\", LEVEL, localhost:5000/files:1.2.0, /srv, \
                 \"--mode\", ro]\n",
            ),
        ] {
            let expected = format!("mcpServers:\n  files:\n    command: {command}{env}");
            assert_eq!(yaml(&entry(registry, identifier)), expected);
        }
        let remote = r#"{"server": {"name": "com.a/notes", "remotes": [{"type": "sse", "url": "https://a.example/sse",
            "headers": [{"name": "X-Key", "isSecret": true, "isRequired": true}]}]}}"#;
        assert_eq!(
            yaml(remote),
            "mcpServers:\n  notes:\n    url: https://a.example/sse\n    type: sse\n    headers:\n      X-Key: \"${NOTES_X_KEY}\"\n"
        );
    }

    #[test]
    fn entry_that_leaves_a_choice_is_refused() {
        let text = r#"{"name": "a/b", "packages": [{"registryType": "npm", "identifier": "b",
            "packageArguments": [{"type": "positional", "valueHint": "folder", "isRequired": true}]}]}"#;
        let error = parse_servers(text, None).unwrap_err().to_string();
        assert!(error.contains("`folder`"), "{error}");
        assert!(parse_servers(r#"{"name": "a/b", "packages": [{"registryType": "nuget"}]}"#, None).is_err());
    }

    #[test]
    fn name_that_is_given_twice_is_refused() {
        let names = r#"[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]"#;
        for text in [
            format!(
                r#"{{"name": "b", "packages": [{{"registryType": "npm", "name": "b", "environmentVariables": {names}}}]}}"#
            ),
            format!(r#"{{"name": "b", "remotes": [{{"url": "https://a.example", "headers": {names}}}]}}"#),
        ] {
            let error = parse_servers(&text, None).unwrap_err().to_string();
            assert!(error.contains("`A` twice"), "{error}");
        }
    }
}
