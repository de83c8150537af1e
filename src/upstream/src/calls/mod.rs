//! The way of a call: a place, an endpoint, a link, the answer; and the one decision on what is sent again
//! ([`Upstream::tries`]): what certainly was not done, and once more what only reads.

pub(crate) mod actor;
mod clock;
mod execute;
mod lease;
pub mod rounds;

use std::{sync::Arc, time::Duration};

use serde_json::value::RawValue;

use self::{clock::Clock, lease::Failed};
use crate::{
    link::{LinkError, LinkKind, Listener, Outgoing, Response},
    server::{
        Upstream,
        breaker::Pass,
        caller::Caller,
        endpoint::{self, Endpoint},
        held::Held,
        own_requests::AskError,
        places::NoPlace,
        pool::Key,
        status::Ended,
    },
};
use countersign_net::Backoff;
use countersign_protocol::{Era, ErrorKind, McpError, Method, params::LoggingLevel};
use countersign_provider::Permit;

/// Further tries of what was not sent.
const RETRIES: u32 = 2;
/// The pauses before them.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// What may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// What was certainly not done; what only reads, also after a lost connection.
    Safe,
    /// Only what certainly never left the gateway: an approved change.
    Unsent,
}

impl Upstream {
    /// Sends a request on a link that this caller may use, with everything that protects either side: the breaker, the
    /// bound on calls in flight, the time-out (which stands still while the upstream waits for an answer of its own),
    /// retries where nothing was sent or nothing can be harmed. Dropping the future cancels it.
    ///
    /// Runs on the caller's own actix thread.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE`, `CIRCUIT_OPEN`, `OVERLOADED`, `TIMEOUT`; `data.outcome` is `not_applied` where nothing
    /// was sent, `unknown` where it may have been. An error that the upstream answers is a [`Response`].
    pub fn call<'a>(
        &'a self,
        caller: &'a Caller,
        outgoing: &'a Outgoing,
        listener: Arc<dyn Listener>,
    ) -> impl Future<Output = Result<Response, McpError>> + use<'a> {
        self.send(caller, outgoing, listener, Resend::Safe)
    }

    /// As [`Upstream::call`]; `resend` bounds what may be sent again.
    pub(super) async fn send(
        &self,
        caller: &Caller,
        outgoing: &Outgoing,
        listener: Arc<dyn Listener>,
        resend: Resend,
    ) -> Result<Response, McpError> {
        let writes = !outgoing.repeatable && may_write(&outgoing.method);
        let mut count = Count { upstream: self, ended: Ended::Cancelled, writes };
        let result = self.tries(caller, outgoing, listener, resend).await;
        count.ended = match &result {
            Ok(Response::Result(_)) => Ended::Ok,
            Ok(Response::Error(_)) => Ended::Error,
            Err((ended, _)) => *ended,
        };
        result.map_err(|(_, error)| error)
    }

    async fn tries(
        &self,
        caller: &Caller,
        outgoing: &Outgoing,
        listener: Arc<dyn Listener>,
        resend: Resend,
    ) -> Result<Response, (Ended, McpError)> {
        self.refresh_if_stale();
        let timeout = self.timeouts.of(&outgoing.method, outgoing.name.as_deref());
        let _place = self.places.take(timeout).await.map_err(|why| {
            let message = match why {
                NoPlace::QueueFull => "too many calls wait for this server (max_queue)",
                NoPlace::TooLong => "this server has had too many calls for too long (max_in_flight)",
            };
            (Ended::Refused, self.overloaded(message))
        })?;
        let clock = Clock::new(self.me.clone(), listener, timeout);
        let (mut again, mut tried) = (0, 0);
        loop {
            let (at, endpoint, pass) = match self.admit(caller, tried) {
                Ok(admitted) => admitted,
                // What was approved is done or not done, and no text stands for it.
                Err(error) => match self.fallback(outgoing).filter(|_| resend == Resend::Safe) {
                    Some(text) => return Ok(text),
                    None => return Err((Ended::Refused, error)),
                },
            };
            let failed = match self.once(at, endpoint, caller, outgoing, &clock).await {
                Ok(response) => {
                    self.answered(pass, &response);
                    return Ok(response);
                }
                Err(failed) => failed,
            };
            let is_failure = match &failed {
                Failed::Link(LinkError::SessionGone | LinkError::Withheld) | Failed::NoLink(_) => false,
                Failed::Link(LinkError::Status { status, .. }) => *status >= 500,
                Failed::Link(_) | Failed::TimedOut => true,
            };
            let tried_enough = again >= RETRIES || clock.left().is_zero() || self.stop.is_cancelled();
            let may = match (&failed, resend) {
                (Failed::Link(LinkError::Unreachable(_)), _) => true,
                (Failed::Link(LinkError::SessionGone), Resend::Safe) => true,
                // Once, and only what reads.
                (Failed::Link(LinkError::Lost(_)), Resend::Safe) => outgoing.repeatable && again == 0,
                _ => false,
            };
            let over = !may || tried_enough;
            // Tries of one call at one place count once.
            if is_failure && (over || self.endpoints.len() > 1) {
                pass.failed();
                self.report_breaker();
            } else {
                drop(pass);
            }
            if over {
                return Err(self.explain(failed, &clock, resend));
            }
            let pause = match failed {
                // A kept connection that ended under the request is lost too, and a new one is there at once.
                Failed::Link(LinkError::SessionGone | LinkError::Lost(_)) => Duration::ZERO,
                _ => BACKOFF.pause(again).min(clock.left()),
            };
            again += 1;
            tried |= 1 << (at % 64);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }

    /// Chooses where to call, past endpoints whose circuit is open and, while there are others, those that this call has
    /// `tried`.
    fn admit(&self, caller: &Caller, tried: u64) -> Result<(usize, &Endpoint, Pass<'_>), McpError> {
        // What a client session has at a server stays where it is.
        let own = caller.session.as_ref().filter(|_| self.endpoints.len() > 1).and_then(|session| {
            let key = Key::Session(Arc::clone(session));
            self.endpoints.iter().position(|endpoint| endpoint.pool.has(&key))
        });
        let mut wait = Duration::MAX;
        let (mut refused, mut next) = (0_u64, own);
        loop {
            let among = |without: u64| endpoint::choose(&self.endpoints, |at| without & (1 << (at % 64)) == 0);
            let at = next.take().or_else(|| among(refused | tried)).or_else(|| among(refused));
            let Some((at, endpoint)) = at.and_then(|at| Some((at, self.endpoints.get(at)?))) else { break };
            match endpoint.breaker.admit() {
                Ok(pass) => return Ok((at, endpoint, pass)),
                Err(left) => wait = wait.min(left),
            }
            refused |= 1 << (at % 64);
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

    /// What is answered while the circuit is open, if the configuration has something.
    fn fallback(&self, outgoing: &Outgoing) -> Option<Response> {
        let text = self.config.fallback_text.as_deref().filter(|_| &*outgoing.method == "tools/call")?;
        let text = serde_json::Value::from(text);
        let result = format!(r#"{{"resultType":"complete","content":[{{"type":"text","text":{text}}}]}}"#);
        Some(Response::Result(RawValue::from_string(result).ok()?))
    }

    /// Before something that is sent once only: a session that has ended at the server is found out by a question that
    /// does no harm, and opened anew.
    pub(super) async fn prove(&self, caller: &Caller) {
        let Ok((at, endpoint, _)) = self.admit(caller, 0) else { return };
        if endpoint.kind() != LinkKind::Streams {
            return;
        }
        let Ok(lease) = self.lease(at, endpoint, caller).await else { return };
        if matches!(self.ask(&lease.held, "ping", "{}").await, Err(AskError::Link(LinkError::SessionGone))) {
            lease.held.retire();
        }
        lease.give_back(false);
    }

    /// One try on one link.
    async fn once(
        &self,
        at: usize,
        endpoint: &Endpoint,
        caller: &Caller,
        outgoing: &Outgoing,
        clock: &Arc<Clock>,
    ) -> Result<Response, Failed> {
        let lease = tokio::select! {
            biased;
            lease = self.lease_for(at, endpoint, caller, &outgoing.method) => lease?,
            () = clock.run_out() => return Err(Failed::NoLink("no connection came free in time")),
        };
        let held = Arc::clone(&lease.held);
        let _in_flight = endpoint.enter();
        let result = if held.era == Era::Modern {
            Outgoing::check(outgoing.permit.as_ref()).map_err(Failed::Link)?;
            tokio::select! {
                biased;
                result = held.link.request(outgoing, Arc::clone(clock) as _) => result.map_err(Failed::Link),
                () = clock.run_out() => Err(Failed::TimedOut),
            }
        } else {
            let _entered = held.traffic.enter(outgoing.id, Arc::clone(clock) as _, caller.session.clone());
            let (_wish, level) = held.want_level(caller.log_level);
            tokio::select! {
                biased;
                result = async {
                    if let Some(level) = level {
                        self.tell_level(&held, level).await;
                    }
                    // That may have taken as long as it liked.
                    Outgoing::check(outgoing.permit.as_ref())?;
                    held.link.request(outgoing, Arc::clone(clock) as _).await
                } => result.map_err(Failed::Link),
                () = clock.run_out() => Err(Failed::TimedOut),
            }
        };
        match &result {
            Ok(_) => held.silence.broken(),
            Err(Failed::TimedOut) => self.ran_out(&held),
            Err(Failed::Link(LinkError::SessionGone)) => held.retire(),
            Err(_) => {}
        }
        lease.give_back(matches!(result, Err(Failed::TimedOut)));
        result
    }

    async fn tell_level(&self, held: &Held, level: LoggingLevel) {
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        if let Err(error) = self.ask(held, "logging/setLevel", &params).await {
            tracing::debug!(upstream = %self.config.name, %error, "its log level was not set");
        }
    }

    /// It answered. An HTTP status of 500 and above is a failure all the same.
    fn answered(&self, pass: Pass<'_>, response: &Response) {
        let broken = matches!(response, Response::Error(error) if error.status.is_some_and(|status| status >= 500));
        let moved = pass.is_trial() || broken;
        if broken {
            pass.failed();
        } else {
            pass.well();
        }
        if moved {
            self.report_breaker();
        }
        // It has changed its mind about what it is.
        if matches!(response, Response::Error(error) if error.code == ErrorKind::UnsupportedVersion.number()) {
            self.doubt.notify_one();
        }
    }

    fn explain(&self, failed: Failed, clock: &Clock, resend: Resend) -> (Ended, McpError) {
        let name = self.config.name.as_str();
        let error = match failed {
            Failed::NoLink(message) => return (Ended::Refused, self.overloaded(message)),
            Failed::TimedOut => {
                let limit = u64::try_from(clock.timeout().as_millis()).unwrap_or(u64::MAX);
                let error = McpError::new(ErrorKind::Timeout, format!("the server {name} did not answer in time"))
                    .with("upstream", name)
                    .with("timeoutMs", limit)
                    .with("outcome", "unknown");
                return (Ended::Timeout, error);
            }
            Failed::Link(error) => error,
        };
        let (ended, sent) = match &error {
            LinkError::Unreachable(_) => (Ended::Unreachable, false),
            LinkError::Withheld => return (Ended::Refused, Permit::lapsed().with("upstream", name)),
            LinkError::SessionGone => (Ended::Lost, false),
            // It said no before it did anything.
            LinkError::Status { status, .. } => (Ended::Lost, *status >= 500 || *status < 400),
            LinkError::Lost(_) | LinkError::Protocol(_) => (Ended::Lost, true),
        };
        tracing::info!(upstream = name, %error, approved = resend == Resend::Unsent, "a call to it has failed");
        let said = McpError::new(ErrorKind::UpstreamUnavailable, format!("the server {name} {error}"))
            .with("upstream", name)
            .with("outcome", if sent { "unknown" } else { "not_applied" });
        (ended, said)
    }

    fn overloaded(&self, message: &'static str) -> McpError {
        McpError::new(ErrorKind::Overloaded, message)
            .with("upstream", self.config.name.as_str())
            .with("outcome", "not_applied")
    }
}

/// Whether requests of that method may change what others read.
fn may_write(method: &str) -> bool {
    match Method::parse(method) {
        None => true,
        Some(method) => {
            matches!(method, Method::ToolsCall | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult)
        }
    }
}

/// Counts a call, also one that was dropped.
struct Count<'a> {
    upstream: &'a Upstream,
    ended: Ended,
    /// It may have changed what was read before.
    writes: bool,
}

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.upstream.meters.ended(self.ended);
        if self.writes && !matches!(self.ended, Ended::Refused | Ended::Unreachable) {
            self.upstream.forget_answers();
        }
    }
}
