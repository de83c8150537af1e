//! Compares the present state with the state after a call: records field by field, everything else as text.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{compose::Observation, expressions, fault::Fault};
use countersign_domain::{
    changes::{FieldFormat, LineOp, MISSING_FIELD_SUFFIX, diff::DiffBuilder},
    recipes::{DisplayFormat, Recipe, ResultSelector, StateAfter},
};

/// The nesting below which records are compared as text.
const MAX_DEPTH: usize = 6;
/// The label of a compared text if the recipe names none.
const DEFAULT_LABEL: &str = "Content";
/// Fields that hold the name of a record. Reviewers see one of them even if it stays as it is.
const NAME_FIELDS: [&str; 4] = ["title", "name", "summary", "subject"];

/// The fields of a JSON object.
type Record = Map<String, Value>;

/// Adds the present state beside the state after the call. `field` names it in the diff.
pub(super) fn add_comparison(
    builder: &mut DiffBuilder,
    field: &str,
    recipe: &Recipe,
    arguments: &cel::Value,
    observation: Observation,
) -> Result<(), Fault> {
    let variables = expressions::variables(arguments, observation.element.as_ref());
    let label = label_of(recipe, &variables)?;
    let pick = recipe.before.as_ref().map(|before| &before.pick);
    let after = match &recipe.after {
        Some(after) => state_after(after, observation.value.as_ref(), pick, observation.display_format, &variables)?,
        None => None,
    };
    let uses_before = recipe.after.as_ref().is_some_and(|after| after.uses("before"));
    let mut writer = ComparisonWriter {
        builder,
        format: observation.display_format,
        restricted: observation.restricted,
        // The state after the call repeats the present one, which the proposer may not see.
        hides_values: observation.restricted && uses_before,
    };
    if observation.value.is_none() {
        let label = label.as_ref().map_or_else(|| "Now".to_owned(), |label| format!("{label} (now)"));
        writer.add_note(&format!("{field}{MISSING_FIELD_SUFFIX}"), &label, "(does not exist)");
    }
    writer.add_unchanged_name(field, observation.value.as_ref(), after.as_ref());
    let fields = writer.builder.len();
    writer.add_values(field, label.as_deref(), observation.value.as_ref(), after.as_ref());
    if writer.builder.len() == fields {
        writer.add_note(field, label.as_deref().unwrap_or(DEFAULT_LABEL), "(nothing would change)");
    }
    Ok(())
}

/// Adds the fields in which the expected state of a target and the one that was read back differ.
pub(super) fn add_difference(
    builder: &mut DiffBuilder,
    field: &str,
    label: Option<&str>,
    expected: Option<&Value>,
    found: &Observation,
    is_restricted: bool,
) {
    let restricted = is_restricted || found.restricted;
    let mut writer = ComparisonWriter { builder, format: found.display_format, restricted, hides_values: false };
    writer.add_values(field, label, expected, found.value.as_ref());
}

/// Returns the label that the recipe gives to what it compares.
pub(super) fn label_of(recipe: &Recipe, variables: &[(&str, &cel::Value)]) -> Result<Option<String>, Fault> {
    let label = recipe.label.as_ref().map(|label| expressions::render("label", label, variables)).transpose()?;
    Ok(label.and_then(expressions::display_text))
}

