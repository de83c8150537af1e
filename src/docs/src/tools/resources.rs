//! Documents as resources: `docs://{project}/{path}`, of the branch that is checked out. A session that is about one project
//! has none of another.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::{blocking, plan, whose::ActiveTenant};
use crate::library::{Library, Project};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, ResourceDef, ResourceTemplateDef, ResourceText};

pub(crate) const SCHEME: &str = "docs://";
pub(crate) const TEMPLATE: &str = "docs://{project}/{+path}";
const MARKDOWN: &str = "text/markdown";
/// Documents in the list; searches find the others.
const MAX_LISTED: usize = 500;
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

/// The first documents of all projects together, or of that which the session is about.
pub(crate) async fn list(library: &Arc<Library>, ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
    let mut all = Vec::new();
    let active = active(ctx);
    let is_listed = |project: &&Arc<Project>| active.as_ref().is_none_or(|active| active.check(project).is_ok());
    for project in library.projects().iter().filter(is_listed) {
        let (project, room) = (Arc::clone(project), MAX_LISTED - all.len());
        let defs = blocking(move || {
            let shelf = project.tenant(None)?;
            let (entries, _) = shelf.docs.list("", room).map_err(|error| plan::index_error(&error))?;
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
fn parse(library: &Library, uri: &str) -> Result<(Arc<Project>, String), McpError> {
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

/// What the session is about, if it is about anything.
pub(crate) fn active(ctx: &CallContext) -> Option<ActiveTenant> {
    ctx.session.as_deref().and_then(ActiveTenant::of)
}

/// As [`parse`], for this client.
///
/// # Errors
/// As [`parse`]; `TENANT_MISMATCH` for a document that is not of what its session is about.
pub(crate) fn admit(library: &Library, uri: &str, ctx: &CallContext) -> Result<(Arc<Project>, String), McpError> {
    let found = parse(library, uri)?;
    active(ctx).map_or(Ok(()), |active| active.check(&found.0))?;
    Ok(found)
}

pub(crate) async fn read(library: &Library, uri: &str, ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
    let (project, path) = admit(library, uri, ctx)?;
    let bytes = blocking(move || project.files().read(&path)).await?;
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| unknown(uri))?;
    Ok(vec![ResourceText { uri: uri.to_owned(), mime_type: MARKDOWN.to_owned(), text }])
}
