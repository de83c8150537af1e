//! Request ids, kept as the JSON text they came in.

use std::fmt;

/// A JSON-RPC request id: the raw JSON text of a string or an integer of any length, echoed byte for byte.
///
/// `1` and `"1"` are different ids (2026-07-28/basic/index, "Requests").
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Box<str>);

impl RequestId {
    /// Wraps raw JSON text that the envelope parser has already accepted as an id.
    pub(crate) fn from_raw(raw: &str) -> Self {
        Self(raw.into())
    }

    /// The JSON text of the id, as the client wrote it.
    #[must_use]
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

impl From<i64> for RequestId {
    fn from(n: i64) -> Self {
        Self(n.to_string().into())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
