//! How messages are framed towards clients and dashboards alike: as server-sent events ([`sse`]), and over a WebSocket
//! ([`pump`]).

mod counted;
mod inbound_frame_limit;
pub mod pump;
pub mod sse;

/// Marks a response whose body lies in the program itself, and takes no memory.
pub struct InProgram;
