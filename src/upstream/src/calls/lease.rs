//! Finds a caller a link: the one that all share, or one of its own.

use std::time::Duration;

use crate::{
    link::{LinkError, LinkKind},
    server::{
        Phase, Upstream,
        caller::Caller,
        endpoint::Endpoint,
        pool::{Again, Key, Lease, Take},
    },
};
use countersign_protocol::Era;

/// Why one try came to nothing.
pub(crate) enum Failed {
    Link(LinkError),
    TimedOut,
    /// No link for this caller, now or in time.
    NoLink(&'static str),
}

impl Upstream {
    /// Whether this caller's requests run on a connection that others do not share.
    #[must_use]
    pub fn keeps_apart(&self, caller: &Caller) -> bool {
        let era = self.negotiated.load().as_ref().map_or(Era::Legacy, |negotiated| negotiated.revision.era());
        let kind = self.endpoints.first().map_or(LinkKind::Shared, |endpoint| endpoint.kind());
        !matches!(Key::of(caller, kind, era, self.config.isolation), Key::Plain | Key::Common(_))
    }

    /// A link for this caller and this request; where it is pinned to one, that one.
    pub(crate) async fn lease_for<'a>(
        &'a self,
        at: usize,
        endpoint: &'a Endpoint,
        caller: &Caller,
        method: &str,
    ) -> Result<Lease<'a>, Failed> {
        let Some(held) = caller.pinned.to() else {
            let lease = self.lease(at, endpoint, caller).await?;
            if endpoint.kind() == LinkKind::Shared && lease.is_one_of_many() {
                caller.pinned.note(&lease.held);
            }
            return Ok(lease);
        };
        // What may be asked back must not be taken for another call's question.
        let late = method == "tasks/result";
        let gone = || Failed::Link(LinkError::SessionGone);
        let held = held.upgrade().ok_or_else(gone)?;
        loop {
            let mut waits = None;
            for endpoint in &self.endpoints {
                match endpoint.pool.again(&held, late) {
                    Again::Took(lease) => return Ok(lease),
                    Again::Wait(changed) => waits = Some(changed),
                    Again::Gone => {}
                }
            }
            waits.ok_or_else(gone)?.await;
        }
    }

    /// A link for this caller.
    pub(crate) async fn lease<'a>(
        &'a self,
        at: usize,
        endpoint: &'a Endpoint,
        caller: &Caller,
    ) -> Result<Lease<'a>, Failed> {
        if self.stop.is_cancelled() {
            return Err(Failed::Link(LinkError::Unreachable("it was removed from the configuration".into())));
        }
        let era = match self.negotiated.load().as_ref() {
            Some(negotiated) => negotiated.revision.era(),
            None => {
                self.reached().await?;
                self.negotiated.load().as_ref().map_or(Era::Legacy, |negotiated| negotiated.revision.era())
            }
        };
        let kind = endpoint.kind();
        let key = Key::of(caller, kind, era, self.config.isolation);
        if key == Key::Plain {
            return self.plain(at, endpoint, caller).await;
        }
        let alone = kind == LinkKind::Shared && matches!(key, Key::Own(..));
        self.pooled(at, endpoint, &key, caller, alone).await
    }

    /// The link that is everybody's. One endpoint's is looked after by the actor; those of its replicas are opened when
    /// they are wanted.
    async fn plain<'a>(&'a self, at: usize, endpoint: &'a Endpoint, caller: &Caller) -> Result<Lease<'a>, Failed> {
        loop {
            if let Some(held) = endpoint.plain() {
                return Ok(Lease::plain(held));
            }
            if at != self.home() {
                return self.pooled(at, endpoint, &Key::Plain, caller, false).await;
            }
            self.reached().await?;
            if endpoint.plain().is_none() && at == self.home() {
                // It ended just now, which the actor has yet to notice.
                let mut phase = self.phase.subscribe();
                if endpoint.plain().is_none() {
                    let _ = tokio::time::timeout(Duration::from_secs(1), phase.changed()).await;
                }
            }
        }
    }

    /// Waits while the server is being connected.
    async fn reached(&self) -> Result<(), Failed> {
        let mut phase = self.phase.subscribe();
        loop {
            let now = phase.borrow_and_update().clone();
            match now {
                Phase::Up => return Ok(()),
                Phase::Down(error) => {
                    // Somebody wants it: the next try need not wait for long.
                    self.nudge.notify_one();
                    return Err(Failed::Link(unsent(error)));
                }
                Phase::Connecting => {}
            }
            if phase.changed().await.is_err() {
                return Err(Failed::Link(LinkError::Unreachable("the gateway is shutting down".into())));
            }
        }
    }

    async fn pooled<'a>(
        &'a self,
        at: usize,
        endpoint: &'a Endpoint,
        key: &Key,
        caller: &Caller,
        alone: bool,
    ) -> Result<Lease<'a>, Failed> {
        let (mut waiting, mut mine) = (None, None);
        loop {
            let mut opening = match endpoint.pool.take(key, caller, alone, mine) {
                Take::Took(lease) => return Ok(lease),
                Take::Wait(opening) => opening,
                Take::Open { id, opened, opening } => {
                    mine = Some(id);
                    self.have_opened(at, key.clone(), caller.capabilities.clone(), id, opened);
                    opening
                }
                Take::Full(changed) => {
                    if waiting.is_none() {
                        let place = self.places.queue().map_err(|_| {
                            Failed::NoLink("too many calls wait for a connection of their own (max_queue)")
                        })?;
                        waiting = Some(place);
                    }
                    changed.await;
                    continue;
                }
            };
            let opened = opening.wait_for(Option::is_some).await.map(|result| result.clone());
            match opened {
                Ok(Some(Err(error))) => return Err(Failed::Link(unsent(error))),
                Ok(_) => {}
                Err(_) => return Err(Failed::Link(LinkError::Unreachable("the gateway is shutting down".into()))),
            }
        }
    }
}

/// A link that could not be opened has sent nothing of the call.
fn unsent(error: LinkError) -> LinkError {
    match error {
        LinkError::Unreachable(_) => error,
        other => LinkError::Unreachable(other.to_string()),
    }
}
