//! Configured names that are used as labels. The recorder never forgets a series, so the series of removed names are
//! filtered from the output.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The maximum number of names with a label of their own.
const MAX_LABELED_NAMES: usize = 256;

/// For each name and the labels whose value it is, the number of configurations that contain it. The count is 2 while one
/// configuration replaces another.
static NAME_COUNTS: Mutex<BTreeMap<(LabelNames, String), usize>> = Mutex::new(BTreeMap::new());

type LabelNames = &'static [&'static str];

/// Returns the label of a configured name: the name itself, or `other` for names beyond `MAX_LABELED_NAMES`.
pub fn label_of(name: &str) -> &str {
    static LABELED_NAMES: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut labeled = LABELED_NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let has_label = labeled.contains(name) || (labeled.len() < MAX_LABELED_NAMES && labeled.insert(name.to_owned()));
    if has_label { name } else { "other" }
}

/// A configured name. Its series are shown until it is removed or dropped.
#[derive(Debug)]
pub struct ConfiguredName {
    labels: LabelNames,
    name: String,
    is_removed: AtomicBool,
}

impl ConfiguredName {
    /// Registers a name. `labels` are the labels whose value is the name.
    #[must_use]
    pub fn new(labels: LabelNames, name: &str) -> Self {
        let name = name.to_owned();
        update_count(labels, &name, |count| count.saturating_add(1));
        Self { labels, name, is_removed: AtomicBool::new(false) }
    }

    /// Marks the name as no longer configured.
    pub fn remove(&self) {
        if !self.is_removed.swap(true, Ordering::Relaxed) {
            update_count(self.labels, &self.name, |count| count.saturating_sub(1));
        }
    }
}

impl Drop for ConfiguredName {
    fn drop(&mut self) {
        self.remove();
    }
}

fn update_count(labels: LabelNames, name: &str, update: impl Fn(usize) -> usize) {
    let mut counts = NAME_COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let count = counts.entry((labels, name.to_owned())).or_default();
    *count = update(*count);
}

/// Removes the series of removed names from the Prometheus text.
pub(super) fn drop_removed_series(text: String) -> String {
    let counts = NAME_COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    let removed_names = counts.iter().filter(|(_, count)| **count == 0);
    let removed_labels: Vec<String> = removed_names
        .flat_map(|((labels, name), _)| {
            let name = name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            labels.iter().map(move |label| format!("{label}=\"{name}\""))
        })
        .collect();
    drop(counts);
    if removed_labels.is_empty() {
        return text;
    }
    let has_label =
        |line: &str, pair: &str| line.match_indices(pair).any(|(start, _)| line[..start].ends_with(['{', ',']));
    let is_shown = |line: &&str| line.starts_with('#') || !removed_labels.iter().any(|pair| has_label(line, pair));
    text.split_inclusive('\n').filter(is_shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_removed_names_are_left_out() {
        let text = "# HELP a b{server=\"gone\"}\na{server=\"gone\"} 1\na{x=\"y\",provider=\"gone\"} 1\n\
                    a{server=\"gone too\"} 1\na{other=\"gone\"} 1\na{x=\"server=\\\"gone\\\"\"} 1\n";
        let shown = || drop_removed_series(text.to_owned());
        let removed_name = ConfiguredName::new(&["server", "provider"], "gone");
        assert_eq!(shown(), text);
        // Another configuration of the same name replaces it.
        let next = ConfiguredName::new(&["server", "provider"], "gone");
        drop(removed_name);
        assert_eq!(shown(), text);
        next.remove();
        next.remove();
        let expected: Vec<&str> =
            text.lines().filter(|line| !line.contains("gone\"} 1") || line.contains("other")).collect();
        assert_eq!(shown().lines().collect::<Vec<_>>(), expected);
        let _again = ConfiguredName::new(&["server", "provider"], "gone");
        assert_eq!(shown(), text);
    }
}
