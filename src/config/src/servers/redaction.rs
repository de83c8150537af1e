//! The command and the addresses of a server for people: as they are written, without what looks like a secret. What is
//! hidden by mistake costs a reviewer a word; what is shown by mistake cannot be taken back.

use crate::variables;

/// What stands in place of a secret.
pub(super) const HIDDEN: &str = "[secret]";

/// Characters of one word, and of all of them.
const MAX_WORD: usize = 160;
const MAX_LINE: usize = 400;

/// What names of flags, variables and headers contain that are followed by a secret.
const SECRET_NAMES: [&str; 12] = [
    "token",
    "secret",
    "passw",
    "pwd",
    "passphrase",
    "authoriz",
    "credential",
    "cookie",
    "bearer",
    "signature",
    "dsn",
    "connection-string",
];
/// What they end with.
const SECRET_ENDS: [&str; 5] = ["key", "pass", "auth", "-pat", "_pat"];

/// What well-known credentials begin with.
const CREDENTIALS: [&str; 13] =
    ["sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "AKIA", "eyJ", "whsec_"];
/// Characters behind such a beginning from which on it is one.
const MIN_CREDENTIAL: usize = 8;
/// Letters and digits in a row, both among them, that nobody chose to be read.
const MIN_RANDOM: usize = 20;

/// The command with its arguments on one line, with variables by their names.
pub(super) fn command_line<'a>(command: &str, arguments: impl Iterator<Item = &'a str>) -> String {
    let mut line = word(&masked(&variables::by_name(command)));
    let mut before = "";
    for argument in arguments {
        line.push(' ');
        line.push_str(&word(&shown(argument, before)));
        before = argument;
    }
    shortened(&line, MAX_LINE)
}

/// The arguments as they are written, but for secrets.
pub(super) fn arguments(written: &[&str]) -> Vec<String> {
    let before = std::iter::once("").chain(written.iter().copied());
    let each = written.iter().zip(before).map(|(argument, before)| {
        let shown = shown(argument, before);
        if shown == variables::by_name(argument) { (*argument).to_owned() } else { shown }
    });
    each.collect()
}

/// An address without a user's name and password, and without what its query says, unless variables say it.
pub(super) fn url(text: &str) -> String {
    let (address, query) = text.split_once('?').map_or((text, None), |(address, query)| (address, Some(query)));
    let address = match address.split_once("://") {
        Some((scheme, rest)) => {
            let end = rest.find('/').unwrap_or(rest.len());
            match rest.get(..end).and_then(|authority| authority.rfind('@')) {
                Some(at) => format!("{scheme}://{HIDDEN}{}", rest.get(at..).unwrap_or_default()),
                None => address.to_owned(),
            }
        }
        None => address.to_owned(),
    };
    match query {
        None => address,
        Some(query) => {
            let harmless = |pair: &str| {
                pair.split_once('=').is_some_and(|(_, value)| variables::tells_nothing(value) || value.is_empty())
            };
            let query = if query.split('&').all(harmless) { query } else { HIDDEN };
            format!("{address}?{query}")
        }
    }
}

/// An argument as it is shown behind `before`.
fn shown(argument: &str, before: &str) -> String {
    if variables::tells_nothing(argument) {
        return variables::by_name(argument);
    }
    if is_secret_flag(before) && !argument.starts_with('-') {
        return HIDDEN.to_owned();
    }
    for separator in ['=', ':'] {
        if let Some((name, value)) = argument.split_once(separator)
            && is_secret_name(name)
            && !value.trim().is_empty()
        {
            let value =
                if variables::tells_nothing(value.trim()) { variables::by_name(value) } else { HIDDEN.to_owned() };
            return format!("{name}{separator}{value}");
        }
    }
    let argument = variables::by_name(argument);
    masked(&if argument.contains("://") { url(&argument) } else { argument })
}

/// `--api-key`, of which the next argument is the value.
fn is_secret_flag(text: &str) -> bool {
    text.starts_with('-') && !text.contains(['=', ':', ' ']) && is_secret_name(text)
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    is_name
        && (SECRET_NAMES.iter().any(|part| name.contains(part)) || SECRET_ENDS.iter().any(|end| name.ends_with(end)))
}

