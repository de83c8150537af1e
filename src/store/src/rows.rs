//! Parsers for the values of columns, and the values that both backends derive.

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;

use super::StoreError;
use countersign_domain::changes::{Change, ChangeState, audit::EntryHash};
use countersign_runtime::reclaim;

pub(crate) fn parse_change(body: &str) -> Result<Arc<Change>, StoreError> {
    reclaim::note_allocation(body.len());
    Change::from_json(body).map(Arc::new).map_err(|e| StoreError::BadRecord(format!("a change: {e}")))
}

/// Replaces U+0000, which PostgreSQL cannot store in a text, with U+2400 (SYMBOL FOR NULL).
pub(crate) fn to_postgres_text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{2400}")) } else { Cow::Borrowed(text) }
}

pub(crate) fn parse_time(text: &str) -> Result<Timestamp, StoreError> {
    text.parse().map_err(|_| StoreError::BadRecord(format!("not a timestamp: {text:?}")))
}

/// Parses milliseconds since the Unix epoch.
pub(crate) fn parse_time_ms(ms: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_millisecond(ms).map_err(|_| StoreError::BadRecord(format!("not a time: {ms}")))
}

pub(crate) fn parse_state(text: &str) -> Result<ChangeState, StoreError> {
    ChangeState::parse(text).ok_or_else(|| StoreError::BadRecord(format!("not a state: {text:?}")))
}

pub(crate) fn parse_hash(bytes: &[u8]) -> Result<EntryHash, StoreError> {
    bytes.try_into().map_err(|_| StoreError::BadRecord(format!("a hash of {} bytes", bytes.len())))
}

/// Returns the value of `finished_at`: the second in which a final change was updated last.
pub(crate) fn finished_second(state: ChangeState, updated_at: Timestamp) -> Option<i64> {
    state.is_final().then(|| updated_at.as_second())
}

/// Converts to the signed integers of the databases. The numbers of the store never exceed `i64::MAX`.
pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(n: i64) -> Result<u64, StoreError> {
    u64::try_from(n).map_err(|_| StoreError::BadRecord(format!("a negative number: {n}")))
}
