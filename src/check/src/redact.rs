//! Removes credentials from reports, because a server may repeat what it received.

use std::{borrow::Cow, collections::BTreeSet, ops::Range};

use base64::{Engine as _, prelude::BASE64_STANDARD};

use crate::Target;

/// The shortest secret in bytes; masking shorter values (`1`, `no`) would make reports illegible.
const MIN_SECRET_BYTES: usize = 4;
const MASK: &str = "[secret]";
/// The end of a truncated text.
const ELLIPSIS: char = '…';

/// Masks given secrets, the values of headers and environment variables, and the credentials and query of the URL. A user name
/// counts as a credential if it has no password, because some services take a token there. The type is not `Debug`, so that no
/// log shows the secrets.
#[derive(Default)]
pub(crate) struct Redactor {
    /// Longest first, so that a secret that contains another one is masked as a whole.
    secrets: Vec<String>,
}

impl Redactor {
    pub fn new(target: &Target, secrets: &[String]) -> Self {
        let mut secret_values = secrets.to_vec();
        match target {
            Target::Command { env, .. } => env.iter().for_each(|(_, value)| secret_values.push(value.clone())),
            Target::Http { url, headers } | Target::WebSocket { url, headers } => {
                headers.iter().for_each(|(name, value)| collect_header_secrets(name, value, &mut secret_values));
                secret_values.push(url.password().unwrap_or(url.username()).to_owned());
                secret_values.extend(url.query().map(str::to_owned));
                secret_values.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
            }
        }
        // A message that is quoted in another message is escaped twice.
        let mut secrets = Vec::new();
        for text in secret_values.iter().flat_map(|value| value.lines()) {
            let mut spellings = vec![text.trim().to_owned()];
            for _ in 0..2 {
                let escaped: BTreeSet<String> =
                    spellings.iter().flat_map(|spelling| json_spellings(spelling)).collect();
                secrets.extend(std::mem::replace(&mut spellings, escaped.into_iter().collect()));
            }
            secrets.extend(spellings);
        }
        secrets.retain(|secret| secret.len() >= MIN_SECRET_BYTES);
        secrets.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        secrets.dedup();
        Self { secrets }
    }

    /// Masks all secrets, including prefixes of secrets at the ends of truncated texts.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for secret in &self.secrets {
            if text.contains(secret.as_str()) {
                text = Cow::Owned(text.replace(secret.as_str(), MASK));
            }
            let truncated_secrets: Vec<Range<usize>> =
                text.match_indices(ELLIPSIS).filter_map(|(end, _)| range_of_prefix(secret, &text, end)).collect();
            for range in truncated_secrets.into_iter().rev() {
                text.to_mut().replace_range(range, MASK);
            }
        }
        text
    }
}

/// Returns the range of the longest prefix of the secret that ends at `end`.
fn range_of_prefix(secret: &str, text: &str, end: usize) -> Option<Range<usize>> {
    let before = text.get(..end)?;
    let is_before = |length: &usize| secret.get(..*length).is_some_and(|prefix| before.ends_with(prefix));
    let length = (MIN_SECRET_BYTES..secret.len()).rev().find(is_before)?;
    Some(end - length..end)
}

