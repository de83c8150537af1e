//! Answers the tools that only read, and those calls of the other tools that only read.

use std::sync::Arc;

use serde_json::value::RawValue;
use strum::VariantArray as _;
use tokio::sync::Semaphore;

use super::{
    MAX_SHOWN_CHARS,
    answers::{
        ActivatedProject, AnsweredQuestion, CountedType, DeletedDocuments, FoundDocument, IndexedDocument,
        LinkedDocument, ListedType, ListedTypes, Location, SearchResults,
    },
    args::{ActivateArgs, AskArgs, DeleteDocumentsArgs, SearchArgs, TenantSelector, TypeName},
    plan::{self, Deletion},
    refusal, result, run_blocking,
    tenant::{ActiveTenant, project_of_path, require_project, resolve_checked_out, resolve_tenant},
};
use crate::{
    answer::{Answer, answer_query},
    index::{Index, Query, SearchResult},
    library::{Library, Project},
    model::{Collection, Filter, Hit, Level, Ranking},
    remote::{Embedder, Generator},
    text::DocumentRefusal,
};
use countersign_domain::text::plural;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{CallContext, ToolResult, schema::parse_arguments, text};

/// The maximum number of critical documents at the beginning of an answer.
const MAX_CRITICAL_DOCUMENTS: usize = 3;
/// The maximum number of documents to which an answer's sources link.
const MAX_LINKED_DOCUMENTS: usize = 20;
/// The maximum number of warnings in the answer to an activation.
const MAX_WARNINGS: usize = 3;

/// Answers reading calls.
pub(crate) struct Reader {
    pub library: Arc<Library>,
    pub embedder: Option<Arc<Embedder>>,
    /// The configured model for answers.
    pub generator: Option<Generator>,
    /// Limits the number of concurrent searches, each of which keeps a core busy.
    pub search_slots: Arc<Semaphore>,
}

/// The maximum number of concurrent searches.
pub(crate) const MAX_CONCURRENT_SEARCHES: usize = 4;

impl Reader {
    /// Answers `activate_project`.
    pub async fn activate(&self, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let ActivateArgs { config_path, selector } = parse_arguments(arguments)?;
        let project = self.find_project(selector.project_name.as_deref(), config_path.as_deref())?;
        // Without branch tracking there is only one branch, so any name is accepted.
        let (branch, ignored_branch) = match selector.branch_name {
            Some(branch) if project.tracks_branches() => (Some(branch), None),
            named => (None, named.filter(|named| *named != project.branch())),
        };
        // The branch is checked before the wait, so that an unknown branch is refused at once.
        if branch.as_deref().is_some_and(|branch| branch != project.branch()) {
            project.tenant(branch.as_deref())?;
        }
        project.wait_until_synchronized(&*ctx.progress, &ctx.cancel).await?;
        let indexed = project.tenant(branch.as_deref())?;
        let (index, types) = (Arc::clone(&indexed.docs), project.types());
        let counts = run_blocking(move || Ok(index.counts()?)).await?;
        let doc_types = types.all().map(|kind| CountedType {
            name: kind.name.clone(),
            doc_count: counts.count_of_type(&kind.name),
            custom: kind.schema_path.is_some(),
        });
        let tenant = &indexed.tenant;
        let mut answer = ActivatedProject {
            status: "activated",
            project_name: tenant.project.clone(),
            branch_name: tenant.branch.clone(),
            branches: if project.tracks_branches() { "git" } else { "none" },
            path_hash: tenant.path_hash.clone(),
            doc_types: doc_types.collect(),
            total_docs: counts.documents,
            warnings: shorten_warnings(&project.report().warnings),
            note: None,
        };
        let documents = plural(counts.documents, "document");
        let mut line = format!("{} is active{}: {documents}.", tenant.project, tenant.on_branch());
        if !answer.warnings.is_empty() {
            line = format!("{line}\nWarnings:\n- {}\n", answer.warnings.join("\n- "));
        }
        let mut notes = Vec::new();
        if let Some(ignored_branch) = &ignored_branch {
            notes.push(format!(
                "{} does not tell branches apart (`branches` is none in the gateway's configuration): its documents are the \
                 same on {} as on any other.",
                tenant.project,
                text::one_line(ignored_branch, 80)
            ));
        }
        match &ctx.session_notes {
            Some(notes) => {
                ActiveTenant { project: tenant.project.clone(), branch: tenant.branch.clone() }.save(notes);
            }
            None => notes
                .push("Nothing is kept between calls without a session: name project_name in each of them.".to_owned()),
        }
        if !notes.is_empty() {
            let note = notes.join(" ");
            line = format!("{line} {note}");
            answer.note = Some(note);
        }
        result(&line, &answer)
    }

