//! Decides who gets a name that several providers offer.

use std::{collections::HashMap, sync::Arc};

use super::{RouteError, aliases::Aliases};
use crate::target::Target;
use countersign_domain::text::plural;

/// Warnings kept of one provider; of more there is the number.
const KEPT: usize = 50;

/// What is wrong with what a provider offers and yet stops nobody, by the provider's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings(HashMap<String, (Vec<String>, usize)>);

impl Warnings {
    pub fn add(&mut self, provider: &str, text: String) {
        let (kept, more) = self.0.entry(provider.to_owned()).or_default();
        if kept.len() < KEPT {
            kept.push(text);
        } else {
            *more += 1;
        }
    }

    /// Those of one provider, the last of which may say how many more there are.
    #[must_use]
    pub fn of(&self, provider: &str) -> Vec<String> {
        let Some((kept, more)) = self.0.get(provider) else { return Vec::new() };
        let rest = (*more > 0).then(|| format!("and {more} more"));
        kept.iter().cloned().chain(rest).collect()
    }

    /// To the log, but for what it has been told before.
    pub fn log(&self, before: &Self) {
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

/// How a contest is settled.
pub struct Rules<'a> {
    pub providers: &'a [Target],
    pub aliases: &'a Aliases,
    /// An error rather than a warning.
    pub strict: bool,
}

/// Names as they are offered, in order.
pub struct Claims<T> {
    what: &'static str,
    /// Whose it is (an index), its name, and what it is.
    all: Vec<(usize, String, Arc<T>)>,
    first: HashMap<String, usize>,
    contested: HashMap<String, Vec<usize>>,
}

/// Names after every contest.
pub struct Settled<T> {
    pub by_name: HashMap<String, Arc<T>>,
    /// In listing order: by provider, then as the provider lists them. Stable across restarts.
    pub order: Vec<Arc<T>>,
    /// Who else serves a name, the best first.
    pub others: HashMap<String, Vec<Arc<T>>>,
}

impl<T> Default for Settled<T> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), order: Vec::new(), others: HashMap::new() }
    }
}

impl<T> Claims<T> {
    /// `what` is `a tool` and the like.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, all: Vec::new(), first: HashMap::new(), contested: HashMap::new() }
    }

    /// A provider offers `name`. What the same provider offers twice counts once.
    pub fn add(&mut self, provider: usize, name: String, item: Arc<T>) -> bool {
        let place = self.all.len();
        if let Some(&first) = self.first.get(&name) {
            let contested = self.contested.entry(name.clone()).or_insert_with(|| vec![first]);
            if contested.iter().any(|&other| self.all[other].0 == provider) {
                return false;
            }
            contested.push(place);
        } else {
            self.first.insert(name.clone(), place);
        }
        self.all.push((provider, name, item));
        true
    }

    /// Gives each name to one provider: by the configured priority; else, if that is no error, to the one that `held`
    /// it before, so that a name never changes its meaning under its clients; else to the first in order.
    ///
    /// # Errors
    /// [`RouteError::Collision`] where `rules` are strict.
    pub fn settle(
        mut self,
        rules: &Rules<'_>,
        held: impl Fn(&str) -> Option<String>,
        warnings: &mut Warnings,
    ) -> Result<Settled<T>, RouteError> {
        let mut lost = vec![false; self.all.len()];
        let mut others = HashMap::new();
        let provider = |place: usize| rules.providers[self.all[place].0].name();
        let contested = std::mem::take(&mut self.contested);
        // In order, so that errors and logs come out the same every time.
        let mut contested: Vec<_> = contested.into_iter().filter(|(_, places)| places.len() > 1).collect();
        contested.sort_by_key(|(_, places)| places[0]);
        for (name, mut places) in contested {
            if places.iter().all(|&place| rules.aliases.rank(provider(place)).is_some()) {
                places.sort_by_key(|&place| rules.aliases.rank(provider(place)));
                let rest = places[1..].iter().map(|&place| self.all[place].2.clone()).collect();
                others.insert(name.clone(), rest);
            } else if rules.strict {
                return Err(RouteError::Collision {
                    what: self.what,
                    name,
                    first: provider(places[0]).to_owned(),
                    second: provider(places[1]).to_owned(),
                });
            } else {
                if let Some(holder) = held(&name) {
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
        let mut settled = Settled { others, ..Settled::default() };
        settled.by_name.reserve(self.all.len());
        for ((_, name, item), lost) in self.all.into_iter().zip(lost) {
            if !lost {
                settled.by_name.insert(name, item.clone());
                settled.order.push(item);
            }
        }
        Ok(settled)
    }
}
