//! Serves documents of the checked-out branch as resources: `docs://{project}/{path}`. A session with an active project
//! sees no other project.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use super::{run_blocking, tenant::ActiveTenant};
use crate::library::{Library, Project};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, ResourceDef, ResourceTemplateDef, ResourceText, text::cut_uri};

pub(crate) const SCHEME: &str = "docs://";
pub(crate) const TEMPLATE: &str = "docs://{project}/{+path}";
const MARKDOWN: &str = "text/markdown";
/// The maximum number of documents in the list. Searches find the others.
const MAX_LISTED: usize = 500;
/// The maximum number of bytes of a URI.
const MAX_URI_BYTES: usize = 4096;

/// Returns the template of the documents' URIs.
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

/// Lists the first documents of all projects, or of the session's active one.
pub(crate) async fn list(library: &Arc<Library>, ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
    let mut all = Vec::new();
    let active = active_tenant(ctx);
    let is_listed = |project: &&Arc<Project>| active.as_ref().is_none_or(|active| active.check(project).is_ok());
    for project in library.projects.iter().filter(is_listed) {
        let (project, remaining) = (Arc::clone(project), MAX_LISTED - all.len());
        let defs = run_blocking(move || {
            let indexed = project.tenant(None)?;
            let (entries, _) = indexed.docs.list("", remaining)?;
            let def = |entry: crate::index::DocumentMetadata| ResourceDef {
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

/// Parses a URI into project and path.
///
/// # Errors
/// `RESOURCE_NOT_FOUND` if it is not exactly the URI of a document.
fn parse_uri(library: &Library, uri: &str) -> Result<(Arc<Project>, String), McpError> {
    let parse = || {
        let (project, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        if uri.len() > MAX_URI_BYTES || path.contains(['?', '#']) {
            return None;
        }
        let project = library.project(project)?;
        let decode_part = |part| percent_decode_str(part).decode_utf8().ok().filter(|part| !part.contains('/'));
        let parts: Option<Vec<_>> = path.split('/').map(decode_part).collect();
        let path = project.files.check_path(&parts?.join("/")).ok()?;
        // Each document has only one URI.
        (project.uri(&path) == uri).then(|| (Arc::clone(project), path))
    };
    parse().ok_or_else(|| unknown_resource_error(uri))
}

fn unknown_resource_error(uri: &str) -> McpError {
    let short_uri = cut_uri(uri);
    McpError::new(ErrorKind::ResourceNotFound, format!("There is no resource {short_uri}.")).with("uri", short_uri)
}

/// Returns the tenant of the session, if it has one.
pub(crate) fn active_tenant(ctx: &CallContext) -> Option<ActiveTenant> {
    ctx.session_notes.as_deref().and_then(ActiveTenant::from_notes)
}

/// Parses a URI, and checks that the session may read it.
///
/// # Errors
/// Fails as [`parse_uri`] does; `TENANT_MISMATCH` if another project is active in the session.
pub(crate) fn parse_for_session(
    library: &Library,
    uri: &str,
    ctx: &CallContext,
) -> Result<(Arc<Project>, String), McpError> {
    let found = parse_uri(library, uri)?;
    active_tenant(ctx).map_or(Ok(()), |active| active.check(&found.0))?;
    Ok(found)
}

/// Reads a document by its URI.
pub(crate) async fn read(library: &Library, uri: &str, ctx: &CallContext) -> Result<Vec<ResourceText>, McpError> {
    let (project, path) = parse_for_session(library, uri, ctx)?;
    let bytes = run_blocking(move || project.files.read(&path)).await?;
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(|| unknown_resource_error(uri))?;
    Ok(vec![ResourceText { uri: uri.to_owned(), mime_type: MARKDOWN.to_owned(), text }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_resource_error_cuts_a_long_uri() {
        let error = unknown_resource_error(&format!("{SCHEME}handbook/{}.md", "x".repeat(MAX_URI_BYTES)));
        let shown = error.data["uri"].as_str().unwrap();
        assert_eq!((shown.len(), &*error.message), (512, &*format!("There is no resource {shown}.")));
    }
}
