//! `==`, `!=` and `in` with stricter types: comparing text with a list or a map is an error.
//!
//! Plain CEL returns `false`. An agent could then send `["/etc"]` in place of a text and pass a rule that denies
//! `arguments.path == "/etc"`, although some servers accept such a list.

use cel::{
    ExecutionError,
    common::{
        ast::operators,
        types::{CelBool, CelList, CelMap, CelString},
        value::{CowVal, Val},
    },
};

use super::{Answer, Arguments, two_arguments};

/// Expressions cannot contain these names, because no name begins with `@`.
pub(super) const EQUALS: &str = "@equals";
pub(super) const NOT_EQUALS: &str = "@differs";
pub(super) const IS_IN: &str = "@is_in";

/// Returns the function that replaces an operator of CEL.
pub(super) fn replacement_for(operator: &str) -> Option<&'static str> {
    match operator {
        operators::EQUALS => Some(EQUALS),
        operators::NOT_EQUALS => Some(NOT_EQUALS),
        operators::IN => Some(IS_IN),
        _ => None,
    }
}

pub(super) fn equals<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (left, right) = two_arguments(args)?;
    compare_values(&*left, &*right).map(cel_bool)
}

pub(super) fn not_equals<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (left, right) = two_arguments(args)?;
    compare_values(&*left, &*right).map(|same| cel_bool(!same))
}

pub(super) fn is_in<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let (needle, holder) = two_arguments(args)?;
    if let Some(list) = holder.downcast_ref::<CelList<'_>>() {
        let mut has_mismatch = false;
        for element in list.inner() {
            match compare_values(&*needle, element.as_ref()) {
                Ok(true) => return Ok(cel_bool(true)),
                Ok(false) => {}
                Err(_) => has_mismatch = true,
            }
        }
        return if has_mismatch { Err(type_mismatch()) } else { Ok(cel_bool(false)) };
    }
    // Map keys are never lists or maps.
    if is_container(&*needle) {
        return Err(type_mismatch());
    }
    holder.as_container().ok_or_else(type_mismatch)?.contains(&*needle).map(cel_bool)
}

pub(super) fn cel_bool<'b, 'v>(value: bool) -> CowVal<'b, 'v> {
    CowVal::owned(CelBool::from(value))
}

/// Creates the error for mismatched types. It does not name them, because messages must not describe the agent's
/// values.
pub(super) fn type_mismatch() -> ExecutionError {
    ExecutionError::UnexpectedType { got: String::new(), want: String::new() }
}

fn compare_values(left: &dyn Val, right: &dyn Val) -> Result<bool, ExecutionError> {
    if left.equals(right) {
        return Ok(true);
    }
    if has_type_conflict(left, right) { Err(type_mismatch()) } else { Ok(false) }
}

/// Returns `true` if text is compared with a list or a map, at the top or at the same position inside.
fn has_type_conflict(left: &dyn Val, right: &dyn Val) -> bool {
    if (is_text(left) && is_container(right)) || (is_container(left) && is_text(right)) {
        return true;
    }
    if let (Some(left), Some(right)) = (left.downcast_ref::<CelList<'_>>(), right.downcast_ref::<CelList<'_>>()) {
        let (left, right) = (left.inner(), right.inner());
        return left.len() == right.len()
            && left.iter().zip(right).any(|(a, b)| has_type_conflict(a.as_ref(), b.as_ref()));
    }
    if let (Some(left), Some(right)) = (left.downcast_ref::<CelMap<'_>>(), right.downcast_ref::<CelMap<'_>>()) {
        let (left, right) = (left.inner(), right.inner());
        return left.len() == right.len()
            && left.iter().any(|(key, a)| right.get(key).is_some_and(|b| has_type_conflict(a.as_ref(), b.as_ref())));
    }
    false
}

fn is_text(value: &dyn Val) -> bool {
    value.downcast_ref::<CelString<'_>>().is_some()
}

fn is_container(value: &dyn Val) -> bool {
    value.downcast_ref::<CelList<'_>>().is_some() || value.downcast_ref::<CelMap<'_>>().is_some()
}

#[cfg(test)]
mod tests {
    use crate::policy::condition::tests::{holds, is_unknown};

    #[test]
    fn comparing_text_with_list_fails() {
        for condition in [
            r#"arguments.path == "/x""#,
            r#"arguments.path != "/x""#,
            r#""/x" == arguments.path"#,
            r#"arguments.path in ["/x", "/y"]"#,
            r#"arguments.path in {"/x": true}"#,
            r#"arguments.path.startsWith("/x")"#,
            r#"arguments.path.endsWith("x")"#,
            r#"arguments.path.contains("x")"#,
            r#"arguments.path.matches("^/x")"#,
            r#"arguments.path < "/y""#,
            r#"arguments.path + "y" == "/xy""#,
            r#"string(arguments.path) == "/x""#,
            r#"[arguments.path] == ["/x"]"#,
            r#"{"a": arguments.path} == {"a": "/x"}"#,
            r#"!(arguments.path == "/x")"#,
            r#"arguments.path == "/x" ? true : false"#,
        ] {
            for path in [r#"["/x"]"#, "[]", r#"{"0":"/x"}"#] {
                assert!(is_unknown(condition, &format!(r#"{{"path":{path}}}"#)), "{condition} of {path}");
            }
            assert!(!is_unknown(condition, r#"{"path":"/x"}"#), "{condition} of text");
        }
        assert!(is_unknown(r#""a" in arguments.tags"#, r#"{"tags":[["a"]]}"#));
        assert!(is_unknown(r#""a" in arguments.tags"#, r#"{"tags":"a"}"#));
    }

    #[test]
    fn comparisons_of_equal_types_succeed() {
        let arguments = r#"{"path":"/x","n":5,"nothing":null,"tags":["a","b"],"deep":[["a"]],"map":{"k":"v"}}"#;
        for (condition, expected) in [
            (r#"arguments.path == "/x""#, true),
            (r#"arguments.path != "/x""#, false),
            (r#"arguments.nothing == "/x""#, false),
            ("arguments.nothing == null", true),
            ("arguments.n == 5", true),
            (r#"arguments.n == "5""#, false),
            (r#"arguments.tags == ["a", "b"]"#, true),
            (r#"arguments.tags == ["a"]"#, false),
            (r#""a" in arguments.tags"#, true),
            (r#""c" in arguments.tags"#, false),
            (r#"["a"] in arguments.deep"#, true),
            (r#""k" in arguments.map"#, true),
            (r#"arguments.map == {"k": "w"}"#, false),
            (r#"arguments.tags.exists(t, t == "b")"#, true),
            (r#"arguments.tags.exists_one(t, t == "b")"#, true),
            // A true operand of `||` outweighs an operand that cannot be evaluated.
            (r#"arguments.tags == "a" || arguments.n == 5"#, true),
        ] {
            assert_eq!(holds(condition, arguments), Ok(expected), "{condition}");
        }
    }
}
