//! Reads the gateway's event feed. After a lost connection, reading resumes at the last event.

use std::time::Duration;

use futures_util::StreamExt;

use crate::{client::Client, exit::Failure};
use countersign_net::Backoff;
use countersign_protocol::event_stream::{Event, EventReader};

/// The pauses before the feed is opened again.
const RECONNECT_BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(10) };
/// The time after which a silent connection counts as lost. The gateway sends a comment every few seconds.
const MAX_SILENCE: Duration = Duration::from_secs(90);
/// The size limit of one event, in bytes.
const MAX_EVENT_BYTES: usize = 4 << 20;

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
    let (mut was_connected, mut failures) = (false, 0);
    loop {
        match client.feed(last_seq).await {
            Ok(mut stream) => {
                (was_connected, failures) = (true, 0);
                handle(FeedUpdate::Connected, &mut last_seq).await?;
                let mut reader = EventReader::new(MAX_EVENT_BYTES);
                'connection: while let Ok(Some(Ok(bytes))) = tokio::time::timeout(MAX_SILENCE, stream.next()).await {
                    reader.push(&bytes);
                    loop {
                        match reader.next_event() {
                            Ok(Some(event)) if event.data.is_empty() => {}
                            Ok(Some(event)) => handle(FeedUpdate::Event(event), &mut last_seq).await?,
                            Ok(None) => break,
                            // The event is too long, so the rest of the stream is unusable.
                            Err(_) => break 'connection,
                        }
                    }
                }
                handle(FeedUpdate::Lost, &mut last_seq).await?;
            }
            Err(failure) if was_connected && failure.is_temporary => {}
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(RECONNECT_BACKOFF.pause_without_jitter(failures)).await;
        failures += 1;
    }
}
