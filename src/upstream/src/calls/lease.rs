//! Finds a link for a caller: the shared link, or a link of its own.

use std::{sync::Arc, time::Duration};

use crate::{
    link::{LinkError, LinkKind},
    server::{
        Caller, Phase, Upstream,
        endpoint::Endpoint,
        pool::{Lease, LeaseOutcome, PoolKey, RetakeOutcome},
    },
};
use countersign_protocol::Era;

/// The reason why one try of a call failed.
pub(crate) enum TryError {
    Link(LinkError),
    TimedOut,
    /// No link is available for this caller, now or in time.
    NoLink(&'static str),
}

impl Upstream {
    /// Returns `true` if this caller's requests use a connection that others do not share.
    #[must_use]
    pub fn needs_own_link(&self, caller: &Caller) -> bool {
        let era = self.negotiated.load().as_ref().map_or(Era::Legacy, |negotiated| negotiated.revision.era());
        let kind = self.endpoints.first().map_or(LinkKind::Shared, |endpoint| endpoint.kind());
        !matches!(PoolKey::for_caller(caller, kind, era, self.config.isolation), PoolKey::Plain | PoolKey::Common(_))
    }

    /// Leases a link for this request, or the link that the caller's choice requires.
    pub(crate) async fn lease_for<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        caller: &Caller,
        method: &str,
    ) -> Result<Lease<'a>, TryError> {
        let Some(connection) = caller.link_choice.required() else {
            let lease = self.lease(endpoint, caller).await?;
            if endpoint.kind() == LinkKind::Shared && lease.is_pooled() {
                caller.link_choice.record(&lease.connection);
            }
            return Ok(lease);
        };
        // A call that may be asked questions must not be confused with another call on the link.
        let wait_if_exclusive = method == "tasks/result";
        let session_gone = || TryError::Link(LinkError::SessionGone);
        let connection = connection.upgrade().ok_or_else(session_gone)?;
        loop {
            let mut busy = None;
            for endpoint in &self.endpoints {
                match endpoint.pool.retake(&connection, wait_if_exclusive) {
                    RetakeOutcome::Leased(lease) => return Ok(lease),
                    RetakeOutcome::Busy(changed) => busy = Some(changed),
                    RetakeOutcome::Ended => {}
                }
            }
            busy.ok_or_else(session_gone)?.await;
        }
    }

    /// Leases a link for this caller.
    pub(crate) async fn lease<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        caller: &Caller,
    ) -> Result<Lease<'a>, TryError> {
        if self.stop.is_cancelled() {
            return Err(TryError::Link(LinkError::Unreachable("it was removed from the configuration".into())));
        }
        let era = match self.negotiated.load().as_ref() {
            Some(negotiated) => negotiated.revision.era(),
            None => {
                self.wait_until_reached().await?;
                self.negotiated.load().as_ref().map_or(Era::Legacy, |negotiated| negotiated.revision.era())
            }
        };
        let kind = endpoint.kind();
        let key = PoolKey::for_caller(caller, kind, era, self.config.isolation);
        if key == PoolKey::Plain {
            return self.lease_plain(endpoint, caller).await;
        }
        let exclusive = kind == LinkKind::Shared && matches!(key, PoolKey::Principal(..));
        self.lease_pooled(endpoint, &key, caller, exclusive).await
    }

    /// Leases the shared link. The actor maintains the shared link of the current endpoint. The shared links of replicas are
    /// opened on demand.
    async fn lease_plain<'a>(&'a self, endpoint: &'a Arc<Endpoint>, caller: &Caller) -> Result<Lease<'a>, TryError> {
        loop {
            if let Some(connection) = endpoint.plain() {
                return Ok(Lease::unpooled(connection));
            }
            if endpoint.index != self.current_endpoint() {
                return self.lease_pooled(endpoint, &PoolKey::Plain, caller, false).await;
            }
            self.wait_until_reached().await?;
            if endpoint.plain().is_none() && endpoint.index == self.current_endpoint() {
                // The link has just ended, and the actor has not noticed it yet.
                let mut phase = self.phase.subscribe();
                if endpoint.plain().is_none() {
                    let _ = tokio::time::timeout(Duration::from_secs(1), phase.changed()).await;
                }
            }
        }
    }

    /// Waits while the upstream is connecting.
    async fn wait_until_reached(&self) -> Result<(), TryError> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = phase.borrow_and_update().clone();
            match now {
                Phase::Up => return Ok(()),
                Phase::Down(error) => {
                    // A call needs the upstream, so the next attempt may come sooner.
                    self.reconnect.notify_one();
                    return Err(TryError::Link(as_unreachable(error)));
                }
                Phase::Connecting => {}
            }
            if phase.changed().await.is_err() {
                return Err(TryError::Link(LinkError::Unreachable("the gateway is shutting down".into())));
            }
        }
    }

    async fn lease_pooled<'a>(
        &'a self,
        endpoint: &'a Arc<Endpoint>,
        key: &PoolKey,
        caller: &Caller,
        exclusive: bool,
    ) -> Result<Lease<'a>, TryError> {
        let (mut waiting, mut opened_id) = (None, None);
        loop {
            let mut opening = match endpoint.pool.lease(key, caller, exclusive, opened_id) {
                LeaseOutcome::Leased(lease) => return Ok(lease),
                LeaseOutcome::AlreadyOpening(opening) => opening,
                LeaseOutcome::MustOpen { id, opened, opening } => {
                    opened_id = Some(id);
                    self.request_link(endpoint, key.clone(), caller.capabilities.clone(), id, opened);
                    opening
                }
                LeaseOutcome::Full(changed) => {
                    if waiting.is_none() {
                        let place_in_queue = self.call_slots.enqueue().map_err(|_| {
                            TryError::NoLink("too many calls wait for a connection of their own (max_queue)")
                        })?;
                        waiting = Some(place_in_queue);
                    }
                    changed.await;
                    continue;
                }
            };
            let opened = opening.wait_for(Option::is_some).await.map(|result| result.clone());
            match opened {
                Ok(Some(Err(error))) => return Err(TryError::Link(as_unreachable(error))),
                Ok(_) => {}
                Err(_) => return Err(TryError::Link(LinkError::Unreachable("the gateway is shutting down".into()))),
            }
        }
    }
}

/// Converts the error of opening a link. Nothing of the call was sent then.
fn as_unreachable(error: LinkError) -> LinkError {
    match error {
        LinkError::Unreachable(_) => error,
        other => LinkError::Unreachable(other.to_string()),
    }
}
