//! Plans a write against the live files, and refuses every write that cannot be done.
//!
//! The preview shows a plan and the run carries out a plan, so both make the same checks. For the checked-out branch, a
//! plan rests on the files and the repository themselves, because an index may be outdated. Documents of other branches
//! exist only in their indexes. Planning blocks, and a caller that compares fingerprints must hold the project's lock.

use std::{collections::BTreeSet, sync::Arc};

use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    MAX_SHOWN_CHARS,
    args::{DeleteDocumentsArgs, ReadOnlyCall, WriteCall},
    document_diff::compare_documents,
    refusal,
    tenant::{ensure_checked_out, require_project, resolve_checked_out},
};
use crate::{
    library::{IndexedTenant, Library, Project},
    model::Level,
    text::{self, front_matter},
};
use countersign_domain::{
    changes::{
        LineOp, Operation, Preview, PreviewNote, StateEffect, Target, diff::DiffBuilder, digest::hex, fingerprint,
    },
    text::{plural, truncate},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::text::{invalid_argument, one_line};

/// The maximum number of documents that an answer names.
pub(crate) const MAX_NAMED_PATHS: usize = 200;
/// The maximum number of characters of a name or label in a preview.
pub(super) const MAX_LABEL_CHARS: usize = 80;

/// The effect of a write.
pub(crate) struct Plan {
    pub action: Action,
    operation: Operation,
    target: Target,
    summary: String,
    diff: DiffBuilder,
    /// The live state that the plan rests on.
    state: Vec<(&'static str, String)>,
}

/// The action of a write, with all that it needs. `before` is the hash of the file that it replaces, if there is one.
pub(crate) enum Action {
    Put { path: String, text: String, before: Option<Hash> },
    Promote { path: String, text: String, before: Option<Hash>, from: Level, to: Level },
    Delete(Deletion),
}

/// The SHA-256 of a file's bytes.
pub(crate) type Hash = [u8; 32];

/// Hashes the bytes of a file.
pub(crate) fn hash(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Documents to be deleted.
pub(crate) struct Deletion {
    pub request: DeleteDocumentsArgs,
    pub tenants: Vec<TenantDeletion>,
}

/// The documents of one tenant that are to be deleted.
pub(crate) struct TenantDeletion {
    pub indexed: Arc<IndexedTenant>,
    /// Each document's path and the hash of its content: of the live file, or of the indexed one if its branch or root
    /// is not in the folder now.
    pub documents: Vec<(String, Hash)>,
    pub chunks: usize,
}

impl TenantDeletion {
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.documents.iter().map(|(path, _)| path)
    }
}

impl Deletion {
    pub fn document_count(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.documents.len()).sum()
    }

    pub fn chunk_count(&self) -> usize {
        self.tenants.iter().map(|tenant| tenant.chunks).sum()
    }

    /// Returns the first paths, each once.
    pub fn named_paths(&self) -> Vec<String> {
        let all: BTreeSet<&String> = self.tenants.iter().flat_map(TenantDeletion::paths).collect();
        all.into_iter().take(MAX_NAMED_PATHS).cloned().collect()
    }
}

/// Plans a write. Cancelling `cancel` stops the planning of a large deletion.
///
/// # Errors
/// Explains why the write cannot be done.
pub(crate) fn plan_write(library: &Library, write: &WriteCall, cancel: &CancellationToken) -> Result<Plan, McpError> {
    match write {
        WriteCall::Put { selector, path, content } => {
            let indexed = resolve_checked_out(library, selector)?;
            plan_put(&indexed, path, content)
        }
        WriteCall::Promote { selector, path, level } => {
            let indexed = resolve_checked_out(library, selector)?;
            plan_promote(&indexed, path, *level)
        }
        WriteCall::Delete(request) => plan_delete(find_deletion(library, request, cancel)?),
    }
}

impl Plan {
    /// Returns the preview for the agent and the reviewers.
    pub fn preview(self) -> Preview {
        let state_effect = match self.action {
            // The diff names the documents, and does not show what is in them.
            Action::Delete(_) => StateEffect::Dependent,
            Action::Put { .. } => StateEffect::Whole,
            Action::Promote { .. } => StateEffect::Fields,
        };
        Preview {
            note: PreviewNote::default(),
            operation: self.operation,
            fingerprint: self.fingerprint(),
            target: self.target,
            summary: self.summary,
            diff: self.diff.finish(),
            state_effect,
        }
    }

    /// Hashes the state that the plan rests on.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.state)
    }
}

