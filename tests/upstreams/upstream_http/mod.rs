//! Upstreams over HTTP, HTTP+SSE and WebSocket, against servers that are written byte by byte and misbehave in every way.

mod answers;
mod detection;
mod faults;
mod pair;
mod server;
mod sessions;
mod websocket;
