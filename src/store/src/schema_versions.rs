//! The schema versions that this program knows.

use serde::Serialize;

use crate::{postgres::schema, sqlite::open};

/// The newest schema version of each backend. A store with an older one is migrated, and one with a newer one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SchemaVersions {
    pub sqlite: i64,
    pub postgresql: i64,
}

impl SchemaVersions {
    /// Returns the versions that this program knows.
    pub fn of_program() -> Self {
        Self { sqlite: open::known_version(), postgresql: schema::known_version() }
    }
}
