//! Makes a preview by a recipe: makes its calls on behalf of the proposer, within a time limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use serde_json::{Value, value::RawValue};

use super::{
    PreviewRequest,
    alternatives::{SelectedAlternative, select_alternative},
    compose::{self, ComputedPreview, Observation, Observations, ProposedCall, StateBefore},
    dry_run::is_dry_run,
    expressions,
    fault::Fault,
    labels::apply_recipe_labels,
    sql::{self, QueryAnswer},
    state_keys,
};
use crate::{CallContext, ToolDef, ToolResult, text::content_text};
use countersign_domain::{
    changes::{CertainFailure, Preview},
    policy::{Condition, Verdict},
    principal::{Principal, Role},
    recipes::{DryRun, PreviewRead, Recipe, SqlRecipe},
};
use countersign_protocol::{
    McpError,
    json::{self, MemberEdit},
};
use countersign_runtime::background;

/// Time limit for all calls of one preview. It is shorter than the limits of a proposal and a recheck, so that the
/// timeout can be shown.
const MAX_PREVIEW_TIME: Duration = Duration::from_secs(8);
/// Maximum calls of one preview at the same time.
const MAX_CONCURRENT_READS: usize = 8;

/// Runs recipes for one call.
pub struct RecipeRunner<'a> {
    request: PreviewRequest<'a>,
    /// The proposer, limited to the rights of an agent so that every run gives the same preview.
    principal: Arc<Principal>,
    /// `true` if policy reviews or denies one of the calls for the proposer. From then on, even the failure of a call could
    /// reveal restricted data.
    restricted: AtomicBool,
}

impl<'a> RecipeRunner<'a> {
    pub fn new(request: PreviewRequest<'a>) -> Self {
        let principal = Arc::new(Principal { role: Role::Agent, ..(*request.context.principal).clone() });
        Self { request, principal, restricted: AtomicBool::new(false) }
    }

    /// Runs the recipe. `arguments_preview` is the preview to fall back to.
    pub async fn run(&self, recipe: &Recipe, mut arguments_preview: Preview) -> ComputedPreview {
        let mut computed = match self.run_recipe(recipe, &mut arguments_preview).await {
            Ok((preview, before)) => ComputedPreview { preview, transient_error: None, before },
            Err(fault) => compose::preview_of_failure(arguments_preview, fault),
        };
        computed.preview.note.restricted = self.restricted.load(Ordering::Relaxed);
        computed.preview.note.tried = Some(recipe.tried_text());
        computed.preview.note.tool_operation =
            recipe.dispatcher.as_ref().and_then(|dispatcher| dispatcher.operation_of(self.request.arguments));
        computed
    }

    async fn run_recipe(
        &self,
        recipe: &Recipe,
        arguments_preview: &mut Preview,
    ) -> Result<(Preview, Option<StateBefore>), Fault> {
        let arguments = self.parse_arguments().await?;
        apply_recipe_labels(recipe, &arguments, arguments_preview);
        let selected = select_alternative(recipe, &arguments)?;
        let SelectedAlternative { position: alternative, recipe, .. } = selected;
        apply_recipe_labels(recipe, &arguments, arguments_preview);
        if let Some(sql) = &recipe.sql {
            return self.run_sql(&selected, sql, &arguments, arguments_preview).await;
        }
        let fallback = arguments_preview.clone();
        if recipe.has_no_method() {
            return Ok((fallback, None));
        }
        let observations = finish_in_time(self.observe(recipe, &arguments)).await?;
        let values = observations.before.iter().map(|observation| observation.value.clone()).collect();
        let before = StateBefore { alternative, values, statements: Vec::new() };
        let (recipe, text) = (recipe.clone(), self.request.arguments.get().to_owned());
        let conditions: Vec<Condition> = selected.conditions.into_iter().cloned().collect();
        let compose = move || {
            let call = ProposedCall { text: &text, arguments: &arguments, arguments_preview: &fallback };
            compose::compose(&recipe, &conditions.iter().collect::<Vec<_>>(), call, observations)
        };
        Ok((run_blocking(compose).await?, Some(before)))
    }

