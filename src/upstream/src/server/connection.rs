//! A connection to an upstream: its link, the calls active on it, and the recipient of messages outside of calls. A
//! [`Caller`] says which connections a request may use.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Upstream, limits::TimeoutStreak};
use crate::{
    catalog::ServerFeatures,
    link::{Link, LinkError, LinkKind, Listener, NegotiatedSession, UpstreamNotification},
};
use countersign_domain::principal::Principal;
use countersign_protocol::{Era, negotiate::ClientCapabilities, params::LoggingLevel};
use countersign_provider::request::UpstreamRequest;

/// An open link with its state in the gateway.
pub struct UpstreamConnection {
    pub link: Arc<dyn Link>,
    pub kind: LinkKind,
    pub calls: Arc<LinkCalls>,
    pub features: ServerFeatures,
    pub era: Era,
    /// Cancelled when the link or the session at the upstream has ended. From then on, no further call uses the link.
    retired: CancellationToken,
    log_levels: Mutex<LogLevels>,
    pub(crate) timeout_streak: TimeoutStreak,
}

impl UpstreamConnection {
    pub fn new(link: Arc<dyn Link>, kind: LinkKind, calls: Arc<LinkCalls>, negotiated: &NegotiatedSession) -> Self {
        Self {
            kind,
            retired: link.closed().child_token(),
            features: ServerFeatures::from_negotiated(negotiated),
            era: negotiated.revision.era(),
            log_levels: Mutex::default(),
            timeout_streak: TimeoutStreak::default(),
            link,
            calls,
        }
    }

    /// Returns `true` if further calls may use the connection.
    pub fn is_usable(&self) -> bool {
        !self.retired.is_cancelled()
    }

    /// Stops further use of the connection. Calls on it may finish.
    pub fn retire(&self) {
        self.retired.cancel();
    }

    /// Closes the link. Its pending requests fail.
    pub fn close(&self) {
        self.retired.cancel();
        self.calls.clear_last_listener();
        self.link.close();
    }

    /// Closes the connection, and fails its pending requests with `reason`.
    pub fn abandon(&self, reason: LinkError) {
        self.retired.cancel();
        self.calls.clear_last_listener();
        self.link.abandon(reason);
    }

    /// Returns a token that is cancelled once the connection can no longer be used.
    pub(crate) fn end_token(&self) -> CancellationToken {
        self.retired.clone()
    }

    /// Waits until the connection can no longer be used.
    pub async fn wait_until_unusable(&self) {
        self.retired.cancelled().await;
    }

    /// Registers a call that wants log messages, if the server sends any.
    pub fn request_log_level(&self, level: Option<LoggingLevel>) -> Option<LogLevelRequest<'_>> {
        let level = level.filter(|_| self.features.logging && self.era == Era::Legacy)?;
        let mut levels = self.log_levels.lock();
        levels.counts[level as usize] += 1;
        let most_verbose = LoggingLevel::ALL.iter().copied().find(|level| levels.counts[*level as usize] > 0);
        let to_send = most_verbose.filter(|_| levels.sent_level != most_verbose);
        levels.sent_level = most_verbose;
        Some(LogLevelRequest { log_levels: &self.log_levels, level, to_send })
    }
}

/// The log levels that active calls want. `logging/setLevel` applies to the whole session, so the most verbose one
/// counts.
#[derive(Default)]
struct LogLevels {
    /// The number of active calls that want each level.
    counts: [u32; LoggingLevel::ALL.len()],
    /// The level that was sent to the server last.
    sent_level: Option<LoggingLevel>,
}

/// The log level that one call wants; dropping it withdraws the request.
pub struct LogLevelRequest<'a> {
    log_levels: &'a Mutex<LogLevels>,
    level: LoggingLevel,
    /// The level to send to the server before the call, if it differs from the last one. `None` once it was sent or refused.
    pub to_send: Option<LoggingLevel>,
}

impl Drop for LogLevelRequest<'_> {
    fn drop(&mut self) {
        let mut levels = self.log_levels.lock();
        levels.counts[self.level as usize] -= 1;
        if self.to_send.is_some() && levels.sent_level == self.to_send {
            // It may not have reached the server, so the next call sends it again.
            levels.sent_level = None;
        }
    }
}

/// The calls active on one link, and the recipients of messages that name no call.
pub struct LinkCalls {
    upstream: Weak<Upstream>,
    /// `true` if the link belongs to one client session, which also receives messages after its last call.
    is_session_owned: bool,
    /// `true` if the gateway itself has subscribed to resources on the link.
    has_subscription: AtomicBool,
    state: Mutex<CallsState>,
}

#[derive(Default)]
struct CallsState {
    active: Vec<ActiveCall>,
    /// The listener of the last call of the session, if the link belongs to one.
    last_listener: Option<Arc<dyn Listener>>,
}

struct ActiveCall {
    id: u64,
    listener: Arc<dyn Listener>,
    session: Option<Arc<str>>,
}

impl LinkCalls {
    pub fn new(upstream: Weak<Upstream>, is_session_owned: bool) -> Arc<Self> {
        Arc::new(Self { upstream, is_session_owned, has_subscription: AtomicBool::new(false), state: Mutex::default() })
    }

