//! Keys, codes and accounts in SQLite.

use std::path::Path;

use super::{
    open::open_current,
    sql::{SharedConnection, run},
};
use crate::{StoreError, statements::facts, stored_keys::StoredKeys};

/// Opens the keys and accounts of a data directory, and creates the database if there is none. Each call blocks for one read
/// (microseconds) or one durable write (milliseconds).
///
/// # Errors
/// See [`open_current`].
pub(crate) fn open(data_dir: &Path) -> Result<StoredKeys<SharedConnection>, StoreError> {
    let conn = open_current(data_dir)?;
    run(facts::check_moved(&conn))?;
    Ok(StoredKeys(SharedConnection::new(conn)))
}
