//! The gateway's feed as the terminal reads it.

use countersign_protocol::event_stream::{Events, TooLong};

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// That of the last event that had one.
    pub id: Option<u64>,
    pub kind: String,
    pub data: String,
}

/// Bytes of one event.
const MAX_EVENT: usize = 4 << 20;

/// Takes bytes as they come, gives events.
pub struct Parser(Events);

impl Default for Parser {
    fn default() -> Self {
        Self(Events::new(MAX_EVENT))
    }
}

impl Parser {
    /// The events that are complete with these bytes.
    ///
    /// # Errors
    /// [`TooLong`]: the stream is of no use any more.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        self.0.push(bytes);
        let mut events = Vec::new();
        while let Some(event) = self.0.take()? {
            if event.data.is_empty() {
                continue;
            }
            let id = self.0.last_id().and_then(|id| id.parse().ok());
            events.push(Event { id, kind: event.name, data: String::from_utf8_lossy(&event.data).into_owned() });
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": hello\n\nevent: hello\ndata: {\"seq\":7}\n\nid: 8\nevent: change.created\r\ndata:{\"a\":\r\ndata: 1}\r\n\r\n: keep-alive\n\nid: 9\n\nretry: 5\ndata\n\n";

    #[test]
    fn events_come_out_however_the_bytes_are_cut() {
        let expected = vec![
            Event { id: None, kind: "hello".into(), data: "{\"seq\":7}".into() },
            Event { id: Some(8), kind: "change.created".into(), data: "{\"a\":\n1}".into() },
        ];
        assert_eq!(Parser::default().feed(STREAM.as_bytes()).unwrap(), expected);
        for size in 1..20 {
            let mut parser = Parser::default();
            let events: Vec<Event> =
                STREAM.as_bytes().chunks(size).flat_map(|chunk| parser.feed(chunk).unwrap()).collect();
            assert_eq!(events, expected, "{size}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed(&vec![b'x'; MAX_EVENT + 1]), Err(TooLong));
        let mut parser = Parser::default();
        let line = [&b"data: "[..], &vec![b'x'; 1 << 20], b"\n"].concat();
        assert!((0..8).any(|_| parser.feed(&line).is_err()));
    }
}
