//! Requests that endpoints make through a [`crate::Changes`] handle, one file each; `answer.rs` has the checks and answers
//! that they share.

mod answer;
pub mod decide;
pub mod edit;
pub mod propose;
pub mod refresh;
