//! Counts requests and errors, and computes the share of errors in the last minute.

use std::{
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use metrics::{counter, histogram};

use super::{ERRORS, REQUEST_DURATION, REQUESTS, Transport, labels};
use countersign_protocol::{ErrorKind, Method as ProtocolMethod};

labels! {
    /// The outcome of a request.
    RequestOutcome {
        /// A result was returned.
        Ok = "ok",
        /// The call became a pending change.
        Pending = "pending",
        /// A tool ran and failed (`isError`).
        ToolError = "tool_error",
        /// The client's error: unknown method, bad parameters, missing entity.
        ClientError = "client_error",
        /// Refused: authentication, role, policy, limits.
        Refused = "refused",
        /// An error of the gateway or of a provider.
        ServerError = "server_error",
        /// The client cancelled the request or disconnected.
        Cancelled = "cancelled",
        /// The request timed out.
        Timeout = "timeout",
    }
}

impl RequestOutcome {
    /// Returns the outcome of a request that failed with this error.
    #[must_use]
    pub const fn from_error_kind(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Cancelled => Self::Cancelled,
            ErrorKind::Timeout => Self::Timeout,
            ErrorKind::ToolExecution => Self::ToolError,
            ErrorKind::Unauthorized
            | ErrorKind::Forbidden
            | ErrorKind::ResourceAccessDenied
            | ErrorKind::RateLimited
            | ErrorKind::Overloaded
            | ErrorKind::PolicyDenied
            | ErrorKind::SelfApproval => Self::Refused,
            kind if kind.status() >= 500 => Self::ServerError,
            _ => Self::ClientError,
        }
    }

    /// Returns `true` if the outcome counts in the error ratio: every failure except cancellations by the client.
    #[must_use]
    pub const fn is_error(self) -> bool {
        !matches!(self, Self::Ok | Self::Pending | Self::Cancelled)
    }
}

/// The label of a method: its name, or `other` for a name that the protocol does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method(Option<ProtocolMethod>);

impl Method {
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self(ProtocolMethod::parse(name))
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0.map_or("other", ProtocolMethod::as_str)
    }
}

/// The totals from which the error ratio is computed. [`RequestMetrics::get`] returns the only instance.
#[derive(Default)]
pub struct RequestMetrics {
    requests: AtomicU64,
    failed: AtomicU64,
    window: Mutex<Window>,
}

impl RequestMetrics {
    /// Returns the totals of this process. Nothing is counted unless [`super::Metrics`] was installed before.
    #[must_use]
    pub fn get() -> &'static Self {
        static REQUEST_METRICS: OnceLock<RequestMetrics> = OnceLock::new();
        REQUEST_METRICS.get_or_init(Self::default)
    }

    /// Counts a completed request.
    pub fn record(&self, transport: Transport, method: Method, outcome: RequestOutcome, duration: Duration) {
        let (transport, method) = (transport.as_str(), method.as_str());
        counter!(REQUESTS, "transport" => transport, "method" => method, "outcome" => outcome.as_str()).increment(1);
        histogram!(REQUEST_DURATION, "transport" => transport, "method" => method).record(duration.as_secs_f64());
        self.requests.fetch_add(1, Ordering::Relaxed);
        if outcome.is_error() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an error that was returned.
    pub fn record_error(&self, kind: ErrorKind) {
        counter!(ERRORS, "code" => kind.code()).increment(1);
    }
}

/// Creates the series that the first scrape must contain.
pub(super) fn register() {
    counter!(REQUESTS, "transport" => "http", "method" => "ping", "outcome" => "ok").increment(0);
    drop(histogram!(REQUEST_DURATION, "transport" => "http", "method" => "ping"));
    counter!(ERRORS, "code" => ErrorKind::Internal.code()).increment(0);
}

/// Returns the share of errors in the last minute; 0 if there was no request.
pub(super) fn error_ratio() -> f64 {
    let all = RequestMetrics::get();
    let now = (all.requests.load(Ordering::Relaxed), all.failed.load(Ordering::Relaxed));
    all.window.lock().unwrap_or_else(PoisonError::into_inner).ratio(Instant::now(), now)
}

/// Samples of the totals during the last minute, at most one every two seconds.
#[derive(Debug, Default)]
struct Window {
    samples: std::collections::VecDeque<(Instant, (u64, u64))>,
}

impl Window {
    const LENGTH: Duration = Duration::from_secs(60);
    const STEP: Duration = Duration::from_secs(2);

