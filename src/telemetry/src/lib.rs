//! What the gateway tells its operator: logs on stderr and numbers for Prometheus. Never on stdout, never a secret.

pub mod logs;
pub mod metrics;
pub mod requests;
mod writer;

pub use self::{
    metrics::{Cache, ConnectionGuard, Metrics, Queue, Transport},
    requests::{Method, Outcome, RequestMetrics},
};
