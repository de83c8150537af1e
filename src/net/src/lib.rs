//! Outbound connections: the HTTP client, TLS and backoff that the parts of the gateway share.
//!
//! This crate knows no protocol above HTTP, and its client never follows a redirect, which would take configured credentials
//! elsewhere. Where the client does not fit, a crate uses only the TLS: `upstream` has another HTTP/1.1 client for calls, which
//! a benchmark justifies; `cluster` uses the client for WebSockets only, and forwards other requests over HTTP/2 connections
//! whose streams stay open for hours; and `check` writes every byte of a request itself.

mod addresses;
mod backoff;
mod basic_authorization;
mod bounded_request;
mod client;
mod fence;
pub mod tls;

pub use addresses::{AddressRange, shared_client};
pub use backoff::{Backoff, random_byte};
pub use basic_authorization::basic_authorization;
pub use bounded_request::{BoundedRequestError, BoundedResponse, send_bounded};
pub use client::{CONNECT_TIMEOUT, MAX_CONNECTION_AGE, client, describe_send_error, fenced_client};
pub use fence::WriteFence;

/// The `User-Agent` of the gateway's requests.
pub const USER_AGENT: &str = concat!("countersign/", env!("CARGO_PKG_VERSION"));
