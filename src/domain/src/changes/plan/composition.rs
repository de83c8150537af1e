//! Composes the preview of a step whose target an earlier step of its plan writes, so that it begins where that step ends.

use crate::changes::{
    COMPARED_FIELD, Change, DiffLine, FieldDiff, LineOp, MISSING_FIELD_SUFFIX, Operation, Preview, PreviewKind,
    StateEffect, diff::DiffBuilder,
};

/// The diff field of the note about an earlier step.
const NOTE_FIELD: &str = "$plan";
/// The fields that name the target.
const NAME_FIELDS: [&str; 2] = ["title", "name"];

/// Returns `true` if the earlier step writes the target that the preview of a later call has read. A preview of the arguments
/// alone has read nothing.
pub fn is_written_by(earlier: &Change, provider: &str, preview: &Preview) -> bool {
    preview.note.kind != PreviewKind::Arguments
        && earlier.provider == provider
        && earlier.target.lock_key == preview.target.lock_key
}

/// Updates a preview to the state after the earlier steps, which write the same target and come in the order of the plan: each
/// field begins with the value that they leave. If that cannot be computed, a note says so. Because of the note, the
/// preview at the step's turn differs from this one, so that a person reviews it then.
pub fn compose_over<'a>(preview: &mut Preview, earlier: impl IntoIterator<Item = &'a Change>) {
    for step in earlier {
        preview.note.restricted |= step.is_restricted();
        compose_headline(preview, step);
        // A step that writes another state under the same lock key may alter the preview too, which is only seen at the turn of
        // this step.
        if is_same_state(preview, step) && !compose_over_step(preview, step) {
            let number = step.plan.as_ref().map_or(0, super::PlanStep::number);
            let text = format!(
                "Step {number} writes the same target. This shows the state before it, and a person is asked again once it \
                 has run."
            );
            let mut note = DiffBuilder::new();
            note.add_lines(NOTE_FIELD, "Earlier step", [(LineOp::Note, text.into())]);
            preview.diff.fields.splice(0..0, note.finish().fields);
            return;
        }
    }
}

/// Returns `true` if both show the same entity of a module, or the same state that a recipe has read.
fn is_same_state(preview: &Preview, step: &Change) -> bool {
    let is_same_entity = step.target.id.is_some() && step.target.id == preview.target.id;
    is_same_entity || preview.note.state_keys.iter().any(|key| step.preview.state_keys.contains(key))
}

/// Renames the target in the label and the summary as the earlier step does. A module's labels end with the name, and its
/// summaries quote it. Only fields that name the target count, because the values of others may also end a label.
fn compose_headline(preview: &mut Preview, step: &Change) {
    let names = step.diff.fields.iter().filter(|field| NAME_FIELDS.contains(&field.field.as_str()));
    let values = names.filter_map(|field| field.before.as_deref().zip(field.after.as_deref()));
    for (before, after) in values.filter(|(before, _)| !before.is_empty()) {
        if let Some(start) = preview.target.label.strip_suffix(before).filter(|start| start.ends_with(' ')) {
            preview.target.label = format!("{start}{after}");
        }
        preview.summary = preview.summary.replace(&format!("“{before}”"), &format!("“{after}”"));
    }
}

/// Adapts what a module's preview says about the state before the call. Summaries begin with `Add` if the target does not exist
/// yet, and may end with `from` and `to` and the values of a field.
fn compose_effect(preview: &mut Preview, step: &Change) {
    if preview.operation == Operation::Create {
        preview.operation = Operation::Update;
        if let Some(rest) = preview.summary.strip_prefix("Add ") {
            preview.summary = format!("Change {rest}");
        }
    }
    for field in &preview.diff.fields {
        let written_field = step.diff.fields.iter().find(|written| written.field == field.field);
        if let Some(FieldDiff { after: Some(present), .. }) = written_field
            && let (Some(before), Some(after)) = (&field.before, &field.after)
            && let Some(start) = preview.summary.strip_suffix(&format!(" from {before} to {after}"))
        {
            preview.summary = format!("{start} from {present} to {after}");
        }
    }
}

