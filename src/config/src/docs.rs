//! Reads `modules.docs`: the folders of documents that agents may read, and the models that help to search them.
//!
//! The module never shows a secret: a key is shown by the name of its variable, or not at all.

use std::{fs, io, path::PathBuf, time::Duration};

use serde_json::{Map, Value};
use url::Url;

use super::{
    Secret,
    error::{ValueError, invalid, quoted},
    reader::fields::Fields,
    reader::{NamedMap, Reader, check_plain_name},
    servers::listing,
    tree::{Node, to_json_map},
    values::{boolean, choice, describe, duration, read_text},
    yaml::{yaml_map, yaml_secret, yaml_text, yaml_value},
};

/// The keys of a project, and of a model. A test checks that `config/countersign.yaml` documents them.
pub(crate) const PROJECT_KEYS: [&str; 4] = ["root", "folder", "external_docs", "branches"];
pub(crate) const MODEL_KEYS: [&str; 4] = ["url", "model", "key", "timeout"];

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const MAX_MODEL_NAME_LEN: usize = 200;
const ENDPOINT_REMEDY: &str = "Write {url: http://127.0.0.1:11434/v1, model: …}.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocsConfig {
    pub enabled: bool,
    /// The projects in the order of the file.
    pub projects: Vec<DocsProject>,
    /// The model for embeddings. `None` ranks by words only.
    pub embeddings: Option<ModelEndpoint>,
    /// The model that writes answers. `None` leaves that to the client's model, or answers with quotations.
    pub generation: Option<ModelEndpoint>,
}

/// One folder of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocsProject {
    pub name: String,
    pub root: PathBuf,
    /// The folder of the agents' documents relative to the root, with `/` between its parts and without `..`. An empty path
    /// is the root itself.
    pub folder: String,
    /// A folder of read-only documentation, also relative to the root.
    pub external_docs: Option<String>,
    /// Each git branch has its own documents, starting with those present when it was checked out.
    pub by_branch: bool,
}

impl DocsProject {
    /// Returns the canonical path of the root.
    ///
    /// # Errors
    /// Fails if the root is not a folder that can be read.
    pub fn canonical_root(&self) -> io::Result<PathBuf> {
        let root = self.root.canonicalize()?;
        fs::read_dir(&root)?;
        Ok(root)
    }
}

/// An endpoint with the API of OpenAI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEndpoint {
    /// The base URL before `/embeddings` or `/chat/completions`, without a trailing slash.
    pub url: String,
    pub model: String,
    /// The bearer token of requests.
    pub key: Option<Secret>,
    /// The time limit of one request.
    pub timeout: Duration,
}

const PROJECTS: NamedMap = NamedMap {
    key: "modules.docs.projects",
    noun: "project",
    example: "{root: /srv/handbook}",
    max_entries: 64,
    // The name is part of the URIs of its documents.
    check_name: |name| check_plain_name(name, "project", &['-', '_', '.']),
    show: |entries| listing::format_block(entries, |_, value| yaml_value(value, &yaml_text)),
};

pub(super) fn read(r: &mut Reader) -> DocsConfig {
    DocsConfig {
        enabled: r.read("modules.docs.enabled", boolean()),
        projects: r.read_map(&PROJECTS, read_project),
        embeddings: read_model(r, "modules.docs.embeddings", 30 * S),
        generation: read_model(r, "modules.docs.generation", 120 * S),
    }
}

fn read_project(name: &str, f: &mut Fields<'_>) -> Option<DocsProject> {
    f.reject_unknown_keys(&PROJECT_KEYS);
    if !f.has("root") {
        f.report_map("the project has no root", "Write root: /srv/handbook.");
    }
    let root = f.expanded_text("root").and_then(|text| {
        let root = f.env().expand_path(&text.value, f.base());
        f.accept("root", root)
    });
    let folder = f.parse("folder", parse_subfolder).unwrap_or_default();
    let external_docs = f.parse("external_docs", parse_subfolder);
    if external_docs.as_deref() == Some(&folder) {
        let message = "external_docs is the folder of the documents itself";
        f.report("external_docs", message, "Name another folder, or leave it out.");
    }
    let by_branch = f.read("branches", choice([("git", true), ("none", false)])).unwrap_or(false);
    let project = DocsProject { name: name.to_owned(), root: root?, folder, external_docs, by_branch };
    (!f.has_problems()).then_some(project)
}

