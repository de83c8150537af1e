//! Answers from passages, and the sources that they cite.
