//! What an endpoint asks for by a [`crate::Changes`] handle, a file for each; `answer.rs` has the checks that whoever asks
//! must pass.

mod answer;
pub mod decide;
pub mod edit;
pub mod propose;
pub mod refresh;
