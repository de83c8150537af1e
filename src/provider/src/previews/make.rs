//! Makes a preview by a recipe: which calls are made, on whose behalf, within what time.

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
    fault::Fault,
    made::{self, Gathered, Made, Seen},
    rendered,
};
use crate::{CallContext, NoProgress, Provider, ProviderDirectory, ToolDef, ToolResult};
use countersign_domain::{
    changes::Preview,
    policy::{Condition, Verdict},
    principal::{Principal, Role},
    recipes::{DryRun, Read, Recipe},
};
use countersign_protocol::json::{self, Op};

/// All calls of one preview together. Shorter than what a proposal and a recheck wait for, so that it is told.
const TIME: Duration = Duration::from_secs(8);
/// Characters of a target's name that changes are kept apart by; longer ones are cut, which joins some.
const MAX_LOCK: usize = 1000;

/// See the module's page.
pub struct Maker<'a> {
    directory: &'a dyn ProviderDirectory,
    provider: &'a Arc<dyn Provider>,
    /// What clients call a tool of this server.
    expose: &'a (dyn Fn(&str) -> String + Send + Sync),
    /// The proposer, with no more rights than an agent has: the same whenever it is taken anew.
    principal: Arc<Principal>,
    cancel: CancellationToken,
    /// The proposer could not make one of the calls unseen. From then on even that a call fails says something of what is
    /// hidden.
    restricted: AtomicBool,
}

impl<'a> Maker<'a> {
    pub fn new(
        directory: &'a dyn ProviderDirectory,
        provider: &'a Arc<dyn Provider>,
        expose: &'a (dyn Fn(&str) -> String + Send + Sync),
        context: &CallContext,
    ) -> Self {
        let principal = Arc::new(Principal { role: Role::Agent, ..(*context.principal).clone() });
        let (cancel, restricted) = (context.cancel.clone(), AtomicBool::new(false));
        Self { directory, provider, expose, principal, cancel, restricted }
    }

    /// `tool` is what clients call it; `plain` the preview that shows the arguments.
    pub async fn make(&self, recipe: &Recipe, tool: &str, raw: &RawValue, plain: Preview) -> Made {
        let mut made = self.attempt(recipe, tool, raw, plain).await;
        made.preview.note.restricted = self.restricted.load(Ordering::Relaxed);
        made
    }

    async fn attempt(&self, recipe: &Recipe, tool: &str, raw: &RawValue, mut plain: Preview) -> Made {
        let text = raw.get().to_owned();
        let arguments = match blocking(move || rendered::arguments(&text)).await {
            Ok(arguments) => arguments,
            Err(fault) => return made::failed(plain, fault),
        };
        entitle(recipe, &arguments, &mut plain);
        let gathered = tokio::time::timeout(TIME, self.gather(recipe, tool, raw, &arguments)).await;
        let gathered = match gathered {
            Ok(Ok(gathered)) => gathered,
            Ok(Err(fault)) => return made::failed(plain, fault),
            Err(_) => return made::failed(plain, Fault::too_slow(TIME.as_secs())),
        };
        let (recipe, shown) = (recipe.clone(), plain.clone());
        match blocking(move || made::compose(&recipe, &arguments, &shown, gathered)).await {
            Ok(preview) => Made { preview, passing: None },
            Err(fault) => made::failed(plain, fault),
        }
    }

    /// A dry run, or else the present state; and whatever else is to be seen.
    async fn gather(
        &self,
        recipe: &Recipe,
        tool: &str,
        raw: &RawValue,
        arguments: &cel::Value,
    ) -> Result<Gathered, Fault> {
        let tools = self.provider.tools();
        let mut gathered = Gathered::default();
        if let Some(dry) = &recipe.dry_run {
            match self.dry_run(dry, tool, &tools, raw, arguments).await {
                Ok(seen) => gathered.dry_run = Some(seen),
                Err(fault) if recipe.before.is_none() || fault.passing.is_some() => return Err(fault),
                // There is another way; why this one did not work may say that the call itself will not.
                Err(fault) => gathered.note = Some(fault.reason),
            }
        }
        if let (None, Some(before)) = (&gathered.dry_run, &recipe.before) {
            gathered.before = Some(self.read(before, &tools, arguments).await?);
        }
        for read in &recipe.reads {
            gathered.reads.push(self.read(read, &tools, arguments).await?);
        }
        Ok(gathered)
    }

