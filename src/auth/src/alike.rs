//! Refuses names that look like another one in use: people read off a screen whose key decided.

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};
use unicode_security::skeleton;

use super::keys::RESERVED_NAMES;
use countersign_domain::changes::people::folded;
use countersign_protocol::{ErrorKind, McpError};

/// Refuses a name or an owner that is another than one that is known and looks like it: in another script, with accents,
/// with invisible characters, with digits for letters (UTS 39, "Confusable Detection"). One that differs in case or width
/// alone is no other, and one that is in use passes. One that only counts as the same person (`alıce` and `alice`) is
/// refused: people read the one for the other.
///
/// # Errors
/// `INVALID_PARAMS` that names both.
pub fn check<'a>(new: &str, known: impl IntoIterator<Item = &'a str>) -> Result<(), McpError> {
    let known: Vec<&str> = known.into_iter().collect();
    if known.iter().any(|known| is_same_spelling(new, known)) {
        return Ok(());
    }
    let looks = looks(new);
    let taken = |known: &&str| looks.iter().zip(self::looks(known)).any(|(a, b)| *a == b);
    let Some(other) = known.into_iter().chain(RESERVED_NAMES).find(taken) else { return Ok(()) };
    let message = format!(
        "{new:?} looks like {other:?}, a name that is in use already; choose one that cannot be mistaken for it, or write \
         exactly {other:?} for the same person"
    );
    Err(McpError::new(ErrorKind::InvalidParams, message).with("known", other))
}

fn is_same_spelling(a: &str, b: &str) -> bool {
    let lower = |name: &str| name.nfkc().collect::<String>().to_lowercase();
    lower(a) == lower(b)
}

/// As it is written, and without regard to case: `I` looks like `l`, and `i` does not. Both without accents. What they
/// look like is compared in lower case: UTS 39 has `O` for `0`.
fn looks(name: &str) -> [String; 2] {
    let plain = |name: &str| -> String {
        let bare: String = name.nfd().filter(|c| !is_combining_mark(*c)).collect();
        skeleton(&bare).collect::<String>().to_lowercase()
    };
    [plain(name), plain(&folded(name))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_like_known_ones_are_refused_and_the_same_ones_are_not() {
        for (new, known) in [
            ("p\u{430}ul", "paul"),
            ("P\u{410}UL", "paul"),
            ("paul", "p\u{430}ul"),
            ("a1ice", "alice"),
            ("Iaura", "laura"),
            ("b\u{0585}b", "bob"),
            ("0perator", "operator"),
            ("b0b", "bob"),
            ("rnike", "mike"),
            ("systern", "ops"),
            ("loca1-agent", "ops"),
            ("al\u{131}ce", "alice"),
            ("alice\u{301}", "alice"),
            ("ali\u{307}ce", "alice"),
            ("al\u{ed}ce", "alice"),
            ("alice", "\u{e1}lice"),
            ("op\u{e9}rator", "ops"),
        ] {
            let error = check(new, ["x", known]).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidParams);
            let other = if known == "ops" { error.data["known"].as_str().unwrap() } else { known };
            assert!(error.message.contains(other), "{}", error.message);
        }
        for (new, known) in [
            ("paul", "paul"),
            ("Paul", "paul"),
            ("PAUL", "\u{ff50}aul"),
            ("paula", "paul"),
            ("a\u{308}rmel", "\u{e4}rmel"),
            ("Ärmel", "ärmel"),
            ("a", "b"),
        ] {
            check(new, ["x", known]).unwrap_or_else(|error| panic!("{new}: {}", error.message));
        }
        // Both are in use: nobody is locked out.
        check("jose", ["jos\u{e9}", "jose"]).unwrap();
    }
}
