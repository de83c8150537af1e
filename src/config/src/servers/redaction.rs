//! Formats commands and addresses of servers for people, with everything that looks like a secret redacted. Redacting too
//! much costs a reviewer a word, but a secret that was shown cannot be taken back.

use crate::variables;
use countersign_domain::text::shorten;

/// The replacement of a secret.
pub(crate) const SECRET_PLACEHOLDER: &str = "[secret]";

/// Maximum characters of one word, and of the whole line.
const MAX_WORD_CHARS: usize = 160;
const MAX_LINE_CHARS: usize = 400;

/// Parts of names of flags, variables and headers whose values are secret.
const SECRET_NAME_PARTS: [&str; 12] = [
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
/// Suffixes of such names.
const SECRET_NAME_SUFFIXES: [&str; 5] = ["key", "pass", "auth", "-pat", "_pat"];

/// Prefixes of well-known credentials.
const CREDENTIAL_PREFIXES: [&str; 13] =
    ["sk-", "sk_", "pk_", "rk_", "ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xox", "AKIA", "eyJ", "whsec_"];
/// Minimum characters of a credential after its prefix.
const MIN_CREDENTIAL_TAIL_LEN: usize = 8;
/// Flags whose value is a user with a password.
const USER_FLAGS: [&str; 4] = ["-u", "-U", "--user", "--proxy-user"];
/// Schemes of packages and addresses in which the text between `:` and `@` is not a password.
const PACKAGE_SCHEMES: [&str; 7] = ["npm", "jsr", "github", "gitlab", "gh", "docker", "mailto"];

/// Minimum length of a run of letters and digits that counts as random.
const MIN_RANDOM_LEN: usize = 20;

/// Formats the command with its arguments on one line, with variable names in place of values.
pub(super) fn redact_command<'a>(command: &str, arguments: impl Iterator<Item = &'a str>) -> String {
    let mut line = shell_quote(&redact_credentials(&variables::hide_values(command)));
    let mut previous = "";
    for argument in arguments {
        line.push(' ');
        line.push_str(&shell_quote(&redact_argument(argument, previous)));
        previous = argument;
    }
    shorten(&line, MAX_LINE_CHARS)
}

/// Returns the arguments as written, with secrets redacted.
pub(crate) fn redact_arguments(written: &[&str]) -> Vec<String> {
    let previous = std::iter::once("").chain(written.iter().copied());
    let arguments = written.iter().zip(previous).map(|(argument, previous)| {
        let redacted = redact_argument(argument, previous);
        if redacted == variables::hide_values(argument) { (*argument).to_owned() } else { redacted }
    });
    arguments.collect()
}

/// Redacts the user and password of a URL, and its query unless all values are variables.
pub(crate) fn redact_url(text: &str) -> String {
    let (address, query) = text.split_once('?').map_or((text, None), |(address, query)| (address, Some(query)));
    let redact_user = || {
        let (scheme, rest) = address.split_once("://")?;
        let end_of_user = rest.split('/').next()?.rfind('@')?;
        Some(format!("{scheme}://{SECRET_PLACEHOLDER}{}", rest.get(end_of_user..)?))
    };
    let address = redact_user().unwrap_or_else(|| address.to_owned());
    let Some(query) = query else { return address };
    let is_harmless = |pair: &str| {
        pair.split_once('=').is_some_and(|(_, value)| variables::is_safe_to_show(value) || value.is_empty())
    };
    let query = if query.split('&').all(is_harmless) { query } else { SECRET_PLACEHOLDER };
    format!("{address}?{query}")
}

