//! Conditions of rules: CEL (Common Expression Language) expressions that are compiled with the configuration.
//!
//! The operator writes an expression, but an agent provides its input, and CEL bounds neither: loops can nest, and the
//! cost of `==`, `in` and `matches` depends on their operands. The compiler therefore wraps every loop and every such
//! operand in a call that charges a budget (`budget.rs`).

mod budget;
mod compare;
mod document_update;
mod errors;
mod functions;
mod paths;
#[cfg(test)]
mod tests;
mod text_functions;

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, IdedExpr, Value,
    common::{
        ast::{CallExpr, EntryExpr, Expr, LiteralValue, operators},
        types::DYN_TYPE,
        value::CowVal,
    },
    parser::Parser,
};

use self::budget::{CHARGE, CHARGE_ELEMENTS, CHARGE_REGEX, MAX_STEPS, charge, run_within_budget};
use countersign_protocol::suggest;

/// The most bytes of an expression.
pub const MAX_SOURCE_BYTES: usize = 4096;
/// The deepest nesting of an expression.
const MAX_DEPTH: u16 = 48;
/// The variables of an expression, each with its members (empty: any members).
pub type Variables = [(&'static str, &'static [&'static str])];

const VARIABLES: &Variables = &[
    ("arguments", &[]),
    ("principal", &["name", "role", "claims"]),
    ("session", &["transport", "revision", "client"]),
    ("tool", &["name", "operation", "server", "annotations"]),
];

const FUNCTIONS: [&str; 19] = [
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
    paths::PATH_WITHIN,
    functions::JSON,
    functions::YAML,
    functions::YAML_DOCUMENTS,
    functions::MERGE,
    functions::MERGE_DEEP,
];

const TYPES: [&str; 11] =
    ["int", "uint", "double", "string", "bytes", "bool", "list", "map", "null_type", "type", "dyn"];

/// The reason why an expression is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ConditionError {
    pub message: String,
    /// Line within the expression, from 1; 0 if unknown.
    pub line: u64,
    pub column: u64,
}

impl ConditionError {
    /// Formats the position for the end of a sentence: ` (at character 7)`, or empty.
    #[must_use]
    pub fn position_suffix(&self) -> String {
        match (self.line, self.column) {
            (0, _) => String::new(),
            (1, column) => format!(" (at character {column})"),
            (line, column) => format!(" (at line {line}, character {column} of it)"),
        }
    }
}

/// The reason why an evaluation has no result. It names keys but never values, which may be an agent's secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionFault {
    #[error("its condition returns {0} instead of true or false")]
    NotBoolean(&'static str),
    #[error("its condition reads `{0}`, which does not exist")]
    Missing(String),
    #[error("its condition compares or combines values whose types do not fit")]
    Types,
    #[error("its condition uses a path that is not absolute, or that contains `..`, a NUL or a backslash")]
    Path,
    #[error("its condition reads a text that is not {0}")]
    Document(&'static str),
    #[error("its condition would take too long")]
    Budget,
    #[error("{0}")]
    Arguments(&'static str),
    #[error("its condition cannot be evaluated")]
    Other,
}

/// A compiled expression.
#[derive(Clone)]
pub struct Condition {
    source: Arc<str>,
    expression: Arc<IdedExpr>,
    /// The variables that the expression reads.
    used_names: Arc<[&'static str]>,
    has_loops: bool,
    /// The result of [`Condition::paths_compared_as_text`].
    paths_as_text: Arc<[String]>,
    /// The result of [`Condition::arguments`].
    arguments: Arc<[String]>,
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Condition").field(&self.source).finish()
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Condition {}

impl Condition {
    /// Compiles a condition of a rule.
    ///
    /// # Errors
    /// Invalid CEL, an expression that is too long or too deep, or an unknown name.
    pub fn compile(source: &str) -> Result<Self, ConditionError> {
        Self::compile_for(source, VARIABLES)
    }

    /// Compiles an expression over other variables, for [`Condition::evaluate`].
    ///
    /// # Errors
    /// The errors of [`Condition::compile`].
    pub fn compile_for(source: &str, variables: &'static Variables) -> Result<Self, ConditionError> {
        if source.trim().is_empty() {
            return Err(errors::without_position("the condition is empty"));
        }
        if source.len() > MAX_SOURCE_BYTES {
            return Err(errors::without_position(format!("the condition is longer than {MAX_SOURCE_BYTES} bytes")));
        }
        // The parser is third-party code, and its panics must not end the process.
        let parsed = catch_unwind(AssertUnwindSafe(|| {
            Parser::default()
                .enable_optional_syntax(false)
                .max_recursion_depth(MAX_DEPTH)
                .parse_with_source_info(source)
        }));
        let (mut expression, info) = match parsed {
            Ok(Ok(parsed)) => parsed,
            Ok(Err(parse_errors)) => return Err(errors::from_parser(source, &parse_errors.errors)),
            Err(_) => return Err(errors::without_position("it is not an expression")),
        };
        let mut compiler = Compiler { variables, ..Compiler::default() };
        if let Err(message) = compiler.visit(&mut expression) {
            return Err(errors::at_node(message, compiler.failed_node, &info));
        }
        let Compiler { used_names, has_loops, paths_as_text, arguments, .. } = compiler;
        Ok(Self {
            source: source.into(),
            expression: Arc::new(expression),
            used_names: used_names.into(),
            has_loops,
            paths_as_text: paths_as_text.into(),
            arguments: arguments.into(),
        })
    }

    /// Returns the names of the arguments that the expression reads.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Returns arguments that are named like paths, but whose prefix is compared as plain text. A `..` in such a path
    /// can lead outside of the apparent folder.
    #[must_use]
    pub fn paths_compared_as_text(&self) -> &[String] {
        &self.paths_as_text
    }

    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns `true` if the expression reads that variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.used_names.contains(&variable)
    }

    /// Returns `true` if the expression has loops, so that its cost depends on the input.
    #[must_use]
    pub fn has_loops(&self) -> bool {
        self.has_loops
    }

    /// Evaluates the condition. Variables that it does not read may be absent.
    ///
    /// # Errors
    /// [`ConditionFault`]; the caller decides what follows.
    pub fn holds(&self, variables: &[(&str, &Value)]) -> Result<bool, ConditionFault> {
        match self.evaluate(variables, MAX_STEPS)? {
            Value::Bool(result) => Ok(result),
            other => Err(ConditionFault::NotBoolean(type_name(&other))),
        }
    }

    /// Evaluates the expression to any value. `steps` is the budget: one for each element of a loop or
    /// comparison, and for 256 bytes of text.
    ///
    /// # Errors
    /// [`ConditionFault`]
    pub fn evaluate(&self, variables: &[(&str, &Value)], steps: u64) -> Result<Value, ConditionFault> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        for (name, value) in variables.iter().filter(|(name, _)| self.uses(name)) {
            context.add_variable_from_value(*name, (*value).clone());
        }
        let resolve = || catch_unwind(AssertUnwindSafe(|| Value::resolve(&self.expression, &context)));
        match run_within_budget(steps, resolve).ok_or(ConditionFault::Budget)? {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(fault_from_error(&error)),
            Err(_) => Err(ConditionFault::Other),
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::String(_) => "a text",
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        Value::Null => "nothing",
        _ => "something else",
    }
}

fn fault_from_error(error: &ExecutionError) -> ConditionFault {
    use ExecutionError as E;
    match error {
        E::FunctionError { function, .. } if function == paths::PATH_WITHIN => ConditionFault::Path,
        E::FunctionError { function, message } => functions::fault_of(function, message)
            .or_else(|| text_functions::fault_of(function))
            .unwrap_or(ConditionFault::Other),
        E::NoSuchKey(key) => ConditionFault::Missing(key.chars().take(64).flat_map(char::escape_debug).collect()),
        E::IndexOutOfBounds(_) => ConditionFault::Missing("an element of a list".to_owned()),
        E::NoSuchOverload(_)
        | E::UnexpectedType { .. }
        | E::UnsupportedTargetType { .. }
        | E::NotSupportedAsMethod { .. }
        | E::UnsupportedKeyType(_)
        | E::ValuesNotComparable(..)
        | E::UnsupportedBinaryOperator(..)
        | E::UnsupportedIndex(..) => ConditionFault::Types,
        _ => ConditionFault::Other,
    }
}

/// Checks names, inserts the charging calls, and replaces comparisons by those of [`compare`].
#[derive(Default)]
struct Compiler {
    variables: &'static Variables,
    used_names: Vec<&'static str>,
    has_loops: bool,
    /// The variables of the enclosing loops.
    loop_variables: Vec<String>,
    /// The loop variables that hold paths.
    path_variables: Vec<String>,
    paths_as_text: Vec<String>,
    arguments: Vec<String>,
    /// The innermost node with an error.
    failed_node: Option<u64>,
}

impl Compiler {
    fn visit(&mut self, node: &mut IdedExpr) -> Result<(), String> {
        let id = node.id;
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
                    && !self.loop_variables.contains(name)
                    && let Some((_, members)) = self.variables.iter().find(|(variable, _)| variable == name)
                    && !members.is_empty()
                    && !members.contains(&select.field.as_str())
                {
                    let hint = did_you_mean(&select.field, members);
                    return Err(format!("`{name}` has no `{}`{hint}; it has {}", select.field, members.join(", ")));
                }
                self.record_argument(&select.operand, &select.field);
                self.visit(&mut select.operand)
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
                self.has_loops = true;
                self.visit(&mut comprehension.iter_range)?;
                charge(&mut comprehension.iter_range, CHARGE_ELEMENTS);
                self.visit(&mut comprehension.accu_init)?;
                let (before, paths_before) = (self.loop_variables.len(), self.path_variables.len());
                if paths::path_expression(&comprehension.iter_range, &self.path_variables).is_some() {
                    self.path_variables.push(comprehension.iter_var.clone());
                }
                self.loop_variables.push(comprehension.iter_var.clone());
                self.loop_variables.extend(comprehension.iter_var2.clone());
                self.loop_variables.push(comprehension.accu_var.clone());
                self.visit(&mut comprehension.loop_cond)?;
                self.visit(&mut comprehension.loop_step)?;
                self.visit(&mut comprehension.result)?;
                self.loop_variables.truncate(before);
                self.path_variables.truncate(paths_before);
                Ok(())
            }
        }
    }

    fn check_name(&mut self, name: &str) -> Result<(), String> {
        if self.loop_variables.iter().any(|bound| bound == name) || TYPES.contains(&name) {
            return Ok(());
        }
        let Some((known, _)) = self.variables.iter().find(|(variable, _)| *variable == name) else {
            let known: Vec<&str> = self.variables.iter().map(|(name, _)| *name).collect();
            let hint = did_you_mean(name, &known);
            return Err(format!("there is no `{name}`{hint}; a condition may look at {}", known.join(", ")));
        };
        if !self.used_names.contains(known) {
            self.used_names.push(known);
        }
        Ok(())
    }

    /// Records a read of a member of `arguments`.
    fn record_argument(&mut self, holder: &IdedExpr, name: &str) {
        if matches!(&holder.expr, Expr::Ident(holder) if holder == "arguments")
            && !self.loop_variables.iter().any(|bound| bound == "arguments")
            && !self.arguments.iter().any(|known| known == name)
        {
            self.arguments.push(name.to_owned());
        }
    }

    fn visit_call(&mut self, call: &mut CallExpr) -> Result<(), String> {
        let is_operator = call.func_name.starts_with(['_', '@', '!', '-']);
        let functions = [&FUNCTIONS[..], &text_functions::NAMES[..]].concat();
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
            && !self.paths_as_text.contains(&path)
        {
            self.paths_as_text.push(path);
        }
        for operand in call.target.as_deref_mut().into_iter().chain(&mut call.args) {
            self.visit(operand)?;
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

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // This can only fail for a name that the standard library has, and it has none of these.
    for (name, function) in [
        (CHARGE, budget::charge_value as _),
        (CHARGE_ELEMENTS, budget::charge_elements as _),
        (CHARGE_REGEX, budget::charge_regex as _),
        (functions::JSON, functions::json as _),
        (functions::YAML, functions::yaml as _),
        (functions::YAML_DOCUMENTS, functions::yaml_documents as _),
    ] {
        let added = env.add_overload(name, name, vec![DYN_TYPE], function);
        debug_assert!(added.is_ok());
    }
    for (name, function) in [
        (compare::EQUALS, compare::equals as _),
        (compare::NOT_EQUALS, compare::not_equals as _),
        (compare::IS_IN, compare::is_in as _),
        (paths::PATH_WITHIN, paths::path_within as _),
        (functions::MERGE, functions::merge as _),
        (functions::MERGE_DEEP, functions::merge_deep as _),
    ] {
        let added = env.add_overload(name, name, vec![DYN_TYPE, DYN_TYPE], function);
        debug_assert!(added.is_ok());
    }
    text_functions::add_to(&mut env);
    Arc::new(env)
});

fn two_arguments<'b, 'v>(args: Vec<CowVal<'b, 'v>>) -> Result<(CowVal<'b, 'v>, CowVal<'b, 'v>), ExecutionError> {
    let mut args = args.into_iter();
    args.next().zip(args.next()).ok_or(ExecutionError::MissingArgumentOrTarget)
}

/// Creates a map of texts for a variable.
#[must_use]
pub fn text_map(entries: &[(&str, Option<&str>)]) -> Value {
    map_value(entries.iter().map(|(key, value)| (*key, value.map_or(Value::Null, Value::from))))
}

/// Creates a map value.
#[must_use]
pub fn map_value<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let map: HashMap<String, Value> = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Value::Map(map.into())
}