    #[allow(clippy::cast_precision_loss)]
    fn ratio(&mut self, now: Instant, totals: (u64, u64)) -> f64 {
        // The oldest sample is the last one that is at least a minute old: the start of the window.
        while self.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= Self::LENGTH) {
            self.samples.pop_front();
        }
        let start = self.samples.front().map_or((0, 0), |(_, totals)| *totals);
        if self.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= Self::STEP) {
            self.samples.push_back((now, totals));
        }
        let (requests, failed) = (totals.0.saturating_sub(start.0), totals.1.saturating_sub(start.1));
        if requests == 0 { 0.0 } else { failed as f64 / requests as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Cache, ConnectionGuard, Metrics,
        metrics::{Breaker, CacheMetrics, set_breaker_state},
    };

    fn value(text: &str, series: &str) -> Option<f64> {
        text.lines().find_map(|l| l.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    #[test]
    fn unknown_method_has_the_label_other() {
        for method in ProtocolMethod::ALL {
            assert_eq!(Method::from_name(method.as_str()).as_str(), method.as_str());
        }
        assert_eq!(Method::from_name("tools/cal\n").as_str(), "other");
    }

    #[test]
    fn recorded_values_are_rendered() {
        let metrics = Metrics::install().unwrap();
        let requests = RequestMetrics::get();
        requests.record(Transport::Sse, Method::from_name("prompts/get"), RequestOutcome::Ok, Duration::from_millis(3));
        requests.record(Transport::Sse, Method::from_name("prompts/get"), RequestOutcome::Ok, Duration::from_secs(3));
        requests.record(Transport::Sse, Method::from_name("no/such"), RequestOutcome::ClientError, Duration::ZERO);
        requests.record_error(ErrorKind::ResumeTooLate);
        set_breaker_state("tracker", Breaker::Open);
        CacheMetrics::for_cache(Cache::Reads).hit();
        CacheMetrics::for_cache(Cache::Reads).miss();
        let guard = ConnectionGuard::connection(Transport::Stdio);
        let text = metrics.render();
        let value_of = |series: &str| value(&text, series).unwrap_or_else(|| panic!("{series} is not in:\n{text}"));
        assert_eq!(value_of(r#"countersign_requests_total{transport="sse",method="prompts/get",outcome="ok"}"#), 2.0);
        assert_eq!(
            value_of(r#"countersign_requests_total{transport="sse",method="other",outcome="client_error"}"#),
            1.0
        );
        let bucket = r#"countersign_request_duration_seconds_bucket{transport="sse",method="prompts/get",le=""#;
        assert_eq!(value_of(&format!("{bucket}0.005\"}}")), 1.0);
        assert_eq!(value_of(&format!("{bucket}+Inf\"}}")), 2.0);
        assert_eq!(value_of(r#"countersign_errors_total{code="RESUME_TOO_LATE"}"#), 1.0);
        assert_eq!(value_of(r#"countersign_circuit_breaker_state{provider="tracker"}"#), 2.0);
        assert_eq!(value_of(r#"countersign_cache_hit_ratio{cache="reads"}"#), 0.5);
        assert_eq!(value_of(r#"countersign_connections_active{transport="stdio"}"#), 1.0);
        assert!(value_of("countersign_error_ratio") > 0.0);
        drop(guard);
        let text = metrics.render();
        assert_eq!(value(&text, r#"countersign_connections_active{transport="stdio"}"#), Some(0.0));
        // Every metric has its HELP text, and the first scrape contains the most important ones.
        for family in [
            "countersign_requests_total",
            "countersign_request_duration_seconds",
            "countersign_errors_total",
            "countersign_connections_active",
            "countersign_queue_length",
            "countersign_cache_hit_ratio",
        ] {
            assert!(text.contains(&format!("# HELP {family} ")), "{family}\n{text}");
            assert!(text.contains(&format!("# TYPE {family} ")), "{family}");
        }
    }

    #[test]
    fn error_ratio_covers_last_minute() {
        let mut window = Window::default();
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        assert_eq!(window.ratio(at(0), (0, 0)), 0.0);
        assert_eq!(window.ratio(at(1), (10, 5)), 0.5);
        assert_eq!(window.ratio(at(30), (20, 5)), 0.25);
        assert_eq!(window.ratio(at(59), (20, 5)), 0.25);
        // The first half minute is over, and nothing failed since then.
        assert_eq!(window.ratio(at(90), (40, 5)), 0.0);
        assert_eq!(window.ratio(at(200), (40, 5)), 0.0);
        for s in 200..2000 {
            window.ratio(at(s), (40, 5));
        }
        assert!(window.samples.len() <= 32, "{}", window.samples.len());
    }

    #[test]
    fn every_error_has_an_outcome() {
        assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Parse), RequestOutcome::ClientError);
        assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Internal), RequestOutcome::ServerError);
        assert_eq!(RequestOutcome::from_error_kind(ErrorKind::RateLimited), RequestOutcome::Refused);
        assert_eq!(RequestOutcome::from_error_kind(ErrorKind::Timeout), RequestOutcome::Timeout);
        assert!(!RequestOutcome::from_error_kind(ErrorKind::Cancelled).is_error());
    }
}
