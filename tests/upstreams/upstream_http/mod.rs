//! Tests of upstreams over HTTP, HTTP+SSE and WebSocket, against scripted servers that misbehave in every way.

mod answers;
mod detection;
mod faults;
mod pair;
mod server;
mod sessions;
mod websocket;