    /// Finds the project with this name or of this path, which must be the same one if both are given.
    fn find_project(&self, name: Option<&str>, path: Option<&str>) -> Result<Arc<Project>, McpError> {
        let Some(path) = path else { return require_project(&self.library, name) };
        if name.is_none() {
            return project_of_path(&self.library, path);
        }
        let project = require_project(&self.library, name)?;
        if project_of_path(&self.library, path)?.name != project.name {
            let message = format!("The path is not in the project {}.", project.name);
            return Err(McpError::new(ErrorKind::ProjectMismatch, message).with("config_path", path));
        }
        Ok(project)
    }

    /// Answers `list_doc_types`.
    pub async fn list_types(&self, arguments: &RawValue) -> Result<ToolResult, McpError> {
        let selector: TenantSelector = parse_arguments(arguments)?;
        let indexed = resolve_tenant(&self.library, &selector)?;
        let project = Arc::clone(&indexed.project);
        let counts = run_blocking(move || Ok(indexed.docs.counts()?)).await?;
        let mut lines = Vec::new();
        let mut doc_types = Vec::new();
        for kind in project.types().all() {
            let count = counts.count_of_type(&kind.name);
            let schema = kind.schema_path.as_deref().unwrap_or("built-in");
            lines.push(format!(
                "{} ({count} in {}/): {}",
                kind.name,
                kind.folder,
                text::one_line(&kind.description, MAX_SHOWN_CHARS)
            ));
            doc_types.push(ListedType {
                name: kind.name.clone(),
                description: kind.description.clone(),
                folder: kind.folder.clone(),
                schema: schema.to_owned(),
                doc_count: count,
                custom: kind.schema_path.is_some(),
                front_matter: kind.schema.clone(),
            });
        }
        result(&lines.join("\n"), &ListedTypes { doc_types })
    }

    /// Answers a search of the documents or of the reference documentation.
    pub async fn search(&self, arguments: &RawValue, collection: Collection) -> Result<ToolResult, McpError> {
        let args: SearchArgs = parse_arguments(arguments)?;
        let (query, limit, min_relevance) = (args.query.trim(), args.limit.0, args.min_relevance_score.0);
        let scope = self.search_scope(&args.selector, collection)?;
        let filter = Filter { doc_types: check_types(&scope.project, args.doc_types)?, levels: args.promotion_levels };
        let (found, note) = self.search_index(&scope.index, query, filter, limit, min_relevance).await?;
        let answer = SearchResults {
            results: found.hits.iter().map(|hit| FoundDocument::new(hit, collection)).collect(),
            total_matches: found.total,
            ranking: found.ranking,
            note: note.clone(),
            external_docs_path: scope.external_folder,
        };
        let mut lines: Vec<String> = found.hits.iter().map(describe_hit).collect();
        if lines.is_empty() {
            lines.push(format!("Nothing in {} is that relevant to the query.", scope.project.name));
        }
        lines.extend(note);
        result(&lines.join("\n\n"), &answer)
    }

    /// Answers a question from the documents or from the reference documentation.
    pub async fn ask(
        &self,
        arguments: &RawValue,
        collection: Collection,
        ctx: &CallContext,
    ) -> Result<ToolResult, McpError> {
        let args: AskArgs = parse_arguments(arguments)?;
        let (query, limit, min_relevance) = (args.query.trim(), args.max_sources.0, args.min_relevance_score.0);
        let scope = self.search_scope(&args.selector, collection)?;
        let levels = args
            .min_promotion_level
            .map(|least| Level::VARIANTS.iter().copied().filter(|level| *level >= least).collect());
        let filter = Filter { doc_types: check_types(&scope.project, args.doc_types)?, levels };
        let (found, note) = self.search_index(&scope.index, query, filter.clone(), limit, min_relevance).await?;
        let mut sources = found.hits;
        if collection == Collection::Docs && args.include_critical {
            sources = self.put_critical_first(&scope.index, query, filter, sources).await?;
        }
        let Answer { text: answer, mode, note: author_note } =
            answer_query(self.generator.as_ref(), query, &sources, ctx).await?;
        let linked_docs = match collection {
            Collection::Docs => Some(self.linked_documents(&scope.index, &sources).await?),
            Collection::External => None,
        };
        let notes: Vec<String> = [note, author_note].into_iter().flatten().collect();
        let structured = AnsweredQuestion {
            answer: answer.clone(),
            answer_mode: mode,
            sources: sources.iter().map(Location::new).collect(),
            ranking: found.ranking,
            linked_docs,
            note: (!notes.is_empty()).then(|| notes.join(" ")),
            external_docs_path: scope.external_folder,
        };
        let cited = sources.iter().enumerate().map(|(position, Hit { path, passage, .. })| {
            let path = text::one_line(path, MAX_SHOWN_CHARS);
            format!("[{}] {path} ({})", position + 1, passage.line_range())
        });
        let lines: Vec<String> = std::iter::once(answer).chain(cited).chain(notes).collect();
        result(&lines.join("\n"), &structured)
    }

