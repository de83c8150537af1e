//! Opaque cursors of listings. A cursor holds the row of the last entity of a page, and a hash of the listing's
//! filters. Pure.

use std::hash::{DefaultHasher, Hash, Hasher};

use countersign_protocol::McpError;
use countersign_provider::text::invalid_argument;

/// Returns a hash of the filters. It need not be secret: a forged cursor reads nothing that the filters do not allow.
fn hash_filter(filter: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    filter.hash(&mut hasher);
    hasher.finish()
}

/// Returns the cursor of the page after the entity in that row.
pub(super) fn encode(row: i64, filter: &impl Hash) -> String {
    format!("{row:x}.{:016x}", hash_filter(filter))
}

/// Returns the last row of the previous page.
///
/// # Errors
/// `-32602` if this listing did not return the cursor for the same filters (2026-07-28/server/utilities/pagination).
pub(super) fn decode(cursor: &str, filter: &impl Hash) -> Result<i64, McpError> {
    let message = "cursor is not valid here: give one that this listing returned for the same filters.";
    let invalid = || invalid_argument("/cursor", "cursor", message);
    let (row, filter_hash) = cursor.split_once('.').ok_or_else(invalid)?;
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if !is_hex(row) || !is_hex(filter_hash) || filter_hash != format!("{:016x}", hash_filter(filter)) {
        return Err(invalid());
    }
    i64::from_str_radix(row, 16).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cursor_is_valid_only_for_its_filter(row in 0..i64::MAX, filter in "\\PC{0,20}", other in "\\PC{0,20}") {
            let cursor = encode(row, &filter);
            prop_assert_eq!(decode(&cursor, &filter).unwrap(), row);
            if other != filter {
                prop_assert!(decode(&cursor, &other).is_err());
            }
        }

        #[test]
        fn only_encoded_cursors_are_decoded(text in "\\PC{0,60}|[0-9a-f]{0,20}\\.[0-9a-f]{0,20}") {
            if let Ok(row) = decode(&text, &"filter") {
                prop_assert_eq!(encode(row, &"filter"), text);
            }
        }
    }
}
