//! Reading the `Authorization` header: one header, scheme `Bearer` in any case, one token (RFC 6750, RFC 9110).

use actix_web::http::header::{AUTHORIZATION, HeaderMap};

use countersign_protocol::{ErrorKind, McpError};

/// Longer headers are refused unread; a key has 47 characters.
const MAX_HEADER: usize = 512;

/// The one `Authorization` header of a request, if there is one.
///
/// # Errors
/// `UNAUTHORIZED` for two of them: which one counts must not depend on who reads it.
pub fn header(headers: &HeaderMap) -> Result<Option<&[u8]>, McpError> {
    let mut all = headers.get_all(AUTHORIZATION);
    let first = all.next();
    if all.next().is_some() {
        return Err(McpError::new(ErrorKind::Unauthorized, "more than one Authorization header"));
    }
    Ok(first.map(actix_web::http::header::HeaderValue::as_bytes))
}

/// The token in an `Authorization` header's value.
///
/// # Errors
/// `UNAUTHORIZED` for another scheme and for anything that is not one token.
pub fn token(value: &[u8]) -> Result<&str, McpError> {
    let refuse = |why| McpError::new(ErrorKind::Unauthorized, why);
    if value.len() > MAX_HEADER {
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
    fn one_token_in_any_case_of_the_scheme() {
        for good in ["Bearer abc", "bearer abc", "BEARER abc", "Bearer    abc", "Bearer abc  ", "Bearer abc\t"] {
            assert_eq!(token(good.as_bytes()).unwrap(), "abc", "{good:?}");
        }
    }

    #[test]
    fn anything_else_is_unauthorized() {
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
            assert_eq!(token(value).unwrap_err().kind, ErrorKind::Unauthorized, "{value:?}");
        }
    }

    #[test]
    fn two_headers_are_refused() {
        let mut headers = HeaderMap::new();
        assert_eq!(header(&headers).unwrap(), None);
        headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(header(&headers).unwrap(), Some(b"Bearer a".as_slice()));
        headers.append(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert_eq!(header(&headers).unwrap_err().kind, ErrorKind::Unauthorized);
    }
}
