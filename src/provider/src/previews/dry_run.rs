//! Refuses calls that could turn a dry run into the write itself, and recognizes those that are dry runs.
//!
//! Servers differ in which names they treat as equal. Go's `encoding/json` ignores case and takes the last duplicate;
//! others accept `dry_run` for `dryRun`. If the recipe adds `"dryRun": true`, an agent's `"dryrun": false` could make
//! the preview write. A call whose argument resembles one of the recipe's is therefore refused before anything is sent.

use serde_json::{Value, value::RawValue};

use crate::{schema::push_to_pointer, text::invalid_argument};
use countersign_domain::{
    changes::{person::fold_name, visible::escape_hidden},
    recipes::{DryRun, Recipe},
    text::truncate,
};
use countersign_protocol::{McpError, json};

/// Maximum characters of an argument's name in an error.
const MAX_NAME_CHARS: usize = 100;

/// Checks the call's arguments against those that the recipe sets.
///
/// # Errors
/// `VALIDATION_FAILED` naming the argument, if it is given twice, differs from one of the recipe's only in case, width,
/// hyphens or underscores, or is not `true`, `false` or `null` where the recipe has a boolean.
pub(super) fn check_arguments(dry_run: &DryRun, arguments: &RawValue) -> Result<(), McpError> {
    for (name, value) in &dry_run.arguments {
        let normalized = normalized_name(name);
        let mut is_given = false;
        for member in json::members(arguments.get()) {
            if member.key == name.as_str() {
                if is_given {
                    let message = format!("`{name}` is given twice; give it once, or leave it to the gateway");
                    return Err(refusal(&member.key, "duplicate", message));
                }
                is_given = true;
                // Some servers take any text for true, even `"false"`.
                if value.is_boolean() && !matches!(member.value, "true" | "false" | "null") {
                    let message =
                        format!("`{name}` must be true or false, because it decides whether this is a dry run");
                    return Err(refusal(&member.key, "type", message));
                }
            } else if normalized_name(&member.key) == normalized {
                let displayable = displayable_name(&member.key);
                let message = format!(
                    "`{displayable}` could be taken for `{name}`, which decides whether this is a dry run; leave it out, or \
                     write `{name}`"
                );
                return Err(refusal(&member.key, "ambiguous", message));
            }
        }
    }
    Ok(())
}

/// Returns `true` if the recipe has a dry run and the call itself has all its arguments, so that the call writes nothing.
pub(super) fn is_dry_run(recipe: &Recipe, arguments: &str) -> bool {
    let Some(dry_run) = &recipe.dry_run else { return false };
    dry_run.arguments.iter().all(|(name, expected)| {
        let given: Option<Value> = json::member(arguments, name).and_then(|value| value.parse().ok());
        given.as_ref() == Some(expected)
    })
}

/// Returns the form that all spellings of a name share.
fn normalized_name(name: &str) -> String {
    fold_name(name).chars().filter(|c| !matches!(c, '_' | '-' | ' ')).collect()
}

fn displayable_name(name: &str) -> String {
    escape_hidden(truncate(name, MAX_NAME_CHARS)).into_owned()
}

fn refusal(name: &str, rule: &str, message: String) -> McpError {
    let mut pointer = String::new();
    push_to_pointer(&mut pointer, &displayable_name(name));
    invalid_argument(&pointer, rule, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dry_run(name: &str) -> DryRun {
        DryRun {
            arguments: vec![(name.to_owned(), json!(true))],
            label: None,
            pick: Default::default(),
            display_format: Default::default(),
            must_fail: None,
            reads_as: None,
            is_trusted: true,
        }
    }

    #[test]
    fn call_with_the_arguments_of_a_dry_run_is_one() {
        let recipe = |dry_run: &DryRun| Recipe { dry_run: Some(dry_run.clone()), ..Recipe::default() };
        for (arguments, expected) in [
            (r#"{"path":"p","dryRun":true}"#, true),
            (r#"{"dry\u0052un" : true }"#, true),
            (r#"{"dryRun":false}"#, false),
            (r#"{"dryRun":null}"#, false),
            (r#"{"options":{"dryRun":true}}"#, false),
            ("{}", false),
        ] {
            assert_eq!(is_dry_run(&recipe(&dry_run("dryRun")), arguments), expected, "{arguments}");
        }
        let mut with_mode = dry_run("dryRun");
        with_mode.arguments.push(("mode".into(), json!("plan")));
        assert!(is_dry_run(&recipe(&with_mode), r#"{"dryRun":true,"mode":"plan"}"#));
        assert!(!is_dry_run(&recipe(&with_mode), r#"{"dryRun":true,"mode":"run"}"#));
    }

    #[test]
    fn arguments_similar_to_dry_run_flag_are_refused() {
        let check_arguments =
            |name: &str, raw: &str| check_arguments(&dry_run(name), &RawValue::from_string(raw.into()).unwrap());
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
            r#"{"dryRun":"false"}"#,
            r#"{"dryRun":1}"#,
        ] {
            let error = check_arguments("dryRun", bad).unwrap_err();
            assert_eq!(error.kind, countersign_protocol::ErrorKind::ValidationFailed, "{bad}");
            assert!(error.message.contains("`dryRun`"), "{bad}: {}", error.message);
        }
        // Lower-casing alone would distinguish the long s from s, but Go does not.
        assert!(check_arguments("simulate", r#"{"\u017fimulate":false}"#).is_err());
        assert!(check_arguments("ask", r#"{"as\u212a":false}"#).is_err());
        for good in [
            "{}",
            r#"{"dryRun":false}"#,
            r#"{"dryRun":true}"#,
            r#"{"dryRun": null}"#,
            r#"{"dry\u0052un":false}"#,
            r#"{"run":1,"options":{"dryrun":1}}"#,
        ] {
            check_arguments("dryRun", good).unwrap();
        }
        let error = check_arguments("dryRun", r#"{"Dry/Run":1,"DryRun":1}"#).unwrap_err();
        assert_eq!(error.data["details"]["errors"][0]["pointer"], "/DryRun");
    }
}
