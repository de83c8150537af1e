//! Which URIs a URI template stands for (RFC 6570, levels 1 to 3): the other way round than templates are meant, so
//! generous where values could have been written in several ways.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// Longer templates are matched by nothing.
const MAX_LEN: usize = 8192;
/// Bytes of a compiled template.
const MAX_COMPILED: usize = 1 << 20;

/// A template that is compiled when a URI comes that it may stand for.
pub struct Template {
    text: String,
    /// What every URI of it begins with.
    literal: usize,
    compiled: OnceLock<Option<Regex>>,
}

impl Template {
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned(), literal: text.find('{').unwrap_or(text.len()), compiled: OnceLock::new() }
    }

    #[must_use]
    pub fn matches(&self, uri: &str) -> bool {
        uri.starts_with(&self.text[..self.literal])
            && self.compiled.get_or_init(|| compile(&self.text)).as_ref().is_some_and(|regex| regex.is_match(uri))
    }
}

fn compile(template: &str) -> Option<Regex> {
    if template.len() > MAX_LEN {
        return None;
    }
    let mut pattern = String::from("^");
    let mut rest = template;
    while let Some((literal, after)) = rest.split_once('{') {
        pattern.push_str(&regex::escape(literal));
        let (expression, tail) = after.split_once('}')?;
        pattern.push_str(values(expression)?);
        rest = tail;
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    RegexBuilder::new(&pattern).size_limit(MAX_COMPILED).build().ok()
}

/// What an expression may have become. Several variables and their modifiers need no more: the class of each covers
/// the separators too (RFC 6570 section 3.2).
fn values(expression: &str) -> Option<&'static str> {
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
    fn expressions_match_what_they_may_have_become() {
        for (template, yes, no) in [
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
            // No templates: they stand for nothing.
            ("a:{", &[], &["a:{", "a:"]),
            ("a:{}", &[], &["a:{}", "a:"]),
            ("a:{x y}", &[], &["a:1"]),
        ] {
            let template = Template::new(template);
            for uri in yes {
                assert!(template.matches(uri), "{} {uri}", template.text);
            }
            for uri in no {
                assert!(!template.matches(uri), "{} {uri}", template.text);
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(template in "[a{}+*.:/?é]{0,20}", uri in ".{0,20}") {
            let _ = Template::new(&template).matches(&uri);
        }
    }
}
