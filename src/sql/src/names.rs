//! Names of tables, columns and other objects, which a statement may have in quotes.

use sqlparser::ast::Ident;

use crate::Dialect;

/// Returns the name without its quotes. The parser keeps the doubled quotes inside.
pub fn unquote(name: &Ident) -> String {
    match name.quote_style {
        None | Some('[') => name.value.clone(),
        Some(quote) => name.value.replace(&format!("{quote}{quote}"), &quote.to_string()),
    }
}

/// Returns the name as the database compares it. PostgreSQL keeps the case of quoted names, and folds that of other names as it
/// does in encodings such as UTF-8: for ASCII letters only.
pub fn exact_name(dialect: Dialect, name: &Ident) -> String {
    let unquoted = unquote(name);
    if dialect == Dialect::Postgres && name.quote_style.is_some() { unquoted } else { unquoted.to_ascii_lowercase() }
}

/// Returns `true` if two names, as statements have them, may mean one object: `t` and `public.t` do, `a.t` and `b.t` do not.
pub fn may_be_same_object(one: &str, other: &str) -> bool {
    let (one, other) = (split_name(one), split_name(other));
    one.iter().rev().zip(other.iter().rev()).all(|(one, other)| one == other)
}

/// Returns the parts between the dots of a name in lower case, without quotes.
fn split_name(name: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut closing_quote = None;
    for next in name.chars() {
        match (closing_quote, next) {
            (None, '.') => parts.push(std::mem::take(&mut part)),
            (None, '"' | '`') => closing_quote = Some(next),
            (None, '[') => closing_quote = Some(']'),
            (Some(quote), _) if next == quote => closing_quote = None,
            _ => part.extend(next.to_lowercase()),
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_mean_one_object_if_their_common_parts_are_equal() {
        for (one, other) in [("t", "T"), ("public.t", "t"), ("\"public\".\"t\"", "`T`"), ("a.b.t", "b.t"), ("[t]", "t")]
        {
            assert!(may_be_same_object(one, other) && may_be_same_object(other, one), "{one} {other}");
        }
        for (one, other) in [("t", "u"), ("a.t", "b.t"), ("\"a.t\"", "t"), ("t.a", "t")] {
            assert!(!may_be_same_object(one, other), "{one} {other}");
        }
    }
}
