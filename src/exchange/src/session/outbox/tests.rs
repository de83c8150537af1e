use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::bounds::memory::MemoryBudget;

const LIMITS: OutboxLimits = OutboxLimits { messages: 4, bytes: 100, replay_frames: 2, replay_bytes: 1000 };

fn counting_wake() -> (Wake, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    (
        Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }),
        count,
    )
}

#[test]
fn pump_is_woken_once_until_it_drains() {
    let outbox = Outbox::new(LIMITS);
    let (wake, count) = counting_wake();
    assert!(outbox.attach(0, wake));
    outbox.push(Bytes::from_static(b"a")).unwrap();
    outbox.push(Bytes::from_static(b"b")).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 2);
    assert!(outbox.drain(0, 1000).is_none());
    outbox.push(Bytes::from_static(b"c")).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[test]
fn attached_pump_is_woken_only_if_something_waits() {
    let outbox = Outbox::new(LIMITS);
    let (wake, count) = counting_wake();
    assert!(outbox.attach(0, wake) && outbox.is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 0);
    outbox.detach(0);
    outbox.push(Bytes::from_static(b"a")).unwrap();
    let (wake, count) = counting_wake();
    assert!(outbox.attach(0, wake) && !outbox.is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 1);
    // A pending close wakes the pump, too, even without a frame.
    assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 1);
    outbox.detach(0);
    outbox.close(1000, "done");
    let (wake, count) = counting_wake();
    assert!(outbox.attach(0, wake) && outbox.is_empty());
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[test]
fn overflow_lasts_until_pump_is_reattached() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake.clone()));
    for _ in 0..4 {
        outbox.push(Bytes::from_static(b"x")).unwrap();
    }
    assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(PushError::Overflow));
    outbox.drain(0, 1000);
    assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(PushError::Closed));
    assert!(outbox.attach(0, wake));
    assert_eq!(outbox.push(Bytes::from_static(b"y")), Ok(()));
}

#[test]
fn sent_frames_without_memory_are_dropped_first() {
    let memory = MemoryBudget::new(64 << 10, 1 << 20);
    let limits = OutboxLimits { replay_frames: 100, replay_bytes: 1 << 20, bytes: 1 << 20, ..LIMITS };
    let outbox = Outbox::with_share(limits, memory.take("alice", 0).unwrap());
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake));
    for _ in 0..4 {
        outbox.push(Bytes::from(vec![b'x'; 15 << 10])).unwrap();
        assert_eq!(outbox.drain(0, 1 << 20).unwrap().frames.len(), 1);
    }
    // The exempt bytes hold one frame, and half of the memory holds two more.
    assert_eq!(memory.used_by("alice"), 32 << 10);
    assert_eq!(outbox.rewind(0), Err(ResumeError::TooLate));
    assert_eq!(outbox.rewind(1), Ok(1));
    drop(outbox);
    assert_eq!(memory.used_by("alice"), 0);
}

#[test]
fn single_message_over_byte_limit_is_accepted() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake));
    assert_eq!(outbox.push(Bytes::from(vec![b'x'; 500])), Ok(()));
    assert_eq!(outbox.push(Bytes::from_static(b"y")), Err(PushError::Overflow));
}

#[test]
fn half_full_outbox_drops_only_dispensable_notifications() {
    let outbox = Outbox::new(OutboxLimits { bytes: 10_000, ..LIMITS });
    let notification = |method: &str| encode::notification(method, None);
    let progress = || notification("notifications/progress");
    let dropped = |is_first| Err::<(), _>(PushError::Dispensable { is_first });
    assert_eq!(outbox.push(notification("notifications/tools/list_changed")), Ok(()));
    assert_eq!(outbox.push(progress()), Ok(()));
    assert_eq!(outbox.push(progress()), dropped(true));
    assert_eq!(outbox.push(notification("notifications/message")), dropped(false));
    assert_eq!(outbox.push(notification("notifications/tools/list_changed")), dropped(false), "the first one waits");
    assert_eq!(outbox.push(notification("notifications/prompts/list_changed")), Ok(()));
    assert_eq!(outbox.push(Bytes::from_static(b"answer")), Ok(()));
    assert_eq!(outbox.push(progress()), dropped(false));
    assert_eq!(outbox.len(), 4);
    assert!(outbox.drain(0, 10_000).is_some());
    assert_eq!(outbox.push(progress()), Ok(()), "there is room again");
    assert_eq!(outbox.push(notification("notifications/tools/list_changed")), Ok(()));
    assert_eq!(outbox.push(notification("notifications/tasks/status")), Ok(()));
    assert_eq!(outbox.push(notification("notifications/tasks/status")), Ok(()), "states are not dropped");
    assert_eq!(outbox.push(Bytes::from_static(b"answer")), Err(PushError::Overflow));
}

