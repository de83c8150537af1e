//! Parses the `Authorization` header: one header, scheme `Bearer` in any case, one token (RFC 6750, RFC 9110).

use actix_web::http::header::{AUTHORIZATION, HeaderMap};

use countersign_protocol::{ErrorKind, McpError};

/// Maximum bytes of a header; a key has 47 characters.
const MAX_HEADER_LEN: usize = 512;

/// Returns the only `Authorization` header of a request, if any.
///
/// # Errors
/// `UNAUTHORIZED` for several headers, since different readers might pick different ones.
pub fn authorization_header(headers: &HeaderMap) -> Result<Option<&[u8]>, McpError> {
    let mut all = headers.get_all(AUTHORIZATION);
    let first = all.next();
    if all.next().is_some() {
        return Err(McpError::new(ErrorKind::Unauthorized, "more than one Authorization header"));
    }
    Ok(first.map(actix_web::http::header::HeaderValue::as_bytes))
}

/// Returns the token in the value of an `Authorization` header.
///
/// # Errors
/// `UNAUTHORIZED` for another scheme, or for anything but one token.
pub fn parse_token(value: &[u8]) -> Result<&str, McpError> {
    let refuse = |why| McpError::new(ErrorKind::Unauthorized, why);
    if value.len() > MAX_HEADER_LEN {
        return Err(refuse("the Authorization header is too long"));
    }
    let text = std::str::from_utf8(value).map_err(|_| refuse("the Authorization header is not text"))?;
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(refuse("the Authorization header must be `Bearer <key>`"));
    }
    // RFC 9110 11.4: one or more spaces; trailing whitespace never belongs to a value.
    let token = rest.trim_start_matches(' ').trim_end_matches([' ', '\t']);
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~+/=".contains(&b);
    if token.is_empty() || !token.bytes().all(legal) {
        return Err(refuse("the Authorization header must be `Bearer <key>`"));
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_is_case_insensitive() {
        for good in ["Bearer abc", "bearer abc", "BEARER abc", "Bearer    abc", "Bearer abc  ", "Bearer abc\t"] {
            assert_eq!(parse_token(good.as_bytes()).unwrap(), "abc", "{good:?}");
        }
    }

    #[test]
    fn malformed_header_is_unauthorized() {
        let long = format!("Bearer {}", "a".repeat(600));
        let bad: [&[u8]; 12] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"abc",
            b"Basic abc",
            b"Bearer\tabc",
            b"Bearer a b",
            b"Bearer a,b",
            b"Bearer \xff\xfe",
            b"Bearer abc, Bearer def",
            b" Bearer abc",
            long.as_bytes(),
        ];
        for value in bad {
            assert_eq!(parse_token(value).unwrap_err().kind, ErrorKind::Unauthorized, "{value:?}");
        }
    }

    #[test]
    fn two_headers_are_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(authorization_header(&headers).unwrap(), None);
        headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(authorization_header(&headers).unwrap(), Some(b"Bearer a".as_slice()));
        headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(authorization_header(&headers).unwrap_err().kind, ErrorKind::Unauthorized);
    }
}
