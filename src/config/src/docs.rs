//! `modules.docs`: the folders of documents that agents may read, and the models that help to search them.
//!
//! Never shows a secret: a key is shown by the name of its variable, or not at all.

use std::{path::PathBuf, time::Duration};

use url::Url;

use super::{
    Secret,
    error::{Problem, quoted, quoted_key},
    fields::{ExpandedText, Fields},
    reader::{LayerValue, Reader, Setting},
    servers::listing,
    tree::{KeyValue, LocatedNode, Node},
    values::{describe, yaml_text},
    variables,
};

const PROJECTS: &str = "modules.docs.projects";
const EMBEDDINGS: &str = "modules.docs.embeddings";
const GENERATION: &str = "modules.docs.generation";

/// The keys of a project, and of a model. A test checks that `config/countersign.yaml` documents them.
pub(crate) const PROJECT_KEYS: [&str; 4] = ["root", "folder", "external_docs", "branches"];
pub(crate) const MODEL_KEYS: [&str; 4] = ["url", "model", "key", "timeout"];

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const MAX_NAME_LEN: usize = 64;
const MAX_PROJECTS: usize = 64;
const MAX_MODEL_NAME_LEN: usize = 200;

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

pub(super) fn read(r: &mut Reader) -> DocsConfig {
    DocsConfig {
        enabled: r.boolean("modules.docs.enabled"),
        projects: read_projects(r),
        embeddings: read_model(r, EMBEDDINGS, 30 * S),
        generation: read_model(r, GENERATION, 120 * S),
    }
}

fn report(r: &mut Reader, placed: &LayerValue, key: &str, message: String, remedy: &str) {
    let (key, remedy) = (Some(key.to_owned()), remedy.to_owned());
    r.problems.push(Problem { origin: placed.origin.clone(), key, message, remedy });
}

fn read_projects(r: &mut Reader) -> Vec<DocsProject> {
    let Some(placed) = r.section(PROJECTS) else { return Vec::new() };
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => &[],
        other => {
            let message = format!("expected a map of projects, found {}", describe(other));
            report(r, &placed, PROJECTS, message, "Write {name: {root: /srv/handbook}}.");
            return Vec::new();
        }
    };
    let shown = match entries {
        [] => "{}".to_owned(),
        _ => listing::format_flow(&placed.node, &yaml_text),
    };
    r.settings.push(Setting { key: PROJECTS, value: shown, origin: placed.origin.clone() });
    if entries.len() > MAX_PROJECTS {
        report(r, &placed, PROJECTS, format!("{} projects", entries.len()), "Keep at most 64.");
        return Vec::new();
    }
    let mut all: Vec<DocsProject> = Vec::new();
    for entry in entries {
        let key = format!("{PROJECTS}.{}", quoted_key(&entry.key));
        // The name is part of the URIs of its documents.
        let fits = (1..=MAX_NAME_LEN).contains(&entry.key.len())
            && entry.key.starts_with(|c: char| c.is_ascii_alphanumeric())
            && entry.key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if !fits {
            let message = format!("{} cannot be a project's name", quoted(&entry.key));
            let origin = placed.origin_at(entry.line, entry.column);
            let remedy = "Use 1 to 64 letters, digits, -, _ and dots.".to_owned();
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        }
        let Node::Map(values) = &entry.value.node else {
            let message = format!("expected a project, found {}", entry.value.node.describe_kind());
            let origin = placed.origin_at(entry.line, entry.column);
            let remedy = "Write {root: /srv/handbook}.".to_owned();
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        };
        let mut fields = Fields::new(r, &placed, key, format!("{PROJECTS}.{}", entry.key), values, entry);
        all.extend(read_project(&entry.key, &mut fields));
    }
    all
}

fn read_project(name: &str, f: &mut Fields<'_>) -> Option<DocsProject> {
    f.reject_unknown_keys(&PROJECT_KEYS);
    let before = f.problem_count();
    let root = if f.has("root") {
        let expanded = f.expanded_text("root");
        let placed = f.layer_value();
        expanded.and_then(|ExpandedText { value, .. }| match f.env().expand(&value, &placed.base) {
            Ok(path) => Some(path),
            Err((message, remedy)) => {
                f.report("root", message, &remedy);
                None
            }
        })
    } else {
        f.report("", "the project has no root".to_owned(), "Write root: /srv/handbook.");
        None
    };
    let folder = f.text("folder").and_then(|text| parse_subfolder(f, "folder", &text)).unwrap_or_default();
    let external_docs = f.text("external_docs").and_then(|text| parse_subfolder(f, "external_docs", &text));
    let by_branch = f.choice("branches", &[("git", true), ("none", false)]).unwrap_or(false);
    if external_docs.as_deref() == Some(&folder) {
        let message = "external_docs is the folder of the documents itself".to_owned();
        f.report("external_docs", message, "Name another folder, or leave it out.");
    }
    let root = root?;
    let name = name.to_owned();
    (f.problem_count() == before).then_some(DocsProject { name, root, folder, external_docs, by_branch })
}

