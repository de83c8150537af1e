//! A link that the gateway holds, with the calls under way on it, and for whom messages outside of them are.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Upstream, silence::Silence};
use crate::{
    catalog::Offers,
    link::{Link, LinkError, Listener, Negotiated, UpstreamNotification},
};
use countersign_protocol::{Era, params::LoggingLevel};
use countersign_provider::request::UpstreamRequest;

/// See the module's page.
pub struct Held {
    pub link: Arc<dyn Link>,
    pub traffic: Arc<Traffic>,
    pub offers: Offers,
    pub era: Era,
    closed: CancellationToken,
    /// Its session has ended at the upstream: nobody gets it any more.
    gone: CancellationToken,
    levels: Levels,
    pub(crate) silence: Silence,
}

impl Held {
    #[must_use]
    pub fn new(link: Arc<dyn Link>, traffic: Arc<Traffic>, negotiated: &Negotiated) -> Self {
        Self {
            closed: link.closed(),
            gone: CancellationToken::new(),
            offers: Offers::of(negotiated),
            era: negotiated.revision.era(),
            levels: Levels::default(),
            silence: Silence::default(),
            link,
            traffic,
        }
    }

    #[must_use]
    pub fn usable(&self) -> bool {
        !self.closed.is_cancelled() && !self.gone.is_cancelled()
    }

    /// Nobody gets it any more; what runs on it may end.
    pub fn retire(&self) {
        self.gone.cancel();
    }

    pub fn close(&self) {
        self.gone.cancel();
        self.traffic.forget();
        self.link.close();
    }

    /// As [`Held::close`]; what waits for an answer on it fails with `why`.
    pub fn give_up(&self, why: LinkError) {
        self.gone.cancel();
        self.traffic.forget();
        self.link.give_up(why);
    }

    /// Resolves when it cannot be used any more.
    pub async fn ended(&self) {
        tokio::select! {
            () = self.closed.cancelled() => {}
            () = self.gone.cancelled() => {}
        }
    }

    /// Counts a call that wants log messages, and says what level the server should be told now, if another.
    pub fn want_level(&self, level: Option<LoggingLevel>) -> (Option<LevelWish<'_>>, Option<LoggingLevel>) {
        let Some(level) = level.filter(|_| self.offers.logging && self.era == Era::Legacy) else {
            return (None, None);
        };
        self.levels.wanted.get(level as usize).inspect(|count| _ = count.fetch_add(1, Ordering::Relaxed));
        let loudest = self.levels.loudest().unwrap_or(level);
        let mut told = self.levels.told.lock();
        let tell = (*told != Some(loudest)).then_some(loudest);
        if tell.is_some() {
            *told = Some(loudest);
        }
        (Some(LevelWish { levels: &self.levels, level }), tell)
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("era", &self.era).field("usable", &self.usable()).finish_non_exhaustive()
    }
}

/// How much the calls under way want logged: `logging/setLevel` is for the whole session, so the loudest counts.
#[derive(Default)]
struct Levels {
    wanted: [AtomicU32; 8],
    told: Mutex<Option<LoggingLevel>>,
}

impl Levels {
    fn loudest(&self) -> Option<LoggingLevel> {
        let first = self.wanted.iter().position(|count| count.load(Ordering::Relaxed) > 0)?;
        LoggingLevel::ALL.get(first).copied()
    }
}

/// One call's wish for log messages; ends with it.
pub struct LevelWish<'a> {
    levels: &'a Levels,
    level: LoggingLevel,
}

impl Drop for LevelWish<'_> {
    fn drop(&mut self) {
        self.levels.wanted.get(self.level as usize).inspect(|count| _ = count.fetch_sub(1, Ordering::Relaxed));
    }
}

/// The calls under way on one link, and the listener of what belongs to none of them.
pub struct Traffic {
    upstream: Weak<Upstream>,
    /// The link is one client session's own: what comes after its last call is its too.
    of_session: AtomicBool,
    /// The gateway itself is subscribed to resources on it.
    subscribes: AtomicBool,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    under_way: Vec<UnderWay>,
    last: Option<Arc<dyn Listener>>,
}

struct UnderWay {
    id: u64,
    listener: Arc<dyn Listener>,
    session: Option<Arc<str>>,
}

impl Traffic {
    #[must_use]
    pub fn new(upstream: Weak<Upstream>, of_session: bool) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            of_session: AtomicBool::new(of_session),
            subscribes: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    /// A call is under way until the guard is dropped.
    pub fn enter(&self, id: u64, listener: Arc<dyn Listener>, session: Option<Arc<str>>) -> Entered<'_> {
        self.calls.lock().under_way.push(UnderWay { id, listener, session });
        Entered { traffic: self, id }
    }

    pub(crate) fn subscribes(&self) {
        self.subscribes.store(true, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.calls.lock().last = None;
    }

    /// Whose a message without a call is: the only call's, or any one's where all are of one client session.
    fn owner(&self) -> Option<Arc<dyn Listener>> {
        let calls = self.calls.lock();
        let latest = calls.under_way.last()?;
        let alone = calls.under_way.len() == 1
            || (latest.session.is_some() && calls.under_way.iter().all(|call| call.session == latest.session));
        alone.then(|| Arc::clone(&latest.listener))
    }

    fn last(&self) -> Option<Arc<dyn Listener>> {
        self.calls.lock().last.clone()
    }
}

impl Listener for Traffic {
    fn notification(&self, notification: UpstreamNotification) {
        let Some(upstream) = self.upstream.upgrade() else { return };
        if upstream.heard(&notification, self.subscribes.load(Ordering::Relaxed)) {
            return;
        }
        // Progress names its call: where that is over, it is nobody else's.
        let owner = match notification.method.as_str() {
            "notifications/progress" | "notifications/cancelled" => None,
            "notifications/message" => self.owner(),
            _ => self.owner().or_else(|| self.last()),
        };
        match owner {
            Some(owner) => owner.notification(notification),
            None => upstream.unattributed(&notification.method),
        }
    }

    fn request(&self, request: UpstreamRequest) {
        if let Some(owner) = self.owner() {
            return owner.request(request);
        }
        if let Some(upstream) = self.upstream.upgrade() {
            upstream.unattributed(&request.method);
        }
        // Dropped: it declines.
    }
}

/// See [`Traffic::enter`].
pub struct Entered<'a> {
    traffic: &'a Traffic,
    id: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut calls = self.traffic.calls.lock();
        if let Some(at) = calls.under_way.iter().position(|call| call.id == self.id) {
            let ended = calls.under_way.swap_remove(at);
            if self.traffic.of_session.load(Ordering::Relaxed) {
                calls.last = Some(ended.listener);
            }
        }
    }
}
