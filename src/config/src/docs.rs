//! `modules.docs`: the folders of documents that agents may read, and the models that help to search them.
//!
//! Nothing here says a secret: a key is shown by its variable or not at all.

use std::{path::PathBuf, time::Duration};

use url::Url;

use super::{
    Secret,
    error::{Problem, quoted, quoted_key},
    fields::{Expanded, Fields},
    reader::{Placed, Reader, Setting},
    servers::shown,
    tree::{KeyValue, Node, Spot},
    values::{found, yaml_text},
    variables,
};

const PROJECTS: &str = "modules.docs.projects";
const EMBEDDINGS: &str = "modules.docs.embeddings";
const GENERATION: &str = "modules.docs.generation";

/// What may stand below a project's name, and below a model; a test finds what `config/countersign.yaml` does not document.
pub(crate) const PROJECT_KEYS: [&str; 4] = ["root", "folder", "external_docs", "branches"];
pub(crate) const MODEL_KEYS: [&str; 4] = ["url", "model", "key", "timeout"];

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
const MAX_NAME: usize = 64;
const MAX_PROJECTS: usize = 64;
const MAX_MODEL: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocsConfig {
    pub enabled: bool,
    /// In the order of the file.
    pub projects: Vec<DocsProject>,
    /// `None` ranks by words alone.
    pub embeddings: Option<ModelEndpoint>,
    /// Who writes answers; `None` leaves that to the client's own model, or quotes.
    pub generation: Option<ModelEndpoint>,
}

/// One folder of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocsProject {
    pub name: String,
    pub root: PathBuf,
    /// Where agents' documents lie, below the root: no `..`, not absolute, `/` between its parts; empty is the root itself.
    pub folder: String,
    /// Documentation that is only read, below the root in the same way.
    pub external_docs: Option<String>,
    /// A git branch has documents of its own: those that were there when it was checked out.
    pub by_branch: bool,
}

/// An endpoint that speaks as OpenAI's does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEndpoint {
    /// What `/embeddings` or `/chat/completions` is put behind, without a slash at its end.
    pub url: String,
    pub model: String,
    /// Sent as a bearer token.
    pub key: Option<Secret>,
    /// For one request.
    pub timeout: Duration,
}

pub(super) fn read(r: &mut Reader) -> DocsConfig {
    DocsConfig {
        enabled: r.boolean("modules.docs.enabled"),
        projects: projects(r),
        embeddings: model(r, EMBEDDINGS, 30 * S),
        generation: model(r, GENERATION, 120 * S),
    }
}

fn problem(r: &mut Reader, placed: &Placed, key: &str, message: String, remedy: &str) {
    let (key, remedy) = (Some(key.to_owned()), remedy.to_owned());
    r.problems.push(Problem { origin: placed.origin.clone(), key, message, remedy });
}

fn projects(r: &mut Reader) -> Vec<DocsProject> {
    let Some(placed) = r.section(PROJECTS) else { return Vec::new() };
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => &[],
        other => {
            let message = format!("expected a map of projects, found {}", found(other));
            problem(r, &placed, PROJECTS, message, "Write {name: {root: /srv/handbook}}.");
            return Vec::new();
        }
    };
    let shown = match entries {
        [] => "{}".to_owned(),
        _ => shown::flow(&placed.node, &yaml_text),
    };
    r.settings.push(Setting { key: PROJECTS, value: shown, origin: placed.origin.clone() });
    if entries.len() > MAX_PROJECTS {
        problem(r, &placed, PROJECTS, format!("{} projects", entries.len()), "Keep at most 64.");
        return Vec::new();
    }
    let mut all: Vec<DocsProject> = Vec::new();
    for entry in entries {
        let key = format!("{PROJECTS}.{}", quoted_key(&entry.key));
        // It stands in the URIs of its documents.
        let fits = (1..=MAX_NAME).contains(&entry.key.len())
            && entry.key.starts_with(|c: char| c.is_ascii_alphanumeric())
            && entry.key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if !fits {
            let message = format!("{} cannot be a project's name", quoted(&entry.key));
            let origin = placed.at(entry.line, entry.column);
            let remedy = "Use 1 to 64 letters, digits, -, _ and dots.".to_owned();
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        }
        let Node::Map(values) = &entry.value.node else {
            let message = format!("expected a project, found {}", entry.value.node.kind());
            let origin = placed.at(entry.line, entry.column);
            let remedy = "Write {root: /srv/handbook}.".to_owned();
            r.problems.push(Problem { origin, key: Some(key), message, remedy });
            continue;
        };
        let mut fields = Fields::new(r, &placed, key, format!("{PROJECTS}.{}", entry.key), values, entry);
        all.extend(project(&entry.key, &mut fields));
    }
    all
}

fn project(name: &str, f: &mut Fields<'_>) -> Option<DocsProject> {
    f.only(&PROJECT_KEYS);
    let before = f.problems();
    let root = if f.has("root") {
        let expanded = f.expanded("root");
        let placed = f.placed();
        expanded.and_then(|Expanded { value, .. }| match f.env().expand(&value, &placed.base) {
            Ok(path) => Some(path),
            Err((message, remedy)) => {
                f.wrong("root", message, &remedy);
                None
            }
        })
    } else {
        f.wrong("", "the project has no root".to_owned(), "Write root: /srv/handbook.");
        None
    };
    let folder = f.text("folder").and_then(|text| below_root(f, "folder", &text)).unwrap_or_default();
    let external_docs = f.text("external_docs").and_then(|text| below_root(f, "external_docs", &text));
    let by_branch = f.choice("branches", &[("git", true), ("none", false)]).unwrap_or(false);
    if external_docs.as_deref() == Some(&folder) {
        let message = "external_docs is the folder of the documents itself".to_owned();
        f.wrong("external_docs", message, "Name another folder, or leave it out.");
    }
    let root = root?;
    let name = name.to_owned();
    (f.problems() == before).then_some(DocsProject { name, root, folder, external_docs, by_branch })
}

