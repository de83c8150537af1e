//! Which provider answers for a URI.
//!
//! A module has schemes of its own, and a prefixed upstream its name as a scheme: those decide first, so that no other
//! server can take them over. Then come upstreams whose URIs are as they are: one that lists the URI, one with a
//! template for it, the only one that has resources at all, one that lists others of that scheme.

use std::{collections::HashSet, sync::Arc};

use super::{
    RouteError, RouteTable,
    name_conflicts::{Claims, Rules, Settled, Warnings},
    rendered::{ResourceRoute, TemplateRoute},
    template::Template,
};
use crate::target::Target;
use countersign_protocol::json::member;
use countersign_upstream::Upstream;

/// See the module's page.
#[derive(Default)]
pub struct Resources {
    owned: Vec<(String, Target)>,
    open: Vec<Open>,
    listed: Settled<ResourceRoute>,
    templates: Settled<TemplateRoute>,
}

/// An upstream whose URIs are as they are.
struct Open {
    provider: Target,
    /// It has resources, as far as it was reached.
    offers: bool,
    templates: Vec<Template>,
    schemes: HashSet<String>,
}

impl Resources {
    /// # Errors
    /// Collisions, where `rules` are strict.
    pub(crate) fn build(
        rules: &Rules<'_>,
        previous: Option<&RouteTable>,
        warnings: &mut Warnings,
    ) -> Result<Self, RouteError> {
        let mut routes = Self::default();
        let mut listed = Claims::new("a resource");
        let mut templates = Claims::new("a resource template");
        for provider in rules.providers {
            let schemes = match provider.upstream() {
                Some(upstream) => vec![upstream.names.scheme().to_owned()],
                None => provider.uri_schemes(),
            };
            for scheme in schemes.into_iter().filter(|scheme| !scheme.is_empty()) {
                match routes.owner(&scheme) {
                    None => routes.owned.push((scheme, provider.clone())),
                    Some(other) if rules.strict => {
                        let (first, second) = (other.name().to_owned(), provider.name().to_owned());
                        return Err(RouteError::Collision { what: "resources", name: scheme, first, second });
                    }
                    Some(other) => {
                        let text = format!("{} has the URIs that begin with {scheme:?} already", other.name());
                        warnings.add(provider.name(), text);
                    }
                }
            }
        }
        for (index, provider) in rules.providers.iter().enumerate() {
            let Some(upstream) = provider.upstream() else {
                for def in provider.resource_templates() {
                    let name = def.uri_template.clone();
                    templates.add(index, name, Arc::new(TemplateRoute::new(provider.clone(), def)));
                }
                continue;
            };
            routes.add(index, provider, upstream, (&mut listed, &mut templates), warnings);
        }
        let held = |find: fn(&Self, &str) -> Option<String>| {
            move |name: &str| previous.and_then(|table| find(&table.resources, name))
        };
        let of_uri = held(|of, uri| of.listed.by_name.get(uri).map(|route| route.provider.name().to_owned()));
        routes.listed = listed.settle(rules, of_uri, warnings)?;
        let of_template = held(|of, uri| of.templates.by_name.get(uri).map(|route| route.provider.name().to_owned()));
        routes.templates = templates.settle(rules, of_template, warnings)?;
        Ok(routes)
    }

