//! Keeps configured secrets out of the texts that the gateway composes of what others said: error messages, log lines, what
//! the dashboard shows. What a server answers to a call is not touched.
//!
//! The secrets are those of the process: errors and log lines come from everywhere.

use std::{
    borrow::Cow,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Stands in place of a secret.
pub const MASK: &str = "[secret]";
/// The shortest secret that is kept out of texts, in bytes: shorter ones are part of too many words.
pub const MIN_SECRET: usize = 6;

/// Longest first, so that none shows because a part of it was hidden before.
static SECRETS: RwLock<Vec<String>> = RwLock::new(Vec::new());
static ANY: AtomicBool = AtomicBool::new(false);

/// Keeps these values out of texts for as long as the process lives, as they are and as they stand in JSON.
pub fn register_secrets(values: impl IntoIterator<Item = String>) {
    let mut all = SECRETS.write().unwrap_or_else(PoisonError::into_inner);
    for value in values {
        // A secret of several lines (a private key) is seen one line at a time.
        for line in value.lines().map(str::trim).filter(|line| line.len() >= MIN_SECRET) {
            let quoted = crate::json::quoted(line);
            all.push(line.to_owned());
            all.extend(json_spellings(quoted.trim_matches('"')));
        }
    }
    all.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    all.dedup();
    ANY.store(!all.is_empty(), Ordering::Release);
}

/// Returns the text without the secrets in it.
#[must_use]
pub fn redact(text: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(text);
    if !ANY.load(Ordering::Acquire) {
        return out;
    }
    for secret in &*SECRETS.read().unwrap_or_else(PoisonError::into_inner) {
        if out.contains(secret.as_str()) {
            out = Cow::Owned(out.replace(secret.as_str(), MASK));
        }
    }
    out
}

/// The spellings of a text in JSON, of which this is the plain one: some writers escape `/`, others what HTML or scripts take
/// for markup.
fn json_spellings(plain: &str) -> Vec<String> {
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
        register_secrets(["a/b&c<d>e+f".to_owned()]);
        register_secrets(["short".to_owned(), "first-line-1\nsecond-line-1".to_owned()]);
        for (text, expected) in [
            ("a redact-me-1 b redact-me-1-and-more", "a [secret] b [secret]"),
            (r#"quo"te-me-1 and {"x":"quo\"te-me-1"}"#, r#"[secret] and {"x":"[secret]"}"#),
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