    async fn dry_run(
        &self,
        dry: &DryRun,
        tool: &str,
        tools: &[ToolDef],
        raw: &RawValue,
        arguments: &cel::Value,
    ) -> Result<Seen, Fault> {
        let def = self.offered(tool, tools)?;
        if !dry.vouched && !self.directory.is_accepted(self.provider.name(), tool) {
            let server = self.provider.name();
            return Err(Fault::new(
                "acceptance",
                format!(
                    "a dry run calls {tool} itself, and nobody has accepted its definition: accept it, or name its \
                     recipe in `mcpServers.{server}.previews`"
                ),
            ));
        }
        let has = |name: &str| def.input_schema.get("properties").is_some_and(|all| all.get(name).is_some());
        if let Some((name, _)) = dry.arguments.iter().find(|(name, _)| !has(name)) {
            return Err(Fault::new("schema", format!("there is no dry run: {tool} has no argument `{name}`")));
        }
        let added: Vec<(&str, String)> =
            dry.arguments.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let edits: Vec<(&str, Op<'_>)> = added.iter().map(|(name, value)| (*name, Op::Set(value))).collect();
        let call = json(json::edit(raw.get(), &edits))?;
        let restricted = self.restricted(tool, &call)?;
        let result = self.call(tool, &call).await.map_err(|error| error.into_fault(tool))?;
        if result.is_error {
            return Err(Fault::of_answer("the dry run", &rendered::said_text(&result)));
        }
        let value = rendered::picked("the dry run", &result, (&dry.pick, dry.shown), arguments)?;
        let label = dry.label.clone().unwrap_or_else(|| "Dry run".to_owned());
        Ok(Seen { label, value: Some(value), shown: dry.shown, restricted })
    }

    async fn read(&self, read: &Read, tools: &[ToolDef], arguments: &cel::Value) -> Result<Seen, Fault> {
        let tool = (self.expose)(&read.tool);
        self.offered(&tool, tools)?;
        let mut object = Map::new();
        for (name, expression) in &read.arguments {
            let value = rendered::evaluate(name, expression, &[("arguments", arguments)])?;
            if !value.is_null() {
                object.insert(name.clone(), value);
            }
        }
        let call = json(Value::Object(object).to_string())?;
        let restricted = self.restricted(&tool, &call)?;
        let missing = |text: &str| read.missing.as_ref().is_some_and(|pattern| pattern.0.is_match(text));
        let value = match self.call(&tool, &call).await {
            Err(error) if missing(&error.0.message) => None,
            Err(error) => return Err(error.into_fault(&tool)),
            Ok(result) if result.is_error => {
                let text = rendered::said_text(&result);
                if !missing(&text) {
                    return Err(Fault::of_answer(&tool, &text));
                }
                None
            }
            Ok(result) => Some(rendered::picked(&tool, &result, (&read.pick, read.shown), arguments)?),
        };
        Ok(Seen { label: read.label.clone(), value, shown: read.shown, restricted })
    }

    fn offered<'t>(&self, tool: &str, tools: &'t [ToolDef]) -> Result<&'t ToolDef, Fault> {
        let def = tools.iter().find(|def| def.name == tool);
        let def = def.ok_or_else(|| Fault::new("tool", format!("the server offers no tool {tool}")))?;
        if self.directory.is_pinned(self.provider.name(), tool) {
            return Ok(def);
        }
        Err(Fault::new("pin", format!("the definition of {tool} is new or has changed, and waits to be accepted")))
    }

    /// Whether the proposer, who is spoken for, could not make that call unseen.
    fn restricted(&self, tool: &str, call: &RawValue) -> Result<bool, Fault> {
        let verdict = self.directory.verdict(self.provider.name(), tool, &self.principal, call);
        self.restricted.fetch_or(verdict != Verdict::Allow, Ordering::Relaxed);
        match verdict {
            Verdict::Allow => Ok(false),
            Verdict::Review => Ok(true),
            Verdict::Deny => Err(Fault::new("policy", format!("policy denies {tool} to the proposer"))),
        }
    }

    async fn call(&self, tool: &str, arguments: &RawValue) -> Result<ToolResult, CallError> {
        let context = CallContext {
            principal: Arc::clone(&self.principal),
            cancel: self.cancel.clone(),
            progress: Arc::new(NoProgress),
            change_id: None,
            inquirer: None,
            session: None,
            permit: None,
            approved_state: None,
            meter: None,
        };
        self.provider.call(tool, arguments, &context).await.map_err(CallError)
    }
}

