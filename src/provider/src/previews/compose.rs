//! Composes a preview, its fields and its fingerprint, from the values that a recipe has read. This is pure
//! computation, but may take a moment, so it runs on a blocking thread.

use std::borrow::Cow;

use serde_json::Value;

use super::{
    arguments::{add_argument, field_name},
    comparison, confirmation,
    dry_run::is_dry_run,
    expressions,
    fault::Fault,
    formats::set_formats_of_recipe,
    labels,
    sql::ObservedStatement,
    unified_diff,
};
use countersign_domain::{
    changes::{
        COMPARED_FIELD, LineOp, Operation, Preview, PreviewKind, PreviewNote, StateEffect,
        diff::{DiffBuilder, text_lines},
        digest::PartHasher,
    },
    policy::Condition,
    recipes::{DisplayFormat, NamedArguments, Recipe, UnnamedArgument},
};
use countersign_protocol::McpError;

/// A preview, and the transient error that explains it if the target could not be read right now.
pub struct ComputedPreview {
    pub preview: Preview,
    pub transient_error: Option<McpError>,
    /// The state that the verification needs after the run, if a recipe made the preview.
    pub before: Option<StateBefore>,
}

/// The part of a preview that the verification needs after the run.
#[derive(Clone, Debug, Default)]
pub struct StateBefore {
    /// The position in [`Recipe::alternatives`] of the recipe that made the preview.
    pub alternative: usize,
    /// The state that the recipe has read: one value, or one for each element of its list. A value is `None` if the target did
    /// not exist.
    pub values: Vec<Option<Value>>,
    /// The statements of a call that runs SQL, with their rows.
    pub(super) statements: Vec<ObservedStatement>,
}

impl StateBefore {
    /// Creates the state that a recipe without alternatives has read.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_values(values: Vec<Option<Value>>) -> Self {
        Self { values, ..Self::default() }
    }
}

/// A value that a recipe has read.
#[derive(Default)]
pub struct Observation {
    pub label: String,
    /// `None` if the target does not exist.
    pub value: Option<Value>,
    pub display_format: DisplayFormat,
    /// `true` if policy does not let the proposer read the value without review.
    pub restricted: bool,
    /// The element of the recipe's list for which it was read.
    pub element: Option<cel::Value>,
    /// See [`PreviewNote::state_keys`]. `None` if the value was not read, or the selection of its parts depends on the arguments.
    pub state_key: Option<String>,
}

/// All values that a recipe has read.
#[derive(Default)]
pub struct Observations {
    pub dry_run: Option<Observation>,
    /// The present state: one value, or one for each element of the recipe's list.
    pub before: Vec<Observation>,
    pub reads: Vec<Observation>,
    pub failed_dry_run: Option<Fault>,
    /// `true` if the recipe may answer a question of the server.
    pub may_confirm: bool,
}

/// Prefix of the preview's fields that show the recipe's reads.
const READ_FIELD_PREFIX: &str = "$read";

/// The call that a preview is for.
#[derive(Clone, Copy)]
pub struct ProposedCall<'a> {
    /// The JSON text of the arguments.
    pub text: &'a str,
    /// The parsed arguments.
    pub arguments: &'a cel::Value,
    /// The preview that shows the arguments.
    pub arguments_preview: &'a Preview,
}

