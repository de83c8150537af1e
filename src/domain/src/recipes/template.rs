//! Texts of a recipe: what stands in braces is an expression, and everything else stands as it is written.
//!
//! A text that is a single expression in braces, or only a path such as `arguments.id`, keeps the type of its value.

use serde_json::Value;

use crate::policy::{
    Condition,
    condition::{ConditionError, Variables},
};

/// All variables of recipes, of which each text can use some.
const VARIABLE_NAMES: [&str; 5] = ["arguments", "before", "element", "found", "result"];

/// A text of a recipe, or a value with such texts inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextTemplate {
    /// A value that depends on nothing.
    Literal(Value),
    /// The value of one expression.
    Expression(Condition),
    /// A text with expressions in it.
    Text(Vec<TextPart>),
    List(Vec<TextTemplate>),
    Record(Vec<RecordField>),
}

/// A part of a text with expressions in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextPart {
    Literal(String),
    Expression(Condition),
}

/// A field of a record, such as an argument of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordField {
    pub name: String,
    /// The field is left out if something that its value depends on is not there.
    pub is_optional: bool,
    pub value: TextTemplate,
}

/// The reason why a text cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextTemplateError {
    #[error("the expression cannot be used: {}{}", .0.message, .0.position_suffix())]
    Expression(#[from] ConditionError),
    #[error("the brace in it is never closed")]
    Unclosed,
    #[error("it closes a brace that it does not open")]
    Unopened,
    #[error("the expression in it is not in braces")]
    WithoutBraces,
    #[error("its quotes would be part of the text")]
    Quoted,
}

impl TextTemplateError {
    /// Says how to correct the text.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Expression(_) => "Correct it; it is written in CEL (https://cel.dev).",
            Self::Unclosed | Self::Unopened => r#"Close it, or write {"{"} or {"}"} for a brace in the text."#,
            Self::WithoutBraces => "Put the expression in braces: \"Write {arguments.path}\".",
            Self::Quoted => "Leave out the inner quotes, or put the expression in braces.",
        }
    }
}

impl TextTemplate {
    /// Compiles a text over these variables.
    ///
    /// # Errors
    /// [`TextTemplateError`]
    pub fn compile(source: &str, variables: &'static Variables) -> Result<Self, TextTemplateError> {
        let is_variable = |name: &str| variables.iter().any(|(variable, _)| *variable == name);
        // The member of a variable that is not available here is an error, but its bare name is a word like others.
        if root_of_path(source).is_some_and(|root| is_variable(root) || root != source) {
            return Ok(Self::Expression(Condition::compile_for(source, variables)?));
        }
        if source.len() > 1 && (source.starts_with('"') && source.ends_with('"')) {
            return Err(TextTemplateError::Quoted);
        }
        let mut parts = Vec::new();
        let mut rest = source;
        while let Some(start) = rest.find(['{', '}']) {
            let (literal, braced) = rest.split_at(start);
            if braced.starts_with('}') {
                return Err(TextTemplateError::Unopened);
            }
            let end = expression_end(braced).ok_or(TextTemplateError::Unclosed)?;
            push_literal(&mut parts, literal)?;
            parts.push(TextPart::Expression(Condition::compile_for(&braced[1..end], variables)?));
            rest = &braced[end + 1..];
        }
        push_literal(&mut parts, rest)?;
        Ok(match parts.as_slice() {
            [] => Self::Literal(Value::String(String::new())),
            [TextPart::Literal(text)] => Self::Literal(Value::String(text.clone())),
            [TextPart::Expression(expression)] => Self::Expression(expression.clone()),
            _ => Self::Text(parts),
        })
    }

    /// Returns the path of the argument that the text stands for, or `None` if it is anything else.
    pub fn argument_path(&self) -> Option<&Condition> {
        match self {
            Self::Expression(path) if path.source() != "arguments" => {
                Some(path).filter(|path| root_of_path(path.source()) == Some("arguments"))
            }
            _ => None,
        }
    }

    /// Returns all expressions in it.
    pub fn expressions(&self) -> Vec<&Condition> {
        match self {
            Self::Literal(_) => Vec::new(),
            Self::Expression(expression) => vec![expression],
            Self::Text(parts) => parts
                .iter()
                .filter_map(|part| match part {
                    TextPart::Literal(_) => None,
                    TextPart::Expression(expression) => Some(expression),
                })
                .collect(),
            Self::List(items) => items.iter().flat_map(Self::expressions).collect(),
            Self::Record(fields) => fields.iter().flat_map(|field| field.value.expressions()).collect(),
        }
    }

    /// Returns `true` if one of its expressions uses the variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.expressions().iter().any(|expression| expression.uses(variable))
    }
}

