//! Requests that endpoints make through a [`crate::Changes`] handle, one file each; `checks.rs` has the checks and results
//! that they share.

mod checks;
pub mod decide;
pub mod edit;
pub mod propose;
pub mod refresh;
