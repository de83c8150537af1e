//! The endpoints: Streamable HTTP, WebSocket and lines ([`transports`]), the REST API and the feed ([`rest`]), and the
//! [`dashboard`].
//!
//! An endpoint frames messages and says who asks; it never decides what a message means or what may happen to a change.
//!
//! Below the endpoints: [`connections`], which are counted; [`guard`], which refuses foreign `Host` and `Origin` headers;
//! [`framing`], as server-sent events and WebSockets; [`problem`] documents; [`services`], which is what endpoints may use.
//! Above them: [`front`], what every request passes. `transports/http/mcp.rs` is `POST /mcp`, `modern.rs` and `session.rs`
//! beside it are the two eras, and `plain.rs` the plain HTTP endpoint.

pub mod connections;
pub mod dashboard;
pub mod framing;
pub mod front;
pub mod guard;
pub mod problem;
pub mod rest;
pub mod services;
#[cfg(test)]
mod testing;
pub mod transports;
