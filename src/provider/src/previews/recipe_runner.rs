//! Makes a preview by a recipe: makes its calls on behalf of the proposer, within a time limit.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value, value::RawValue};
use tokio_util::sync::CancellationToken;

use super::{
    answers,
    compose::{self, ComputedPreview, Observation, Observations},
    fault::Fault,
};
use crate::{CallContext, Provider, ProviderDirectory, ToolDef, ToolResult, text::content_text};
use countersign_domain::{
    changes::Preview,
    policy::{Condition, Verdict},
    principal::{Principal, Role},
    recipes::{DryRun, PreviewRead, Recipe},
};
use countersign_protocol::{
    McpError,
    json::{self, MemberEdit},
};

/// Time limit for all calls of one preview. It is shorter than the limits of a proposal and a recheck, so that the
/// timeout can be shown.
const MAX_PREVIEW_TIME: Duration = Duration::from_secs(8);
/// Maximum characters of a lock key. Longer targets are truncated, so a few of them may share a key.
const MAX_LOCK_KEY_CHARS: usize = 1000;

/// Runs recipes for one call.
pub struct RecipeRunner<'a> {
    directory: &'a dyn ProviderDirectory,
    provider: &'a Arc<dyn Provider>,
    /// The proposer, limited to the rights of an agent so that every run gives the same preview.
    principal: Arc<Principal>,
    cancel: CancellationToken,
    /// Set if policy puts one of the calls under review for the proposer. From then on, even the failure of a call
    /// could reveal restricted data.
    restricted: AtomicBool,
}

impl<'a> RecipeRunner<'a> {
    pub fn new(directory: &'a dyn ProviderDirectory, provider: &'a Arc<dyn Provider>, context: &CallContext) -> Self {
        let principal = Arc::new(Principal { role: Role::Agent, ..(*context.principal).clone() });
        let (cancel, restricted) = (context.cancel.clone(), AtomicBool::new(false));
        Self { directory, provider, principal, cancel, restricted }
    }

    /// Runs the recipe. `tool` is the name that clients use, and `arguments_preview` the preview to fall back to.
    pub async fn run(
        &self,
        recipe: &Recipe,
        tool: &str,
        raw: &RawValue,
        arguments_preview: Preview,
    ) -> ComputedPreview {
        let mut computed = self.try_run(recipe, tool, raw, arguments_preview).await;
        computed.preview.note.restricted = self.restricted.load(Ordering::Relaxed);
        computed
    }

    async fn try_run(
        &self,
        recipe: &Recipe,
        tool: &str,
        raw: &RawValue,
        mut arguments_preview: Preview,
    ) -> ComputedPreview {
        let text = raw.get().to_owned();
        let arguments = match run_blocking(move || answers::parse_arguments(&text)).await {
            Ok(arguments) => arguments,
            Err(fault) => return compose::preview_of_failure(arguments_preview, fault),
        };
        apply_recipe_labels(recipe, &arguments, &mut arguments_preview);
        let observations = tokio::time::timeout(MAX_PREVIEW_TIME, self.observe(recipe, tool, raw, &arguments)).await;
        let observations = match observations {
            Ok(Ok(observations)) => observations,
            Ok(Err(fault)) => return compose::preview_of_failure(arguments_preview, fault),
            Err(_) => {
                return compose::preview_of_failure(arguments_preview, Fault::timed_out(MAX_PREVIEW_TIME.as_secs()));
            }
        };
        let (recipe, shown) = (recipe.clone(), arguments_preview.clone());
        match run_blocking(move || compose::compose(&recipe, &arguments, &shown, observations)).await {
            Ok(preview) => ComputedPreview { preview, transient_error: None },
            Err(fault) => compose::preview_of_failure(arguments_preview, fault),
        }
    }

