//! Explains errors of an expression in a sentence with their position, in place of the parser's grammar terms.

use cel::{ParseError, common::ast::SourceInfo};

use super::{ConditionError, MAX_DEPTH};

/// The maximum number of characters of a token in a message.
const MAX_TOKEN_CHARS: usize = 40;

/// Creates an error without a position.
pub(super) fn without_position(message: impl Into<String>) -> ConditionError {
    ConditionError { message: message.into(), line: 0, column: 0 }
}

/// Creates an error at a node of the parsed expression.
pub(super) fn at_node(message: String, node: Option<u64>, info: &SourceInfo) -> ConditionError {
    let Some((start, _)) = node.and_then(|id| info.offset_for(id)) else { return without_position(message) };
    // Nodes have byte offsets; people count characters.
    let before = usize::try_from(start).ok().and_then(|start| info.source.get(..start)).unwrap_or_default();
    let (mut line, mut column) = (1, 1);
    for c in before.chars() {
        (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    ConditionError { message, line, column }
}

/// Explains the first error of the parser.
pub(super) fn from_parser(source: &str, errors: &[ParseError]) -> ConditionError {
    let Some(error) = errors.first() else { return without_position("it is not an expression") };
    let positive = |n: isize| u64::try_from(n).ok().filter(|n| *n > 0);
    let (Some(line), Some(column)) = (positive(error.pos.0), positive(error.pos.1)) else {
        return without_position(explain(source, source, "", &error.msg));
    };
    // Line and column count characters, from 1.
    let mut rest = source;
    for _ in 1..line {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    let skipped: usize = rest.chars().take(usize::try_from(column - 1).unwrap_or(0)).map(char::len_utf8).sum();
    let rest = rest.get(skipped..).unwrap_or_default();
    let before = source.get(..source.len() - rest.len()).unwrap_or_default();
    ConditionError { message: explain(source, rest, before, &error.msg), line, column }
}

/// Parts of the parser's messages, and the sentences that explain them.
const EXPLANATIONS: [(&str, &str); 5] = [
    ("has() macro", "`has` asks for one member: has(arguments.path)"),
    ("must be a simple name", "a loop needs a name for its element first: arguments.list.all(x, x > 1)"),
    ("invalid int literal", "this whole number does not fit into 64 bits"),
    ("invalid uint literal", "this whole number does not fit into 64 bits"),
    ("invalid double literal", "this number cannot be read"),
];

fn explain(source: &str, rest: &str, before: &str, parser_message: &str) -> String {
    if parser_message.contains("Recursion limit") {
        return format!("it nests deeper than {MAX_DEPTH} levels");
    }
    if let Some((_, explanation)) = EXPLANATIONS.iter().find(|(part, _)| parser_message.contains(part)) {
        return (*explanation).to_owned();
    }
    if let Some(identifier) = parser_message.strip_prefix("reserved identifier: ") {
        return format!("{} is a reserved identifier", quote_token(identifier));
    }
    let rest = rest.trim_start();
    if rest.is_empty() || parser_message.contains("'<EOF>'") && !parser_message.contains("expecting <EOF>") {
        return match (unclosed_bracket(source), before.split_whitespace().last()) {
            (Some(bracket), _) => format!("a `{bracket}` is not closed"),
            (None, Some(last)) => format!("it ends too early: something is missing after {}", quote_token(last)),
            (None, None) => "it is empty".to_owned(),
        };
    }
    match rest.chars().next() {
        Some('"' | '\'') if parser_message.contains("token recognition") => {
            return "a text that begins here is not closed".into();
        }
        Some('=') if !rest.starts_with("==") => return "a single `=` compares nothing; write `==`".to_owned(),
        Some('&') if !rest.starts_with("&&") => return "a single `&` means nothing; write `&&`".to_owned(),
        Some('|') if !rest.starts_with("||") => return "a single `|` means nothing; write `||`".to_owned(),
        _ => {}
    }
    let token = token(rest);
    let previous = before.split_whitespace().last().unwrap_or_default();
    for (word, symbol) in [("and", "&&"), ("or", "||"), ("not", "!")] {
        if token.eq_ignore_ascii_case(word) || previous.eq_ignore_ascii_case(word) {
            return format!("there is no `{word}`; write `{symbol}`");
        }
    }
    if matches!(token.as_str(), ")" | "]" | "}") && unclosed_bracket(before).is_none() {
        return format!("this `{token}` closes nothing");
    }
    format!("{} does not belong here", quote_token(&token))
}

/// Returns the word, number or symbol at the start of the text.
fn token(text: &str) -> String {
    let word: String = text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if !word.is_empty() {
        return word;
    }
    ["&&", "||", "==", "!=", "<=", ">="]
        .iter()
        .find(|symbol| text.starts_with(**symbol))
        .map_or_else(|| text.chars().take(1).collect(), |symbol| (*symbol).to_owned())
}

fn quote_token(token: &str) -> String {
    let escaped: String = token.chars().take(MAX_TOKEN_CHARS).flat_map(char::escape_debug).collect();
    format!("`{escaped}`")
}

/// Returns the innermost bracket, or the quote, that is not closed.
fn unclosed_bracket(text: &str) -> Option<char> {
    let mut open = Vec::new();
    let mut quote = None;
    let mut escaped = false;
    for c in text.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(opening) if c == opening => quote = None,
            Some(_) => {}
            None => match c {
                '"' | '\'' => quote = Some(c),
                '(' | '[' | '{' => open.push(c),
                ')' | ']' | '}' => drop(open.pop()),
                _ => {}
            },
        }
    }
    quote.or(open.pop())
}

#[cfg(test)]
mod tests {
    use crate::policy::Condition;

    #[test]
    fn compile_errors_have_message_and_position() {
        for (source, message, place) in [
            ("arguments.", "it ends too early: something is missing after `arguments.`", (1, 11)),
            ("arguments.x == ", "it ends too early: something is missing after `==`", (1, 16)),
            ("(arguments.x == 1", "a `(` is not closed", (1, 18)),
            ("arguments.x in [1, 2", "a `[` is not closed", (1, 21)),
            ("arguments.x = 1", "a single `=` compares nothing; write `==`", (1, 13)),
            ("\"é\" = 1", "a single `=` compares nothing; write `==`", (1, 5)),
            ("arguments.x & true", "a single `&` means nothing; write `&&`", (1, 13)),
            ("arguments.x == 1 and arguments.y == 2", "there is no `and`; write `&&`", (1, 18)),
            ("arguments.x == 1)", "this `)` closes nothing", (1, 17)),
            ("arguments.x == 1 2", "`2` does not belong here", (1, 18)),
            ("arguments.x == \"a", "a text that begins here is not closed", (1, 16)),
            ("true &&\n  || 1", "`||` does not belong here", (2, 3)),
            ("has(arguments)", "`has` asks for one member: has(arguments.path)", (1, 5)),
            ("arguments.x == 99999999999999999999", "this whole number does not fit into 64 bits", (1, 16)),
            // Valid CEL that is rejected by the compiler has a position too, counted in characters.
            ("\"é\" == \"é\" && argument.x == 1", "there is no `argument`", (1, 15)),
            ("true &&\n  arguments.x.frobnicate()", "there is no function `frobnicate`", (2, 25)),
            ("principal.nam == 'x'", "`principal` has no `nam`", (1, 10)),
        ] {
            let error = Condition::compile(source).unwrap_err();
            assert!(error.message.starts_with(message), "{source}: {error:?}");
            assert_eq!((error.line, error.column), place, "{source}: {error:?}");
            for word in ["Syntax error", "<EOF>", "mismatched", "extraneous", "viable", "token recognition"] {
                assert!(!error.message.contains(word), "{source}: {error:?}");
            }
        }
    }
}
