//! Logs on stderr and metrics for Prometheus.
//!
//! This crate never writes to stdout, which belongs to the stdio protocol. It never logs a secret, and never uses
//! client input as a label.
//!
//! [`logs`] sets up logging. [`metrics`] has the one table of metrics, and counts requests and errors.

pub mod logs;
pub mod metrics;
mod writer;

pub use self::metrics::{Cache, GaugeGuard, MethodLabel, Metrics, Queue, RequestMetrics, RequestOutcome, Transport};
