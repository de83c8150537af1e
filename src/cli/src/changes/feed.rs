//! Reads a stream of server-sent events (HTML standard, "Interpreting an event stream"), bounded.

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub id: Option<u64>,
    pub kind: String,
    pub data: String,
}

/// Bytes of one event.
const MAX_EVENT: usize = 4 << 20;

/// The stream holds an event of absurd size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Takes bytes as they come, gives events.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    event: Event,
    size: usize,
}

impl Parser {
    /// The events that are complete with these bytes.
    ///
    /// # Errors
    /// [`TooLong`]: the stream is of no use any more.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, TooLong> {
        let mut events = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.buffer.push(*byte);
                if self.buffer.len() + self.size > MAX_EVENT {
                    return Err(TooLong);
                }
                continue;
            }
            let line = std::mem::take(&mut self.buffer);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if let Some(event) = self.line(&String::from_utf8_lossy(line)) {
                events.push(event);
            }
        }
        Ok(events)
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            self.size = 0;
            let event = std::mem::take(&mut self.event);
            return (!event.data.is_empty()).then_some(event);
        }
        self.size += line.len();
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => self.event.id = value.parse().ok(),
            "event" => value.clone_into(&mut self.event.kind),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments (an empty field) and fields of the future.
            _ => {}
        }
        None
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
