//! Finds the provider that serves a URI.
//!
//! The URI prefixes of modules and of prefixed upstreams (`tracker://`, `fs+`) decide first, so that no other server can take
//! them over. Upstreams with unmodified URIs follow: one that lists the URI, one with a matching template, the only upstream
//! with resources, and finally one that lists other URIs of the same scheme.

use std::{collections::HashSet, sync::Arc};

use super::{
    RouteError, RouteTarget, TableInputs,
    list_entries::{ResourceRoute, TemplateRoute},
    name_conflicts::{NameClaims, ResolvedNames, Warnings},
    template::UriTemplate,
};
use countersign_protocol::json::member;
use countersign_upstream::Upstream;

/// The resources and templates of all providers.
#[derive(Default)]
pub struct Resources {
    /// The beginnings of URIs that belong to one provider, whatever others list.
    prefix_owners: Vec<(String, RouteTarget)>,
    unprefixed: Vec<UnprefixedUpstream>,
    pub(super) resources: ResolvedNames<ResourceRoute>,
    pub(super) templates: ResolvedNames<TemplateRoute>,
}

/// A resource at the upstream that serves it.
#[derive(Clone)]
pub struct UpstreamResource {
    pub upstream: Arc<Upstream>,
    /// The resource's URI at the upstream.
    pub own_uri: String,
}

/// An upstream without a prefix, whose URIs are used unmodified.
struct UnprefixedUpstream {
    provider: RouteTarget,
    /// `true` if the upstream has declared resources.
    has_resources: bool,
    templates: Vec<UriTemplate>,
    schemes: HashSet<String>,
}

impl Resources {
    /// Collects the resources of all providers.
    ///
    /// # Errors
    /// New conflicts, if the build is strict.
    pub(crate) fn build(inputs: &TableInputs<'_>, warnings: &mut Warnings) -> Result<Self, RouteError> {
        let previous = inputs.previous;
        let mut routes = Self::default();
        let mut listed = NameClaims::new("a resource");
        let mut templates = NameClaims::new("a resource template");
        for provider in inputs.providers {
            let prefixes = match provider.upstream() {
                Some(upstream) => vec![upstream.names.uri_prefix().to_owned()],
                None => provider.as_provider().uri_prefixes(),
            };
            for prefix in prefixes.into_iter().filter(|prefix| !prefix.is_empty()) {
                match routes.prefix_owner(&prefix) {
                    None => routes.prefix_owners.push((prefix, provider.clone())),
                    Some(other) if inputs.strict => {
                        let (first, second) = (other.name().to_owned(), provider.name().to_owned());
                        return Err(RouteError::Collision { item: "resources", name: prefix, first, second });
                    }
                    Some(other) => {
                        let text = format!("{} has the URIs that begin with {prefix:?} already", other.name());
                        warnings.add(provider.name(), text);
                    }
                }
            }
        }
        for (index, provider) in inputs.providers.iter().enumerate() {
            routes.add(index, provider, (&mut listed, &mut templates), warnings);
        }
        let previous_listed = previous.map(|table| &table.resources.resources);
        let current_holder = |uri: &str| Some(previous_listed?.by_name.get(uri)?.provider.name().to_owned());
        routes.resources = listed.resolve(inputs, previous_listed, current_holder, warnings)?;
        let previous_templates = previous.map(|table| &table.resources.templates);
        let current_holder = |uri: &str| Some(previous_templates?.by_name.get(uri)?.provider.name().to_owned());
        routes.templates = templates.resolve(inputs, previous_templates, current_holder, warnings)?;
        Ok(routes)
    }

