//! Matches URIs against URI templates (RFC 6570, levels 1 to 3). Templates are designed for expansion, so matching is
//! lenient where a value can be encoded in several ways.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Maximum length of a template in bytes. Longer templates match nothing.
const MAX_TEMPLATE_LEN: usize = 8192;
/// Maximum number of bytes of a compiled template.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// A URI template that is compiled when a URI with its literal beginning is matched.
pub struct UriTemplate {
    text: String,
    /// Length of the literal text before the first expression.
    literal_len: usize,
    compiled: OnceLock<Option<Regex>>,
}

impl UriTemplate {
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), literal_len: text.find('{').unwrap_or(text.len()), compiled: OnceLock::new() }
    }

    pub fn matches(&self, uri: &str) -> bool {
        uri.starts_with(&self.text[..self.literal_len])
            && self
                .compiled
                .get_or_init(|| compile_template(&self.text))
                .as_ref()
                .is_some_and(|regex| regex.is_match(uri))
    }
}

fn compile_template(template: &str) -> Option<Regex> {
    if template.len() > MAX_TEMPLATE_LEN {
        return None;
    }
    let mut pattern = String::from("^");
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        pattern.push_str(&regex::escape(literal));
        let (expression, tail) = after.split_once('}')?;
        pattern.push_str(expression_pattern(expression)?);
        rest = tail;
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    RegexBuilder::new(&pattern).size_limit(MAX_COMPILED_BYTES).build().ok()
}

/// Returns a pattern for the expansions of an expression. Several variables and modifiers need no special handling, because the
/// character class of each expression includes the separators (RFC 6570 section 3.2).
fn expression_pattern(expression: &str) -> Option<&'static str> {
    let operator = expression.chars().next()?;
    let names = expression.trim_start_matches(['+', '#', '.', '/', ';', '?', '&']);
    let well_formed = !names.is_empty()
        && names
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b',' | b'%' | b'*' | b':' | b'-'));
    if !well_formed {
        return None;
    }
    Some(match operator {
        '+' => ".*",
        '#' => "(?:#.*)?",
        '.' => r"(?:\.[^/?#]*)?",
        '/' => "(?:/[^?#]*)?",
        ';' => "(?:;[^/?#]*)?",
        '?' => r"(?:\?[^#]*)?",
        '&' => "(?:&[^#]*)?",
        _ => "[^/?#]*",
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn template_matches_expanded_uris() {
        for (template, matching, different) in [
            ("file:///{path}", &["file:///a", "file:///a%20b,c", "file:///"][..], &["file:///a/b", "gile:///a"][..]),
            ("file:///{+path}", &["file:///a/b?c#d", "file:///"], &["file://a"]),
            (
                "test://template/{id}/data",
                &["test://template/123/data"],
                &["test://template/1/2/data", "test://template/1"],
            ),
            ("a:{x,y}", &["a:1024,768"], &["a:1/2"]),
            ("a:b{.ext}", &["a:b", "a:b.txt"], &["a:btxt"]),
            ("a:b{/x,y}", &["a:b", "a:b/1/2"], &["a:b1"]),
            ("a:b{?q,r}", &["a:b", "a:b?q=1&r=2"], &["a:b&q=1"]),
            ("a:b?x=1{&q}", &["a:b?x=1", "a:b?x=1&q=1"], &["a:b?x=2"]),
            ("a:b{;q}", &["a:b;q=1"], &["a:b/q"]),
            ("a:b{#f}", &["a:b", "a:b#c/d"], &["a:bc"]),
            ("a:(.*)+{x}", &["a:(.*)+1"], &["a:b"]),
            ("a:{x*}{y:3}", &["a:1"], &["a:/"]),
            ("a:b", &["a:b"], &["a:bc"]),
            // Invalid templates match nothing.
            ("a:{", &[], &["a:{", "a:"]),
            ("a:{}", &[], &["a:{}", "a:"]),
            ("a:{x y}", &[], &["a:1"]),
        ] {
            let template = UriTemplate::new(template);
            for uri in matching {
                assert!(template.matches(uri), "{} {uri}", template.text);
            }
            for uri in different {
                assert!(!template.matches(uri), "{} {uri}", template.text);
            }
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(template in "[a{}+*.:/?é]{0,20}", uri in ".{0,20}") {
            let _ = UriTemplate::new(&template).matches(&uri);
        }
    }
}
