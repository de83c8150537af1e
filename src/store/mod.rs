//! The durable store: changes, their audit trail, the feed's events, keys. SQLite in the data directory.

pub mod error;
pub mod keys;
pub mod lock;
pub mod open;

pub use error::StoreError;
pub use lock::{DataLock, LockError, lock_data_dir};
