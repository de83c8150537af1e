//! What a server may make the prober hold and read: bounds on one message and on all of a run.

use std::sync::atomic::{AtomicU64, Ordering};

use super::ProbeError;

/// Bytes that are read of a server in one run, over all connections.
const RUN: u64 = 256 << 20;
/// What the values of one message may take when it is parsed, as [`change.estimated_size`] estimates it.
pub(crate) const MAX_WEIGHT: usize = 16 << 20;
/// Bytes that a parsed value takes beside its text.
const VALUE: usize = 80;

/// Counts what was read in one run.
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicU64);

impl Budget {
    /// Notes bytes that were read.
    ///
    /// # Errors
    /// The run has read all that it reads.
    pub fn charge(&self, bytes: usize) -> Result<(), ProbeError> {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        match self.spent() {
            Some(why) => Err(ProbeError::RunEnded(why)),
            None => Ok(()),
        }
    }

    /// Returns why nothing more is read, once that is so.
    pub fn spent(&self) -> Option<String> {
        (self.0.load(Ordering::Relaxed) > RUN).then(|| format!("the server has sent more than {} MiB", RUN >> 20))
    }
}

/// Estimates the bytes that a JSON text takes once it is parsed.
pub(crate) fn weight(text: &str) -> usize {
    let (mut values, mut quoted, mut escaped) = (1, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            // Each value but the first comes after one of these.
            b'[' | b'{' | b',' | b':' if !quoted => values += 1,
            _ => {}
        }
    }
    text.len() + values * VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_ignores_punctuation_in_strings() {
        assert_eq!(weight("1"), 1 + VALUE);
        assert_eq!(weight("[[],[]]"), 7 + 5 * VALUE);
        assert_eq!(weight(r#"{"a,[":"\\\"{,:"}"#), 17 + 3 * VALUE);
        assert!(weight(&"[],".repeat(1 << 20)) > MAX_WEIGHT && weight(&"a, ".repeat(1 << 20)) > MAX_WEIGHT);
        assert!(weight(&format!("\"{}\"", "a, ".repeat(1 << 20))) < MAX_WEIGHT);
    }

    #[test]
    fn run_budget_is_exhausted() {
        let budget = Budget::default();
        assert!(budget.charge(usize::try_from(RUN).unwrap()).is_ok() && budget.spent().is_none());
        assert!(matches!(budget.charge(1), Err(ProbeError::RunEnded(_))) && budget.spent().is_some());
    }
}
