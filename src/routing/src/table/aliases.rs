//! Further names of tools, and who serves a name that several providers offer.

use std::cmp::Reverse;

use regex::Regex;

use super::RouteError;
use countersign_config::RoutesConfig;

/// A configured regular expression: names that match lead to another name, built from its captures.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub pattern: Regex,
    /// The routed name, with `$1` or `$name` for captures.
    pub to: String,
}

/// A category of names, such as `file.*`, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Category {
    /// What stands before and after the `*`; a pattern without one is a single name.
    before: String,
    after: Option<String>,
    pub provider: String,
    /// The tool's own name at the provider, with `*` for what the pattern's `*` stands for.
    tool: String,
}

impl Category {
    /// `to` is `provider` or `provider/tool`.
    #[must_use]
    pub fn new(pattern: &str, to: &str) -> Self {
        let (provider, tool) = to.split_once('/').unwrap_or((to, "*"));
        let (before, after) = match pattern.split_once('*') {
            Some((before, after)) => (before, Some(after.to_owned())),
            None => (pattern, None),
        };
        Self { before: before.to_owned(), after, provider: provider.to_owned(), tool: tool.to_owned() }
    }

    /// The tool's own name at the provider, if the name is of this category.
    #[must_use]
    pub fn own(&self, name: &str) -> Option<String> {
        let rest = name.strip_prefix(self.before.as_str())?;
        let middle = match &self.after {
            Some(after) => rest.strip_suffix(after.as_str()).filter(|middle| !middle.is_empty())?,
            // A single name stands for itself.
            None => rest.is_empty().then_some(name)?,
        };
        Some(self.tool.replacen('*', middle, 1))
    }
}

/// The configured ways to tools beside their names.
#[derive(Clone, Debug, Default)]
pub struct Aliases {
    /// What a name begins with, and the provider that the rest is a tool of.
    pub prefixes: Vec<(String, String)>,
    /// The narrower ones first.
    pub categories: Vec<Category>,
    pub patterns: Vec<Pattern>,
    /// Providers that may offer the same names; the first that offers one serves it.
    pub priority: Vec<String>,
    /// The provider whose tools are looked at, by their own names, when a name leads nowhere else.
    pub fallback: Option<String>,
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
        let mut categories: Vec<_> = config.categories.iter().map(|(from, to)| Category::new(from, to)).collect();
        // `file.read.*` decides before `file.*`, however they are written; a single name before any category.
        categories.sort_by_key(|c| {
            let after = c.after.as_ref().map_or(0, String::len);
            (c.after.is_some(), Reverse(c.before.len() + after))
        });
        Ok(Self {
            prefixes: config.prefixes.clone(),
            categories,
            patterns: patterns.collect::<Result<_, _>>()?,
            priority: config.priority.clone(),
            fallback: config.fallback.clone(),
        })
    }

    /// A provider's place among those that may offer the same names.
    #[must_use]
    pub fn rank(&self, provider: &str) -> Option<usize> {
        self.priority.iter().position(|name| name == provider)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_leads_to_a_providers_own_names() {
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
            assert_eq!(Category::new(pattern, to).own(name).as_deref(), own, "{pattern} -> {to}: {name}");
        }
    }

    #[test]
    fn the_narrower_category_decides() {
        let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let config = RoutesConfig {
            categories: pairs(&[("file.*", "a"), ("file.read.*", "b"), ("file.read.all", "c")]),
            ..RoutesConfig::default()
        };
        let aliases = Aliases::new(&config).unwrap();
        let to = |name: &str| aliases.categories.iter().find(|c| c.own(name).is_some()).map(|c| c.provider.as_str());
        assert_eq!([to("file.write"), to("file.read.x"), to("file.read.all")], [Some("a"), Some("b"), Some("c")]);
    }
}
