//! Rejects member names that differ from a meaningful one only in case.
//!
//! Go's `encoding/json` ignores the case of keys and uses the last match: for a server written in Go,
//! `{"name":"read","Name":"delete"}` calls `delete`. The gateway would check one call and the server would run another,
//! so such keys are refused.

use super::{
    ErrorKind, McpError,
    outline::{OutlinedObject, OutlinedParams},
};

/// Members of `params` that have a meaning in requests that the gateway forwards.
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

/// Rejects members of `params`, and of its `_meta`, that a case-insensitive reader would confuse with a meaningful one.
///
/// # Errors
/// `InvalidParams` that names the meaningful member.
pub fn check(params: &OutlinedParams<'_>) -> Result<(), McpError> {
    check_object(params.object, "params", &MEANINGFUL_PARAMS)?;
    params.meta.map_or(Ok(()), |meta| check_object(meta, "params._meta", &[super::params::keys::PROGRESS_TOKEN]))
}

fn check_object(object: OutlinedObject<'_>, path: &str, known: &[&str]) -> Result<(), McpError> {
    for member in object.members() {
        if known.contains(&&*member.key) {
            continue;
        }
        // Two ASCII keys of different length differ by more than case.
        let ascii = member.key.is_ascii();
        let is_variant =
            |known: &&&str| (!ascii || known.len() == member.key.len()) && eq_ignoring_case(&member.key, known);
        if let Some(meaningful) = known.iter().find(is_variant) {
            let message = format!("`{path}` have a member that differs from `{meaningful}` in case only");
            return Err(McpError::new(ErrorKind::InvalidParams, message).with("member", *meaningful));
        }
    }
    Ok(())
}

/// Returns `true` if two keys are equal when case is ignored.
#[must_use]
pub fn eq_ignoring_case(a: &str, b: &str) -> bool {
    a.chars().map(fold_case).eq(b.chars().map(fold_case))
}

/// Maps a character to its simple case folding, so that keys that differ only in case become equal.
#[must_use]
pub fn fold_case(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    // The upper case comes first, because `ſ` is a lower-case letter that folds to `s`.
    let single = |mut cased: std::char::ToUppercase| match (cased.next(), cased.next()) {
        (Some(upper), None) => upper,
        _ => c,
    };
    let upper = single(c.to_uppercase());
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
