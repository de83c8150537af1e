//! Parses `text/event-stream` (<https://html.spec.whatwg.org/multipage/server-sent-events.html>) from chunks of any
//! size.
//!
//! Available crates buffer an unfinished line or event without a limit. This parser bounds an event, so that a hostile
//! server cannot fill the memory.

use bytes::{Buf, BytesMut};

/// A complete event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name of the event. An empty name means `message`.
    pub name: String,
    pub data: Vec<u8>,
}

impl Event {
    /// Returns `true` if the event carries a protocol message. Priming and keep-alive events are empty, and other names
    /// are ignored.
    pub fn is_message(&self) -> bool {
        matches!(&*self.name, "" | "message") && !self.data.is_empty()
    }
}

/// The error for an event that exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventTooLongError;

/// A parser of an event stream, which holds the unfinished part of its input.
#[derive(Default)]
pub struct EventReader {
    /// Maximum bytes of one event, including its unfinished line.
    max_bytes: usize,
    input: BytesMut,
    /// Length of the prefix of `input` that has no line end.
    searched_len: usize,
    /// `true` if the last line ended with a carriage return, so that a following line feed belongs to its end.
    after_carriage_return: bool,
    /// `true` once the optional byte order mark was skipped or found absent.
    is_byte_order_mark_checked: bool,
    /// The fields of the unfinished event.
    name: String,
    data: Vec<u8>,
    has_data: bool,
    /// The last id that was read. It counts once its event is complete.
    id: Option<String>,
    last_id: Option<String>,
    retry_millis: Option<u64>,
}

impl EventReader {
    /// Creates a parser that accepts at most `max_bytes` bytes for one event, including its unfinished line.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Prepares for a new connection. Drops the unfinished event, but keeps the last id and the retry time.
    pub fn reset_for_reconnect(&mut self) {
        let (last_id, retry) = (self.last_id.take(), self.retry_millis);
        *self = Self { id: last_id.clone(), last_id, retry_millis: retry, ..Self::new(self.max_bytes) };
    }

    /// Forgets the last id, but keeps the retry time.
    pub fn forget_last_id(&mut self) {
        (self.id, self.last_id) = (None, None);
    }

