//! Reads the gateway's event feed. After a lost connection, reading resumes at the last event.

use std::time::Duration;

use futures_util::StreamExt;

use crate::{client::Client, exit::Failure};
use countersign_net::Backoff;
use countersign_protocol::event_stream::{EventReader, EventTooLongError};

/// The pauses before the feed is opened again.
const RECONNECT_BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };
/// The time after which a silent connection counts as lost. The gateway sends a comment every few seconds.
const MAX_SILENCE: Duration = Duration::from_secs(90);

/// A change of the connection, or an event of the feed.
pub enum FeedUpdate {
    Connected,
    Event(Event),
    Lost,
}

/// Follows the feed from the event after `last_seq`. The handler updates that position, from which the feed resumes.
///
/// # Errors
/// Fails if the handler does, or if the gateway refuses the feed. A temporary failure after the first connection may
/// be a restart of the gateway, so it is retried.
pub async fn follow(
    client: &Client,
    mut last_seq: Option<u64>,
    mut handle: impl AsyncFnMut(FeedUpdate, &mut Option<u64>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (mut connected, mut failures) = (false, 0);
    loop {
        match client.feed(last_seq).await {
            Ok(mut stream) => {
                (connected, failures) = (true, 0);
                handle(FeedUpdate::Connected, &mut last_seq).await?;
                let mut reader = EventReader::new(MAX_EVENT_BYTES);
                while let Ok(Some(Ok(bytes))) = tokio::time::timeout(MAX_SILENCE, stream.next()).await {
                    let Ok(events) = read_events(&mut reader, &bytes) else { break };
                    for event in events {
                        handle(FeedUpdate::Event(event), &mut last_seq).await?;
                    }
                }
                handle(FeedUpdate::Lost, &mut last_seq).await?;
            }
            Err(refusal) if connected && refusal.is_temporary() => {}
            Err(refusal) => return Err(refusal.into()),
        }
        tokio::time::sleep(RECONNECT_BACKOFF.pause_without_jitter(failures)).await;
        failures += 1;
    }
}

/// An event of the feed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub kind: String,
    pub data: String,
}

/// The size limit of one event, in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Returns the events that these bytes complete.
///
/// # Errors
/// Fails with [`EventTooLongError`] if an event is too long; the stream is then unusable.
fn read_events(reader: &mut EventReader, bytes: &[u8]) -> Result<Vec<Event>, EventTooLongError> {
    reader.push(bytes);
    let mut events = Vec::new();
    while let Some(event) = reader.next_event()? {
        if event.data.is_empty() {
            continue;
        }
        events.push(Event { kind: event.name, data: String::from_utf8_lossy(&event.data).into_owned() });
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\nevent: hello\ndata: {\"seq\":7}\n\nid: 8\nevent: change.created\r\ndata:{\"a\":\r\ndata: 1}\r\n\r\n: keep-alive\n\nid: 9\n\nretry: 5\ndata\n\n";

    #[test]
    fn events_do_not_depend_on_how_bytes_are_split() {
        let expected = vec![
            Event { kind: "hello".into(), data: "{\"seq\":7}".into() },
            Event { kind: "change.created".into(), data: "{\"a\":\n1}".into() },
        ];
        assert_eq!(read_events(&mut EventReader::new(MAX_EVENT_BYTES), STREAM.as_bytes()).unwrap(), expected);
        for size in 1..20 {
            let mut reader = EventReader::new(MAX_EVENT_BYTES);
            let events: Vec<Event> =
                STREAM.as_bytes().chunks(size).flat_map(|chunk| read_events(&mut reader, chunk).unwrap()).collect();
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut reader = EventReader::new(MAX_EVENT_BYTES);
        assert_eq!(read_events(&mut reader, &vec![b'x'; MAX_EVENT_BYTES + 1]), Err(EventTooLongError));
        let mut reader = EventReader::new(MAX_EVENT_BYTES);
        let line = [&b"data: "[..], &vec![b'x'; 1 << 20], b"\n"].concat();
        assert!((0..8).any(|_| read_events(&mut reader, &line).is_err()));
    }
}
