//! Conditions of rules: CEL (Common Expression Language) expressions that are compiled with the configuration.
//!
//! The operator writes an expression, but an agent provides its input, and CEL bounds neither: loops can nest, and the
//! cost of `==`, `in` and `matches` depends on their operands. The compiler therefore wraps every loop and every such
//! operand in a call that charges a budget (`budget.rs`).

mod budget;
mod compare;
mod compiler;
mod document_update;
mod errors;
mod functions;
mod paths;
#[cfg(test)]
mod tests;
mod text_functions;
mod value_paths;

use std::{
    collections::HashMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, IdedExpr, Value,
    common::{functions::Function, types::DYN_TYPE, value::CowVal},
    parser::Parser,
};

use self::{
    budget::{MAX_STEPS, run_within_budget},
    compiler::Compiler,
};

pub(super) use paths::path_components;
pub use value_paths::{MergedPath, ValuePath, ValueStep};

/// The maximum size of an expression, in bytes.
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
    pub fn position_suffix(&self) -> String {
        match (self.line, self.column) {
            (0, _) => String::new(),
            (1, column) => format!(" (at character {column})"),
            (line, column) => format!(" (at line {line}, character {column} of it)"),
        }
    }
}

/// Describes the paths that `path_within` refuses.
pub const INVALID_PATH: &str = "a path that is not absolute, that contains `..`, a NUL or a backslash, or that names the \
                                folder in another Unicode form";

/// The reason why an evaluation has no result. It names keys but never values, which may be an agent's secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionFault {
    #[error("its condition returns {0} instead of true or false")]
    NotBoolean(&'static str),
    #[error("its condition reads `{0}`, which does not exist")]
    Missing(String),
    #[error("its condition compares or combines values whose types do not fit")]
    Types,
    #[error("its condition uses {}", INVALID_PATH)]
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
    facts: Arc<ConditionFacts>,
}

/// The facts that the compiler finds in an expression.
#[derive(Debug, Default)]
pub struct ConditionFacts {
    /// The variables that the expression reads.
    pub used_names: Vec<&'static str>,
    /// `true` if the expression has loops, so that its cost depends on the input.
    pub has_loops: bool,
    /// The names of the arguments that the expression reads.
    pub arguments: Vec<String>,
    /// Arguments that are named like paths, but whose prefix is compared as plain text. A `..` in such a path can lead outside of
    /// the apparent folder.
    pub paths_compared_as_text: Vec<String>,
    /// The parts of the arguments, and of the element of a list, whose values the expression uses.
    pub value_paths: Vec<ValuePath>,
    /// The parts whose fields become fields of the result, because the expression returns or merges them.
    pub merged_paths: Vec<MergedPath>,
    /// The paths whose value is fixed to one or a few literals whenever the condition is true.
    pub fixed_paths: Vec<ValuePath>,
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
        let mut compiler = Compiler::new(variables);
        compiler.facts.merged_paths = value_paths::merged_paths(&expression);
        compiler.facts.fixed_paths = value_paths::fixed_paths(&expression);
        if let Err(message) = compiler.visit(&mut expression) {
            return Err(errors::at_node(message, compiler.failed_node, &info));
        }
        Ok(Self { source: source.into(), expression: Arc::new(expression), facts: Arc::new(compiler.facts) })
    }

    /// Returns what the compiler found in the expression.
    pub fn facts(&self) -> &ConditionFacts {
        &self.facts
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns `true` if the expression reads that variable.
    pub fn uses(&self, variable: &str) -> bool {
        self.facts.used_names.contains(&variable)
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
        E::FunctionError { message, .. } if message == functions::AMBIGUOUS_MARK => {
            ConditionFault::Arguments("a text holds numbers or keys that its condition cannot represent")
        }
        E::FunctionError { function, .. } => match function.as_str() {
            paths::PATH_WITHIN => ConditionFault::Path,
            functions::JSON => ConditionFault::Document("JSON"),
            functions::YAML => ConditionFault::Document("one YAML document"),
            functions::YAML_DOCUMENTS => ConditionFault::Document("YAML"),
            text_functions::REPLACE_IN => ConditionFault::Document("what the edits expect"),
            document_update::APPLY_UPDATE => ConditionFault::Document("what the update expects"),
            _ => ConditionFault::Other,
        },
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

/// The functions besides those of CEL, each with the number of its arguments. An expression cannot call those whose name begins
/// with `@`.
const OWN_FUNCTIONS: [(&str, Function, usize); 20] = [
    (paths::PATH_WITHIN, paths::path_within, 2),
    (functions::JSON, functions::json, 1),
    (functions::YAML, functions::yaml, 1),
    (functions::YAML_DOCUMENTS, functions::yaml_documents, 1),
    (functions::MERGE, functions::merge, 2),
    (functions::MERGE_DEEP, functions::merge_deep, 2),
    ("sort", text_functions::sort, 1),
    ("join", text_functions::join, 2),
    ("split", text_functions::split, 2),
    (text_functions::REPLACE_IN, text_functions::replace_in, 2),
    ("atx_headings", text_functions::atx_headings, 1),
    (text_functions::MERGE_PATCH, text_functions::merge_patch, 2),
    ("includes", text_functions::includes, 2),
    (document_update::APPLY_UPDATE, document_update::apply_update, 2),
    (budget::CHARGE, budget::charge_value, 1),
    (budget::CHARGE_ELEMENTS, budget::charge_elements, 1),
    (budget::CHARGE_REGEX, budget::charge_regex, 1),
    (compare::EQUALS, compare::equals, 2),
    (compare::NOT_EQUALS, compare::not_equals, 2),
    (compare::IS_IN, compare::is_in, 2),
];

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for (name, function, arity) in OWN_FUNCTIONS {
        let added = env.add_overload(name, name, (0..arity).map(|_| DYN_TYPE).collect(), function);
        // This can only fail for a name that the standard library has, and it has none of these.
        debug_assert!(added.is_ok());
    }
    Arc::new(env)
});

type Arguments<'b, 'v> = Vec<CowVal<'b, 'v>>;
type Answer<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

fn one_argument<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    args.into_iter().next().ok_or(ExecutionError::MissingArgumentOrTarget)
}

fn two_arguments<'b, 'v>(args: Arguments<'b, 'v>) -> Result<(CowVal<'b, 'v>, CowVal<'b, 'v>), ExecutionError> {
    let mut args = args.into_iter();
    args.next().zip(args.next()).ok_or(ExecutionError::MissingArgumentOrTarget)
}

/// Creates a map of texts for a variable.
pub fn text_map(entries: &[(&str, Option<&str>)]) -> Value {
    map_value(entries.iter().map(|(key, value)| (*key, value.map_or(Value::Null, Value::from))))
}

/// Creates a map value.
pub fn map_value<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let map: HashMap<String, Value> = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Value::Map(map.into())
}
