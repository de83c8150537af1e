//! Words in a part of a statement that the parser has accepted.

use sqlparser::{
    keywords::Keyword,
    tokenizer::{Token, Tokenizer},
};

use crate::Dialect;

/// Returns `true` if the text has a subquery.
pub fn has_subquery(dialect: Dialect, text: &str) -> bool {
    let is_select = |token: &Token| matches!(token, Token::Word(word) if word.keyword == Keyword::SELECT);
    tokens(dialect, text).iter().any(is_select)
}

/// Returns `true` if the text contains the name, and not only as a part of another name.
pub fn contains_name(text: &str, name: &str) -> bool {
    let is_name_part = |c: char| c == '_' || c.is_alphanumeric();
    let mut found = text.match_indices(name);
    found.any(|(start, _)| {
        !text[..start].ends_with(is_name_part) && !text[start + name.len()..].starts_with(is_name_part)
    })
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
    fn subquery_has_the_keyword_itself() {
        for text in ["id IN (select id FROM t)", "EXISTS (SELECT 1)"] {
            assert!(has_subquery(Dialect::Postgres, text), "{text}");
        }
        for text in ["status = 'select'", "\"select\" = 1", "selected", "data ->> 'selected_at' = 'x'"] {
            assert!(!has_subquery(Dialect::Postgres, text), "{text}");
        }
    }
}
