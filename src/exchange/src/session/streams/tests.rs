//! Tests of the numbered event streams.

use super::*;
use crate::bounds::memory::MemoryBudget;
use countersign_protocol::encode;

const LIMITS: OutboxLimits = OutboxLimits { messages: 10, bytes: 100, replay_frames: 10, replay_bytes: 100 };

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn message_after_the_answer_goes_to_stream_of_get() {
    let streams = Streams::new(10, 1000);
    let (answered, forgotten) = (streams.open(), streams.open());
    streams.push_last(answered, Some(bytes("answer")));
    streams.forget(forgotten);
    let reader = streams.attach(GET_STREAM).unwrap().number;
    for (stream, message) in [(answered, "late"), (forgotten, "later")] {
        streams.push(stream, bytes(message)).unwrap();
    }
    let late = vec![(1, bytes("late")), (2, bytes("later"))];
    assert_eq!(streams.read(GET_STREAM, reader, 0), ReadOutcome::Events(late));
    assert_eq!(streams.newest_event(answered), Some(1));
}

#[test]
fn event_id_round_trips_and_garbage_is_refused() {
    let id = EventId { stream: 3, event: 17 };
    assert_eq!(EventId::parse(&id.to_string()), Some(id));
    for bad in ["", "3", "-", "a-1", "1-b", "1-2-3", "99999999999-1"] {
        assert_eq!(EventId::parse(bad), None, "{bad}");
    }
}

#[test]
fn resumed_reader_gets_only_later_events() {
    let streams = Streams::new(10, 1000);
    let n = streams.open();
    streams.push(n, bytes("one")).unwrap();
    streams.push(n, bytes("two")).unwrap();
    streams.finish(n);
    let reader = streams.attach(n).unwrap().number;
    assert_eq!(streams.read(n, reader, 1), ReadOutcome::Events(vec![(2, bytes("two"))]));
    assert_eq!(streams.read(n, reader, 2), ReadOutcome::End);
}

#[test]
fn stream_is_untouched_until_first_event_or_end() {
    let streams = Streams::new(10, 1000);
    let (first, second) = (streams.open(), streams.open());
    assert!(streams.is_untouched(first) && streams.is_untouched(second));
    streams.push(first, bytes("one")).unwrap();
    streams.finish(second);
    assert!(!streams.is_untouched(first) && !streams.is_untouched(second));
    assert!(!streams.is_untouched(second + 1), "the stream does not exist");
}

#[test]
fn second_reader_supersedes_first() {
    let streams = Streams::new(10, 1000);
    let first = streams.attach(GET_STREAM).unwrap().number;
    let second = streams.attach(GET_STREAM).unwrap().number;
    assert_eq!(streams.read(GET_STREAM, first, 0), ReadOutcome::Superseded);
    assert_eq!(streams.read(GET_STREAM, second, 0), ReadOutcome::Wait);
}

#[test]
fn finished_streams_are_dropped_first_at_limit() {
    let streams = Streams::new(3, 1000);
    let finished_stream = streams.open();
    streams.push(finished_stream, bytes("old")).unwrap();
    streams.finish(finished_stream);
    streams.detach(finished_stream);
    for _ in 0..5 {
        streams.push(GET_STREAM, bytes("x")).unwrap();
    }
    assert!(streams.attach(finished_stream).is_none());
    let StreamReader { number: reader, newest_event, .. } = streams.attach(GET_STREAM).unwrap();
    assert_eq!(newest_event, 5);
    assert_eq!(
        streams.read(GET_STREAM, reader, 0),
        ReadOutcome::Events(vec![(3, bytes("x")), (4, bytes("x")), (5, bytes("x"))])
    );
}

#[test]
fn undelivered_answer_is_not_dropped_for_another() {
    let streams = Streams::new(10, 100);
    let (first, second) = (streams.open(), streams.open());
    let hold = streams.hold(first).unwrap();
    streams.push_last(first, Some(Bytes::from(vec![b'a'; 90])));
    streams.push_last(second, Some(Bytes::from(vec![b'b'; 90])));
    streams.push(GET_STREAM, bytes("x")).unwrap();
    let StreamReader { number: reader, changed: _changed, .. } = streams.attach(first).unwrap();
    drop(hold);
    assert!(matches!(streams.read(first, reader, 0), ReadOutcome::Events(events) if events[0].1.len() == 90));
    // An answer that was read may be dropped.
    streams.push(GET_STREAM, Bytes::from(vec![b'c'; 90])).unwrap();
    assert!(streams.attach(first).is_none());
}

#[test]
fn single_answer_counts_as_memory_until_another_event() {
    let memory = MemoryBudget::new(1 << 20, 1 << 20);
    let streams = Streams::with_share(LIMITS, memory.share("ann"));
    let n = streams.open();
    let StreamReader { number: reader, changed: _changed, .. } = streams.attach(n).unwrap();
    streams.push_last(n, Some(Bytes::from(vec![b'a'; 40 << 10])));
    assert!(memory.used_by("ann") > 0);
    assert!(matches!(streams.read(n, reader, 0), ReadOutcome::Events(events) if events[0].1.len() == 40 << 10));
    assert_eq!(streams.read(n, reader, 1), ReadOutcome::End);
    // The client may not have received it, although its connection has taken it.
    assert!(streams.attach(n).is_some());
    streams.push(GET_STREAM, bytes("x")).unwrap();
    assert!(streams.attach(n).is_none(), "it exceeds the limit");
    assert!(memory.used_by("ann") <= 16 << 10);
}