    /// Shows what the SQL statements of the call change.
    async fn run_sql(
        &self,
        selected: &SelectedAlternative<'_>,
        sql: &SqlRecipe,
        arguments: &cel::Value,
        arguments_preview: &mut Preview,
    ) -> Result<(Preview, Option<StateBefore>), Fault> {
        let recipe = selected.recipe;
        let statements = finish_in_time(async {
            let statements = sql::parse_statements(sql, &self.tool_title(), arguments).await?;
            sql::apply_statement_labels(recipe, &statements, arguments_preview);
            sql::observe_statements(self, sql, statements, arguments).await
        });
        let statements = statements.await?;
        let may_confirm = self.may_confirm(recipe);
        let call = ProposedCall { text: self.request.arguments.get(), arguments, arguments_preview };
        let preview = sql::compose_statements(recipe, sql, may_confirm, &selected.conditions, call, &statements)?;
        Ok((preview, Some(StateBefore { alternative: selected.position, values: Vec::new(), statements })))
    }

    /// Parses the arguments of the call for use in expressions.
    pub(super) async fn parse_arguments(&self) -> Result<cel::Value, Fault> {
        let text = self.request.arguments.get().to_owned();
        run_blocking(move || expressions::parse_arguments(&text)).await
    }

    fn tool_title(&self) -> String {
        let PreviewRequest { provider, tool, .. } = self.request;
        let tools = provider.tools();
        tools.iter().find(|definition| definition.name == tool).map_or(String::new(), |found| found.title.clone())
    }

    /// Makes one query, which only reads, by the tool of the recipe.
    pub(super) async fn query(
        &self,
        sql: &SqlRecipe,
        query: &str,
        arguments: &cel::Value,
    ) -> Result<QueryAnswer, Fault> {
        let tools = self.request.provider.tools();
        let tool = self.request.provider.exposed_name(&sql.query.tool);
        let definition = self.pinned_tool(&tool, &tools)?;
        let server = self.request.provider.name();
        let mut fields = expressions::render_fields(&sql.query.arguments, &[("arguments", arguments)])?;
        fields.retain(|_, value| !value.is_null());
        fields.insert(sql.query.argument.clone(), query.into());
        let call = raw_json(Value::Object(fields).to_string())?;
        if !sql.is_trusted && !self.request.directory.is_accepted(server, &tool, &call) {
            let reason = format!(
                "the preview's query calls {tool}, and nobody has accepted its definition: accept the known reads of \
                 the server, or name its recipes in `mcpServers.{server}.previews`"
            );
            return Err(Fault::new("acceptance", reason));
        }
        // If the called tool has a recipe of its own, that recipe must find a statement that only reads. The recipe of the
        // change could pass the query in another argument than the one that the tool runs, or pass the change itself.
        let own_recipe = self.request.provider.recipe(&tool).and_then(|recipe| recipe.sql.as_ref());
        if own_recipe.is_some_and(|own| !own.is_read(&definition.title, call.get())) {
            return Err(Fault::new("query", format!("the call of {tool} would not only read")));
        }
        let (restricted, state_key) = (self.is_restricted(&tool, &call)?, state_keys::key_of_query(&tool, &call));
        let result = self.call(&tool, &call).await.map_err(|error| Fault::from_call_error(&tool, error))?;
        let text = content_text(&result.content);
        if result.is_error {
            return Err(Fault::from_error_result(&tool, &text));
        }
        Ok(QueryAnswer { query: query.to_owned(), rows: sql::parse_rows(&tool, &text)?, restricted, state_key })
    }

    /// Reads the dry run, or else the current state, and the recipe's other reads.
    async fn observe(&self, recipe: &Recipe, arguments: &cel::Value) -> Result<Observations, Fault> {
        let may_confirm = self.may_confirm(recipe);
        let mut observations = Observations { may_confirm, ..Observations::default() };
        if let Some(dry_run) = &recipe.dry_run {
            match self.dry_run(dry_run, arguments).await {
                Ok(observation) => observations.dry_run = Some(observation),
                Err(fault)
                    if recipe.before.is_none()
                        || fault.transient_error.is_some()
                        || fault.must_fail.is_some()
                        || is_dry_run(recipe, self.request.arguments.get()) =>
                {
                    return Err(fault);
                }
                // The current state is shown instead. The failure may mean that the call itself will fail too.
                Err(fault) => observations.failed_dry_run = Some(fault),
            }
        }
        if let (None, Some(before)) = (&observations.dry_run, &recipe.before) {
            observations.before = self.read_each(before, arguments).await?;
            if observations.before.is_empty() {
                return Err(Fault::new("elements", "`for_each` gives an empty list, so there is nothing to compare"));
            }
        }
        if observations.dry_run.is_none() && recipe.before.is_none() && recipe.after.is_some() {
            // The target does not exist yet.
            observations.before = vec![Observation::default()];
        }
        for read in &recipe.reads {
            observations.reads.extend(self.read_each(read, arguments).await?);
        }
        Ok(observations)
    }

