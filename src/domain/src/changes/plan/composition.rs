//! Composes the preview of a step whose target an earlier step of its plan writes, so that it begins where that step ends.

use crate::changes::{Change, Diff, FieldDiff, LineOp, Preview, PreviewKind, diff::DiffBuilder};

/// The field of a note in a diff.
const NOTE_FIELD: &str = "$plan";
/// The fields that name the target.
const NAME_FIELDS: [&str; 2] = ["title", "name"];

/// Returns `true` if the earlier step writes the target that the preview of a later call has read. A preview of the arguments
/// alone has read nothing.
#[must_use]
pub fn is_written_by(earlier: &Change, provider: &str, preview: &Preview) -> bool {
    preview.note.kind != PreviewKind::Arguments
        && earlier.provider == provider
        && earlier.target.lock_key == preview.target.lock_key
}

/// Updates a preview to the state after the earlier steps, which write the same target and come in the order of the plan: each
/// field begins with the value that they leave. If that cannot be computed, a note says so. The note also makes the preview
/// differ from the one when the step runs, so that a person reviews that one.
pub fn compose_over<'a>(preview: &mut Preview, earlier: impl IntoIterator<Item = &'a Change>) {
    for step in earlier {
        preview.note.restricted |= step.is_restricted();
        // A step of another entity with the same lock key may alter the preview too. That shows when this step runs.
        let is_same_entity = step.target.id.is_some() && step.target.id == preview.target.id;
        compose_headline(preview, step);
        if is_same_entity && !compose_over_step(preview, step) {
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

/// Lets the diff of a preview begin where the earlier step ends. Returns `false`, and leaves the preview as it is, if the result
/// of that step is not known completely.
fn compose_over_step(preview: &mut Preview, step: &Change) -> bool {
    let are_complete = is_complete(&preview.diff, preview.note.is_live(), preview.note.kind)
        && is_complete(&step.diff, step.preview.is_live(), step.preview.kind);
    if !are_complete {
        return false;
    }
    let mut composed = Vec::with_capacity(preview.diff.fields.len());
    for field in &preview.diff.fields {
        let Some(earlier) = step.diff.fields.iter().find(|earlier| earlier.field == field.field) else {
            composed.push(field.clone());
            continue;
        };
        if earlier.before != field.before || earlier.format != field.format {
            return false;
        }
        let diff = DiffBuilder::new()
            .field(&field.field, &field.label, earlier.after.as_deref(), field.after.as_deref())
            .finish();
        if diff.truncated {
            return false;
        }
        composed.extend(diff.fields.into_iter().map(|composed| FieldDiff {
            format: field.format,
            language: field.language.clone(),
            restricted: field.restricted || earlier.restricted,
            ..composed
        }));
    }
    preview.diff.fields = composed;
    true
}

/// Returns `true` if the diff has the whole values of each field before and after.
fn is_complete(diff: &Diff, is_live: bool, kind: PreviewKind) -> bool {
    let is_plain =
        |field: &FieldDiff| (field.before.is_some() || field.after.is_some()) && !field.field.starts_with('$');
    is_live && kind == PreviewKind::Module && !diff.truncated && diff.fields.iter().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{ChangeState, Operation, PreviewNote, Target, plan::PlanStep, testing};

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
        assert_eq!((typed.target.label, typed.summary), headline, "another type is no other name");
        let mut other = preview(&[("title", None, Some("b"))]);
        other.target.id = None;
        compose_over(&mut other, &earlier);
        assert_eq!(other.diff, preview(&[("title", None, Some("b"))]).diff, "it creates another entity");
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
        let cases: [Alter; 5] = [
            |_, later| later.diff.truncated = true,
            |earlier, _| earlier.diff.truncated = true,
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
}
