//! Splits a text into statements as the database does, and rejects texts that databases and the parser read differently.
//!
//! A setting of the database may decide what a quote or a comment is. The text is rejected where that matters.

use sqlparser::{
    ast,
    keywords::Keyword,
    parser::Parser,
    tokenizer::{Token, Tokenizer},
};

use crate::Dialect;

/// Maximum bytes of a text.
const MAX_BYTES: usize = 1 << 20;
/// Maximum statements of a text, including those in the bodies of triggers and routines.
const MAX_STATEMENTS: usize = 1000;
/// Maximum complexity of a statement: its tokens minus its commas, so that long lists are accepted.
const MAX_COMPLEXITY: usize = 4000;

/// One statement of a text.
#[derive(Debug, Default)]
pub struct StatementText {
    /// The statement as it was given, without surrounding whitespace.
    pub source: String,
    /// The statement without comments.
    code: String,
}

/// A parsed statement.
pub struct ParsedStatement {
    pub statement: ast::Statement,
    /// The keywords of the statement, without quoted names.
    pub keywords: Vec<Keyword>,
}

/// Splits the text at its semicolons.
///
/// # Errors
/// Returns the reason if the text exceeds a limit, or if databases and the parser may read it differently.
pub fn split(dialect: Dialect, text: &str) -> Result<Vec<StatementText>, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let mut scanner =
        Scanner { dialect, text, offset: 0, piece_start: 0, code: String::new(), pieces: Vec::new(), complexity: 0 };
    while let Some(next) = scanner.peek() {
        scanner.scan(next)?;
        if scanner.complexity > MAX_COMPLEXITY {
            return Err("a statement is too complex".to_owned());
        }
    }
    scanner.finish_statement(text.len())?;
    Ok(join_bodies(scanner.pieces))
}

impl StatementText {
    /// Parses the statement.
    ///
    /// # Errors
    /// Fails if the text is not exactly one statement that the parser knows.
    pub fn parse(&self, dialect: Dialect) -> Result<ParsedStatement, String> {
        let grammar = dialect.grammar();
        // Literals and quoted names stay as they are written, so that a query made from the statement means the same.
        let mut tokenizer = Tokenizer::new(grammar, &self.code).with_unescape(false);
        let mut tokens = tokenizer.tokenize().map_err(|error| error.to_string())?;
        if has_mixed_quotes(&tokens) {
            return Err("adjacent strings have different quotes".to_owned());
        }
        if dialect == Dialect::Sqlite && self.first_word().eq_ignore_ascii_case("pragma") {
            quote_pragma_value(&mut tokens);
        }
        let keywords = tokens.iter().filter_map(|token| match token {
            Token::Word(word) => Some(word.keyword),
            _ => None,
        });
        let keywords = keywords.collect();
        let parsed = Parser::new(grammar).with_tokens(tokens).parse_statements().map_err(|error| error.to_string())?;
        match <[ast::Statement; 1]>::try_from(parsed) {
            Ok([statement]) => Ok(ParsedStatement { statement, keywords }),
            Err(_) => Err("it is not one statement".to_owned()),
        }
    }

    fn first_word(&self) -> &str {
        self.code.split_whitespace().next().unwrap_or_default()
    }

    /// Returns `true` if the statement creates something with a body of statements.
    fn begins_body(&self) -> bool {
        let is_begin = |word: &str| word.eq_ignore_ascii_case("begin");
        self.first_word().eq_ignore_ascii_case("create") && self.code.split_whitespace().any(is_begin)
    }

    /// Returns `true` if the last word of the statement is END.
    fn ends_body(&self) -> bool {
        let last_word = self.code.trim_end().rsplit(|c| !is_name_part(c)).next().unwrap_or_default();
        last_word.eq_ignore_ascii_case("end")
    }
}

/// Returns `true` if strings in different quotes follow each other. The parser would join them to one in the first quotes.
fn has_mixed_quotes(tokens: &[Token]) -> bool {
    let words: Vec<&Token> = tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))).collect();
    words.windows(2).any(|pair| {
        matches!(
            pair,
            [Token::SingleQuotedString(_), Token::DoubleQuotedString(_)]
                | [Token::DoubleQuotedString(_), Token::SingleQuotedString(_)]
        )
    })
}