    /// Updates the index with one file.
    pub async fn refresh(
        &self,
        selector: &TenantSelector,
        path: &str,
        ctx: &CallContext,
    ) -> Result<ToolResult, McpError> {
        let indexed = resolve_checked_out(&self.library, selector)?;
        let project = Arc::clone(&indexed.project);
        let (project_of_file, requested_path) = (Arc::clone(&project), path.to_owned());
        let (path, text) = run_blocking(move || plan::read_existing(&project_of_file, &requested_path)).await?;
        project.refresh(Collection::Docs, vec![path.clone()]).await?;
        let dimensions = match &self.embedder {
            Some(_) => Some(project.embed_now(&path).await?),
            None => None,
        };
        let (types, file_path) = (project.types(), path.clone());
        let ctx = ctx.clone();
        let (refusal, entry) = run_blocking(move || {
            let refusal = ctx.run_charged(|| types.check_fields(&file_path, &text)).err();
            Ok((refusal, indexed.docs.document(&file_path)?))
        })
        .await?;
        let chunks = entry.map_or(0, |entry| entry.chunks);
        let mut line = format!("{} is indexed: {}.", text::one_line(&path, MAX_SHOWN_CHARS), plural(chunks, "chunk"));
        let faults = match &refusal {
            Some(DocumentRefusal::Schema { faults }) => faults.clone(),
            _ => Vec::new(),
        };
        let note = refusal.map(|refusal| refusal::to_error(&path, refusal).message.to_string());
        if let Some(note) = &note {
            line = format!("{line} {note}");
        }
        let answer =
            IndexedDocument { status: "indexed", path, chunks, embedding_dimensions: dimensions, faults, note };
        result(&line, &answer)
    }

    /// Returns the documents that a deletion would delete.
    pub async fn dry_run(&self, request: DeleteDocumentsArgs, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let (library, ctx) = (Arc::clone(&self.library), ctx.clone());
        let files_guard = require_project(&library, Some(&request.project_name))?.lock_files().await;
        let deletion = run_blocking(move || {
            let _files_guard = files_guard;
            ctx.run_charged(|| plan::find_deletion(&library, &request, &ctx.cancel))
        })
        .await?;
        deletion_result(&deletion)
    }

    /// Finds the index of a search.
    fn search_scope(&self, selector: &TenantSelector, collection: Collection) -> Result<SearchScope, McpError> {
        let indexed = resolve_tenant(&self.library, selector)?;
        let project = Arc::clone(&indexed.project);
        let index = match collection {
            Collection::Docs => Arc::clone(&indexed.docs),
            Collection::External => indexed.external.as_ref().map(Arc::clone).ok_or_else(|| {
                let message = format!(
                    "{} has no reference documentation: `external_docs` is not set in the gateway's configuration.",
                    project.name
                );
                McpError::new(ErrorKind::ExternalDocsNotConfigured, message).with("project_name", project.name.as_str())
            })?,
        };
        let external_folder =
            (collection == Collection::External).then(|| project.external_folder().unwrap_or_default().to_owned());
        Ok(SearchScope { project, index, external_folder })
    }

    /// Returns the hits of a query, and a note on how they were found.
    async fn search_index(
        &self,
        index: &Arc<Index>,
        query: &str,
        filter: Filter,
        limit: usize,
        min_relevance: f64,
    ) -> Result<(SearchResult, Option<String>), McpError> {
        let mut note = None;
        let mut vector = None;
        if let Some(embedder) = &self.embedder {
            match embedder.embed_query(query).await {
                Ok(embedded) => vector = Some(embedded),
                Err(error) => {
                    tracing::warn!(%error, "a query is ranked by its words alone");
                    note = Some("The model for embeddings does not answer: ranked by words alone.".to_owned());
                }
            }
        }
        let (index, text) = (Arc::clone(index), query.to_owned());
        let slot = Arc::clone(&self.search_slots).acquire_owned().await.map_err(|_| McpError::shutting_down())?;
        let result = run_blocking(move || {
            let _slot = slot;
            let query = Query { text: &text, vector: vector.as_deref(), filter: &filter, limit, min_relevance };
            Ok(index.search(&query)?)
        })
        .await?;
        if note.is_none() && self.embedder.is_some() && result.ranking == Ranking::Lexical {
            note = Some("The documents are not embedded yet: ranked by words alone.".to_owned());
        }
        Ok((result, note))
    }

