//! Names a change by its recipe: the target, the operation and the summary. They depend on the arguments only, which
//! the proposer knows.

use serde_json::Value;

use super::expressions;
use countersign_domain::{
    changes::{Operation, Preview},
    recipes::{Recipe, TextTemplate},
    text::truncate,
};

/// Maximum characters of a lock key. Longer targets are truncated, so a few of them may share a key.
const MAX_LOCK_KEY_CHARS: usize = 1000;
/// The name of summaries in errors.
const SUMMARY: &str = "summary";
/// Maximum characters of a summary.
const MAX_SUMMARY_CHARS: usize = 300;

/// Sets what the recipe says of the target, operation and summary.
pub(super) fn apply_recipe_labels(recipe: &Recipe, arguments: &cel::Value, arguments_preview: &mut Preview) {
    let text = |name: &str, template: &Option<TextTemplate>| {
        let value = expressions::render(name, template.as_ref()?, &[("arguments", arguments)]).ok()?;
        expressions::display_text(value).filter(|text| !text.is_empty())
    };
    if let Some(operation) = operation_of(recipe, arguments) {
        arguments_preview.operation = operation;
    }
    if let Some(target) = text("target", &recipe.target) {
        arguments_preview.target.lock_key = lock_key(&target);
        arguments_preview.target.label = target;
    }
    if let Some(entity) = &recipe.entity {
        arguments_preview.target.entity_type.clone_from(entity);
    }
    if let Some(summary) = text(SUMMARY, &recipe.summary) {
        arguments_preview.summary = summary_line(&summary);
    }
}

/// Returns the operation that the recipe names. Any other value counts as [`Operation::Call`].
pub(super) fn operation_of(recipe: &Recipe, arguments: &cel::Value) -> Option<Operation> {
    if recipe.dispatcher.is_some() {
        return None;
    }
    let value = expressions::render("operation", recipe.operation.as_ref()?, &[("arguments", arguments)]);
    let name = value.as_ref().ok().and_then(Value::as_str).unwrap_or_default();
    let operation = Operation::VARIANTS.iter().find(|operation| name.eq_ignore_ascii_case(operation.as_str()));
    Some(operation.copied().unwrap_or(Operation::Call))
}

/// Returns `true` if the recipe's summary is shown as it is, without being cut.
pub(super) fn is_summary_whole(recipe: &Recipe, arguments: &cel::Value) -> bool {
    let Some(summary) = &recipe.summary else { return true };
    let text =
        expressions::render(SUMMARY, summary, &[("arguments", arguments)]).ok().and_then(expressions::display_text);
    text.is_some_and(|text| summary_line(&text) == text.trim_end())
}

/// Returns the first line that is not blank, truncated.
fn summary_line(text: &str) -> String {
    let line = text.lines().map(str::trim_end).find(|line| !line.trim().is_empty()).unwrap_or_default();
    let cut = truncate(line, MAX_SUMMARY_CHARS);
    if cut.len() < text.trim_end().len() { format!("{cut} …") } else { cut.to_owned() }
}

/// Returns the same key for all spellings of a path.
fn lock_key(target: &str) -> String {
    let target = truncate(target, MAX_LOCK_KEY_CHARS);
    if !target.contains('/') {
        return target.to_owned();
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    let root = if target.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::{MAX_SUMMARY_CHARS, lock_key, summary_line};

    #[test]
    fn summary_line_is_single_and_bounded() {
        assert_eq!(summary_line("Commit in r: Fix it\n\nbecause"), "Commit in r: Fix it …");
        assert_eq!(summary_line("Write /a b\n"), "Write /a b");
        assert_eq!(summary_line(&"x".repeat(1000)).chars().count(), MAX_SUMMARY_CHARS + 2);
    }

    #[test]
    fn lock_key_normalizes_path_spellings() {
        for path in ["/a/b", "/a//b", "/a/./b", "/a/x/../b", "//a/b/", "/../a/b"] {
            // A path above the root keeps its own key, which belongs to no file.
            let expected = if path.starts_with("/..") { "/../a/b" } else { "/a/b" };
            assert_eq!(lock_key(path), expected, "{path}");
        }
        assert_eq!(lock_key("a b.."), "a b..");
        assert_eq!(lock_key("../x"), "../x");
        assert_ne!(lock_key("a/b"), lock_key("/a/b"));
    }
}