    /// Reads the dry run, or else the current state, and the recipe's other reads.
    async fn observe(
        &self,
        recipe: &Recipe,
        tool: &str,
        raw: &RawValue,
        arguments: &cel::Value,
    ) -> Result<Observations, Fault> {
        let tools = self.provider.tools();
        let mut observations = Observations::default();
        if let Some(dry) = &recipe.dry_run {
            match self.dry_run(dry, tool, &tools, raw, arguments).await {
                Ok(observation) => observations.dry_run = Some(observation),
                Err(fault) if recipe.before.is_none() || fault.transient_error.is_some() => return Err(fault),
                // The current state is shown instead. The failure may mean that the call itself will fail too.
                Err(fault) => observations.note = Some(fault.reason),
            }
        }
        if let (None, Some(before)) = (&observations.dry_run, &recipe.before) {
            observations.before = Some(self.read(before, &tools, arguments).await?);
        }
        for read in &recipe.reads {
            observations.reads.push(self.read(read, &tools, arguments).await?);
        }
        Ok(observations)
    }

    async fn dry_run(
        &self,
        dry: &DryRun,
        tool: &str,
        tools: &[ToolDef],
        raw: &RawValue,
        arguments: &cel::Value,
    ) -> Result<Observation, Fault> {
        let definition = self.pinned_tool(tool, tools)?;
        if !dry.is_trusted && !self.directory.is_accepted(self.provider.name(), tool) {
            let server = self.provider.name();
            return Err(Fault::new(
                "acceptance",
                format!(
                    "a dry run calls {tool} itself, and nobody has accepted its definition: accept it, or name its \
                     recipe in `mcpServers.{server}.previews`"
                ),
            ));
        }
        let has = |name: &str| definition.input_schema.get("properties").is_some_and(|all| all.get(name).is_some());
        if let Some((name, _)) = dry.arguments.iter().find(|(name, _)| !has(name)) {
            return Err(Fault::new("schema", format!("there is no dry run: {tool} has no argument `{name}`")));
        }
        let added_arguments: Vec<(&str, String)> =
            dry.arguments.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let edits: Vec<(&str, MemberEdit<'_>)> =
            added_arguments.iter().map(|(name, value)| (*name, MemberEdit::Set(value))).collect();
        let call = raw_json(json::edit(raw.get(), &edits))?;
        let restricted = self.is_restricted(tool, &call)?;
        let result = self.call(tool, &call).await.map_err(|error| Fault::from_call_error(tool, error))?;
        if result.is_error {
            return Err(Fault::from_error_result("the dry run", &content_text(&result.content)));
        }
        let value = answers::pick_value("the dry run", &result, (&dry.pick, dry.shown), arguments)?;
        let label = dry.label.clone().unwrap_or_else(|| "Dry run".to_owned());
        Ok(Observation { label, value: Some(value), display_format: dry.shown, restricted })
    }

    async fn read(&self, read: &PreviewRead, tools: &[ToolDef], arguments: &cel::Value) -> Result<Observation, Fault> {
        let tool = self.provider.exposed_name(&read.tool);
        self.pinned_tool(&tool, tools)?;
        let mut object = Map::new();
        for (name, expression) in &read.arguments {
            let value = answers::evaluate(name, expression, &[("arguments", arguments)])?;
            if !value.is_null() {
                object.insert(name.clone(), value);
            }
        }
        let call = raw_json(Value::Object(object).to_string())?;
        let restricted = self.is_restricted(&tool, &call)?;
        let missing = |text: &str| read.missing.as_ref().is_some_and(|pattern| pattern.0.is_match(text));
        let value = match self.call(&tool, &call).await {
            Err(error) if missing(&error.message) => None,
            Err(error) => return Err(Fault::from_call_error(&tool, error)),
            Ok(result) if result.is_error => {
                let text = content_text(&result.content);
                if !missing(&text) {
                    return Err(Fault::from_error_result(&tool, &text));
                }
                None
            }
            Ok(result) => Some(answers::pick_value(&tool, &result, (&read.pick, read.shown), arguments)?),
        };
        Ok(Observation { label: read.label.clone(), value, display_format: read.shown, restricted })
    }

    /// Returns the tool's definition if it is offered and pinned.
    fn pinned_tool<'t>(&self, tool: &str, tools: &'t [ToolDef]) -> Result<&'t ToolDef, Fault> {
        let definition = tools.iter().find(|definition| definition.name == tool);
        let definition = definition.ok_or_else(|| Fault::new("tool", format!("the server offers no tool {tool}")))?;
        if self.directory.is_pinned(self.provider.name(), tool) {
            return Ok(definition);
        }
        Err(Fault::new("pin", format!("the definition of {tool} is new or has changed, and waits to be accepted")))
    }

    /// Returns `true` if policy puts the call under review for the proposer.
    ///
    /// # Errors
    /// Fails if policy denies the call to the proposer.
    fn is_restricted(&self, tool: &str, call: &RawValue) -> Result<bool, Fault> {
        let verdict = self.directory.verdict(self.provider.name(), tool, &self.principal, call);
        self.restricted.fetch_or(verdict != Verdict::Allow, Ordering::Relaxed);
        match verdict {
            Verdict::Allow => Ok(false),
            Verdict::Review => Ok(true),
            Verdict::Deny => Err(Fault::new("policy", format!("policy denies {tool} to the proposer"))),
        }
    }

    async fn call(&self, tool: &str, arguments: &RawValue) -> Result<ToolResult, McpError> {
        let context = CallContext { cancel: self.cancel.clone(), ..CallContext::new(Arc::clone(&self.principal)) };
        self.provider.call(tool, arguments, &context).await
    }
}

