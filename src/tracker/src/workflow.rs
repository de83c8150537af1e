//! The transitions between statuses. Pure.

use std::collections::BTreeMap;

use super::model::Status;

/// The allowed transitions between statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Workflow {
    /// The allowed next statuses of each status, by its position in [`Status::ALL`].
    next: Vec<Vec<Status>>,
}

impl Default for Workflow {
    /// Allows steps forward, steps back, cancelling an open issue at any time, and reopening a closed one.
    fn default() -> Self {
        use Status::{Backlog, Cancelled, Done, InProgress, Review, Todo};
        Self {
            next: Status::ALL
                .iter()
                .map(|status| match status {
                    Backlog => vec![Todo, Cancelled],
                    Todo => vec![InProgress, Backlog, Cancelled],
                    InProgress => vec![Review, Todo, Cancelled],
                    Review => vec![Done, InProgress, Cancelled],
                    Done => vec![InProgress],
                    Cancelled => vec![Backlog],
                })
                .collect(),
        }
    }
}

impl Workflow {
    /// Reads the allowed transitions from a map of status names. An empty map selects the default workflow. In a map
    /// with entries, a status without one has no transitions.
    ///
    /// # Errors
    /// Fails for a name that is not a status, a transition of a status to itself, and a transition that is named twice.
    pub fn from_config(config: &BTreeMap<String, Vec<String>>) -> Result<Self, String> {
        if config.is_empty() {
            return Ok(Self::default());
        }
        let status = |name: &str| {
            Status::parse(name).ok_or_else(|| {
                let names: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
                format!("`{name}` is not a status; the statuses are {}", names.join(", "))
            })
        };
        let mut next = vec![Vec::new(); Status::ALL.len()];
        for (from, to) in config {
            let from = status(from)?;
            for name in to {
                let to = status(name)?;
                if to == from {
                    return Err(format!("{from} leads to itself"));
                }
                if next[from as usize].contains(&to) {
                    return Err(format!("{from} leads to {to} twice"));
                }
                next[from as usize].push(to);
            }
        }
        Ok(Self { next })
    }

    /// Returns the statuses that an issue in this status may go to.
    pub fn allowed_from(&self, from: Status) -> &[Status] {
        self.next.get(from as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns `true` if an issue may go from one status to the other.
    pub fn allows(&self, from: Status, to: Status) -> bool {
        self.allowed_from(from).contains(&to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(entries: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        entries.iter().map(|(k, v)| ((*k).to_owned(), v.iter().map(|s| (*s).to_owned()).collect())).collect()
    }

    #[test]
    fn default_reaches_every_status_and_requires_review() {
        let workflow = Workflow::default();
        let mut reached = vec![Status::Backlog];
        let mut index = 0;
        while index < reached.len() {
            for to in workflow.allowed_from(reached[index]) {
                if !reached.contains(to) {
                    reached.push(*to);
                }
            }
            index += 1;
        }
        assert_eq!(reached.len(), Status::ALL.len());
        for from in Status::ALL {
            assert_eq!(workflow.allows(*from, Status::Done), *from == Status::Review);
            assert!(!workflow.allows(*from, *from));
        }
    }

    #[test]
    fn configured_workflow_replaces_default() {
        let workflow = Workflow::from_config(&config(&[("Backlog", &["Done"])])).unwrap();
        assert!(workflow.allows(Status::Backlog, Status::Done));
        assert!(workflow.allowed_from(Status::Done).is_empty());
        assert!(!workflow.allows(Status::Backlog, Status::Todo));
        assert_eq!(Workflow::from_config(&BTreeMap::new()).unwrap(), Workflow::default());
    }

    #[test]
    fn unknown_statuses_and_loops_are_refused() {
        for (entries, expected) in [
            (config(&[("Backlog", &["Finished"])]), "`Finished` is not a status"),
            (config(&[("backlog", &[])]), "`backlog` is not a status"),
            (config(&[("Done", &["Done"])]), "Done leads to itself"),
            (config(&[("Done", &["Todo", "Todo"])]), "Done leads to Todo twice"),
        ] {
            let error = Workflow::from_config(&entries).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
