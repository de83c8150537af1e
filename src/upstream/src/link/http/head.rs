//! The head of an HTTP/1.1 answer and the length of its body.
//!
//! `httparse` parses every head in place. No map of headers is built. Only the fields that callers read are remembered.

use std::{io, mem::MaybeUninit, ops::Range, task::Poll};

use actix_http::{StatusCode, header};
use awc::http::header::HeaderName;
use bytes::{Buf as _, Bytes, BytesMut};
use httparse::Status;

use super::link::SESSION_HEADER;
use crate::link::LinkError;

/// Maximum number of headers.
const MAX_HEADERS: usize = 96;
/// Maximum bytes of a head, of the line before a chunk, and of the trailers.
const MAX_HEAD_BYTES: usize = 128 << 10;

/// A header that callers read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    ContentType,
    ContentEncoding,
    Session,
}

impl Field {
    pub fn name(self) -> &'static HeaderName {
        match self {
            Self::ContentType => &header::CONTENT_TYPE,
            Self::ContentEncoding => &header::CONTENT_ENCODING,
            Self::Session => &SESSION_HEADER,
        }
    }
}

/// The head of an answer.
#[derive(Debug)]
pub struct AnswerHead {
    pub status: StatusCode,
    text: Bytes,
    /// The places of the values in `text`, in the order of [`Field`].
    fields: [Option<Range<usize>>; 3],
    pub framing: Framing,
    /// `true` if the connection can be used again after the body.
    pub keep_alive: bool,
}

impl AnswerHead {
    /// Takes a complete head from the beginning of `input`, and skips interim answers (RFC 9110, section 15.2). Returns `None`
    /// if more input is needed.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] if the input is not HTTP.
    pub fn parse(input: &mut BytesMut) -> Result<Option<Self>, LinkError> {
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
            let mut response = httparse::Response::new(&mut []);
            let mut config = httparse::ParserConfig::default();
            config.allow_spaces_after_header_name_in_responses(true);
            let parsed = config.parse_response_with_uninit_headers(&mut response, input, &mut headers);
            let end = match parsed.map_err(|error| not_http(&error.to_string()))? {
                Status::Complete(end) => end,
                Status::Partial if input.len() > MAX_HEAD_BYTES => return Err(not_http("its head is too long")),
                Status::Partial => return Ok(None),
            };
            let status = response.code.unwrap_or_default();
            if (100..200).contains(&status) && status != 101 {
                input.advance(end);
                continue;
            }
            let (mut fields, mut length, mut coding) = ([None, None, None], None, None);
            // HTTP/1.0 closes connections by default.
            let (mut keep_alive, mut closes) = (response.version == Some(1), false);
            for header in &*response.headers {
                let is = |name: &str| header.name.eq_ignore_ascii_case(name);
                let field = match header.name.len() {
                    10 if is("connection") => {
                        for option in header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                            closes |= option.eq_ignore_ascii_case(b"close");
                            keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                        }
                        continue;
                    }
                    14 if is("content-length") => {
                        let new =
                            parse_number(header.value).ok_or_else(|| not_http("its Content-Length is no number"))?;
                        if length.replace(new).is_some() {
                            return Err(not_http("it has more than one Content-Length"));
                        }
                        continue;
                    }
                    17 if is("transfer-encoding") => {
                        if coding.replace(header.value).is_some() {
                            return Err(not_http("it has more than one Transfer-Encoding"));
                        }
                        continue;
                    }
                    12 if is("content-type") => Field::ContentType,
                    16 if is("content-encoding") => Field::ContentEncoding,
                    14 if is("mcp-session-id") => Field::Session,
                    _ => continue,
                };
                // An empty value may point outside of the input.
                let start = header.value.as_ptr().addr().checked_sub(input.as_ptr().addr());
                let start = start.filter(|_| !header.value.is_empty()).unwrap_or(0);
                fields[field as usize].get_or_insert(start..start + header.value.len());
            }
            let coding = coding.filter(|coding| !coding.eq_ignore_ascii_case(b"identity"));
            // RFC 9112, section 6.3.
            let framing = match (status, coding, length) {
                (204 | 304, ..) => Framing::Length(0),
                (_, Some(coding), _) if coding.eq_ignore_ascii_case(b"chunked") => Framing::ChunkSize,
                (_, Some(_), _) => return Err(not_http("its Transfer-Encoding is not `chunked`")),
                (_, None, Some(length)) => Framing::Length(length),
                // An accepted message has no body, and servers that omit the length keep the connection open.
                (202, None, None) if response.version == Some(1) => Framing::Length(0),
                // PHP and several Ruby servers end a body with the connection.
                (_, None, None) => Framing::UntilClose,
            };
            // A connection is not used again if the server may mean another end of the body (RFC 9112, section 6.1).
            let has_clear_end = match (coding, length) {
                (Some(_), length) => length.is_none() && response.version == Some(1) && !matches!(status, 204 | 304),
                (None, length) => status != 204 || length.unwrap_or(0) == 0,
            };
            keep_alive &= !closes && has_clear_end && framing != Framing::UntilClose;
            let status = StatusCode::from_u16(status).map_err(|error| not_http(&error.to_string()))?;
            return Ok(Some(Self { status, text: input.split_to(end).freeze(), fields, framing, keep_alive }));
        }
    }

    /// Returns the first header of that kind.
    pub fn field(&self, field: Field) -> Option<&[u8]> {
        self.fields[field as usize].clone().and_then(|range| self.text.get(range))
    }
}