/// Parses a folder relative to the root, and normalizes its slashes.
fn parse_subfolder(node: &Node) -> Result<String, ValueError> {
    let text = read_text(node)?;
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if text.starts_with('/') || parts.contains(&"..") || text.contains(['\0', '\\']) {
        let remedy = "Name a folder below root: knowledge/team.";
        return Err(invalid(format!("{} is not below the root", quoted(&text)), remedy));
    }
    Ok(parts.join("/"))
}

fn read_model(r: &mut Reader, key: &'static str, timeout: Duration) -> Option<ModelEndpoint> {
    let mismatch = |other: &Node| {
        invalid(format!("expected an endpoint, found {}", describe(other)), format!("{ENDPOINT_REMEDY} Or null."))
    };
    let (shown, endpoint) = r.read_optional_map(key, mismatch, |f| {
        let shown = format_model(&to_json_map(f.entries));
        Some((shown, read_endpoint(f, timeout)?))
    })?;
    r.add_setting(key, shown);
    Some(endpoint)
}

fn read_endpoint(f: &mut Fields<'_>, timeout: Duration) -> Option<ModelEndpoint> {
    f.reject_unknown_keys(&MODEL_KEYS);
    for name in ["url", "model"] {
        if !f.has(name) {
            f.report_map(format!("the endpoint has no {name}"), ENDPOINT_REMEDY);
        }
    }
    let url = f.expanded_text("url").and_then(|text| f.accept("url", parse_address(text.value.trim())));
    let model = f.expanded_text("model").map(|model| model.value);
    if model.as_ref().is_some_and(|model| !(1..=MAX_MODEL_NAME_LEN).contains(&model.trim().len())) {
        f.report("model", "this is not the name of a model", "Write 1 to 200 characters.");
    }
    // An unset variable means an endpoint without a key.
    let key = f.expanded_text("key").map(|key| key.value.trim().to_owned()).filter(|key| !key.is_empty());
    if key.as_ref().is_some_and(|key| !key.chars().all(|c| c.is_ascii_graphic())) {
        f.report("key", "this is not a key", "A key has no spaces and no letters beyond ASCII.");
    }
    let timeout = f.read("timeout", duration(100 * MS..=600 * S)).unwrap_or(timeout);
    let endpoint = ModelEndpoint { url: url?, model: model?, key: key.map(Secret), timeout };
    (!f.has_problems()).then_some(endpoint)
}