/// Collects the value and the parts that a server may repeat alone: the token after a scheme, a password, a cookie
/// value.
fn collect_header_secrets(name: &str, value: &str, found: &mut Vec<String>) {
    found.push(value.to_owned());
    if let Some((scheme, token)) = value.trim().split_once(' ') {
        found.push(token.trim().to_owned());
        let plain = BASE64_STANDARD.decode(token.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(plain) = plain.filter(|_| scheme.eq_ignore_ascii_case("basic")) {
            found.extend(plain.split_once(':').map(|(_, password)| password.to_owned()));
            found.push(plain);
        }
    }
    if name.eq_ignore_ascii_case("cookie") {
        found.extend(value.split(';').filter_map(|cookie| Some(cookie.split_once('=')?.1.trim().to_owned())));
    }
}

/// Returns the JSON spellings of a text. Some JSON writers escape `/`, and some escape characters with a meaning in HTML or
/// scripts.
fn json_spellings(text: &str) -> Vec<String> {
    let quoted = serde_json::to_string(text).unwrap_or_default();
    let plain = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
    let mut all = Vec::new();
    for (escaped, upper) in [("", false), ("&<>", false), ("&<>", true), ("&<>+'`", true)] {
        let spelling: String = plain
            .chars()
            .map(|c| match (escaped.contains(c), upper) {
                (false, _) => c.to_string(),
                (true, false) => format!("\\u{:04x}", u32::from(c)),
                (true, true) => format!("\\u{:04X}", u32::from(c)),
            })
            .collect();
        all.push(spelling.replace('/', "\\/"));
        all.push(spelling);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor(headers: &[(&str, &str)]) -> Redactor {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let url = "https://me:pass-word@a.example/mcp?key=query-key".parse().unwrap();
        Redactor::new(&Target::Http { url, headers }, &[])
    }

    #[test]
    fn secrets_are_masked_in_every_spelling() {
        let redactor = redactor(&[
            ("Authorization", "Bearer tok-en-1"),
            ("Proxy-Authorization", "Basic bWU6aHVudGVyMg=="),
            ("Cookie", "a=1; session=abc-def"),
            ("X-Odd", "a\"b\\c"),
            ("X-Markup", "a/b&c<d>e+f"),
            ("X-Quoted", "say-\"word\""),
        ]);
        for (text, expected) in [
            ("nothing here", "nothing here"),
            ("Bearer tok-en-1, tok-en-1", "[secret], [secret]"),
            ("me:hunter2 and hunter2", "[secret] and [secret]"),
            ("abc-def a=1", "[secret] a=1"),
            (r#"a"b\c"#, "[secret]"),
            (r#""a\"b\\c""#, r#""[secret]""#),
            (r#""{\"x\":\"a\\\"b\\\\c\"}""#, r#""{\"x\":\"[secret]\"}""#),
            (r#"{"x":"say-\"word\""}"#, r#"{"x":"[secret]"}"#),
            (r#""{\"x\":\"say-\\\"word\\\"\"}""#, r#""{\"x\":\"[secret]\"}""#),
            (r"a/b&c<d>e+f a\/b&c<d>e+f a/b\u0026c\u003cd\u003ee+f", "[secret] [secret] [secret]"),
            (r"a\/b\u0026c\u003cd\u003ee+f a\/b\u0026c\u003Cd\u003Ee+f", "[secret] [secret]"),
            (r"a/b\u0026c\u003Cd\u003Ee\u002Bf a\\/b\\u0026c\\u003cd\\u003ee+f", "[secret] [secret]"),
            ("pass-word key=query-key query-key", "[secret] [secret] [secret]"),
            ("…and so on tok-e… (9 bytes)", "…and so on [secret]… (9 bytes)"),
            ("first tok-e…, then tok-en-…", "first [secret]…, then [secret]…"),
        ] {
            assert_eq!(redactor.redact(text), expected, "{text}");
        }
    }

    #[test]
    fn user_name_without_password_is_masked() {
        let masked = |url: &str| {
            let target = Target::Http { url: url.parse().unwrap(), headers: Vec::new() };
            Redactor::new(&target, &[]).redact("user-token").into_owned()
        };
        assert_eq!(masked("https://user-token@a.example/"), "[secret]");
        assert_eq!(masked("https://user-token:@a.example/"), "[secret]");
        assert_eq!(masked("https://user-token:pass-word@a.example/"), "user-token");
    }

    #[test]
    fn environment_values_are_hidden() {
        let env = vec![("TOKEN".to_owned(), "first-line\nsecond".to_owned()), ("N".to_owned(), "1".to_owned())];
        let target = Target::Command { program: String::new(), arguments: Vec::new(), env, cwd: None };
        let redactor = Redactor::new(&target, &["given".to_owned()]);
        assert_eq!(redactor.redact("first-line 1 second given"), "[secret] 1 [secret] [secret]");
    }
}