/// Quotes the value of a pragma, because the parser accepts no word there.
fn quote_pragma_value(tokens: &mut [Token]) {
    let values = tokens.iter_mut().skip_while(|token| !matches!(token, Token::LParen | Token::Eq));
    for token in values {
        if let Token::Word(word) = token {
            *token = Token::SingleQuotedString(word.value.clone());
        }
    }
}

/// Joins the statements of a trigger or a routine to the statement that creates it.
fn join_bodies(pieces: Vec<StatementText>) -> Vec<StatementText> {
    let mut joined: Vec<StatementText> = Vec::new();
    let mut is_inside = false;
    for piece in pieces {
        let ends = piece.code.trim().eq_ignore_ascii_case("end");
        match joined.last_mut().filter(|_| is_inside) {
            Some(body) => {
                body.source.push_str(";\n");
                body.source.push_str(&piece.source);
                body.code.push(';');
                body.code.push_str(&piece.code);
                is_inside = !ends;
            }
            None => {
                is_inside = piece.begins_body() && !piece.ends_body();
                joined.push(piece);
            }
        }
    }
    joined
}

struct Scanner<'t> {
    dialect: Dialect,
    text: &'t str,
    offset: usize,
    piece_start: usize,
    code: String,
    pieces: Vec<StatementText>,
    /// The complexity of the statement so far (see [`MAX_COMPLEXITY`]).
    complexity: usize,
}

