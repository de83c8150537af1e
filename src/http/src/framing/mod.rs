//! Frames messages to agents and dashboards, as server-sent events ([`sse`]) or over a WebSocket ([`pump`]).

mod input;
mod output;
pub mod pump;
pub mod sse;

/// The size in bytes of the slices that a connection is given.
pub(crate) const SLICE_BYTES: usize = 32 << 10;

/// Marks a response whose body is embedded in the executable, in an encoding that the client accepts. It does not count as
/// memory of a principal.
pub struct EmbeddedBody;
