//! Decides which provider gets a name that several providers offer.

use std::{collections::HashMap, sync::Arc};

use super::{RouteError, aliases::Aliases};
use crate::target::RouteTarget;
use countersign_domain::text::plural;

/// Maximum number of warnings kept for one provider; further ones are only counted.
const MAX_WARNINGS: usize = 50;

/// Warnings about the definitions of providers, by the provider's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(HashMap<String, (Vec<String>, usize)>);

impl Warnings {
    pub fn add(&mut self, provider: &str, text: String) {
        let (kept, more) = self.0.entry(provider.to_owned()).or_default();
        if kept.len() < MAX_WARNINGS {
            kept.push(text);
        } else {
            *more += 1;
        }
    }

    /// Returns the warnings of one provider. The last one may give the number of omitted warnings.
    #[must_use]
    pub fn for_provider(&self, provider: &str) -> Vec<String> {
        let Some((kept, more)) = self.0.get(provider) else { return Vec::new() };
        let rest = (*more > 0).then(|| format!("and {more} more"));
        kept.iter().cloned().chain(rest).collect()
    }

    /// Logs the warnings that the previous table did not have.
    pub fn log_new(&self, before: &Self) {
        for (provider, (kept, more)) in &self.0 {
            let known = before.0.get(provider);
            let new = |text: &&String| known.is_none_or(|(known, _)| !known.contains(text));
            for text in kept.iter().filter(new) {
                tracing::warn!(provider = %provider, "{text}");
            }
            if *more > known.map_or(0, |(_, more)| *more) {
                tracing::warn!(provider = %provider, "and {}", plural(*more, "more such definition"));
            }
        }
    }
}

/// The rules by which conflicts of names are resolved.
pub struct ConflictRules<'a> {
    pub providers: &'a [RouteTarget],
    pub aliases: &'a Aliases,
    /// A conflict is an error rather than a warning.
    pub strict: bool,
}

/// Names in the order in which providers offered them.
pub struct NameClaims<T> {
    what: &'static str,
    /// Index of the provider, the name, and the item.
    claims: Vec<(usize, String, Arc<T>)>,
    first_claims: HashMap<String, usize>,
    contested: HashMap<String, Vec<usize>>,
}

/// Names after all conflicts were resolved.
pub struct ResolvedNames<T> {
    pub by_name: HashMap<String, Arc<T>>,
    /// Listing order: by provider, then as the provider lists them. Stable across restarts.
    pub order: Vec<Arc<T>>,
    /// Further items of a name, the best one first.
    pub others: HashMap<String, Vec<Arc<T>>>,
}

impl<T> Default for ResolvedNames<T> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), order: Vec::new(), others: HashMap::new() }
    }
}

impl<T> NameClaims<T> {
    /// Creates an empty collection. `what` describes an item in errors, such as `a tool`.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, claims: Vec::new(), first_claims: HashMap::new(), contested: HashMap::new() }
    }

    /// Adds a name that a provider offers. Returns `false` if the same provider offered it before.
    pub fn add(&mut self, provider: usize, name: String, item: Arc<T>) -> bool {
        let place = self.claims.len();
        if let Some(&first_claim) = self.first_claims.get(&name) {
            let contested = self.contested.entry(name.clone()).or_insert_with(|| vec![first_claim]);
            if contested.iter().any(|&other| self.claims[other].0 == provider) {
                return false;
            }
            contested.push(place);
        } else {
            self.first_claims.insert(name.clone(), place);
        }
        self.claims.push((provider, name, item));
        true
    }

    /// Gives each name to one provider. The configured priority decides first; otherwise `current_holder` keeps the
    /// name, so that it never changes its meaning for clients, or the first provider gets it.
    ///
    /// # Errors
    /// [`RouteError::Collision`] if `rules` are strict.
    pub fn resolve(
        mut self,
        rules: &ConflictRules<'_>,
        current_holder: impl Fn(&str) -> Option<String>,
        warnings: &mut Warnings,
    ) -> Result<ResolvedNames<T>, RouteError> {
        let mut lost = vec![false; self.claims.len()];
        let mut others = HashMap::new();
        let provider = |place: usize| rules.providers[self.claims[place].0].name();
        let contested = std::mem::take(&mut self.contested);
        // Sorted, so that errors and logs are reproducible.
        let mut contested: Vec<_> = contested.into_iter().filter(|(_, places)| places.len() > 1).collect();
        contested.sort_by_key(|(_, places)| places[0]);
        for (name, mut places) in contested {
            if places.iter().all(|&place| rules.aliases.rank(provider(place)).is_some()) {
                places.sort_by_key(|&place| rules.aliases.rank(provider(place)));
                let rest = places[1..].iter().map(|&place| self.claims[place].2.clone()).collect();
                others.insert(name.clone(), rest);
            } else if rules.strict {
                return Err(RouteError::Collision {
                    what: self.what,
                    name,
                    first: provider(places[0]).to_owned(),
                    second: provider(places[1]).to_owned(),
                });
            } else {
                if let Some(holder) = current_holder(&name) {
                    places.sort_by_key(|&place| provider(place) != holder);
                }
                let keeper = provider(places[0]);
                for &place in &places[1..] {
                    let what = self.what;
                    let text = format!("{keeper} offers {what} named {name:?} too and keeps it: this one is left out");
                    warnings.add(provider(place), text);
                }
            }
            for &place in &places[1..] {
                lost[place] = true;
            }
        }
        let mut resolved = ResolvedNames { others, ..ResolvedNames::default() };
        resolved.by_name.reserve(self.claims.len());
        for ((_, name, item), lost) in self.claims.into_iter().zip(lost) {
            if !lost {
                resolved.by_name.insert(name, item.clone());
                resolved.order.push(item);
            }
        }
        Ok(resolved)
    }
}