/// Redacts the URL of a server as [`redact_url`] does, and what looks like a credential in its path.
pub(crate) fn redact_address(text: &str) -> String {
    let text = redact_url(text);
    let (address, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let (origin, path) = address.split_at(path_start(address));
    format!("{origin}{}{query}", redact_credentials(path))
}

/// Returns the position of the path in a URL.
pub(crate) fn path_start(address: &str) -> usize {
    address.match_indices('/').nth(2).map_or(address.len(), |(start, _)| start)
}

/// Redacts an argument that follows the argument `before`.
pub(crate) fn redact_argument(argument: &str, before: &str) -> String {
    if variables::is_safe_to_show(argument) {
        return variables::hide_values(argument);
    }
    if is_secret_flag(before) && !argument.starts_with('-') {
        return SECRET_PLACEHOLDER.to_owned();
    }
    if USER_FLAGS.contains(&before)
        && let Some(user) = user_before_password(argument)
    {
        return format!("{user}:{SECRET_PLACEHOLDER}");
    }
    let redact_text = |text: &str| {
        let text = variables::hide_values(text);
        redact_credentials(&redact_password(&if text.contains("://") { redact_url(&text) } else { text }))
    };
    let without_url_secrets = if argument.contains("://") { redact_url(argument) } else { argument.to_owned() };
    match text_before_secret(&without_url_secrets) {
        Some(start) => format!("{}{SECRET_PLACEHOLDER}", redact_text(start)),
        None => redact_text(argument),
    }
}

/// Returns the text before the first value with a secret name: `--env=API_KEY=` of `--env=API_KEY=a b`, or `{"apiKey":`
/// of a JSON object. Everything after it may belong to the secret.
pub(crate) fn text_before_secret(text: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(start) = text.get(from..)?.find(is_token_char).map(|offset| from + offset) {
        let after = text.get(start..)?;
        let end = after.find(|c: char| !is_token_char(c)).map_or(text.len(), |offset| start + offset);
        let (token, before) = (text.get(start..end)?, text.get(..start)?);
        if let Some(value) = find_secret_value(before, token, text.get(end..)?) {
            return text.get(..text.len() - value.len());
        }
        from = end;
    }
    None
}

/// Returns the secret and everything after it, if this token names a secret or is a flag for a user with a password.
fn find_secret_value<'a>(before: &str, token: &str, after: &'a str) -> Option<&'a str> {
    let unquoted = after.trim_start_matches(['"', '\'', '\\']);
    let rest = unquoted.trim_start();
    if USER_FLAGS.contains(&token) {
        let value = rest.strip_prefix('=').unwrap_or(rest).trim_start_matches(['"', '\'', '\\']);
        let end = value.find(char::is_whitespace).unwrap_or(value.len());
        let user = user_before_password(value.get(..end)?)?;
        return value.get(user.len() + 1..);
    }
    // The token is only the name of a variable.
    if !is_secret_name(token) || before.ends_with(['$', '{']) {
        return None;
    }
    let value = match rest.strip_prefix(['=', ':']) {
        Some(value) => value,
        None if unquoted.starts_with(char::is_whitespace)
            && !rest.starts_with(['-', '&', '|', ';', '<', '>'])
            && !before.ends_with('/') =>
        {
            unquoted.get(1..)?
        }
        None => return None,
    };
    let trimmed = value.trim();
    (!trimmed.is_empty() && !variables::is_safe_to_show(trimmed) && !is_harmless_quotation(trimmed)).then_some(value)
}

/// Returns `true` if the text begins with a quotation that is empty or holds only variables.
fn is_harmless_quotation(text: &str) -> bool {
    let unquoted = |quote: char| text.strip_prefix(quote)?.split_once(quote);
    let Some((inside, after)) = unquoted('"').or_else(|| unquoted('\'')) else { return false };
    variables::is_safe_to_show(inside) && !after.starts_with(|c: char| !matches!(c, ' ' | ',' | '}' | ']'))
}

/// Returns the user of `user:password`, but `None` for two numbers, which are the ids of a container user.
fn user_before_password(text: &str) -> Option<&str> {
    let (user, password) = text.split_once(':')?;
    let is_number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let is_plain =
        password.is_empty() || variables::is_safe_to_show(password) || is_number(user) && is_number(password);
    (!is_plain).then_some(user)
}

/// Redacts the password of `user:password@host` without a scheme.
fn redact_password(text: &str) -> String {
    let redact_word = |word: &str| -> Option<String> {
        let (start, host) = word.split_at(word.rfind('@')?);
        let (user, password) = start.split_once(':')?;
        let name = user.rsplit(|c| !is_token_char(c)).next().unwrap_or_default();
        let is_plain = name.is_empty()
            || password.is_empty()
            || password.starts_with("//")
            || host.starts_with("@sha256:")
            || variables::is_safe_to_show(password)
            || PACKAGE_SCHEMES.contains(&name);
        (!is_plain).then(|| format!("{user}:{SECRET_PLACEHOLDER}{host}"))
    };
    text.split_inclusive(char::is_whitespace).map(|word| redact_word(word).unwrap_or_else(|| word.to_owned())).collect()
}

const fn is_token_char(c: char) -> bool {
    is_word_char(c) || c == '.'
}

/// Returns `true` for flags such as `--api-key`, whose value is the next argument.
pub(crate) fn is_secret_flag(text: &str) -> bool {
    text.starts_with('-') && !text.contains(['=', ':', ' ']) && is_secret_name(text)
}

pub(crate) fn is_secret_name(name: &str) -> bool {
    name.chars().all(is_token_char) && has_secret_part(name)
}

/// Returns `true` if a part of a name says that its value is secret.
pub(crate) fn has_secret_part(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
        || SECRET_NAME_SUFFIXES.iter().any(|end| name.ends_with(end))
}

