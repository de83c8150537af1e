//! The common base of all HTTP endpoints. This crate itself contains no MCP or REST endpoint.
//!
//! The modules from the lowest layer up: [`problem`] documents and the errors of the MCP endpoints ([`answer`]); [`methods`],
//! which refuses those that a path does not take; [`connections`], which are counted; [`guard`], which refuses foreign `Host`
//! and `Origin` headers and authenticates requests; [`protected_resource`], by which clients find issuers of access tokens;
//! [`framing`] as server-sent events and WebSockets; [`front`], the middleware of every request; [`tls`], [`http2`] and
//! [`server`], which serves an application made of endpoints. [`proof`] lets a program on this machine recognize the gateway.

pub mod answer;
pub mod connections;
pub mod framing;
pub mod front;
pub mod guard;
pub mod http2;
mod idle_frames;
pub mod methods;
pub mod problem;
pub mod proof;
pub mod protected_resource;
pub mod server;
#[cfg(test)]
mod testing;
pub mod tls;