    /// Registers a call until the guard is dropped.
    pub fn register_call(&self, id: u64, listener: Arc<dyn Listener>, session: Option<Arc<str>>) -> RegisteredCall<'_> {
        self.state.lock().active.push(ActiveCall { id, listener, session });
        RegisteredCall { link_calls: self, id }
    }

    /// Records that the gateway subscribes to resources on the link.
    pub(crate) fn mark_subscribed(&self) {
        self.has_subscription.store(true, Ordering::Relaxed);
    }

    fn clear_last_listener(&self) {
        self.state.lock().last_listener = None;
    }

    /// Returns the recipient of a message that names no call: the only call, or any call if all belong to one client
    /// session.
    fn unambiguous_listener(&self) -> Option<Arc<dyn Listener>> {
        let state = self.state.lock();
        let latest = state.active.last()?;
        let is_unambiguous = state.active.len() == 1
            || (latest.session.is_some() && state.active.iter().all(|call| call.session == latest.session));
        is_unambiguous.then(|| Arc::clone(&latest.listener))
    }
}

impl Listener for LinkCalls {
    fn handle_notification(&self, notification: UpstreamNotification) {
        let Some(upstream) = self.upstream.upgrade() else { return };
        if upstream.handle_notification(&notification, self.has_subscription.load(Ordering::Relaxed)) {
            return;
        }
        // Progress names its call, so it must not reach another call.
        let listener = match notification.method.as_str() {
            "notifications/progress" | "notifications/cancelled" => None,
            "notifications/message" => self.unambiguous_listener(),
            // Late messages of a session go to the listener of its last call.
            _ => self.unambiguous_listener().or_else(|| self.state.lock().last_listener.clone()),
        };
        match listener {
            Some(listener) => listener.handle_notification(notification),
            None => upstream.count_unattributed(&notification.method),
        }
    }

    fn handle_request(&self, request: UpstreamRequest) {
        if let Some(listener) = self.unambiguous_listener() {
            return listener.handle_request(request);
        }
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.count_unattributed(&request.method);
        }
        // Dropping the request declines it.
    }
}

/// Unregisters a call when dropped (see [`LinkCalls::register_call`]).
pub struct RegisteredCall<'a> {
    link_calls: &'a LinkCalls,
    id: u64,
}

impl Drop for RegisteredCall<'_> {
    fn drop(&mut self) {
        let mut state = self.link_calls.state.lock();
        if let Some(index) = state.active.iter().position(|call| call.id == self.id) {
            let ended_call = state.active.swap_remove(index);
            if self.link_calls.is_session_owned {
                state.last_listener = Some(ended_call.listener);
            }
        }
    }
}

/// The client for which a request is sent to an upstream.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    /// The id of the client's handshake-era session, which gets its own link with `isolation: session`. `None` for
    /// stateless clients and for the Executor.
    pub session: Option<Arc<str>>,
    /// Cancelled when that session ends. Links that requests open for it later are closed after use.
    pub session_ended: Option<CancellationToken>,
    /// The client's capabilities, reduced by the configured `sampling` and `elicitation`.
    pub capabilities: ClientCapabilities,
    /// `true` if the client is stateless, so that questions to it are returned as `input_required`
    /// (2026-07-28/basic/patterns/mrtr).
    pub is_modern: bool,
    /// The minimum severity of log messages that the client wants; `None` for no messages.
    pub log_level: Option<LoggingLevel>,
    /// The choice among the links that the client may use.
    pub link_choice: LinkChoice,
}

/// The choice of a link for a request. Work begun in one child process is unknown to the others, so follow-up requests
/// use the same link.
#[derive(Clone, Debug, Default)]
pub enum LinkChoice {
    /// Any suitable link.
    #[default]
    Any,
    /// Any suitable link, which is recorded for follow-up requests.
    Record(Arc<Mutex<Option<Weak<UpstreamConnection>>>>),
    /// Only this link.
    Only(Weak<UpstreamConnection>),
}

impl LinkChoice {
    /// Records the link that the request uses, for its follow-up requests.
    pub fn recording() -> Self {
        Self::Record(Arc::default())
    }

    /// Returns the choice for follow-up requests: the recorded link, if there is one.
    pub fn for_follow_up(&self) -> Self {
        match self {
            Self::Record(recorded) => recorded.lock().clone().map_or(Self::Any, Self::Only),
            _ => self.clone(),
        }
    }

    /// Returns `true` if only one link may be used and it has ended, so that no request can succeed any more.
    pub fn has_ended(&self) -> bool {
        self.required().is_some_and(|connection| connection.upgrade().is_none_or(|connection| !connection.is_usable()))
    }

    /// Records the link of a request, if follow-up requests need it.
    pub(crate) fn record(&self, connection: &Arc<UpstreamConnection>) {
        if let Self::Record(recorded) = self {
            *recorded.lock() = Some(Arc::downgrade(connection));
        }
    }

    /// Returns the only link that may be used, if there is one.
    pub(crate) fn required(&self) -> Option<&Weak<UpstreamConnection>> {
        if let Self::Only(connection) = self { Some(connection) } else { None }
    }
}
