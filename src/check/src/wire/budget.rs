//! Limits how much the prober reads and stores, for each message and for the whole run.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ProbeError;

/// Maximum number of bytes that are read from a server in one run, over all connections.
const MAX_RUN_BYTES: u64 = 256 << 20;
/// Maximum memory in bytes of a parsed message, by [`estimate_parsed_bytes`].
pub(crate) const MAX_PARSED_BYTES: usize = 16 << 20;
/// Memory overhead in bytes of a parsed value.
const VALUE_OVERHEAD: usize = 80;

/// Counts the bytes that were read in one run.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    /// Adds bytes that were read.
    ///
    /// # Errors
    /// The budget of the run is exhausted.
    pub fn charge(&self, bytes: usize) -> Result<(), ProbeError> {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.exceeded_reason() {
            Some(reason) => Err(ProbeError::RunEnded(reason)),
            None => Ok(()),
        }
    }

    /// Returns the reason if the budget is exhausted.
    pub fn exceeded_reason(&self) -> Option<String> {
        (self.0.load(Ordering::Relaxed) > MAX_RUN_BYTES)
            .then(|| format!("the server sent more than {} MiB", MAX_RUN_BYTES >> 20))
    }
}

/// Estimates the memory in bytes of parsed JSON text.
pub(crate) fn estimate_parsed_bytes(text: &str) -> usize {
    let (mut values, mut quoted, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            // Each value except the first follows one of these characters.
            b'[' | b'{' | b',' | b':' if !quoted => values += 1,
            _ => {}
        }
    }
    text.len() + values * VALUE_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ignores_punctuation_in_strings() {
        assert_eq!(estimate_parsed_bytes("1"), 1 + VALUE_OVERHEAD);
        assert_eq!(estimate_parsed_bytes("[[],[]]"), 7 + 5 * VALUE_OVERHEAD);
        assert_eq!(estimate_parsed_bytes(r#"{"a,[":"\\\"{,:"}"#), 17 + 3 * VALUE_OVERHEAD);
        assert!(estimate_parsed_bytes(&"[],".repeat(1 << 20)) > MAX_PARSED_BYTES);
        assert!(estimate_parsed_bytes(&"a, ".repeat(1 << 20)) > MAX_PARSED_BYTES);
        assert!(estimate_parsed_bytes(&format!("\"{}\"", "a, ".repeat(1 << 20))) < MAX_PARSED_BYTES);
    }

    #[test]
    fn run_budget_is_exhausted() {
        let budget = Budget::default();
        assert_eq!(budget.charge(usize::try_from(MAX_RUN_BYTES).unwrap()), Ok(()));
        assert_eq!(budget.exceeded_reason(), None);
        assert!(matches!(budget.charge(1), Err(ProbeError::RunEnded(_))));
        assert!(budget.exceeded_reason().is_some());
    }
}
