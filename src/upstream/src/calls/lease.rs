//! Finds a link for a caller: the common connection, or a pooled link.

use std::{sync::Arc, time::Duration};

use super::open_link::OpenLink;
use crate::{
    credentials::AuthorizationError,
    link::{LinkError, LinkKind},
    server::{
        Caller, Phase, Upstream,
        endpoint::Endpoint,
        pool::{Lease, LeaseOutcome, OpeningReceiver, PoolKey, RetakeOutcome},
    },
};

/// The reason why one attempt to send a call failed.
pub(crate) enum AttemptError {
    Link(LinkError),
    TimedOut,
    /// No link is available for this caller, now or in time.
    NoLink(&'static str),
}

impl AttemptError {
    /// Returns `true` if the circuit breaker counts the error of a request with this method as a failure of the server.
    pub(super) fn is_server_failure(&self, method: &str) -> bool {
        match self {
            Self::Link(LinkError::SessionGone | LinkError::PermitExpired | LinkError::Unauthorized(_))
            | Self::NoLink(_) => false,
            Self::Link(LinkError::Status { status, .. }) => *status >= 500,
            // The server answers this request only when the task ends, which may take longer than any call.
            Self::TimedOut => method != "tasks/result",
            Self::Link(_) => true,
        }
    }

    /// Returns `true` if the session or process that the call was sent to has ended. `kind` is that of its link.
    pub(super) fn ends_session(&self, kind: LinkKind) -> bool {
        match self {
            Self::Link(LinkError::SessionGone) => true,
            Self::Link(LinkError::Lost(_)) => kind == LinkKind::SingleStream,
            _ => false,
        }
    }
}

impl Upstream {
    /// Returns `true` if this caller's requests use a link that is not shared with other callers.
    pub fn needs_unshared_link(&self, caller: &Caller) -> bool {
        let kind = self.endpoints.first().map_or(LinkKind::SingleStream, |endpoint| endpoint.kind());
        !matches!(
            PoolKey::for_caller(caller, kind, self.era(), self.config.isolation),
            PoolKey::Common | PoolKey::SharedByCapabilities(_)
        )
    }