/// Builds the preview from the values that the recipe has read. `conditions` are those that chose it among others.
pub fn compose(
    recipe: &Recipe,
    conditions: &[&Condition],
    call: ProposedCall<'_>,
    observations: Observations,
) -> Result<Preview, Fault> {
    let ProposedCall { arguments, arguments_preview, .. } = call;
    let Observations { dry_run, before, reads, failed_dry_run, may_confirm } = observations;
    let mut hasher = fingerprint_hasher(arguments_preview);
    dry_run.iter().for_each(|observation| hash_observation(&mut hasher, "dry", observation));
    before.iter().for_each(|observation| hash_observation(&mut hasher, "before", observation));
    reads.iter().for_each(|observation| hash_observation(&mut hasher, "read", observation));

    let mut builder = DiffBuilder::new();
    let kind = if dry_run.is_some() { PreviewKind::DryRun } else { PreviewKind::BeforeAfter };
    let creates = !before.is_empty() && before.iter().all(|observation| observation.value.is_none());
    let is_only_dry_run = dry_run.is_some() && is_dry_run(recipe, call.text);
    let default_operation = match (is_only_dry_run, creates) {
        (true, _) => Operation::Call,
        (false, true) => Operation::Create,
        (false, false) => Operation::Update,
    };
    let named_operation = labels::operation_of(recipe, arguments);
    let state_keys = dry_run.iter().chain(&before).filter_map(|observation| observation.state_key.clone()).collect();
    let state_effect = match named_operation {
        // It would still be shown as a creation if an earlier step of a plan creates the target.
        Some(Operation::Create) if creates => StateEffect::Dependent,
        _ => recipe.state_effect(),
    };
    let compares = !before.is_empty();
    if dry_run.is_none() && !compares {
        // The result cannot be computed, so the preview shows the requested values beside the current state.
        add_unnamed_arguments(&mut builder, &NamedArguments::default(), call);
    }
    if is_only_dry_run {
        let note = "The call itself asks for a dry run, so nothing is written.";
        builder.add_lines("$effect", "Effect", [(LineOp::Note, note.into())]);
    }
    if let Some(observation) = dry_run {
        add_observation(&mut builder, "$dryRun", observation);
    }
    for (n, observation) in before.into_iter().enumerate() {
        let field = if n == 0 { COMPARED_FIELD.to_owned() } else { format!("{COMPARED_FIELD}{}", n + 1) };
        comparison::add_comparison(&mut builder, &field, recipe, arguments, observation)?;
    }
    // A dry run is the server's own account of the whole call.
    if compares {
        let is_summary_whole = labels::is_summary_whole(recipe, arguments);
        let named_arguments = NamedArguments::for_recipe(recipe, conditions, is_summary_whole);
        add_unnamed_arguments(&mut builder, &named_arguments, call);
    }
    if let Some(fault) = failed_dry_run {
        hasher.add_part(b"failed").add_part(fault.kind.as_bytes());
        let fields = builder.len();
        builder.add_lines("$note", "The dry run", [(LineOp::Note, fault.reason.into())]);
        builder.restrict_after(fields, true);
    }
    for (n, observation) in reads.into_iter().enumerate() {
        add_observation(&mut builder, &format!("{READ_FIELD_PREFIX}{}", n + 1), observation);
    }
    add_confirmation(&mut builder, &mut hasher, recipe, may_confirm, arguments)?;
    let mut diff = builder.finish();
    set_formats_of_recipe(&mut diff, &arguments_preview.diff, &arguments_preview.target.label);
    Ok(Preview {
        note: PreviewNote { kind, confirms: may_confirm, state_keys, ..PreviewNote::default() },
        operation: named_operation.unwrap_or(default_operation),
        target: arguments_preview.target.clone(),
        summary: arguments_preview.summary.clone(),
        diff,
        fingerprint: hasher.finish(),
        state_effect,
    })
}

/// Adds a field for each argument that the recipe does not name, so that no part of the call is invisible.
pub(super) fn add_unnamed_arguments(builder: &mut DiffBuilder, named: &NamedArguments<'_>, call: ProposedCall<'_>) {
    for UnnamedArgument { name, value } in named.unnamed(call.text) {
        let field = field_name(&name);
        let of_argument = call.arguments_preview.diff.fields.iter().find(|known| known.field == field);
        let label = of_argument.map_or(name.as_str(), |known| &known.label);
        add_argument(builder, &name, label, value);
    }
}

