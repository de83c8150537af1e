//! Names that lead nowhere yet, because the server that they may belong to was not reached since the start.

use std::{collections::HashSet, sync::Arc};

use super::RouteTable;
use crate::target::Target;
use countersign_domain::policy::Pins;
use countersign_upstream::Upstream;

/// The upstreams that had not been reached when a table was built.
#[derive(Default)]
pub struct Awaited {
    /// By name.
    servers: HashSet<String>,
    pins: Arc<Pins>,
}

impl Awaited {
    #[must_use]
    pub fn of(providers: &[Target], pins: Arc<Pins>) -> Self {
        let unreached = |provider: &&Target| provider.upstream().is_some_and(|upstream| !upstream.was_reached());
        let servers = providers.iter().filter(unreached).map(|provider| provider.name().to_owned()).collect();
        Self { servers, pins }
    }

    pub(crate) fn has(&self, provider: &Target) -> bool {
        self.servers.contains(provider.name())
    }

    pub(crate) fn is_nobody(&self) -> bool {
        self.servers.is_empty()
    }

    /// Whether the store knows the server by a tool of that name.
    pub(crate) fn knows(&self, server: &str, tool: &str) -> bool {
        self.pins.pin(server, tool).is_some()
    }
}

/// What a name is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tool,
    Prompt,
}

impl RouteTable {
    /// Whether every upstream was reached when it was built.
    #[must_use]
    pub fn awaits_nobody(&self) -> bool {
        self.awaited.is_nobody()
    }

    /// The upstream whose first connection may bring a tool or prompt of that name: it begins as names of that server do,
    /// leads to it by the routes, or is one that the store knows the server by. Nothing is said of names that are there.
    #[must_use]
    pub fn awaited(&self, name: &str, kind: Kind) -> Option<&Arc<Upstream>> {
        if self.awaits_nobody() {
            return None;
        }
        let tool = kind == Kind::Tool;
        let (mut found, mut length) = (None, 0);
        for provider in self.providers() {
            let Some(upstream) = provider.upstream() else { continue };
            let (prefix, server) = (upstream.names.prefix(), provider.name());
            let dotted = tool && name.strip_prefix(server).is_some_and(|rest| rest.starts_with('.'));
            for (begins, of) in [(name.starts_with(prefix), prefix.len()), (dotted, server.len() + 1)] {
                if begins && of > length {
                    (found, length) = (Some(provider), of);
                }
            }
        }
        if let Some(provider) = found {
            return provider.upstream().filter(|_| self.awaited.has(provider));
        }
        if !tool {
            return None;
        }
        let known = |provider: &&Target| self.awaited.knows(provider.name(), name);
        let provider = self.providers().iter().filter(|provider| self.awaited.has(provider)).find(known);
        provider.or_else(|| self.awaited_by_routes(name)).and_then(|provider| provider.upstream())
    }

    /// As the detours of the configuration lead.
    fn awaited_by_routes(&self, name: &str) -> Option<&Target> {
        let aliases = self.aliases();
        let prefixes = aliases.prefixes.iter().filter(|(prefix, _)| name.starts_with(prefix.as_str()));
        let categories = aliases.categories.iter().filter(|category| category.own(name).is_some());
        let mut named = prefixes.map(|(_, provider)| provider).chain(categories.map(|category| &category.provider));
        let provider = named.find_map(|provider| self.provider(provider).filter(|provider| self.awaited.has(provider)));
        provider.or_else(|| {
            let fallback = self.provider(aliases.fallback.as_deref()?).filter(|provider| self.awaited.has(provider))?;
            let exposed = fallback.upstream()?.names.expose(name).into_owned();
            self.awaited.knows(fallback.name(), &exposed).then_some(fallback)
        })
    }

    /// The upstream that has URIs like this one to itself, or whose they are, if it is one that was not reached.
    #[must_use]
    pub fn awaited_resource(&self, uri: &str) -> Option<Arc<Upstream>> {
        if self.awaits_nobody() {
            return None;
        }
        self.resource(uri).filter(|provider| self.awaited.has(provider))?.upstream().cloned()
    }
}
