//! Outbound connections: the HTTP client, TLS and backoff that every part of the gateway uses.
//!
//! This crate knows no protocol above HTTP, and its client never follows a redirect, which would take configured credentials
//! elsewhere. Calls to upstreams use another HTTP/1.1 client, which a benchmark justifies.

mod addresses;
mod backoff;
mod client;
mod exchange;
pub mod tls;

pub use addresses::{AddressRange, shared_client};
pub use backoff::{Backoff, random_byte};
pub use client::{CONNECT_TIMEOUT, MAX_CONNECTION_AGE, client, client_over};
pub use exchange::{Answer, ExchangeError, exchange};

/// The `User-Agent` of the gateway's requests.
pub const USER_AGENT: &str = concat!("countersign/", env!("CARGO_PKG_VERSION"));
