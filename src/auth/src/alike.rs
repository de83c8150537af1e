//! Refuses names that look like another one in use: people read off a screen whose key decided.

use unicode_security::skeleton;

use super::keys::RESERVED_NAMES;
use countersign_domain::changes::people::{folded, same_name};
use countersign_protocol::{ErrorKind, McpError};

/// Refuses a name or an owner that is another than one that is known and looks like it: in another script, with invisible
/// characters, with digits for letters (UTS 39, "Confusable Detection"). What counts as the same name
/// ([`same_name`]) is no other.
///
/// # Errors
/// `INVALID_PARAMS` that names both.
pub fn check<'a>(new: &str, known: impl IntoIterator<Item = &'a str>) -> Result<(), McpError> {
    let looks = looks(new);
    let taken = |known: &&str| !same_name(new, known) && looks.iter().zip(self::looks(known)).any(|(a, b)| *a == b);
    let Some(other) = known.into_iter().chain(RESERVED_NAMES).find(taken) else { return Ok(()) };
    let message = format!(
        "{new:?} looks like {other:?}, a name that is in use already; choose one that cannot be mistaken for it, or write \
         exactly {other:?} for the same person"
    );
    Err(McpError::new(ErrorKind::InvalidParams, message).with("known", other))
}

/// As it is written, and without regard to case: `I` looks like `l`, and `i` does not.
fn looks(name: &str) -> [String; 2] {
    [skeleton(name).collect(), skeleton(&folded(name)).collect()]
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
            ("rnike", "mike"),
            ("systern", "ops"),
            ("loca1-agent", "ops"),
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
            ("Ärmel", "ärmel"),
            ("a", "b"),
        ] {
            check(new, ["x", known]).unwrap_or_else(|error| panic!("{new}: {}", error.message));
        }
    }
}