/// Computes the state after the call in this format, with the fields that the recipe shows. `None` means that nothing
/// remains. `variables` are those of the expression, without `before`.
pub(super) fn state_after(
    after: &StateAfter,
    before: Option<&Value>,
    pick: Option<&ResultSelector>,
    format: DisplayFormat,
    variables: &[(&'static str, &cel::Value)],
) -> Result<Option<Value>, Fault> {
    let before_value = match before {
        Some(value) if after.uses("before") => expressions::to_cel_value("before", value)?,
        _ => cel::Value::Null,
    };
    let mut variables = variables.to_vec();
    variables.push(("before", &before_value));
    let value = match after {
        StateAfter::Expression(after) => expressions::evaluate("after", after, &variables)?,
        StateAfter::Fields(fields) => {
            let mut record = match before {
                Some(Value::Object(record)) => record.clone(),
                None => Map::new(),
                Some(_) => {
                    return Err(Fault::new("after", "`after` sets fields, but what `before` reads has none"));
                }
            };
            record.extend(expressions::render_fields(fields, &variables)?);
            Value::Object(record)
        }
    };
    // An expression `keep` selects a part of a parsed document. `after` then gives such a part, too, which is not parsed
    // again.
    let is_document = pick.is_none_or(|pick| pick.keep.is_none());
    let value = expressions::parse_document(value, if is_document { format } else { DisplayFormat::Text })
        .map_err(|fault| Fault::new("format", format!("`after` {}", expressions::document_problem(&fault))))?;
    let value = match pick {
        Some(pick) => expressions::select_fields(value, &pick.fields),
        None => Some(value),
    };
    let mut value = value.ok_or_else(|| Fault::new("fields", "`after` has no fields, but `before` selects some"))?;
    value.sort_all_objects();
    Ok(Some(value).filter(|value| !value.is_null()))
}

/// Writes the fields of one comparison.
struct ComparisonWriter<'a> {
    builder: &'a mut DiffBuilder,
    format: DisplayFormat,
    restricted: bool,
    /// Values are shown as compared lines only, which hides the whole values from the proposer.
    hides_values: bool,
}

impl ComparisonWriter<'_> {
    /// Returns `true` if records are shown field by field.
    fn compares_fields(&self) -> bool {
        self.format != DisplayFormat::Yaml
    }

    /// Adds what differs between two values: fields of records, or else the values.
    fn add_values(&mut self, field: &str, label: Option<&str>, before: Option<&Value>, after: Option<&Value>) {
        let mut values = before.into_iter().chain(after).peekable();
        if self.compares_fields() && values.peek().is_some() && values.all(Value::is_object) {
            let records = (before.and_then(Value::as_object), after.and_then(Value::as_object));
            self.add_record(field, label, "", records, 0);
        } else {
            self.add_value(field, label.unwrap_or(DEFAULT_LABEL), before, after);
        }
    }

    /// Adds the fields of a record that differ. Records inside it are compared in the same way.
    fn add_record(
        &mut self,
        field: &str,
        label: Option<&str>,
        path: &str,
        (before, after): (Option<&Record>, Option<&Record>),
        depth: usize,
    ) {
        let keys: BTreeSet<&String> = before.into_iter().chain(after).flat_map(Map::keys).collect();
        for key in keys {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let get = |record: Option<&Record>| record.and_then(|record| record.get(key)).cloned();
            match (get(before), get(after)) {
                (before, after) if before == after => {}
                (Some(Value::Object(before)), Some(Value::Object(after))) if depth < MAX_DEPTH => {
                    self.add_record(field, label, &path, (Some(&before), Some(&after)), depth + 1);
                }
                (before, after) => {
                    let label = label.map_or_else(|| path.clone(), |label| format!("{label}: {path}"));
                    self.add_value(&format!("{field}.{path}"), &label, before.as_ref(), after.as_ref());
                }
            }
        }
    }

    fn add_value(&mut self, field: &str, label: &str, before: Option<&Value>, after: Option<&Value>) {
        let text =
            |value: Option<&Value>| value.cloned().and_then(|value| expressions::display_text_as(value, self.format));
        let mut texts = (text(before), text(after));
        // Values that differ only in their type, such as 3 and "3", have the same text.
        if before != after && texts.0.is_some() && texts.0 == texts.1 {
            texts = (before.map(expressions::json_text), after.map(expressions::json_text));
        }
        let (before, after) = (texts.0.as_deref(), texts.1.as_deref());
        let fields = self.builder.len();
        if self.hides_values {
            self.builder.add_line_diff(field, label, before, after);
        } else {
            self.builder.add(field, label, before, after);
        }
        if self.format == DisplayFormat::Yaml {
            self.builder.set_format_after(fields, FieldFormat::Yaml);
        }
        self.builder.restrict_after(fields, self.restricted);
    }

    /// Adds the name of a record that keeps it, because the arguments often have only an id.
    fn add_unchanged_name(&mut self, field: &str, before: Option<&Value>, after: Option<&Value>) {
        if let (true, Some(Value::Object(before)), Some(Value::Object(after))) = (self.compares_fields(), before, after)
            && let Some(key) = NAME_FIELDS.iter().find(|key| before.get(**key).is_some_and(Value::is_string))
            && let Some(name) = before.get(*key).filter(|name| after.get(*key) == Some(name)).and_then(Value::as_str)
        {
            self.add_note(&format!("{field}.{key}"), key, name);
        }
    }

    fn add_note(&mut self, field: &str, label: &str, note: &str) {
        let fields = self.builder.len();
        self.builder.add_lines(field, label, [(LineOp::Note, note.into())]);
        self.builder.restrict_after(fields, self.restricted);
    }
}
