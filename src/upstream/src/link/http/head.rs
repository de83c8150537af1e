//! The head of an HTTP answer, read in place and only as far as somebody asks for it.
//!
//! A head that is as nearly all are (HTTP/1.1, a body of known length, nothing about the connection that is not so
//! anyway) needs no map of headers. Any other, and any that is broken, is left to the codec, which has the last word
//! on what it means.

use std::{mem::MaybeUninit, ops::Range};

use actix_http::{ResponseHead, StatusCode, header};
use awc::http::header::HeaderName;
use bytes::{Bytes, BytesMut};

use super::link::SESSION;

const VERSION: &[u8] = b"HTTP/1.1 ";

/// Headers of a plain head at most.
const MAX: usize = 48;

/// A header that is asked for.
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
            Self::Session => &SESSION,
        }
    }
}

/// See the module's page.
pub enum Head {
    Plain(Plain),
    Whole(ResponseHead),
}

impl Head {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Plain(head) => head.status,
            Self::Whole(head) => head.status,
        }
    }

    /// The first header of that kind.
    pub fn field(&self, field: Field) -> Option<&[u8]> {
        match self {
            Self::Plain(head) => head.fields[field as usize].clone().and_then(|place| head.text.get(place)),
            Self::Whole(head) => head.headers().get(field.name()).map(|value| value.as_bytes()),
        }
    }

    /// What its `Content-Length` says.
    pub fn length(&self) -> Option<u64> {
        match self {
            Self::Plain(head) => Some(head.length),
            Self::Whole(head) => head.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
        }
    }
}

/// A head with a body behind it that has a length; the connection can be used again afterwards.
#[derive(Debug)]
pub struct Plain {
    status: StatusCode,
    text: Bytes,
    /// In the order of [`Field`].
    fields: [Option<Range<usize>>; 3],
    pub length: u64,
}

/// Takes a plain head from the beginning of what was read; nothing if it is none, or not there yet.
pub fn plain(read: &mut BytesMut) -> Option<Plain> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX];
    let mut response = httparse::Response::new(&mut []);
    let mut config = httparse::ParserConfig::default();
    // As the codec does.
    config.allow_spaces_after_header_name_in_responses(true);
    let parsed = config.parse_response_with_uninit_headers(&mut response, read, &mut headers);
    let Ok(httparse::Status::Complete(end)) = parsed else { return None };
    let status = response.code.filter(|status| *status >= 200 && !matches!(status, 204 | 304))?;
    if response.version != Some(1) {
        return None;
    }
    let (mut fields, mut length) = ([None, None, None], None);
    for header in &*response.headers {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let field = match header.name.len() {
            // Where the general rules about a connection begin.
            7 if is("upgrade") => return None,
            17 if is("transfer-encoding") => return None,
            10 if is("connection") && !header.value.eq_ignore_ascii_case(b"keep-alive") => return None,
            // A server has no business to send these; the codec looks at them.
            4 if is("host") => return None,
            14 if is("content-length") => {
                if length.replace(number(header.value)?).is_some() {
                    return None;
                }
                continue;
            }
            12 if is("content-type") => Field::ContentType,
            16 if is("content-encoding") => Field::ContentEncoding,
            14 if is("mcp-session-id") => Field::Session,
            _ => continue,
        };
        // An empty one may be anywhere.
        let start =
            if header.value.is_empty() { 0 } else { header.value.as_ptr().addr().checked_sub(read.as_ptr().addr())? };
        fields[field as usize].get_or_insert(start..start + header.value.len());
    }
    let status = StatusCode::from_u16(status).ok()?;
    // A body without bytes is none to the codec.
    let length = length.filter(|length| *length > 0)?;
    Some(Plain { status, text: read.split_to(end).freeze(), fields, length })
}

/// What the beginning of an answer is.
#[derive(Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A head that has not ended.
    Partial,
    /// A head that says where the body ends, or what is none.
    Whole,
    /// A head without a length: the body ends with the connection (RFC 9112, section 6.3, rule 8), as PHP's and several
    /// Ruby servers write it.
    Endless,
    /// An interim answer of so many bytes, which another head follows (RFC 9110, section 15.2).
    Interim(usize),
}

/// Looks for what the codec does not know: [`Beginning::Endless`] and [`Beginning::Interim`].
pub fn beginning(bytes: &[u8]) -> Beginning {
    if !bytes.starts_with(VERSION) {
        return if VERSION.starts_with(bytes) { Beginning::Partial } else { Beginning::Whole };
    }
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Beginning::Partial };
    match bytes.get(VERSION.len()..VERSION.len() + 3) {
        // An accepted message has no body, and who says so without a length keeps the connection open.
        Some(b"101" | b"202" | b"204" | b"304") => return Beginning::Whole,
        Some([b'1', ..]) => return Beginning::Interim(end + 4),
        _ => {}
    }
    let mut lines = bytes[..end].split(|b| *b == b'\n').skip(1);
    let named = |line: &[u8], name: &[u8]| {
        line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && matches!(line.get(name.len()), Some(b':' | b' ' | b'\t'))
    };
    if lines.any(|line| named(line, b"content-length") || named(line, b"transfer-encoding")) {
        Beginning::Whole
    } else {
        Beginning::Endless
    }
}

