//! The links of one endpoint beside its plain one: who gets which, how many there are, and when they are closed.
//!
//! A link that is one caller's at a time is how questions of a server over a shared stream are attributed: they belong
//! to the only call on it.

use std::{cell::LazyCell, collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, futures::Notified, watch},
    time::Instant,
};

use super::{caller::Caller, held::Held};
use crate::link::{LinkError, LinkKind};
use countersign_config::Isolation;
use countersign_protocol::{Era, capabilities::ClientCapabilities};

/// How long a new link waits for the caller that had it opened.
const CLAIM: Duration = Duration::from_secs(5);
/// A link that nobody uses is closed after so long.
const IDLE: Duration = Duration::from_secs(120);

/// Which links are alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Without capabilities, for everybody.
    Plain,
    /// Nobody on it can be asked anything, but extensions are declared.
    Common(ClientCapabilities),
    /// A principal's with these capabilities.
    Own(Arc<str>, ClientCapabilities),
    /// A client session's.
    Session(Arc<str>),
}

impl Key {
    /// Which link a caller may use.
    #[must_use]
    pub fn of(caller: &Caller, kind: LinkKind, era: Era, isolation: Option<Isolation>) -> Self {
        // Stateless requests carry their capabilities, and nobody is asked anything outside of an answer.
        if era == Era::Modern {
            return Self::Plain;
        }
        let isolation = isolation.unwrap_or(match kind {
            LinkKind::Streams => Isolation::Session,
            LinkKind::Shared | LinkKind::Stateless => Isolation::Shared,
        });
        let own = || Self::Own(caller.principal.name.as_str().into(), caller.capabilities.clone());
        match (isolation, &caller.session) {
            (Isolation::Session, Some(session)) => Self::Session(Arc::clone(session)),
            (Isolation::Session, None) => own(),
            (Isolation::Shared, _) if !caller.capabilities.asks_nothing() => own(),
            (Isolation::Shared, _) if caller.capabilities == ClientCapabilities::default() => Self::Plain,
            (Isolation::Shared, _) => Self::Common(caller.capabilities.clone()),
        }
    }
}

/// How many at most links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub per_principal: usize,
    pub per_server: usize,
}

impl Bounds {
    /// A child is a process; a session over HTTP is little more than its id.
    #[must_use]
    pub const fn of(kind: LinkKind) -> Self {
        match kind {
            LinkKind::Shared => Self { per_principal: 4, per_server: 32 },
            LinkKind::Streams | LinkKind::Stateless => Self { per_principal: 256, per_server: 4096 },
        }
    }
}

/// How an opening ended; `None` while it is under way.
pub type Opening = watch::Receiver<Option<Result<(), LinkError>>>;
/// The other end, for whoever opens.
pub type Opened = watch::Sender<Option<Result<(), LinkError>>>;

/// See the module's page.
pub struct Pool {
    bounds: Bounds,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    last: u64,
    entries: HashMap<Key, Vec<PooledLink>>,
    by_principal: HashMap<Arc<str>, usize>,
    total: usize,
}

struct PooledLink {
    id: u64,
    principal: Arc<str>,
    /// `None` while it is being opened.
    held: Option<Arc<Held>>,
    opening: Opening,
    users: usize,
    idle_since: Instant,
    /// Just opened for a caller that has yet to take it.
    claimed_until: Option<Instant>,
    /// The client session that used it last.
    session: Option<Arc<str>>,
    /// Whoever uses it has it alone.
    alone: bool,
    /// A call of that session was given up on it: what the server still asks for it would look like another's.
    tainted: bool,
}

impl PooledLink {
    fn is_claimed(&self, now: Instant) -> bool {
        self.claimed_until.is_some_and(|until| now < until)
    }
}