/// Shows whether and how a question of the server is answered, if the recipe names one.
pub(super) fn add_confirmation(
    builder: &mut DiffBuilder,
    hasher: &mut PartHasher,
    recipe: &Recipe,
    may_confirm: bool,
    arguments: &cel::Value,
) -> Result<(), Fault> {
    if let Some(confirmation) = &recipe.confirm {
        let text = confirmation::describe(confirmation, may_confirm, arguments)?;
        hasher.add_part(b"confirm").add_part(text.as_bytes());
        builder.add_lines("$confirm", "Question of the server", [(LineOp::Note, text.into())]);
    }
    Ok(())
}

/// Returns the preview for a failed recipe: the arguments, and the reason of the failure.
pub fn preview_of_failure(mut arguments_preview: Preview, fault: Fault) -> ComputedPreview {
    let mut hasher = fingerprint_hasher(&arguments_preview);
    hasher.add_part(b"failed").add_part(fault.kind.as_bytes());
    arguments_preview.fingerprint = hasher.finish();
    arguments_preview.note = PreviewNote {
        kind: PreviewKind::Arguments,
        failed: Some(fault.reason),
        must_fail: fault.must_fail,
        ..PreviewNote::default()
    };
    ComputedPreview { preview: arguments_preview, transient_error: fault.transient_error, before: None }
}

pub(super) fn fingerprint_hasher(arguments_preview: &Preview) -> PartHasher {
    let mut hasher = PartHasher::new("countersign.preview.1");
    hasher.add_part(arguments_preview.fingerprint.as_bytes());
    hasher
}

fn hash_observation(hasher: &mut PartHasher, role: &str, observation: &Observation) {
    let text = observation.value.as_ref().map(|value| match value {
        Value::String(text) => Cow::Borrowed(text.as_str()),
        other => Cow::Owned(other.to_string()),
    });
    hasher.add_part(role.as_bytes()).add_part(observation.label.as_bytes()).add_optional(text.as_deref());
}

/// Adds a value to the preview as it was read.
fn add_observation(builder: &mut DiffBuilder, field: &str, observation: Observation) {
    let fields = builder.len();
    let text = observation.value.and_then(|value| expressions::display_text_as(value, observation.display_format));
    match (&text, observation.display_format) {
        (None, _) => builder.add_lines(field, &observation.label, [(LineOp::Note, "(nothing is there)".into())]),
        (Some(text), _) if text.trim().is_empty() => {
            builder.add_lines(field, &observation.label, [(LineOp::Note, "(empty)".into())]);
        }
        (Some(text), DisplayFormat::Text | DisplayFormat::Json | DisplayFormat::Yaml) => {
            builder.add_lines(field, &observation.label, text_lines(text).map(|line| (LineOp::Equal, line.into())));
        }
        (Some(text), DisplayFormat::Diff) => {
            builder.add_lines(field, &observation.label, unified_diff::parse_lines(text))
        }
    }
    builder.restrict_after(fields, observation.restricted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::{Diff, Target};

    #[test]
    fn failure_of_a_dry_run_is_part_of_the_fingerprint() {
        let arguments_preview = Preview {
            note: PreviewNote::default(),
            operation: Operation::Call,
            target: Target { entity_type: String::new(), id: None, label: String::new(), lock_key: String::new() },
            summary: String::new(),
            diff: Diff::default(),
            fingerprint: String::new(),
            state_effect: StateEffect::Dependent,
        };
        let fingerprint = |kind: Option<&'static str>| {
            let failed_dry_run = kind.map(|kind| Fault::new(kind, "it failed"));
            let observations = Observations { failed_dry_run, ..Observations::default() };
            let arguments = expressions::parse_arguments("{}").unwrap_or_else(|fault| panic!("{}", fault.reason));
            let call = ProposedCall { text: "{}", arguments: &arguments, arguments_preview: &arguments_preview };
            match compose(&Recipe::default(), &[], call, observations) {
                Ok(preview) => preview.fingerprint,
                Err(fault) => panic!("{}", fault.reason),
            }
        };
        assert_eq!(fingerprint(Some("answer")), fingerprint(Some("answer")));
        assert_ne!(fingerprint(Some("answer")), fingerprint(Some("call")));
        assert_ne!(fingerprint(Some("answer")), fingerprint(None));
    }
}
