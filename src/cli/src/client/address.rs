//! Addresses of a gateway, and of what its REST endpoint has below them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::{
    exit::{Exit, Failure},
    output::one_line,
};

/// The address of a gateway, as a person or its data directory names it.
///
/// # Errors
/// No gateway has such an address.
pub fn parse(text: &str) -> Result<Url, Failure> {
    let wrong = || {
        let message = format!("{} is not the URL of a gateway; write http://127.0.0.1:8080", one_line(text));
        Failure::new(Exit::Usage, message)
    };
    let url = Url::parse(text).map_err(|_| wrong())?;
    let plain =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    if plain && matches!(url.scheme(), "http" | "https") && url.host().is_some() { Ok(url) } else { Err(wrong()) }
}

/// Where REST has what the path names, at the gateway `base`.
pub fn endpoint(base: &Url, path: &[&str], query: &[(&str, &str)]) -> String {
    /// What may stand in a path segment as it is.
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');
    let mut url = format!("{}/api", base.as_str().trim_end_matches('/'));
    for part in path {
        url.push('/');
        // A lone `.` or `..` would be another path.
        let part = if part.chars().all(|c| c == '.') { "%2E" } else { part };
        url.extend(utf8_percent_encode(part, PLAIN));
    }
    for (at, (name, value)) in query.iter().enumerate() {
        url.push(if at == 0 { '?' } else { '&' });
        url.push_str(name);
        url.push('=');
        url.extend(utf8_percent_encode(value, PLAIN));
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_built_from_parts() {
        let base = parse("http://127.0.0.1:8080/").unwrap();
        assert_eq!(endpoint(&base, &["changes"], &[]), "http://127.0.0.1:8080/api/changes");
        assert_eq!(
            endpoint(&base, &["changes", "../../x?y#z"], &[("a", "1"), ("b", "x&y z")]),
            "http://127.0.0.1:8080/api/changes/..%2F..%2Fx%3Fy%23z?a=1&b=x%26y%20z"
        );
        assert_eq!(endpoint(&base, &["changes", ".."], &[]), "http://127.0.0.1:8080/api/changes/%252E");
        for bad in ["127.0.0.1:8080", "ftp://x", "http://u:p@x", "http://x/?a", "x"] {
            assert_eq!(parse(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
