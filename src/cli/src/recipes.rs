//! What `config check` can say of recipes beyond their form: whether the tools and arguments that they name are those of
//! the server, as far as the store knows its definitions. A server may offer more by now, so this only warns.

use std::collections::BTreeMap;

use serde_json::Value;

use countersign_config::{Config, UpstreamConfig};
use countersign_domain::policy::{Condition, Pins};
use countersign_domain::recipes::{Read, Recipe};
use countersign_protocol::suggest;
use countersign_store::Place;
use countersign_upstream::Names;

/// One sentence each.
pub fn warnings(config: &Config) -> Vec<String> {
    let said = Place::configured(&config.data, config.store_server()).and_then(|place| place.said());
    let Ok(Some(said)) = said else { return Vec::new() };
    config.upstreams.iter().flat_map(|server| of_server(server, &said.pins)).collect()
}

/// The arguments of each tool that is known, by the server's own names; those of tools whose definition was not kept are
/// not known.
type Known = BTreeMap<String, Option<Vec<String>>>;

fn known(server: &UpstreamConfig, pins: &Pins) -> Known {
    let names = Names::new(server);
    let all = pins.servers.get(&server.name).into_iter().flatten();
    let each = all.filter_map(|(tool, pin)| {
        let definition: Option<Value> = pin.text.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let arguments = definition.and_then(|definition| {
            let properties = definition.pointer("/inputSchema/properties")?.as_object()?;
            Some(properties.keys().cloned().collect())
        });
        Some((names.own(tool)?.to_owned(), arguments))
    });
    each.collect()
}

fn of_server(server: &UpstreamConfig, pins: &Pins) -> Vec<String> {
    let known = known(server, pins);
    if known.is_empty() {
        return Vec::new();
    }
    let mut check = Check { server: &server.name, known: &known, told: Vec::new() };
    for tool in &server.previews.written {
        if let Some(recipe) = server.previews.get(tool) {
            check.recipe(tool, recipe);
        }
    }
    check.told
}

struct Check<'a> {
    server: &'a str,
    known: &'a Known,
    told: Vec<String>,
}

impl Check<'_> {
    fn recipe(&mut self, tool: &str, recipe: &Recipe) {
        if !self.tool(tool, tool) {
            return;
        }
        let Recipe { target, summary, dry_run, before, after, reads, .. } = recipe;
        for condition in [target, summary, after].into_iter().flatten() {
            self.condition(tool, condition);
        }
        for (name, _) in dry_run.iter().flat_map(|dry_run| &dry_run.arguments) {
            self.argument(tool, tool, name);
        }
        for read in before.iter().chain(reads) {
            self.read(tool, read);
        }
    }

    fn read(&mut self, tool: &str, read: &Read) {
        let there = self.tool(tool, &read.tool);
        for (name, condition) in &read.arguments {
            if there {
                self.argument(tool, &read.tool, name);
            }
            self.condition(tool, condition);
        }
        for condition in [&read.pick.keep, &read.pick.paths].into_iter().flatten() {
            self.condition(tool, condition);
        }
    }

    /// What an expression looks at of the arguments that were proposed.
    fn condition(&mut self, tool: &str, condition: &Condition) {
        for name in condition.arguments() {
            self.argument(tool, tool, name);
        }
    }

    /// Whether the tool is known; says so if not. `of` is the tool that the recipe is for.
    fn tool(&mut self, of: &str, tool: &str) -> bool {
        if self.known.contains_key(tool) {
            return true;
        }
        let near = suggest::nearest(tool, self.known.keys().map(String::as_str));
        let count = self.known.len();
        self.tell(of, format!("there is no tool `{tool}` among the {count} that are known of {}", self.server), near);
        false
    }

    fn argument(&mut self, of: &str, tool: &str, name: &str) {
        let Some(Some(arguments)) = self.known.get(tool) else { return };
        if arguments.iter().any(|known| known == name) {
            return;
        }
        let near = suggest::nearest(name, arguments.iter().map(String::as_str)).map(str::to_owned);
        self.tell(of, format!("`{tool}` has no argument `{name}`"), near.as_deref());
    }

    fn tell(&mut self, of: &str, what: String, near: Option<&str>) {
        let meant = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        let told = format!("mcpServers.{}.previews.{of}: {what}{meant}", self.server);
        if !self.told.contains(&told) {
            self.told.push(told);
        }
    }
}
