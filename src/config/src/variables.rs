//! Expands `${VAR}` and `${VAR:-default}` in texts of the configuration file.

use super::{environment::Environment, error::ValueError};

/// Expands `${VAR}`, `${VAR:-default}` and `${env:VAR}`, which some clients write. The default is used verbatim if the
/// variable is unset or empty. `$${` is an escaped `${`, and any other `$` is unchanged.
///
/// # Errors
/// A variable is unset or not Unicode, a name is invalid, or a brace is not closed.
pub fn expand(text: &str, env: &Environment) -> Result<String, ValueError> {
    let mut out = String::with_capacity(text.len());
    for piece in parse_pieces(text)? {
        match piece {
            Piece::Literal(text) => out.push_str(text),
            Piece::Variable { name, default } => out.push_str(resolve(name, default, env)?),
        }
    }
    Ok(out)
}

/// Returns `true` if the text consists only of variables without defaults, and optionally the scheme of a credential.
/// Such a text reveals no secret.
#[must_use]
pub fn is_safe_to_show(text: &str) -> bool {
    let Ok(pieces) = parse_pieces(text) else { return false };
    let mut found = false;
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Variable { default: None, .. } => found = true,
            Piece::Literal("Bearer " | "Basic " | "Token " | "bearer " | "token ") if index == 0 => {}
            Piece::Variable { .. } | Piece::Literal(_) => return false,
        }
    }
    found || text.is_empty()
}

/// Returns the text with the names of its variables, without their values and defaults.
#[must_use]
pub fn hide_values(text: &str) -> String {
    let Ok(pieces) = parse_pieces(text) else { return text.to_owned() };
    let parts = pieces.iter().map(|piece| match piece {
        Piece::Literal(text) => (*text).to_owned(),
        Piece::Variable { name, .. } => format!("${{{name}}}"),
    });
    parts.collect()
}

enum Piece<'a> {
    Literal(&'a str),
    Variable { name: &'a str, default: Option<&'a str> },
}

fn parse_pieces(text: &str) -> Result<Vec<Piece<'_>>, ValueError> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            pieces.push(Piece::Literal(before));
            pieces.push(Piece::Literal("${"));
            rest = from.get(2..).unwrap_or_default();
            continue;
        }
        if !before.is_empty() {
            pieces.push(Piece::Literal(before));
        }
        let Some(end) = from.find('}') else {
            return Err((
                "a `${` is not closed".to_owned(),
                "Write `}` after the name, or $${ for the two characters.".to_owned(),
            ));
        };
        let inside = from.get(2..end).unwrap_or_default();
        rest = from.get(end + 1..).unwrap_or_default();
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !name.starts_with(first) || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let remedy =
                "Write ${NAME} or ${NAME:-default}, or $${ for the characters; nothing else is filled in here.";
            return Err((format!("{} is not the name of a variable", super::error::quoted(name)), remedy.to_owned()));
        }
        pieces.push(Piece::Variable { name, default });
    }
    if !rest.is_empty() {
        pieces.push(Piece::Literal(rest));
    }
    Ok(pieces)
}

fn resolve<'a>(name: &str, default: Option<&'a str>, env: &'a Environment) -> Result<&'a str, ValueError> {
    let not_unicode =
        || (format!("the environment variable {name} is not Unicode"), "Set it again, or unset it.".to_owned());
    let set = env.var_or_empty(name).map_err(|_| not_unicode())?;
    match (set, default) {
        (None | Some(""), Some(default)) => Ok(default),
        (Some(value), _) => {
            env.record_use(name, value);
            Ok(value)
        }
        (None, None) => Err((
            format!("the environment variable {name} is not set"),
            format!("Set it where the gateway is started, or give a default: ${{{name}:-…}}."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn env() -> Environment {
        Environment::new(Path::new("/"), &[("A", "one"), ("EMPTY", ""), ("B_2", "${A}")])
    }

    #[test]
    fn variables_are_expanded() {
        let cases = [
            ("", ""),
            ("plain $A $ }", "plain $A $ }"),
            ("${A}", "one"),
            ("x${A}y${env:A}z", "xoneyonez"),
            ("${B_2}", "${A}"),
            ("${EMPTY}", ""),
            ("${EMPTY:-d}", "d"),
            ("${NONE:-}", ""),
            ("${NONE:-https://a:1/b}", "https://a:1/b"),
            ("${A:-d}", "one"),
            ("$${A}", "${A}"),
            ("a$$b$${", "a$$b${"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, &env()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_expansion_is_reported() {
        for (text, part) in [
            ("${NONE}", "variable NONE is not set"),
            ("${A", "is not closed"),
            ("${}", "`` is not the name of a variable"),
            ("${input:key}", "`input:key` is not the name of a variable"),
            ("${1A}", "`1A` is not the name of a variable"),
        ] {
            let (message, remedy) = expand(text, &env()).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!remedy.is_empty());
        }
    }

    #[test]
    fn hide_values_keeps_variable_names() {
        assert_eq!(hide_values("a${A}-${B:-x}$${C}"), "a${A}-${B}${C}");
        assert_eq!(hide_values("${A"), "${A");
    }

    #[test]
    fn only_plain_variables_are_safe_to_show() {
        for text in ["", "${A}", "Bearer ${A}", "${A}${B}"] {
            assert!(is_safe_to_show(text), "{text}");
        }
        for text in ["x", "x${A}", "${A}x", "${A:-x}", "Bearer x", "${A}Bearer ", "${A", "Bearer "] {
            assert!(!is_safe_to_show(text), "{text}");
        }
    }
}
