//! What the gateway tells its operator: logs on stderr and numbers for Prometheus.
//!
//! Never writes to stdout, which belongs to the stdio protocol. Never logs a secret, and never makes a label of what a
//! client sent.
//!
//! [`logs`] sets the log up, [`metrics`] has the one table of metrics, [`metrics::requests`] counts requests cheaply.

pub mod logs;
pub mod metrics;
mod writer;

pub use self::metrics::{
    Cache, ConnectionGuard, Metrics, Queue, Transport,
    requests::{Method, RequestMetrics, RequestOutcome},
};
