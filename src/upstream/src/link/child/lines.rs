//! Reads lines of limited length from a byte stream.

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};

/// The maximum number of bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// The maximum capacity of a line buffer that is kept for the next line.
pub(super) const MAX_KEPT_CAPACITY: usize = 256 << 10;

/// One line without its end (`\n` or `\r\n`).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Whole(&'a [u8]),
    /// The beginning of a line that is longer than allowed. Its rest is skipped.
    Truncated(&'a [u8]),
}

/// Splits a byte stream into lines.
pub(super) struct LineReader<R> {
    input: BufReader<R>,
    line: Vec<u8>,
    max: usize,
    /// `true` if the rest of a truncated line must be skipped.
    skips_rest: bool,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// `max` is the maximum number of bytes of a line, without its `\n`.
    pub(super) fn new(input: R, max: usize) -> Self {
        Self { input: BufReader::with_capacity(READ_BYTES, input), line: Vec::new(), max, skips_rest: false }
    }

    /// Returns the next line, or `None` at the end of the input. A read error counts as the end.
    pub(super) async fn next(&mut self) -> Option<Line<'_>> {
        while self.skips_rest {
            let buffer = self.input.fill_buf().await.ok()?;
            let end = memchr::memchr(b'\n', buffer);
            let skipped = end.map_or(buffer.len(), |end| end + 1);
            self.skips_rest = skipped > 0 && end.is_none();
            self.input.consume(skipped);
        }
        if self.line.capacity() > MAX_KEPT_CAPACITY {
            self.line = Vec::new();
        }
        self.line.clear();
        let limit = u64::try_from(self.max).unwrap_or(u64::MAX).saturating_add(1);
        // The rest before the end of the input, or before an error, is a line too.
        let _ = (&mut self.input).take(limit).read_until(b'\n', &mut self.line).await;
        if let Some(line) = self.line.strip_suffix(b"\n") {
            return Some(Line::Whole(line.strip_suffix(b"\r").unwrap_or(line)));
        }
        if self.line.len() > self.max {
            self.skips_rest = true;
            return Some(Line::Truncated(&self.line[..self.max]));
        }
        (!self.line.is_empty()).then_some(Line::Whole(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    /// Returns all lines, written in steps of this many bytes.
    async fn lines(max: usize, text: &'static [u8], step: usize) -> Vec<String> {
        let (mut writer, reader) = tokio::io::duplex(step);
        let writing = tokio::spawn(async move { writer.write_all(text).await });
        let (mut reader, mut lines) = (LineReader::new(reader, max), Vec::new());
        while let Some(line) = reader.next().await {
            lines.push(match line {
                Line::Whole(line) => String::from_utf8(line.to_vec()).unwrap(),
                Line::Truncated(line) => format!("{}…", String::from_utf8(line.to_vec()).unwrap()),
            });
        }
        writing.await.unwrap().unwrap();
        lines
    }

    #[tokio::test]
    async fn lines_do_not_depend_on_size_of_reads() {
        let text = b"a\n\nbcd\r\n12345\n123456\n12345678901234567890\nx\r\nhalf";
        for step in 1..text.len() + 1 {
            let lines = lines(5, text, step).await;
            assert_eq!(lines, ["a", "", "bcd", "12345", "12345…", "12345…", "x", "half"], "{step}");
        }
        assert_eq!(lines(5, b"123456789", 3).await, ["12345…"]);
    }

    #[tokio::test]
    async fn large_buffer_is_released() {
        let mut text = vec![b'x'; 2 << 20];
        text.extend_from_slice(b"\ny\n");
        let mut reader = LineReader::new(&text[..], 4 << 20);
        assert!(matches!(reader.next().await, Some(Line::Whole(line)) if line.len() == 2 << 20));
        assert_eq!(reader.next().await, Some(Line::Whole(b"y")));
        assert!(reader.line.capacity() <= MAX_KEPT_CAPACITY);
    }
}
