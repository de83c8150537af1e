//! Finds words in a part of a statement that the parser has accepted.

use sqlparser::{
    keywords::Keyword,
    tokenizer::{Span, Token, Tokenizer},
};

use crate::{Dialect, names::unquote};

/// Columns that only sequences of PostgreSQL have.
const SEQUENCE_COLUMNS: &[&str] = &["is_called", "last_value"];

/// Returns `true` if the text has a subquery.
pub fn has_subquery(dialect: Dialect, text: &str) -> bool {
    let is_select = |token: &Token| matches!(token, Token::Word(word) if word.keyword == Keyword::SELECT);
    tokens(dialect, text).iter().any(is_select)
}

/// Returns `true` if a subquery of the text may read the table, whose own name is in lower case and without quotes. A name
/// before a dot does not count, because it only qualifies a column.
pub fn reads_table(dialect: Dialect, text: &str, table: &str) -> bool {
    has_subquery(dialect, text) && names_not_before(dialect, text, &Token::Period).iter().any(|name| name == table)
}

/// Returns `true` if a query of PostgreSQL may read the state of a sequence. A name before a parenthesis does not count,
/// because it is that of a function.
pub fn reads_sequence(text: &str) -> bool {
    let names = names_not_before(Dialect::Postgres, text, &Token::LParen);
    names.iter().any(|name| SEQUENCE_COLUMNS.contains(&name.as_str()))
}

/// Returns `true` if the text contains the name, and not only as a part of another name.
pub fn contains_name(text: &str, name: &str) -> bool {
    let is_name_part = |c: char| c == '_' || c.is_alphanumeric();
    let mut found = text.match_indices(name);
    found.any(|(start, _)| {
        !text[..start].ends_with(is_name_part) && !text[start + name.len()..].starts_with(is_name_part)
    })
}

/// Returns the names in the text that are not followed by this token, in lower case and without quotes.
fn names_not_before(dialect: Dialect, text: &str, following: &Token) -> Vec<String> {
    let tokens = tokens(dialect, text);
    let next_tokens = tokens.iter().skip(1).map(Some).chain([None]);
    let names = tokens.iter().zip(next_tokens).filter(|(_, next)| *next != Some(following));
    names.filter_map(|(token, _)| name(dialect, token)).collect()
}

fn name(dialect: Dialect, token: &Token) -> Option<String> {
    let name = match token {
        Token::Word(word) => unquote(&word.to_ident(Span::empty())),
        // SQLite takes a text for a name where it expects one.
        Token::SingleQuotedString(text) if dialect == Dialect::Sqlite => text.replace("''", "'"),
        // MySQL takes it for a name if `sql_mode` has `ANSI_QUOTES`.
        Token::DoubleQuotedString(text) => text.replace("\"\"", "\""),
        _ => return None,
    };
    Some(name.to_lowercase())
}

/// Returns the tokens of the text without whitespace.
fn tokens(dialect: Dialect, text: &str) -> Vec<Token> {
    let mut tokens = Tokenizer::new(dialect.grammar(), text).with_unescape(false).tokenize().unwrap_or_default();
    tokens.retain(|token| !matches!(token, Token::Whitespace(_)));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subquery_is_found_by_its_keyword() {
        for text in ["id IN (select id FROM t)", "EXISTS (SELECT 1)"] {
            assert!(has_subquery(Dialect::Postgres, text), "{text}");
        }
        for text in ["status = 'select'", "\"select\" = 1", "selected", "data ->> 'selected_at' = 'x'"] {
            assert!(!has_subquery(Dialect::Postgres, text), "{text}");
        }
    }

    #[test]
    fn qualifier_of_a_column_is_not_taken_for_a_table() {
        for text in
            ["(SELECT max(a) FROM q)", "(SELECT 1 FROM main.\"Q\" x)", "(SELECT 1 FROM 'q')", "(SELECT 1 FROM [q])"]
        {
            assert!(reads_table(Dialect::Sqlite, text, "q"), "{text}");
        }
        for text in ["(SELECT a FROM r WHERE r.id = q.id)", "(SELECT a FROM r WHERE id = \"q\" . id)", "q + 1"] {
            assert!(!reads_table(Dialect::Sqlite, text, "q"), "{text}");
        }
    }

    #[test]
    fn function_is_not_taken_for_a_column_of_a_sequence() {
        assert!(reads_sequence("SELECT 1 FROM s WHERE id < (SELECT x.Last_Value FROM ticket_no x)"));
        assert!(reads_sequence("SELECT \"is_called\" FROM ticket_no"));
        assert!(!reads_sequence("SELECT last_value(id) OVER (ORDER BY id), 'last_value' FROM t"));
    }
}
