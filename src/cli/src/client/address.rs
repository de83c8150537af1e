//! Addresses of a gateway and of its REST resources.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use crate::{
    exit::{Exit, Failure},
    output::one_line,
};

/// Parses the address of a gateway.
///
/// # Errors
/// Fails if the text is not the URL of a gateway.
pub fn parse(text: &str) -> Result<Url, Failure> {
    let invalid_url = || {
        let message = format!("{} is not the URL of a gateway; write http://127.0.0.1:8080", one_line(text));
        Failure::new(Exit::Usage, message)
    };
    let url = Url::parse(text).map_err(|_| invalid_url())?;
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    let is_base = url.host().is_some() && url.query().is_none() && url.fragment().is_none();
    let is_http = matches!(url.scheme(), "http" | "https");
    if is_http && is_base && !has_credentials { Ok(url) } else { Err(invalid_url()) }
}

/// Characters that are percent-encoded in a path segment.
const PATH_SEGMENT_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.');

/// Returns the URL of the REST resource at `path` of the gateway `base`.
pub fn endpoint(base: &Url, path: &[&str], query: &[(&str, &str)]) -> String {
    let mut url = join_path(&format!("{}/api", base.as_str().trim_end_matches('/')), path);
    for (at, (name, value)) in query.iter().enumerate() {
        url.push(if at == 0 { '?' } else { '&' });
        url.push_str(name);
        url.push('=');
        url.extend(utf8_percent_encode(value, PATH_SEGMENT_ESCAPES));
    }
    url
}

/// Returns the link to a page of the dashboard of the gateway `base`.
pub fn dashboard_page(base: &str, page: &[&str]) -> String {
    join_path(&format!("{}/#", base.trim_end_matches('/')), page)
}

fn join_path(base: &str, path: &[&str]) -> String {
    let mut url = base.to_owned();
    for part in path {
        url.push('/');
        // An empty part, `.` or `..` would lead to another path. The space leads to none, because nothing has this name.
        let part = if matches!(*part, "" | "." | "..") { " " } else { *part };
        url.extend(utf8_percent_encode(part, PATH_SEGMENT_ESCAPES));
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
        assert_eq!(endpoint(&base, &["changes", ".."], &[]), "http://127.0.0.1:8080/api/changes/%20");
        assert_eq!(endpoint(&base, &["servers", "a/b%+"], &[]), "http://127.0.0.1:8080/api/servers/a%2Fb%25%2B");
        assert_eq!(endpoint(&base, &["servers", "..."], &[]), "http://127.0.0.1:8080/api/servers/...");
        assert_eq!(dashboard_page(base.as_str(), &["servers", "a b"]), "http://127.0.0.1:8080/#/servers/a%20b");
        for bad in ["127.0.0.1:8080", "ftp://x", "http://u:p@x", "http://x/?a", "x"] {
            assert_eq!(parse(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }
}
