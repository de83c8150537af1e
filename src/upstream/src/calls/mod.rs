//! Sends calls: acquires a slot, an endpoint and a link, and waits for the answer. [`Upstream::send_with_retries`] alone
//! decides which calls are sent again: calls that certainly were not executed and, once, calls that only read.

pub(crate) mod actor;
mod execute;
mod lease;
pub mod rounds;

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use self::lease::TryError;
use crate::{
    link::{LinkError, LinkKind, Listener, Outgoing, Response},
    server::{
        CallOutcome, Caller, Upstream,
        connection::UpstreamConnection,
        endpoint::{CallPass, Endpoint, choose_endpoint},
        limits::{CallClock, SlotError},
        own_requests::OwnRequestError,
        pool::PoolKey,
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError, Method, params::LoggingLevel};
use countersign_provider::Permit;

/// Maximum number of retries of a call.
const MAX_RETRIES: u32 = 2;
/// The pauses before retries.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// Decides which calls may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResendPolicy {
    /// Calls that certainly were not executed; calls that only read also after a lost connection.
    Safe,
    /// Only calls that certainly never left the gateway, for an approved change.
    Unsent,
}

impl Upstream {
    /// Sends a request on a link that this caller may use. The circuit breaker, the limit of concurrent calls and the
    /// time limit apply (the latter is suspended while the upstream waits for an answer); the request is retried where
    /// that is safe. Dropping the future cancels it.
    ///
    /// Runs on the caller's own actix thread.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, `CIRCUIT_OPEN`, `OVERLOADED`, `TIMEOUT`. `data.outcome` is `not_applied` if nothing was
    /// sent, and `unknown` if it may have been. An error that the upstream answers is a [`Response`].
    pub fn call<'a>(
        &'a self,
        caller: &'a Caller,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> impl Future<Output = Result<Response, McpError>> + use<'a> {
        self.send(caller, outgoing, listener, ResendPolicy::Safe)
    }

    /// Sends a call like [`Upstream::call`], with `resend` as the limit of retries.
    pub(super) async fn send(
        &self,
        caller: &Caller,
        outgoing: &Outgoing,
        listener: Arc<dyn Listener>,
        resend: ResendPolicy,
    ) -> Result<Response, McpError> {
        let writes = !outgoing.repeatable && may_write(&outgoing.method);
        let mut recorder = CallRecorder { upstream: self, outcome: CallOutcome::Cancelled, writes };
        let result = self.send_with_retries(caller, outgoing, listener, resend).await;
        recorder.outcome = match &result {
            Ok(Response::Result(_)) => CallOutcome::Ok,
            Ok(Response::Error(_)) => CallOutcome::Error,
            Err((outcome, _)) => *outcome,
        };
        result.map_err(|(_, error)| error)
    }

