//! Frames messages towards agents and dashboards alike: as server-sent events ([`sse`]), and over a WebSocket ([`pump`]).

mod input;
pub mod pump;
pub mod sse;

/// Marks a response whose body is part of the program, and takes no memory.
pub struct InProgram;