/// Parses a folder relative to the root, and normalizes its slashes.
fn parse_subfolder(f: &mut Fields<'_>, name: &str, text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if text.starts_with('/') || parts.contains(&"..") || text.contains(['\0', '\\']) {
        f.report(name, format!("{} is not below the root", quoted(text)), "Name a folder below root: knowledge/team.");
        return None;
    }
    Some(parts.join("/"))
}

fn read_model(r: &mut Reader, key: &'static str, timeout: Duration) -> Option<ModelEndpoint> {
    let placed = r.section(key)?;
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => {
            r.settings.push(Setting { key, value: "null".to_owned(), origin: placed.origin.clone() });
            return None;
        }
        other => {
            let message = format!("expected an endpoint, found {}", describe(other));
            report(r, &placed, key, message, "Write {url: http://127.0.0.1:11434/v1, model: …}, or null.");
            return None;
        }
    };
    r.settings.push(Setting { key, value: format_model(entries), origin: placed.origin.clone() });
    // Only the position of the whole section is known.
    let value = LocatedNode { node: Node::Null, line: 0, column: 0 };
    let at = KeyValue { key: key.to_owned(), line: 0, column: 0, value };
    let mut fields = Fields::new(r, &placed, key.to_owned(), key.to_owned(), entries, &at);
    read_endpoint(&mut fields, timeout)
}

fn read_endpoint(f: &mut Fields<'_>, mut timeout: Duration) -> Option<ModelEndpoint> {
    f.reject_unknown_keys(&MODEL_KEYS);
    let before = f.problem_count();
    for name in ["url", "model"] {
        if !f.has(name) {
            f.report("", format!("the endpoint has no {name}"), "Write {url: http://127.0.0.1:11434/v1, model: …}.");
        }
    }
    let url = f.expanded_text("url").and_then(|ExpandedText { value, .. }| parse_address(f, value.trim()));
    let model = f.expanded_text("model").map(|model| model.value);
    if model.as_ref().is_some_and(|model| !(1..=MAX_MODEL_NAME_LEN).contains(&model.trim().len())) {
        f.report("model", "this is not the name of a model".to_owned(), "Write 1 to 200 characters.");
    }
    // An unset variable means an endpoint without a key.
    let key = f.expanded_text("key").map(|key| key.value.trim().to_owned()).filter(|key| !key.is_empty());
    if key.as_ref().is_some_and(|key| !key.chars().all(|c| c.is_ascii_graphic())) {
        f.report("key", "this is not a key".to_owned(), "A key has no spaces and no letters beyond ASCII.");
    }
    f.duration("timeout", 100 * MS..=600 * S, &mut timeout);
    let (url, model) = (url?, model?);
    (f.problem_count() == before).then_some(ModelEndpoint { url, model, key: key.map(Secret), timeout })
}

fn parse_address(f: &mut Fields<'_>, text: &str) -> Option<String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    let Some(url) = url else {
        f.report("url", "this is not an http or https URL".to_owned(), "Write http://127.0.0.1:11434/v1.");
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        let remedy = "Write the address alone, and a key as `key`.";
        f.report("url", "the URL contains more than an address".to_owned(), remedy);
        return None;
    }
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// Formats the keys of a model for `config show`, without secrets.
fn format_model(entries: &[KeyValue]) -> String {
    let shown = entries.iter().map(|KeyValue { key, value, .. }| {
        let value = match (key.as_str(), &value.node) {
            ("key", Node::Text(text)) if !variables::is_safe_to_show(text) => yaml_text("[secret]"),
            (_, node) => listing::format_flow(node, &yaml_text),
        };
        format!("{}: {value}", yaml_text(key))
    });
    format!("{{ {} }}", shown.collect::<Vec<_>>().join(", "))
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
            "{ enabled: true, projects: { handbook: { root: ~/handbook, folder: ./knowledge//team/, external_docs: docs, \
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
            ("{ projects: { a: { root: $OTHER/x } } }", &["modules.docs.projects.a.root", "cannot stand in a path"]),
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
