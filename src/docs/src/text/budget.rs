//! Limits the cost of parsing one document.

use std::time::{Duration, Instant};

/// The time limit for one document. The largest takes a tenth of a second in a release build.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The number of steps between two checks of the clock.
const STEPS_PER_CHECK: u64 = 4096;

/// The error of a document that takes too long to parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlowError;

/// Counts the steps of parsing one document, and ends the parsing when time runs out. Each iteration over the lines
/// or events of a document, and each search among them, takes a step.
#[derive(Debug)]
pub(crate) struct Budget {
    deadline: Instant,
    pub steps: u64,
}

impl Budget {
    pub fn new() -> Self {
        Self::with_deadline(Instant::now() + TIME_LIMIT)
    }

    pub fn with_deadline(deadline: Instant) -> Self {
        Self { deadline, steps: 0 }
    }

    /// Takes a step.
    ///
    /// # Errors
    /// Fails if time has run out.
    pub fn step(&mut self) -> Result<(), TooSlowError> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHECK) && Instant::now() >= self.deadline {
            Err(TooSlowError)
        } else {
            Ok(())
        }
    }
}
