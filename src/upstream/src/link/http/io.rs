//! Plain connections to upstreams, with two things put right that the HTTP client under them does not know: a body
//! that ends with its connection although the response is of HTTP/1.1 (RFC 9112, section 6.3, rule 8), which PHP's
//! and several Ruby servers write; and interim responses (RFC 9110, section 15.2).
//!
//! The first bytes after a request are the head of a response. Where that head has no length, it is given to the client
//! as one of HTTP/1.0, where such bodies are known. Bytes of TLS pass as they are, and so do heads that are in order:
//! they are looked at where they were read to.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use actix_web::rt::net::{ActixStream, Ready, TcpStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const VERSION: &[u8] = b"HTTP/1.1 ";

/// A head longer than this is none of a server that means well; the client refuses it.
const MAX_HEAD: usize = 128 << 10;

/// See the module's page.
#[derive(Debug)]
pub struct Io {
    tcp: TcpStream,
    state: State,
    /// The beginning of a head whose end has not come, then what of it the client has not read.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A request was written, and nothing has come.
    Head,
    /// `held` goes to the client.
    Held,
    Body,
}

impl Io {
    pub fn new(tcp: TcpStream) -> Self {
        // A small message must not wait for the acknowledgement of the one before it.
        let _ = tcp.set_nodelay(true);
        Self { tcp, state: State::Body, held: Vec::new() }
    }
}

/// For who reads heads that are in order by himself.
impl Io {
    /// Whether the next byte is the first of a head.
    pub fn is_at_head(&self) -> bool {
        self.state == State::Head && self.held.is_empty()
    }

    /// What is read here is seen by nobody else, so it has to be a head that was read ([`Self::past_head`]), or it is
    /// given back.
    pub fn unseen(&mut self) -> &mut TcpStream {
        &mut self.tcp
    }

    /// A whole head was read; what follows is its body.
    pub fn past_head(&mut self) {
        self.state = State::Body;
    }

    /// Bytes from the beginning of a head that are to be looked at here.
    pub fn give_back(&mut self, read: &[u8]) {
        self.held.extend_from_slice(read);
    }
}

/// What the beginning of a response is.
#[derive(Debug, PartialEq, Eq)]
enum Begin {
    /// Its head has not ended.
    More,
    /// Nothing to do.
    Fine,
    /// It ends with the connection.
    Endless,
    /// Interim, of so many bytes: another head follows.
    Interim(usize),
}

fn begin(bytes: &[u8]) -> Begin {
    if !bytes.starts_with(VERSION) {
        return if VERSION.starts_with(bytes) { Begin::More } else { Begin::Fine };
    }
    let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") else { return Begin::More };
    match bytes.get(VERSION.len()..VERSION.len() + 3) {
        Some(b"101" | b"204" | b"304") => return Begin::Fine,
        // An accepted message has no body, and who says so without a length keeps the connection open.
        Some(b"202") => return Begin::Fine,
        Some([b'1', ..]) => return Begin::Interim(end + 4),
        _ => {}
    }
    let mut lines = bytes[..end].split(|b| *b == b'\n').skip(1);
    let named = |line: &[u8], name: &[u8]| {
        line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && matches!(line.get(name.len()), Some(b':' | b' ' | b'\t'))
    };
    if lines.any(|line| named(line, b"content-length") || named(line, b"transfer-encoding")) {
        Begin::Fine
    } else {
        Begin::Endless
    }
}

/// Makes it a head of HTTP/1.0.
fn downgrade(head: &mut [u8]) {
    if let Some(minor) = head.get_mut(VERSION.len() - 2) {
        *minor = b'0';
    }
}

impl Io {
    fn poll_head(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            let before = out.filled().len();
            ready!(Pin::new(&mut self.tcp).poll_read(cx, out))?;
            let read = &mut out.filled_mut()[before..];
            match if read.is_empty() { Begin::Fine } else { begin(read) } {
                Begin::Fine => self.state = State::Body,
                Begin::Endless => {
                    downgrade(read);
                    self.state = State::Body;
                }
                Begin::More | Begin::Interim(_) => {
                    self.held.extend_from_slice(read);
                    out.set_filled(before);
                }
            }
            if self.state == State::Body {
                return Poll::Ready(Ok(()));
            }
        }
        loop {
            match begin(&self.held) {
                Begin::Interim(length) => {
                    self.held.drain(..length);
                    continue;
                }
                Begin::Endless => downgrade(&mut self.held),
                Begin::More if self.held.len() < MAX_HEAD => {
                    let mut more = [0; 4096];
                    let mut more = ReadBuf::new(&mut more);
                    ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut more))?;
                    if !more.filled().is_empty() {
                        self.held.extend_from_slice(more.filled());
                        continue;
                    }
                }
                Begin::More | Begin::Fine => {}
            }
            self.state = State::Held;
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.state == State::Head {
            ready!(this.poll_head(cx, out))?;
            if this.state == State::Body {
                return Poll::Ready(Ok(()));
            }
        }
        if this.state == State::Held {
            let length = this.held.len().min(out.remaining());
            out.put_slice(&this.held[..length]);
            this.held.drain(..length);
            if this.held.is_empty() {
                this.state = State::Body;
            }
            if length > 0 {
                return Poll::Ready(Ok(()));
            }
        }
        Pin::new(&mut this.tcp).poll_read(cx, out)
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.state == State::Body {
            this.state = State::Head;
        }
        Pin::new(&mut this.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.state == State::Body {
            this.state = State::Head;
        }
        Pin::new(&mut this.tcp).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}

impl ActixStream for Io {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_read_ready(&self.tcp, cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<Ready>> {
        ActixStream::poll_write_ready(&self.tcp, cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_without_a_length_are_told_from_those_with_one() {
        for (head, what) in [
            ("", Begin::More),
            ("HTT", Begin::More),
            ("HTTP/1.1 200 OK\r\nContent-Type: x\r\n", Begin::More),
            ("HTTP/1.1 200 OK\r\nContent-LENGTH: 5\r\n\r\nabcde", Begin::Fine),
            ("HTTP/1.1 200 OK\r\nx: y\r\nTransfer-Encoding: chunked\r\n\r\n", Begin::Fine),
            ("HTTP/1.1 200 OK\r\nx: content-length: 5\r\n\r\n", Begin::Endless),
            ("HTTP/1.1 200 OK\r\ncontent-lengthy: 5\r\n\r\ncontent-length: 5\r\n", Begin::Endless),
            ("HTTP/1.1 500 Oops\r\n\r\n", Begin::Endless),
            ("HTTP/1.1 204 No Content\r\n\r\n", Begin::Fine),
            ("HTTP/1.1 202 Accepted\r\n\r\n", Begin::Fine),
            ("HTTP/1.1 101 Switching\r\n\r\n\u{1}", Begin::Fine),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP", Begin::Interim(25)),
            ("HTTP/1.0 200 OK\r\n", Begin::Fine),
            ("SSH-2.0", Begin::Fine),
            ("\u{16}\u{3}\u{1}", Begin::Fine),
        ] {
            assert_eq!(begin(head.as_bytes()), what, "{head:?}");
        }
        let mut head = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        downgrade(&mut head);
        assert_eq!(head, b"HTTP/1.0 200 OK\r\n\r\n");
    }
}