    /// Puts critical documents of any relevance first, and keeps each document once.
    async fn put_critical_first(
        &self,
        index: &Arc<Index>,
        query: &str,
        filter: Filter,
        hits: Vec<Hit>,
    ) -> Result<Vec<Hit>, McpError> {
        let (index, text) = (Arc::clone(index), query.to_owned());
        let critical =
            run_blocking(move || Ok(index.critical_documents(&filter, &text, MAX_CRITICAL_DOCUMENTS)?)).await?;
        let (mut first, mut rest): (Vec<Hit>, Vec<Hit>) =
            hits.into_iter().partition(|hit| hit.level == Level::Critical);
        for hit in critical {
            if !first.iter().any(|known| known.path == hit.path) {
                first.push(hit);
            }
        }
        first.append(&mut rest);
        Ok(first)
    }

    /// Returns existing documents that the sources link to, each once.
    async fn linked_documents(&self, index: &Arc<Index>, sources: &[Hit]) -> Result<Vec<LinkedDocument>, McpError> {
        let paths: Vec<String> = sources.iter().map(|source| source.path.clone()).collect();
        let index = Arc::clone(index);
        run_blocking(move || {
            let mut seen_paths = paths.clone();
            let mut linked = Vec::new();
            for from in &paths {
                let Some(entry) = index.document(from)? else { continue };
                for link in entry.links {
                    if linked.len() >= MAX_LINKED_DOCUMENTS {
                        return Ok(linked);
                    }
                    if seen_paths.contains(&link) {
                        continue;
                    }
                    if let Some(to) = index.document(&link)? {
                        linked.push(LinkedDocument {
                            path: link.clone(),
                            title: to.title,
                            char_count: to.char_count,
                            linked_from: from.clone(),
                        });
                    }
                    seen_paths.push(link);
                }
            }
            Ok(linked)
        })
        .await
    }
}

/// The project and index that are searched.
struct SearchScope {
    project: Arc<Project>,
    index: Arc<Index>,
    /// The folder of the reference documentation, if that is searched.
    external_folder: Option<String>,
}

/// Returns the first warnings, each on one line, and a line that counts the others.
fn shorten_warnings(warnings: &[String]) -> Vec<String> {
    let shown = warnings.iter().take(MAX_WARNINGS);
    let mut lines: Vec<String> = shown.map(|warning| text::one_line(warning, MAX_SHOWN_CHARS).into_owned()).collect();
    if let Some(more) = warnings.len().checked_sub(MAX_WARNINGS).filter(|more| *more > 0) {
        lines.push(format!("{more} more; see the gateway's log"));
    }
    lines
}

/// Describes a hit in the text for models.
fn describe_hit(hit: &Hit) -> String {
    let Hit { path, title, relevance, passage, level, .. } = hit;
    let level = if *level == Level::Standard { String::new() } else { format!(", {level}") };
    let (title, path) = (text::one_line(title, MAX_SHOWN_CHARS), text::one_line(path, MAX_SHOWN_CHARS));
    let (lines, text) = (passage.line_range(), &passage.text);
    format!("{title} — {path} (relevance {relevance:.2}{level}, {lines})\n{text}")
}

/// Checks that the project has the types.
///
/// # Errors
/// `INVALID_DOC_TYPE` if it lacks one.
fn check_types(project: &Project, requested_types: Option<Vec<TypeName>>) -> Result<Option<Vec<String>>, McpError> {
    let types = project.types();
    match requested_types.iter().flatten().find(|name| types.get(name).is_none()) {
        Some(name) => {
            let known_types = types.all().map(|kind| kind.name.clone()).collect();
            Err(refusal::to_error("", DocumentRefusal::UnknownType { name: name.to_string(), known_types }))
        }
        None => Ok(requested_types.map(|names| names.iter().map(|name| name.to_string()).collect())),
    }
}

/// Returns the result of a deletion or of its dry run.
pub(crate) fn deletion_result(deletion: &Deletion) -> Result<ToolResult, McpError> {
    let (documents, chunks) = (deletion.document_count(), deletion.chunk_count());
    let named_paths = deletion.named_paths();
    let request = &deletion.request;
    let verb = if request.dry_run { "would be deleted" } else { "deleted" };
    let (documents_text, chunks_text) = (plural(documents, "document"), plural(chunks, "chunk"));
    let mut lines = vec![format!("{documents_text} ({chunks_text}) of {} {verb}.", request.project_name)];
    lines.extend(named_paths.iter().map(|path| format!("- {}", text::one_line(path, MAX_SHOWN_CHARS))));
    if documents > named_paths.len() {
        lines.push(format!("… and {} more", documents - named_paths.len()));
    }
    let answer = DeletedDocuments {
        status: if request.dry_run { "preview" } else { "deleted" },
        deleted_count: documents,
        deleted_chunks: chunks,
        documents: named_paths,
        project_name: request.project_name.clone(),
        branch_name: request.branch_name.clone(),
        path_hash: request.path_hash.clone(),
        dry_run: request.dry_run,
    };
    result(&lines.join("\n"), &answer)
}
