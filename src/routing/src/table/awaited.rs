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

    /// Returns `true` if the server may turn out to have a tool or prompt of a name that begins as nobody's do.
    fn may_have_any(&self, provider: &Target, kind: Kind) -> bool {
        let unprefixed = provider.upstream().is_some_and(|upstream| upstream.names.is_identity());
        unprefixed && self.has(provider) && !(kind == Kind::Tool && self.pins.knows(provider.name()))
    }
}

/// A server that was not reached yet, and to which a name or URI may lead.
#[derive(Clone)]
pub struct Expected {
    pub upstream: Arc<Upstream>,
    /// It is that server's, or nobody's. Otherwise it is any server's whose names are not known yet.
    pub certain: bool,
}

impl Expected {
    fn certainly(provider: &Target) -> Option<Self> {
        Some(Self { upstream: Arc::clone(provider.upstream()?), certain: true })
    }

    /// Of servers that may have it, the one that has most of its time left.
    fn possibly<'a>(servers: impl Iterator<Item = &'a Arc<Upstream>>) -> Option<Self> {
        let upstream = Arc::clone(servers.min_by_key(|upstream| upstream.age())?);
        Some(Self { upstream, certain: false })
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

    /// Returns the upstream whose first connection may bring a tool or prompt of that name: the name begins as names of that
    /// server do, leads to it by the routes, is one that the store knows the server by, or could be any of a server that
    /// has no prefix and is not known yet. Nothing is said of names that are there.
    #[must_use]
    pub fn awaited(&self, name: &str, kind: Kind) -> Option<Expected> {
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
        let is_known_not_to_have = |provider: &Target| tool && !self.may_have_tool(provider, name);
        match found {
            Some(provider) if self.awaited.has(provider) && is_known_not_to_have(provider) => {
                return self.awaited_by_routes(name).and_then(Expected::certainly);
            }
            Some(provider) => return Expected::certainly(provider).filter(|_| self.awaited.has(provider)),
            None => {}
        }
        let known = |provider: &&Target| self.awaited.knows(provider.name(), name);
        let known = || self.providers().iter().filter(|provider| self.awaited.has(provider)).find(known);
        let certain = if tool { known().or_else(|| self.awaited_by_routes(name)) } else { None };
        certain.and_then(Expected::certainly).or_else(|| {
            let open = self.providers().iter().filter(|provider| self.awaited.may_have_any(provider, kind));
            Expected::possibly(open.filter_map(|provider| provider.upstream()))
        })
    }

    /// Returns `false` if the store knows the tools of the server, and none by this name or as `server.tool`.
    fn may_have_tool(&self, provider: &Target, name: &str) -> bool {
        let has = |name: &str| self.awaited.knows(provider.name(), name);
        let dotted = || {
            let own = name.strip_prefix(provider.name())?.strip_prefix('.')?;
            Some(has(own) || has(&provider.upstream()?.names.expose(own)))
        };
        !self.awaited.pins.knows(provider.name())
            || has(name)
            || dotted().unwrap_or(false)
            || self.aliases().patterns.iter().any(|rewrite| rewrite.pattern.is_match(name))
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

    /// Returns the upstream that has URIs like this one to itself, or whose it is, if that was not reached yet. For a URI of
    /// which nobody is known to have it, one of those that may turn out to.
    #[must_use]
    pub fn awaited_resource(&self, uri: &str) -> Option<Expected> {
        if self.awaits_nobody() {
            return None;
        }
        match self.resources.claimed(uri) {
            Some(provider) => Expected::certainly(provider).filter(|_| self.awaited.has(provider)),
            None => Expected::possibly(
                self.resources.open().filter(|provider| self.awaited.has(provider)).filter_map(Target::upstream),
            ),
        }
    }
}
