//! The route table: where a name leads. Immutable; a change makes a new one.

use std::{collections::HashMap, sync::Arc};

use regex::Regex;
use serde_json::Value;

use super::{listing, ruling};
use crate::{
    config::RoutesConfig,
    policy::{Policy, Ruling, Standing},
    protocol::{
        Revision,
        param_headers::{ParamHeader, x_mcp_headers},
    },
    providers::{PromptDef, Provider, ProviderDirectory, ResourceTemplateDef, ToolDef},
};

/// A tool as it is reached: its provider, its checked schema, and what policy says of it.
pub struct ToolRoute {
    /// The name clients use.
    pub name: String,
    pub provider: Arc<dyn Provider>,
    pub def: ToolDef,
    /// `sha256:…` of the definition; part of every change, so that nobody approves one tool and runs another.
    pub hash: String,
    /// Compiled input schema. Network `$ref`s are never followed.
    pub input: jsonschema::Validator,
    /// What was said of this definition.
    pub standing: Standing,
    /// What the policy says of calls.
    pub ruling: Ruling,
    /// Arguments that HTTP clients mirror into headers (2026-07-28/server/tools, `x-mcp-header`).
    pub param_headers: Vec<ParamHeader>,
    rendered: [String; 5],
}

impl ToolRoute {
    /// The tool's entry in `tools/list`.
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        &self.rendered[revision as usize]
    }
}

/// A prompt as it is reached.
pub struct PromptRoute {
    pub provider: Arc<dyn Provider>,
    pub def: PromptDef,
    rendered: [String; 5],
}

impl PromptRoute {
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        &self.rendered[revision as usize]
    }
}

/// A configured regular expression: names that match lead to another name, built from its captures.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub pattern: Regex,
    /// The routed name, with `$1` or `$name` for captures.
    pub to: String,
}

/// The configured further names of tools.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    /// What a name begins with, and the provider that the rest is a tool of.
    pub prefixes: Vec<(String, String)>,
    pub patterns: Vec<Pattern>,
}

impl Aliases {
    /// # Errors
    /// [`RouteError::Pattern`]
    pub fn new(config: &RoutesConfig) -> Result<Self, RouteError> {
        let patterns = config.patterns.iter().map(|(pattern, to)| {
            // The whole name must match: a pattern that fits somewhere in a name is almost never meant.
            let compiled = Regex::new(&format!("^(?:{pattern})$"))
                .map_err(|e| RouteError::Pattern { pattern: pattern.clone(), reason: e.to_string() })?;
            Ok(Pattern { pattern: compiled, to: to.clone() })
        });
        Ok(Self { prefixes: config.prefixes.clone(), patterns: patterns.collect::<Result<_, _>>()? })
    }
}

/// Why a table cannot be built; the old one stays.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("both {first} and {second} offer {what} named {name:?}")]
    Collision { what: &'static str, name: String, first: String, second: String },
    #[error("the pattern {pattern:?} of the routes is not a regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("the input schema of {provider}'s tool {tool:?} cannot be used: {reason}")]
    Schema { provider: String, tool: String, reason: String },
}

/// See the module's page.
pub struct RouteTable {
    /// Rises with every table; cursors name it.
    pub generation: u64,
    providers: Vec<Arc<dyn Provider>>,
    tools: HashMap<String, Arc<ToolRoute>>,
    /// In listing order: by provider, then as the provider lists them. Stable across restarts.
    tool_order: Vec<Arc<ToolRoute>>,
    prompts: HashMap<String, Arc<PromptRoute>>,
    prompt_order: Vec<Arc<PromptRoute>>,
    templates: Vec<ResourceTemplateDef>,
    schemes: Vec<(String, Arc<dyn Provider>)>,
    aliases: Aliases,
}