impl<'t> Scanner<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.offset..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes the next `bytes` of the text as code.
    fn take(&mut self, bytes: usize) {
        let code = &self.text[self.offset..self.offset + bytes];
        self.code.push_str(code);
        self.offset += bytes;
    }

    /// Takes a token of this length, which may be an operand.
    fn take_token(&mut self, bytes: usize) {
        self.take(bytes);
        self.complexity += 1;
    }

    /// Replaces the next `bytes` of the text by a space.
    fn skip(&mut self, bytes: usize) {
        self.code.push(' ');
        self.offset += bytes;
    }

    /// Takes or skips the token or comment that begins with the next character.
    fn scan(&mut self, next: char) -> Result<(), String> {
        let rest = self.rest();
        let is_postgres = self.dialect == Dialect::Postgres;
        match next {
            '\'' | '"' => self.take_quoted(next)?,
            '`' if !is_postgres => self.take_quoted(next)?,
            '[' if self.dialect == Dialect::Sqlite => self.take_bracketed_name()?,
            '$' if is_postgres => self.take_dollar()?,
            '-' if rest.starts_with("--") => self.skip_line_comment()?,
            '#' if self.dialect == Dialect::Mysql => self.skip_line()?,
            '/' if rest.starts_with("/*") => self.skip_block_comment()?,
            ';' => {
                let end = self.offset;
                self.offset += 1;
                self.finish_statement(end)?;
            }
            ',' => {
                self.take(1);
                self.complexity = self.complexity.saturating_sub(1);
            }
            '\r' if rest.starts_with("\r\n") => self.skip(1),
            ' ' | '\t' | '\n' => self.take(1),
            _ if is_name_part(next) => {
                let end = rest.find(|c| !is_name_part(c)).unwrap_or(rest.len());
                self.take_token(end);
            }
            '!'..='~' if !matches!(next, '\\' | '`' | '$') => self.take_token(1),
            _ => return Err(format!("databases differ in what {next:?} means here")),
        }
        Ok(())
    }

    /// Takes a string or a name in quotes. A doubled quote does not end it.
    fn take_quoted(&mut self, quote: char) -> Result<(), String> {
        if quote == '"' && self.dialect == Dialect::Postgres && (self.code.ends_with("U&") || self.code.ends_with("u&"))
        {
            return Err("the parser does not support quoted names with Unicode escapes".to_owned());
        }
        let has_escapes = quote == '\'' && self.dialect == Dialect::Postgres && self.is_after_escape_prefix();
        let mut previous = '\0';
        let mut characters = self.rest().char_indices().skip(1).peekable();
        while let Some((index, next)) = characters.next() {
            if next == '\0' {
                return Err("it contains a NUL".to_owned());
            }
            if next == '\\' && has_escapes {
                characters.next();
            } else if next == quote {
                if previous == '\\' && self.is_escape_ambiguous(quote) && !has_escapes {
                    return Err("settings of the database decide whether a backslash escapes a quote".to_owned());
                }
                if characters.next_if(|(_, following)| *following == quote).is_none() {
                    self.take_token(index + 1);
                    return Ok(());
                }
            }
            previous = next;
        }
        Err("a quote is not closed".to_owned())
    }

    /// Returns `true` if the code ends with the `E` of an escape string.
    fn is_after_escape_prefix(&self) -> bool {
        let mut before = self.code.chars().rev();
        matches!(before.next(), Some('e' | 'E')) && !before.next().is_some_and(is_name_part)
    }

    fn is_escape_ambiguous(&self, quote: char) -> bool {
        match self.dialect {
            Dialect::Postgres => quote == '\'',
            Dialect::Mysql => quote != '`',
            Dialect::Sqlite => false,
        }
    }

    fn take_bracketed_name(&mut self) -> Result<(), String> {
        let end = self.rest().find(']').ok_or("a bracket is not closed")?;
        if !self.rest()[1..end].chars().all(|c| is_name_part(c) || c == ' ' || c == '-') {
            return Err("a name in brackets contains special characters".to_owned());
        }
        self.take_token(end + 1);
        Ok(())
    }

    /// Takes a parameter such as `$1`, or a dollar-quoted string.
    fn take_dollar(&mut self) -> Result<(), String> {
        let ambiguous = || "the meaning of a dollar sign is not clear".to_owned();
        if self.code.chars().next_back().is_some_and(|c| is_name_part(c) || c == '$') {
            return Err(ambiguous());
        }
        let rest = self.rest();
        let end = rest[1..].find(|c| !is_name_part(c)).map_or(rest.len(), |end| end + 1);
        let tag = &rest[1..end];
        if !tag.is_empty() && tag.bytes().all(|b| b.is_ascii_digit()) && !rest[end..].starts_with('$') {
            self.take_token(end);
            return Ok(());
        }
        if !rest[end..].starts_with('$') || tag.starts_with(|c: char| c.is_ascii_digit()) || !tag.is_ascii() {
            return Err(ambiguous());
        }
        let delimiter = &rest[..=end];
        let body = &rest[delimiter.len()..];
        let length = body.find(delimiter).ok_or_else(ambiguous)?;
        if body[..length].contains('\0') {
            return Err("it contains a NUL".to_owned());
        }
        self.take_token(length + 2 * delimiter.len());
        Ok(())
    }

    fn skip_line_comment(&mut self) -> Result<(), String> {
        let after = self.rest()[2..].chars().next();
        if self.dialect == Dialect::Mysql && after.is_some_and(|c| !c.is_ascii_whitespace()) {
            return Err("`--` begins a comment only in some databases".to_owned());
        }
        self.skip_line()
    }

    fn skip_line(&mut self) -> Result<(), String> {
        let end = self.rest().find('\n').unwrap_or(self.rest().len());
        let comment = &self.rest()[..end];
        // PostgreSQL ends a comment at a carriage return.
        if comment.trim_end_matches('\r').contains(['\r', '\0']) {
            return Err("a comment contains a control character".to_owned());
        }
        self.skip(end);
        Ok(())
    }

    fn skip_block_comment(&mut self) -> Result<(), String> {
        let body = &self.rest()[2..];
        let end = body.find("*/").ok_or("a comment is not closed")?;
        let comment = &body[..end];
        // MySQL runs `/*! … */`, MariaDB `/*M! … */`; some databases take hints from `/*+ … */`.
        if comment.starts_with(['!', '+'])
            || comment.starts_with("M!")
            || comment.contains('\0')
            || comment.contains("/*")
            || comment.ends_with('/')
        {
            return Err("databases differ in what a comment means".to_owned());
        }
        self.skip(end + 4);
        Ok(())
    }

    /// Ends the statement before the offset `end`.
    fn finish_statement(&mut self, end: usize) -> Result<(), String> {
        let source = self.text[self.piece_start..end].trim().to_owned();
        let code = std::mem::take(&mut self.code);
        if !code.trim().is_empty() {
            self.pieces.push(StatementText { source, code });
        }
        if self.pieces.len() > MAX_STATEMENTS {
            return Err(format!("it has more than {MAX_STATEMENTS} statements"));
        }
        self.piece_start = self.offset;
        self.complexity = 0;
        Ok(())
    }
}

fn is_name_part(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric() || is_letter_beyond_ascii(c)
}

