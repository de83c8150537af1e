//! Masks configured secrets in texts that quote other parties: error messages, log lines and the states of servers.
//! What reviewers decide on is not masked: two different values would look the same. Results and definitions of tools are not
//! changed either.
//!
//! The secrets are global to the process, because errors and log lines are created everywhere.

use std::{
    borrow::Cow,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::json;

/// The text that replaces a secret.
pub const MASK: &str = "[secret]";
/// Minimum bytes of a secret that is masked. Shorter secrets occur in too many words.
pub const MIN_SECRET_BYTES: usize = 6;

/// All secrets, the longest first, so that a secret that contains another one is masked as a whole.
static SECRETS: RwLock<Vec<String>> = RwLock::new(Vec::new());
static HAS_SECRETS: AtomicBool = AtomicBool::new(false);

/// Registers values to be masked, both as plain text and in their JSON spellings.
pub fn register_secrets(values: impl IntoIterator<Item = String>) {
    let mut all = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
    for value in values {
        // Each line of a multi-line secret (a private key) is masked on its own, because texts may show a single line.
        for line in value.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET_BYTES) {
            let quoted = json::quoted(line);
            all.push(line.to_owned());
            all.extend(json::inside_quotes(&quoted).into_iter().flat_map(json_spellings));
        }
    }
    all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    all.dedup();
    HAS_SECRETS.store(!all.is_empty(), Ordering::Release);
}

/// Returns the text with all secrets masked.
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(text);
    if !HAS_SECRETS.load(Ordering::Acquire) {
        return out;
    }
    for secret in &*SECRETS.read().unwrap_or_else(PoisonError::into_inner) {
        if out.contains(secret.as_str()) {
            out = Cow::Owned(out.replace(secret.as_str(), MASK));
        }
    }
    out
}

/// Returns the JSON spellings of a text. Some writers escape `/`, and some escape the characters that are markup in HTML or
/// scripts.
fn json_spellings(plain: &str) -> Vec<String> {
    let mut all = Vec::new();
    // The characters that a writer escapes, and `true` if its hexadecimal digits are upper case.
    for (escaped, is_upper_case) in [("", false), ("&<>", false), ("&<>", true), ("&<>+'`", true)] {
        let spelling: String = plain
            .chars()
            .map(|c| match (escaped.contains(c), is_upper_case) {
                (false, _) => c.to_string(),
                (true, false) => format!("\\u{:04x}", u32::from(c)),
                (true, true) => format!("\\u{:04X}", u32::from(c)),
            })
            .collect();
        all.push(spelling.replace('/', "\\/"));
        all.push(spelling);
    }
    all.sort();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_raw_and_json_escaped() {
        register_secrets(["redact-me-1".to_owned(), "redact-me-1-and-more".to_owned(), "quo\"te-me-1".to_owned()]);
        register_secrets(["a/b&c<d>e+f".to_owned(), "end-quote-1\"".to_owned()]);
        register_secrets(["short".to_owned(), "first-line-1\nsecond-line-1".to_owned()]);
        for (text, expected) in [
            ("a redact-me-1 b redact-me-1-and-more", "a [secret] b [secret]"),
            (r#"quo"te-me-1 and {"x":"quo\"te-me-1"}"#, r#"[secret] and {"x":"[secret]"}"#),
            (r#"end-quote-1" and {"x":"end-quote-1\""}"#, r#"[secret] and {"x":"[secret]"}"#),
            ("short; first-line-1, second-line-1", "short; [secret], [secret]"),
            (r"a/b&c<d>e+f a\/b&c<d>e+f a/b\u0026c\u003cd\u003ee+f", "[secret] [secret] [secret]"),
            (r"a\/b\u0026c\u003cd\u003ee+f a\/b\u0026c\u003Cd\u003Ee+f", "[secret] [secret]"),
            (r"a/b\u0026c\u003Cd\u003Ee+f a/b\u0026c\u003Cd\u003Ee\u002Bf", "[secret] [secret]"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(redact(text), expected);
        }
    }
}
