//! Counts every request and how long it took. Labels come from closed lists, never from a client.

use std::time::Instant;

use super::RequestEnd;
use countersign_exchange::context::Exchange;
use countersign_telemetry::{Method, RequestMetrics, RequestOutcome, Transport};

/// A request that is under way. One that is dropped unfinished was given up by its client.
pub struct Timer {
    transport: Transport,
    method: Method,
    started: Instant,
    finished: bool,
}

impl Timer {
    #[must_use]
    pub fn start(exchange: &Exchange, method: &str) -> Self {
        Self {
            transport: exchange.transport,
            method: Method::from_name(method),
            started: Instant::now(),
            finished: false,
        }
    }

    pub fn finish(mut self, ended: RequestEnd) {
        self.finished = true;
        let outcome = match ended {
            RequestEnd { failure: Some(kind), in_band, .. } => {
                RequestMetrics::get().error(kind);
                if in_band { RequestOutcome::ToolError } else { RequestOutcome::from_error_kind(kind) }
            }
            RequestEnd { pending: true, .. } => RequestOutcome::Pending,
            RequestEnd { .. } => RequestOutcome::Ok,
        };
        self.record(outcome);
    }

    fn record(&self, outcome: RequestOutcome) {
        RequestMetrics::get().record(self.transport, self.method, outcome, self.started.elapsed());
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if !self.finished {
            self.record(RequestOutcome::Cancelled);
        }
    }
}
