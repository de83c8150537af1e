//! This crate is empty: only its manifest matters.
