//! Lines of a byte stream, with a bound on their length.

use bytes::{Buf, BytesMut};

/// How much is read at once.
const CHUNK: usize = 64 << 10;
/// A buffer that one long line has made larger than this is given back.
const KEPT: usize = 256 << 10;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Whole(BytesMut),
    /// The first bytes of a line that is longer than allowed; the rest of it is skipped.
    Cut(BytesMut),
}

/// Cuts what is read into lines (`\n` or `\r\n`).
pub(super) struct Frames {
    buffer: BytesMut,
    /// So much of the buffer has no line end.
    scanned: usize,
    max: usize,
    /// Within a line that was too long.
    skipping: bool,
}

impl Frames {
    /// `max`: bytes of a line, its end not counted.
    pub(super) fn new(max: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, max, skipping: false }
    }

    /// Where to read to; never without room.
    pub(super) fn room(&mut self) -> &mut BytesMut {
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
            self.buffer = BytesMut::new();
        }
        self.buffer.reserve(CHUNK);
        &mut self.buffer
    }

    /// The next line of what was read.
    pub(super) fn next(&mut self) -> Option<Line> {
        loop {
            let end = memchr::memchr(b'\n', &self.buffer[self.scanned..]).map(|at| at + self.scanned);
            if self.skipping {
                match end {
                    Some(end) => {
                        self.buffer.advance(end + 1);
                        self.scanned = 0;
                        self.skipping = false;
                        continue;
                    }
                    None => {
                        self.buffer.clear();
                        self.scanned = 0;
                        return None;
                    }
                }
            }
            return match end {
                Some(end) if end <= self.max => {
                    let mut line = self.buffer.split_to(end);
                    self.buffer.advance(1);
                    self.scanned = 0;
                    if line.last() == Some(&b'\r') {
                        line.truncate(line.len() - 1);
                    }
                    Some(Line::Whole(line))
                }
                None if self.buffer.len() <= self.max => {
                    self.scanned = self.buffer.len();
                    None
                }
                _ => {
                    let head = self.buffer.split_to(self.max);
                    self.scanned = 0;
                    self.skipping = true;
                    Some(Line::Cut(head))
                }
            };
        }
    }

    /// What stands after the last line end, when nothing more comes.
    pub(super) fn rest(self) -> Option<BytesMut> {
        (!self.skipping && !self.buffer.is_empty()).then_some(self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All lines, however the bytes are cut into reads.
    fn lines(max: usize, text: &[u8], step: usize) -> (Vec<String>, Option<String>) {
        let mut frames = Frames::new(max);
        let mut out = Vec::new();
        for chunk in text.chunks(step) {
            frames.room().extend_from_slice(chunk);
            while let Some(line) = frames.next() {
                out.push(match line {
                    Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                    Line::Cut(head) => format!("{}…", String::from_utf8(head.to_vec()).unwrap()),
                });
            }
        }
        (out, frames.rest().map(|rest| String::from_utf8(rest.to_vec()).unwrap()))
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let text = b"a\n\nbcd\r\n12345\n123456\n12345678901234567890\nx\r\nhalf";
        for step in 1..text.len() + 1 {
            let (lines, rest) = lines(5, text, step);
            assert_eq!(lines, ["a", "", "bcd", "12345", "12345…", "12345…", "x"], "{step}");
            assert_eq!(rest.as_deref(), Some("half"), "{step}");
        }
        assert_eq!(lines(5, b"123456789", 3), (vec!["12345…".to_owned()], None));
    }

    #[test]
    fn a_large_buffer_is_given_back() {
        let mut frames = Frames::new(4 << 20);
        frames.room().extend_from_slice(&vec![b'x'; 2 << 20]);
        frames.room().extend_from_slice(b"\n");
        assert!(matches!(frames.next(), Some(Line::Whole(line)) if line.len() == 2 << 20));
        assert!(frames.room().capacity() <= KEPT);
    }
}