#[test]
fn rewind_succeeds_only_within_kept_frames() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake.clone()));
    for frame in ["1", "2", "3", "4"] {
        outbox.push(Bytes::from(frame)).unwrap();
    }
    assert_eq!(outbox.drain(0, 1000).unwrap().frames.len(), 4);
    outbox.detach(0);
    assert_eq!(outbox.rewind(1), Err(ResumeError::TooLate));
    assert_eq!(outbox.rewind(5), Err(ResumeError::Ahead));
    let generation = outbox.rewind(3).unwrap();
    assert!(outbox.attach(generation, wake));
    assert_eq!(outbox.drain(generation, 1000).unwrap().frames, vec![Bytes::from("4")]);
}

#[test]
fn end_of_old_connection_leaves_frames_of_resumed_one() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake.clone()));
    let frames = ["1", "2", "3", "4"].map(Bytes::from);
    frames.iter().for_each(|frame| outbox.push(frame.clone()).unwrap());
    let generation = outbox.rewind(0).unwrap();
    outbox.detach(0);
    assert!(outbox.attach(generation, wake));
    assert_eq!(outbox.drain(generation, 1000).unwrap().frames, frames);
}

#[test]
fn rewind_to_unsent_dropped_frame_is_too_late() {
    let outbox = Outbox::new(LIMITS);
    outbox.detach(0);
    for frame in ["1", "2", "3"] {
        outbox.push(Bytes::from(frame)).unwrap();
    }
    assert_eq!(outbox.rewind(0), Err(ResumeError::TooLate));
    let generation = outbox.rewind(1).unwrap();
    assert_eq!(outbox.drain(generation, 1000).unwrap().frames, vec![Bytes::from("2"), Bytes::from("3")]);
}

#[test]
fn old_connection_gets_nothing_after_rewind() {
    let outbox = Outbox::new(OutboxLimits { replay_frames: 10, ..LIMITS });
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake.clone()));
    outbox.push(Bytes::from_static(b"1")).unwrap();
    outbox.drain(0, 1000).unwrap();
    let generation = outbox.rewind(1).unwrap();
    // The frame is pushed between the rewind and the attachment of the new pump.
    outbox.push(Bytes::from_static(b"2")).unwrap();
    assert_eq!(outbox.drain(0, 1000), None);
    assert!(!outbox.attach(0, wake.clone()));
    assert!(outbox.attach(generation, wake));
    assert_eq!(outbox.drain(generation, 1000).unwrap().frames, vec![Bytes::from_static(b"2")]);
}

#[test]
fn replay_limit_does_not_apply_to_waiting_frames_after_rewind() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake.clone()));
    for frame in ["1", "2", "3"] {
        outbox.push(Bytes::from(frame)).unwrap();
    }
    let generation = outbox.rewind(0).unwrap();
    outbox.push(Bytes::from_static(b"4")).unwrap();
    assert!(outbox.attach(generation, wake));
    assert_eq!(outbox.drain(generation, 1000).unwrap().frames.len(), 4);
}

#[test]
fn connection_closes_after_last_frame() {
    let outbox = Outbox::new(LIMITS);
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake));
    outbox.push(Bytes::from(vec![b'x'; 50])).unwrap();
    outbox.push(Bytes::from(vec![b'y'; 50])).unwrap();
    outbox.close(1001, "bye");
    assert_eq!(outbox.drain(0, 60).unwrap().close, None);
    assert_eq!(outbox.drain(0, 60).unwrap().close, Some((1001, "bye")));
}

