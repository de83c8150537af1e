//! From what was read to the preview: its fields and its fingerprint. No I/O; run where it may take a moment.

use std::borrow::Cow;

use serde_json::Value;

use super::{fault::Fault, rendered, unified};
use countersign_domain::{
    changes::{
        FieldDiff, LineOp, Operation, Preview, PreviewKind, PreviewNote,
        diff::{DiffBuilder, text_lines},
        digest::PartHasher,
    },
    recipes::{Recipe, Shown},
};
use countersign_protocol::McpError;

/// A preview, and whether it is what it is only because the target could not be looked at right now.
pub struct Made {
    pub preview: Preview,
    pub passing: Option<McpError>,
}

/// Something that was read.
pub struct Seen {
    pub label: String,
    /// `None`: nothing is there.
    pub value: Option<Value>,
    pub shown: Shown,
    /// The proposer could not have read it.
    pub restricted: bool,
}

/// All that a recipe's calls gave.
#[derive(Default)]
pub struct Gathered {
    pub dry_run: Option<Seen>,
    pub before: Option<Seen>,
    pub reads: Vec<Seen>,
    /// Why there is no dry run although the recipe has one.
    pub note: Option<String>,
}

/// A field of the preview that names one of the recipe's reads.
const READ: &str = "$read";

/// The preview of what was gathered.
pub fn compose(recipe: &Recipe, arguments: &cel::Value, plain: &Preview, gathered: Gathered) -> Result<Preview, Fault> {
    let Gathered { dry_run, before, reads, note } = gathered;
    let mut hasher = fingerprint_of(plain);
    for (mark, seen) in dry_run.iter().map(|s| ("dry", s)).chain(before.iter().map(|s| ("before", s))) {
        state(&mut hasher, mark, seen);
    }
    reads.iter().for_each(|seen| state(&mut hasher, "read", seen));

    let mut builder = DiffBuilder::new();
    let mut operation = recipe.operation.unwrap_or(Operation::Update);
    let mut kind = PreviewKind::BeforeAfter;
    if dry_run.is_none() && before.is_none() {
        // Nobody can compute what comes of it: what is asked for stands beside what is there.
        for FieldDiff { field, label, before, after, .. } in &plain.diff.fields {
            if !field.starts_with('$') {
                builder.add(field, label, before.as_deref(), after.as_deref());
            }
        }
    }
    if let Some(seen) = dry_run {
        kind = PreviewKind::DryRun;
        tell(&mut builder, "$dryRun", seen);
    } else if let Some(seen) = before {
        if recipe.operation.is_none() && seen.value.is_none() {
            operation = Operation::Create;
        }
        compare(&mut builder, recipe, arguments, seen)?;
    }
    if let Some(note) = &note {
        builder.add_lines("$note", "The dry run", [(LineOp::Note, note.as_str().into())]);
        builder.restrict_last();
    }
    for (n, seen) in reads.into_iter().enumerate() {
        tell(&mut builder, &format!("{READ}{}", n + 1), seen);
    }
    Ok(Preview {
        note: PreviewNote { kind, ..PreviewNote::default() },
        operation,
        target: plain.target.clone(),
        summary: plain.summary.clone(),
        diff: builder.finish(),
        fingerprint: hasher.finish(),
    })
}

/// The preview where the recipe failed: the arguments, and why there is nothing better.
pub fn failed(mut plain: Preview, fault: Fault) -> Made {
    let mut hasher = fingerprint_of(&plain);
    hasher.part(b"failed").part(fault.kind.as_bytes());
    plain.fingerprint = hasher.finish();
    plain.note = PreviewNote { kind: PreviewKind::Arguments, failed: Some(fault.reason), restricted: false };
    Made { preview: plain, passing: fault.passing }
}

fn fingerprint_of(plain: &Preview) -> PartHasher {
    let mut hasher = PartHasher::new("countersign.preview.1");
    hasher.part(plain.fingerprint.as_bytes());
    hasher
}

fn state(hasher: &mut PartHasher, mark: &str, seen: &Seen) {
    let text = seen.value.as_ref().map(|value| match value {
        Value::String(text) => Cow::Borrowed(text.as_str()),
        other => Cow::Owned(other.to_string()),
    });
    hasher.part(mark.as_bytes()).part(seen.label.as_bytes()).optional(text.as_deref());
}

/// The present text beside the text to come.
fn compare(builder: &mut DiffBuilder, recipe: &Recipe, arguments: &cel::Value, seen: Seen) -> Result<(), Fault> {
    let Some(after) = &recipe.after else { return Ok(()) };
    let looks = after.looks_at("before");
    let before = match &seen.value {
        Some(value) if looks => rendered::value("before", value)?,
        _ => cel::Value::Null,
    };
    let after = rendered::evaluate("after", after, &[("arguments", arguments), ("before", &before)])?;
    let (before, after) = (seen.value.and_then(rendered::text), rendered::text(after));
    let label = recipe.label.as_deref().unwrap_or("Content");
    let fields = builder.len();
    if looks && seen.restricted {
        // What comes of it holds what is there: the proposer is shown neither.
        builder.add_compared("$content", label, before.as_deref(), after.as_deref());
    } else {
        builder.add("$content", label, before.as_deref(), after.as_deref());
    }
    if builder.len() == fields && before == after {
        builder.add_lines("$content", label, [(LineOp::Note, "(nothing would change)".into())]);
    }
    if seen.restricted && builder.len() > fields {
        builder.restrict_last();
    }
    Ok(())
}

/// Live state, as it was told.
fn tell(builder: &mut DiffBuilder, field: &str, seen: Seen) {
    let fields = builder.len();
    let text = seen.value.and_then(rendered::text);
    match (&text, seen.shown) {
        (None, _) => builder.add_lines(field, &seen.label, [(LineOp::Note, "(nothing is there)".into())]),
        (Some(text), _) if text.trim().is_empty() => {
            builder.add_lines(field, &seen.label, [(LineOp::Note, "(empty)".into())]);
        }
        (Some(text), Shown::Text) => {
            builder.add_lines(field, &seen.label, text_lines(text).map(|line| (LineOp::Equal, line.into())));
        }
        (Some(text), Shown::Diff) => builder.add_lines(field, &seen.label, unified::lines(text)),
    }
    if seen.restricted && builder.len() > fields {
        builder.restrict_last();
    }
}