/// Lets the diff of a preview begin where the earlier step ends. Returns `false`, and leaves the preview as it is, if the result
/// of that step is not known completely, or the diff depends on it in other ways.
fn compose_over_step(preview: &mut Preview, step: &Change) -> bool {
    let is_known = preview.note.is_live() && step.preview.is_live() && preview.note.kind == step.preview.kind;
    let is_whole = !preview.diff.truncated && !step.diff.truncated;
    if !is_known || !is_whole || preview.state_effect == StateEffect::Dependent || step.operation == Operation::Delete {
        return false;
    }
    let composed = match preview.note.kind {
        PreviewKind::Module => compose_entity(preview, &step.diff.fields),
        PreviewKind::BeforeAfter => compose_comparison(preview, step),
        PreviewKind::DryRun | PreviewKind::Arguments => None,
    };
    let Some(fields) = composed else { return false };
    if preview.note.kind == PreviewKind::Module {
        compose_effect(preview, step);
    }
    let has_missing_note = |fields: &[FieldDiff]| fields.iter().any(is_missing_note);
    if preview.operation == Operation::Create && has_missing_note(&preview.diff.fields) && !has_missing_note(&fields) {
        preview.operation = Operation::Update;
    }
    preview.diff.fields = fields;
    true
}

/// Composes the fields of a module's entity.
fn compose_entity(preview: &Preview, earlier: &[FieldDiff]) -> Option<Vec<FieldDiff>> {
    let later = &preview.diff.fields;
    let is_plain = |field: &FieldDiff| has_values(field) && !field.field.starts_with('$');
    // A call that sets the whole state also sets the fields that its diff leaves out, to their present values.
    let is_set = |written: &FieldDiff| later.iter().any(|field| field.field == written.field);
    let sets_back = preview.state_effect == StateEffect::Whole && !earlier.iter().all(is_set);
    if sets_back || !later.iter().chain(earlier).all(is_plain) {
        return None;
    }
    let is_part = |part: &FieldDiff, whole: &FieldDiff| {
        part.field.strip_prefix(&whole.field).is_some_and(|rest| rest.starts_with('.'))
    };
    let overlaps = |field: &FieldDiff, other: &FieldDiff| is_part(field, other) || is_part(other, field);
    let compose = |field: &FieldDiff| match earlier.iter().find(|earlier| earlier.field == field.field) {
        Some(earlier) => compose_field(field, earlier),
        None if earlier.iter().any(|earlier| overlaps(earlier, field)) => None,
        None => Some(vec![field.clone()]),
    };
    Some(later.iter().map(compose).collect::<Option<Vec<_>>>()?.concat())
}

/// Composes the state that a recipe compares. Other fields, such as those of arguments, stay as they are.
fn compose_comparison(preview: &Preview, step: &Change) -> Option<Vec<FieldDiff>> {
    let (later, earlier) = (&preview.diff.fields, &step.diff.fields);
    let is_complete = |field: &&FieldDiff| has_values(field) || note_text(field).is_some();
    let leaves_nothing =
        |field: &FieldDiff| field.field == COMPARED_FIELD && has_values(field) && field.after.is_none();
    if earlier.iter().any(|field| field.field == NOTE_FIELD || leaves_nothing(field))
        || !earlier.iter().chain(later).filter(|field| is_of_state(field)).all(|field| is_complete(&field))
    {
        return None;
    }
    let written_fields: Vec<&FieldDiff> =
        earlier.iter().filter(|field| is_of_state(field) && has_values(field)).collect();
    if written_fields.is_empty() {
        return Some(later.clone());
    }
    // Such a call also sets the fields that its diff leaves out, to their present values. If the earlier step writes one of them,
    // the call would set it back, which the diff does not show.
    let sets_all = preview.state_effect == StateEffect::Whole || later.iter().any(is_missing_note);
    let is_set = |written: &&FieldDiff| later.iter().any(|field| field.field == written.field && has_values(field));
    if sets_all && !written_fields.iter().all(is_set) {
        return None;
    }
    let mut composed = Vec::with_capacity(later.len());
    for field in later.iter().filter(|field| !is_missing_note(field)) {
        let written_field = written_fields.iter().find(|written| written.field == field.field);
        match (written_field, note_text(field)) {
            // Nothing would change now, but something would after the earlier step.
            (_, Some(_)) if field.field == COMPARED_FIELD => return None,
            // The note has the name of the record, which the earlier step changes.
            (Some(written), Some(name)) => {
                let after = written.after.clone().filter(|_| written.before.as_deref() == Some(name))?;
                let restricted = field.restricted || written.restricted;
                composed.push(FieldDiff {
                    lines: vec![DiffLine { op: LineOp::Note, text: after }],
                    restricted,
                    ..field.clone()
                });
            }
            (Some(written), None) => {
                let field = compose_field(field, written)?;
                // Recipes show a state or a name that stays as it is by a note.
                if field.is_empty() {
                    return None;
                }
                composed.extend(field);
            }
            (None, _) => composed.push(field.clone()),
        }
    }
    Some(composed)
}

