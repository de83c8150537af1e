//! Calls of clients to upstream servers, whatever era either is of.
//!
//! Never asks the policy: a [`Call`] is one that was allowed. No payload passes through a tree of values, and what an
//! upstream sends meanwhile reaches exactly the client whose call it is.
//!
//! Each part uses only those before it. `translation`: what one era has and the other lacks, in [`parse_request`], [`result`],
//! errors and tasks; nothing else is changed. [`questions`]: what upstreams ask clients. `request_state`: what clients carry
//! to their next request ([`StateSealer`]). `parked_calls`: calls that wait for their clients' answers. [`tasks`] takes tasks across.
//! `calls` is the way of a [`call`]: its client is asked, the call parked, or made again with the answers. [`extension`]
//! passes unknown methods on.

mod calls;
pub mod extension;
mod parked_calls;
pub mod questions;
mod request_state;
pub mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod translation;

pub use calls::{Bridge, Call, call, failed, plan::CallPlan, subscribe_own};
pub use request_state::{StateSealer, key_of};
pub use translation::{
    request::{self, Verb},
    result, task_shape,
};
