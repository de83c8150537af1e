//! Finds the arguments of a call that its recipe does not name. A preview shows them beside what the recipe shows, so that no
//! argument is invisible to a reviewer.
//!
//! A recipe names an argument, or a part of one, if its value decides what the preview shows.

use countersign_protocol::json;
use serde_json::{Map, Value};

use super::{FieldFilter, PreviewRead, Recipe, StateAfter, TextTemplate};
use crate::policy::{
    Condition,
    condition::{MergedPath, ValuePath, ValueStep},
};

/// The parts of the arguments that the recipe of a preview names.
#[derive(Debug, Default)]
pub struct NamedArguments<'r> {
    parts: Vec<NamedPart<'r>>,
}

#[derive(Debug)]
struct NamedPart<'r> {
    path: Vec<ValueStep>,
    /// Set if the members of the part are fields of the state after the call.
    merged: Option<MergedMembers<'r>>,
}

/// Decides which members of a part are shown as fields of the state after the call.
#[derive(Clone, Copy, Debug)]
struct MergedMembers<'r> {
    /// Removes fields from the state.
    filter: Option<&'r FieldFilter>,
    /// The fields that have other values.
    replaced: &'r [String],
}

impl MergedMembers<'_> {
    fn keeps_member(&self, name: &str) -> bool {
        self.filter.is_none_or(|filter| keeps_field(filter, name)) && !self.replaced.iter().any(|other| other == name)
    }
}

/// An argument, or a part of one, that the recipe does not name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnnamedArgument<'a> {
    /// The name of the argument, or a path such as `pages[0].icon`.
    pub name: String,
    /// The value as it is written.
    pub value: &'a str,
}

impl<'r> NamedArguments<'r> {
    /// Collects the arguments that the recipe shows: in its reads, labels and state after, and in the conditions that chose it.
    /// The verification is not shown. A summary counts only if it is whole.
    pub fn for_recipe(recipe: &'r Recipe, conditions: &[&'r Condition], is_summary_whole: bool) -> Self {
        let Recipe { operation, target, summary, label, before, after, reads, sql, confirm, .. } = recipe;
        let mut named_arguments = Self::default();
        let list_path = before.as_ref().and_then(list_path_of);
        let fixed = conditions.iter().flat_map(|condition| &condition.facts().fixed_paths);
        fixed.for_each(|path| named_arguments.add_path(path, None, None));
        named_arguments.add_texts([operation, target], None);
        named_arguments.add_texts(Some(summary).filter(|_| is_summary_whole), None);
        named_arguments.add_texts([label], list_path);
        for read in before.iter().chain(reads) {
            named_arguments.add_read(read);
        }
        if let Some(after) = after {
            named_arguments.add_after(after, before.as_ref().map(|before| &before.pick.fields), list_path);
        }
        if let Some(sql) = sql {
            named_arguments.add(&sql.statement, None);
            sql.query.arguments.iter().for_each(|field| named_arguments.add_text(&field.value, None));
        }
        let answers = confirm.iter().flat_map(|confirmation| &confirmation.answer);
        answers.for_each(|field| named_arguments.add_text(&field.value, None));
        named_arguments
    }

    /// Returns the parts of the arguments, a JSON text, that the recipe does not name.
    pub fn unnamed<'a>(&self, arguments: &'a str) -> Vec<UnnamedArgument<'a>> {
        let mut unnamed = Vec::new();
        for member in json::members(arguments) {
            let name = member.key.into_owned();
            self.collect_unnamed(&[ValueStep::Member(name.clone())], name, member.value, &mut unnamed);
        }
        unnamed
    }

    /// Adds the parts of the value at this path that the recipe does not name.
    fn collect_unnamed<'a>(
        &self,
        path: &[ValueStep],
        name: String,
        value: &'a str,
        unnamed: &mut Vec<UnnamedArgument<'a>>,
    ) {
        let is_container = value.starts_with(['{', '[']);
        if self.parts.iter().any(|part| part.covers(path, is_container)) {
            return;
        }
        if !(is_container && self.parts.iter().any(|part| part.is_within(path))) {
            unnamed.push(UnnamedArgument { name, value });
            return;
        }
        for member in json::members(value) {
            let name = format!("{name}.{}", member.key);
            let path = [path, &[ValueStep::Member(member.key.into_owned())]].concat();
            self.collect_unnamed(&path, name, member.value, unnamed);
        }
        for (n, (_, element)) in json::elements(value).enumerate() {
            self.collect_unnamed(&[path, &[ValueStep::Element]].concat(), format!("{name}[{n}]"), element, unnamed);
        }
    }

    fn add_texts<'t>(
        &mut self,
        texts: impl IntoIterator<Item = &'t Option<TextTemplate>>,
        list_path: Option<&ValuePath>,
    ) {
        texts.into_iter().flatten().for_each(|text| self.add_text(text, list_path));
    }

    fn add_text(&mut self, text: &TextTemplate, list_path: Option<&ValuePath>) {
        text.expressions().into_iter().for_each(|expression| self.add(expression, list_path));
    }

    fn add_read(&mut self, read: &PreviewRead) {
        let list_path = list_path_of(read);
        // For a list of arguments, the used parts of its elements are added instead of the whole list.
        read.for_each.iter().filter(|_| list_path.is_none()).for_each(|expression| self.add(expression, None));
        self.add_text(&read.label, list_path);
        read.arguments.iter().for_each(|field| self.add_text(&field.value, list_path));
        read.pick.keep.iter().chain(&read.pick.paths).for_each(|expression| self.add(expression, list_path));
    }

    /// Adds what the state after the call shows. `filter` removes fields from it.
    fn add_after(&mut self, after: &'r StateAfter, filter: Option<&'r FieldFilter>, list_path: Option<&ValuePath>) {
        let filter = filter.filter(|filter| !filter.is_empty());
        match after {
            StateAfter::Expression(expression) => {
                let merged = &expression.facts().merged_paths;
                let is_merged = |path: &&ValuePath| merged.iter().any(|other| other.path == **path);
                let others = expression.facts().value_paths.iter().filter(|path| !is_merged(path));
                others.for_each(|path| self.add_path(path, list_path, None));
                for MergedPath { path, replaced } in merged {
                    let members = MergedMembers { filter, replaced };
                    let is_whole = filter.is_none() && replaced.is_empty();
                    self.add_path(path, list_path, Some(members).filter(|_| !is_whole));
                }
            }
            StateAfter::Fields(fields) => {
                let shown_fields =
                    fields.iter().filter(|field| filter.is_none_or(|filter| keeps_field(filter, &field.name)));
                shown_fields.for_each(|field| self.add_text(&field.value, list_path));
            }
        }
    }

    fn add(&mut self, expression: &Condition, list_path: Option<&ValuePath>) {
        expression.facts().value_paths.iter().for_each(|path| self.add_path(path, list_path, None));
    }

    /// Adds a part of the arguments, or of the elements of the list.
    fn add_path(&mut self, path: &ValuePath, list_path: Option<&ValuePath>, merged: Option<MergedMembers<'r>>) {
        let path = match (path.variable, list_path) {
            ("arguments", _) => path.steps.clone(),
            (_, Some(list_path)) => [list_path.steps.as_slice(), &[ValueStep::Element], &path.steps].concat(),
            _ => return,
        };
        self.parts.push(NamedPart { path, merged });
    }
}

