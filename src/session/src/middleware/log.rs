//! One structured line for each request, at DEBUG: method, session, principal, outcome, duration.
//! Never arguments or results: they are other people's data.

use std::time::Instant;

use super::RequestEnd;
use countersign_exchange::context::Exchange;

/// A request that is under way.
pub struct RequestLog<'a> {
    exchange: &'a Exchange,
    method: &'a str,
    /// Taken only where somebody reads it.
    started: Option<Instant>,
}

impl<'a> RequestLog<'a> {
    #[must_use]
    pub fn new(exchange: &'a Exchange, method: &'a str) -> Self {
        Self { exchange, method, started: tracing::enabled!(tracing::Level::DEBUG).then(Instant::now) }
    }

    pub fn finish(self, ended: RequestEnd) {
        let Some(started) = self.started else { return };
        tracing::debug!(
            // What a client sends as a method is its own text.
            method = %self.method.escape_debug().take(64).collect::<String>(),
            session = %self.exchange.session.short_id(),
            principal = %self.exchange.identity.principal.name,
            transport = self.exchange.transport.as_str(),
            revision = self.exchange.revision().as_str(),
            outcome = match ended {
                RequestEnd { failure: Some(kind), .. } => kind.code(),
                RequestEnd { pending: true, .. } => "pending",
                _ => "ok",
            },
            duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}