fn not_http(why: &str) -> LinkError {
    LinkError::Protocol(format!("its answer is not HTTP: {why}"))
}

/// Parses digits without a sign.
fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?.parse().ok()
}

/// The rest of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// The size of the next chunk follows (RFC 9112, section 7.1).
    ChunkSize,
    /// This many bytes of the chunk are left, and a line end follows.
    Chunk(u64),
    /// Trailers follow the last chunk.
    Trailers,
    /// The body ends with the connection.
    UntilClose,
}

impl Framing {
    /// Takes the next part of the body from `input`, or `None` at its end. Returns `Pending` if more input is needed.
    ///
    /// # Errors
    /// Fails if the chunks are malformed.
    pub fn take(&mut self, input: &mut BytesMut) -> io::Result<Poll<Option<Bytes>>> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "its chunks are malformed");
        loop {
            match self {
                Self::Length(0) => return Ok(Poll::Ready(None)),
                _ if input.is_empty() => return Ok(Poll::Pending),
                Self::Length(left) | Self::Chunk(left @ 1..) => {
                    let count = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                    *left -= count as u64;
                    return Ok(Poll::Ready(Some(input.split_to(count).freeze())));
                }
                Self::UntilClose => return Ok(Poll::Ready(Some(input.split().freeze()))),
                Self::Chunk(_) if input.len() < 2 => return Ok(Poll::Pending),
                Self::Chunk(_) if input.starts_with(b"\r\n") => {
                    input.advance(2);
                    *self = Self::ChunkSize;
                }
                // The parser accepts a line without a size.
                Self::ChunkSize if !input[0].is_ascii_hexdigit() => return Err(malformed()),
                Self::ChunkSize => match httparse::parse_chunk_size(input) {
                    Ok(Status::Complete((end, size))) => {
                        input.advance(end);
                        *self = if size == 0 { Self::Trailers } else { Self::Chunk(size) };
                    }
                    Ok(Status::Partial) if input.len() <= MAX_HEAD_BYTES => return Ok(Poll::Pending),
                    _ => return Err(malformed()),
                },
                Self::Trailers => match httparse::parse_headers(input, &mut [httparse::EMPTY_HEADER; MAX_HEADERS]) {
                    Ok(Status::Complete((end, _))) => {
                        input.advance(end);
                        *self = Self::Length(0);
                    }
                    Ok(Status::Partial) if input.len() <= MAX_HEAD_BYTES => return Ok(Poll::Pending),
                    _ => return Err(malformed()),
                },
                Self::Chunk(_) => return Err(malformed()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use actix_http::{ServiceConfig, h1::ClientCodec};
    use tokio_util::codec::Decoder;

    use super::*;

    fn parse(head: &str) -> (Result<Option<AnswerHead>, LinkError>, BytesMut) {
        let mut input = BytesMut::from(head);
        (AnswerHead::parse(&mut input), input)
    }

    #[actix::test]
    async fn heads_are_parsed_like_the_actix_codec() {
        use Framing::{ChunkSize, Length, UntilClose};
        for (head, framing, keep_alive) in [
            ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nabcde", Length(5), true),
            ("HTTP/1.1 404 \r\ncontent-length:5\r\nMCP-Session-Id: abc \r\nX: y\r\n\r\n", Length(5), true),
            ("HTTP/1.1 200 OK\r\nconnection: Keep-Alive\r\nCONTENT-LENGTH:  7 \r\n\r\n", Length(7), true),
            (
                "HTTP/1.1 500 Oops\r\nContent-Type: a\r\ncontent-type: b\r\nContent-Encoding: \r\nContent-Length: 1\r\n\r\n",
                Length(1),
                true,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", Length(3), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Length(0), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", Length(5), false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ChunkSize, true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\n", Length(5), true),
            ("HTTP/1.1 204 No Content\r\n\r\n", Length(0), true),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", Length(5), false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n", Length(5), true),
            ("HTTP/1.0 200 OK\r\n\r\n", UntilClose, false),
        ] {
            let (found, input) = parse(head);
            let found = found.unwrap().unwrap();
            assert_eq!((&found.framing, found.keep_alive), (&framing, keep_alive), "{head:?}");
            let mut rest = BytesMut::from(head);
            let mut codec = ClientCodec::new(ServiceConfig::default());
            let whole = codec.decode(&mut rest).unwrap().unwrap();
            assert!(rest == input && found.status == whole.status, "{head:?}");
            for field in [Field::ContentType, Field::ContentEncoding, Field::Session] {
                let other = whole.headers().get(field.name()).map(|value| value.as_bytes());
                assert_eq!(found.field(field), other, "{head:?} {field:?}");
            }
        }
    }

    #[test]
    fn connection_with_an_unclear_end_is_not_kept() {
        for (head, keep_alive) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, keep-alive\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", false),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n", false),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", true),
        ] {
            assert_eq!(parse(head).0.unwrap().unwrap().keep_alive, keep_alive, "{head:?}");
        }
    }

    #[test]
    fn bodies_without_length_end_with_connection() {
        for (head, framing) in [
            ("HTTP/1.1 200 OK\r\nx: content-length: 5\r\n\r\n", Framing::UntilClose),
            ("HTTP/1.1 500 Oops\r\n\r\n", Framing::UntilClose),
            ("HTTP/1.1 202 Accepted\r\n\r\n", Framing::Length(0)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", Framing::Length(0)),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 500 x\r\n\r\n",
                Framing::UntilClose,
            ),
        ] {
            assert_eq!(parse(head).0.unwrap().unwrap().framing, framing, "{head:?}");
        }
        let both = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: Chunked\r\n\r\n";
        let both = parse(both).0.unwrap().unwrap();
        assert_eq!((both.framing, both.keep_alive), (Framing::ChunkSize, false));
    }

    #[test]
    fn unfinished_and_invalid_heads_are_distinguished() {
        for head in ["", "HTT", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP"] {
            assert!(parse(head).0.unwrap().is_none(), "{head:?}");
        }
        for head in [
            "SSH-2.0\r\n\r\n",
            "\u{16}\u{3}\u{1}",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1)),
            &format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(MAX_HEAD_BYTES)),
        ] {
            assert!(matches!(parse(head).0, Err(LinkError::Protocol(_))), "{head:.80?}");
        }
    }

    /// Reads `text` in steps of `step` bytes. Returns the body, the rest of the input, and `true` if the body has ended.
    fn chunks(text: &str, step: usize) -> io::Result<(String, String, bool)> {
        let (mut framing, mut input, mut body) = (Framing::ChunkSize, BytesMut::new(), Vec::new());
        for part in text.as_bytes().chunks(step) {
            input.extend_from_slice(part);
            while let Poll::Ready(taken) = framing.take(&mut input)? {
                let Some(taken) = taken else { break };
                body.extend_from_slice(&taken);
            }
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ok((text(&body), text(&input), framing == Framing::Length(0)))
    }

    #[test]
    fn chunks_do_not_depend_on_size_of_reads() {
        let text = "3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        for step in 1..=text.len() {
            assert_eq!(chunks(text, step).unwrap(), ("abc0123456789".into(), String::new(), true), "{step}");
        }
        assert_eq!(chunks("0\r\n\r\nmore", 9).unwrap(), (String::new(), "more".into(), true));
        assert_eq!(chunks("5\r\nabc", 9).unwrap(), ("abc".into(), String::new(), false));
        for malformed in ["x\r\n", "\r\n", "3\r\nabcd\r\n", "3\nabc", "FFFFFFFFFFFFFFFFF\r\n", "0\r\n\u{0}: x\r\n\r\n"]
        {
            assert!(chunks(malformed, 100).is_err(), "{malformed:?}");
        }
        assert!(chunks(&format!("1;{}", "x".repeat(MAX_HEAD_BYTES)), 1000).is_err());
    }
}
