//! Sends calls: acquires a slot, an endpoint and a link, and waits for the answer. [`Upstream::send_with_retries`]
//! alone decides which calls are sent again: calls that certainly were not executed and, once, calls that only read.

pub(crate) mod execute;
mod lease;
mod open_link;
pub mod rounds;
mod task;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use serde_json::value::RawValue;

use self::lease::AttemptError;
pub use self::task::FailedRequests;
use crate::{
    catalog::ListKinds,
    link::{
        LinkError, LinkKind, Listener, OutgoingRequest, Response,
        detect::{is_client_error, may_be_other_era, may_lack_meta},
    },
    server::{
        CallOutcome, Caller, Phase, Upstream,
        connection::{LogLevelRequest, UpstreamConnection},
        endpoint::{CallPass, Endpoint, choose_endpoint},
        gateway_requests::GatewayRequestError,
        limits::{CallClock, CallEnd},
        pool::PoolKey,
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError, Method};
use countersign_provider::Permit;

/// The maximum number of retries of a call.
const MAX_RETRIES: u32 = 2;
/// The pauses before retries.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// The origin of a call, which decides whether the call may be sent again.
#[derive(Clone, Copy)]
pub(crate) enum CallOrigin<'a> {
    /// A client, or the gateway on its behalf. The call is sent again if it certainly was not executed. If it only reads, it is also
    /// repeated once after a lost connection. A `tools/call` is not sent again if the tools have changed.
    Client,
    /// An approved change. The call is sent again only if it certainly never left the gateway.
    ApprovedChange {
        /// The endpoint that is tried first.
        preferred: Option<&'a Arc<Endpoint>>,
    },
}

/// A call that is sent to the server, perhaps several times.
struct OutgoingCall<'a> {
    caller: &'a Caller,
    outgoing: &'a OutgoingRequest,
    listener: Arc<dyn Listener>,
    origin: CallOrigin<'a>,
}

impl CallOrigin<'_> {
    /// Returns `true` if a call that failed with this error may be sent again. `is_first_repeat` is `true` for a call that only
    /// reads and was sent once.
    const fn permits_resend(self, error: &AttemptError, is_first_repeat: bool) -> bool {
        match (error, self) {
            (AttemptError::Link(LinkError::Unreachable(_)), _)
            | (AttemptError::Link(LinkError::SessionGone), Self::Client) => true,
            (AttemptError::Link(LinkError::Lost(_)), Self::Client) => is_first_repeat,
            _ => false,
        }
    }
}