struct CallError(countersign_protocol::McpError);

impl CallError {
    fn into_fault(self, tool: &str) -> Fault {
        Fault::of_call(tool, self.0)
    }
}

/// Names the target and says what is done, as far as the recipe knows better. Only arguments are looked at, which are
/// the proposer's own.
fn entitle(recipe: &Recipe, arguments: &cel::Value, plain: &mut Preview) {
    let text = |what: &str, expression: &Option<Condition>| {
        let value = rendered::evaluate(what, expression.as_ref()?, &[("arguments", arguments)]).ok()?;
        rendered::text(value).filter(|text| !text.is_empty())
    };
    if let Some(operation) = recipe.operation {
        plain.operation = operation;
    }
    if let Some(target) = text("target", &recipe.target) {
        plain.target.lock_key = lock(&target);
        plain.target.label = target;
    }
    if let Some(entity) = &recipe.entity {
        plain.target.entity_type.clone_from(entity);
    }
    if let Some(summary) = text("summary", &recipe.summary) {
        plain.summary = title(&summary);
    }
}

/// Characters of a summary.
const MAX_SUMMARY: usize = 300;

/// A summary is one line, which long arguments do not flood.
fn title(text: &str) -> String {
    let line = text.lines().map(str::trim_end).find(|line| !line.trim().is_empty()).unwrap_or_default();
    let cut: String = line.chars().take(MAX_SUMMARY).collect();
    if cut.len() < text.trim_end().len() { format!("{cut} …") } else { cut }
}

/// One key for the ways in which a path may be written.
fn lock(target: &str) -> String {
    let target: String = target.chars().take(MAX_LOCK).collect();
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

fn json(text: String) -> Result<Box<RawValue>, Fault> {
    RawValue::from_string(text).map_err(|_| Fault::new("arguments", "the arguments of a call could not be written"))
}

/// Away from the thread that serves connections.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Fault::new("internal", "it could not be computed")))
}

#[cfg(test)]
mod tests {
    use super::{MAX_SUMMARY, lock, title};

    #[test]
    fn a_summary_is_one_line() {
        assert_eq!(title("Commit in r: Fix it\n\nbecause"), "Commit in r: Fix it …");
        assert_eq!(title("Write /a b\n"), "Write /a b");
        assert_eq!(title(&"x".repeat(1000)).chars().count(), MAX_SUMMARY + 2);
    }

    #[test]
    fn one_file_has_one_key_however_it_is_written() {
        for path in ["/a/b", "/a//b", "/a/./b", "/a/x/../b", "//a/b/", "/../a/b"] {
            // What is above the root is a name of its own, which is no file's.
            let expected = if path.starts_with("/..") { "/../a/b" } else { "/a/b" };
            assert_eq!(lock(path), expected, "{path}");
        }
        assert_eq!(lock("a b.."), "a b..");
        assert_eq!(lock("../x"), "../x");
        assert_ne!(lock("a/b"), lock("/a/b"));
    }
}
