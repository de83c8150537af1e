//! Verifies a call after it ran: reads its target again, and compares it with what was approved.
//!
//! It only reads, within the limits of a preview, and never repeats the call.

use futures_util::future::BoxFuture;
use serde_json::{Value, value::RawValue};

use super::{
    PreviewRequest, comparison,
    compose::StateBefore,
    dry_run::is_dry_run,
    expressions,
    fault::{Fault, redacted_line},
    recipe_runner::{RecipeRunner, finish_in_time, run_blocking},
    sql,
};
use crate::PresentValues;
use countersign_domain::{
    changes::{
        Change, Diff, PreviewKind, Verification,
        diff::{DiffBuilder, DiffLimits},
    },
    recipes::{PreviewRead, Recipe, StateAfter},
};

/// Returns the limits of the differences that are shown.
pub(super) fn diff_limits() -> DiffLimits {
    DiffLimits { fields: 50, value_bytes: 16 << 10, total_bytes: 64 << 10, lines: 400, ..DiffLimits::default() }
}

/// Returns a future that reads the target of an applied change again and compares it. `request` is the call of the change, and
/// `result` is the result of the call. `before` is the state that the last preview has read. Returns `None` if nothing says
/// what to expect.
pub fn read_back<'a>(
    request: PreviewRequest<'a>,
    change: &'a Change,
    before: Option<&'a StateBefore>,
    result: &'a RawValue,
) -> Option<BoxFuture<'a, Verification>> {
    let PreviewRequest { provider, tool, arguments, context, .. } = request;
    if provider.is_module() {
        let present = provider.read_back(tool, arguments, result, context)?;
        return Some(Box::pin(async move {
            match present.await {
                Ok(values) => compare_fields(&change.diff, &values),
                Err(error) => Verification::unreadable(redacted_line(&error.message)),
            }
        }));
    }
    let recipe = recipe_of_preview(provider.recipe(tool)?, before)?;
    if let Some(recipe) = &recipe.sql {
        let statements = &before?.statements;
        return statements.iter().any(sql::is_verifiable).then(|| -> BoxFuture<'a, Verification> {
            Box::pin(async move {
                let runner = RecipeRunner::new(request);
                let verified = sql::verify_statements(&runner, recipe, statements, change);
                finish_in_time(verified).await.unwrap_or_else(|fault| Verification::unreadable(fault.reason))
            })
        });
    }
    if change.preview.kind == PreviewKind::DryRun && is_dry_run(recipe, arguments.get()) {
        return None;
    }
    let expectation = Expectation::from_recipe(recipe, before)?;
    Some(Box::pin(async move {
        let runner = RecipeRunner::new(request);
        let compared = finish_in_time(expectation.compare(&runner, change, result)).await;
        compared.map_or_else(|fault| Verification::unreadable(fault.reason), Verification::from_diff)
    }))
}

/// Returns the recipe, or the alternative of it, that made the preview.
fn recipe_of_preview<'a>(recipe: &'a Recipe, state: Option<&StateBefore>) -> Option<&'a Recipe> {
    let alternatives = recipe.alternatives();
    match state {
        Some(state) => alternatives.get(state.alternative).copied(),
        None => (alternatives.len() == 1 && std::ptr::eq(alternatives[0], recipe)).then_some(recipe),
    }
}

/// Compares the present values of a module with those of the approved diff.
fn compare_fields(approved: &Diff, present: &PresentValues) -> Verification {
    let mut builder = DiffBuilder::with_limits(diff_limits());
    let mut compared = 0;
    for field in &approved.fields {
        let Some((_, value)) = present.iter().find(|(name, _)| *name == field.field) else { continue };
        if approved.truncated && field.after.as_ref().is_some_and(|text| text.ends_with('…')) {
            return Verification::unreadable("the text is too long to be compared");
        }
        compared += 1;
        let fields = builder.len();
        builder.add(&field.field, &field.label, field.after.as_deref(), value.as_deref());
        builder.restrict_after(fields, field.restricted);
    }
    if compared == 0 {
        return Verification::unreadable("nothing of it can be compared");
    }
    Verification::from_diff(builder.finish())
}

/// The state that a recipe expects after the run, and the read that finds it.
struct Expectation<'a> {
    recipe: &'a Recipe,
    read: &'a PreviewRead,
    /// The expected state; `None` if nothing should remain.
    after: Option<&'a StateAfter>,
    /// The state that the last preview has read, for each element of the recipe's list.
    before: &'a [Option<Value>],
}

impl<'a> Expectation<'a> {
    /// Returns `None` if the recipe says nothing about the state after the run, or if that needs the state before, which was
    /// not read.
    fn from_recipe(recipe: &'a Recipe, state: Option<&'a StateBefore>) -> Option<Self> {
        let verify = recipe.verify.as_ref();
        let read = verify.map(|verify| &verify.read).or(recipe.before.as_ref())?;
        let after = verify.and_then(|verify| verify.after.as_ref()).or(recipe.after.as_ref());
        let before = state.map_or(&[][..], |state| &state.values);
        let needs_before = after.is_some_and(|after| after.uses("before"))
            || read.uses("before")
            || (verify.is_none() && read.for_each.is_some());
        (!before.is_empty() || !needs_before).then_some(Self { recipe, read, after, before })
    }

    /// Reads the target, and returns the differences from what was expected.
    async fn compare(&self, runner: &RecipeRunner<'_>, change: &Change, result: &RawValue) -> Result<Diff, Fault> {
        let arguments = runner.parse_arguments().await?;
        let result = if self.read.uses("result") || self.after.is_some_and(|after| after.uses("result")) {
            let text = result.get().to_owned();
            run_blocking(move || expressions::parse_variable("result", &text)).await?
        } else {
            cel::Value::Null
        };
        let observations = if self.recipe.verify.is_some() {
            let before = match self.before.first().and_then(Option::as_ref) {
                Some(before) if self.read.uses("before") => expressions::to_cel_value("before", before)?,
                _ => cel::Value::Null,
            };
            let variables = [("arguments", &arguments), ("before", &before), ("result", &result)];
            vec![runner.read(self.read, &variables).await?]
        } else {
            runner.read_each(self.read, &arguments).await?
        };
        let before = self.before.to_vec();
        let (recipe, after, pick) = (self.recipe.clone(), self.after.cloned(), self.read.pick.clone());
        let is_restricted = change.is_restricted();
        run_blocking(move || {
            let mut builder = DiffBuilder::with_limits(diff_limits());
            for (n, observation) in observations.iter().enumerate() {
                let mut variables = expressions::variables(&arguments, observation.element.as_ref());
                let label = comparison::label_of(&recipe, &variables)?;
                variables.push(("result", &result));
                let before = before.get(n).and_then(Option::as_ref);
                let expected = match &after {
                    Some(after) => {
                        comparison::state_after(after, before, Some(&pick), observation.display_format, &variables)?
                    }
                    None => None,
                };
                let field = format!("$content{n}");
                comparison::add_difference(
                    &mut builder,
                    &field,
                    label.as_deref(),
                    expected.as_ref(),
                    observation,
                    is_restricted,
                );
            }
            Ok(builder.finish())
        })
        .await
    }
}
