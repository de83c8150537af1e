//! The common base of all HTTP endpoints. This crate itself contains no MCP or REST endpoint.
//!
//! The modules from the lowest layer up: [`answer`] and [`problem`] build the responses of the MCP endpoints and of all others;
//! [`methods`] refuses the HTTP methods that a path does not support; [`connections`] counts connections and limits their
//! number; [`guard`] refuses foreign `Host` and `Origin` headers and authenticates requests; [`protected_resource`] lets
//! clients find the issuers of access tokens; [`framing`] writes server-sent events and WebSockets; [`front`] is the middleware
//! of every request; [`server`] serves an application made of endpoints, with [`tls`] and [`http2`]. [`proof`] lets a program on
//! this machine recognize the gateway.

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
