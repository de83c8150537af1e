//! The parts of the arguments whose values an expression uses.
//!
//! `has(arguments.x)` and `size(arguments.x)` use no value: their results do not tell what is in it.

use cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
};

use super::{compiler::LoopVariable, functions, text_functions};

/// The variables whose parts are recorded.
const VARIABLES: [&str; 2] = ["arguments", "element"];

/// A part of a variable, such as `arguments.files[0].path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePath {
    /// `arguments` or `element`.
    pub variable: &'static str,
    pub steps: Vec<ValueStep>,
}

/// A step from a value into a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueStep {
    Member(String),
    /// Any element of a list.
    Element,
}

/// A part whose fields become fields of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedPath {
    pub path: ValuePath,
    /// The fields that the expression replaces.
    pub replaced: Vec<String>,
}

impl ValuePath {
    pub(super) fn with(mut self, step: ValueStep) -> Self {
        self.steps.push(step);
        self
    }
}

/// Returns the part that the node stands for, or `None` if it computes something.
pub(super) fn path_of(node: &IdedExpr, loop_variables: &[LoopVariable]) -> Option<ValuePath> {
    match &node.expr {
        Expr::Ident(name) => match loop_variables.iter().rev().find(|variable| variable.name == *name) {
            Some(variable) => variable.path.clone(),
            None => {
                let variable = VARIABLES.into_iter().find(|variable| variable == name)?;
                Some(ValuePath { variable, steps: Vec::new() })
            }
        },
        Expr::Select(select) if !select.test => {
            Some(path_of(&select.operand, loop_variables)?.with(ValueStep::Member(select.field.clone())))
        }
        Expr::Call(call) if call.func_name == operators::INDEX => {
            let [holder, key] = call.args.as_slice() else { return None };
            let step = match &key.expr {
                Expr::Literal(LiteralValue::String(key)) => ValueStep::Member(key.inner().to_owned()),
                _ => ValueStep::Element,
            };
            Some(path_of(holder, loop_variables)?.with(step))
        }
        _ => None,
    }
}

/// Returns the parts that the expression returns or merges.
pub(super) fn merged_paths(node: &IdedExpr) -> Vec<MergedPath> {
    let Expr::Call(call) = &node.expr else { return merged_path(node) };
    let merges = [functions::MERGE, functions::MERGE_DEEP, text_functions::MERGE_PATCH];
    match call.args.as_slice() {
        [first, second] if merges.contains(&call.func_name.as_str()) => {
            let replaced = literal_keys(second);
            let mut paths = merged_paths(first);
            paths.iter_mut().for_each(|merged| merged.replaced.extend_from_slice(&replaced));
            paths.extend(merged_paths(second));
            paths
        }
        _ => merged_path(node),
    }
}

fn merged_path(node: &IdedExpr) -> Vec<MergedPath> {
    path_of(node, &[]).map(|path| MergedPath { path, replaced: Vec::new() }).into_iter().collect()
}

/// Returns the keys of a map that is written out.
fn literal_keys(node: &IdedExpr) -> Vec<String> {
    let Expr::Map(map) = &node.expr else { return Vec::new() };
    let keys = map.entries.iter().filter_map(|entry| match &entry.expr {
        EntryExpr::MapEntry(entry) => match &entry.key.expr {
            Expr::Literal(LiteralValue::String(key)) => Some(key.inner().to_owned()),
            _ => None,
        },
        EntryExpr::StructField(_) => None,
    });
    keys.collect()
}

/// Returns the paths whose value is fixed to one or a few literals whenever the condition is true.
pub(super) fn fixed_paths(condition: &IdedExpr) -> Vec<ValuePath> {
    let single = |node: &IdedExpr| -> Vec<ValuePath> { path_of(node, &[]).into_iter().collect() };
    let Expr::Call(call) = &condition.expr else { return single(condition) };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::LOGICAL_AND, [first, second]) => [fixed_paths(first), fixed_paths(second)].concat(),
        (operators::LOGICAL_OR, [first, second]) => {
            let (in_first, in_second) = (fixed_paths(first), fixed_paths(second));
            let is_in_both = |path: &ValuePath| {
                (in_first.contains(path) || requires_absence(first, path))
                    && (in_second.contains(path) || requires_absence(second, path))
            };
            in_first.iter().chain(&in_second).filter(|path| is_in_both(path)).cloned().collect()
        }
        (operators::LOGICAL_NOT, [negated]) => single(negated),
        (operators::EQUALS, [first, second]) => match (&first.expr, &second.expr) {
            (_, Expr::Literal(_)) => single(first),
            (Expr::Literal(_), _) => single(second),
            _ => Vec::new(),
        },
        (operators::IN, [element, list]) if matches!(list.expr, Expr::List(_)) => single(element),
        _ => single(condition),
    }
}

