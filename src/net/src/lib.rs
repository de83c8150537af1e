//! Outbound connections: the HTTP client, TLS and backoff that every part of the gateway uses.
//!
//! Knows nothing of the protocols that are spoken over them, and never follows a redirect: that would take configured
//! credentials elsewhere. The one other client of HTTP/1.1 is that of calls to upstreams, which is measured.

mod backoff;
mod client;
pub mod tls;

pub use backoff::{Backoff, random_byte};
pub use client::{CONNECT_TIMEOUT, LIFETIME, client, client_over};

/// The `User-Agent` of the gateway's requests.
pub const USER_AGENT: &str = concat!("countersign/", env!("CARGO_PKG_VERSION"));
