//! Checks preview recipes for `config check`: the named tools and arguments should exist in the server's definitions in the
//! store. The server may offer more tools by now, so a missing one causes only a warning.

use std::{collections::BTreeMap, iter};

use serde_json::Value;

use countersign_config::{Config, UpstreamConfig};
use countersign_domain::policy::{Condition, Pins};
use countersign_domain::recipes::{PreviewRead, Recipe, RecordField, StateAfter, TextTemplate};
use countersign_protocol::suggest;
use countersign_store::StoreLocation;
use countersign_upstream::Names;

/// Returns one sentence for each problem.
pub fn warnings(config: &Config) -> Vec<String> {
    let records =
        StoreLocation::configured(&config.data, config.store_server()).and_then(|location| location.reviewer_records());
    let Ok(Some(records)) = records else { return Vec::new() };
    config.upstreams.iter().flat_map(|server| server_warnings(server, &records.pins)).collect()
}

/// The arguments of each known tool, by the server's own tool names. `None` if the definition was not kept.
type KnownTools = BTreeMap<String, Option<Vec<String>>>;

fn known_tools(server: &UpstreamConfig, pins: &Pins) -> KnownTools {
    let names = Names::new(server);
    let server_pins = pins.servers.get(&server.name).into_iter().flatten();
    let tools = server_pins.filter_map(|(tool, pin)| {
        let definition: Option<Value> = pin.text.as_deref().and_then(|text| text.parse().ok());
        let arguments = definition.and_then(|definition| {
            let properties = definition.pointer("/inputSchema/properties")?.as_object()?;
            Some(properties.keys().cloned().collect())
        });
        Some((names.upstream_name(tool)?.to_owned(), arguments))
    });
    tools.collect()
}

fn server_warnings(server: &UpstreamConfig, pins: &Pins) -> Vec<String> {
    let known_tools = known_tools(server, pins);
    if known_tools.is_empty() {
        return Vec::new();
    }
    let mut checker = RecipeChecker { server: &server.name, known_tools: &known_tools, warnings: Vec::new() };
    for (tool, recipe) in &*server.previews.by_tool {
        // A server may offer only some of the tools that a shipped set is for.
        if server.previews.tools_with_own_recipe.contains(tool) || known_tools.contains_key(tool) {
            checker.check_recipe(tool, recipe);
        }
    }
    checker.warnings
}

struct RecipeChecker<'a> {
    server: &'a str,
    known_tools: &'a KnownTools,
    warnings: Vec<String>,
}

impl RecipeChecker<'_> {
    fn check_recipe(&mut self, tool: &str, recipe: &Recipe) {
        if !self.check_tool(tool, tool) {
            return;
        }
        let dispatcher = recipe.dispatcher.as_ref();
        let operation_recipes = dispatcher.iter().flat_map(|dispatcher| dispatcher.operations.values());
        let variants = iter::once(recipe).chain(operation_recipes).flat_map(|recipe| &recipe.variants);
        for condition in dispatcher.map(|dispatcher| &dispatcher.argument).into_iter().chain(variants.map(|v| &v.when))
        {
            self.check_condition(tool, condition);
        }
        for recipe in recipe.alternatives() {
            self.check_alternative(tool, recipe);
        }
        if let Some(sql) = &recipe.sql {
            self.check_condition(tool, &sql.statement);
            self.check_argument(tool, &sql.query.tool, &sql.query.argument);
            self.check_call(tool, &sql.query.tool, &sql.query.arguments);
        }
    }

    fn check_alternative(&mut self, tool: &str, recipe: &Recipe) {
        let Recipe { operation, target, summary, label, dry_run, before, after, reads, verify, confirm, .. } = recipe;
        for text in [operation, target, summary, label].into_iter().flatten() {
            self.check_template(tool, text);
        }
        let expected = verify.as_ref().and_then(|verify| verify.after.as_ref());
        for after in after.iter().chain(expected) {
            match after {
                StateAfter::Expression(condition) => self.check_condition(tool, condition),
                StateAfter::Fields(fields) => fields.iter().for_each(|field| self.check_template(tool, &field.value)),
            }
        }
        for field in confirm.iter().flat_map(|confirmation| &confirmation.answer) {
            self.check_template(tool, &field.value);
        }
        for (name, _) in dry_run.iter().flat_map(|dry_run| &dry_run.arguments) {
            self.check_argument(tool, tool, name);
        }
        for read in before.iter().chain(reads).chain(verify.as_ref().map(|verify| &verify.read)) {
            self.check_read(tool, read);
        }
    }

    fn check_read(&mut self, tool: &str, read: &PreviewRead) {
        self.check_call(tool, &read.tool, &read.arguments);
        self.check_template(tool, &read.label);
        for condition in [&read.for_each, &read.pick.keep, &read.pick.paths].into_iter().flatten() {
            self.check_condition(tool, condition);
        }
    }

    /// Checks a call that the recipe makes to `called_tool`.
    fn check_call(&mut self, tool: &str, called_tool: &str, arguments: &[RecordField]) {
        self.check_tool(tool, called_tool);
        for RecordField { name, value, .. } in arguments {
            self.check_argument(tool, called_tool, name);
            self.check_template(tool, value);
        }
    }

    fn check_template(&mut self, tool: &str, text: &TextTemplate) {
        text.expressions().into_iter().for_each(|condition| self.check_condition(tool, condition));
    }

    /// Checks the proposed arguments that an expression reads.
    fn check_condition(&mut self, tool: &str, condition: &Condition) {
        for name in &condition.facts().arguments {
            self.check_argument(tool, tool, name);
        }
    }

    /// Returns `true` if the tool is known, and warns otherwise. `recipe_tool` is the tool that has the recipe.
    fn check_tool(&mut self, recipe_tool: &str, tool: &str) -> bool {
        if self.known_tools.contains_key(tool) {
            return true;
        }
        let suggestion = suggest::nearest(tool, self.known_tools.keys().map(String::as_str));
        let count = self.known_tools.len();
        self.warn(recipe_tool, format!("`{tool}` is not among the {count} known tools of {}", self.server), suggestion);
        false
    }

    /// Checks that a tool has this argument, as far as the tool is known.
    fn check_argument(&mut self, recipe_tool: &str, tool: &str, name: &str) {
        let Some(Some(arguments)) = self.known_tools.get(tool) else { return };
        if arguments.iter().any(|argument| argument == name) {
            return;
        }
        let suggestion = suggest::nearest(name, arguments.iter().map(String::as_str)).map(str::to_owned);
        self.warn(recipe_tool, format!("`{tool}` has no argument `{name}`"), suggestion.as_deref());
    }

    fn warn(&mut self, recipe_tool: &str, problem: String, near: Option<&str>) {
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let warning = format!("mcpServers.{}.previews.{recipe_tool}: {problem}{hint}", self.server);
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