fn parse_address(text: &str) -> Result<String, ValueError> {
    let error = |message: &str, remedy: &str| Err(invalid(message, remedy));
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    let Some(url) = url else {
        return error("this is not an http or https URL", "Write http://127.0.0.1:11434/v1.");
    };
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return error("the URL contains more than an address", "Write the address alone, and a key as `key`.");
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

/// Formats the keys of a model for `config show`, without secrets.
fn format_model(entries: &Map<String, Value>) -> String {
    yaml_map(entries.iter().map(|(key, value)| match (key.as_str(), value) {
        ("key", Value::String(text)) => ("key", yaml_secret(text)),
        (key, value) => (key, yaml_value(value, &yaml_text)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Environment, Flags, LoadedConfig,
        error::ConfigError,
        load::{DEFAULT_YAML, load},
        show,
    };

    fn read_yaml(docs: &str) -> Result<LoadedConfig, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, format!("modules: {{ docs: {docs} }}")).unwrap();
        let home = dir.path().to_string_lossy().into_owned();
        let environment = Environment::new(dir.path(), &[("HOME", &home), ("DOCS_KEY", "very-secret")]);
        load(&Flags { config: Some(file), ..Flags::default() }, &environment)
    }

    #[test]
    fn projects_and_models_are_read_without_showing_keys() {
        let loaded = read_yaml(
            "{ projects: { handbook: { root: ~/handbook, folder: ./knowledge//team/, external_docs: docs, \
             branches: git }, bare: { root: /srv/bare } }, embeddings: { url: 'http://127.0.0.1:9/v1/', model: e5, \
             key: '${DOCS_KEY}' }, generation: { url: 'http://127.0.0.1:9/v1', model: m, key: plain-secret, timeout: 9s } }",
        )
        .unwrap();
        let docs = &loaded.config.modules.docs;
        let [handbook, bare] = docs.projects.as_slice() else { panic!("{docs:?}") };
        assert!(handbook.root.ends_with("handbook") && handbook.root.is_absolute());
        assert_eq!((handbook.folder.as_str(), handbook.external_docs.as_deref()), ("knowledge/team", Some("docs")));
        assert!(handbook.by_branch && !bare.by_branch);
        assert_eq!((bare.folder.as_str(), bare.external_docs.as_deref()), ("", None));
        let embeddings = docs.embeddings.as_ref().unwrap();
        assert_eq!((embeddings.url.as_str(), embeddings.model.as_str()), ("http://127.0.0.1:9/v1", "e5"));
        assert_eq!(embeddings.key, Some(Secret("very-secret".to_owned())));
        assert_eq!(docs.generation.as_ref().unwrap().timeout, 9 * S);
        let shown = format!("{}\n{docs:?}", show::yaml(&loaded.settings));
        assert!(!shown.contains("very-secret") && !shown.contains("plain-secret"), "{shown}");
        assert!(shown.contains("${DOCS_KEY}") && shown.contains("knowledge"), "{shown}");
        assert_eq!(
            read_yaml("{ embeddings: { url: 'http://h/v1', model: m, key: '${NONE:-}' } }")
                .unwrap()
                .config
                .modules
                .docs
                .embeddings
                .unwrap()
                .key,
            None
        );
    }

    #[test]
    fn wrong_project_or_model_is_reported_at_its_key() {
        for (docs, expected) in [
            ("{ projects: [] }", &["modules.docs.projects", "expected a map of projects"] as &[&str]),
            ("{ projects: { 'a b': { root: /x } } }", &["cannot be a project's name"]),
            ("{ projects: { a: x } }", &["modules.docs.projects.a", "expected a project"]),
            ("{ projects: { a: {} } }", &["modules.docs.projects.a", "the project has no root"]),
            ("{ projects: { a: { root: $OTHER/x } } }", &["modules.docs.projects.a.root", "cannot be used in a path"]),
            (
                "{ projects: { a: { root: /x, folder: ../y } } }",
                &["modules.docs.projects.a.folder", "not below the root"],
            ),
            ("{ projects: { a: { root: /x, external_docs: /y } } }", &["external_docs", "not below the root"]),
            ("{ projects: { a: { root: /x, folder: d, external_docs: d } } }", &["external_docs", "itself"]),
            ("{ projects: { a: { root: /x, branches: svn } } }", &["modules.docs.projects.a.branches", "git"]),
            ("{ projects: { a: { root: /x, folders: y } } }", &["Did you mean `folder`?"]),
            ("{ embeddings: x }", &["modules.docs.embeddings", "expected an endpoint"]),
            ("{ embeddings: { model: m } }", &["the endpoint has no url"]),
            (
                "{ embeddings: { url: 'ftp://x', model: m } }",
                &["modules.docs.embeddings.url", "not an http or https URL"],
            ),
            ("{ generation: { url: 'http://u:p@x', model: m } }", &["generation.url", "more than an address"]),
            ("{ generation: { url: 'http://x', model: '' } }", &["generation.model", "not the name of a model"]),
            ("{ generation: { url: 'http://x', model: m, key: 'a b' } }", &["generation.key", "this is not a key"]),
            ("{ generation: { url: 'http://x', model: m, timeout: 1ms } }", &["generation.timeout"]),
        ] {
            let error = read_yaml(docs).unwrap_err().to_string();
            assert!(expected.iter().all(|part| error.contains(part)), "{docs}: {error}");
        }
    }

    #[test]
    fn every_project_and_model_key_is_documented() {
        let section = &DEFAULT_YAML[DEFAULT_YAML.find("\n  docs:").unwrap()..];
        for key in PROJECT_KEYS.iter().chain(&MODEL_KEYS) {
            assert!(section.contains(&format!("#     {key}:")) || section.contains(&format!("#   {key}:")), "{key}");
        }
    }
}
