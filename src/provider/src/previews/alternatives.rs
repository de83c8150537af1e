//! Chooses the recipe of a call, if a tool has recipes for different operations or arguments.

use serde_json::Value;

use super::{expressions, fault::Fault};
use countersign_domain::{
    policy::{Condition, ConditionFault},
    recipes::Recipe,
};

/// The recipe of an operation or a variant that makes the preview.
pub(super) struct SelectedAlternative<'r> {
    /// The position in [`Recipe::alternatives`].
    pub(super) position: usize,
    pub(super) recipe: &'r Recipe,
    /// The expressions that chose it.
    pub(super) conditions: Vec<&'r Condition>,
}

/// Returns the recipe of the operation and the variant for these arguments.
pub(super) fn select_alternative<'r>(
    recipe: &'r Recipe,
    arguments: &cel::Value,
) -> Result<SelectedAlternative<'r>, Fault> {
    if let Some(dispatcher) = &recipe.dispatcher {
        let operation = dispatcher.operation_in(arguments);
        let mut position = 0;
        for (name, recipe) in &dispatcher.operations {
            if operation.as_ref() == Some(name) {
                let mut selected = select_alternative(recipe, arguments)?;
                selected.position += position;
                selected.conditions.push(&dispatcher.argument);
                return Ok(selected);
            }
            position += recipe.alternatives().len();
        }
        return Err(Fault::new("operation", "the recipe does not know the operation that the arguments name"));
    }
    if recipe.variants.is_empty() {
        return Ok(SelectedAlternative { position: 0, recipe, conditions: Vec::new() });
    }
    for (position, variant) in recipe.variants.iter().enumerate() {
        match expressions::evaluate("when", &variant.when, &[("arguments", arguments)])? {
            Value::Bool(true) => {
                return Ok(SelectedAlternative { position, recipe: &variant.recipe, conditions: vec![&variant.when] });
            }
            Value::Bool(false) => {}
            _ => return Err(Fault::from_expression("when", &ConditionFault::NotBoolean("something else"))),
        }
    }
    Err(Fault::new("variant", "the recipe has no variant for these arguments"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use countersign_domain::recipes::{Dispatcher, RecipeVariant};

    #[test]
    fn selected_alternative_is_at_its_position() {
        let condition = |text: &str| Condition::compile_for(text, &[("arguments", &[])]).unwrap();
        let variant = |when: &str| RecipeVariant { when: condition(when), recipe: Recipe::default() };
        let first =
            Recipe { variants: vec![variant("arguments.n == 1"), variant("arguments.n == 2")], ..Recipe::default() };
        let operations: BTreeMap<String, Recipe> =
            [("a".to_owned(), first), ("b".to_owned(), Recipe::default()), ("c".to_owned(), Recipe::default())].into();
        let dispatcher = Some(Dispatcher { argument: condition("arguments.call"), operations });
        let recipe = Recipe { dispatcher, ..Recipe::default() };
        let alternatives = recipe.alternatives();
        for (arguments, expected) in [
            (r#"{"call":"a","n":1}"#, Some(0)),
            (r#"{"call":"a","n":2}"#, Some(1)),
            (r#"{"call":"a","n":3}"#, None),
            (r#"{"call":"b"}"#, Some(2)),
            (r#"{"call":"c"}"#, Some(3)),
            (r#"{"call":"d"}"#, None),
        ] {
            let parsed = expressions::parse_arguments(arguments).unwrap_or_else(|fault| panic!("{}", fault.reason));
            let selected = select_alternative(&recipe, &parsed).ok();
            assert_eq!(selected.as_ref().map(|selected| selected.position), expected, "{arguments}");
            assert!(
                selected.is_none_or(|selected| std::ptr::eq(alternatives[selected.position], selected.recipe)),
                "{arguments}"
            );
        }
    }
}