/// Adds a literal part. An expression outside of braces is an error, because it would be shown as it is written.
fn push_literal(parts: &mut Vec<TextPart>, literal: &str) -> Result<(), TextTemplateError> {
    let follows_word = |at: usize| literal[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '.'));
    let is_used = |name: &str| {
        let mut places = literal.match_indices(name);
        places.any(|(at, _)| !follows_word(at) && is_member_access(&literal[at + name.len()..]))
    };
    if VARIABLE_NAMES.into_iter().any(is_used) {
        return Err(TextTemplateError::WithoutBraces);
    }
    if !literal.is_empty() {
        parts.push(TextPart::Literal(literal.to_owned()));
    }
    Ok(())
}

/// Returns `true` for the rest of a text after a variable that continues with `.name` or `[`.
fn is_member_access(rest: &str) -> bool {
    let mut chars = rest.chars();
    match chars.next() {
        Some('[') => true,
        Some('.') => chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_'),
        _ => false,
    }
}

/// Returns the variable of a text that is a variable, or a path of members and elements of one.
fn root_of_path(text: &str) -> Option<&'static str> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let root = VARIABLE_NAMES.into_iter().find(|name| *name == &text[..end])?;
    let mut rest = &text[end..];
    while !rest.is_empty() {
        let length = if let Some(member) = rest.strip_prefix('.') {
            let length = member.find(['.', '[']).unwrap_or(member.len());
            is_name(&member[..length]).then_some(length + 1)
        } else {
            let index = rest.find(']').filter(|_| rest.starts_with('['));
            index.filter(|end| is_index(&rest[1..*end])).map(|end| end + 1)
        };
        rest = &rest[length?..];
    }
    Some(root)
}

/// Returns `true` for a number, or a name in quotes.
fn is_index(text: &str) -> bool {
    let quoted = |quote: char| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    let name = quoted('"').or_else(|| quoted('\''));
    (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit()))
        || name.is_some_and(|name| !name.contains(['"', '\'', '\\']))
}

/// Returns the position of the brace that closes the first one. Braces in strings of the expression do not count.
fn expression_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote, mut is_escaped) = (0_usize, None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            (None, _) => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const VARIABLES: &Variables = &[("arguments", &[]), ("element", &[])];

    fn compiled(source: &str) -> TextTemplate {
        TextTemplate::compile(source, VARIABLES).unwrap_or_else(|error| panic!("{source}: {error}"))
    }

    fn parts(source: &str) -> Vec<String> {
        match compiled(source) {
            TextTemplate::Text(parts) => parts
                .iter()
                .map(|part| match part {
                    TextPart::Literal(text) => format!("={text}"),
                    TextPart::Expression(expression) => expression.source().to_owned(),
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn braces_hold_expressions_and_the_rest_is_literal() {
        assert_eq!(parts("Write {arguments.path}"), ["=Write ", "arguments.path"]);
        assert_eq!(parts("{arguments.a}/{arguments.b}#1"), ["arguments.a", "=/", "arguments.b", "=#1"]);
        assert_eq!(parts(r#"a {"{"} {{"x": '}'}.x}"#), ["=a ", r#""{""#, "= ", r#"{"x": '}'}.x"#]);
        assert_eq!(parts(r#"{size(arguments.l) == 1 ? "one\"}" : "many"} é"#).len(), 2);
        for literal in
            ["get", "", "refs/heads/main", "the arguments of it", "my.arguments.x", "elements", "before", "1"]
        {
            assert_eq!(compiled(literal), TextTemplate::Literal(literal.into()), "{literal}");
        }
    }

    #[test]
    fn single_expression_or_path_keeps_its_type() {
        for path in ["arguments.id", "arguments", "element", "element.a.b_2", "arguments.l[0].x", r#"arguments["a-b"]"#]
        {
            let TextTemplate::Expression(expression) = compiled(path) else { panic!("{path}") };
            assert_eq!(expression.source(), path);
        }
        assert!(matches!(compiled("{size(arguments.l)}"), TextTemplate::Expression(_)));
    }

    #[test]
    fn misplaced_expressions_are_reported() {
        let error = |source: &str| TextTemplate::compile(source, VARIABLES).expect_err(source);
        for source in [r#""Write " + arguments.path"#, "size(arguments.files)", "-arguments['x']", "arguments.a + 1"] {
            assert_eq!(error(source), TextTemplateError::WithoutBraces, "{source}");
        }
        assert_eq!(error(r#""local""#), TextTemplateError::Quoted);
        assert_eq!(error("{arguments.a"), TextTemplateError::Unclosed);
        assert_eq!(error("a}"), TextTemplateError::Unopened);
        assert!(matches!(error("{argument.a}"), TextTemplateError::Expression(_)));
        assert!(matches!(error("before.a"), TextTemplateError::Expression(_)), "it is not available here");
        assert_eq!(error("a before.a"), TextTemplateError::WithoutBraces);
    }
}
