//! Documents as resources: `docs://{project}/{path}`, of the branch that is checked out.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::{blocking, plan};
use crate::library::{Library, Project};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{ResourceDef, ResourceTemplateDef, ResourceText};

pub(crate) const SCHEME: &str = "docs://";
pub(crate) const TEMPLATE: &str = "docs://{project}/{+path}";
const MARKDOWN: &str = "text/markdown";
/// Documents in the list; searches find the others.
const LISTED: usize = 500;
/// Bytes of a URI that is looked at.
const URI_MAX: usize = 4096;

pub(crate) fn templates() -> Vec<ResourceTemplateDef> {
    vec![ResourceTemplateDef {
        uri_template: TEMPLATE.to_owned(),
        name: "document".to_owned(),
        title: "Document".to_owned(),
        description: "A document of a project's knowledge base, as its file is on the branch that is checked out."
            .to_owned(),
        mime_type: MARKDOWN.to_owned(),
        raw: None,
    }]
}

/// The first documents of all projects together.
pub(crate) async fn list(library: &Arc<Library>) -> Result<Vec<ResourceDef>, McpError> {
    let mut all = Vec::new();
    for project in library.projects() {
        let (project, room) = (Arc::clone(project), LISTED - all.len());
        let defs = blocking(move || {
            let shelf = project.tenant(None)?;
            let (entries, _) = shelf.docs.list("", room).map_err(|error| plan::unindexed(&error))?;
            let def = |entry: crate::index::Entry| ResourceDef {
                uri: project.uri(&entry.path),
                name: entry.path,
                title: entry.title,
                description: entry.summary,
                mime_type: MARKDOWN.to_owned(),
                raw: None,
            };
            Ok(entries.into_iter().map(def).collect::<Vec<_>>())
        });
        all.extend(defs.await?);
    }
    Ok(all)
}

/// The project and the path that a URI names.
///
/// # Errors
/// `RESOURCE_NOT_FOUND` for whatever is not exactly a document's.
pub(crate) fn parse(library: &Library, uri: &str) -> Result<(Arc<Project>, String), McpError> {
    let found = || {
        let (project, path) = uri
            .get(..uri.len().min(URI_MAX))
            .filter(|_| uri.len() <= URI_MAX)?
            .strip_prefix(SCHEME)?
            .split_once('/')?;
        if path.contains(['?', '#']) {
            return None;
        }
        let project = library.project(project)?;
        let parts: Option<Vec<String>> = path.split('/').map(decoded).collect();
        let path = project.files().check(&parts?.join("/")).ok()?;
        // One document has one URI.
        (project.uri(&path) == uri).then(|| (Arc::clone(project), path))
    };
    found().ok_or_else(|| unknown(uri))
}

fn decoded(part: &str) -> Option<String> {
    let decoded = percent_decode_str(part).decode_utf8().ok()?;
    (!decoded.contains('/')).then(|| decoded.into_owned())
}

pub(crate) fn unknown(uri: &str) -> McpError {
    let shown: String = uri.chars().take(200).collect();
    McpError::new(ErrorKind::ResourceNotFound, format!("There is no resource {shown}.")).with("uri", uri)
}

pub(crate) async fn read(library: &Library, uri: &str) -> Result<Vec<ResourceText>, McpError> {
    let (project, path) = parse(library, uri)?;
    let bytes = blocking(move || project.files().read(&path)).await?;
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| unknown(uri))?;
    Ok(vec![ResourceText { uri: uri.to_owned(), mime_type: MARKDOWN.to_owned(), text }])
}