    /// Returns the id of the last complete event, for the header `Last-Event-ID`.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref().filter(|id| !id.is_empty())
    }

    /// Returns the milliseconds to wait before reconnecting, if the server set them.
    pub fn retry_millis(&self) -> Option<u64> {
        self.retry_millis
    }

    /// Adds a chunk of the stream.
    pub fn push(&mut self, chunk: &[u8]) {
        self.input.extend_from_slice(chunk);
    }

    /// Returns `true` if bytes were pushed that were not parsed yet.
    pub fn has_unparsed_bytes(&self) -> bool {
        !self.input.is_empty()
    }

    /// Returns the next complete event, or `None` if more input is needed.
    ///
    /// # Errors
    /// [`EventTooLongError`]. The parser must not be used after this error.
    pub fn next_event(&mut self) -> Result<Option<Event>, EventTooLongError> {
        if !self.is_byte_order_mark_checked && !self.skip_byte_order_mark() {
            return Ok(None);
        }
        loop {
            if self.after_carriage_return && !self.input.is_empty() {
                self.after_carriage_return = false;
                if self.input[0] == b'\n' {
                    self.input.advance(1);
                }
            }
            let Some(found) = memchr::memchr2(b'\n', b'\r', &self.input[self.searched_len..]) else {
                self.searched_len = self.input.len();
                return if self.input.len() + self.data.len() > self.max_bytes {
                    Err(EventTooLongError)
                } else {
                    Ok(None)
                };
            };
            let end = self.searched_len + found;
            self.searched_len = 0;
            if end + self.data.len() > self.max_bytes {
                return Err(EventTooLongError);
            }
            let line = self.input.split_to(end);
            self.after_carriage_return = self.input[0] == b'\r';
            self.input.advance(1);
            if line.is_empty() {
                if let Some(event) = self.finish_event() {
                    return Ok(Some(event));
                }
            } else {
                self.process_field(&line);
            }
        }
    }

    /// Skips a byte order mark, and returns `false` if more input is needed to recognize it.
    fn skip_byte_order_mark(&mut self) -> bool {
        const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
        if self.input.len() < BYTE_ORDER_MARK.len() && BYTE_ORDER_MARK.starts_with(&self.input) {
            return false;
        }
        if self.input.starts_with(BYTE_ORDER_MARK) {
            self.input.advance(BYTE_ORDER_MARK.len());
        }
        self.is_byte_order_mark_checked = true;
        true
    }

    fn process_field(&mut self, line: &[u8]) {
        let (name, value) = match memchr::memchr(b':', line) {
            Some(0) => return,
            Some(colon) => (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..])),
            None => (line, &b""[..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => self.id = std::str::from_utf8(value).ok().map(ToOwned::to_owned),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry_millis =
                    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).or(self.retry_millis);
            }
            _ => {}
        }
    }

    /// Ends the current event. Returns `None` if it has no data.
    fn finish_event(&mut self) -> Option<Event> {
        self.last_id.clone_from(&self.id);
        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        std::mem::take(&mut self.has_data).then_some(Event { name, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&str]) -> (Vec<(String, String)>, EventReader) {
        let mut reader = EventReader::new(1000);
        let mut found = Vec::new();
        for chunk in chunks {
            reader.push(chunk.as_bytes());
            while let Some(event) = reader.next_event().unwrap() {
                found.push((event.name, String::from_utf8(event.data).unwrap()));
            }
        }
        (found, reader)
    }

    fn pairs(found: &[(String, String)]) -> Vec<(&str, &str)> {
        found.iter().map(|(name, data)| (name.as_str(), data.as_str())).collect()
    }

    #[test]
    fn all_line_ending_styles_are_accepted() {
        for end in ["\n", "\r", "\r\n"] {
            let text = format!("event: endpoint{end}data: /a{end}{end}data:b{end}data{end}data:  c{end}{end}");
            assert_eq!(pairs(&events(&[&text]).0), [("endpoint", "/a"), ("", "b\n\n c")], "{end:?}");
        }
    }

    #[test]
    fn events_are_read_across_chunk_borders() {
        let text =
            "\u{feff}: hello\r\nid: 7\r\nretry: 250\r\ndata: {\"a\":\"ä\"}\r\n\r\nevent: x\rdata: 1\r\rdata: 2\n\n";
        let whole = events(&[text]).0;
        assert_eq!(pairs(&whole), [("", r#"{"a":"ä"}"#), ("x", "1"), ("", "2")]);
        for cut in 0..text.len() {
            let mut reader = EventReader::new(1000);
            let mut found = Vec::new();
            for part in [&text.as_bytes()[..cut], &text.as_bytes()[cut..]] {
                reader.push(part);
                while let Some(event) = reader.next_event().unwrap() {
                    found.push((event.name, String::from_utf8(event.data).unwrap()));
                }
            }
            assert_eq!(found, whole, "cut at {cut}");
        }
        let mut reader = EventReader::new(1000);
        let mut count = 0;
        for byte in text.as_bytes() {
            reader.push(&[*byte]);
            while reader.next_event().unwrap().is_some() {
                count += 1;
            }
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn ids_and_retry_times_survive_reconnects() {
        let (found, mut reader) = events(&["id: e1\nretry: 500\ndata: \n\n", "retry: x\nid: e2\n\nid: half"]);
        assert_eq!(pairs(&found), [("", "")]);
        assert!(!Event { name: String::new(), data: Vec::new() }.is_message());
        assert_eq!((reader.last_id(), reader.retry_millis()), (Some("e2"), Some(500)));
        reader.reset_for_reconnect();
        reader.push(b"data: x\n\n");
        assert_eq!(reader.next_event().unwrap().unwrap().data, b"x");
        assert_eq!((reader.last_id(), reader.retry_millis()), (Some("e2"), Some(500)));
        reader.push(b"id: a\0b\nretry:\nretry: 99999999999999999999999\ndata\n\nid\n\n");
        while reader.next_event().unwrap().is_some() {}
        assert_eq!((reader.last_id(), reader.retry_millis()), (None, Some(500)));
        reader.push(b"id: e3\n\n");
        assert_eq!((reader.next_event(), reader.last_id()), (Ok(None), Some("e3")));
        reader.forget_last_id();
        reader.push(b"data: y\n\n");
        assert_eq!(reader.next_event().unwrap().unwrap().data, b"y");
        assert_eq!((reader.last_id(), reader.retry_millis()), (None, Some(500)));
    }

    #[test]
    fn unknown_fields_and_comments_are_ignored() {
        assert!(events(&[": keep-alive\n\nnonsense\nfoo: bar\n\n:\n\n"]).0.is_empty());
    }

    #[test]
    fn unterminated_event_is_refused() {
        for text in ["data: ", "data: x\ndata: ", "", ":"] {
            let mut reader = EventReader::new(1000);
            reader.push(text.as_bytes());
            let mut refused = false;
            for _ in 0..200 {
                reader.push(b"0123456789");
                refused |= reader.next_event().is_err();
            }
            assert!(refused, "{text}");
        }
        let mut reader = EventReader::new(1000);
        reader.push(format!("data: {}\n\n", "x".repeat(2000)).as_bytes());
        assert_eq!(reader.next_event(), Err(EventTooLongError));
        let mut reader = EventReader::new(1000);
        reader.push("data: x\n".repeat(2000).as_bytes());
        assert_eq!(reader.next_event(), Err(EventTooLongError));
    }

    proptest::proptest! {
        #[test]
        fn events_do_not_depend_on_chunking(bytes: Vec<u8>, cut: usize) {
            let read = |parts: &[&[u8]]| {
                let mut reader = EventReader::new(1 << 20);
                let mut found = Vec::new();
                for part in parts {
                    reader.push(part);
                    while let Ok(Some(event)) = reader.next_event() {
                        found.push(event);
                    }
                }
                found
            };
            let cut = cut % (bytes.len() + 1);
            proptest::prop_assert_eq!(read(&[&bytes]), read(&[&bytes[..cut], &bytes[cut..]]));
        }
    }
}