    fn add(
        &mut self,
        index: usize,
        provider: &Target,
        upstream: &Arc<Upstream>,
        (listed, templates): (&mut Claims<ResourceRoute>, &mut Claims<TemplateRoute>),
        warnings: &mut Warnings,
    ) {
        let names = &upstream.names;
        let catalog = upstream.catalog();
        let mut open = names.is_identity().then(|| Open {
            provider: provider.clone(),
            offers: has_resources(upstream),
            templates: Vec::new(),
            schemes: HashSet::new(),
        });
        // What begins like another's can never be reached, whether that one is there or not.
        let taken = |uri: &str, what: &'static str| {
            let other = self.owner(uri).filter(|_| names.is_identity())?;
            Some(format!("{what} {uri:?} is left out: such URIs are those of {}", other.name()))
        };
        for raw in &catalog.resources {
            // What cannot be read is the upstream's own affair, which says so.
            let Ok(def) = names.resource(raw) else { continue };
            if let Some(warning) = taken(&def.uri, "a resource") {
                warnings.add(provider.name(), warning);
                continue;
            }
            if let Some(open) = &mut open {
                open.schemes.extend(scheme(&def.uri));
            }
            listed.add(index, def.uri.clone(), Arc::new(ResourceRoute::new(provider.clone(), def)));
        }
        for def in provider.resource_templates() {
            if let Some(warning) = taken(&def.uri_template, "a resource template") {
                warnings.add(provider.name(), warning);
                continue;
            }
            if let Some(open) = &mut open {
                open.schemes.extend(scheme(&def.uri_template));
                open.templates.push(Template::new(&def.uri_template));
            }
            templates.add(index, def.uri_template.clone(), Arc::new(TemplateRoute::new(provider.clone(), def)));
        }
        self.open.extend(open);
    }

    /// The provider that answers for a URI or a URI template.
    #[must_use]
    pub fn find(&self, uri: &str) -> Option<&Target> {
        self.claimed(uri).or_else(|| self.guessed(uri))
    }

    /// The provider whose URI it is by its scheme, or that offers it.
    pub(super) fn claimed(&self, uri: &str) -> Option<&Target> {
        if let Some(owner) = self.owner(uri) {
            return Some(owner);
        }
        if let Some(route) = self.listed.by_name.get(uri) {
            return Some(&route.provider);
        }
        if let Some(route) = self.templates.by_name.get(uri) {
            return Some(&route.provider);
        }
        self.open.iter().find(|open| open.templates.iter().any(|t| t.matches(uri))).map(|open| &open.provider)
    }

    /// The provider that is most likely to have a URI that nobody offers.
    fn guessed(&self, uri: &str) -> Option<&Target> {
        let mut offering = self.open.iter().filter(|open| open.offers);
        if let (Some(only), None) = (offering.next(), offering.next()) {
            return Some(&only.provider);
        }
        let scheme = scheme(uri)?;
        self.open.iter().find(|open| open.schemes.contains(&scheme)).map(|open| &open.provider)
    }

    /// Those whose URIs are as they are.
    pub(super) fn open(&self) -> impl Iterator<Item = &Target> {
        self.open.iter().map(|open| &open.provider)
    }

    fn owner(&self, uri: &str) -> Option<&Target> {
        let begins = |with: &str| uri.get(..with.len()).is_some_and(|beginning| beginning.eq_ignore_ascii_case(with));
        self.owned.iter().find(|(scheme, _)| begins(scheme)).map(|(_, provider)| provider)
    }

    /// Those that upstreams list.
    #[must_use]
    pub fn listed(&self) -> &[Arc<ResourceRoute>] {
        &self.listed.order
    }

    #[must_use]
    pub fn templates(&self) -> &[Arc<TemplateRoute>] {
        &self.templates.order
    }
}

/// In lower case, as schemes are compared (RFC 3986 section 3.1).
fn scheme(uri: &str) -> Option<String> {
    let (scheme, _) = uri.split_once(':')?;
    let fits =
        !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'.' | b'-'));
    fits.then(|| scheme.to_ascii_lowercase())
}

fn has_resources(upstream: &Upstream) -> bool {
    upstream.negotiated().is_some_and(|negotiated| member(negotiated.capabilities.get(), "resources").is_some())
}

/// Whether resources of the provider can be subscribed to: a module's always, an upstream's where it says so.
#[must_use]
pub fn can_subscribe(provider: &Target) -> bool {
    provider.upstream().is_none_or(|upstream| upstream.can_subscribe())
}
