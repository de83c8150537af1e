//! Compiles the parsed expression of a condition: checks its names, bounds its cost, and records what it reads.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators},
};

use super::{
    ConditionFacts, OWN_FUNCTIONS, Variables,
    budget::{CHARGE, CHARGE_ELEMENTS, CHARGE_REGEX, charge},
    compare, paths,
    value_paths::{ValuePath, ValueStep, path_of},
};
use countersign_protocol::suggest;

/// The functions of CEL that an expression can call.
const STANDARD_FUNCTIONS: [&str; 13] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "string",
    "int",
    "uint",
    "double",
    "bytes",
    "bool",
    "dyn",
    "type",
];

const TYPES: [&str; 11] =
    ["int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type", "dyn"];

/// A variable of a loop.
pub(super) struct LoopVariable {
    pub(super) name: String,
    /// The elements of the arguments that the loop goes through.
    pub(super) path: Option<ValuePath>,
}

/// Checks names, inserts the charging calls, and replaces comparisons by those of [`compare`].
#[derive(Default)]
pub(super) struct Compiler {
    variables: &'static Variables,
    pub(super) facts: ConditionFacts,
    /// The variables of the enclosing loops.
    loop_variables: Vec<LoopVariable>,
    /// The loop variables that hold paths.
    path_variables: Vec<String>,
    /// The number of enclosing nodes that do not use the values in them.
    unused_depth: usize,
    /// The innermost node with an error.
    pub(super) failed_node: Option<u64>,
}

impl Compiler {
    pub(super) fn new(variables: &'static Variables) -> Self {
        Self { variables, ..Self::default() }
    }

    pub(super) fn visit(&mut self, node: &mut IdedExpr) -> Result<(), String> {
        let id = node.id;
        self.record_value(node);
        self.visit_node(node).inspect_err(|_| {
            self.failed_node.get_or_insert(id);
        })
    }

