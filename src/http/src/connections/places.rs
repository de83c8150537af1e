//! The places that connections have, and whose is taken when there is none left.
//!
//! Connections that have shown a reviewer's credential have places of their own, up to a number of them; no other
//! connection takes those.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use countersign_exchange::{
    eviction::{self, Hold, Queue},
    shared::SessionShared,
};

/// What lies below a connection; from any thread.
pub trait Wire: Send + Sync {
    /// Breaks it without a word.
    fn cut(&self);
    /// Its peer has sent something that nobody has read yet.
    fn has_unread(&self) -> bool;
}

/// What of one connection all threads see.
pub struct Place {
    number: u64,
    /// `None` where it cannot be broken at once: then its place is never taken.
    wire: Option<Arc<dyn Wire>>,
    /// Requests that are open, and those of them whose bodies are still to come.
    open: AtomicUsize,
    waiting: AtomicUsize,
    /// It has sent a whole request.
    asked: AtomicBool,
    /// When it last did, or got its answer, by [`eviction::now`].
    last: AtomicU64,
    /// It has one of the places of reviewers.
    reviewer: AtomicBool,
    /// Another gateway has it.
    peer: AtomicBool,
    /// It no longer counts: its place was taken, or it is counted elsewhere.
    gone: AtomicBool,
    /// The session that it carries a stream or the messages of.
    session: Mutex<Option<Weak<SessionShared>>>,
    web_socket: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Place {
    /// How firmly it holds its place.
    fn hold(&self) -> Hold {
        let open = self.open();
        let works = open > self.waiting.load(Ordering::Relaxed);
        let stays = works || self.peer() || self.reviewer.load(Ordering::Relaxed);
        let Some(wire) = self.wire.as_ref().filter(|_| !stays) else { return Hold::Busy };
        // A request has come, and its thread has not come to it yet. (Of an open one, the rest may well be left unread.)
        if open == 0 && wire.has_unread() {
            return Hold::Busy;
        }
        let last = self.last.load(Ordering::Relaxed);
        match self.session.lock().as_ref().and_then(Weak::upgrade).map(|session| session.hold()) {
            Some(Hold::Idle(heard)) => Hold::Idle(last.max(heard)),
            Some(hold) => hold,
            None if self.asked.load(Ordering::Relaxed) => Hold::Idle(last),
            None => Hold::Handshake,
        }
    }

    /// The connection carries that session from now on.
    pub fn carries(&self, session: &Arc<SessionShared>) {
        *self.session.lock() = Some(Arc::downgrade(session));
    }

    /// Another gateway has shown that it is one, and has it as long as both are there.
    pub fn is_of_peer(&self) {
        self.peer.store(true, Ordering::Relaxed);
    }

    pub fn peer(&self) -> bool {
        self.peer.load(Ordering::Relaxed)
    }

    /// Requests that are open.
    fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// While a request is answered.
    #[must_use]
    pub fn work(self: &Arc<Self>) -> Working {
        self.open.fetch_add(1, Ordering::Relaxed);
        Working(Arc::clone(self))
    }

    /// While the body of such a request is waited for: until then it is none.
    #[must_use]
    pub fn wait_for_body(self: &Arc<Self>) -> WaitsForBody {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitsForBody(Arc::clone(self))
    }
}

/// See [`Place::work`].
pub struct Working(Arc<Place>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.last.store(eviction::now(), Ordering::Relaxed);
        self.0.asked.store(true, Ordering::Relaxed);
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// See [`Place::wait_for_body`].
pub struct WaitsForBody(Arc<Place>);

impl Drop for WaitsForBody {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connections of one kind.
#[derive(Default)]
struct Pool {
    /// Without those of reviewers.
    open: usize,
    all: HashMap<u64, Arc<Place>>,
    queue: Queue<u64>,
}

impl Pool {
    fn insert(&mut self, place: Arc<Place>) {
        let number = place.number;
        self.open += 1;
        self.all.insert(number, place);
        let Self { open, all, queue } = self;
        queue.joined(number, *open, |number| all.get(number).map(|place| place.hold()));
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Place>> {
        let place = self.all.remove(&number)?;
        self.open -= usize::from(!place.gone.swap(true, Ordering::Relaxed));
        Some(place)
    }

    /// Takes out the one whose place is to be taken.
    fn evict(&mut self) -> Option<Arc<Place>> {
        let Self { all, queue, .. } = self;
        let hold = |number: &u64| all.get(number).map(|place| place.hold());
        let number = queue.next(hold, || all.keys().copied().collect())?;
        self.remove(number)
    }
}

/// All of them.
pub struct Places {
    max: usize,
    reserved: usize,
    reviewers: AtomicUsize,
    numbers: AtomicU64,
    http: Mutex<Pool>,
    web_sockets: Mutex<Pool>,
}

impl Places {
    /// So many for everybody, and more for reviewers.
    #[must_use]
    pub fn new(max: usize, reserved: usize) -> Self {
        Self {
            max,
            reserved,
            reviewers: AtomicUsize::new(0),
            numbers: AtomicU64::new(0),
            http: Mutex::default(),
            web_sockets: Mutex::default(),
        }
    }

    /// A place for a connection that has come, if need be another's; `false` beside it where there was none left. It
    /// counts all the same.
    pub fn enter(&self, wire: Option<Arc<dyn Wire>>) -> (Arc<Place>, bool) {
        let place = Arc::new(Place {
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            wire,
            open: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            asked: AtomicBool::new(false),
            last: AtomicU64::new(eviction::now()),
            reviewer: AtomicBool::new(false),
            peer: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            session: Mutex::default(),
            web_socket: Mutex::default(),
        });
        let (evicted, room) = {
            let mut http = self.http.lock();
            // Before it comes, so that it does not take its own.
            let evicted = if http.open >= self.max { http.evict() } else { None };
            http.insert(Arc::clone(&place));
            (evicted, http.open <= self.max)
        };
        if let Some(wire) = evicted.as_ref().and_then(|place| place.wire.as_ref()) {
            tracing::debug!("a connection makes room for another");
            wire.cut();
        }
        (place, room)
    }

    /// The connection is closed.
    pub fn leave(&self, place: &Place) {
        if place.reviewer.swap(false, Ordering::Relaxed) {
            self.reviewers.fetch_sub(1, Ordering::Relaxed);
        }
        if self.http.lock().remove(place.number).is_none() {
            self.web_sockets.lock().remove(place.number);
        }
    }

    /// More connections than there may be.
    pub fn is_over(&self) -> bool {
        self.http.lock().open > self.max
    }

    /// Gives a connection that has shown a reviewer's credential one of their places, if one is free; `false` if not.
    pub fn reserve(&self, place: &Place) -> bool {
        if place.reviewer.load(Ordering::Relaxed) {
            return true;
        }
        let taken =
            self.reviewers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.reserved).then_some(n + 1));
        if taken.is_err() {
            return false;
        }
        place.reviewer.store(true, Ordering::Relaxed);
        let mut http = self.http.lock();
        // It counts among theirs from now on.
        if http.all.contains_key(&place.number) && !place.gone.swap(true, Ordering::Relaxed) {
            http.open -= 1;
        }
        true
    }

    /// The connection becomes a WebSocket.
    pub fn upgrade(&self, place: &Arc<Place>, permit: OwnedSemaphorePermit) {
        *place.web_socket.lock() = Some(permit);
        let was = self.http.lock().remove(place.number);
        if let Some(place) = was {
            place.gone.store(false, Ordering::Relaxed);
            self.web_sockets.lock().insert(place);
        }
    }

    /// It stays what it was after all.
    pub fn not_upgraded(&self, place: &Arc<Place>) {
        let was = self.web_sockets.lock().remove(place.number);
        place.web_socket.lock().take();
        if let Some(place) = was {
            place.gone.store(false, Ordering::Relaxed);
            self.http.lock().insert(place);
        }
    }

    /// Ends a WebSocket so that another may take its place, which it gives; `None` where all have calls in flight.
    pub fn evict_web_socket(&self) -> Option<OwnedSemaphorePermit> {
        let place = self.web_sockets.lock().evict()?;
        let permit = place.web_socket.lock().take();
        tracing::debug!("a WebSocket makes room for another");
        match place.session.lock().as_ref().and_then(Weak::upgrade) {
            // It says goodbye and closes the socket.
            Some(session) => session.end(),
            None => {
                if let Some(wire) = &place.wire {
                    wire.cut();
                }
            }
        }
        permit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Fake {
        cut: AtomicBool,
        unread: AtomicBool,
    }

    impl Wire for Fake {
        fn cut(&self) {
            self.cut.store(true, Ordering::Relaxed);
        }

        fn has_unread(&self) -> bool {
            self.unread.load(Ordering::Relaxed)
        }
    }

    /// A connection, and what tells whether it was cut.
    fn enter(places: &Places) -> (Arc<Place>, bool, Arc<Fake>) {
        let wire = Arc::new(Fake::default());
        let (place, room) = places.enter(Some(Arc::clone(&wire) as Arc<dyn Wire>));
        (place, room, wire)
    }

    fn is_cut(wire: &Fake) -> bool {
        wire.cut.load(Ordering::Relaxed)
    }

    #[test]
    fn what_was_sent_and_not_read_yet_is_a_request_unless_another_is_open() {
        let places = Places::new(1, 0);
        let (asking, _, asking_wire) = enter(&places);
        asking_wire.unread.store(true, Ordering::Relaxed);
        let (over, room, _) = enter(&places);
        assert!(!room && !is_cut(&asking_wire));
        places.leave(&over);
        // Its body is not read on while there is no room for bodies: that holds no place.
        let (_work, _waits) = (asking.work(), asking.wait_for_body());
        let (_, room, _) = enter(&places);
        assert!(room && is_cut(&asking_wire));
    }

    #[test]
    fn who_never_asked_goes_first_and_who_is_answered_stays() {
        let places = Places::new(2, 1);
        let (working, _, working_cut) = enter(&places);
        let _at_work = working.work();
        let (_silent, room, silent_cut) = enter(&places);
        assert!(room);
        let (asked, room, asked_cut) = enter(&places);
        assert!(room && is_cut(&silent_cut));
        drop(asked.work());
        let (third, room, third_cut) = enter(&places);
        assert!(room && is_cut(&asked_cut) && !is_cut(&working_cut));
        // One whose body is still to come has asked for nothing yet.
        let at_work = third.work();
        let waits = third.wait_for_body();
        let (fourth, room, _) = enter(&places);
        assert!(room && is_cut(&third_cut));
        drop((waits, at_work));
        // Where all are at work there is no room.
        let _busy = fourth.work();
        let (fifth, room, _) = enter(&places);
        assert!(!room && places.is_over());
        places.leave(&fifth);
        assert!(!places.is_over());
        // Those whose places were taken give nothing back when they close.
        places.leave(&asked);
        places.leave(&third);
        assert_eq!(places.http.lock().open, 2);
    }

    #[test]
    fn a_reviewers_place_is_its_own() {
        let places = Places::new(1, 1);
        let (reviewer, _, reviewer_cut) = enter(&places);
        assert!(places.reserve(&reviewer) && places.reserve(&reviewer));
        let (agent, room, _) = enter(&places);
        let _busy = agent.work();
        assert!(room && !is_cut(&reviewer_cut));
        let (second, room, _) = enter(&places);
        assert!(!room && !places.reserve(&second), "there is one such place");
        places.leave(&second);
        places.leave(&reviewer);
        let (third, room, _) = enter(&places);
        assert!(!room && places.reserve(&third));
        assert!(!places.is_over());
    }
}
