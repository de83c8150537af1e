//! Expands `${VAR}`, `${VAR:-default}` and `${credential:NAME}` in texts of the configuration file.

use std::{
    borrow::Cow,
    fs::File,
    io::{ErrorKind, Read},
};

use super::{
    environment::Environment,
    error::{ValueError, invalid, quoted},
};

/// Expands `${VAR}`, `${VAR:-default}`, `${env:VAR}`, which some clients write, and `${credential:NAME}`, a file of the
/// service manager. The default is used verbatim if the variable or the file is unset or empty. `$${` is an escaped `${`, and
/// any other `$` is unchanged.
///
/// # Errors
/// A variable is unset or not Unicode, a credential cannot be read, a name is invalid, or a brace is not closed.
pub fn expand(text: &str, env: &Environment) -> Result<String, ValueError> {
    let mut out = String::with_capacity(text.len());
    for piece in parse_pieces(text)? {
        match piece {
            Piece::Literal(text) => out.push_str(text),
            Piece::Value { source, default } => out.push_str(&resolve(source, default, env)?),
        }
    }
    Ok(out)
}

/// Returns `true` if the text consists only of variables and credentials without defaults, optionally after the name of an
/// authentication scheme (`Bearer `). Such a text reveals no secret.
pub fn is_safe_to_show(text: &str) -> bool {
    let Ok(pieces) = parse_pieces(text) else { return false };
    let mut has_variable = false;
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Value { default: None, .. } => has_variable = true,
            Piece::Literal("Bearer " | "Basic " | "Token " | "bearer " | "token ") if index == 0 => {}
            Piece::Value { .. } | Piece::Literal(_) => return false,
        }
    }
    has_variable || text.is_empty()
}

/// Returns the names of the variables without a default that the text refers to.
pub fn required_variables(text: &str) -> Vec<String> {
    let names = parse_pieces(text).unwrap_or_default().into_iter().filter_map(|piece| match piece {
        Piece::Value { source: Source::Variable(name), default: None } => Some(name.to_owned()),
        Piece::Value { .. } | Piece::Literal(_) => None,
    });
    names.collect()
}

/// Returns the text with the names of its variables and credentials, without their values and defaults.
pub fn hide_values(text: &str) -> String {
    replace_pieces(text, |piece| match piece {
        Piece::Literal(text) => text.into(),
        Piece::Value { source, .. } => source.to_reference().into(),
    })
}

/// Returns the text with its defaults in place of the variables that have one.
pub fn fill_defaults(text: &str) -> String {
    replace_pieces(text, |piece| match piece {
        Piece::Literal("${") => "$${".into(),
        Piece::Literal(text) | Piece::Value { default: Some(text), .. } => text.into(),
        Piece::Value { source, .. } => source.to_reference().into(),
    })
}

/// Returns the text without the variables that have no default, and with the defaults of the others.
pub fn remove_variables(text: &str) -> String {
    replace_pieces(text, |piece| match piece {
        Piece::Literal(text) | Piece::Value { default: Some(text), .. } => text.into(),
        Piece::Value { default: None, .. } => "".into(),
    })
}

/// Returns the text with each piece replaced, or unchanged if it has an invalid reference.
fn replace_pieces<'a>(text: &'a str, replace: impl Fn(Piece<'a>) -> Cow<'a, str>) -> String {
    parse_pieces(text).map_or_else(|_| text.to_owned(), |pieces| pieces.into_iter().map(replace).collect())
}

/// Returns `true` if nothing in the text but its variables can be a secret: it has at most labels before them, such as
/// `Bearer ` and `session=`.
pub fn has_only_labels(text: &str) -> bool {
    let Ok(pieces) = parse_pieces(text) else { return false };
    let is_plain = |text: &str| !text.contains(|c: char| c.is_alphanumeric());
    let is_label = |text: &str| {
        let word = text.trim_matches(|c: char| !c.is_alphanumeric());
        text.ends_with([' ', '=']) && word.chars().all(|c| c.is_ascii_alphabetic() || matches!(c, '-' | '_'))
    };
    let (mut literal, mut has_variable) = (String::new(), false);
    for piece in pieces {
        match piece {
            Piece::Literal(text) | Piece::Value { default: Some(text), .. } => literal.push_str(text),
            Piece::Value { default: None, .. } if is_plain(&literal) || is_label(&literal) => {
                has_variable = true;
                literal.clear();
            }
            Piece::Value { .. } => return false,
        }
    }
    (has_variable || literal.is_empty()) && is_plain(&literal)
}

