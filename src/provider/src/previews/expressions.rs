//! Evaluates the expressions of recipes, picks values from the answers of tools, and formats values as text for
//! reviewers.

use serde_json::{Map, Value};

use super::fault::Fault;
use crate::ToolResult;
use countersign_domain::{
    policy::{Condition, ConditionFault, documents, values},
    recipes::{
        DisplayFormat, FIRST_TEXT, FieldFilter, MAX_ELEMENTS, RecordField, ResultSelector, TextPart, TextTemplate,
    },
};

/// Maximum bytes of a JSON text that is parsed for an expression.
const MAX_BYTES: usize = 4 << 20;
/// Maximum values in such a text, at all levels together.
const MAX_VALUES: usize = 100_000;
/// Maximum steps of one evaluation.
const MAX_STEPS: u64 = 1_000_000;

/// Parses the arguments for use in expressions.
pub fn parse_arguments(text: &str) -> Result<cel::Value, Fault> {
    parse_variable("arguments", text)
}

/// Parses a JSON text for use in expressions under this name.
pub fn parse_variable(name: &str, text: &str) -> Result<cel::Value, Fault> {
    values::arguments_within(text, MAX_BYTES, MAX_VALUES).map_err(|fault| Fault::from_expression(name, &fault))
}

/// Values by the names that expressions use.
pub type Variables<'a> = Vec<(&'static str, &'a cel::Value)>;

/// Returns the variables of a read: the arguments, and the element for which it is made.
pub fn variables<'a>(arguments: &'a cel::Value, element: Option<&'a cel::Value>) -> Variables<'a> {
    let mut variables = vec![("arguments", arguments)];
    variables.extend(element.map(|element| ("element", element)));
    variables
}

/// Evaluates an expression to JSON with sorted keys. `name` stands for the expression in errors.
pub fn evaluate(name: &str, expression: &Condition, variables: &[(&str, &cel::Value)]) -> Result<Value, Fault> {
    evaluate_to_json(expression, variables).map_err(|fault| Fault::from_expression(name, &fault))
}

fn evaluate_to_json(expression: &Condition, variables: &[(&str, &cel::Value)]) -> Result<Value, ConditionFault> {
    let value = expression.evaluate(variables, MAX_STEPS)?;
    let mut value = value.json().map_err(|_| ConditionFault::Other)?;
    value.sort_all_objects();
    Ok(value)
}

/// Renders a text of the recipe. `name` stands for it in errors.
pub fn render(name: &str, template: &TextTemplate, variables: &[(&str, &cel::Value)]) -> Result<Value, Fault> {
    render_template(template, variables).map_err(|fault| Fault::from_expression(name, &fault))
}

/// Renders a record of the recipe, without optional fields that depend on something that is not there.
pub fn render_fields(fields: &[RecordField], variables: &[(&str, &cel::Value)]) -> Result<Map<String, Value>, Fault> {
    render_record(fields, variables).map_err(|(name, fault)| Fault::from_expression(name, &fault))
}

fn render_template(template: &TextTemplate, variables: &[(&str, &cel::Value)]) -> Result<Value, ConditionFault> {
    match template {
        TextTemplate::Literal(value) => Ok(value.clone()),
        TextTemplate::Expression(expression) => evaluate_to_json(expression, variables),
        TextTemplate::Text(parts) => {
            let mut text = String::new();
            for part in parts {
                match part {
                    TextPart::Literal(literal) => text.push_str(literal),
                    TextPart::Expression(expression) => match evaluate_to_json(expression, variables)? {
                        Value::Null => return Err(ConditionFault::Missing(expression.source().to_owned())),
                        Value::String(value) => text.push_str(&value),
                        value => text.push_str(&value.to_string()),
                    },
                }
            }
            Ok(Value::String(text))
        }
        TextTemplate::List(items) => items.iter().map(|item| render_template(item, variables)).collect(),
        TextTemplate::Record(fields) => render_record(fields, variables).map(Value::Object).map_err(|(_, fault)| fault),
    }
}

fn render_record<'f>(
    fields: &'f [RecordField],
    variables: &[(&str, &cel::Value)],
) -> Result<Map<String, Value>, (&'f str, ConditionFault)> {
    let mut record = Map::new();
    for RecordField { name, is_optional, value } in fields {
        match render_template(value, variables) {
            Ok(value) => drop(record.insert(name.clone(), value)),
            Err(ConditionFault::Missing(_)) if *is_optional => {}
            Err(fault) => return Err((name, fault)),
        }
    }
    Ok(record)
}

/// Returns the elements for which a read is made: those of its list, or one without a value.
pub fn elements(for_each: Option<&Condition>, arguments: &cel::Value) -> Result<Vec<Option<cel::Value>>, Fault> {
    let Some(for_each) = for_each else { return Ok(vec![None]) };
    let Value::Array(elements) = evaluate("for_each", for_each, &[("arguments", arguments)])? else {
        return Err(Fault::new("elements", "`for_each` does not give a list"));
    };
    if elements.len() > MAX_ELEMENTS {
        let reason = format!("`for_each` gives {} elements; at most {MAX_ELEMENTS} can be shown", elements.len());
        return Err(Fault::new("elements", reason));
    }
    elements.iter().map(|element| to_cel_value("element", element).map(Some)).collect()
}

