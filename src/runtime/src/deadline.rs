//! Deadlines that hardly ever come: time-outs of what nearly always ends long before.
//!
//! A timer of the runtime is put into its wheel and taken out again, and what the thread may sleep for is reckoned
//! anew each time. Here a deadline is an entry in a list of its thread, and one task per thread looks through that list
//! every [`TICK`] as long as there is something in it. So deadlines come late by up to that much, never early.
//!
//! What it is worth: a deadline of something that waits costs 740 instructions, one of `tokio::time::timeout` 1,220; that
//! is half a percent of a proxied call, which has one (`scripts/bench instructions --beside PROGRAM` shows it).

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How late a deadline may come.
pub const TICK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct List {
    slots: Vec<Slot>,
    /// Places in `slots` that nobody has.
    free: Vec<usize>,
    /// Somebody looks through it.
    watched: bool,
}

struct Slot {
    /// `None` for one that is free or over.
    deadline: Option<Instant>,
    waker: Waker,
}

impl List {
    fn insert(&mut self, deadline: Instant, waker: Waker) -> usize {
        let slot = Slot { deadline: Some(deadline), waker };
        match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.slots[at] = Slot { deadline: None, waker: Waker::noop().clone() };
        self.free.push(at);
        if self.free.len() == self.slots.len() && self.slots.len() > 1024 {
            *self = Self { watched: self.watched, ..Self::default() };
        }
    }

    /// Ends what is over; nothing once the list is empty, which is not watched any more then.
    fn tick(&mut self) -> Option<Vec<Waker>> {
        if self.free.len() == self.slots.len() {
            self.watched = false;
            return None;
        }
        let now = Instant::now();
        let mut over = Vec::new();
        for slot in &mut self.slots {
            if slot.deadline.is_some_and(|deadline| deadline <= now) {
                slot.deadline = None;
                over.push(slot.waker.clone());
            }
        }
        Some(over)
    }
}

thread_local! {
    static LIST: Arc<Mutex<List>> = Arc::default();
}

/// Resolves at that time, or up to [`TICK`] later, also where it is over already: the clock is read by whoever looks
/// through the list, not with each deadline. Needs a runtime of tokio.
#[must_use]
pub fn at(deadline: Instant) -> Deadline {
    Deadline { deadline, slot: None }
}

/// `work`, or `None` if it takes longer than `limit` (and up to [`TICK`] more).
pub async fn within<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    let mut work = std::pin::pin!(work);
    let mut deadline = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        let deadline = deadline.get_or_insert_with(|| at(Instant::now() + limit));
        Pin::new(deadline).poll(cx).map(|()| None)
    })
    .await
}

/// See [`at`].
pub struct Deadline {
    deadline: Instant,
    slot: Option<(Arc<Mutex<List>>, usize)>,
}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some((list, at)) = &self.slot {
            let mut list = list.lock();
            let slot = &mut list.slots[*at];
            if slot.deadline.is_none() {
                return Poll::Ready(());
            }
            slot.waker.clone_from(cx.waker());
            return Poll::Pending;
        }
        let list = LIST.with(Arc::clone);
        let (at, watched) = {
            let mut list = list.lock();
            let at = list.insert(self.deadline, cx.waker().clone());
            (at, std::mem::replace(&mut list.watched, true))
        };
        if !watched {
            tokio::spawn(watch(Watch(Some(Arc::clone(&list)))));
        }
        self.slot = Some((list, at));
        Poll::Pending
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some((list, at)) = self.slot.take() {
            list.lock().remove(at);
        }
    }
}

async fn watch(mut watch: Watch) {
    while let Some(list) = &watch.0 {
        tokio::time::sleep(TICK).await;
        let over = list.lock().tick();
        match over {
            Some(over) => over.into_iter().for_each(Waker::wake),
            None => watch.0 = None,
        }
    }
}

/// `None` once the list was empty. If the runtime ends before, the next deadline finds that nobody looks.
struct Watch(Option<Arc<Mutex<List>>>);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(list) = &self.0 {
            list.lock().watched = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn they_come_after_their_time_and_only_then() {
        let began = Instant::now();
        let (a, b) = (Duration::from_secs(3), Duration::from_millis(45));
        tokio::join!(at(began + a), at(began + b), async {
            at(began + b).await;
            assert!(began.elapsed() >= b && began.elapsed() <= b + TICK * 2, "{:?}", began.elapsed());
        });
        assert!(began.elapsed() >= a && began.elapsed() <= a + TICK * 2, "{:?}", began.elapsed());
        // What is over already.
        at(began).await;
        assert_eq!(within(a, async { 7 }).await, Some(7));
        assert_eq!(within(a, std::future::pending::<()>()).await, None);
        assert_eq!(within(a, tokio::time::sleep(a / 2)).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_behind() {
        let soon = Instant::now() + Duration::from_secs(1);
        let list = LIST.with(Arc::clone);
        for _ in 0..3 {
            let mut all: Vec<_> = (0..5000).map(|_| Box::pin(at(soon))).collect();
            for deadline in &mut all {
                assert!(futures_util::poll!(deadline).is_pending());
            }
            assert!(list.lock().watched);
            drop(all);
            tokio::time::sleep(TICK * 2).await;
            assert!(!list.lock().watched && list.lock().slots.is_empty());
        }
    }

    #[test]
    fn another_runtime_on_the_same_thread_watches_anew() {
        for _ in 0..2 {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            let mut left = Box::pin(at(Instant::now() + Duration::from_secs(9)));
            runtime.block_on(async {
                assert!(futures_util::poll!(&mut left).is_pending());
                at(Instant::now() + Duration::from_secs(1)).await;
            });
            drop(runtime);
            assert!(!LIST.with(Arc::clone).lock().watched);
        }
    }
}