/// The beginning of a reference to a credential.
pub(super) const CREDENTIAL_PREFIX: &str = "credential:";

/// The size limit of a credential, which is also that of systemd for all credentials of a unit.
const MAX_CREDENTIAL_BYTES: u64 = 1 << 20;

enum Piece<'a> {
    Literal(&'a str),
    Value { source: Source<'a>, default: Option<&'a str> },
}

/// The name of a value outside of the configuration.
#[derive(Clone, Copy)]
enum Source<'a> {
    Variable(&'a str),
    Credential(&'a str),
}

impl<'a> Source<'a> {
    /// Returns the reference to the value, as in `${NAME}`.
    fn to_reference(self) -> String {
        match self {
            Self::Variable(name) => format!("${{{name}}}"),
            Self::Credential(name) => format!("${{{CREDENTIAL_PREFIX}{name}}}"),
        }
    }

    fn parse(text: &'a str) -> Result<Self, ValueError> {
        if let Some(name) = text.strip_prefix(CREDENTIAL_PREFIX) {
            let is_name = !name.is_empty()
                && !name.starts_with('.')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            let remedy = "Write ${credential:NAME} with the name that LoadCredential= gives it: letters, digits, and . _ - \
                          after the first character.";
            let problem = || invalid(format!("{} is not the name of a credential", quoted(name)), remedy);
            return is_name.then_some(Self::Credential(name)).ok_or_else(problem);
        }
        let name = text.strip_prefix("env:").unwrap_or(text);
        let first = |c: char| c.is_ascii_alphabetic() || c == '_';
        if !name.starts_with(first) || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let remedy = "Write ${NAME}, ${NAME:-default} or ${credential:NAME}, or $${ for the characters; nothing else is \
                          filled in here.";
            return Err(invalid(format!("{} is not the name of a variable", quoted(name)), remedy));
        }
        Ok(Self::Variable(name))
    }
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
            return Err(invalid("a `${` is not closed", "Write `}` after the name, or $${ for the two characters."));
        };
        let inside = from.get(2..end).unwrap_or_default();
        rest = from.get(end + 1..).unwrap_or_default();
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        pieces.push(Piece::Value { source: Source::parse(name)?, default });
    }
    if !rest.is_empty() {
        pieces.push(Piece::Literal(rest));
    }
    Ok(pieces)
}

fn resolve<'a>(source: Source<'_>, default: Option<&'a str>, env: &'a Environment) -> Result<Cow<'a, str>, ValueError> {
    match source {
        Source::Variable(name) => resolve_variable(name, default, env).map(Cow::Borrowed),
        Source::Credential(name) => resolve_credential(name, default, env),
    }
}

/// Reads a credential of the service manager without the line break at its end.
fn resolve_credential<'a>(name: &str, default: Option<&'a str>, env: &Environment) -> Result<Cow<'a, str>, ValueError> {
    let default_or_problem = |problem: String, remedy: &str| {
        default.map(Cow::Borrowed).ok_or(invalid(format!("there is no credential {name}: {problem}"), remedy))
    };
    let unusable = |problem: &str| invalid(format!("the credential {name} {problem}"), "Correct its source.");
    let Some(folder) = env.credentials_directory() else {
        let remedy = format!("Let systemd start the gateway with LoadCredential={name}:FILE.");
        return default_or_problem("CREDENTIALS_DIRECTORY is not set to an absolute path".to_owned(), &remedy);
    };
    let mut bytes = Vec::new();
    let path = folder.join(name);
    let read_result = File::open(&path).and_then(|file| file.take(MAX_CREDENTIAL_BYTES + 1).read_to_end(&mut bytes));
    match read_result {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let remedy = format!("Add LoadCredential={name}:FILE to the unit of the gateway.");
            return default_or_problem(format!("{} does not exist", path.display()), &remedy);
        }
        Err(error) => return Err(unusable(&format!("cannot be read: {error}"))),
        Ok(size) if size as u64 > MAX_CREDENTIAL_BYTES => return Err(unusable("is longer than 1 MiB")),
        Ok(_) => {}
    }
    let value = String::from_utf8(bytes).map_err(|_| unusable("is not text in UTF-8"))?;
    let value = value.strip_suffix('\n').map_or(value.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    if let (true, Some(default)) = (value.is_empty(), default) {
        return Ok(Cow::Borrowed(default));
    }
    env.record_use(&format!("{CREDENTIAL_PREFIX}{name}"), value);
    Ok(Cow::Owned(value.to_owned()))
}