impl Upstream {
    /// Sends a request on a link that this caller may use. The circuit breaker, the limit of concurrent calls and the
    /// time limit apply (the latter is suspended while the upstream waits for an answer); the request is retried where
    /// that is safe. Dropping the future cancels it.
    ///
    /// Runs on the caller's own actix thread.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, `CIRCUIT_OPEN`, `OVERLOADED`, `TIMEOUT`, `AUTHORIZATION`. `data.outcome` is
    /// `not_applied` if nothing was sent, and `unknown` if it may have been. An error that the upstream answers is a
    /// [`Response`].
    pub fn call<'a>(
        &'a self,
        caller: &'a Caller,
        outgoing: &'a OutgoingRequest,
        listener: Arc<dyn Listener>,
    ) -> impl Future<Output = Result<Response, McpError>> + use<'a> {
        self.send(OutgoingCall { caller, outgoing, listener, origin: CallOrigin::Client })
    }

    /// Sends a call of any origin like [`Upstream::call`].
    async fn send(&self, call: OutgoingCall<'_>) -> Result<Response, McpError> {
        if call.outgoing.waits_for_task {
            // Boxed, because few calls need it.
            return Box::pin(self.send_and_await_task(call)).await;
        }
        self.send_recorded(call).await
    }

    /// Sends a call, and records its outcome in the metrics.
    async fn send_recorded(&self, call: OutgoingCall<'_>) -> Result<Response, McpError> {
        let writes = !call.outgoing.is_repeatable && may_write(&call.outgoing.method);
        let mut recorder = CallRecorder { upstream: self, outcome: CallOutcome::Cancelled, writes };
        let result = self.send_with_retries(call).await;
        recorder.outcome = match &result {
            Ok(Response::Result(_)) => CallOutcome::Ok,
            Ok(Response::Error(_)) => CallOutcome::Error,
            Err((outcome, _)) => *outcome,
        };
        result.map_err(|(_, error)| error)
    }

    /// Sends a call to one endpoint after another, until it is answered or must not be sent again.
    async fn send_with_retries(&self, call: OutgoingCall<'_>) -> Result<Response, (CallOutcome, McpError)> {
        let OutgoingCall { caller, outgoing, listener, origin } = call;
        self.refresh_if_stale();
        let tools_version = self.tools_version.load(Ordering::Acquire);
        let timeout = self.timeouts.for_call(&outgoing.method, outgoing.name.as_deref());
        let overload_error = |reason: &'static str| {
            (CallOutcome::Refused, self.call_error(ErrorKind::Overloaded, reason, "not_applied"))
        };
        let _slot = self.call_slots.acquire(timeout).await.map_err(overload_error)?;
        let clock = CallClock::new(self.weak_self.clone(), listener, timeout);
        let (mut retries, mut tried_endpoints) = (0, 0);
        loop {
            let preferred = match origin {
                CallOrigin::ApprovedChange { preferred } if retries == 0 => preferred,
                _ => None,
            };
            let (endpoint, pass) = match self.choose_admitting_endpoint(caller, tried_endpoints, preferred) {
                Ok(admitted) => admitted,
                // The configured text must not replace the result of an approved change.
                Err(error) => match (self.fallback_response(outgoing), origin) {
                    (Some(response), CallOrigin::Client) => return Ok(response),
                    _ => return Err((CallOutcome::Refused, error)),
                },
            };
            let error = match self.try_once(endpoint, caller, outgoing, &clock).await {
                Ok(response) => {
                    self.record_answer(pass, &response);
                    return Ok(response);
                }
                Err(error) => error,
            };
            let must_stop = retries >= MAX_RETRIES || clock.remaining().is_zero() || self.stop.is_cancelled();
            let is_last = must_stop || !origin.permits_resend(&error, outgoing.is_repeatable && retries == 0);
            // Several attempts at the only endpoint count as one failure.
            if error.is_server_failure(&outgoing.method) && (is_last || self.endpoints.len() > 1) {
                pass.record_failure();
                self.report_breaker();
            } else {
                drop(pass);
            }
            // A tool that has another definition now must be decided on again.
            let reread_limit = error.ends_session(endpoint.kind()).then(|| clock.remaining());
            if is_last
                || (&*outgoing.method == "tools/call"
                    && !Box::pin(self.has_same_tools(tools_version, reread_limit)).await)
            {
                return Err(self.to_call_error(error, &clock, origin));
            }
            let pause = match error {
                // The request may have used an idle connection that the server had closed, so a new one needs no pause.
                AttemptError::Link(LinkError::SessionGone | LinkError::Lost(_)) => Duration::ZERO,
                _ => BACKOFF.pause(retries).min(clock.remaining()),
            };
            retries += 1;
            tried_endpoints |= endpoint.index_bit();
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Chooses an endpoint whose circuit is not open: `preferred`, or else preferably one that is not in the set
    /// `tried_endpoints`.
    fn choose_admitting_endpoint<'a>(
        &'a self,
        caller: &Caller,
        tried_endpoints: u64,
        preferred: Option<&'a Arc<Endpoint>>,
    ) -> Result<(&'a Arc<Endpoint>, CallPass<'a>), McpError> {
        // The state of a client session stays at its endpoint.
        let session_endpoint = caller.session.as_ref().filter(|_| self.endpoints.len() > 1).and_then(|session| {
            let key = PoolKey::Session(Arc::clone(session));
            self.endpoints.iter().find(|endpoint| endpoint.pool.contains(&key))
        });
        let mut wait = Duration::MAX;
        let (mut refused, mut next) = (0_u64, preferred.or(session_endpoint));
        let choose = |excluded: u64| choose_endpoint(&self.endpoints, excluded);
        while let Some(endpoint) = next.take().or_else(|| choose(refused | tried_endpoints)).or_else(|| choose(refused))
        {
            match endpoint.breaker.admit() {
                Ok(pass) => return Ok((endpoint, pass)),
                Err(left) => wait = wait.min(left),
            }
            refused |= endpoint.index_bit();
        }
        let seconds = wait.as_secs().saturating_add(1);
        let message = format!("the server {} has failed too often; it is not tried for a while", self.config.name);
        Err(self.call_error(ErrorKind::CircuitOpen, message, "not_applied").with("retryAfter", seconds))
    }

    /// Returns the configured answer for an open circuit, if there is one.
    fn fallback_response(&self, outgoing: &OutgoingRequest) -> Option<Response> {
        let text = self.config.fallback_text.as_deref().filter(|_| &*outgoing.method == "tools/call")?;
        let text = serde_json::Value::from(text);
        let result = format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":{text}}}]}}"#);
        Some(Response::Result(RawValue::from_string(result).ok()?))
    }

    /// Checks that the session at the server is alive before a request that is sent only once. A session that has ended
    /// is detected by a harmless request and replaced. Returns the endpoint that was checked, to which the request must go.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` if the tools have changed meanwhile, or cannot be read after the end of the session, or of the
    /// one that listed them.
    pub(super) async fn ensure_session_alive(&self, caller: &Caller) -> Result<Option<&Arc<Endpoint>>, McpError> {
        let tools_version = self.tools_version.load(Ordering::Acquire);
        let Ok((endpoint, _)) = self.choose_admitting_endpoint(caller, 0, None) else { return Ok(None) };
        let (mut preferred, mut has_ended) = (None, false);
        if self.era() == Era::Legacy
            && endpoint.kind() == LinkKind::Streams
            && let Ok(lease) = self.lease(endpoint, caller).await
        {
            preferred = Some(endpoint);
            has_ended = matches!(
                self.send_gateway_request(&lease.connection, "ping", "{}", self.config.timeout).await,
                Err(GatewayRequestError::Link(LinkError::SessionGone))
            );
            if has_ended {
                lease.connection.retire();
            }
            lease.release(false);
        }
        // A new link works even if another server has replaced the one that listed the tools.
        let must_reread = has_ended || !self.has_current_tools();
        if !self.has_same_tools(tools_version, must_reread.then_some(self.config.timeout)).await {
            let name = self.config.name.as_str();
            let message = match self.phase() {
                Phase::Down(error) => {
                    self.reconnect.notify_one();
                    format!("the server {name} {error}")
                }
                _ => format!("the tools of the server {name} have changed, or cannot be read in a new session"),
            };
            return Err(self.call_error(ErrorKind::UpstreamUnavailable, message, "not_applied"));
        }
        Ok(preferred)
    }

    /// Sends the call once on one link.
    async fn try_once(
        &self,
        endpoint: &Arc<Endpoint>,
        caller: &Caller,
        outgoing: &OutgoingRequest,
        clock: &Arc<CallClock>,
    ) -> Result<Response, AttemptError> {
        let lease = tokio::select! {
            biased;
            lease = self.lease_chosen(endpoint, caller, &outgoing.method) => lease?,
            () = clock.wait_until_expired() => return Err(AttemptError::NoLink("no connection came free in time")),
        };
        let connection = Arc::clone(&lease.connection);
        let _in_flight = endpoint.count_call();
        // In the stateless era, each request has a stream of its own.
        let _registered = (connection.era == Era::Legacy)
            .then(|| connection.calls.register_call(outgoing.id, Arc::clone(clock) as _, caller.session.clone()));
        let mut level_request = connection.request_log_level(caller.log_level);
        let result = tokio::select! {
            biased;
            result = async {
                if let Some(request) = &mut level_request
                    && request.to_send.is_some()
                {
                    Box::pin(self.send_log_level(&connection, request, clock)).await?;
                }
                // Setting the log level may have taken arbitrarily long.
                OutgoingRequest::check_permit(outgoing.permit.as_ref()).map_err(AttemptError::Link)?;
                connection.link.request(outgoing, Arc::clone(clock) as _).await.map_err(AttemptError::Link)
            } => result,
            end = clock.wait_for_end(&self.gateway_ended) => Err(match end {
                CallEnd::Expired => AttemptError::TimedOut,
                CallEnd::GatewayEnded => AttemptError::Link(LinkError::Lost("the gateway ended it".to_owned())),
            }),
        };
        match &result {
            Ok(response) => {
                connection.timeout_streak.record_answer();
                if let Response::Error(error) = response {
                    self.check_refusal(connection.era, error.status, Some(error.code));
                }
            }
            Err(AttemptError::TimedOut) => self.record_call_timeout(&connection),
            Err(AttemptError::Link(LinkError::SessionGone)) => connection.retire(),
            Err(AttemptError::Link(LinkError::Status { status, .. })) => {
                self.check_refusal(connection.era, Some(*status), None);
            }
            Err(_) => {}
        }
        lease.release(matches!(result, Err(AttemptError::TimedOut)));
        result
    }

    /// Sends the level that a call wants to the server, before the call.
    ///
    /// # Errors
    /// [`AttemptError::TimedOut`] if the time limit of the call is reached first.
    async fn send_log_level(
        &self,
        connection: &UpstreamConnection,
        request: &mut LogLevelRequest<'_>,
        clock: &CallClock,
    ) -> Result<(), AttemptError> {
        let Some(level) = request.to_send else { return Ok(()) };
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        let answer = tokio::select! {
            biased;
            answer = self.send_gateway_request(connection, "logging/setLevel", &params, self.config.timeout) => Some(answer),
            () = clock.wait_until_expired() => None,
        };
        if let Some(Err(error)) = &answer {
            tracing::debug!(upstream = %self.config.name, %error, "the log level of the upstream could not be set");
        }
        // A server that refuses the level or does not answer must not delay the next call as well.
        request.to_send = match &answer {
            Some(Err(GatewayRequestError::Link(LinkError::Status { status, .. }))) if is_client_error(*status) => None,
            Some(Err(GatewayRequestError::Link(_))) => Some(level),
            _ => None,
        };
        answer.map(drop).ok_or(AttemptError::TimedOut)
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
    }

    /// Has the era checked, or the tools read again, if the refusal of a call suggests that the server has changed.
    fn check_refusal(&self, era: Era, status: Option<u16>, code: Option<i64>) {
        if may_be_other_era(era, status, code) {
            self.era_doubted.notify_one();
        }
        // The tool may want other arguments in headers than its known definition says
        // (2026-07-28/basic/transports/streamable-http, "Client Behavior"). The arguments of a call may be wrong, so only
        // a refused list is a reason to check the era.
        if code == Some(ErrorKind::HeaderMismatch.number()) || may_lack_meta(era, status, code) {
            self.mark_stale(ListKinds::TOOLS);
        }
    }

    /// Returns the error for the caller, and the outcome for the metrics.
    fn to_call_error(&self, error: AttemptError, clock: &CallClock, origin: CallOrigin<'_>) -> (CallOutcome, McpError) {
        let name = self.config.name.as_str();
        let error = match error {
            AttemptError::NoLink(message) => {
                return (CallOutcome::Refused, self.call_error(ErrorKind::Overloaded, message, "not_applied"));
            }
            AttemptError::TimedOut => {
                let limit = u64::try_from(clock.timeout.as_millis()).unwrap_or(u64::MAX);
                let message = format!("the server {name} did not answer in time");
                let error = self.call_error(ErrorKind::Timeout, message, "unknown").with("timeoutMs", limit);
                return (CallOutcome::Timeout, error);
            }
            AttemptError::Link(error) => error,
        };
        let (outcome, was_sent) = match &error {
            LinkError::Unreachable(_) => (CallOutcome::Unreachable, false),
            LinkError::PermitExpired => return (CallOutcome::Refused, Permit::expired_error().with("upstream", name)),
            LinkError::Unauthorized(failure) => {
                return (CallOutcome::Refused, self.authorization_error(failure.clone()));
            }
            LinkError::SessionGone => (CallOutcome::Lost, false),
            LinkError::Status { status, .. } => (CallOutcome::Lost, may_be_processed(*status)),
            LinkError::Lost(_) | LinkError::Protocol(_) => (CallOutcome::Lost, true),
        };
        let is_approved = matches!(origin, CallOrigin::ApprovedChange { .. });
        tracing::info!(upstream = name, %error, approved = is_approved, "a call to the upstream has failed");
        let certainty = if was_sent { "unknown" } else { "not_applied" };
        (outcome, self.call_error(ErrorKind::UpstreamUnavailable, format!("the server {name} {error}"), certainty))
    }
}

/// Returns `true` if a server may have processed a request that has this HTTP status in place of a result. With a client error,
/// the server refused the request first, unless it or a proxy only gave up waiting (408, 499).
const fn may_be_processed(status: u16) -> bool {
    !matches!(status, 400..=499) || matches!(status, 408 | 499)
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