/// Lets a field begin with the value that the earlier step leaves. Returns no field if its value stays as it is, and `None` if
/// the two cannot be composed.
fn compose_field(field: &FieldDiff, earlier: &FieldDiff) -> Option<Vec<FieldDiff>> {
    if earlier.before != field.before || earlier.format != field.format {
        return None;
    }
    let diff =
        DiffBuilder::new().field(&field.field, &field.label, earlier.after.as_deref(), field.after.as_deref()).finish();
    let complete = |composed: FieldDiff| FieldDiff {
        format: field.format,
        language: field.language.clone(),
        restricted: field.restricted || earlier.restricted,
        ..composed
    };
    (!diff.truncated).then(|| diff.fields.into_iter().map(complete).collect())
}

/// Returns `true` if the field has its whole values, and not only lines.
fn has_values(field: &FieldDiff) -> bool {
    field.before.is_some() || field.after.is_some()
}

/// Returns `true` for the fields of the state that a recipe compares.
fn is_of_state(field: &FieldDiff) -> bool {
    field.field.strip_prefix(COMPARED_FIELD).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the text of a field that consists of one note.
fn note_text(field: &FieldDiff) -> Option<&str> {
    match field.lines.as_slice() {
        [DiffLine { op: LineOp::Note, text }] if !has_values(field) => Some(text),
        _ => None,
    }
}

/// Returns `true` for the note that there is no state before the call.
fn is_missing_note(field: &FieldDiff) -> bool {
    let name = field.field.strip_prefix(COMPARED_FIELD);
    name == Some(MISSING_FIELD_SUFFIX) && note_text(field).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{ChangeState, PreviewNote, Target, plan::PlanStep, testing};

    type Alter = fn(&mut Change, &mut Preview);

    fn preview(fields: &[(&str, Option<&str>, Option<&str>)]) -> Preview {
        let mut diff = DiffBuilder::new();
        for (field, before, after) in fields {
            diff.add(field, field, *before, *after);
        }
        Preview {
            note: PreviewNote::default(),
            operation: Operation::Update,
            target: Target {
                entity_type: "issue".into(),
                id: Some("7".into()),
                label: "x".into(),
                lock_key: "x".into(),
            },
            summary: "Update".into(),
            diff: diff.finish(),
            fingerprint: "sha256:1".into(),
            state_effect: StateEffect::Fields,
        }
    }

    fn step(number: u32, fields: &[(&str, Option<&str>, Option<&str>)]) -> Change {
        let plan = PlanStep { id: "plan_1".into(), title: "t".into(), reason: None, index: number - 1, last: false };
        let Preview { diff, target, .. } = preview(fields);
        Change { plan: Some(plan), diff, target, ..testing::change("chg_1", "agent", 1, ChangeState::Pending) }
    }

    #[test]
    fn later_step_begins_where_earlier_steps_end() {
        let mut later = preview(&[("title", Some("a"), Some("d")), ("type", Some("Bug"), Some("Task"))]);
        let earlier = [
            step(1, &[("title", Some("a"), Some("b")), ("points", None, Some("3"))]),
            // The second step was composed over the first one.
            step(2, &[("title", Some("b"), Some("c"))]),
        ];
        compose_over(&mut later, &earlier);
        assert_eq!(later.diff, preview(&[("title", Some("c"), Some("d")), ("type", Some("Bug"), Some("Task"))]).diff);
        let mut same = preview(&[("title", Some("a"), Some("b"))]);
        compose_over(&mut same, &earlier[..1]);
        assert!(same.diff.fields.is_empty(), "the step no longer changes the field");
        let mut comment = preview(&[("text", None, Some("yes"))]);
        (comment.target.id, comment.target.label) = (None, "on X-1 a".into());
        comment.summary = "Comment on X-1 “a”: a".into();
        compose_over(&mut comment, &earlier);
        let headline = (comment.target.label.as_str(), comment.summary.as_str());
        assert_eq!(headline, ("on X-1 c", "Comment on X-1 “c”: a"), "the target has another name then");
        let mut typed = preview(&[("points", None, Some("3"))]);
        typed.target.label = "X-1 Fix Bug".into();
        typed.summary = "Update X-1 “Bug”: points".into();
        let headline = (typed.target.label.clone(), typed.summary.clone());
        compose_over(&mut typed, &[step(1, &[("type", Some("Bug"), Some("Task"))])]);
        assert_eq!((typed.target.label, typed.summary), headline, "a changed type is not mistaken for a changed name");
        let mut other = preview(&[("title", None, Some("b"))]);
        other.target.id = None;
        compose_over(&mut other, &earlier);
        assert_eq!(other.diff, preview(&[("title", None, Some("b"))]).diff, "it creates another entity");
    }

    #[test]
    fn summary_of_a_module_follows_the_earlier_step() {
        let mut later = preview(&[("status", Some("Todo"), Some("Done"))]);
        later.summary = "Move X-1 “a” from Todo to Done".into();
        compose_over(&mut later, [&step(1, &[("status", Some("Todo"), Some("Review"))])]);
        assert_eq!(later.summary, "Move X-1 “a” from Review to Done");
        let mut created = preview(&[("file", None, Some("c"))]);
        (created.operation, created.summary) = (Operation::Create, "Add the document “c”".into());
        compose_over(&mut created, [&step(1, &[("file", None, Some("b"))])]);
        assert_eq!((created.operation, created.summary.as_str()), (Operation::Update, "Change the document “c”"));
    }

    #[test]
    fn only_what_was_read_can_be_written_by_an_earlier_step() {
        let (earlier, mut later) = (step(1, &[]), preview(&[]));
        assert!(is_written_by(&earlier, "tracker", &later) && !is_written_by(&earlier, "docs", &later));
        later.target.lock_key = "y".into();
        assert!(!is_written_by(&earlier, "tracker", &later));
        let arguments = PreviewNote { kind: PreviewKind::Arguments, ..PreviewNote::default() };
        assert!(!is_written_by(&earlier, "tracker", &Preview { note: arguments, ..preview(&[]) }));
    }

    #[test]
    fn incomplete_values_are_noted_and_hidden_state_stays_hidden() {
        let earlier = step(1, &[("title", Some("a"), Some("b"))]);
        let note = |preview: &Preview| {
            let note = &preview.diff.fields[0];
            (note.field == NOTE_FIELD).then(|| note.lines[0].text.clone())
        };
        let cases: [Alter; 9] = [
            |_, later| later.diff.truncated = true,
            |earlier, _| earlier.diff.truncated = true,
            |earlier, _| earlier.operation = Operation::Delete,
            |earlier, _| earlier.diff.fields[0].field = "title.first".into(),
            |_, later| later.diff.fields[0].field = "title.first".into(),
            |earlier, later| {
                earlier.diff.fields[0].field = "name".into();
                later.state_effect = StateEffect::Whole;
            },
            |earlier, _| earlier.diff.fields[0].before = Some("other".into()),
            |_, later| later.note.kind = PreviewKind::Arguments,
            |earlier, _| earlier.preview.failed = Some("no".into()),
        ];
        for alter in cases {
            let (mut earlier, mut later) = (earlier.clone(), preview(&[("title", Some("a"), Some("c"))]));
            alter(&mut earlier, &mut later);
            compose_over(&mut later, [&earlier]);
            assert!(note(&later).unwrap().starts_with("Step 1 writes the same target."), "{later:?}");
        }
        let mut later = preview(&[("title", Some("a"), Some("c"))]);
        let mut hidden = earlier;
        hidden.diff.fields[0].restricted = true;
        compose_over(&mut later, [&hidden]);
        assert!(later.note.restricted && later.diff.fields[0].restricted);
    }

    /// One field of the state that a recipe compares: its name after `$content`, and its value before and after, or a note.
    #[derive(Clone, Copy)]
    enum StateField {
        Value(&'static str, Option<&'static str>, Option<&'static str>),
        Note(&'static str, &'static str),
    }
    use StateField::{Note, Value};

    type StateFields<'a> = &'a [StateField];

    const MISSING: StateField = Note(".before", "(does not exist)");

    /// Creates the preview of a recipe, with a field that has nothing to do with the state.
    fn recipe_preview(state_effect: StateEffect, fields: &[StateField]) -> Preview {
        let mut diff = DiffBuilder::new();
        for field in fields {
            match *field {
                Value(name, before, after) => diff.add(&format!("$content{name}"), name, before, after),
                Note(name, text) => diff.add_lines(&format!("$content{name}"), name, [(LineOp::Note, text.into())]),
            }
        }
        diff.add_lines("$read1", "Also read", [(LineOp::Equal, "x".into())]);
        let is_missing = diff.len() > 1 && matches!(fields[0], Note(".before", _));
        let mut preview = Preview { state_effect, diff: diff.finish(), ..preview(&[]) };
        preview.target.id = None;
        preview.note = PreviewNote {
            kind: PreviewKind::BeforeAfter,
            state_keys: vec!["sha256:a".into()],
            ..PreviewNote::default()
        };
        preview.operation = if is_missing { Operation::Create } else { Operation::Update };
        preview
    }

    fn recipe_step(number: u32, fields: &[StateField]) -> Change {
        let Preview { note, operation, target, diff, .. } = recipe_preview(StateEffect::Dependent, fields);
        Change { preview: note, operation, target, diff, ..step(number, &[]) }
    }

    fn is_noted(preview: &Preview) -> bool {
        preview.diff.fields[0].field == NOTE_FIELD
    }

    #[test]
    fn comparison_begins_where_earlier_step_ends() {
        use StateEffect::{Fields, Whole};
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        let cases: [(StateEffect, StateFields<'_>, StateFields<'_>, StateFields<'_>); 7] = [
            (Whole, &[Value("", a, b)], &[Value("", a, c)], &[Value("", b, c)]),
            (Whole, &[MISSING, Value("", None, b)], &[MISSING, Value("", None, c)], &[Value("", b, c)]),
            (Whole, &[Note("", "(nothing would change)")], &[Value("", a, c)], &[Value("", a, c)]),
            (Whole, &[Value("", a, b)], &[Value("", a, None)], &[Value("", b, None)]),
            (
                Fields,
                &[Note(".title", "a"), Value(".body", a, b)],
                &[Note(".title", "a"), Value(".state", a, c)],
                &[Note(".title", "a"), Value(".state", a, c)],
            ),
            (
                Fields,
                &[Value(".title", a, b), Value(".body", a, b)],
                &[Note(".title", "a"), Value(".body", a, c)],
                &[Note(".title", "b"), Value(".body", b, c)],
            ),
            (
                Fields,
                &[MISSING, Value(".body", None, b)],
                &[MISSING, Value(".body", None, c), Value(".state", None, a)],
                &[Value(".body", b, c), Value(".state", None, a)],
            ),
        ];
        for (number, (state_effect, earlier, later, expected)) in cases.into_iter().enumerate() {
            let mut later = recipe_preview(state_effect, later);
            compose_over(&mut later, [&recipe_step(1, earlier)]);
            let expected = recipe_preview(state_effect, expected);
            assert_eq!((later.operation, &later.diff), (expected.operation, &expected.diff), "case {number}");
        }
    }

    #[test]
    fn comparison_that_depends_on_earlier_step_is_noted() {
        use StateEffect::{Dependent, Fields, Whole};
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        let cases: [(StateEffect, StateFields<'_>, StateFields<'_>); 8] = [
            (Dependent, &[Value("", a, b)], &[Value("", a, c)]),
            (Whole, &[Value("", a, b)], &[Value("", a, b)]),
            (Whole, &[Value("", a, None)], &[Value("", a, c)]),
            (Whole, &[Value("", a, b)], &[Note("", "(nothing would change)")]),
            (Whole, &[Value(".body", a, b)], &[Value(".state", a, c)]),
            (Fields, &[Value(".body", a, b)], &[Note("", "(nothing would change)")]),
            (Fields, &[MISSING, Value(".title", None, b)], &[MISSING, Value(".body", None, c)]),
            (Fields, &[Value(".title", b, c)], &[Note(".title", "a"), Value(".body", a, c)]),
        ];
        for (number, (state_effect, earlier, later)) in cases.into_iter().enumerate() {
            let mut later = recipe_preview(state_effect, later);
            compose_over(&mut later, [&recipe_step(1, earlier)]);
            assert!(is_noted(&later), "case {number}: {later:?}");
        }
        let alterations: [Alter; 4] = [
            |earlier, _| earlier.operation = Operation::Delete,
            |earlier, _| earlier.preview.kind = PreviewKind::DryRun,
            |earlier, _| {
                earlier.diff.fields[0] = FieldDiff { before: None, after: None, ..earlier.diff.fields[0].clone() }
            },
            |_, later| later.diff.truncated = true,
        ];
        for alter in alterations {
            let (mut earlier, mut later) =
                (recipe_step(1, &[Value("", a, b)]), recipe_preview(Whole, &[Value("", a, c)]));
            alter(&mut earlier, &mut later);
            compose_over(&mut later, [&earlier]);
            assert!(is_noted(&later), "{earlier:?}");
        }
        // The second step could not be composed, so nobody knows what it leaves.
        let mut second = recipe_preview(Dependent, &[Value("", a, b)]);
        let first = recipe_step(1, &[Value("", a, c)]);
        compose_over(&mut second, [&first]);
        let second = Change { diff: second.diff, ..recipe_step(2, &[]) };
        let mut third = recipe_preview(Whole, &[Value("", a, c)]);
        compose_over(&mut third, [&second]);
        assert!(third.diff.fields[0].lines[0].text.starts_with("Step 2 "), "{third:?}");
    }

    #[test]
    fn other_states_with_the_same_lock_key_are_left_alone() {
        let earlier = recipe_step(1, &[MISSING, Value("", None, Some("b"))]);
        for state_keys in [vec!["sha256:b".to_owned()], Vec::new()] {
            let mut later = recipe_preview(StateEffect::Whole, &[MISSING, Value("", None, Some("c"))]);
            later.note.state_keys = state_keys;
            let before = later.diff.clone();
            compose_over(&mut later, [&earlier]);
            assert_eq!((later.diff, later.operation), (before, Operation::Create));
        }
        let mut list = recipe_preview(StateEffect::Dependent, &[Value("", None, Some("c"))]);
        list.note.state_keys = vec!["sha256:b".into(), "sha256:a".into()];
        compose_over(&mut list, [&earlier]);
        assert!(is_noted(&list), "one of the files of the call is the same");
    }
}