/// Returns `true` for the condition that the part is not there.
fn requires_absence(condition: &IdedExpr, path: &ValuePath) -> bool {
    let negated = match &condition.expr {
        Expr::Call(call) if call.func_name == operators::LOGICAL_NOT => call.args.first(),
        _ => None,
    };
    let Some(Expr::Select(select)) = negated.map(|negated| &negated.expr) else { return false };
    let holder = path_of(&select.operand, &[]).filter(|_| select.test);
    holder.is_some_and(|holder| holder.with(ValueStep::Member(select.field.clone())) == *path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{policy::Condition, recipes::ELEMENT_AFTER_VARIABLES};

    fn text(path: &ValuePath) -> String {
        let steps = path.steps.iter().map(|step| match step {
            ValueStep::Member(name) => format!(".{name}"),
            ValueStep::Element => "[]".to_owned(),
        });
        path.variable.to_owned() + &steps.collect::<String>()
    }

    fn compiled(source: &str) -> Condition {
        Condition::compile_for(source, ELEMENT_AFTER_VARIABLES).unwrap_or_else(|error| panic!("{source}: {error}"))
    }

    #[test]
    fn parts_whose_values_are_used_are_recorded() {
        for (source, expected) in [
            ("arguments.a.b", &["arguments.a.b"][..]),
            (r#"arguments["a-b"][0].c"#, &["arguments.a-b[].c"]),
            ("arguments.l[arguments.n]", &["arguments.l[]", "arguments.n"]),
            ("has(arguments.a.b) ? size(arguments.l) : 0", &[]),
            ("has(arguments.a) ? arguments.a : element", &["arguments.a", "element"]),
            ("yaml(arguments.doc).metadata.name", &["arguments.doc"]),
            (r#"{"x": arguments.a, "y": [element.b]}"#, &["arguments.a", "element.b"]),
            (
                "arguments.files.map(f, f.path + f.parts[0].text)",
                &["arguments.files[].path", "arguments.files[].parts[].text"],
            ),
            ("arguments.ids.filter(i, i != before)", &["arguments.ids[]"]),
            ("arguments.a.map(x, before.map(x, x.secret))", &[]),
            // The names of all arguments tell nothing about their values.
            (r#"arguments.all(k, k in ["a", "b"] || size(arguments[k]) == 0)"#, &[]),
            ("[arguments].map(s, s.content)", &[]),
            ("merge(before, arguments)", &[]),
        ] {
            let paths: Vec<String> = compiled(source).facts().value_paths.iter().map(text).collect();
            assert_eq!(paths, expected, "{source}");
        }
    }

    #[test]
    fn condition_states_values() {
        for (source, expected) in [
            (r#"arguments.method == "update""#, &["arguments.method"][..]),
            (r#"has(arguments.a) && arguments.b.c in ["x", "y"]"#, &["arguments.b.c"]),
            ("!has(arguments.force) || !arguments.force", &["arguments.force"]),
            (r#"arguments.a == "x" || arguments.a == "y" || arguments.b"#, &[]),
            (r#"arguments.a != "x" && arguments.b == arguments.c && arguments.d.startsWith("x")"#, &[]),
            (r#"!(arguments.a == "x") && arguments.list.all(l, l == 1) && arguments.n > 3"#, &[]),
            ("arguments.flag && !arguments.other", &["arguments.flag", "arguments.other"]),
            ("true", &[]),
        ] {
            let paths: Vec<String> = compiled(source).facts().fixed_paths.iter().map(text).collect();
            assert_eq!(paths, expected, "{source}");
        }
    }

    #[test]
    fn merged_parts_are_fields_of_the_result() {
        for (source, expected) in [
            ("arguments", &[("arguments", &[][..])][..]),
            ("arguments.fields", &[("arguments.fields", &[])]),
            (r#"merge(merge_patch(before, arguments), {"a": arguments.b})"#, &[("arguments", &["a"])]),
            (r#"merge(before, arguments.a[0])"#, &[("arguments.a[]", &[])]),
            (r#"has(arguments.a) ? arguments : before"#, &[]),
            (r#"{"a": arguments}"#, &[]),
        ] {
            let compiled = compiled(source);
            let merged = &compiled.facts().merged_paths;
            let found: Vec<_> = merged.iter().map(|merged| (text(&merged.path), merged.replaced.clone())).collect();
            let expected: Vec<_> = expected
                .iter()
                .map(|(path, keys)| ((*path).to_owned(), keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()))
                .collect();
            assert_eq!(found, expected, "{source}");
        }
    }
}