impl NamedPart<'_> {
    /// Returns `true` if the value at the path is shown as a part of this one. `is_container` tells whether it has parts itself.
    fn covers(&self, path: &[ValueStep], is_container: bool) -> bool {
        if path.len() < self.path.len() || !self.agrees_with(path) {
            return false;
        }
        let Some(members) = self.merged else { return true };
        let member = path.iter().skip(self.path.len()).find_map(|step| match step {
            ValueStep::Member(name) => Some(name),
            ValueStep::Element => None,
        });
        // A merged object, or each one in a merged list, shows only the members that are kept.
        member.map_or(!is_container, |name| members.keeps_member(name))
    }

    /// Returns `true` if the value at the path can have parts that are shown.
    fn is_within(&self, path: &[ValueStep]) -> bool {
        let may_continue = match self.merged {
            Some(_) => path.iter().skip(self.path.len()).all(|step| *step == ValueStep::Element),
            None => path.len() < self.path.len(),
        };
        may_continue && self.agrees_with(path)
    }

    fn agrees_with(&self, path: &[ValueStep]) -> bool {
        self.path.iter().zip(path).all(|(own, other)| own == other)
    }
}

/// Returns the path of the list for each element of which the read is made, if that list is a part of the arguments.
fn list_path_of(read: &PreviewRead) -> Option<&ValuePath> {
    match read.for_each.as_ref()?.facts().merged_paths.as_slice() {
        [MergedPath { path, .. }] if path.variable == "arguments" && !path.steps.is_empty() => Some(path),
        _ => None,
    }
}

/// Returns `true` if the filter keeps a field of this name whatever is in it.
fn keeps_field(filter: &FieldFilter, name: &str) -> bool {
    let field = Map::from_iter([(name.to_owned(), Value::Bool(true))]);
    filter.apply(Value::Object(field)).get(name).is_some()
}