/// Returns the state that every plan rests on. The same path in another root or branch is a different target, and so is
/// the index entry of a file.
fn tenant_state(indexed: &IndexedTenant) -> Vec<(&'static str, String)> {
    let tenant = &indexed.tenant;
    let source = if indexed.is_current { "files" } else { "index" };
    vec![
        ("project", tenant.project.clone()),
        ("branch", tenant.branch.clone()),
        ("root", tenant.path_hash.clone()),
        ("of", source.to_owned()),
    ]
}

/// Returns a label such as `handbook/problems/pool.md`, with the branch if branches are distinguished.
fn document_label(indexed: &IndexedTenant, path: &str) -> String {
    let tenant = &indexed.tenant;
    format!("{}/{}{}", tenant.project, one_line(path, MAX_SHOWN_CHARS), tenant.on_branch())
}

fn document_target(indexed: &IndexedTenant, path: &str) -> Target {
    let tenant = &indexed.tenant;
    Target {
        entity_type: "document".to_owned(),
        id: Some(format!("{}/{path}", tenant.project)),
        label: document_label(indexed, path),
        lock_key: format!("docs:{}:{}:{path}", tenant.project, tenant.path_hash),
    }
}

/// Returns the path and text of an existing document.
pub(super) fn read_existing(project: &Project, path: &str) -> Result<(String, String), McpError> {
    let path = project.files.check_path(path)?;
    let bytes = project.files.read(&path)?.ok_or_else(|| unknown_document_error(&project.name, &path))?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((path, text)),
        Err(_) => Err(McpError::new(ErrorKind::FileSystem, "The file is not UTF-8 text.").with("path", path)),
    }
}

fn unknown_document_error(project: &str, path: &str) -> McpError {
    McpError::new(
        ErrorKind::DocumentNotFound,
        format!("There is no document {} in {project}.", one_line(path, MAX_SHOWN_CHARS)),
    )
    .with("project_name", project)
    .with("path", path)
}

fn plan_put(indexed: &IndexedTenant, path: &str, content: &str) -> Result<Plan, McpError> {
    let project = &indexed.project;
    let path = project.files.check_path(path)?;
    let checked = project.types().check(&path, content).map_err(|refusal| refusal::to_error(&path, refusal))?;
    let before = project.files.read(&path)?;
    if before.as_deref() == Some(content.as_bytes()) {
        return Err(invalid_argument("/content", "const", "The document has exactly this content already."));
    }
    let mut state = tenant_state(indexed);
    state.push(("path", path.clone()));
    let hashed = before.as_deref().map(hash);
    state.push(("before", hashed.map_or_else(|| "absent".to_owned(), |hash| hex(&hash))));
    let diff = compare_documents(before, content, &checked.fields);
    let title = one_line(&checked.document.title, MAX_LABEL_CHARS).into_owned();
    let (operation, verb) = match hashed {
        None => (Operation::Create, "Add"),
        Some(_) => (Operation::Update, "Change"),
    };
    let kind = one_line(checked.document.doc_type.as_deref().unwrap_or("document"), MAX_LABEL_CHARS);
    Ok(Plan {
        operation,
        target: document_target(indexed, &path),
        summary: format!(
            "{verb} the {kind} “{title}” ({}) in {}",
            one_line(&path, MAX_SHOWN_CHARS),
            indexed.tenant.project
        ),
        diff,
        state,
        action: Action::Put { path, text: content.to_owned(), before: hashed },
    })
}

fn plan_promote(indexed: &IndexedTenant, path: &str, to: Level) -> Result<Plan, McpError> {
    let project = &indexed.project;
    let (path, text) = match read_existing(project, path) {
        Err(error) if error.kind == ErrorKind::DocumentNotFound => {
            return Err(external_error(project, path).unwrap_or(error));
        }
        found => found?,
    };
    let from = text::level(&front_matter::parse_fields(&text).unwrap_or_default());
    if from == to {
        return Err(invalid_argument("/promotion_level", "const", format!("The document's level is {to} already.")));
    }
    let Some(new_text) = front_matter::with_level(&text, to) else {
        let message =
            "One line cannot set the level in this front matter. Write the document with index_document instead.";
        return Err(McpError::new(ErrorKind::SchemaValidationFailed, message).with("path", path));
    };
    let mut state = tenant_state(indexed);
    state.push(("path", path.clone()));
    let before = hash(text.as_bytes());
    state.push(("before", hex(&before)));
    let mut diff = DiffBuilder::new();
    diff.add("promotion_level", "Promotion level", Some(from.into()), Some(to.into()));
    // A part of the field `file`, so that a new text of the document counts as a change of it.
    diff.add("file.front_matter", "Front matter", front_matter::block(&text), front_matter::block(&new_text));
    Ok(Plan {
        operation: Operation::Update,
        target: document_target(indexed, &path),
        summary: format!("Change the promotion level of {} from {from} to {to}", document_label(indexed, &path)),
        diff,
        state,
        action: Action::Promote { text: new_text, path, before: Some(before), from, to },
    })
}

