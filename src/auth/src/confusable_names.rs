//! Rejects names that look like an existing one, because people identify reviewers by name on a screen.

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};
use unicode_security::skeleton;

use super::keys::RESERVED_NAMES;
use countersign_domain::changes::person::fold_name;
use countersign_protocol::{ErrorKind, McpError};

/// Rejects a name or an owner that differs from a known one but looks like it: through another script, accents,
/// invisible characters, or digits for letters (UTS 39, "Confusable Detection"). A known name passes, even in another
/// case or width. A name that counts as a known person but is spelled differently (`alıce` and `alice`) is rejected.
///
/// # Errors
/// `INVALID_PARAMS` with both names.
pub fn check_is_distinguishable<'a>(new: &str, known_names: impl IntoIterator<Item = &'a str>) -> Result<(), McpError> {
    let known_names: Vec<&str> = known_names.into_iter().collect();
    if known_names.iter().any(|known| is_same_spelling(new, known)) {
        return Ok(());
    }
    let new_skeletons = skeletons(new);
    let is_confusable = |known: &&str| new_skeletons.iter().zip(skeletons(known)).any(|(a, b)| *a == b);
    let Some(other) = known_names.into_iter().chain(RESERVED_NAMES).find(is_confusable) else { return Ok(()) };
    let message = format!(
        "{new:?} looks like {other:?}, a name that is in use already; choose one that cannot be mistaken for it, or write \
         exactly {other:?} for the same person"
    );
    Err(McpError::new(ErrorKind::InvalidParams, message).with("known", other))
}

fn is_same_spelling(a: &str, b: &str) -> bool {
    let normalize = |name: &str| name.nfkc().collect::<String>().to_lowercase();
    normalize(a) == normalize(b)
}

/// Returns the UTS 39 skeletons of the name as written and of its case-folded form, since `I` looks like `l` and `i`
/// does not. Accents are removed, and the skeletons are in lower case, because UTS 39 maps `0` to `O`.
fn skeletons(name: &str) -> [String; 2] {
    let lower_skeleton = |name: &str| -> String {
        let without_marks: String = name.nfd().filter(|c| !is_combining_mark(*c)).collect();
        skeleton(&without_marks).collect::<String>().to_lowercase()
    };
    [lower_skeleton(name), lower_skeleton(&fold_name(name))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confusable_name_is_refused_but_same_name_passes() {
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
            let error = check_is_distinguishable(new, ["x", known]).unwrap_err();
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
            check_is_distinguishable(new, ["x", known]).unwrap_or_else(|error| panic!("{new}: {}", error.message));
        }
        // Both names are in use, so both remain usable.
        check_is_distinguishable("jose", ["jos\u{e9}", "jose"]).unwrap();
    }
}