/// What a caller gets.
pub enum Take<'a> {
    Took(Lease<'a>),
    /// It is being opened; look again then.
    Wait(Opening),
    /// The caller has to have it opened, then looks again.
    Open {
        id: u64,
        opened: Opened,
        opening: Opening,
    },
    /// No more may be opened, and all are busy; look again when something changes.
    Full(Notified<'a>),
}

/// As [`Take`], of one link and no other.
pub enum Again<'a> {
    Took(Lease<'a>),
    Wait(Notified<'a>),
    /// It has ended.
    Gone,
}

impl Pool {
    #[must_use]
    pub fn new(kind: LinkKind) -> Self {
        Self { bounds: Bounds::of(kind), inner: Mutex::default(), changed: Notify::new() }
    }

    /// Takes a link, if there is one for this caller. `alone`: nobody else may use it at the same time. `mine`: the one
    /// that it has had opened.
    pub fn take(&self, key: &Key, caller: &Caller, alone: bool, mine: Option<u64>) -> Take<'_> {
        // From before the look, so that no change is missed.
        let changed = self.changed.notified();
        let mut inner = self.inner.lock();
        inner.sweep_dead(key);
        if let Some(entries) = inner.entries.get_mut(key) {
            if let Some(entry) = choose(entries, caller, alone, mine) {
                entry.users += 1;
                entry.claimed_until = None;
                entry.alone = alone;
                entry.session.clone_from(&caller.session);
                if let Some(held) = entry.held.clone() {
                    return Take::Took(Lease { of: Some((self, key.clone(), entry.id)), alone, held });
                }
            }
            if !alone && let Some(entry) = entries.iter().find(|entry| entry.held.is_none()) {
                return Take::Wait(entry.opening.clone());
            }
        }
        let principal: Arc<str> = caller.principal.name.as_str().into();
        if !inner.make_room(self.bounds, &principal) {
            return Take::Full(changed);
        }
        let (opened, opening) = watch::channel(None);
        inner.last += 1;
        let id = inner.last;
        inner.total += 1;
        *inner.by_principal.entry(Arc::clone(&principal)).or_default() += 1;
        inner.entries.entry(key.clone()).or_default().push(PooledLink {
            id,
            principal,
            held: None,
            opening: opening.clone(),
            users: 0,
            idle_since: Instant::now(),
            claimed_until: None,
            session: caller.session.clone(),
            alone: false,
            tainted: false,
        });
        Take::Open { id, opened, opening }
    }

    /// The very link that something was begun on, also while it is in use. `late`: once nobody has it alone.
    pub fn again(&self, held: &Arc<Held>, late: bool) -> Again<'_> {
        let changed = self.changed.notified();
        let mut inner = self.inner.lock();
        let is = |entry: &&mut PooledLink| entry.held.as_ref().is_some_and(|of| Arc::ptr_eq(of, held));
        let found = inner.entries.iter_mut().find_map(|(key, all)| Some((key, all.iter_mut().find(is)?)));
        let Some((key, entry)) = found.filter(|_| held.usable()) else { return Again::Gone };
        if late && entry.alone && entry.users > 0 {
            return Again::Wait(changed);
        }
        if entry.users == 0 {
            entry.alone = false;
        }
        entry.users += 1;
        entry.claimed_until = None;
        Again::Took(Lease { of: Some((self, key.clone(), entry.id)), alone: false, held: Arc::clone(held) })
    }

    /// The opening that was begun by [`Take::Open`] has ended.
    pub fn opened(&self, key: &Key, id: u64, result: Result<Arc<Held>, LinkError>, opened: &Opened) {
        let said = match result {
            Ok(held) => {
                let mut inner = self.inner.lock();
                match inner.entries.get_mut(key).and_then(|all| all.iter_mut().find(|entry| entry.id == id)) {
                    Some(entry) => {
                        entry.idle_since = Instant::now();
                        entry.claimed_until = Some(entry.idle_since + CLAIM);
                        entry.held = Some(held);
                        Ok(())
                    }
                    None => {
                        // Its session has ended meanwhile.
                        held.close();
                        Err(LinkError::Unreachable("its client's session has ended".into()))
                    }
                }
            }
            Err(error) => {
                self.inner.lock().sweep(|_, entry| entry.id == id);
                Err(error)
            }
        };
        opened.send_replace(Some(said));
        self.changed.notify_waiters();
    }

    /// Closes what nobody has used for long.
    pub fn close_idle(&self) {
        let now = Instant::now();
        self.inner.lock().sweep(|key, entry| {
            let over = entry.users == 0 && now.duration_since(entry.idle_since) >= IDLE;
            // Sessions say when they end.
            entry.held.as_ref().is_some_and(|held| !held.usable() || (over && !matches!(key, Key::Session(_))))
        });
        self.changed.notify_waiters();
    }

    /// A client's session has ended, and its links with it.
    pub fn session_ended(&self, session: &str) {
        self.inner.lock().sweep(|key, _| matches!(key, Key::Session(of) if &**of == session));
        self.changed.notify_waiters();
    }

    pub fn close_all(&self) {
        self.inner.lock().sweep(|_, _| true);
        self.changed.notify_waiters();
    }

    /// Links open or being opened.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().total
    }

    /// Whether there is a link of that client session.
    #[must_use]
    pub fn has(&self, key: &Key) -> bool {
        self.inner.lock().entries.contains_key(key)
    }

    fn give_back(&self, key: &Key, id: u64, abandoned: bool) {
        let mut inner = self.inner.lock();
        let mut over = false;
        if let Some(entry) = inner.entries.get_mut(key).and_then(|all| all.iter_mut().find(|entry| entry.id == id)) {
            entry.users -= 1;
            entry.idle_since = Instant::now();
            entry.tainted |= abandoned;
            // No session can be told from another among stateless clients.
            over = entry.tainted && entry.session.is_none() && entry.users == 0;
        }
        if over {
            inner.sweep(|_, entry| entry.id == id);
        }
        drop(inner);
        self.changed.notify_waiters();
    }
}

