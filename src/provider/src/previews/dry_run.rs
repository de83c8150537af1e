//! Refuses calls that could turn a dry run into the write itself: the recipe's arguments go out as the recipe has them.
//!
//! Servers differ in what they take for one name. Go's `encoding/json` does not look at case, and the last one counts; some
//! accept `dry_run` for `dryRun`. Beside `"dryRun": true` of the recipe, a `"dryrun": false` of the agent would make the
//! preview the write itself. So a call with an argument that could be taken for one of the recipe's is refused before
//! anything is sent.

use serde_json::value::RawValue;

use crate::text::invalid_argument;
use countersign_domain::{changes::people::folded, recipes::DryRun};
use countersign_protocol::{McpError, json};

/// # Errors
/// `VALIDATION_FAILED` that names the argument: one that stands there twice, or that differs from one of the dry run only
/// in case, width, hyphens or underscores.
pub(super) fn check(dry: &DryRun, arguments: &RawValue) -> Result<(), McpError> {
    for (name, _) in &dry.arguments {
        let plain = plain(name);
        let mut found = false;
        for member in json::members(arguments.get()) {
            if member.key == name.as_str() {
                if found {
                    let message = format!("`{name}` is given twice; give it once, or leave it to the gateway");
                    return Err(refused(&member.key, "duplicate", message));
                }
                found = true;
            } else if self::plain(&member.key) == plain {
                let shown = shown(&member.key);
                let message = format!(
                    "`{shown}` could be taken for `{name}`, which decides whether this is a dry run; leave it out, or \
                     write `{name}`"
                );
                return Err(refused(&member.key, "ambiguous", message));
            }
        }
    }
    Ok(())
}

/// What several spellings of one name have in common.
fn plain(name: &str) -> String {
    folded(name).chars().filter(|c| !matches!(c, '_' | '-' | ' ')).collect()
}

fn shown(name: &str) -> String {
    countersign_domain::changes::visible::visible(&name.chars().take(100).collect::<String>()).into_owned()
}

fn refused(name: &str, rule: &str, message: String) -> McpError {
    let pointer = format!("/{}", shown(name).replace('~', "~0").replace('/', "~1"));
    invalid_argument(&pointer, rule, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_could_be_taken_for_the_mark_of_a_dry_run_is_refused_by_name() {
        let dry = |name: &str| DryRun {
            arguments: vec![(name.to_owned(), json!(true))],
            label: None,
            pick: Default::default(),
            shown: Default::default(),
            vouched: true,
        };
        let check = |name: &str, raw: &str| check(&dry(name), &RawValue::from_string(raw.into()).unwrap());
        for bad in [
            r#"{"dryrun":false}"#,
            r#"{"DryRun":false,"dryRun":true}"#,
            r#"{"DRYRUN":false}"#,
            r#"{"dry_run":false}"#,
            r#"{"dry-run":false}"#,
            r#"{"dryRun":true,"dryRun":false}"#,
            r#"{"dryRun":true,"dry\u0052un":false}"#,
            r#"{"\uff44ryRun":false}"#,
            r#"{"dryR\u200bun":false}"#,
        ] {
            let error = check("dryRun", bad).unwrap_err();
            assert_eq!(error.kind, countersign_protocol::ErrorKind::ValidationFailed, "{bad}");
            assert!(error.message.contains("`dryRun`"), "{bad}: {}", error.message);
        }
        // Lower case alone would keep the long s apart, and Go does not.
        assert!(check("simulate", r#"{"\u017fimulate":false}"#).is_err());
        assert!(check("ask", r#"{"as\u212a":false}"#).is_err());
        for good in ["{}", r#"{"dryRun":false}"#, r#"{"dry\u0052un":false}"#, r#"{"run":1,"options":{"dryrun":1}}"#] {
            check("dryRun", good).unwrap();
        }
        let error = check("dryRun", r#"{"Dry/Run":1,"DryRun":1}"#).unwrap_err();
        assert_eq!(error.data["details"]["errors"][0]["pointer"], "/DryRun");
    }
}