    fn visit_node(&mut self, node: &mut IdedExpr) -> Result<(), String> {
        match &mut node.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.check_name(name),
            Expr::Select(select) => {
                if let Expr::Ident(name) = &select.operand.expr
                    && !self.is_loop_variable(name)
                    && let Some((_, members)) = self.variables.iter().find(|(variable, _)| variable == name)
                    && !members.is_empty()
                    && !members.contains(&select.field.as_str())
                {
                    let hint = did_you_mean(&select.field, members);
                    return Err(format!("`{name}` has no `{}`{hint}; it has {}", select.field, members.join(", ")));
                }
                self.record_argument(&select.operand, &select.field);
                let is_part = select.test || path_of(&select.operand, &self.loop_variables).is_some();
                self.visit_operand(&mut select.operand, !is_part)
            }
            Expr::Call(call) => self.visit_call(call),
            Expr::List(list) => list.elements.iter_mut().try_for_each(|element| self.visit(element)),
            Expr::Map(map) => map.entries.iter_mut().try_for_each(|entry| match &mut entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.visit(&mut entry.key)?;
                    self.visit(&mut entry.value)
                }
                EntryExpr::StructField(field) => self.visit(&mut field.value),
            }),
            Expr::Struct(_) => Err("an expression cannot create structures".to_owned()),
            Expr::Comprehension(comprehension) => {
                self.facts.has_loops = true;
                let range = path_of(&comprehension.iter_range, &self.loop_variables);
                self.visit_operand(&mut comprehension.iter_range, range.is_none())?;
                charge(&mut comprehension.iter_range, CHARGE_ELEMENTS);
                self.visit(&mut comprehension.accu_init)?;
                let (before, paths_before) = (self.loop_variables.len(), self.path_variables.len());
                if paths::path_source_text(&comprehension.iter_range, &self.path_variables).is_some() {
                    self.path_variables.push(comprehension.iter_var.clone());
                }
                // With two variables, the first one is a key or the position.
                let element = range.filter(|_| comprehension.iter_var2.is_none());
                let path = element.map(|range| range.with(ValueStep::Element));
                self.loop_variables.push(LoopVariable { name: comprehension.iter_var.clone(), path });
                let others = comprehension.iter_var2.iter().chain([&comprehension.accu_var]);
                self.loop_variables.extend(others.map(|name| LoopVariable { name: name.clone(), path: None }));
                self.visit(&mut comprehension.loop_cond)?;
                self.visit(&mut comprehension.loop_step)?;
                self.visit(&mut comprehension.result)?;
                self.loop_variables.truncate(before);
                self.path_variables.truncate(paths_before);
                Ok(())
            }
        }
    }

    fn is_loop_variable(&self, name: &str) -> bool {
        self.loop_variables.iter().any(|variable| variable.name == name)
    }

    /// Visits an operand. Its path is recorded only if the expression uses its value.
    fn visit_operand(&mut self, operand: &mut IdedExpr, is_used: bool) -> Result<(), String> {
        self.unused_depth += usize::from(!is_used);
        let visited = self.visit(operand);
        self.unused_depth -= usize::from(!is_used);
        visited
    }

    /// Records the path that the node stands for. `arguments` itself is not recorded: `merged_paths` covers it, and a loop over
    /// it yields names.
    fn record_value(&mut self, node: &IdedExpr) {
        let is_part =
            |path: &ValuePath| path.variable != "arguments" || matches!(path.steps.first(), Some(ValueStep::Member(_)));
        let path = path_of(node, &self.loop_variables).filter(|path| self.unused_depth == 0 && is_part(path));
        if let Some(path) = path.filter(|path| !self.facts.value_paths.contains(path)) {
            self.facts.value_paths.push(path);
        }
    }

    fn check_name(&mut self, name: &str) -> Result<(), String> {
        if self.is_loop_variable(name) || TYPES.contains(&name) {
            return Ok(());
        }
        let Some((declared_name, _)) = self.variables.iter().find(|(variable, _)| *variable == name) else {
            let names: Vec<&str> = self.variables.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name, &names);
            return Err(format!("there is no `{name}`{hint}; a condition may look at {}", names.join(", ")));
        };
        if !self.facts.used_names.contains(declared_name) {
            self.facts.used_names.push(declared_name);
        }
        Ok(())
    }

    /// Records a read of a member of `arguments`.
    fn record_argument(&mut self, holder: &IdedExpr, name: &str) {
        if matches!(&holder.expr, Expr::Ident(holder) if holder == "arguments")
            && !self.is_loop_variable("arguments")
            && !self.facts.arguments.iter().any(|known| known == name)
        {
            self.facts.arguments.push(name.to_owned());
        }
    }

    fn visit_call(&mut self, call: &mut CallExpr) -> Result<(), String> {
        let is_operator = call.func_name.starts_with(['_', '@', '!', '-']);
        let own_functions = OWN_FUNCTIONS.iter().map(|(name, ..)| *name).filter(|name| !name.starts_with('@'));
        let functions: Vec<&str> = STANDARD_FUNCTIONS.into_iter().chain(own_functions).collect();
        if !is_operator && !functions.contains(&call.func_name.as_str()) {
            let hint = did_you_mean(&call.func_name, &functions);
            return Err(format!("there is no function `{}`{hint}; there are {}", call.func_name, functions.join(", ")));
        }
        if call.func_name == "matches" {
            check_regex_literal(call)?;
        }
        if call.func_name == paths::PATH_WITHIN {
            paths::check_call(call)?;
        }
        if let (operators::INDEX, [holder, key]) = (call.func_name.as_str(), call.args.as_slice())
            && let Expr::Literal(LiteralValue::String(key)) = &key.expr
        {
            self.record_argument(holder, key.inner());
        }
        if let Some(path) = paths::path_compared_as_text(call, &self.path_variables)
            && !self.facts.paths_compared_as_text.contains(&path)
        {
            self.facts.paths_compared_as_text.push(path);
        }
        let is_index = call.func_name == operators::INDEX;
        let part = call.args.first().filter(|_| is_index).and_then(|holder| path_of(holder, &self.loop_variables));
        let uses_values = call.func_name != "size";
        for (n, operand) in call.target.as_deref_mut().into_iter().chain(&mut call.args).enumerate() {
            self.visit_operand(operand, uses_values && !(n == 0 && part.is_some()))?;
        }
        let charge_fn = if call.func_name == "matches" { CHARGE_REGEX } else { CHARGE };
        if is_costly(&call.func_name, is_operator) {
            for operand in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
                // The length of a literal is bounded by the expression.
                if !matches!(operand.expr, Expr::Literal(_)) {
                    charge(operand, charge_fn);
                }
            }
        }
        if let Some(replacement) = compare::replacement_for(&call.func_name) {
            replacement.clone_into(&mut call.func_name);
        }
        Ok(())
    }
}

/// Returns `true` if the cost of the function depends on the size of its operands.
fn is_costly(function: &str, is_operator: bool) -> bool {
    use operators::{ADD, EQUALS, GREATER, GREATER_EQUALS, IN, LESS, LESS_EQUALS, NOT_EQUALS};
    match function {
        EQUALS | NOT_EQUALS | IN | ADD | LESS | LESS_EQUALS | GREATER | GREATER_EQUALS => true,
        "dyn" | "type" => false,
        _ => !is_operator,
    }
}

fn did_you_mean(name: &str, known: &[&str]) -> String {
    let near = suggest::nearest(name, known.iter().copied());
    near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// Requires a literal pattern: an agent's text as a regular expression could be expensive.
fn check_regex_literal(call: &CallExpr) -> Result<(), String> {
    match call.args.last().map(|pattern| &pattern.expr) {
        Some(Expr::Literal(LiteralValue::String(pattern))) => match regex::Regex::new(pattern.inner()) {
            Ok(_) => Ok(()),
            Err(_) => Err("the pattern of `matches` is not a regular expression".to_owned()),
        },
        _ => Err("the pattern of `matches` must be written out as a text".to_owned()),
    }
}
