//! Frames messages to agents and dashboards, as server-sent events ([`sse`]) or over a WebSocket ([`pump`]).

mod input;
pub mod pump;
pub mod sse;

/// Marks a response whose body is embedded in the executable, in an encoding that the client accepts. It does not count as
/// memory of a principal.
pub struct EmbeddedBody;
