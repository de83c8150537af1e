//! How messages are framed towards clients and dashboards alike: as server-sent events ([`sse`]), and over a WebSocket
//! ([`pump`]).

mod counted;
mod inbound_frame_limit;
pub mod pump;
pub mod sse;