/// Redacts words that look like credentials.
pub(crate) fn redact_credentials(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !is_word_char(c)).unwrap_or(rest.len());
        let (part, more) = rest.split_at(end);
        let is_pinned = is_digest(part) && (out.ends_with('@') || out.ends_with("sha256:"));
        out.push_str(if is_credential(part) && !is_pinned { SECRET_PLACEHOLDER } else { part });
        let end = more.find(is_word_char).unwrap_or(more.len());
        let (between, more) = more.split_at(end);
        out.push_str(between);
        rest = more;
    }
    out
}

const fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// Returns `true` for a commit hash or an image digest, which identify the program.
fn is_digest(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

fn is_credential(text: &str) -> bool {
    let has_known_prefix = CREDENTIAL_PREFIXES
        .iter()
        .any(|begin| text.len() >= begin.len() + MIN_CREDENTIAL_TAIL_LEN && text.starts_with(begin));
    let is_random = |piece: &str| {
        let digits = piece.chars().filter(char::is_ascii_digit).count();
        let letters = piece.chars().filter(char::is_ascii_alphabetic).count();
        piece.len() >= MIN_RANDOM_LEN && digits > 1 && letters > 1
    };
    has_known_prefix || text.split(['-', '_']).any(is_random)
}

/// Shortens a word, and quotes it if a shell would split it.
fn shell_quote(text: &str) -> String {
    let text = shorten(text, MAX_WORD_CHARS);
    if text.is_empty() || text.contains(char::is_whitespace) { format!("'{text}'") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> String {
        redact_command(words[0], words[1..].iter().copied())
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
        assert!(long.chars().count() <= MAX_LINE_CHARS && long.ends_with('…'), "{long}");
    }

    #[test]
    fn arguments_without_secrets_are_unchanged() {
        let written = ["-y", "${A:-b}", "--token", "s3cret", "--token=${B:-s3cret}"];
        assert_eq!(redact_arguments(&written), ["-y", "${A:-b}", "--token", "[secret]", "--token=[secret]"]);
        let plain = [
            "--config={\"a\":\"b\",\"key\":\"\"}",
            "cd \"$PWD\" && pwd && exec node a.js --port 8080 --no-auth -v",
            "Authorization: Bearer ${TOKEN}",
            "--header=Authorization: Bearer ${TOKEN}",
            "--env=API_KEY=${API_KEY}",
            "--env=API_KEY",
            "{\"token\": \"${TOKEN}\", \"b\": 1}",
            "ghcr.io/x/y:1.2@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "npm:@scope/name@1.2.3",
            "git@github.com:x/y",
            "-u",
            "1000:1000",
            "--user=1000:1000",
            "/a/server.key /b",
            "host:8080",
            "C:\\data",
            "name@example.com",
        ];
        assert_eq!(redact_arguments(&plain), plain);
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
            (&["x", "--env=API_KEY=s3cret"], "x --env=API_KEY=[secret]"),
            (&["x", "--header=Authorization: Bearer s3cret"], "x --header=Authorization:[secret]"),
            (&["x", "--header=Authorization: Bearer ${T:-s3cret}"], "x --header=Authorization:[secret]"),
            (&["x", "--config", r#"{"a":1,"apiKey": "s3cret"}"#], r#"x --config {"a":1,"apiKey":[secret]"#),
            (&["x", "--config", r#"{\"apiKey\":\"s3cret\"}"#], r#"x --config {\"apiKey\":[secret]"#),
            (&["x", "--config", r#"{"token":"","key":"s3cret"}"#], r#"x --config {"token":"","key":[secret]"#),
            (&["sh", "-c", "TOKEN=''s3cret x"], "sh -c TOKEN=[secret]"),
            (&["sh", "-c", "cd /x && TOKEN=s3cret exec y --password s3cret"], "sh -c 'cd /x && TOKEN=[secret]'"),
            (&["sh", "-c", "cd $PWD && exec y --password s3cret"], "sh -c 'cd $PWD && exec y --password [secret]'"),
            (&["sh", "-c", "a postgres://me:s3cret@db/x?b=s3cret"], "sh -c 'a postgres://[secret]@db/x?[secret]'"),
            (&["x", "host=db password=s3cret"], "x 'host=db password=[secret]'"),
            (&["x", "-u", "admin:s3cret"], "x -u admin:[secret]"),
            (&["x", "--user=admin:s3cret"], "x --user=admin:[secret]"),
            (&["sh", "-c", "curl -u admin:s3cret a"], "sh -c 'curl -u admin:[secret]'"),
            (&["x", "me:s3cret@tcp(db)/x"], "x me:[secret]@tcp(db)/x"),
            (&["x", "--dburl=me:s3@cret@tcp(db)/x"], "x --dburl=me:[secret]@tcp(db)/x"),
        ] {
            let line = line(words);
            assert!(line == shown && !line.contains("s3cret"), "{line}");
        }
    }
}