    /// Adds the resources of an upstream, and the templates of any provider. Modules are asked for their resources on each
    /// request.
    fn add(
        &mut self,
        index: usize,
        provider: &RouteTarget,
        (listed, templates): (&mut NameClaims<ResourceRoute>, &mut NameClaims<TemplateRoute>),
        warnings: &mut Warnings,
    ) {
        let upstream = provider.upstream();
        let mut unprefixed =
            upstream.filter(|upstream| upstream.names.is_identity()).map(|upstream| UnprefixedUpstream {
                provider: provider.clone(),
                has_resources: has_resources(upstream),
                templates: Vec::new(),
                schemes: HashSet::new(),
            });
        let is_unprefixed = unprefixed.is_some();
        // A URI with another provider's prefix can never be reached, even if that provider is absent.
        let conflict_warning = |uri: &str, item: &'static str| {
            let other = self.prefix_owner(uri).filter(|_| is_unprefixed)?;
            Some(format!("{item} {uri:?} is left out: such URIs are reserved for {}", other.name()))
        };
        let catalog = upstream.map(|upstream| (upstream.catalog(), &upstream.names));
        // A malformed resource was already reported by the upstream's catalog.
        let definitions = catalog.iter().flat_map(|(catalog, names)| {
            catalog.resources.iter().filter_map(move |raw| names.parse_resource(raw).ok())
        });
        for def in definitions {
            if let Some(warning) = conflict_warning(&def.uri, "a resource") {
                warnings.add(provider.name(), warning);
                continue;
            }
            if let Some(unprefixed) = &mut unprefixed {
                unprefixed.schemes.extend(scheme(&def.uri));
            }
            listed.add(index, def.uri.clone(), Arc::new(ResourceRoute::new(provider.clone(), def)));
        }
        for def in provider.as_provider().resource_templates() {
            if let Some(warning) = conflict_warning(&def.uri_template, "a resource template") {
                warnings.add(provider.name(), warning);
                continue;
            }
            if let Some(unprefixed) = &mut unprefixed {
                unprefixed.schemes.extend(scheme(&def.uri_template));
                unprefixed.templates.push(UriTemplate::new(&def.uri_template));
            }
            templates.add(index, def.uri_template.clone(), Arc::new(TemplateRoute::new(provider.clone(), def)));
        }
        self.unprefixed.extend(unprefixed);
    }

    /// Returns the provider that serves a URI or a URI template.
    pub fn find(&self, uri: &str) -> Option<&RouteTarget> {
        self.known_provider(uri).or_else(|| self.likeliest_provider(uri))
    }

    /// Returns the provider that owns the URI's prefix, lists the URI or has a template for it.
    pub(super) fn known_provider(&self, uri: &str) -> Option<&RouteTarget> {
        let by_resource = || self.resources.by_name.get(uri).map(|route| &route.provider);
        let by_template = || self.templates.by_name.get(uri).map(|route| &route.provider);
        let has_match = |unprefixed: &&UnprefixedUpstream| unprefixed.templates.iter().any(|t| t.matches(uri));
        let by_match = || self.unprefixed.iter().find(has_match).map(|unprefixed| &unprefixed.provider);
        self.prefix_owner(uri).or_else(by_resource).or_else(by_template).or_else(by_match)
    }

    /// Returns the provider that most likely serves a URI that no provider lists.
    fn likeliest_provider(&self, uri: &str) -> Option<&RouteTarget> {
        let mut offering = self.unprefixed.iter().filter(|unprefixed| unprefixed.has_resources);
        if let (Some(only), None) = (offering.next(), offering.next()) {
            return Some(&only.provider);
        }
        let scheme = scheme(uri)?;
        self.unprefixed
            .iter()
            .find(|unprefixed| unprefixed.schemes.contains(&scheme))
            .map(|unprefixed| &unprefixed.provider)
    }

    /// Returns the upstreams whose URIs are used unmodified.
    pub(super) fn unprefixed_providers(&self) -> impl Iterator<Item = &RouteTarget> {
        self.unprefixed.iter().map(|unprefixed| &unprefixed.provider)
    }

    fn prefix_owner(&self, uri: &str) -> Option<&RouteTarget> {
        // Schemes are compared without case.
        let has_prefix = |prefix: &str| uri.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        self.prefix_owners.iter().find(|(prefix, _)| has_prefix(prefix)).map(|(_, provider)| provider)
    }
}

/// Returns the scheme in lower case, as schemes are compared without case (RFC 3986 section 3.1).
fn scheme(uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    let is_valid =
        !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'-'));
    is_valid.then(|| scheme.to_ascii_lowercase())
}

fn has_resources(upstream: &Upstream) -> bool {
    upstream.negotiated().is_some_and(|negotiated| member(negotiated.capabilities.get(), "resources").is_some())
}

/// Returns `true` if clients can subscribe to the provider's resources. A module always supports this, and an upstream if it
/// declares so.
pub fn can_subscribe(provider: &RouteTarget) -> bool {
    provider.upstream().is_none_or(|upstream| upstream.check_subscribable().is_ok())
}
