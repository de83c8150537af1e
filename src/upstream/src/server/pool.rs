//! The pool of links to one endpoint, besides the common connection that all callers share.
//!
//! A link that serves one caller at a time makes it possible to attribute questions of a server on a shared stream:
//! they belong to the only call on the link.

use std::{cell::LazyCell, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::Notified, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::connection::{Caller, UpstreamConnection};
use crate::link::{LinkError, LinkKind};
use countersign_config::Isolation;
use countersign_protocol::{Era, negotiate::ClientCapabilities};

/// The time for which a new link is kept for the caller that requested it.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(5);
/// The time after which an unused link is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time after which an unused link is closed that follow-up requests need, because its server may be running a task.
const FOLLOW_UP_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The key of a group of interchangeable links.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PoolKey {
    /// The connection without capabilities, shared by all callers. The pool holds it only at replicas for which `upkeep` does
    /// not maintain it.
    Common,
    /// A link whose clients cannot be asked anything, but which declares extensions.
    SharedByCapabilities(ClientCapabilities),
    /// A link of one principal with these capabilities.
    Principal(Arc<str>, ClientCapabilities),
    /// A link of one client session.
    Session(Arc<str>),
}

impl PoolKey {
    /// Returns the key of the links that the caller may use.
    pub fn for_caller(caller: &Caller, kind: LinkKind, era: Era, isolation: Option<Isolation>) -> Self {
        // Stateless requests carry their capabilities, and servers only ask within an answer.
        if era == Era::Modern {
            return Self::Common;
        }
        let isolation = isolation.unwrap_or(match kind {
            LinkKind::Streams => Isolation::Session,
            LinkKind::SingleStream => Isolation::Shared,
        });
        let for_principal = || Self::Principal(caller.principal.name.as_str().into(), caller.capabilities.clone());
        match (isolation, &caller.session) {
            (Isolation::Session, Some(session)) => Self::Session(Arc::clone(session)),
            (Isolation::Session, None) => for_principal(),
            (Isolation::Shared, _) if !caller.capabilities.accepts_no_requests() => for_principal(),
            (Isolation::Shared, _) if caller.capabilities == ClientCapabilities::default() => Self::Common,
            (Isolation::Shared, _) => Self::SharedByCapabilities(caller.capabilities.clone()),
        }
    }
}

/// Receives the result of opening a link; `None` while it is in progress.
pub type OpeningReceiver = watch::Receiver<Option<Result<(), LinkError>>>;
/// Sends the result of opening a link.
pub type OpeningSender = watch::Sender<Option<Result<(), LinkError>>>;

/// The pooled links of one endpoint.
#[derive(Default)]
pub struct Pool {
    state: Mutex<PoolState>,
    changed: Notify,
}

#[derive(Default)]
struct PoolState {
    last_id: u64,
    entries: foldhash::HashMap<PoolKey, Vec<PooledLink>>,
}

struct PooledLink {
    id: u64,
    /// The principal for whom the link was opened, and whose limit it counts against.
    principal: Arc<str>,
    /// `None` while the link is being opened.
    connection: Option<Arc<UpstreamConnection>>,
    opening: OpeningReceiver,
    /// The number of leases.
    users: usize,
    /// The time of the last release.
    idle_since: Instant,
    /// The time until which a new link is kept for the caller that requested it.
    claimed_until: Option<Instant>,
    /// The client session that leased the link last.
    session: Option<Arc<str>>,
    /// Cancelled when the session ends, if the link belongs to one.
    session_ended: Option<CancellationToken>,
    /// `true` if the current user has the link exclusively.
    is_exclusive: bool,
    /// `true` if an exclusive call of that session ended without an answer. Late questions of the server could be
    /// attributed to another caller, so only that session uses the link from then on.
    has_abandoned_call: bool,
}

impl PooledLink {
    fn is_claimed(&self, now: Instant) -> bool {
        self.claimed_until.is_some_and(|until| now < until)
    }

    /// Returns `true` if the link belongs to a client session that has ended.
    fn has_session_ended(&self) -> bool {
        self.session_ended.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Returns `true` if the link was recorded for follow-up requests ([`LinkChoice`](super::connection::LinkChoice)),
    /// which hold the only weak references to connections.
    fn has_follow_ups(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| Arc::weak_count(connection) > 0)
    }
}

/// The result of [`Pool::lease`].
pub enum LeaseOutcome<'a> {
    Leased(Lease<'a>),
    /// The link is being opened. The caller must try again after that.
    AlreadyOpening(OpeningReceiver),
    /// The caller must have the link opened, and then try again.
    MustOpen {
        id: u64,
        result_sender: OpeningSender,
    },
    /// The limits are reached and all links are busy. The caller must try again after a change.
    Full(Notified<'a>),
}

/// The result of [`Pool::retake`].
pub enum RetakeOutcome<'a> {
    Leased(Lease<'a>),
    /// Another caller has the link exclusively. The caller must try again after a change.
    Busy(Notified<'a>),
    /// The link has ended.
    Ended,
}

impl Pool {
    /// Leases a link of this kind if one is available for the caller. The link of a principal with a single stream excludes
    /// other users during the lease. `opened_id` is the link that was opened for this caller.
    pub fn lease(&self, key: &PoolKey, caller: &Caller, kind: LinkKind, opened_id: Option<u64>) -> LeaseOutcome<'_> {
        let is_exclusive = kind == LinkKind::SingleStream && matches!(key, PoolKey::Principal(..));
        // The wait is registered before the check, so that no change is missed.
        let next_change = self.changed.notified();
        let mut state = self.state.lock();
        state.remove_ended(key);
        if let Some(entries) = state.entries.get_mut(key) {
            if let Some(entry) = choose_entry(entries, caller, is_exclusive, opened_id) {
                entry.users += 1;
                entry.claimed_until = None;
                entry.is_exclusive = is_exclusive;
                entry.session.clone_from(&caller.session);
                if let Some(connection) = entry.connection.clone() {
                    return LeaseOutcome::Leased(Lease {
                        pool_entry: Some((self, key.clone(), entry.id)),
                        is_abandoned: is_exclusive,
                        connection,
                    });
                }
            }
            if !is_exclusive && let Some(entry) = entries.iter().find(|entry| entry.connection.is_none()) {
                return LeaseOutcome::AlreadyOpening(entry.opening.clone());
            }
        }
        let principal: Arc<str> = caller.principal.name.as_str().into();
        if !state.make_room(kind, &principal) {
            return LeaseOutcome::Full(next_change);
        }
        let result_sender = OpeningSender::new(None);
        state.last_id += 1;
        let id = state.last_id;
        state.entries.entry(key.clone()).or_default().push(PooledLink {
            id,
            principal,
            connection: None,
            opening: result_sender.subscribe(),
            users: 0,
            idle_since: Instant::now(),
            claimed_until: None,
            session: caller.session.clone(),
            session_ended: caller.session_ended.clone().filter(|_| matches!(key, PoolKey::Session(_))),
            is_exclusive: false,
            has_abandoned_call: false,
        });
        LeaseOutcome::MustOpen { id, result_sender }
    }

    /// Leases the link on which earlier work was begun, even if it is in use. With `respects_exclusive_use`, the link is busy
    /// while a caller has it exclusively.
    pub fn retake(&self, connection: &Arc<UpstreamConnection>, respects_exclusive_use: bool) -> RetakeOutcome<'_> {
        let next_change = self.changed.notified();
        let mut state = self.state.lock();
        let has_connection =
            |entry: &&mut PooledLink| entry.connection.as_ref().is_some_and(|other| Arc::ptr_eq(other, connection));
        let found = state.entries.iter_mut().find_map(|(key, all)| Some((key, all.iter_mut().find(has_connection)?)));
        let Some((key, entry)) = found.filter(|_| connection.is_usable()) else { return RetakeOutcome::Ended };
        if respects_exclusive_use && entry.is_exclusive && entry.users > 0 {
            return RetakeOutcome::Busy(next_change);
        }
        if entry.users == 0 {
            entry.is_exclusive = false;
        }
        entry.users += 1;
        entry.claimed_until = None;
        RetakeOutcome::Leased(Lease {
            pool_entry: Some((self, key.clone(), entry.id)),
            is_abandoned: false,
            connection: Arc::clone(connection),
        })
    }

    /// Records the result of the opening that [`LeaseOutcome::MustOpen`] started.
    pub fn finish_opening(
        &self,
        key: &PoolKey,
        id: u64,
        result: Result<Arc<UpstreamConnection>, LinkError>,
        result_sender: &OpeningSender,
    ) {
        let outcome = match result {
            Ok(connection) => {
                let mut state = self.state.lock();
                match state.entries.get_mut(key).and_then(|all| all.iter_mut().find(|entry| entry.id == id)) {
                    Some(entry) => {
                        entry.idle_since = Instant::now();
                        entry.claimed_until = Some(entry.idle_since + CLAIM_TIMEOUT);
                        entry.connection = Some(connection);
                        Ok(())
                    }
                    None => {
                        // The session has ended meanwhile.
                        connection.close();
                        Err(LinkError::Unreachable("the session of the client has ended".into()))
                    }
                }
            }
            Err(error) => {
                self.state.lock().remove_where(|_, entry| entry.id == id);
                Err(error)
            }
        };
        result_sender.send_replace(Some(outcome));
        self.changed.notify_waiters();
    }

    /// Closes links that have been idle for long, and idle links of client sessions that have ended.
    pub fn close_idle(&self) {
        let now = Instant::now();
        self.state.lock().remove_where(|key, entry| {
            let limit = if entry.has_follow_ups() { FOLLOW_UP_IDLE_TIMEOUT } else { IDLE_TIMEOUT };
            let is_obsolete = match key {
                // A session keeps its links until [`Pool::close_session`]. A request that is sent later, such as the
                // cancellation of a task, opens another link.
                PoolKey::Session(_) => !entry.is_claimed(now) && entry.has_session_ended(),
                _ => now.duration_since(entry.idle_since) >= limit,
            };
            entry
                .connection
                .as_ref()
                .is_some_and(|connection| !connection.is_usable() || (entry.users == 0 && is_obsolete))
        });
        self.changed.notify_waiters();
    }

    /// Closes the links of a client session that has ended.
    pub fn close_session(&self, session: &str) {
        self.state.lock().remove_where(|key, _| matches!(key, PoolKey::Session(id) if &**id == session));
        self.changed.notify_waiters();
    }

    /// Closes all links.
    pub fn close_all(&self) {
        self.state.lock().remove_where(|_, _| true);
        self.changed.notify_waiters();
    }

    /// Returns the number of links that are open or being opened.
    pub fn count(&self) -> usize {
        self.state.lock().entries.values().map(Vec::len).sum()
    }

    /// Returns `true` if there is a link with this key.
    pub fn contains(&self, key: &PoolKey) -> bool {
        self.state.lock().entries.contains_key(key)
    }

    /// Ends a use of a link. `is_abandoned` is `true` if the answer of an exclusive call may still arrive.
    fn release(&self, key: &PoolKey, id: u64, is_abandoned: bool) {
        let mut state = self.state.lock();
        let mut is_obsolete = false;
        if let Some(entry) = state.entries.get_mut(key).and_then(|all| all.iter_mut().find(|entry| entry.id == id)) {
            entry.users -= 1;
            entry.idle_since = Instant::now();
            entry.has_abandoned_call |= is_abandoned;
            // Stateless clients have no session by which later questions could be attributed.
            is_obsolete = entry.has_abandoned_call && entry.session.is_none() && entry.users == 0;
        }
        if is_obsolete {
            state.remove_where(|_, entry| entry.id == id);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Chooses a link for the caller, preferably the link that its own session used last.
fn choose_entry<'a>(
    entries: &'a mut [PooledLink],
    caller: &Caller,
    is_exclusive: bool,
    opened_id: Option<u64>,
) -> Option<&'a mut PooledLink> {
    let now = LazyCell::new(Instant::now);
    if let Some(index) =
        entries.iter().position(|entry| Some(entry.id) == opened_id && entry.connection.is_some() && entry.users == 0)
    {
        return entries.get_mut(index);
    }
    let is_same_session = |entry: &PooledLink| entry.session.is_some() && entry.session == caller.session;
    let fits = |entry: &PooledLink| {
        entry.connection.is_some()
            && (!is_exclusive
                || (entry.users == 0
                    && !entry.is_claimed(*now)
                    && (!entry.has_abandoned_call || is_same_session(entry))))
    };
    let index = entries
        .iter()
        .position(|entry| fits(entry) && is_same_session(entry))
        .or_else(|| entries.iter().position(fits))?;
    entries.get_mut(index)
}

impl PoolState {
    /// Removes links of this key that have ended.
    fn remove_ended(&mut self, key: &PoolKey) {
        let has_ended =
            |entry: &PooledLink| entry.connection.as_ref().is_some_and(|connection| !connection.is_usable());
        if self.entries.get(key).is_some_and(|entries| entries.iter().any(has_ended)) {
            self.remove_where(|other, entry| other == key && has_ended(entry));
        }
    }

    /// Removes and closes the links for which `selects` returns `true`.
    fn remove_where(&mut self, selects: impl Fn(&PoolKey, &PooledLink) -> bool) {
        self.entries.retain(|key, entries| {
            let removed = entries.extract_if(.., |entry| selects(key, entry));
            removed.filter_map(|entry| entry.connection).for_each(|connection| connection.close());
            !entries.is_empty()
        });
    }

    /// Returns `true` if another link may be opened. Closes the longest idle link if that makes room, one that follow-up
    /// requests need only if there is no other.
    fn make_room(&mut self, kind: LinkKind, principal: &Arc<str>) -> bool {
        // A child is a process, while a session over HTTP costs little more than its id.
        let (max_per_principal, max_links) = match kind {
            LinkKind::SingleStream => (4, 32),
            LinkKind::Streams => (256, 4096),
        };
        let all = || self.entries.values().flatten();
        let is_principal_full = all().filter(|entry| entry.principal == *principal).count() >= max_per_principal;
        if !is_principal_full && all().count() < max_links {
            return true;
        }
        let now = Instant::now();
        let idle = self
            .entries
            .iter()
            .filter(|(key, entries)| {
                !matches!(key, PoolKey::Session(_)) || entries.iter().all(PooledLink::has_session_ended)
            })
            .flat_map(|(_, entries)| entries)
            .filter(|entry| entry.users == 0 && entry.connection.is_some() && !entry.is_claimed(now))
            .filter(|entry| !is_principal_full || entry.principal == *principal)
            .min_by_key(|entry| (entry.has_follow_ups(), entry.idle_since))
            .map(|entry| entry.id);
        let Some(id) = idle else { return false };
        self.remove_where(|_, entry| entry.id == id);
        true
    }
}

/// A link in use, which is returned to the pool on release or drop.
pub struct Lease<'a> {
    pool_entry: Option<(&'a Pool, PoolKey, u64)>,
    /// `true` if the answer of an exclusive call may still arrive after the link is returned.
    is_abandoned: bool,
    pub connection: Arc<UpstreamConnection>,
}

impl<'a> Lease<'a> {
    /// Wraps a link that the pool does not count, such as the common connection.
    #[must_use]
    pub fn unpooled(connection: Arc<UpstreamConnection>) -> Self {
        Self { pool_entry: None, is_abandoned: false, connection }
    }

    /// Returns `true` if the link belongs to a pool of interchangeable links.
    pub fn is_pooled(&self) -> bool {
        self.pool_entry.is_some()
    }

    /// Returns the link to the pool. `is_abandoned` is `true` if the call ended before its answer arrived.
    pub fn release(mut self, is_abandoned: bool) {
        self.is_abandoned &= is_abandoned;
    }
}

impl Drop for Lease<'_> {
    /// Releases the link, as abandoned unless [`Self::release`] says otherwise.
    fn drop(&mut self) {
        if let Some((pool, key, id)) = &self.pool_entry {
            pool.release(key, *id, self.is_abandoned);
        }
    }
}
