//! The challenge in the refusal of a server (RFC 6750, section 3; RFC 9728, section 5.1; RFC 9449, section 7.1).

use super::read_scopes;

/// The maximum number of values of the header that are read.
const MAX_VALUES: usize = 16;
/// The maximum number of bytes of a value that is read.
const MAX_VALUE_LEN: usize = 8 * 1024;

/// The challenge of a refused request: the kind of token and the scopes that the server demands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    pub resource_metadata: Option<String>,
    pub scopes: Option<Vec<String>>,
    /// The error code, such as `invalid_token`, `insufficient_scope` or `use_dpop_nonce`.
    pub error: Option<String>,
    /// `true` if the server offers DPoP and not Bearer.
    pub is_dpop: bool,
}

impl Challenge {
    /// Reads the values of `WWW-Authenticate`. Returns `None` without a challenge of the schemes `Bearer` and `DPoP`.
    /// Each parameter is taken from the first of these challenges that has it.
    pub fn parse(values: &[String]) -> Option<Self> {
        let values = values.iter().take(MAX_VALUES).filter(|value| value.len() <= MAX_VALUE_LEN);
        let challenges: Vec<SchemeChallenge<'_>> = values.flat_map(|value| read_challenges(value)).collect();
        let has_scheme = |name: &str| challenges.iter().any(|challenge| challenge.scheme.eq_ignore_ascii_case(name));
        let (has_bearer, has_dpop) = (has_scheme("bearer"), has_scheme("dpop"));
        if !has_bearer && !has_dpop {
            return None;
        }
        let find = |name: &str| {
            let usable = challenges.iter().filter(|challenge| {
                challenge.scheme.eq_ignore_ascii_case("bearer") || challenge.scheme.eq_ignore_ascii_case("dpop")
            });
            let mut parameters = usable.flat_map(|challenge| &challenge.parameters);
            let value = parameters.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone());
            value.filter(|value| value.bytes().all(|byte| matches!(byte, b' '..=b'~')))
        };
        let scopes = find("scope").map(|text| read_scopes(text.split(' ')));
        Some(Self {
            resource_metadata: find("resource_metadata"),
            scopes: scopes.filter(|scopes| !scopes.is_empty()),
            error: find("error"),
            is_dpop: has_dpop && !has_bearer,
        })
    }
}

/// The challenge of one authentication scheme (RFC 9110, section 11.6.1).
struct SchemeChallenge<'a> {
    scheme: &'a str,
    parameters: Vec<(&'a str, String)>,
}

/// Reads the challenges of one value, and skips everything else.
fn read_challenges(value: &str) -> Vec<SchemeChallenge<'_>> {
    let mut challenges: Vec<SchemeChallenge<'_>> = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if rest.is_empty() {
            return challenges;
        }
        let (name, after) = split_token(rest);
        let equals = after.trim_start_matches([' ', '\t']).strip_prefix('=');
        match (name, equals, challenges.last_mut()) {
            ("", _, _) | (_, Some(_), None) => rest = skip_to_next_item(rest),
            (scheme, None, _) => {
                challenges.push(SchemeChallenge { scheme, parameters: Vec::new() });
                rest = after;
            }
            (name, Some(after), Some(challenge)) => {
                let after = after.trim_start_matches([' ', '\t']);
                let (text, after) = match after.strip_prefix('"') {
                    // Without a closing quote, the value may be cut off.
                    Some(quoted) => match split_quoted(quoted) {
                        Some(split) => split,
                        None => return challenges,
                    },
                    None => {
                        let (token, after) = split_token(after);
                        (token.to_owned(), after)
                    }
                };
                // If other text follows before the next comma, this is a `token68` or invalid, and not a parameter.
                if after.trim_start_matches([' ', '\t']).starts_with(',') || after.trim().is_empty() {
                    challenge.parameters.push((name, text));
                }
                rest = skip_to_next_item(after);
            }
        }
    }
}

/// Returns the text after the next comma that is not quoted.
fn skip_to_next_item(mut rest: &str) -> &str {
    loop {
        let Some(at) = rest.find([',', '"']) else { return "" };
        let after = &rest[at + 1..];
        if rest[at..].starts_with(',') {
            return after;
        }
        let Some((_, after)) = split_quoted(after) else { return "" };
        rest = after;
    }
}

/// Splits off the token (RFC 9110, section 5.6.2) at the beginning, which may be empty.
fn split_token(text: &str) -> (&str, &str) {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    text.split_at(text.find(|c| !is_token(c)).unwrap_or(text.len()))
}

/// Splits a text after its opening quote. Returns the quoted text and what follows the closing quote.
fn split_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(characters.next()?.1),
            (_, character) => value.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(values: &[&str]) -> Option<Challenge> {
        Challenge::parse(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn parameters_are_read_from_quoted_strings_and_tokens() {
        let challenge = parse(&[concat!(
            r#"Bearer realm="a, \"b\" scope=\"x\"", error=insufficient_scope , scope="files:read  files:write","#,
            r#" resource_metadata = "https://a.example/.well-known/oauth-protected-resource""#,
        )]);
        let expected = Challenge {
            resource_metadata: Some("https://a.example/.well-known/oauth-protected-resource".to_owned()),
            scopes: Some(vec!["files:read".to_owned(), "files:write".to_owned()]),
            error: Some("insufficient_scope".to_owned()),
            is_dpop: false,
        };
        assert_eq!(challenge, Some(expected));
    }

    #[test]
    fn one_of_several_challenges_is_found() {
        for values in [
            &[r#"Basic realm="scope=no, Bearer", Bearer scope=a"#][..],
            &["Negotiate abc==, bearer scope=a"],
            &["Negotiate", "Basic realm=x", "BEARER scope=\"a\""],
            &["Digest scope=b, Bearer, scope=a"],
            &["Bearer scope=a, DPoP algs=\"ES256\", scope=b"],
        ] {
            let challenge = parse(values).unwrap();
            assert_eq!(challenge.scopes, Some(vec!["a".to_owned()]), "{values:?}");
            assert!(!challenge.is_dpop);
        }
        let challenge = parse(&["DPoP error=\"use_dpop_nonce\", algs=\"ES256\""]).unwrap();
        assert!(challenge.is_dpop);
        assert_eq!(challenge.error.as_deref(), Some("use_dpop_nonce"));
    }

    #[test]
    fn other_schemes_are_ignored() {
        for values in [&[][..], &[""], &["Basic realm=\"Bearer\""], &["scope=a"], &["\"Bearer\" scope=a"], &["=,;@ ="]]
        {
            assert_eq!(parse(values), None, "{values:?}");
        }
        assert_eq!(parse(&[&format!("Bearer {}", "x".repeat(MAX_VALUE_LEN))]), None);
        assert_eq!(parse(&["Bearer"]), Some(Challenge::default()));
    }

    #[test]
    fn truncated_parameter_is_not_read() {
        assert_eq!(parse(&["Bearer error=x, scope=\"a b"]).unwrap().scopes, None);
        assert_eq!(parse(&["Bearer scope=a b, error=\"x\"y"]).unwrap(), Challenge::default());
        assert_eq!(parse(&["Bearer scope=\"\x07 \\\" \""]).unwrap().scopes, None);
    }

    proptest! {
        #[test]
        fn any_value_is_read_without_a_panic(value in "([Bb]earer|[ ,=\"\\\\a-cä]|scope){0,40}") {
            let _ = parse(&[&value]);
        }
    }
}
