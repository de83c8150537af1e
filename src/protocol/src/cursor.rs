//! Pagination cursors (2026-07-28/server/utilities/pagination): opaque to clients, and checked when clients send them back.
//!
//! A cursor names its list and the generation of that list, so that another list rejects it. It holds no secret and grants
//! no access.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::McpError;

/// The start of the next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// Number of entries before the page.
    pub offset: u64,
    /// The generation of the list in which `offset` counts.
    pub generation: u64,
}

/// Maximum bytes of a cursor that is decoded. Cursors of the gateway (a tag, two numbers and separators) are far shorter.
const MAX_CURSOR_BYTES: usize = 256;

/// Writes a cursor for the list `tag` (such as `tools`; `tag` must not contain `.`).
pub fn encode(tag: &str, Cursor { offset, generation }: Cursor) -> String {
    URL_SAFE_NO_PAD.encode(format!("{tag}.{offset}.{generation}"))
}

/// Returns the offset in the cursor `text`.
///
/// # Errors
/// `InvalidParams` for a cursor that the gateway did not issue for this list, and for one of another generation: the
/// list has changed and must be read from its start.
pub fn start_offset(tag: &str, text: &str, generation: u64) -> Result<u64, McpError> {
    let problem = match decode(tag, text) {
        Some(cursor) if cursor.generation == generation => return Ok(cursor.offset),
        Some(_) => "the list has changed since `params.cursor` was given out; leave it out to begin again",
        None => "`params.cursor` is not valid here; leave it out to begin again",
    };
    Err(McpError::invalid_param("cursor", problem))
}

/// Reads a cursor that [`encode`] wrote for the list `tag`.
fn decode(tag: &str, text: &str) -> Option<Cursor> {
    if text.len() > MAX_CURSOR_BYTES {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let mut parts = std::str::from_utf8(&bytes).ok()?.split('.');
    let (found_tag, offset, generation) = (parts.next()?, parts.next()?, parts.next()?);
    if found_tag != tag || parts.next().is_some() {
        return None;
    }
    let cursor = Cursor { offset: offset.parse().ok()?, generation: generation.parse().ok()? };
    // `+1` and `01` parse as numbers too, but were never issued.
    (encode(tag, cursor) == text).then_some(cursor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{ErrorKind, Revision};

    #[test]
    fn cursor_is_bound_to_list_and_generation() {
        let text = encode("tools", Cursor { offset: 50, generation: 3 });
        assert_eq!(start_offset("tools", &text, 3), Ok(50));
        for (tag, generation) in [("prompts", 3), ("tools", 4)] {
            let error = start_offset(tag, &text, generation).expect_err("refused");
            assert_eq!((error.kind, error.number(Revision::MODERN)), (ErrorKind::InvalidParams, -32602));
            assert_eq!(error.data["member"], "cursor");
        }
    }

    #[test]
    fn foreign_cursors_are_refused() {
        let long = "A".repeat(1 << 20);
        let forged = URL_SAFE_NO_PAD.encode("tools.+5.3");
        let padded = format!("{}=", encode("tools", Cursor { offset: 1, generation: 3 }));
        for text in ["", "page2", "dG9vbHMuNS4", "====", "\u{1F600}", &long, &forged, &padded] {
            assert!(decode("tools", text).is_none(), "{:.40}", text);
        }
    }

    proptest! {
        #[test]
        fn cursors_round_trip(offset: u64, generation: u64) {
            let cursor = Cursor { offset, generation };
            let text = encode("resources", cursor);
            prop_assert_eq!(decode("resources", &text), Some(cursor));
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
        }

        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,60}") {
            let _ = decode("tools", &text);
        }
    }
}