/// A folder below the root, its parts with a slash between them.
fn below_root(f: &mut Fields<'_>, name: &str, text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if text.starts_with('/') || parts.contains(&"..") || text.contains(['\0', '\\']) {
        f.wrong(name, format!("{} is not below the root", quoted(text)), "Name a folder below root: knowledge/team.");
        return None;
    }
    Some(parts.join("/"))
}

fn model(r: &mut Reader, key: &'static str, timeout: Duration) -> Option<ModelEndpoint> {
    let placed = r.section(key)?;
    let entries: &[KeyValue] = match &placed.node {
        Node::Map(entries) => entries,
        Node::Null => {
            r.settings.push(Setting { key, value: "null".to_owned(), origin: placed.origin.clone() });
            return None;
        }
        other => {
            let message = format!("expected an endpoint, found {}", found(other));
            problem(r, &placed, key, message, "Write {url: http://127.0.0.1:11434/v1, model: …}, or null.");
            return None;
        }
    };
    r.settings.push(Setting { key, value: shown_model(entries), origin: placed.origin.clone() });
    // Where the section begins is all that is known of its place.
    let value = Spot { node: Node::Null, line: 0, column: 0 };
    let at = KeyValue { key: key.to_owned(), line: 0, column: 0, value };
    let mut fields = Fields::new(r, &placed, key.to_owned(), key.to_owned(), entries, &at);
    endpoint(&mut fields, timeout)
}

fn endpoint(f: &mut Fields<'_>, mut timeout: Duration) -> Option<ModelEndpoint> {
    f.only(&MODEL_KEYS);
    let before = f.problems();
    for name in ["url", "model"] {
        if !f.has(name) {
            f.wrong("", format!("the endpoint has no {name}"), "Write {url: http://127.0.0.1:11434/v1, model: …}.");
        }
    }
    let url = f.expanded("url").and_then(|Expanded { value, .. }| address(f, value.trim()));
    let model = f.expanded("model").map(|model| model.value);
    if model.as_ref().is_some_and(|model| !(1..=MAX_MODEL).contains(&model.trim().len())) {
        f.wrong("model", "this is not the name of a model".to_owned(), "Write 1 to 200 characters.");
    }
    // A variable that is not set leaves an endpoint without a key.
    let key = f.expanded("key").map(|key| key.value.trim().to_owned()).filter(|key| !key.is_empty());
    if key.as_ref().is_some_and(|key| !key.chars().all(|c| c.is_ascii_graphic())) {
        f.wrong("key", "this is not a key".to_owned(), "A key has no spaces and no letters beyond ASCII.");
    }
    f.duration("timeout", 100 * MS..=600 * S, &mut timeout);
    let (url, model) = (url?, model?);
    (f.problems() == before).then_some(ModelEndpoint { url, model, key: key.map(Secret), timeout })
}

fn address(f: &mut Fields<'_>, text: &str) -> Option<String> {
    let url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
    let Some(url) = url else {
        f.wrong("url", "this is not an http or https URL".to_owned(), "Write http://127.0.0.1:11434/v1.");
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        let remedy = "Write the address alone, and a key as `key`.";
        f.wrong("url", "the URL contains more than an address".to_owned(), remedy);
        return None;
    }
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// For `config show`.
fn shown_model(entries: &[KeyValue]) -> String {
    let shown = entries.iter().map(|KeyValue { key, value, .. }| {
        let value = match (key.as_str(), &value.node) {
            ("key", Node::Text(text)) if !variables::tells_nothing(text) => yaml_text("[secret]"),
            (_, node) => shown::flow(node, &yaml_text),
        };
        format!("{}: {value}", yaml_text(key))
    });
    format!("{{ {} }}", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Environment, Flags, Loaded,
        error::ConfigError,
        load::{DEFAULTS, load},
        show,
    };

    fn read_yaml(docs: &str) -> Result<Loaded, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, format!("modules: {{ docs: {docs} }}")).unwrap();
        let home = dir.path().to_string_lossy().into_owned();
        let environment = Environment::of(dir.path(), &[("HOME", &home), ("DOCS_KEY", "very-secret")]);
        load(&Flags { config: Some(file), ..Flags::default() }, &environment)
    }

    #[test]
    fn a_project_and_its_models_are_read_and_no_key_is_shown() {
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
    fn what_is_wrong_with_a_project_or_a_model_is_said_where_it_stands() {
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
    fn every_key_of_a_project_and_of_a_model_is_documented() {
        let section = &DEFAULTS[DEFAULTS.find("\n  docs:").unwrap()..];
        for key in PROJECT_KEYS.iter().chain(&MODEL_KEYS) {
            assert!(section.contains(&format!("#     {key}:")) || section.contains(&format!("#   {key}:")), "{key}");
        }
    }
}