/// The text without words that look like credentials.
fn masked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
        let (part, more) = rest.split_at(end);
        let pinned = is_digest(part) && (out.ends_with('@') || out.ends_with("sha256:"));
        out.push_str(if is_credential(part) && !pinned { HIDDEN } else { part });
        let end = more.find(is_part).unwrap_or(more.len());
        let (between, more) = more.split_at(end);
        out.push_str(between);
        rest = more;
    }
    out
}

const fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// A commit or the digest of an image, which says what is run.
fn is_digest(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

fn is_credential(text: &str) -> bool {
    let known = CREDENTIALS.iter().any(|begin| text.len() >= begin.len() + MIN_CREDENTIAL && text.starts_with(begin));
    let random = |piece: &str| {
        let digits = piece.chars().filter(char::is_ascii_digit).count();
        let letters = piece.chars().filter(char::is_ascii_alphabetic).count();
        piece.len() >= MIN_RANDOM && digits > 1 && letters > 1
    };
    known || text.split(['-', '_']).any(random)
}

/// As a shell would take it, in one piece.
fn word(text: &str) -> String {
    let text = shortened(text, MAX_WORD);
    if text.is_empty() || text.contains(char::is_whitespace) { format!("'{text}'") } else { text }
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        command_line(words[0], words[1..].iter().copied())
    }

    #[test]
    fn command_is_shown_with_its_arguments() {
        for words in [
            &["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/documents"][..],
            &["uvx", "--from", "git+https://github.com/x/y@0123456789abcdef0123456789abcdef01234567", "y"],
            &["docker", "run", "ghcr.io/x/y@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"],
            &["node", "server.mjs", "--port=8080", "--keyboard", "de", "--author=me", "https://example.com/a?b="],
            &["python3", "/opt/mcp-server-2026-11-25/run.py", "5f0c3a52-9d1f-4a6e-8f42-0c8d8d4b7a11"],
        ] {
            assert_eq!(line(words), words.join(" "));
        }
        assert_eq!(line(&["sh", "-c", "a b", ""]), "sh -c 'a b' ''");
        assert_eq!(line(&["${DIR}/x", "${A:-secret}", "--root=${B:-secret}/c"]), "${DIR}/x ${A} --root=${B}/c");
        let long = line(&["x", &"long ".repeat(1000), &"more".repeat(1000)]);
        assert!(long.chars().count() <= MAX_LINE && long.ends_with('…'), "{long}");
    }

    #[test]
    fn arguments_stay_as_written_where_nothing_is_secret() {
        let written = ["-y", "${A:-b}", "--token", "s3cret", "--token=${B:-s3cret}"];
        assert_eq!(arguments(&written), ["-y", "${A:-b}", "--token", "[secret]", "--token=[secret]"]);
    }

    #[test]
    fn secrets_in_arguments_are_hidden() {
        for (words, shown) in [
            (&["x", "--api-key", "s3cret", "--verbose"][..], "x --api-key [secret] --verbose"),
            (&["x", "--api-key=s3cret"], "x --api-key=[secret]"),
            (&["x", "--token", "${TOKEN}", "--token=${TOKEN}"], "x --token ${TOKEN} --token=${TOKEN}"),
            (&["x", "--token=${TOKEN:-s3cret}"], "x --token=[secret]"),
            (&["env", "DB_PASSWORD=s3cret", "x"], "env DB_PASSWORD=[secret] x"),
            (&["x", "--header", "Authorization: Bearer s3cret"], "x --header Authorization:[secret]"),
            (&["x", "--header", "Authorization: Bearer ${T}"], "x --header 'Authorization: Bearer ${T}'"),
            (&["x", "--header", "X-Api-Key:s3cret"], "x --header X-Api-Key:[secret]"),
            (&["x", "postgres://me:s3cret@db/a", "--no-auth", "-v"], "x postgres://[secret]@db/a --no-auth -v"),
            (&["x", "--db=postgres://me:s3cret@db/a"], "x --db=postgres://[secret]@db/a"),
            (&["x", "https://h/?key=s3cret"], "x https://h/?[secret]"),
            (&["x", "ghp_16C7e42F292c6912E771", "sk-ant-s3cret-s3cret"], "x [secret] [secret]"),
            (&["x", "https://h/hooks/s3crets3crets3crets3cret/a"], "x https://h/hooks/[secret]/a"),
            (&["x", "0123456789abcdef0123456789abcdef01234567"], "x [secret]"),
        ] {
            let line = line(words);
            assert!(line == shown && !line.contains("s3cret"), "{line}");
        }
    }
}