/// Returns an error if the path belongs to the reference documentation, which has no levels.
fn external_error(project: &Project, requested_path: &str) -> Option<McpError> {
    let files = project.external_files.as_ref()?;
    let folder = project.external_folder()?;
    let path = requested_path.strip_prefix(folder).unwrap_or(requested_path).trim_start_matches('/');
    files.read(&files.check_path(path).ok()?).ok()??;
    let message =
        "This document belongs to the reference documentation, which is only read: it has no promotion level.";
    Some(McpError::new(ErrorKind::ExternalDocsNotPromotable, message).with("path", requested_path))
}

/// Finds the documents that a deletion names.
pub(crate) fn find_deletion(
    library: &Library,
    request: &DeleteDocumentsArgs,
    cancel: &CancellationToken,
) -> Result<Deletion, McpError> {
    let project = require_project(library, Some(&request.project_name))?;
    let mut requested_paths: Option<BTreeSet<String>> = None;
    for path in request.paths.iter().flatten() {
        requested_paths.get_or_insert_default().insert(project.files.check_path(path)?);
    }
    let all = project.indexed_tenants()?;
    let check_known = |part: &str, name: &Option<String>, matches: &dyn Fn(&IndexedTenant, &str) -> bool| match name {
        Some(name) if !all.iter().any(|indexed| matches(indexed, name)) => {
            let short_name = truncate(name, 200);
            let message = format!("{} has no documents of this {part}.", request.project_name);
            let key = if part == "branch" { "branch_name" } else { "path_hash" };
            Err(McpError::new(ErrorKind::ProjectMismatch, message).with(key, short_name))
        }
        _ => Ok(()),
    };
    check_known("branch", &request.branch_name, &|indexed, name| indexed.tenant.branch == name)?;
    check_known("root", &request.path_hash, &|indexed, hash| indexed.tenant.path_hash == hash)?;
    let mut tenants = Vec::new();
    for indexed in &all {
        let tenant = &indexed.tenant;
        if request.branch_name.as_ref().is_some_and(|branch| *branch != tenant.branch)
            || request.path_hash.as_ref().is_some_and(|hash| *hash != tenant.path_hash)
        {
            continue;
        }
        let deletion = if indexed.is_current {
            ensure_checked_out(indexed)?;
            live_documents(indexed, requested_paths.as_ref(), cancel)?
        } else {
            indexed_documents(indexed, requested_paths.as_ref())?
        };
        if !deletion.documents.is_empty() {
            tenants.push(deletion);
        }
    }
    let existing_paths: BTreeSet<&String> = tenants.iter().flat_map(TenantDeletion::paths).collect();
    if let Some(path) = requested_paths.iter().flatten().find(|path| !existing_paths.contains(path)) {
        return Err(unknown_document_error(&request.project_name, path));
    }
    Ok(Deletion { request: request.clone(), tenants })
}

/// Returns the documents of the checked-out branch as their files are now. A file that is not UTF-8 is not a document.
fn live_documents(
    indexed: &Arc<IndexedTenant>,
    requested_paths: Option<&BTreeSet<String>>,
    cancel: &CancellationToken,
) -> Result<TenantDeletion, McpError> {
    let (project, stamps) = (&indexed.project, indexed.docs.stamps()?);
    let mut deletion = TenantDeletion { indexed: Arc::clone(indexed), documents: Vec::new(), chunks: 0 };
    let paths = match requested_paths {
        Some(paths) => paths.iter().cloned().collect(),
        None => project.files.documents()?,
    };
    for path in paths {
        if cancel.is_cancelled() {
            return Err(McpError::new(ErrorKind::Cancelled, "The call was cancelled.").with("outcome", "not_applied"));
        }
        let bytes = match project.files.read(&path) {
            // A file that cannot be read is in no index either, and stays unless it is named.
            Err(_) if requested_paths.is_none() => continue,
            read => read?,
        };
        let Some(bytes) = bytes else { continue };
        let hash = hash(&bytes);
        let Ok(text) = String::from_utf8(bytes) else { continue };
        // The index has counted its chunks already, if the content is the same.
        let unchanged_stamp = stamps.get(&path).filter(|stamp| stamp.hash == hash);
        let counted = unchanged_stamp.map(|_| indexed.docs.document(&path)).transpose()?;
        deletion.chunks += match counted.flatten() {
            Some(entry) => entry.chunks,
            None => text::parse(&path, &text, &project.types()).map_or(0, |document| document.chunks.len()),
        };
        deletion.documents.push((path, hash));
    }
    Ok(deletion)
}