/// Converts JSON for use in expressions.
pub fn to_cel_value(name: &str, json: &Value) -> Result<cel::Value, Fault> {
    if let Value::String(text) = json {
        return Ok(text.clone().into());
    }
    parse_variable(name, &json.to_string())
}

/// Extracts the value that the recipe picks from a tool's result.
pub fn pick_value(
    tool: &str,
    result: &ToolResult,
    pick: &ResultSelector,
    format: DisplayFormat,
    variables: &[(&str, &cel::Value)],
) -> Result<Value, Fault> {
    let pointer = if pick.pointer.is_empty() { FIRST_TEXT } else { &pick.pointer };
    let picked = value_at(result, pointer)
        .ok_or_else(|| Fault::new("pointer", format!("the answer of {tool} has nothing at {pointer}")))?;
    let subject = || format!("what the answer of {tool} has at {pointer}");
    let mut picked = parse_document(picked, format)
        .map_err(|fault| Fault::new("format", format!("{} {}", subject(), document_problem(&fault))))?;
    if let Some(keep) = &pick.keep {
        let input = to_cel_value("keep", &picked)?;
        let mut variables = variables.to_vec();
        variables.push(("found", &input));
        picked = evaluate("keep", keep, &variables)?;
    }
    picked = select_fields(picked, &pick.fields)
        .ok_or_else(|| Fault::new("fields", format!("{} has no fields; if it is JSON, write as: json", subject())))?;
    let text_of = |value: Value| match value {
        Value::String(text) => Ok(text),
        _ => Err(Fault::new("pointer", format!("{} is not text", subject()))),
    };
    if let Some(pattern) = &pick.lines {
        let text = text_of(picked)?;
        let matching: Vec<&str> = text.split('\n').filter(|line| pattern.0.is_match(line)).collect();
        picked = matching.join("\n").into();
    }
    if let Some(paths) = &pick.paths {
        let paths = parse_path_list(&evaluate("paths", paths, variables)?)?;
        picked = super::path_filter::filter_by_paths(&text_of(picked)?, &paths, format).into();
    }
    picked.sort_all_objects();
    Ok(picked)
}

/// Parses a text in the format that the recipe names. Other values are returned as they are.
pub fn parse_document(value: Value, format: DisplayFormat) -> Result<Value, ConditionFault> {
    match (&value, format) {
        (Value::String(text), DisplayFormat::Json) => documents::parse_json(text),
        (Value::String(text), DisplayFormat::Yaml) => documents::parse_yaml(text),
        _ => Ok(value),
    }
}

/// Says what is wrong with a document, after its name.
pub fn document_problem(fault: &ConditionFault) -> String {
    match fault {
        ConditionFault::Document(format) => format!("is not {format}"),
        _ => "is too large or too deeply nested, or has duplicate or reserved keys or numbers that are not exact"
            .to_owned(),
    }
}

/// Returns the value with the fields that the recipe shows, or `None` if it has no fields. Null is returned as it is.
pub fn select_fields(value: Value, fields: &FieldFilter) -> Option<Value> {
    match value {
        value if fields.is_empty() || value.is_null() => Some(value),
        value @ (Value::Object(_) | Value::Array(_)) => Some(fields.apply(value)),
        _ => None,
    }
}

fn parse_path_list(paths: &Value) -> Result<Vec<String>, Fault> {
    let texts = paths.as_array().map(|all| all.iter().map(|path| path.as_str().map(str::to_owned)).collect());
    texts.flatten().ok_or_else(|| Fault::new("paths", "`paths` does not give a list of texts"))
}

fn value_at(result: &ToolResult, pointer: &str) -> Option<Value> {
    let (first, rest) = match pointer.get(1..)?.split_once('/') {
        Some((first, _)) => (first, pointer.get(first.len() + 1..)?),
        None => (pointer.get(1..)?, ""),
    };
    let raw = match first {
        "content" => Some(&result.content),
        "structuredContent" => result.structured_content.as_ref(),
        _ => None,
    }?;
    let value: Value = raw.get().parse().ok()?;
    value.pointer(rest).cloned()
}

/// Returns a value as text in this format, or `None` for null.
pub fn display_text_as(value: Value, format: DisplayFormat) -> Option<String> {
    match value {
        value @ (Value::Object(_) | Value::Array(_)) if format == DisplayFormat::Yaml => {
            Some(documents::to_yaml(&value))
        }
        value => display_text(value),
    }
}

/// Returns a value as text for the preview, or `None` for null.
pub fn display_text(value: Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text),
        other => Some(json_text(&other)),
    }
}

/// Returns a value as JSON for the preview, with quotes around a string.
pub fn json_text(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}
