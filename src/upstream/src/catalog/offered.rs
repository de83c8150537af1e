//! An upstream's lists as its provider gives them: made once from what it wrote.

use std::collections::HashSet;

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::{Catalog, defs::DefinitionError, names::Names};
use countersign_config::UpstreamConfig;
use countersign_provider::{PromptDef, ResourceDef, ResourceTemplateDef, ToolDef};

/// See the module's page.
#[derive(Clone, Debug, Default)]
pub struct Offered {
    pub tools: Vec<ToolDef>,
    pub prompts: Vec<PromptDef>,
    pub resources: Vec<ResourceDef>,
    pub templates: Vec<ResourceTemplateDef>,
    /// What is not in them and why, for people.
    pub left_out: Vec<String>,
}

impl Offered {
    /// The definitions that can be used and that the configuration lets through. One that cannot be used spoils no
    /// other.
    #[must_use]
    pub fn build(config: &UpstreamConfig, names: &Names, catalog: &Catalog) -> Self {
        let filter = Filter::new(config);
        let mut left_out = Vec::new();
        let tools = sound(&catalog.tools, &mut left_out, |raw| {
            let def = names.tool(raw)?;
            let own = names.own(&def.name).unwrap_or(&def.name);
            if !filter.admits(own) {
                return Ok(None);
            }
            Ok(Some((def.name.clone(), def)))
        });
        let prompts =
            sound(&catalog.prompts, &mut left_out, |raw| names.prompt(raw).map(|def| Some((def.name.clone(), def))));
        let resources =
            sound(&catalog.resources, &mut left_out, |raw| names.resource(raw).map(|def| Some((def.uri.clone(), def))));
        let templates = sound(&catalog.templates, &mut left_out, |raw| {
            names.template(raw).map(|def| Some((def.uri_template.clone(), def)))
        });
        Self { tools, prompts, resources, templates, left_out }
    }
}

/// What `read` makes of each, but for a name that was there before.
fn sound<R, T>(
    raws: &[R],
    left_out: &mut Vec<String>,
    read: impl Fn(&R) -> Result<Option<(String, T)>, DefinitionError>,
) -> Vec<T> {
    let mut seen = HashSet::new();
    let mut all = Vec::with_capacity(raws.len());
    for raw in raws {
        match read(raw) {
            Ok(Some((name, def))) => {
                if seen.contains(&name) {
                    left_out.push(format!("{name:?} is left out: it is listed more than once"));
                } else {
                    seen.insert(name);
                    all.push(def);
                }
            }
            Ok(None) => {}
            Err(fault) => left_out.push(fault.to_string()),
        }
    }
    all
}

/// Whether the configuration lets a tool through that the server calls so.
#[must_use]
pub fn is_let_through(config: &UpstreamConfig, own: &str) -> bool {
    Filter::new(config).admits(own)
}

/// `tools.allow` and `tools.deny`.
struct Filter {
    allow: Option<GlobSet>,
    deny: GlobSet,
}

impl Filter {
    /// The configuration has proved its globs.
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

    fn admits(&self, own: &str) -> bool {
        !self.deny.is_match(own) && self.allow.as_ref().is_none_or(|allow| allow.is_match(own))
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

    fn build(config: &UpstreamConfig, tools: &[&str]) -> Offered {
        let catalog = Catalog { tools: raws(tools), ..Catalog::default() };
        Offered::build(config, &Names::new(config), &catalog)
    }

    fn config() -> UpstreamConfig {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
        UpstreamConfig::new("fs", target)
    }

    #[test]
    fn what_cannot_be_used_is_left_out_and_named() {
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
        assert_eq!(offered.left_out.len(), 4, "{:?}", offered.left_out);
        for (at, says) in [(1, "\"bad\""), (2, "fs__good")] {
            assert!(offered.left_out[at].contains(says), "{:?}", offered.left_out);
        }
    }

    #[test]
    fn the_configuration_hides_tools_by_their_own_names() {
        let mut config = config();
        config.tools_allow = vec!["read_*".into(), "write_file".into()];
        config.tools_deny = vec!["*_all".into()];
        let tool = |name: &str| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let all = ["read_file", "read_all", "write_file", "delete"].map(tool);
        let offered = build(&config, &all.each_ref().map(String::as_str));
        let names: Vec<_> = offered.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!(names, ["fs__read_file", "fs__write_file"]);
        assert!(offered.left_out.is_empty());
    }
}
