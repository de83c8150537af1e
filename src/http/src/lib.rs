//! The endpoints: Streamable HTTP, WebSocket and lines ([`transports`]), the REST API and the feed ([`rest`]), and the
//! [`dashboard`].
//!
//! A endpoint frames messages and says who asks; it never decides what a message means or what may happen to a change.
//!
//! `transports/http/mcp.rs` is `POST /mcp`, `modern.rs` and `session.rs` beside it are the two eras, and `plain.rs` the
//! plain HTTP endpoint. [`guard`] refuses foreign `Host` and `Origin` headers at all of them. [`services`] is what they may
//! use.

pub mod dashboard;
pub mod guard;
pub mod rest;
pub mod services;
#[cfg(test)]
mod testing;
pub mod transports;
