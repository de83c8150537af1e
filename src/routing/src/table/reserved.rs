//! Names that are kept for one provider, whether it is there or not.
//!
//! What a configured server's names begin with, `<provider>.`, and `<module>__` belong to that provider alone, and so do the
//! names of what modules offer and, until a server was reached for the first time, a name that the store knows it by. Else a server without a prefix could offer
//! `good__query`, and whichever of the two connects first would get the calls. The longest beginning decides. Providers
//! that `routes.priority` ranks both may offer the same names: there the operator has said who comes first.

use std::collections::HashSet;

use super::{aliases::Aliases, awaited::Awaited};
use crate::target::Target;
use countersign_domain::BUILT_IN;

/// See the module's page.
pub struct Reserved<'a> {
    providers: &'a [Target],
    aliases: &'a Aliases,
    /// Upstreams that were not reached since the start.
    awaited: &'a Awaited,
    /// What names begin with and the provider's name, the longest first.
    beginnings: Vec<(String, &'a str)>,
    /// Names of what modules offer: tools, then prompts.
    own: [HashSet<String>; 2],
}

impl<'a> Reserved<'a> {
    #[must_use]
    pub fn new(providers: &'a [Target], aliases: &'a Aliases, awaited: &'a Awaited) -> Self {
        let mut beginnings: Vec<(String, &str)> = Vec::new();
        for name in BUILT_IN {
            beginnings.extend([(format!("{name}."), name), (format!("{name}__"), name)]);
        }
        for provider in providers.iter().filter(|provider| !BUILT_IN.contains(&provider.name())) {
            let prefix = provider.upstream().map_or("", |upstream| upstream.names.prefix());
            let of = [prefix.to_owned(), format!("{}.", provider.name())];
            beginnings.extend(of.into_iter().filter(|of| !of.is_empty()).map(|of| (of, provider.name())));
        }
        beginnings.sort_by_key(|(of, _)| std::cmp::Reverse(of.len()));
        let modules = || providers.iter().filter(|provider| provider.is_module());
        let own = [
            modules().flat_map(|module| module.tools()).map(|def| def.name).collect(),
            modules().flat_map(|module| module.prompts()).map(|def| def.name).collect(),
        ];
        Self { providers, aliases, awaited, beginnings, own }
    }

    /// Why a provider may not offer a tool or prompt of that name; `tool` says which of them it is.
    #[must_use]
    pub fn refuses(&self, provider: &Target, name: &str, tool: bool) -> Option<String> {
        if provider.is_module() {
            return None;
        }
        let mine = provider.name();
        let what = if tool { "tool" } else { "prompt" };
        if let Some(longest) = self.beginnings.iter().find(|(of, _)| name.starts_with(of.as_str())) {
            let (of, first) = longest;
            let mut alike = self.beginnings.iter().filter(|(other, _)| other == of);
            if !alike.any(|(_, owner)| *owner == mine) && !self.ranked(first, mine) {
                return Some(format!(
                    "the {what} {name:?} is left out: names that begin with {of:?} are those of {first}"
                ));
            }
        }
        if self.own[usize::from(!tool)].contains(name) && self.aliases.rank(mine).is_none() {
            return Some(format!("the {what} {name:?} is left out: the gateway itself has one of that name"));
        }
        if !tool || self.awaited.is_nobody() {
            return None;
        }
        let known = |server: &str| self.awaited.knows(server, name);
        let place = |server: &str| self.providers.iter().position(|provider| provider.name() == server);
        let awaited = self.providers.iter().filter(|provider| self.awaited.has(provider));
        let first = awaited.map(|other| other.name()).find(|other| {
            // Of two that are known by it, the first in the configuration has it.
            let before = !known(mine) || place(other) < place(mine);
            *other != mine && known(other) && before && !self.ranked(other, mine)
        })?;
        Some(format!("the {what} {name:?} is left out: {first} offered it before, and was not reached yet"))
    }

    fn ranked(&self, one: &str, other: &str) -> bool {
        self.aliases.rank(one).is_some() && self.aliases.rank(other).is_some()
    }
}
