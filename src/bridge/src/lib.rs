//! Calls of clients to upstream servers, whatever the era of either.
//!
//! The bridge never asks the policy: a [`Call`] has been allowed before. Payloads are never parsed into a tree of
//! values. Messages that an upstream sends during a call reach only the client of that call.
//!
//! Each part uses only the parts before it: `translation` between the eras ([`request`], [`result`]), [`questions`] of
//! upstreams to clients, `request_state` that clients carry ([`StateSealer`]), `parked_calls`, [`tasks`], and `calls`
//! ([`call`]).

mod calls;
mod parked_calls;
pub mod questions;
mod request_state;
pub mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod translation;

pub use calls::{Bridge, Call, CallFlags, call, subscribe_on_own_link, tool_error_reply};
pub use request_state::{StateSealer, load_or_create_key};
pub use translation::{
    error::URL_ELICITATION_REQUIRED,
    request::{self, RequestedItem},
    result, task_json,
};
