//! Members that some readers take for one another.
//!
//! Go's `encoding/json` compares keys without regard to case, and the last one counts: to a server written in Go,
//! `{"name":"read","MemberName":"delete"}` calls `delete`. What the gateway judged would not be what the server does. So a
//! key that only resembles one that means something is refused.

use super::{
    ErrorKind, McpError,
    outline::{OutlinedObject, OutlinedParams},
};

/// What means something in the `params` of requests that are passed on.
const MEANINGFUL_PARAMS: [&str; 11] = [
    "name",
    "arguments",
    "uri",
    "ref",
    "argument",
    "context",
    "taskId",
    "task",
    "inputResponses",
    "requestState",
    "_meta",
];

/// Refuses members of `params`, and of its `_meta`, that some reader takes for others.
///
/// # Errors
/// `InvalidParams` that names the member that is meant.
pub fn check(params: &OutlinedParams<'_>) -> Result<(), McpError> {
    check_object(params.object, "params", &MEANINGFUL_PARAMS)?;
    params.meta.map_or(Ok(()), |meta| check_object(meta, "params._meta", &[super::params::keys::PROGRESS_TOKEN]))
}

fn check_object(object: OutlinedObject<'_>, place: &str, known: &[&str]) -> Result<(), McpError> {
    for member in object.members() {
        if known.contains(&&*member.key) {
            continue;
        }
        // In ASCII, what is of another length differs by more than case.
        let ascii = member.key.is_ascii();
        let alike = |known: &&&str| (!ascii || known.len() == member.key.len()) && eq_ignoring_case(&member.key, known);
        if let Some(meant) = known.iter().find(alike) {
            let message = format!("`{place}` have a member that differs from `{meant}` in case only");
            return Err(McpError::new(ErrorKind::InvalidParams, message).with("member", *meant));
        }
    }
    Ok(())
}

/// Whether two keys differ in case only.
#[must_use]
pub fn eq_ignoring_case(a: &str, b: &str) -> bool {
    a.chars().map(fold_case).eq(b.chars().map(fold_case))
}

/// The same for keys that differ in case only: simple case folding.
#[must_use]
pub fn fold_case(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    // Up first: `ſ` is lower case and folds to `s`.
    let one = |mut cased: std::char::ToUppercase| match (cased.next(), cased.next()) {
        (Some(upper), None) => upper,
        _ => c,
    };
    let upper = one(c.to_uppercase());
    let mut lower = upper.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differing_only_in_case_are_refused() {
        let check = |params: &str| check(&super::super::outline::Outline::new(params).params(params));
        for bad in [
            r#"{"name":"a","Name":"b"}"#,
            r#"{"N\u0061ME":"b"}"#,
            r#"{"argument\u017f":{}}"#,
            r#"{"tas\u212A":{}}"#,
            r#"{"taskid":"x"}"#,
            r#"{"_Meta":{}}"#,
        ] {
            assert_eq!(check(bad).unwrap_err().kind, ErrorKind::InvalidParams, "{bad}");
        }
        let meta = r#"{"_meta":{"progressToken":1,"ProgressToken":7}}"#;
        assert_eq!(check(meta).unwrap_err().data["member"], "progressToken");
        for good in [r#"{"name":"a","arguments":{"Name":1,"name":2},"names":1,"vendor":1}"#, "{}"] {
            assert!(check(good).is_ok(), "{good}");
        }
        assert!(check(r#"{"_meta":{"progressToken":1,"a.b/Name":1}}"#).is_ok());
    }
}
