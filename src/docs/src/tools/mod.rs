//! What clients see.