impl RouteTable {
    /// An empty table, from before the first provider.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            generation: 0,
            providers: Vec::new(),
            tools: HashMap::new(),
            tool_order: Vec::new(),
            prompts: HashMap::new(),
            prompt_order: Vec::new(),
            templates: Vec::new(),
            schemes: Vec::new(),
            aliases: Aliases::default(),
        }
    }

    /// Builds the table of these providers.
    ///
    /// # Errors
    /// A name that two providers claim, or a schema that does not compile.
    pub fn build(
        generation: u64,
        providers: &[Arc<dyn Provider>],
        policy: &Policy,
        aliases: &Aliases,
        pending: &Value,
    ) -> Result<Self, RouteError> {
        let mut table = Self { generation, providers: providers.to_vec(), aliases: aliases.clone(), ..Self::empty() };
        for provider in providers {
            let tools = provider.tools();
            ruling::observe(policy, provider, &tools);
            for def in tools {
                let route = tool_route(provider, def, policy, pending)?;
                if let Some(other) = table.tools.insert(route.name.clone(), route.clone()) {
                    return Err(collision("a tool", &route.name, &other.provider, provider));
                }
                table.tool_order.push(route);
            }
            for def in provider.prompts() {
                let rendered = Revision::ALL.map(|r| listing::prompt(&def, r));
                let route = Arc::new(PromptRoute { provider: provider.clone(), def, rendered });
                if let Some(other) = table.prompts.insert(route.def.name.clone(), route.clone()) {
                    return Err(collision("a prompt", &route.def.name, &other.provider, provider));
                }
                table.prompt_order.push(route);
            }
            table.templates.extend(provider.resource_templates());
            for scheme in provider.uri_schemes() {
                if let Some((_, other)) = table.schemes.iter().find(|(s, _)| *s == scheme) {
                    return Err(collision("resources", &scheme, other, provider));
                }
                table.schemes.push((scheme, provider.clone()));
            }
        }
        Ok(table)
    }

    /// Where a tool's name leads: the exact name, then `<provider>.<name>`, then the configured prefixes, then the
    /// configured patterns; else nowhere.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<Arc<ToolRoute>> {
        if let Some(route) = self.tools.get(name) {
            return Some(route.clone());
        }
        if let Some((provider, rest)) = name.split_once('.')
            && let Some(route) = self.tools.get(rest).filter(|r| r.provider.name() == provider)
        {
            return Some(route.clone());
        }
        let by_prefix = self.aliases.prefixes.iter().find_map(|(prefix, provider)| {
            let rest = name.strip_prefix(prefix.as_str())?;
            self.tools.get(rest).filter(|route| route.provider.name() == provider)
        });
        let found = by_prefix.or_else(|| {
            self.aliases.patterns.iter().find_map(|pattern| {
                let captures = pattern.pattern.captures(name)?;
                let mut to = String::new();
                captures.expand(&pattern.to, &mut to);
                self.tools.get(&to)
            })
        });
        found.cloned()
    }

    #[must_use]
    pub fn tools(&self) -> &[Arc<ToolRoute>] {
        &self.tool_order
    }

    #[must_use]
    pub fn prompt(&self, name: &str) -> Option<Arc<PromptRoute>> {
        self.prompts.get(name).cloned()
    }

    #[must_use]
    pub fn prompts(&self) -> &[Arc<PromptRoute>] {
        &self.prompt_order
    }

    #[must_use]
    pub fn templates(&self) -> &[ResourceTemplateDef] {
        &self.templates
    }

    #[must_use]
    pub fn providers(&self) -> &[Arc<dyn Provider>] {
        &self.providers
    }

    /// The provider that answers for a URI or a URI template.
    #[must_use]
    pub fn resource(&self, uri: &str) -> Option<Arc<dyn Provider>> {
        self.schemes.iter().find(|(scheme, _)| uri.starts_with(scheme.as_str())).map(|(_, p)| p.clone())
    }
}

fn tool_route(
    provider: &Arc<dyn Provider>,
    def: ToolDef,
    policy: &Policy,
    pending: &Value,
) -> Result<Arc<ToolRoute>, RouteError> {
    let input = jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .should_validate_formats(true)
        .build(&def.input_schema)
        .map_err(|e| RouteError::Schema {
            provider: provider.name().to_owned(),
            tool: def.name.clone(),
            reason: e.to_string(),
        })?;
    let hash = ruling::definition_hash(&def);
    let (standing, ruling) = ruling::ruling(policy, provider, &def, &hash);
    let pending = ruling.may_review().then_some(pending);
    let rendered = Revision::ALL.map(|r| listing::tool(&def, &def.name, pending, r));
    let param_headers = x_mcp_headers(&def.input_schema).map_err(|reason| RouteError::Schema {
        provider: provider.name().to_owned(),
        tool: def.name.clone(),
        reason,
    })?;
    Ok(Arc::new(ToolRoute {
        name: def.name.clone(),
        provider: provider.clone(),
        def,
        hash,
        input,
        standing,
        ruling,
        param_headers,
        rendered,
    }))
}

