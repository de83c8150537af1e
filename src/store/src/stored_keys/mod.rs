//! Implements the credentials, accounts and counts of rules for both backends with the same statements.

mod accounts;
mod credentials;
mod people;
mod rule_counts;

pub(crate) use credentials::{list_holders, list_keys, touch_key};
pub(crate) use people::list_people;

/// The keys, sign-ins, codes, people, accounts and counts of a database.
pub(crate) struct StoredKeys<D>(pub D);