    /// Returns `true` if the recipe may answer a question of the server.
    fn may_confirm(&self, recipe: &Recipe) -> bool {
        recipe.confirm.as_ref().is_some_and(|confirm| confirm.is_trusted || self.is_accepted())
    }

    /// Returns `true` if a reviewer has accepted the tool of the call, at least for its operation.
    fn is_accepted(&self) -> bool {
        let PreviewRequest { directory, provider, tool, arguments, .. } = self.request;
        directory.is_accepted(provider.name(), tool, arguments)
    }

    async fn dry_run(&self, dry_run: &DryRun, arguments: &cel::Value) -> Result<Observation, Fault> {
        let PreviewRequest { provider, tool, arguments: raw_arguments, .. } = self.request;
        let tools = provider.tools();
        let definition = self.pinned_tool(tool, &tools)?;
        if !dry_run.is_trusted && !self.is_accepted() {
            let server = provider.name();
            return Err(Fault::new(
                "acceptance",
                format!(
                    "a dry run calls {tool} itself, and nobody has accepted its definition: accept it, or name its \
                     recipe in `mcpServers.{server}.previews`"
                ),
            ));
        }
        let has_argument =
            |name: &str| definition.input_schema.get("properties").is_some_and(|all| all.get(name).is_some());
        if let Some((name, _)) = dry_run.arguments.iter().find(|(name, _)| !has_argument(name)) {
            return Err(Fault::new("schema", format!("there is no dry run: {tool} has no argument `{name}`")));
        }
        let added_arguments: Vec<(&str, String)> =
            dry_run.arguments.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let edits: Vec<(&str, MemberEdit<'_>)> =
            added_arguments.iter().map(|(name, value)| (*name, MemberEdit::Set(value))).collect();
        let call = raw_json(json::edit(raw_arguments.get(), &edits))?;
        let restricted = self.is_restricted(tool, &call)?;
        let result = self.call(tool, &call).await.map_err(|error| Fault::from_call_error(tool, error))?;
        if result.is_error {
            let text = content_text(&result.content);
            let must_fail = match &dry_run.must_fail {
                Some(pattern) if pattern.0.is_match(&text) => Some(self.dry_run_failure(dry_run, arguments)?),
                _ => None,
            };
            return Err(Fault { must_fail, ..Fault::from_error_result("the dry run", &text) });
        }
        let variables = expressions::variables(arguments, None);
        let value = expressions::pick_value("the dry run", &result, &dry_run.pick, dry_run.display_format, &variables)?;
        let label = dry_run.label.clone().unwrap_or_else(|| "Dry run".to_owned());
        let state_key = dry_run.reads_as.as_ref().and_then(|read| {
            let (tool, call) = self.read_call(read, &variables).ok()?;
            state_keys::key_of_read(read, &tool, &call)
        });
        let display_format = dry_run.display_format;
        Ok(Observation { label, value: Some(value), display_format, restricted, element: None, state_key })
    }

    /// Tells whether the proposer may know why the dry run failed. The dry run itself is a call of a reviewed tool, so the
    /// recipe names a read that shows the same state.
    fn dry_run_failure(&self, dry_run: &DryRun, arguments: &cel::Value) -> Result<CertainFailure, Fault> {
        let Some(read) = &dry_run.reads_as else { return Ok(CertainFailure::Restricted) };
        let (tool, call) = self.read_call(read, &expressions::variables(arguments, None))?;
        let verdict = self.request.directory.verdict(self.request.provider.name(), &tool, &self.principal, &call);
        let is_readable = verdict == Verdict::Allow && self.pinned_tool(&tool, &self.request.provider.tools()).is_ok();
        Ok(CertainFailure::new(is_readable))
    }

    /// Returns the tool and the arguments of a read.
    fn read_call(
        &self,
        read: &PreviewRead,
        variables: &[(&str, &cel::Value)],
    ) -> Result<(String, Box<RawValue>), Fault> {
        let mut fields = expressions::render_fields(&read.arguments, variables)?;
        fields.retain(|_, value| !value.is_null());
        Ok((self.request.provider.exposed_name(&read.tool), raw_json(Value::Object(fields).to_string())?))
    }

    /// Makes a read once, or for each element of its list.
    pub(super) async fn read_each(
        &self,
        read: &PreviewRead,
        arguments: &cel::Value,
    ) -> Result<Vec<Observation>, Fault> {
        let elements = expressions::elements(read.for_each.as_ref(), arguments)?;
        let mut observations = Vec::with_capacity(elements.len());
        for chunk in elements.chunks(MAX_CONCURRENT_READS) {
            let reads = chunk.iter().map(|element| async move {
                let variables = expressions::variables(arguments, element.as_ref());
                Ok(Observation { element: element.clone(), ..self.read(read, &variables).await? })
            });
            observations.extend(try_join_all(reads).await?);
        }
        Ok(observations)
    }

    /// Reads a value. `variables` are those of the read's expressions.
    pub(super) async fn read(
        &self,
        read: &PreviewRead,
        variables: &[(&str, &cel::Value)],
    ) -> Result<Observation, Fault> {
        let (tool, call) = self.read_call(read, variables)?;
        let state_key = state_keys::key_of_read(read, &tool, &call);
        self.pinned_tool(&tool, &self.request.provider.tools())?;
        let label =
            expressions::display_text(expressions::render("label", &read.label, variables)?).unwrap_or_default();
        let restricted = self.is_restricted(&tool, &call)?;
        let missing = |text: &str| read.missing.as_ref().is_some_and(|pattern| pattern.0.is_match(text));
        let value = match self.call(&tool, &call).await {
            Err(error) if missing(&error.message) => None,
            Err(error) => return Err(Fault::from_call_error(&tool, error)),
            Ok(result) if result.is_error => {
                let text = content_text(&result.content);
                if !missing(&text) {
                    let is_certain = read.must_fail.as_ref().is_some_and(|pattern| pattern.0.is_match(&text));
                    let is_readable = !self.restricted.load(Ordering::Relaxed);
                    let must_fail = is_certain.then(|| CertainFailure::new(is_readable));
                    return Err(Fault { must_fail, ..Fault::from_error_result(&tool, &text) });
                }
                None
            }
            Ok(result) => Some(expressions::pick_value(&tool, &result, &read.pick, read.display_format, variables)?),
        };
        // A selection that leaves null means that there is nothing, too.
        let value = value.filter(|value| !value.is_null());
        Ok(Observation { label, value, display_format: read.display_format, restricted, element: None, state_key })
    }

    /// Returns the tool's definition if it is offered and pinned.
    fn pinned_tool<'t>(&self, tool: &str, tools: &'t [ToolDef]) -> Result<&'t ToolDef, Fault> {
        let definition = tools.iter().find(|definition| definition.name == tool);
        let definition = definition.ok_or_else(|| Fault::new("tool", format!("the server offers no tool {tool}")))?;
        if self.request.directory.is_pinned(self.request.provider.name(), tool) {
            return Ok(definition);
        }
        let server = self.request.provider.name();
        let message = format!(
            "the definition of {tool} is not accepted for the server's configuration; accept it with \
             `countersign servers accept {server} {tool}`"
        );
        Err(Fault::new("pin", message))
    }

    /// Returns `true` if policy puts the call under review for the proposer.
    ///
    /// # Errors
    /// Fails if policy denies the call to the proposer.
    fn is_restricted(&self, tool: &str, call: &RawValue) -> Result<bool, Fault> {
        let verdict = self.request.directory.verdict(self.request.provider.name(), tool, &self.principal, call);
        self.restricted.fetch_or(verdict != Verdict::Allow, Ordering::Relaxed);
        match verdict {
            Verdict::Allow => Ok(false),
            Verdict::Review => Ok(true),
            Verdict::Deny => Err(Fault::new("policy", format!("policy denies {tool} to the proposer"))),
        }
    }

    async fn call(&self, tool: &str, arguments: &RawValue) -> Result<ToolResult, McpError> {
        let context = CallContext {
            cancel: self.request.context.cancel.clone(),
            ..CallContext::new(Arc::clone(&self.principal))
        };
        self.request.provider.call(tool, arguments, &context).await
    }
}

fn raw_json(text: String) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(text).map_err(|_| Fault::new("arguments", "the arguments of a call could not be written"))
}

/// Awaits the calls of a preview or a verification, within the time limit.
pub(super) async fn finish_in_time<T>(work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let result = tokio::time::timeout(MAX_PREVIEW_TIME, work).await;
    result.unwrap_or_else(|_| Err(Fault::timed_out(MAX_PREVIEW_TIME.as_secs())))
}

/// Runs the work on a thread for blocking tasks, off the threads that serve connections.
pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let result = background::spawn_blocking(work).await;
    result.unwrap_or_else(|_| Err(Fault::new("internal", "the preview could not be computed")))
}
