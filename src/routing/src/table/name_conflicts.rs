//! Decides which provider gets a name that several providers offer.

use std::{collections::HashMap, sync::Arc};

use super::{RouteError, TableInputs};
use countersign_domain::text::plural;

/// Maximum number of warnings that are kept for one provider. Further warnings are only counted.
const MAX_WARNINGS: usize = 50;

/// Warnings about the definitions of providers, by the provider's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(HashMap<String, ProviderWarnings>);

/// Warnings about the definitions of one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProviderWarnings {
    texts: Vec<String>,
    /// The number of warnings beyond [`MAX_WARNINGS`].
    omitted: usize,
}

impl Warnings {
    pub fn add(&mut self, provider: &str, text: String) {
        let warnings = self.0.entry(provider.to_owned()).or_default();
        if warnings.texts.len() < MAX_WARNINGS {
            warnings.texts.push(text);
        } else {
            warnings.omitted += 1;
        }
    }

    /// Returns the warnings of one provider. The last one may give the number of omitted warnings.
    pub fn for_provider(&self, provider: &str) -> Vec<String> {
        let Some(ProviderWarnings { texts, omitted }) = self.0.get(provider) else { return Vec::new() };
        let rest = (*omitted > 0).then(|| format!("and {omitted} more"));
        texts.iter().cloned().chain(rest).collect()
    }

    /// Logs the warnings that the previous table did not have.
    pub fn log_new(&self, previous: &Self) {
        for (provider, ProviderWarnings { texts, omitted }) in &self.0 {
            let previous = previous.0.get(provider);
            let is_new = |text: &&String| previous.is_none_or(|previous| !previous.texts.contains(text));
            for text in texts.iter().filter(is_new) {
                tracing::warn!(provider = %provider, "{text}");
            }
            if *omitted > previous.map_or(0, |previous| previous.omitted) {
                tracing::warn!(provider = %provider, "not logged: {} about its definitions", plural(*omitted, "more warning"));
            }
        }
    }
}

/// Names in the order in which providers offered them.
pub struct NameClaims<T> {
    /// Describes an item in errors.
    item_kind: &'static str,
    claims: Vec<NameClaim<T>>,
    /// The index of the first claim to each name.
    first_claims: HashMap<String, usize>,
    /// The indices of all claims to a name that several providers offer.
    contested: HashMap<String, Vec<usize>>,
}

/// A name that a provider offers.
struct NameClaim<T> {
    /// The index of the provider.
    provider: usize,
    name: String,
    item: Arc<T>,
}

/// Names after all conflicts were resolved.
pub struct ResolvedNames<T> {
    pub by_name: foldhash::HashMap<String, Arc<T>>,
    /// The items in listing order: by provider, then in the order of the provider. The order is stable across restarts.
    pub order: Vec<Arc<T>>,
    /// Further items with the same name, in the order of priority.
    pub alternatives: HashMap<String, Vec<Arc<T>>>,
    /// The providers that offer a name and did not get it, except for those of `alternatives`.
    losers: HashMap<String, Vec<String>>,
}

impl<T> Default for ResolvedNames<T> {
    fn default() -> Self {
        Self {
            by_name: foldhash::HashMap::default(),
            order: Vec::new(),
            alternatives: HashMap::new(),
            losers: HashMap::new(),
        }
    }
}

impl<T> NameClaims<T> {
    /// Creates an empty collection. `item_kind` describes an item in errors, such as `a tool`.
    pub fn new(item_kind: &'static str) -> Self {
        Self { item_kind, claims: Vec::new(), first_claims: HashMap::new(), contested: HashMap::new() }
    }

    /// Adds a name that a provider offers. Returns `false` if the same provider offered it before.
    pub fn add(&mut self, provider: usize, name: String, item: Arc<T>) -> bool {
        let index = self.claims.len();
        if let Some(&first_claim) = self.first_claims.get(&name) {
            let contested = self.contested.entry(name.clone()).or_insert_with(|| vec![first_claim]);
            if contested.iter().any(|&other| self.claims[other].provider == provider) {
                return false;
            }
            contested.push(index);
        } else {
            self.first_claims.insert(name.clone(), index);
        }
        self.claims.push(NameClaim { provider, name, item });
        true
    }

    /// Gives each name to one provider. The configured priority decides first; otherwise `current_holder` keeps the
    /// name, so that it never changes its meaning for clients, or the first provider gets it.
    ///
    /// # Errors
    /// [`RouteError::Collision`] if the build is strict and a provider loses a name that it had not lost in `previous`.
    pub fn resolve(
        mut self,
        inputs: &TableInputs<'_>,
        previous: Option<&ResolvedNames<T>>,
        current_holder: impl Fn(&str) -> Option<String>,
        warnings: &mut Warnings,
    ) -> Result<ResolvedNames<T>, RouteError> {
        let mut is_lost = vec![false; self.claims.len()];
        let (mut alternatives, mut losers) = (HashMap::new(), HashMap::new());
        let provider = |index: usize| inputs.providers[self.claims[index].provider].name();
        let contested = std::mem::take(&mut self.contested);
        // The conflicts are sorted, so that errors and logs are reproducible.
        let mut contested: Vec<_> = contested.into_iter().filter(|(_, indices)| indices.len() > 1).collect();
        contested.sort_by_key(|(_, indices)| indices[0]);
        for (name, mut indices) in contested {
            if indices.iter().all(|&index| inputs.aliases.rank(provider(index)).is_some()) {
                indices.sort_by_key(|&index| inputs.aliases.rank(provider(index)));
                let rest = indices[1..].iter().map(|&index| self.claims[index].item.clone()).collect();
                alternatives.insert(name.clone(), rest);
            } else {
                if let Some(holder) = current_holder(&name) {
                    indices.sort_by_key(|&index| provider(index) != holder);
                }
                let (item, keeper) = (self.item_kind, provider(indices[0]));
                let old_losers = previous.and_then(|names| names.losers.get(&name));
                let new_losers: Vec<String> = indices[1..].iter().map(|&index| provider(index).to_owned()).collect();
                let is_new = |loser: &&String| old_losers.is_none_or(|old| !old.contains(loser));
                if inputs.strict
                    && let Some(second) = new_losers.iter().find(is_new)
                {
                    let (first, second) = (keeper.to_owned(), second.clone());
                    return Err(RouteError::Collision { item, name, first, second });
                }
                for loser in &new_losers {
                    let text = format!("{keeper} offers {item} named {name:?} too and keeps it: this one is left out");
                    warnings.add(loser, text);
                }
                losers.insert(name, new_losers);
            }
            for &index in &indices[1..] {
                is_lost[index] = true;
            }
        }
        let mut resolved = ResolvedNames { alternatives, losers, ..ResolvedNames::default() };
        resolved.by_name.reserve(self.claims.len());
        for (NameClaim { name, item, .. }, is_lost) in self.claims.into_iter().zip(is_lost) {
            if !is_lost {
                resolved.by_name.insert(name, item.clone());
                resolved.order.push(item);
            }
        }
        Ok(resolved)
    }
}