/// Returns the indexed documents of a branch or root that is not in the folder; only their index would be deleted.
fn indexed_documents(
    indexed: &Arc<IndexedTenant>,
    requested_paths: Option<&BTreeSet<String>>,
) -> Result<TenantDeletion, McpError> {
    let stamps = indexed.docs.stamps()?.into_iter();
    let mut documents: Vec<(String, Hash)> = stamps
        .filter(|(path, _)| requested_paths.is_none_or(|paths| paths.contains(path)))
        .map(|(path, stamp)| (path, stamp.hash))
        .collect();
    documents.sort();
    let mut chunks = 0;
    for (path, _) in &documents {
        chunks += indexed.docs.document(path)?.map_or(0, |entry| entry.chunks);
    }
    Ok(TenantDeletion { indexed: Arc::clone(indexed), documents, chunks })
}

fn plan_delete(deletion: Deletion) -> Result<Plan, McpError> {
    let name = deletion.request.project_name.clone();
    let (documents, chunks) = (deletion.document_count(), deletion.chunk_count());
    if documents == 0 {
        return Err(McpError::new(ErrorKind::DocumentNotFound, format!("{name} has no such documents to delete."))
            .with("project_name", name));
    }
    let mut state = Vec::new();
    let mut diff = DiffBuilder::new();
    diff.add("deleted_count", "Documents", Some(&documents.to_string()), None);
    diff.add("deleted_chunks", "Chunks", Some(&chunks.to_string()), None);
    for tenant_deletion in &deletion.tenants {
        let tenant = &tenant_deletion.indexed.tenant;
        state.extend(tenant_state(&tenant_deletion.indexed));
        for (path, hash) in &tenant_deletion.documents {
            state.push(("path", path.clone()));
            state.push(("hash", hex(hash)));
        }
        let branch = one_line(&tenant.branch, MAX_LABEL_CHARS);
        let source_name = match tenant_deletion.indexed.is_current {
            true => format!("Files{}", tenant.on_branch()),
            false => format!("Index of {branch} (root {})", tenant.path_hash),
        };
        let field = format!("documents.{}.{branch}", tenant.path_hash);
        let lines = tenant_deletion.paths().map(|path| (LineOp::Delete, path.as_str().into()));
        diff.add_lines(&field, &source_name, lines);
    }
    let title = match (documents, deletion.named_paths().first()) {
        (1, Some(path)) => format!("Delete {} of {name}", one_line(path, MAX_SHOWN_CHARS)),
        _ => format!("Delete {} ({}) of {name}", plural(documents, "document"), plural(chunks, "chunk")),
    };
    let branch_suffix = deletion
        .request
        .branch_name
        .as_deref()
        .map_or_else(String::new, |branch| format!(" on {}", one_line(branch, MAX_LABEL_CHARS)));
    let only_file = match deletion.tenants.as_slice() {
        [tenant] if tenant.indexed.is_current && documents == 1 => {
            tenant.paths().next().map(|path| document_target(&tenant.indexed, path))
        }
        _ => None,
    };
    Ok(Plan {
        operation: Operation::Delete,
        target: only_file.unwrap_or_else(|| Target {
            entity_type: "documents".to_owned(),
            id: None,
            label: format!("{documents} of {name}{branch_suffix}"),
            lock_key: format!("docs:{name}"),
        }),
        summary: format!("{title}{branch_suffix}"),
        diff,
        state,
        action: Action::Delete(deletion),
    })
}

/// Returns the preview of a call that only reads. A rule may put such a call under review, too.
pub(crate) fn unchanged_preview(read_call: &ReadOnlyCall) -> Preview {
    let (label, summary) = match read_call {
        ReadOnlyCall::Refresh { path, .. } => {
            (one_line(path, MAX_SHOWN_CHARS).into_owned(), "Bring the index up to date with a file")
        }
        ReadOnlyCall::DryRun(request) => {
            (one_line(&request.project_name, MAX_SHOWN_CHARS).into_owned(), "Say which documents would be deleted")
        }
    };
    Preview {
        note: PreviewNote::default(),
        operation: Operation::Call,
        target: Target { entity_type: "index".to_owned(), id: None, lock_key: format!("docs:look:{label}"), label },
        summary: summary.to_owned(),
        diff: DiffBuilder::new().finish(),
        fingerprint: fingerprint(&[("look", summary)]),
        state_effect: StateEffect::Dependent,
    }
}