/// The link for this caller among those that are alike: rather one that its own session used last.
fn choose<'a>(
    entries: &'a mut [PooledLink],
    caller: &Caller,
    alone: bool,
    mine: Option<u64>,
) -> Option<&'a mut PooledLink> {
    let now = LazyCell::new(Instant::now);
    if let Some(at) =
        entries.iter().position(|entry| Some(entry.id) == mine && entry.held.is_some() && entry.users == 0)
    {
        return entries.get_mut(at);
    }
    let same = |entry: &PooledLink| entry.session.is_some() && entry.session == caller.session;
    let fits = |entry: &PooledLink| {
        entry.held.is_some()
            && (!alone || (entry.users == 0 && !entry.is_claimed(*now) && (!entry.tainted || same(entry))))
    };
    let at = entries.iter().position(|entry| fits(entry) && same(entry)).or_else(|| entries.iter().position(fits))?;
    entries.get_mut(at)
}

impl Inner {
    /// Removes what has ended among links of this key.
    fn sweep_dead(&mut self, key: &Key) {
        let dead = |entry: &PooledLink| entry.held.as_ref().is_some_and(|held| !held.usable());
        if self.entries.get(key).is_some_and(|entries| entries.iter().any(dead)) {
            self.sweep(|of, entry| of == key && dead(entry));
        }
    }

    /// Removes and closes all that `which` says.
    fn sweep(&mut self, which: impl Fn(&Key, &PooledLink) -> bool) {
        let (by_principal, total) = (&mut self.by_principal, &mut self.total);
        self.entries.retain(|key, entries| {
            entries.retain(|entry| {
                if !which(key, entry) {
                    return true;
                }
                if let Some(held) = &entry.held {
                    held.close();
                }
                *total -= 1;
                if let Some(count) = by_principal.get_mut(&entry.principal) {
                    *count -= 1;
                    if *count == 0 {
                        by_principal.remove(&entry.principal);
                    }
                }
                false
            });
            !entries.is_empty()
        });
    }

    /// Whether one more may be opened; closes the one that was idle longest if that helps.
    fn make_room(&mut self, bounds: Bounds, principal: &Arc<str>) -> bool {
        let own_full = self.by_principal.get(principal).copied().unwrap_or(0) >= bounds.per_principal;
        if !own_full && self.total < bounds.per_server {
            return true;
        }
        let now = Instant::now();
        let idle = self
            .entries
            .iter()
            .filter(|(key, _)| !matches!(key, Key::Session(_)))
            .flat_map(|(_, entries)| entries)
            .filter(|entry| entry.users == 0 && entry.held.is_some() && !entry.is_claimed(now))
            .filter(|entry| !own_full || entry.principal == *principal)
            .min_by_key(|entry| entry.idle_since)
            .map(|entry| entry.id);
        let Some(id) = idle else { return false };
        self.sweep(|_, entry| entry.id == id);
        true
    }
}

/// A link in use.
pub struct Lease<'a> {
    of: Option<(&'a Pool, Key, u64)>,
    alone: bool,
    pub held: Arc<Held>,
}

impl<'a> Lease<'a> {
    /// Of a link that the pool does not count: the plain one.
    #[must_use]
    pub fn plain(held: Arc<Held>) -> Self {
        Self { of: None, alone: false, held }
    }

    /// Whether others of the same kind exist, or may.
    #[must_use]
    pub fn is_one_of_many(&self) -> bool {
        self.of.is_some()
    }

    /// Gives it back. `abandoned`: the call on it was given up before its answer.
    pub fn give_back(mut self, abandoned: bool) {
        if let Some((pool, key, id)) = self.of.take() {
            pool.give_back(&key, id, abandoned && self.alone);
        }
    }
}

impl Drop for Lease<'_> {
    /// The call was dropped: nobody waits for its answer.
    fn drop(&mut self) {
        if let Some((pool, key, id)) = self.of.take() {
            pool.give_back(&key, id, self.alone);
        }
    }
}