    async fn send_with_retries(
        &self,
        caller: &Caller,
        outgoing: &Outgoing,
        listener: Arc<dyn Listener>,
        resend: ResendPolicy,
    ) -> Result<Response, (CallOutcome, McpError)> {
        self.refresh_if_stale();
        let timeout = self.timeouts.for_call(&outgoing.method, outgoing.name.as_deref());
        let _slot = self.call_slots.acquire(timeout).await.map_err(|why| {
            let message = match why {
                SlotError::QueueFull => "too many calls wait for this server (max_queue)",
                SlotError::Timeout => "this server has had too many calls for too long (max_in_flight)",
            };
            (CallOutcome::Refused, self.overloaded(message))
        })?;
        let clock = CallClock::new(self.weak_self.clone(), listener, timeout);
        let (mut retries, mut tried) = (0, 0);
        loop {
            let (endpoint, pass) = match self.admit(caller, tried) {
                Ok(admitted) => admitted,
                // The configured text must not replace the result of an approved change.
                Err(error) => match self.fallback(outgoing).filter(|_| resend == ResendPolicy::Safe) {
                    Some(response) => return Ok(response),
                    None => return Err((CallOutcome::Refused, error)),
                },
            };
            let failed = match self.try_once(endpoint, caller, outgoing, &clock).await {
                Ok(response) => {
                    self.record_answer(pass, &response);
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            let is_failure = match &failed {
                TryError::Link(LinkError::SessionGone | LinkError::Withheld) | TryError::NoLink(_) => false,
                TryError::Link(LinkError::Status { status, .. }) => *status >= 500,
                TryError::Link(_) | TryError::TimedOut => true,
            };
            let must_stop = retries >= MAX_RETRIES || clock.remaining().is_zero() || self.stop.is_cancelled();
            let may_resend = match (&failed, resend) {
                (TryError::Link(LinkError::Unreachable(_)), _) => true,
                (TryError::Link(LinkError::SessionGone), ResendPolicy::Safe) => true,
                // A call is repeated once after a lost connection, and only if it only reads.
                (TryError::Link(LinkError::Lost(_)), ResendPolicy::Safe) => outgoing.repeatable && retries == 0,
                _ => false,
            };
            let is_last = !may_resend || must_stop;
            // Several tries at the only endpoint count as one failure.
            if is_failure && (is_last || self.endpoints.len() > 1) {
                pass.record_failure();
                self.report_breaker();
            } else {
                drop(pass);
            }
            if is_last {
                return Err(self.to_call_error(failed, &clock, resend));
            }
            let pause = match failed {
                // The request may have used an idle connection that the server had closed. A new connection needs no pause.
                TryError::Link(LinkError::SessionGone | LinkError::Lost(_)) => Duration::ZERO,
                _ => BACKOFF.pause(retries).min(clock.remaining()),
            };
            retries += 1;
            tried |= endpoint.bit();
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Chooses an endpoint whose circuit is not open, preferably one that is not in the set `tried`.
    fn admit(&self, caller: &Caller, tried: u64) -> Result<(&Arc<Endpoint>, CallPass<'_>), McpError> {
        // The state of a client session stays at its endpoint.
        let own = caller.session.as_ref().filter(|_| self.endpoints.len() > 1).and_then(|session| {
            let key = PoolKey::Session(Arc::clone(session));
            self.endpoints.iter().find(|endpoint| endpoint.pool.contains(&key))
        });
        let mut wait = Duration::MAX;
        let (mut refused, mut next) = (0_u64, own);
        let choose = |excluded: u64| choose_endpoint(&self.endpoints, excluded);
        while let Some(endpoint) = next.take().or_else(|| choose(refused | tried)).or_else(|| choose(refused)) {
            match endpoint.breaker.admit() {
                Ok(pass) => return Ok((endpoint, pass)),
                Err(left) => wait = wait.min(left),
            }
            refused |= endpoint.bit();
        }
        let seconds = wait.as_secs().saturating_add(1);
        Err(McpError::new(
            ErrorKind::CircuitOpen,
            format!("the server {} has failed too often; it is not tried for a while", self.config.name),
        )
        .with("upstream", self.config.name.as_str())
        .with("retryAfter", seconds)
        .with("outcome", "not_applied"))
    }

    /// Returns the configured answer for an open circuit, if there is one.
    fn fallback(&self, outgoing: &Outgoing) -> Option<Response> {
        let text = self.config.fallback_text.as_deref().filter(|_| &*outgoing.method == "tools/call")?;
        let text = serde_json::Value::from(text);
        let result = format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":{text}}}]}}"#);
        Some(Response::Result(RawValue::from_string(result).ok()?))
    }

    /// Checks that the session at the server is alive before a request that is sent only once. A session that has ended
    /// is detected by a harmless request and replaced.
    pub(super) async fn ensure_session_alive(&self, caller: &Caller) {
        let Ok((endpoint, _)) = self.admit(caller, 0) else { return };
        if endpoint.kind() != LinkKind::Streams {
            return;
        }
        let Ok(lease) = self.lease(endpoint, caller).await else { return };
        if matches!(self.ask(&lease.connection, "ping", "{}").await, Err(OwnRequestError::Link(LinkError::SessionGone)))
        {
            lease.connection.retire();
        }
        lease.release(false);
    }

    /// Tries the call once on one link.
    async fn try_once(
        &self,
        endpoint: &Arc<Endpoint>,
        caller: &Caller,
        outgoing: &Outgoing,
        clock: &Arc<CallClock>,
    ) -> Result<Response, TryError> {
        let lease = tokio::select! {
            biased;
            lease = self.lease_for(endpoint, caller, &outgoing.method) => lease?,
            () = clock.expired() => return Err(TryError::NoLink("no connection came free in time")),
        };
        let connection = Arc::clone(&lease.connection);
        let _in_flight = endpoint.count_call();
        // In the stateless era, each request has a stream of its own.
        let _registered = (connection.era == Era::Legacy)
            .then(|| connection.calls.register_call(outgoing.id, Arc::clone(clock) as _, caller.session.clone()));
        let (_level_request, level) = connection.request_log_level(caller.log_level);
        let result = tokio::select! {
            biased;
            result = async {
                if let Some(level) = level {
                    self.send_log_level(&connection, level).await;
                }
                // Setting the log level may have taken arbitrarily long.
                Outgoing::check_permit(outgoing.permit.as_ref())?;
                connection.link.request(outgoing, Arc::clone(clock) as _).await
            } => result.map_err(TryError::Link),
            () = clock.expired() => Err(TryError::TimedOut),
        };
        match &result {
            Ok(_) => connection.timeout_streak.record_answer(),
            Err(TryError::TimedOut) => self.record_call_timeout(&connection),
            Err(TryError::Link(LinkError::SessionGone)) => connection.retire(),
            Err(_) => {}
        }
        lease.release(matches!(result, Err(TryError::TimedOut)));
        result
    }

    async fn send_log_level(&self, connection: &UpstreamConnection, level: LoggingLevel) {
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        if let Err(error) = self.ask(connection, "logging/setLevel", &params).await {
            tracing::debug!(upstream = %self.config.name, %error, "the log level of the upstream could not be set");
        }
    }

    /// Records an answer. An HTTP status of 500 or above counts as a failure.
    fn record_answer(&self, pass: CallPass<'_>, response: &Response) {
        let is_server_failure =
            matches!(response, Response::Error(error) if error.status.is_some_and(|status| status >= 500));
        let may_change_breaker = pass.is_trial() || is_server_failure;
        if is_server_failure {
            pass.record_failure();
        } else {
            pass.record_success();
        }
        if may_change_breaker {
            self.report_breaker();
        }
        // The server no longer accepts the negotiated revision.
        if matches!(response, Response::Error(error) if error.code == ErrorKind::UnsupportedVersion.number()) {
            self.era_doubted.notify_one();
        }
    }

    fn to_call_error(&self, failed: TryError, clock: &CallClock, resend: ResendPolicy) -> (CallOutcome, McpError) {
        let name = self.config.name.as_str();
        let error = match failed {
            TryError::NoLink(message) => return (CallOutcome::Refused, self.overloaded(message)),
            TryError::TimedOut => {
                let limit = u64::try_from(clock.timeout().as_millis()).unwrap_or(u64::MAX);
                let error = McpError::new(ErrorKind::Timeout, format!("the server {name} did not answer in time"))
                    .with("upstream", name)
                    .with("timeoutMs", limit)
                    .with("outcome", "unknown");
                return (CallOutcome::Timeout, error);
            }
            TryError::Link(error) => error,
        };
        let (outcome, sent) = match &error {
            LinkError::Unreachable(_) => (CallOutcome::Unreachable, false),
            LinkError::Withheld => return (CallOutcome::Refused, Permit::expired_error().with("upstream", name)),
            LinkError::SessionGone => (CallOutcome::Lost, false),
            // With a client error, the server refused the request before it processed it.
            LinkError::Status { status, .. } => (CallOutcome::Lost, *status >= 500 || *status < 400),
            LinkError::Lost(_) | LinkError::Protocol(_) => (CallOutcome::Lost, true),
        };
        tracing::info!(upstream = name, %error, approved = resend == ResendPolicy::Unsent, "a call to the upstream has failed");
        let error = McpError::new(ErrorKind::UpstreamUnavailable, format!("the server {name} {error}"))
            .with("upstream", name)
            .with("outcome", if sent { "unknown" } else { "not_applied" });
        (outcome, error)
    }

    fn overloaded(&self, message: &'static str) -> McpError {
        McpError::new(ErrorKind::Overloaded, message)
            .with("upstream", self.config.name.as_str())
            .with("outcome", "not_applied")
    }
}

/// Returns `true` if requests with this method may change data that others read.
fn may_write(method: &str) -> bool {
    match Method::parse(method) {
        None => true,
        Some(method) => {
            matches!(method, Method::ToolsCall | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult)
        }
    }
}

/// Counts a call when it is dropped, even if the call has not finished.
struct CallRecorder<'a> {
    upstream: &'a Upstream,
    outcome: CallOutcome,
    /// `true` if the call may have changed cached data.
    writes: bool,
}

impl Drop for CallRecorder<'_> {
    fn drop(&mut self) {
        self.upstream.metrics.record_outcome(self.outcome);
        if self.writes && !matches!(self.outcome, CallOutcome::Refused | CallOutcome::Unreachable) {
            self.upstream.invalidate_cache();
        }
    }
}
