//! Implements the credentials, accounts and counts of rules for both backends with the same statements.

mod accounts;
mod copy;
mod credentials;
mod people;
mod rule_counts;

use std::sync::Arc;

pub(crate) use copy::{KeyCopy, KeyRecords};
pub(crate) use credentials::{list_holders, list_keys};
pub(crate) use people::list_people;

/// The keys, sign-ins, codes, people, accounts and counts of a database.
pub(crate) struct StoredKeys<D> {
    pub db: D,
    /// The copy that answers the look-ups of requests; `None` for a database that answers them within microseconds.
    pub copy: Option<Arc<KeyCopy>>,
}

impl<D> StoredKeys<D> {
    /// Returns the records of a database without a copy.
    pub fn new(db: D) -> Self {
        Self { db, copy: None }
    }

    /// Updates the copy, if there is one, with what was written or read.
    fn update_copy(&self, update: impl FnOnce(&KeyCopy)) {
        if let Some(copy) = &self.copy {
            update(copy);
        }
    }
}
