//! The definitions of an upstream that its provider can offer, parsed once from the upstream's text.

use std::collections::HashSet;

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::{Catalog, definitions::DefinitionError, names::Names};
use countersign_config::UpstreamConfig;
use countersign_provider::{PromptDef, ResourceDef, ResourceTemplateDef, ToolDef};

/// The parsed definitions that can be offered.
#[derive(Clone, Debug, Default)]
pub struct UsableDefinitions {
    pub tools: Vec<ToolDef>,
    /// The names of `tools`, as clients use them.
    pub tool_names: HashSet<String>,
    pub prompts: Vec<PromptDef>,
    /// The names of `prompts`.
    pub prompt_names: HashSet<String>,
    pub resources: Vec<ResourceDef>,
    pub templates: Vec<ResourceTemplateDef>,
    /// The URI templates of `templates`.
    pub template_uris: HashSet<String>,
    /// Descriptions of the omitted definitions, for operators.
    pub omitted: Vec<String>,
}

impl UsableDefinitions {
    /// Parses the definitions that are valid and allowed by the configuration. An invalid definition does not affect
    /// the others.
    pub fn build(config: &UpstreamConfig, names: &Names, catalog: &Catalog) -> Self {
        let filter = ToolFilter::new(config);
        let mut omitted = Vec::new();
        let (tools, tool_names) = parse_unique(&catalog.tools, &mut omitted, |raw| {
            let def = names.parse_tool(raw)?;
            let upstream_name = names.upstream_name(&def.name).unwrap_or(&def.name);
            Ok(filter.allows(upstream_name).then(|| (def.name.clone(), def)))
        });
        let (prompts, prompt_names) = parse_unique(&catalog.prompts, &mut omitted, |raw| {
            names.parse_prompt(raw).map(|def| Some((def.name.clone(), def)))
        });
        let (resources, _) = parse_unique(&catalog.resources, &mut omitted, |raw| {
            names.parse_resource(raw).map(|def| Some((def.uri.clone(), def)))
        });
        let (templates, template_uris) = parse_unique(&catalog.templates, &mut omitted, |raw| {
            names.parse_template(raw).map(|def| Some((def.uri_template.clone(), def)))
        });
        Self { tools, tool_names, prompts, prompt_names, resources, templates, template_uris, omitted }
    }
}

/// Parses each definition with `parse`, and omits those whose name was listed before. Also returns the names.
fn parse_unique<R, T>(
    raws: &[R],
    omitted: &mut Vec<String>,
    parse: impl Fn(&R) -> Result<Option<(String, T)>, DefinitionError>,
) -> (Vec<T>, HashSet<String>) {
    let mut names = HashSet::new();
    let mut all = Vec::with_capacity(raws.len());
    for raw in raws {
        match parse(raw) {
            Ok(Some((name, _))) if names.contains(&name) => {
                omitted.push(format!("{name:?} is left out: it is listed more than once"));
            }
            Ok(Some((name, def))) => {
                names.insert(name);
                all.push(def);
            }
            Ok(None) => {}
            Err(error) => omitted.push(error.to_string()),
        }
    }
    (all, names)
}

/// Returns `true` if the configuration allows the tool with this name at the server.
pub fn is_tool_allowed(config: &UpstreamConfig, upstream_name: &str) -> bool {
    ToolFilter::new(config).allows(upstream_name)
}

/// The configured `tools.allow` and `tools.deny`.
struct ToolFilter {
    allow: Option<GlobSet>,
    deny: GlobSet,
}

impl ToolFilter {
    /// Builds the filter. The globs were validated with the configuration.
    fn new(config: &UpstreamConfig) -> Self {
        let set = |globs: &[String]| {
            let mut set = GlobSetBuilder::new();
            globs.iter().filter_map(|glob| Glob::new(glob).ok()).for_each(|glob| _ = set.add(glob));
            set.build().unwrap_or_else(|_| GlobSet::empty())
        };
        Self {
            allow: (!config.tools_allow.is_empty()).then(|| set(&config.tools_allow)),
            deny: set(&config.tools_deny),
        }
    }

    /// Returns `true` if a tool is allowed and not denied.
    fn allows(&self, upstream_name: &str) -> bool {
        !self.deny.is_match(upstream_name) && self.allow.as_ref().is_none_or(|allow| allow.is_match(upstream_name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::value::RawValue;

    use super::*;
    use countersign_config::UpstreamTarget;

    fn raws(texts: &[&str]) -> Vec<Arc<RawValue>> {
        texts.iter().map(|text| Arc::from(RawValue::from_string((*text).to_owned()).unwrap())).collect()
    }

    fn build(config: &UpstreamConfig, tools: &[&str]) -> UsableDefinitions {
        let catalog = Catalog { tools: raws(tools), ..Catalog::default() };
        UsableDefinitions::build(config, &Names::new(config), &catalog)
    }

    fn config() -> UpstreamConfig {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        UpstreamConfig::new("fs", target)
    }

    #[test]
    fn unusable_definitions_are_omitted_with_reason() {
        let offered = build(
            &config(),
            &[
                r#"{"name":"good","inputSchema":{"type":"object"}}"#,
                r#"{"inputSchema":{"type":"object"}}"#,
                r#"{"name":"bad","inputSchema":{"type":"array"}}"#,
                r#"{"name":"good","inputSchema":{"type":"object"},"title":"again"}"#,
                "7",
                r#"{"name":"last","inputSchema":{"type":"object"}}"#,
            ],
        );
        let names: Vec<_> = offered.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["fs__good", "fs__last"]);
        assert_eq!(offered.omitted.len(), 4, "{:?}", offered.omitted);
        for (index, reason) in [(1, "\"bad\""), (2, "fs__good")] {
            assert!(offered.omitted[index].contains(reason), "{:?}", offered.omitted);
        }
    }

    #[test]
    fn tool_filter_matches_own_names() {
        let mut config = config();
        config.tools_allow = vec!["read_*".into(), "write_file".into()];
        config.tools_deny = vec!["*_all".into()];
        let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let all = ["read_file", "read_all", "write_file", "delete"].map(tool);
        let offered = build(&config, &all.each_ref().map(String::as_str));
        let names: Vec<_> = offered.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["fs__read_file", "fs__write_file"]);
        assert!(offered.omitted.is_empty());
    }
}