#[test]
fn abandoned_outbox_drops_waiting_frames_and_closes() {
    let outbox = Outbox::new(LIMITS);
    let (wake, count) = counting_wake();
    assert!(outbox.attach(0, wake));
    outbox.push(Bytes::from_static(b"sent")).unwrap();
    outbox.drain(0, 60).unwrap();
    outbox.push(Bytes::from_static(b"waits")).unwrap();
    assert_eq!((outbox.len(), outbox.bytes()), (1, 5));
    outbox.abandon(1013, "too slow");
    assert_eq!((outbox.len(), outbox.bytes(), count.load(Ordering::Relaxed)), (0, 0, 2));
    assert_eq!(outbox.push(Bytes::from_static(b"late")), Err(PushError::Closed));
    let last = outbox.drain(0, 60).unwrap();
    assert_eq!((last.frames, last.close), (vec![], Some((1013, "too slow"))));
    // Frames that were sent before can still be replayed.
    assert_eq!(outbox.rewind(0), Ok(1));
}

#[test]
fn detached_outbox_keeps_at_most_what_may_be_replayed() {
    let memory = MemoryBudget::new(1 << 20, 1 << 20);
    let limits = OutboxLimits { messages: 1000, bytes: 1 << 20, replay_frames: 100, replay_bytes: 30_000 };
    let outbox = Outbox::with_share(limits, memory.share("alice"));
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake));
    let push = || outbox.push(Bytes::from(vec![b'x'; 10_000]));
    (0..50).for_each(|_| push().unwrap());
    assert_eq!(outbox.drain(0, 20_000).unwrap().frames.len(), 2);
    assert!(memory.used_by("alice") > 400_000);
    outbox.detach(0);
    assert_eq!(outbox.bytes(), 30_000);
    assert!(memory.used_by("alice") <= 32 << 10, "{}", memory.used_by("alice"));
    push().unwrap();
    assert_eq!(outbox.bytes(), 30_000);
    assert_eq!(outbox.rewind(47), Err(ResumeError::TooLate));
    let generation = outbox.rewind(48).unwrap();
    assert_eq!(outbox.drain(generation, 1 << 20).unwrap().frames.len(), 3);
}

#[test]
fn outboxes_that_nobody_reads_stay_within_the_total() {
    let memory = MemoryBudget::new(256 << 10, 512 << 10);
    let limits = OutboxLimits { messages: 1000, bytes: 1 << 20, replay_frames: 100, replay_bytes: 1 << 20 };
    let (wake, _) = counting_wake();
    let outboxes: Vec<_> = (0..20)
        .map(|n| {
            let outbox = Outbox::with_share(limits, memory.share(if n % 2 == 0 { "alice" } else { "bob" }));
            let end = CancellationToken::new();
            outbox.set_end_token(end.clone());
            assert!(outbox.attach(0, wake.clone()));
            (outbox, end)
        })
        .collect();
    for _ in 0..50 {
        for (outbox, _) in &outboxes {
            let _ = outbox.push(Bytes::from(vec![b'x'; 10_000]));
            assert!(memory.used_total() <= 512 << 10);
        }
    }
    let ended = |(outbox, end): &&(Outbox, CancellationToken)| outbox.has_overflowed() || end.is_cancelled();
    assert!(outboxes.iter().filter(ended).count() >= 10);
    assert!(outboxes.iter().filter(ended).all(|(outbox, _)| outbox.is_empty()), "waiting frames are dropped at once");
    drop(outboxes);
    assert_eq!(memory.used_total(), 0);
}

#[test]
fn drained_bytes_count_until_connection_confirms_them() {
    let memory = MemoryBudget::new(1 << 20, 1 << 20);
    let limits = OutboxLimits { replay_frames: 0, replay_bytes: 0, bytes: 1 << 20, ..LIMITS };
    let outbox = Outbox::with_share(limits, memory.share("alice"));
    let (wake, _) = counting_wake();
    assert!(outbox.attach(0, wake));
    outbox.push(Bytes::from(vec![b'x'; 200_000])).unwrap();
    assert!(outbox.drain(0, 1).is_some() && outbox.is_empty());
    assert!(memory.used_by("alice") >= 200_000 - EXEMPT_MESSAGE_BYTES);
    outbox.confirm_taken(0);
    assert!(memory.used_by("alice") <= 16 << 10);
}