fn collision(what: &'static str, name: &str, first: &Arc<dyn Provider>, second: &Arc<dyn Provider>) -> RouteError {
    RouteError::Collision {
        what,
        name: name.to_owned(),
        first: first.name().to_owned(),
        second: second.name().to_owned(),
    }
}

/// The published snapshot: loading it costs some ten nanoseconds and no hop.
pub type Published = arc_swap::ArcSwap<RouteTable>;

/// Lets the Executor find providers without knowing of routes.
pub struct Directory(pub Arc<Published>);

impl ProviderDirectory for Directory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.0.load().providers.iter().find(|p| p.name() == name).cloned()
    }

    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String> {
        let table = self.0.load();
        table.tools.get(tool).filter(|r| r.provider.name() == provider).map(|r| r.hash.clone())
    }

    fn has_tools(&self, provider: &str) -> bool {
        self.0.load().tool_order.iter().any(|route| route.provider.name() == provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{PolicyDefault, TrackerConfig},
        providers::tracker::Tracker,
    };

    fn table(routes: &RoutesConfig) -> (RouteTable, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let config = TrackerConfig {
            enabled: true,
            workflow: std::collections::BTreeMap::new(),
            sample_project: false,
            people: Vec::new(),
        };
        let tracker: Arc<dyn Provider> = Tracker::open(dir.path(), &config).unwrap();
        let policy = Policy::new(&PolicyDefault::ReviewWrites.into());
        let aliases = Aliases::new(routes).unwrap();
        (RouteTable::build(1, &[tracker], &policy, &aliases, &serde_json::json!({})).unwrap(), dir)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn exact_then_namespace_then_prefix_then_pattern_then_nowhere() {
        let routes = RoutesConfig {
            prefixes: pairs(&[("pm_", "tracker"), ("x_", "nobody")]),
            // The first would shadow an exact name and a prefix if the order were another.
            patterns: pairs(&[("get_issue|pm_get_issue", "delete_issue"), ("jira_(.*)", "$1")]),
        };
        let (table, _dir) = table(&routes);
        let leads = |name: &str| table.tool(name).map(|route| route.name.clone());
        for (name, to) in [
            ("get_issue", Some("get_issue")),
            ("tracker.get_issue", Some("get_issue")),
            ("pm_get_issue", Some("get_issue")),
            ("jira_list_issues", Some("list_issues")),
            ("my_jira_list_issues", None),
            ("jira_nothing", None),
            ("x_get_issue", None),
            ("gateway.get_issue", None),
            ("GET_ISSUE", None),
            ("", None),
        ] {
            assert_eq!(leads(name).as_deref(), to, "{name}");
        }
    }

    #[test]
    fn two_providers_of_one_name_are_refused_and_both_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let config = TrackerConfig {
            enabled: true,
            workflow: std::collections::BTreeMap::new(),
            sample_project: false,
            people: Vec::new(),
        };
        let tracker: Arc<dyn Provider> = Tracker::open(dir.path(), &config).unwrap();
        let policy = Policy::new(&PolicyDefault::Allow.into());
        let twice = [tracker.clone(), tracker];
        let error = RouteTable::build(1, &twice, &policy, &Aliases::default(), &serde_json::json!({})).err().unwrap();
        assert!(
            matches!(&error, RouteError::Collision { first, second, .. } if first == "tracker" && second == "tracker")
        );
    }

    #[test]
    fn a_pattern_that_is_none_is_an_error_that_names_it() {
        let routes = RoutesConfig { prefixes: vec![], patterns: pairs(&[("(", "x")]) };
        assert!(matches!(Aliases::new(&routes), Err(RouteError::Pattern { pattern, .. }) if pattern == "("));
    }
}