/// Sets the target, operation and summary that the recipe defines. They depend on the arguments only, which the
/// proposer knows.
fn apply_recipe_labels(recipe: &Recipe, arguments: &cel::Value, arguments_preview: &mut Preview) {
    let text = |name: &str, expression: &Option<Condition>| {
        let value = answers::evaluate(name, expression.as_ref()?, &[("arguments", arguments)]).ok()?;
        answers::display_text(value).filter(|text| !text.is_empty())
    };
    if let Some(operation) = recipe.operation {
        arguments_preview.operation = operation;
    }
    if let Some(target) = text("target", &recipe.target) {
        arguments_preview.target.lock_key = lock_key(&target);
        arguments_preview.target.label = target;
    }
    if let Some(entity) = &recipe.entity {
        arguments_preview.target.entity_type.clone_from(entity);
    }
    if let Some(summary) = text("summary", &recipe.summary) {
        arguments_preview.summary = summary_line(&summary);
    }
}

/// Maximum characters of a summary.
const MAX_SUMMARY: usize = 300;

/// Returns the first line that is not blank, truncated.
fn summary_line(text: &str) -> String {
    let line = text.lines().map(str::trim_end).find(|line| !line.trim().is_empty()).unwrap_or_default();
    let cut: String = line.chars().take(MAX_SUMMARY).collect();
    if cut.len() < text.trim_end().len() { format!("{cut} …") } else { cut }
}

/// Returns the same key for all spellings of a path.
fn lock_key(target: &str) -> String {
    let target: String = target.chars().take(MAX_LOCK_KEY_CHARS).collect();
    if !target.contains('/') {
        return target;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    let root = if target.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn raw_json(text: String) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(text).map_err(|_| Fault::new("arguments", "the arguments of a call could not be written"))
}

/// Runs the work on a thread for blocking tasks, off the threads that serve connections.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let result = tokio::task::spawn_blocking(work).await;
    result.unwrap_or_else(|_| Err(Fault::new("internal", "the preview could not be computed")))
}

#[cfg(test)]
mod tests {
    use super::{MAX_SUMMARY, lock_key, summary_line};

    #[test]
    fn summary_line_is_single_and_bounded() {
        assert_eq!(summary_line("Commit in r: Fix it\n\nbecause"), "Commit in r: Fix it …");
        assert_eq!(summary_line("Write /a b\n"), "Write /a b");
        assert_eq!(summary_line(&"x".repeat(1000)).chars().count(), MAX_SUMMARY + 2);
    }

    #[test]
    fn lock_key_normalizes_path_spellings() {
        for path in ["/a/b", "/a//b", "/a/./b", "/a/x/../b", "//a/b/", "/../a/b"] {
            // A path above the root keeps its own key, which belongs to no file.
            let expected = if path.starts_with("/..") { "/../a/b" } else { "/a/b" };
            assert_eq!(lock_key(path), expected, "{path}");
        }
        assert_eq!(lock_key("a b.."), "a b..");
        assert_eq!(lock_key("../x"), "../x");
        assert_ne!(lock_key("a/b"), lock_key("/a/b"));
    }
}
