//! Aliases of tools, and the priority among providers of the same name.

use std::{cmp::Reverse, sync::Arc};

use regex::Regex;

use super::{RouteError, RouteTable, ToolRoute};
use countersign_config::RoutesConfig;

/// Maximum number of aliases whose resolution is cached.
const MAX_CACHED_ALIASES: usize = 4096;
/// Maximum length in bytes of an alias whose resolution is cached.
const MAX_CACHED_ALIAS_LEN: usize = 256;

/// A configured regular expression that rewrites matching names, using its captures.
#[derive(Clone, Debug)]
pub struct PatternAlias {
    pub pattern: Regex,
    /// The name to route to, with `$1` or `$name` for captures.
    pub to: String,
}

/// A wildcard pattern for names, such as `file.*`, and the provider that serves them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CategoryAlias {
    /// The text before and after the `*`; a pattern without `*` matches a single name.
    prefix: String,
    suffix: Option<String>,
    pub provider: String,
    /// The tool's own name at the provider, in which `*` stands for the text that the pattern's `*` matched.
    tool: String,
}

impl CategoryAlias {
    /// Parses `to`, which is `provider` or `provider/tool`.
    pub fn new(pattern: &str, to: &str) -> Self {
        let (provider, tool) = to.split_once('/').unwrap_or((to, "*"));
        let (prefix, suffix) = match pattern.split_once('*') {
            Some((prefix, suffix)) => (prefix, Some(suffix.to_owned())),
            None => (pattern, None),
        };
        Self { prefix: prefix.to_owned(), suffix, provider: provider.to_owned(), tool: tool.to_owned() }
    }

    /// Returns the tool's own name at the provider, if the name matches.
    pub fn own_name(&self, name: &str) -> Option<String> {
        let rest = name.strip_prefix(self.prefix.as_str())?;
        let middle = match &self.suffix {
            Some(suffix) => rest.strip_suffix(suffix.as_str()).filter(|middle| !middle.is_empty())?,
            // A pattern without `*` maps the whole name.
            None => rest.is_empty().then_some(name)?,
        };
        Some(self.tool.replacen('*', middle, 1))
    }
}

/// The configured aliases of tools.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    /// Prefixes of names, and the provider whose tool the rest names.
    pub prefixes: Vec<(String, String)>,
    /// Wildcard patterns, narrower ones first.
    pub categories: Vec<CategoryAlias>,
    pub patterns: Vec<PatternAlias>,
    /// Providers that may offer the same names; the first one that offers a name serves it.
    pub priority: Vec<String>,
    /// The provider that is searched by own name if no other rule resolves a name.
    pub fallback: Option<String>,
}

impl Aliases {
    /// Compiles the configured aliases.
    ///
    /// # Errors
    /// [`RouteError::Pattern`]
    pub fn new(config: &RoutesConfig) -> Result<Self, RouteError> {
        let patterns = config.patterns.iter().map(|(pattern, to)| {
            // The expression must match the whole name, because a partial match is hardly ever intended.
            let compiled = Regex::new(&format!("^(?:{pattern})$"))
                .map_err(|e| RouteError::Pattern { pattern: pattern.clone(), reason: e.to_string() })?;
            Ok(PatternAlias { pattern: compiled, to: to.clone() })
        });
        let mut categories: Vec<_> = config.categories.iter().map(|(from, to)| CategoryAlias::new(from, to)).collect();
        // `file.read.*` precedes `file.*` in any order of configuration, and a single name precedes all patterns.
        categories.sort_by_key(|c| {
            let after = c.suffix.as_ref().map_or(0, String::len);
            (c.suffix.is_some(), Reverse(c.prefix.len() + after))
        });
        Ok(Self {
            prefixes: config.prefixes.clone(),
            categories,
            patterns: patterns.collect::<Result<_, _>>()?,
            priority: config.priority.clone(),
            fallback: config.fallback.clone(),
        })
    }

    /// Returns the provider's rank in the configured priority.
    pub fn rank(&self, provider: &str) -> Option<usize> {
        self.priority.iter().position(|name| name == provider)
    }
}

impl RouteTable {
    /// Resolves a name that is not the exact name of a tool, and caches the result.
    pub(super) fn find_by_alias(&self, name: &str) -> Option<Arc<ToolRoute>> {
        if let Some(route) = self.resolved_aliases.read().get(name) {
            return Some(Arc::clone(route));
        }
        let route = self.resolve_alias(name)?;
        // Unresolved names are not cached, because clients could fill the cache with invented names.
        if name.len() <= MAX_CACHED_ALIAS_LEN {
            let mut resolved = self.resolved_aliases.write();
            if resolved.len() < MAX_CACHED_ALIASES {
                resolved.insert(name.to_owned(), Arc::clone(&route));
            }
        }
        Some(route)
    }

    fn resolve_alias(&self, name: &str) -> Option<Arc<ToolRoute>> {
        let aliases = &self.aliases;
        let by_provider = || {
            self.providers.iter().find_map(|provider| {
                let own_name = name.strip_prefix(provider.name())?.strip_prefix('.')?;
                self.tool_by_own_name(provider, own_name)
            })
        };
        let by_prefix = || {
            aliases.prefixes.iter().find_map(|(prefix, provider)| {
                let own_name = name.strip_prefix(prefix.as_str())?;
                self.tool_by_own_name(self.provider(provider)?, own_name)
            })
        };
        let by_category = || {
            aliases.categories.iter().find_map(|category| {
                let own_name = category.own_name(name)?;
                self.tool_by_own_name(self.provider(&category.provider)?, &own_name)
            })
        };
        let by_pattern = || {
            aliases.patterns.iter().find_map(|pattern| {
                let captures = pattern.pattern.captures(name)?;
                let mut target = String::new();
                captures.expand(&pattern.to, &mut target);
                self.tools.by_name.get(&target).cloned()
            })
        };
        let by_fallback = || self.tool_by_own_name(self.provider(aliases.fallback.as_deref()?)?, name);
        by_provider().or_else(by_prefix).or_else(by_category).or_else(by_pattern).or_else(by_fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn category_maps_to_own_name_of_tool() {
        for (pattern, to, name, own) in [
            ("file.*", "fs", "file.read", Some("read")),
            ("file.*", "fs/do_*", "file.read", Some("do_read")),
            ("file.*", "fs/everything", "file.read", Some("everything")),
            ("file.*", "fs", "file.", None),
            ("file.*", "fs", "files.read", None),
            ("*_issue", "pm", "get_issue", Some("get")),
            ("a*a", "pm", "a", None),
            ("mail", "smtp/send", "mail", Some("send")),
            ("mail", "smtp", "mail", Some("mail")),
            ("mail", "smtp/send", "mails", None),
        ] {
            assert_eq!(CategoryAlias::new(pattern, to).own_name(name).as_deref(), own, "{pattern} -> {to}: {name}");
        }
    }

    #[test]
    fn narrower_category_takes_precedence() {
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let config = RoutesConfig {
            categories: pairs(&[("file.*", "a"), ("file.read.*", "b"), ("file.read.all", "c")]),
            ..RoutesConfig::default()
        };
        let aliases = Aliases::new(&config).unwrap();
        let provider_for =
            |name: &str| aliases.categories.iter().find(|c| c.own_name(name).is_some()).map(|c| c.provider.as_str());
        assert_eq!(
            [provider_for("file.write"), provider_for("file.read.x"), provider_for("file.read.all")],
            [Some("a"), Some("b"), Some("c")]
        );
    }
}
