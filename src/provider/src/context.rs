//! The context of one call: its proposer, its limits, and the channels to its client.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::request::UpstreamRequest;
use countersign_domain::{principal::Principal, questions::check_capabilities};
use countersign_protocol::{ErrorKind, McpError, negotiate::ClientCapabilities};

/// Sends progress of the running call to the client that asked for it, and drops it silently if none did.
pub trait ProgressSink: Send + Sync {
    /// Reports progress. `progress` must increase from call to call (2026-07-28/basic/patterns/progress).
    fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>);
    /// Returns `true` if a client asked for progress.
    fn has_listener(&self) -> bool;
}

/// A sink that drops all progress.
#[derive(Debug, Default)]
pub struct NoProgress;
impl ProgressSink for NoProgress {
    fn progress(&self, _: f64, _: Option<f64>, _: Option<&str>) {}
    fn has_listener(&self) -> bool {
        false
    }
}

/// Sends the questions of a running tool to the client whose call or change it runs.
pub trait Inquirer: Send + Sync {
    /// Returns the capabilities of the client, which say what it can be asked for.
    fn capabilities(&self) -> &ClientCapabilities;
    /// Queues a question for the client. The question is declined if the queue is full.
    fn ask(&self, question: UpstreamRequest);
}

struct QuestionSender {
    capabilities: ClientCapabilities,
    questions: mpsc::Sender<UpstreamRequest>,
}

impl Inquirer for QuestionSender {
    fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    fn ask(&self, question: UpstreamRequest) {
        let params = question.params.as_deref().map(RawValue::get);
        if let Err(refused) = check_capabilities(&self.capabilities, &question.method, params) {
            return question.reply.answer(Err(refused));
        }
        // If the queue is full, the question is dropped, which answers it with an error.
        let _ = self.questions.try_send(question);
    }
}

/// Creates an inquirer and the queue of its questions to a client with these capabilities. It refuses questions that need others.
#[must_use]
pub fn question_channel(
    capabilities: ClientCapabilities,
    capacity: usize,
) -> (Arc<dyn Inquirer>, mpsc::Receiver<UpstreamRequest>) {
    let (questions, receiver) = mpsc::channel(capacity);
    (Arc::new(QuestionSender { capabilities, questions }), receiver)
}

/// Notes that modules keep for a handshake-era session. They are dropped when the session ends.
#[derive(Debug, Default)]
pub struct SessionNotes(Mutex<BTreeMap<&'static str, Arc<str>>>);

impl SessionNotes {
    /// Returns the latest note of the module.
    pub fn get(&self, module: &'static str) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(module).cloned()
    }

    /// Replaces the note of the module, which must not be longer than a few hundred bytes.
    pub fn set(&self, module: &'static str, note: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(module, note.into());
    }
}

/// The principal, limits and channels of one call.
#[derive(Clone)]
pub struct CallContext {
    /// The proposer, even if the Executor runs the approved change much later.
    pub principal: Arc<Principal>,
    pub cancel: CancellationToken,
    pub progress: Arc<dyn ProgressSink>,
    /// The approved change that this call runs, if any.
    pub change_id: Option<String>,
    /// Receives the questions that the tool asks. Every question is declined if this is `None`.
    pub inquirer: Option<Arc<dyn Inquirer>>,
    /// Notes of the session that makes the call. `None` for a stateless call and for calls of the Executor.
    pub session_notes: Option<Arc<SessionNotes>>,
    /// The lease of the approved change that is run, to be checked just before the first byte of the call is sent.
    pub permit: Option<Permit>,
    /// The approved fingerprint of the change that is run, which a module compares when it writes.
    pub approved_fingerprint: Option<String>,
    /// `true` if the gateway may answer the question by which the server asks to confirm the call, because the approved preview
    /// showed the answer.
    pub answers_confirmation: bool,
    /// Charges the time that a module's thread spends on the call to the caller's rate limit; `None` if no caller is
    /// charged.
    pub meter: Option<Meter>,
}

/// Charges a duration to the caller (see [`CallContext::meter`]).
#[derive(Clone)]
pub struct Meter(pub Arc<dyn Fn(Duration) + Send + Sync>);

impl CallContext {
    /// Creates the context of a call that runs no change, with no client to ask and no receiver of progress.
    pub fn new(principal: Arc<Principal>) -> Self {
        Self {
            principal,
            cancel: CancellationToken::new(),
            progress: Arc::new(NoProgress),
            change_id: None,
            inquirer: None,
            session_notes: None,
            permit: None,
            approved_fingerprint: None,
            answers_confirmation: false,
            meter: None,
        }
    }

    /// Runs work whose cost grows with what the caller sent or requested, and charges its time to the caller.
    pub fn run_charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        if let Some(Meter(charge)) = &self.meter {
            charge(began.elapsed());
        }
        result
    }

    /// Compares the live state with the approved one, if this is the run of an approved change. A module calls this
    /// while it holds the lock, or within the transaction, with which it writes.
    ///
    /// # Errors
    /// `CHANGE_STALE` with `not_applied`.
    pub fn check_state(&self, fingerprint: &str) -> Result<(), McpError> {
        match &self.approved_fingerprint {
            Some(approved) if approved != fingerprint => {
                let message = "The target has changed since it was approved, so nothing was written; propose it again";
                Err(McpError::new(ErrorKind::ChangeStale, message).with("outcome", "not_applied"))
            }
            _ => Ok(()),
        }
    }
}

/// Tells whether the lease of an approved change is still valid (see [`CallContext::permit`]). The check is cheap and
/// never blocks. The Executor asks it before a call, a module with [`Permit::check`] just before it applies the change, and
/// an upstream's link right before it sends the first byte: with `OutgoingRequest::check_permit`, or with `PermittedBody` over
/// HTTP/2.
#[derive(Clone)]
pub struct Permit(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    /// Returns `true` while the call may be sent.
    pub fn is_valid(&self) -> bool {
        (self.0)()
    }

    /// Checks the permit, if there is one. A module calls this just before it applies an approved change.
    ///
    /// # Errors
    /// `UPSTREAM_UNAVAILABLE` with `not_applied`.
    pub fn check(permit: Option<&Self>) -> Result<(), McpError> {
        if permit.is_none_or(Self::is_valid) { Ok(()) } else { Err(Self::expired_error()) }
    }

    /// Returns the error for a lease that expired: another gateway may already have taken over the change.
    pub fn expired_error() -> McpError {
        let message =
            "The lease of the gateway that claimed the change expired before anything was sent; propose it again";
        McpError::new(ErrorKind::UpstreamUnavailable, message).with("outcome", "not_applied")
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Permit")
    }
}
