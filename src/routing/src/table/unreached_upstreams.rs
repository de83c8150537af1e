//! Names that cannot be resolved yet because their server has not been reached since the start.

use std::{collections::HashSet, sync::Arc};

use super::{RouteTable, RouteTarget};
use countersign_domain::policy::Pins;
use countersign_upstream::Upstream;

/// The upstreams that had not been reached when a table was built.
#[derive(Default)]
pub struct UnreachedUpstreams {
    /// Names of the upstreams.
    pub(super) servers: HashSet<String>,
    pins: Arc<Pins>,
}

impl UnreachedUpstreams {
    pub fn new(providers: &[RouteTarget], pins: Arc<Pins>) -> Self {
        let unreached = |provider: &&RouteTarget| provider.upstream().is_some_and(|upstream| !upstream.was_reached());
        let servers = providers.iter().filter(unreached).map(|provider| provider.name().to_owned()).collect();
        Self { servers, pins }
    }

    pub(super) fn contains(&self, provider: &RouteTarget) -> bool {
        self.servers.contains(provider.name())
    }

    /// Returns `true` if the store has a pinned tool of that name for the server.
    pub(super) fn has_pinned_tool(&self, server: &str, tool: &str) -> bool {
        self.pins.pin(server, tool).is_some()
    }

    /// Returns `true` if the server may turn out to have a tool or prompt whose name has no known prefix.
    fn may_have_any(&self, provider: &RouteTarget, kind: NameKind) -> bool {
        let unprefixed = provider.upstream().is_some_and(|upstream| upstream.names.is_identity());
        unprefixed && self.contains(provider) && !(kind == NameKind::Tool && self.pins.has_server(provider.name()))
    }
}

/// An unreached server that may own a name or URI.
#[derive(Clone)]
pub struct AwaitedUpstream {
    pub upstream: Arc<Upstream>,
    /// `true` if no other server can own the name. Otherwise the name may belong to any server whose names are unknown.
    pub is_certain: bool,
}

impl AwaitedUpstream {
    fn certain(provider: &RouteTarget) -> Option<Self> {
        Some(Self { upstream: Arc::clone(provider.upstream()?), is_certain: true })
    }

    /// Returns the candidate that was configured last, because it has the most time left to connect.
    fn likeliest<'a>(servers: impl Iterator<Item = &'a Arc<Upstream>>) -> Option<Self> {
        let upstream = Arc::clone(servers.min_by_key(|upstream| upstream.age())?);
        Some(Self { upstream, is_certain: false })
    }
}

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    Tool,
    Prompt,
}

impl RouteTable {
    /// Returns the unreached upstream that may own a tool or prompt of that name. It owns the name by the prefix, by a pinned
    /// tool or by an alias, or it may own it because it has no prefix and its names are unknown. The table must not contain
    /// the name.
    pub fn unreached_upstream(&self, name: &str, kind: NameKind) -> Option<AwaitedUpstream> {
        if self.was_complete_when_built() {
            return None;
        }
        let is_tool = kind == NameKind::Tool;
        let (mut found, mut length) = (None, 0);
        for provider in self.providers() {
            let Some(upstream) = provider.upstream() else { continue };
            let (prefix, server) = (upstream.names.prefix(), provider.name());
            let dotted = is_tool && name.strip_prefix(server).is_some_and(|rest| rest.starts_with('.'));
            for (matches, prefix_len) in [(name.starts_with(prefix), prefix.len()), (dotted, server.len() + 1)] {
                if matches && prefix_len > length {
                    (found, length) = (Some(provider), prefix_len);
                }
            }
        }
        let is_known_not_to_have = |provider: &RouteTarget| is_tool && !self.may_have_tool(provider, name);
        match found {
            Some(provider) if self.unreached.contains(provider) && is_known_not_to_have(provider) => {
                return self.unreached_by_alias(name).and_then(AwaitedUpstream::certain);
            }
            Some(provider) => return AwaitedUpstream::certain(provider).filter(|_| self.unreached.contains(provider)),
            None => {}
        }
        let has_pin = |provider: &&RouteTarget| self.unreached.has_pinned_tool(provider.name(), name);
        let pinned_for = || self.providers().iter().filter(|provider| self.unreached.contains(provider)).find(has_pin);
        let certain = if is_tool { pinned_for().or_else(|| self.unreached_by_alias(name)) } else { None };
        certain.and_then(AwaitedUpstream::certain).or_else(|| {
            let unprefixed = self.providers().iter().filter(|provider| self.unreached.may_have_any(provider, kind));
            AwaitedUpstream::likeliest(unprefixed.filter_map(|provider| provider.upstream()))
        })
    }

    /// Returns `false` if tools are pinned for the server, but none by this name or as `server.tool`.
    fn may_have_tool(&self, provider: &RouteTarget, name: &str) -> bool {
        let has = |name: &str| self.unreached.has_pinned_tool(provider.name(), name);
        let dotted = || {
            let own_name = name.strip_prefix(provider.name())?.strip_prefix('.')?;
            Some(has(own_name) || has(&provider.upstream()?.names.expose(own_name)))
        };
        !self.unreached.pins.has_server(provider.name())
            || has(name)
            || dotted().unwrap_or(false)
            || self.aliases.patterns.iter().any(|rewrite| rewrite.pattern.is_match(name))
    }

    /// Resolves the name by the configured aliases to an unreached provider.
    fn unreached_by_alias(&self, name: &str) -> Option<&RouteTarget> {
        let aliases = &self.aliases;
        let prefixes = aliases.prefixes.iter().filter(|(prefix, _)| name.starts_with(prefix.as_str()));
        let categories = aliases.categories.iter().filter(|category| category.own_name(name).is_some());
        let mut named_providers =
            prefixes.map(|(_, provider)| provider).chain(categories.map(|category| &category.provider));
        let provider = named_providers
            .find_map(|provider| self.provider(provider).filter(|provider| self.unreached.contains(provider)));
        provider.or_else(|| {
            let fallback =
                self.provider(aliases.fallback.as_deref()?).filter(|provider| self.unreached.contains(provider))?;
            let exposed = fallback.upstream()?.names.expose(name).into_owned();
            self.unreached.has_pinned_tool(fallback.name(), &exposed).then_some(fallback)
        })
    }

    /// Returns the unreached upstream that owns the URI's prefix. For a URI without a known owner, returns one of the
    /// upstreams that may turn out to serve it.
    pub fn unreached_upstream_of_uri(&self, uri: &str) -> Option<AwaitedUpstream> {
        if self.was_complete_when_built() {
            return None;
        }
        match self.resources.known_provider(uri) {
            Some(provider) => AwaitedUpstream::certain(provider).filter(|_| self.unreached.contains(provider)),
            None => AwaitedUpstream::likeliest(
                self.resources
                    .unprefixed_providers()
                    .filter(|provider| self.unreached.contains(provider))
                    .filter_map(RouteTarget::upstream),
            ),
        }
    }
}