/// Returns `true` for a letter that cannot be mistaken for one of ASCII when upper and lower case are ignored.
fn is_letter_beyond_ascii(c: char) -> bool {
    !c.is_ascii() && c.is_alphabetic() && !c.to_uppercase().chain(c.to_lowercase()).any(|c| c.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(dialect: Dialect, text: &str) -> Result<Vec<String>, String> {
        split(dialect, text).map(|pieces| pieces.into_iter().map(|piece| piece.source).collect())
    }

    #[test]
    fn text_is_split_outside_quotes_and_comments() {
        let text = "SELECT ';' /* ; */; -- ;\nSELECT \";\" ; ;";
        for dialect in [Dialect::Postgres, Dialect::Sqlite, Dialect::Mysql] {
            assert_eq!(sources(dialect, text).unwrap(), ["SELECT ';' /* ; */", "-- ;\nSELECT \";\""]);
        }
        assert_eq!(sources(Dialect::Postgres, "SELECT $a$;$b$;$a$; SELECT E'\\';'").unwrap().len(), 2);
        assert_eq!(sources(Dialect::Sqlite, "SELECT '\\'; SELECT [a b]").unwrap().len(), 2);
        assert_eq!(sources(Dialect::Mysql, "SELECT 1 # ;\n; SELECT `;`").unwrap().len(), 2);
    }

    #[test]
    fn body_of_a_trigger_is_one_statement() {
        let trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; DELETE FROM c; END";
        let found = sources(Dialect::Sqlite, &format!("{trigger}; SELECT 1")).unwrap();
        assert_eq!((found.len(), found[1].as_str()), (2, "SELECT 1"));
        let trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM legend; DELETE FROM c; END";
        assert_eq!(sources(Dialect::Sqlite, trigger).unwrap().len(), 1);
        assert_eq!(sources(Dialect::Mysql, "CREATE PROCEDURE p() BEGIN (SELECT 1)END; SELECT 1").unwrap().len(), 2);
    }

    #[test]
    fn text_that_databases_read_differently_is_rejected() {
        for (dialect, text) in [
            (Dialect::Postgres, "SELECT '\\'; DELETE FROM t; --'"),
            (Dialect::Postgres, "SELECT a$b$c"),
            (Dialect::Postgres, "SELECT $1$x$1$"),
            (Dialect::Postgres, "SELECT $é$x$é$"),
            (Dialect::Postgres, "SELECT 1 /* /* */ */"),
            (Dialect::Postgres, "SELECT `a`"),
            (Dialect::Postgres, "SELECT 1 -- \r; DELETE FROM t"),
            (Dialect::Postgres, "SELECT\u{a0}1"),
            (Dialect::Postgres, "\u{17f}elect 1"),
            (Dialect::Postgres, "SELECT 'a\0b'"),
            (Dialect::Postgres, "SELECT 1 /*/*/"),
            (Dialect::Postgres, "SELECT 'a"),
            (Dialect::Postgres, "SELECT U&\"\\0061\""),
            (Dialect::Sqlite, "SELECT [a'b]"),
            (Dialect::Sqlite, "SELECT $a"),
            (Dialect::Sqlite, "SELECT 1 /* a"),
            (Dialect::Sqlite, "UPDATE t SET a = 1 /* \0 */ WHERE id = 1"),
            (Dialect::Mysql, "SELECT 1 /*! INTO OUTFILE 'x' */"),
            (Dialect::Mysql, "SELECT 1 /*M! INTO OUTFILE 'x' */"),
            (Dialect::Mysql, "SELECT /*+ SET_VAR(x=1) */ 1"),
            (Dialect::Mysql, "SELECT 1--1"),
            (Dialect::Mysql, "SELECT '\\'; DELETE FROM t; -- '"),
            (Dialect::Mysql, "SELECT \"\\\"; DELETE FROM t; -- \""),
        ] {
            assert!(split(dialect, text).is_err(), "{text}");
        }
    }

    #[test]
    fn long_lists_are_accepted_and_long_chains_are_rejected() {
        let list = format!("SELECT 1 IN ({})", vec!["1"; 20_000].join(","));
        assert!(split(Dialect::Sqlite, &list).is_ok());
        let chain = format!("SELECT {}", vec!["1"; 20_000].join("+"));
        assert!(split(Dialect::Sqlite, &chain).is_err());
    }

    #[test]
    fn complexity_is_limited_for_each_statement() {
        let statements = |count| "SELECT 1 + 1 + 1;".repeat(count);
        assert_eq!(split(Dialect::Sqlite, &statements(MAX_STATEMENTS)).map(|pieces| pieces.len()), Ok(MAX_STATEMENTS));
        assert!(split(Dialect::Sqlite, &statements(MAX_STATEMENTS + 1)).is_err());
    }
}
