use actix_http::{ServiceConfig, h1::ClientCodec};
use tokio_util::codec::Decoder;

use super::*;

fn parse(head: &str) -> (Result<Option<ResponseHead>, LinkError>, BytesMut) {
    let mut input = BytesMut::from(head);
    (ResponseHead::parse(&mut input), input)
}

#[actix::test]
async fn heads_are_parsed_like_the_actix_codec() {
    use Framing::{ChunkSize, Length, UntilClose};
    for (head, framing, is_reusable) in [
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
        assert_eq!((&found.framing, found.is_reusable), (&framing, is_reusable), "{head:?}");
        let mut rest = BytesMut::from(head);
        let mut codec = ClientCodec::new(ServiceConfig::default());
        let whole = codec.decode(&mut rest).unwrap().unwrap();
        assert!(rest == input && found.status == whole.status, "{head:?}");
        for field in [Field::ContentType, Field::ContentEncoding, Field::SessionId] {
            let other = whole.headers().get(field.name()).map(|value| value.as_bytes());
            assert_eq!(found.header(field), other, "{head:?} {field:?}");
        }
    }
}

#[test]
fn connection_with_an_unclear_end_is_not_kept() {
    for (head, is_reusable) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, keep-alive\r\n\r\n", false),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\nConnection: keep-alive\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", false),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", true),
        ("HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n", false),
        ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n", false),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", true),
    ] {
        assert_eq!(parse(head).0.unwrap().unwrap().is_reusable, is_reusable, "{head:?}");
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
    assert_eq!((both.framing, both.is_reusable), (Framing::ChunkSize, false));
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
        while let Poll::Ready(taken) = framing.take_chunk(&mut input)? {
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
    for malformed in ["x\r\n", "\r\n", "3\r\nabcd\r\n", "3\nabc", "FFFFFFFFFFFFFFFFF\r\n", "0\r\n\u{0}: x\r\n\r\n"] {
        assert!(chunks(malformed, 100).is_err(), "{malformed:?}");
    }
    assert!(chunks(&format!("1;{}", "x".repeat(MAX_HEAD_BYTES)), 1000).is_err());
}
