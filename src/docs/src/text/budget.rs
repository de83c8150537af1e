//! What reading one document may cost.

use std::time::{Duration, Instant};

/// Time for one document. The largest takes a tenth of a second in a release build.
const LIMIT: Duration = Duration::from_secs(5);
/// Steps between two looks at the clock.
const CLOCK: u64 = 4096;

/// Reading a document takes longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooSlow;

/// Counts the steps of reading one document and ends it when its time is over. Each loop over the lines or the marks of a
/// document, and each search among them, takes a step for each round.
#[derive(Debug)]
pub(crate) struct Budget {
    deadline: Instant,
    pub steps: u64,
}

impl Budget {
    pub fn new() -> Self {
        Self::until(Instant::now() + LIMIT)
    }

    pub fn until(deadline: Instant) -> Self {
        Self { deadline, steps: 0 }
    }

    /// Takes a step.
    ///
    /// # Errors
    /// The time is over.
    pub fn step(&mut self) -> Result<(), TooSlow> {
        self.steps += 1;
        if self.steps.is_multiple_of(CLOCK) && Instant::now() >= self.deadline { Err(TooSlow) } else { Ok(()) }
    }
}