#[test]
fn single_answer_without_room_or_reader_is_dropped() {
    let memory = MemoryBudget::new(2, 2);
    let streams = Streams::with_share(LIMITS, memory.share("ann"));
    let (awaited, abandoned) = (streams.open(), streams.open());
    let hold = streams.hold(awaited);
    streams.detach(abandoned);
    streams.push_last(awaited, Some(bytes("a")));
    assert!(streams.attach(awaited).is_some());
    drop(hold);
    streams.push_last(abandoned, Some(bytes("b")));
    assert!(streams.attach(awaited).is_none() && streams.attach(abandoned).is_none());
}

#[test]
fn sole_answer_exists_only_for_finished_stream_with_one_event() {
    let streams = Streams::new(10, 1000);
    let n = streams.open();
    streams.push(n, bytes("answer")).unwrap();
    assert_eq!(streams.sole_answer(n), None);
    streams.finish(n);
    assert_eq!(streams.sole_answer(n), Some(bytes("answer")));
    streams.forget(n);
    assert!(streams.attach(n).is_none());
}

fn number_of_events(outcome: ReadOutcome) -> usize {
    match outcome {
        ReadOutcome::Events(events) => events.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn read_stream_has_limits_of_messages_and_drops_progress_first() {
    let streams = Streams::with_limits(OutboxLimits { messages: 8, bytes: 10_000, replay_frames: 2, ..LIMITS });
    let n = streams.open();
    let StreamReader { number: reader, changed: _changed, .. } = streams.attach(n).unwrap();
    let progress = || encode::notification("notifications/progress", None);
    assert_eq!((0..20).filter(|_| streams.push(n, progress()).is_ok()).count(), 4);
    assert_eq!(streams.push(n, progress()), Err(PushError::Dispensable { is_first: false }));
    for _ in 0..4 {
        streams.push(n, bytes("question")).unwrap();
    }
    assert_eq!(number_of_events(streams.read(n, reader, 0)), 8);
    assert_eq!(number_of_events(streams.read(n, reader, 0)), 2, "only these are kept for a client that reconnects");
    for _ in 0..8 {
        streams.push(n, bytes("question")).unwrap();
    }
    assert_eq!(streams.push(n, bytes("question")), Err(PushError::Overflow));
    assert_eq!(streams.push(n, bytes("question")), Err(PushError::Closed));
    assert_eq!(streams.read(n, reader, 0), ReadOutcome::End);
}

#[test]
fn stream_keeps_messages_for_its_first_reader() {
    let streams = Streams::with_limits(OutboxLimits { replay_frames: 2, ..LIMITS });
    let (awaited, detached) = (streams.open(), streams.open());
    streams.detach(detached);
    for _ in 0..4 {
        streams.push(awaited, bytes("x")).unwrap();
        streams.push(detached, bytes("x")).unwrap();
    }
    for (stream, count) in [(detached, 2), (awaited, 4)] {
        let reader = streams.attach(stream).unwrap().number;
        assert_eq!(number_of_events(streams.read(stream, reader, 0)), count);
    }
}

#[test]
fn unread_events_without_memory_end_their_streams() {
    let memory = MemoryBudget::new(64 << 10, 64 << 10);
    let streams = Streams::with_share(OutboxLimits { bytes: 1 << 20, ..LIMITS }, memory.share("ann"));
    let _reader = streams.attach(GET_STREAM).unwrap();
    let message = || Bytes::from(vec![b'x'; 40 << 10]);
    streams.push(GET_STREAM, message()).unwrap();
    streams.push(GET_STREAM, message()).unwrap();
    assert_eq!(memory.used_by("ann"), 64 << 10);
    assert_eq!(streams.push(GET_STREAM, message()), Err(PushError::Overflow));
    assert_eq!(memory.used_by("ann"), 0);
}

#[test]
fn unread_streams_are_closed_for_another_principal() {
    let memory = MemoryBudget::new(64 << 10, 64 << 10);
    let streams = Streams::with_share(OutboxLimits { bytes: 1 << 20, ..LIMITS }, memory.share("ann"));
    let end = CancellationToken::new();
    streams.set_end_token(end.clone());
    let _reader = streams.attach(GET_STREAM).unwrap();
    streams.push(GET_STREAM, Bytes::from(vec![b'x'; 70 << 10])).unwrap();
    let later = eviction::monotonic_ms() + 1;
    let (holder, mut other) = (Streams::new(1, 1), memory.share("bob"));
    assert!(other.cover_messages(64 << 10, later, || Arc::downgrade(&holder.state) as WeakHolder));
    assert!(end.is_cancelled() && streams.attach(GET_STREAM).is_none());
}