fn resolve_variable<'a>(name: &str, default: Option<&'a str>, env: &'a Environment) -> Result<&'a str, ValueError> {
    let not_unicode =
        || invalid(format!("the environment variable {name} is not Unicode"), "Set it again, or unset it.");
    let set = env.var_or_empty(name).map_err(|_| not_unicode())?;
    match (set, default) {
        (None | Some(""), Some(default)) => Ok(default),
        (Some(value), _) => {
            env.record_use(name, value);
            Ok(value)
        }
        (None, None) => Err(invalid(
            format!("the environment variable {name} is not set"),
            format!("Set it where the gateway is started, or give a default: ${{{name}:-…}}."),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn credentials_are_read_from_their_folder() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        for (name, bytes) in [("db-1.key", "one two\n\r\n"), ("bare", "x"), ("empty", "\n")] {
            write(name, bytes.as_bytes());
        }
        write("binary", b"\xff");
        std::fs::File::create(dir.path().join("large")).unwrap().set_len(MAX_CREDENTIAL_BYTES + 1).unwrap();
        let env = Environment::new(Path::new("/"), &[("CREDENTIALS_DIRECTORY", dir.path().to_str().unwrap())]);
        for (text, expected) in [
            ("${credential:db-1.key}", "one two\n"),
            ("a${credential:bare}b", "axb"),
            ("${credential:empty}", ""),
            ("${credential:empty:-d}", "d"),
            ("${credential:none:-d}", "d"),
            ("$${credential:bare}", "${credential:bare}"),
        ] {
            assert_eq!(expand(text, &env).as_deref(), Ok(expected), "{text}");
        }
        let other = Environment::default();
        for (text, env, part) in [
            ("${credential:none}", &env, "/none does not exist"),
            ("${credential:binary:-d}", &env, "not text"),
            ("${credential:large}", &env, "longer than"),
            ("${credential:a/b}", &env, "`a/b` is not the name of a credential"),
            ("${credential:..}", &env, "`..` is not the name of a credential"),
            ("${credential:}", &env, "`` is not the name of a credential"),
            ("${credential:bare}", &other, "CREDENTIALS_DIRECTORY is not set"),
        ] {
            let ValueError { message, remedy } = expand(text, env).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!remedy.is_empty());
        }
        assert_eq!(expand("${credential:bare:-d}", &other).as_deref(), Ok("d"));
        let used: Vec<String> = env.used_variables().into_keys().collect();
        assert_eq!(used, ["credential:bare", "credential:db-1.key", "credential:empty"]);
    }

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
            let ValueError { message, remedy } = expand(text, &env()).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
            assert!(!remedy.is_empty());
        }
    }

    #[test]
    fn hide_values_keeps_variable_names() {
        assert_eq!(hide_values("a${A}-${B:-x}$${C}"), "a${A}-${B}${C}");
        assert_eq!(hide_values("${credential:a:-x}"), "${credential:a}");
        assert_eq!(hide_values("${A"), "${A");
    }

    #[test]
    fn defaults_and_literals_belong_to_the_text() {
        assert_eq!(fill_defaults("a${A}${B:-x}${credential:c}$${D"), "a${A}x${credential:c}$${D");
        assert_eq!(remove_variables("a${A}${B:-x}${credential:c}$${D"), "ax${D");
        for text in ["", "${A}", "${A:-}", "Bot ${A}", "a=${A}; b=${B}", "${A}:${B}", "Basic ${credential:a}"] {
            assert!(has_only_labels(text), "{text}");
        }
        for text in ["x", "...", "x${A}", "x:${A}", "${A}x", "${A}/x", "${A:-x}", "x1 ${A}", "a b ${A}", "$${A}", "/x"]
        {
            assert!(!has_only_labels(text), "{text}");
        }
    }

    #[test]
    fn only_plain_variables_are_safe_to_show() {
        for text in ["", "${A}", "Bearer ${A}", "${A}${B}", "${credential:a}"] {
            assert!(is_safe_to_show(text), "{text}");
        }
        for text in
            ["x", "x${A}", "${A}x", "${A:-x}", "Bearer x", "${A}Bearer ", "${credential:a:-x}", "${A", "Bearer "]
        {
            assert!(!is_safe_to_show(text), "{text}");
        }
    }
}