    /// Leases the link that the caller's [`LinkChoice`](crate::server::LinkChoice) requires, or any link that the
    /// caller may use.
    pub(crate) async fn lease_chosen<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        caller: &Caller,
        method: &str,
    ) -> Result<Lease<'a>, AttemptError> {
        let Some(connection) = caller.link_choice.required() else {
            let lease = self.lease(endpoint, caller).await?;
            if lease.is_pooled() && endpoint.kind() == LinkKind::SingleStream {
                caller.link_choice.record(&lease.connection);
            }
            return Ok(lease);
        };
        // During `tasks/result`, the server may ask the questions of the task. They must not be confused with those of
        // an exclusive call on the link.
        let respects_exclusive_use = method == "tasks/result";
        let session_gone = || AttemptError::Link(LinkError::SessionGone);
        let connection = connection.upgrade().ok_or_else(session_gone)?;
        loop {
            let mut busy = None;
            for endpoint in &self.endpoints {
                match endpoint.pool.retake(&connection, respects_exclusive_use) {
                    RetakeOutcome::Leased(lease) => return Ok(lease),
                    RetakeOutcome::Busy(changed) => busy = Some(changed),
                    RetakeOutcome::Ended => {}
                }
            }
            busy.ok_or_else(session_gone)?.await;
        }
    }

    /// Leases a link that this caller may use.
    pub(crate) async fn lease<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        caller: &Caller,
    ) -> Result<Lease<'a>, AttemptError> {
        if self.stop.is_cancelled() {
            return Err(AttemptError::Link(LinkError::Unreachable("it was removed from the configuration".into())));
        }
        let era = match self.negotiated.load().as_ref() {
            Some(negotiated) => negotiated.revision.era(),
            None => {
                Box::pin(self.wait_until_reached()).await?;
                self.era()
            }
        };
        let kind = endpoint.kind();
        let key = PoolKey::for_caller(caller, kind, era, self.config.isolation);
        // The futures that wait are boxed, so that calls that find an open link do not reserve their memory.
        if key == PoolKey::Common {
            return match endpoint.common_connection() {
                Some(connection) => Ok(Lease::unpooled(connection)),
                None => Box::pin(self.wait_for_common(endpoint, caller)).await,
            };
        }
        self.lease_pooled(endpoint, &key, caller, kind).await
    }

    /// Waits for the common connection and leases it. `upkeep` maintains the one of the current endpoint; those of other
    /// replicas are opened on demand.
    async fn wait_for_common<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        caller: &Caller,
    ) -> Result<Lease<'a>, AttemptError> {
        loop {
            if let Some(connection) = endpoint.common_connection() {
                return Ok(Lease::unpooled(connection));
            }
            if endpoint.index != self.current_endpoint() {
                return self.lease_pooled(endpoint, &PoolKey::Common, caller, endpoint.kind()).await;
            }
            self.wait_until_reached().await?;
            if endpoint.common_connection().is_none() && endpoint.index == self.current_endpoint() {
                // The link has just ended, and `upkeep` has not noticed it yet.
                let mut phase = self.phase.subscribe();
                if endpoint.common_connection().is_none() {
                    let _ = tokio::time::timeout(Duration::from_secs(1), phase.changed()).await;
                }
            }
        }
    }

    /// Waits while the upstream is connecting.
    async fn wait_until_reached(&self) -> Result<(), AttemptError> {
        let mut phase = self.phase.subscribe();
        let settled = phase.wait_for(|phase| !matches!(phase, Phase::Connecting)).await;
        let phase = settled.map_err(|_| shutdown_error())?.clone();
        match phase {
            Phase::Up | Phase::Connecting => Ok(()),
            Phase::Down(error) => {
                // A call needs the upstream, so the next attempt may come sooner.
                self.reconnect.notify_one();
                Err(AttemptError::Link(into_unreachable(error)))
            }
            Phase::ConsentNeeded(reason) => {
                Err(AttemptError::Link(LinkError::Unauthorized(AuthorizationError::ConsentNeeded(reason))))
            }
        }
    }

    /// Leases a link of the pool.
    async fn lease_pooled<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        key: &PoolKey,
        caller: &Caller,
        kind: LinkKind,
    ) -> Result<Lease<'a>, AttemptError> {
        match endpoint.pool.lease(key, caller, kind, None) {
            LeaseOutcome::Leased(lease) => Ok(lease),
            outcome => Box::pin(self.wait_for_pooled(endpoint, key, caller, kind, outcome)).await,
        }
    }

    /// Waits while a link of the pool is being opened or all links are busy, and leases one. `outcome` is that of the first
    /// attempt.
    async fn wait_for_pooled<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        key: &PoolKey,
        caller: &Caller,
        kind: LinkKind,
        mut outcome: LeaseOutcome<'a>,
    ) -> Result<Lease<'a>, AttemptError> {
        let (mut waiting, mut opened_id) = (None, None);
        loop {
            match outcome {
                LeaseOutcome::Leased(lease) => return Ok(lease),
                LeaseOutcome::AlreadyOpening(opening) => wait_until_open(opening).await?,
                LeaseOutcome::MustOpen { id, result_sender } => {
                    opened_id = Some(id);
                    let opening = result_sender.subscribe();
                    self.open_in_background(OpenLink {
                        endpoint: Arc::clone(endpoint),
                        key: key.clone(),
                        capabilities: caller.capabilities.clone(),
                        id,
                        result_sender,
                    });
                    wait_until_open(opening).await?;
                }
                LeaseOutcome::Full(changed) => {
                    if waiting.is_none() {
                        let queue_full = "too many calls wait for a connection of their own (max_queue)";
                        waiting = Some(self.call_slots.enqueue().ok_or(AttemptError::NoLink(queue_full))?);
                    }
                    changed.await;
                }
            }
            outcome = endpoint.pool.lease(key, caller, kind, opened_id);
        }
    }
}

/// Waits until the link was opened, or could not be opened.
async fn wait_until_open(mut opening: OpeningReceiver) -> Result<(), AttemptError> {
    let result = opening.wait_for(Option::is_some).await.map_err(|_| shutdown_error())?.clone();
    result.unwrap_or(Ok(())).map_err(|error| AttemptError::Link(into_unreachable(error)))
}

fn shutdown_error() -> AttemptError {
    AttemptError::Link(LinkError::Unreachable("the gateway is shutting down".into()))
}

/// Converts the error of opening a link, before which nothing of the call was sent.
fn into_unreachable(error: LinkError) -> LinkError {
    match error {
        LinkError::Unreachable(_) | LinkError::Unauthorized(_) => error,
        other => LinkError::Unreachable(other.to_string()),
    }
}
