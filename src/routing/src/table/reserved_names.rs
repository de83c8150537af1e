//! Names that are reserved for one provider, whether it is available or not.
//!
//! A provider owns all names that begin with its configured prefix, with `<provider>.` or, for a module, with
//! `<module>__`; the longest prefix decides. It also owns the names that a module offers, and the tools that are pinned
//! for a server until that server is reached. Without this rule, a server without a prefix could offer `good__query` and
//! receive the calls if it connects first. Providers that are both in `routes.priority` may share names, because the
//! operator has ranked them.

use std::collections::HashSet;

use super::{
    RouteTarget,
    aliases::Aliases,
    name_conflicts::Warnings,
    unreached_upstreams::{NameKind, UnreachedUpstreams},
};
use countersign_domain::BUILT_IN_PROVIDERS;

/// The reserved names of one table.
pub struct ReservedNames<'a> {
    providers: &'a [RouteTarget],
    aliases: &'a Aliases,
    /// Upstreams that have not been reached since the start.
    unreached: &'a UnreachedUpstreams,
    /// Prefixes of names and the providers that own them, longest first.
    prefixes: Vec<(String, &'a str)>,
    module_tools: HashSet<String>,
    module_prompts: HashSet<String>,
}

impl<'a> ReservedNames<'a> {
    pub fn new(providers: &'a [RouteTarget], aliases: &'a Aliases, unreached: &'a UnreachedUpstreams) -> Self {
        let mut prefixes: Vec<(String, &str)> = Vec::new();
        for name in BUILT_IN_PROVIDERS {
            prefixes.extend([(format!("{name}."), name), (format!("{name}__"), name)]);
        }
        for provider in providers.iter().filter(|provider| !BUILT_IN_PROVIDERS.contains(&provider.name())) {
            let prefix = provider.upstream().map_or("", |upstream| upstream.names.prefix());
            let own_prefixes = [prefix.to_owned(), format!("{}.", provider.name())];
            prefixes.extend(
                own_prefixes.into_iter().filter(|prefix| !prefix.is_empty()).map(|prefix| (prefix, provider.name())),
            );
        }
        prefixes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        let modules = || providers.iter().filter(|provider| provider.is_module()).map(RouteTarget::as_provider);
        let module_tools = modules().flat_map(|module| module.tools()).map(|def| def.name).collect();
        let module_prompts = modules().flat_map(|module| module.prompts()).map(|def| def.name).collect();
        Self { providers, aliases, unreached, prefixes, module_tools, module_prompts }
    }

    /// Returns `true` if the provider may offer the name. Adds a warning otherwise.
    pub fn allows(&self, provider: &RouteTarget, kind: NameKind, name: &str, warnings: &mut Warnings) -> bool {
        let refusal = self.refusal(provider, kind, name);
        let is_allowed = refusal.is_none();
        refusal.into_iter().for_each(|warning| warnings.add(provider.name(), warning));
        is_allowed
    }

    /// Returns the reason why the provider may not offer the name, as a warning.
    fn refusal(&self, provider: &RouteTarget, kind: NameKind, name: &str) -> Option<String> {
        if provider.is_module() {
            return None;
        }
        let candidate = provider.name();
        let (item, module_names) = match kind {
            NameKind::Tool => ("tool", &self.module_tools),
            NameKind::Prompt => ("prompt", &self.module_prompts),
        };
        if let Some((prefix, owner)) = self.prefixes.iter().find(|(prefix, _)| name.starts_with(prefix.as_str())) {
            let mut same_prefix = self.prefixes.iter().filter(|(other, _)| other == prefix);
            if !same_prefix.any(|(_, owner)| *owner == candidate) && !self.are_ranked(owner, candidate) {
                return Some(format!(
                    "the {item} {name:?} is left out: names that begin with {prefix:?} are reserved for {owner}"
                ));
            }
        }
        if module_names.contains(name) && self.aliases.rank(candidate).is_none() {
            return Some(format!("the {item} {name:?} is left out: the gateway itself has one of that name"));
        }
        if kind == NameKind::Prompt || self.unreached.servers.is_empty() {
            return None;
        }
        let has_tool_pinned = |server: &str| self.unreached.has_pinned_tool(server, name);
        let config_index = |server: &str| self.providers.iter().position(|provider| provider.name() == server);
        let unreached = self.providers.iter().filter(|provider| self.unreached.contains(provider));
        let first = unreached.map(|other| other.name()).find(|other| {
            // If the name is pinned for two servers, the first in the configuration gets it.
            let takes_precedence = !has_tool_pinned(candidate) || config_index(other) < config_index(candidate);
            *other != candidate && has_tool_pinned(other) && takes_precedence && !self.are_ranked(other, candidate)
        })?;
        Some(format!("the {item} {name:?} is left out: {first} offered it before, and was not reached yet"))
    }

    fn are_ranked(&self, first: &str, second: &str) -> bool {
        self.aliases.rank(first).is_some() && self.aliases.rank(second).is_some()
    }
}