/// Makes it a head of HTTP/1.0, whose bodies without a length the codec knows.
pub fn downgrade(head: &mut [u8]) {
    if let Some(minor) = head.get_mut(VERSION.len() - 2) {
        *minor = b'0';
    }
}

/// Digits and nothing else.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use actix_http::{ServiceConfig, h1::ClientCodec};
    use tokio_util::codec::Decoder;

    use super::*;

    /// What is plain, the codec sees in the same way; what is not, is left where it is.
    #[actix::test]
    async fn plain_heads_mean_what_they_mean_to_the_codec() {
        for (head, is_plain) in [
            ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\nabcde", true),
            ("HTTP/1.1 404 \r\ncontent-length:5\r\nMCP-Session-Id: abc \r\nX: y\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nconnection: Keep-Alive\r\nCONTENT-LENGTH:  7 \r\nKeep-Alive: timeout=5\r\n\r\n", true),
            (
                "HTTP/1.1 500 Oops\r\nContent-Type: a\r\ncontent-type: b\r\nContent-Encoding: \r\nContent-Length: 1\r\n\r\n",
                true,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length : 3\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: upgrade\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nHost: a\r\nHost: b\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 101 Switching\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", false),
            ("HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\n", false),
            ("SSH-2.0\r\n\r\n", false),
            ("", false),
        ] {
            let mut read = BytesMut::from(head);
            let found = plain(&mut read);
            assert_eq!(found.is_some(), is_plain, "{head:?}");
            let Some(found) = found else {
                assert_eq!(read, head);
                continue;
            };
            let mut rest = BytesMut::from(head);
            let mut codec = ClientCodec::new(ServiceConfig::default());
            let whole = codec.decode(&mut rest).unwrap().unwrap();
            assert!(whole.keep_alive() && rest == read, "{head:?}");
            let length = whole.headers().get(header::CONTENT_LENGTH).unwrap().to_str().unwrap();
            assert_eq!(length.trim().parse(), Ok(found.length), "{head:?}");
            let (whole, found) = (Head::Whole(whole), Head::Plain(found));
            assert_eq!(found.status(), whole.status());
            for field in [Field::ContentType, Field::ContentEncoding, Field::Session] {
                assert_eq!(found.field(field), whole.field(field), "{head:?} {field:?}");
            }
        }
    }

    #[test]
    fn heads_with_too_many_headers_are_left_to_the_codec() {
        let head = |count: usize| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{}\r\n", "a: b\r\n".repeat(count));
            plain(&mut BytesMut::from(&*head)).is_some()
        };
        assert!(head(MAX - 1));
        assert!(!head(MAX));
    }

    #[test]
    fn heads_without_a_length_are_told_from_those_with_one() {
        for (head, what) in [
            ("", Beginning::Partial),
            ("HTT", Beginning::Partial),
            ("HTTP/1.1 200 OK\r\nContent-Type: x\r\n", Beginning::Partial),
            ("HTTP/1.1 200 OK\r\nContent-LENGTH: 5\r\n\r\nabcde", Beginning::Whole),
            ("HTTP/1.1 200 OK\r\nx: y\r\nTransfer-Encoding: chunked\r\n\r\n", Beginning::Whole),
            ("HTTP/1.1 200 OK\r\nx: content-length: 5\r\n\r\n", Beginning::Endless),
            ("HTTP/1.1 200 OK\r\ncontent-lengthy: 5\r\n\r\ncontent-length: 5\r\n", Beginning::Endless),
            ("HTTP/1.1 500 Oops\r\n\r\n", Beginning::Endless),
            ("HTTP/1.1 204 No Content\r\n\r\n", Beginning::Whole),
            ("HTTP/1.1 202 Accepted\r\n\r\n", Beginning::Whole),
            ("HTTP/1.1 101 Switching\r\n\r\n\u{1}", Beginning::Whole),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP", Beginning::Interim(25)),
            ("HTTP/1.0 200 OK\r\n", Beginning::Whole),
            ("SSH-2.0", Beginning::Whole),
            ("\u{16}\u{3}\u{1}", Beginning::Whole),
        ] {
            assert_eq!(beginning(head.as_bytes()), what, "{head:?}");
        }
        let mut head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        downgrade(&mut head);
        assert_eq!(head, b"HTTP/1.0 200 OK\r\n\r\n");
    }
}
