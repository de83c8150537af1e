//! `Mcp-Param-*`: headers that mirror tool arguments with an `x-mcp-header` annotation in the schema
//! (2026-07-28/server/tools, "x-mcp-header"; basic/transports/streamable-http, "Custom Headers from Tool Parameters").

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    McpError,
    headers::{HeaderField, Headers, decode_value, encode_value, mismatch},
    json,
};

/// An annotated property of an input schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamHeader {
    /// The complete header name, such as `Mcp-Param-Region`.
    pub header: String,
    /// The path of property names from the root of the arguments.
    pub path: Vec<String>,
}

impl ParamHeader {
    /// Returns the argument in the text of all arguments.
    fn value_in<'a>(&self, arguments: &'a str) -> Option<&'a str> {
        self.path.iter().try_fold(arguments, |object, step| json::member(object, step))
    }
}

/// The keyword of the annotation in a schema.
const ANNOTATION: &str = "x-mcp-header";

/// The largest integer up to which a double represents all integers exactly.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Reads the annotations of a tool's input schema, in the order of its properties.
///
/// # Errors
/// Returns the reason why the tool definition is invalid, for the log: the name is not a token or is duplicated, the property
/// is not a string, integer or boolean, or the annotation is not reachable through `properties` alone.
pub fn annotated_params(schema: &Value) -> Result<Vec<ParamHeader>, String> {
    let mut param_headers: Vec<ParamHeader> = Vec::new();
    // The schemas to visit, each with its path and `true` if only `properties` led to it.
    let mut pending: Vec<(&Value, Vec<String>, bool)> = vec![(schema, Vec::new(), true)];
    while let Some((schema, path, is_reachable)) = pending.pop() {
        let Some(schema) = schema.as_object() else { continue };
        if let Some(annotation) = schema.get(ANNOTATION) {
            let location = path.join(".");
            if !is_reachable || path.is_empty() {
                return Err(format!("`{ANNOTATION}` at `{location}` is not reachable through `properties` alone"));
            }
            let name = annotation.as_str().filter(|name| is_token(name));
            let name = name.ok_or_else(|| format!("`{ANNOTATION}` of `{location}` is not a header name"))?;
            if !is_primitive(schema) {
                return Err(format!("`{ANNOTATION}` of `{location}` is not on a string, integer or boolean"));
            }
            let header = format!("Mcp-Param-{name}");
            if param_headers.iter().any(|other| other.header.eq_ignore_ascii_case(&header)) {
                return Err(format!("`{ANNOTATION}` `{name}` is given more than once"));
            }
            param_headers.push(ParamHeader { header, path: path.clone() });
        }
        push_subschemas(schema, &path, is_reachable, &mut pending);
    }
    Ok(param_headers)
}

fn push_subschemas<'a>(
    schema: &'a Map<String, Value>,
    path: &[String],
    is_reachable: bool,
    pending: &mut Vec<(&'a Value, Vec<String>, bool)>,
) {
    let child_path = |step: &str| path.iter().cloned().chain([step.to_owned()]).collect::<Vec<_>>();
    // The schemas are pushed in reverse, so that they are visited in order.
    for (keyword, value) in schema.iter().rev() {
        match keyword.as_str() {
            "properties" => {
                for (name, property) in value.as_object().into_iter().flatten().rev() {
                    pending.push((property, child_path(name), is_reachable));
                }
            }
            "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => {
                for (name, sub) in value.as_object().into_iter().flatten().rev() {
                    pending.push((sub, child_path(name), false));
                }
            }
            "items"
            | "prefixItems"
            | "additionalItems"
            | "contains"
            | "unevaluatedItems"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "allOf"
            | "anyOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "contentSchema" => match value {
                Value::Array(list) => pending.extend(list.iter().rev().map(|sub| (sub, child_path(keyword), false))),
                other => pending.push((other, child_path(keyword), false)),
            },
            // Values of `default`, `enum` and similar keywords are data, not schemas.
            _ => {}
        }
    }
}

/// Returns `true` for a token, `1*tchar` (RFC 9110 section 5.6.2).
fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Returns `true` for a string, integer or boolean schema, also in a union with null. A null argument has no header.
fn is_primitive(schema: &Map<String, Value>) -> bool {
    let is_primitive_name = |name: &Value| matches!(name.as_str(), Some("string" | "integer" | "boolean"));
    match schema.get("type") {
        Some(Value::Array(names)) => {
            names.iter().any(is_primitive_name) && names.iter().all(|name| is_primitive_name(name) || name == "null")
        }
        Some(name) => is_primitive_name(name),
        None => false,
    }
}

/// Runs step 7 of the checks in [`super::headers`]: each annotated argument must have its header, and each header its argument.
///
/// `arguments` are the arguments of the call. `None` counts as an empty object.
///
/// # Errors
/// `-32020` for a header that is missing, duplicated, undecodable or different, or whose argument is missing.
pub fn check_params(
    headers: &(impl Headers + ?Sized),
    annotated: &[ParamHeader],
    arguments: Option<&Value>,
) -> Result<(), McpError> {
    for param in annotated {
        let name = param.header.as_str();
        let value = arguments
            .and_then(|arguments| param.path.iter().try_fold(arguments, |value, step| value.get(step)))
            .filter(|value| !value.is_null());
        match (headers.field(&name.to_ascii_lowercase()), value) {
            (HeaderField::Absent, None) => {}
            (HeaderField::Repeated, _) => return Err(mismatch(name, "is given more than once")),
            (HeaderField::One(_), None) => return Err(mismatch(name, "is present, but its argument is missing")),
            // Objects and arrays are not annotated types; the input schema rejects them later.
            (HeaderField::Absent, Some(Value::Object(_) | Value::Array(_))) => {}
            (HeaderField::Absent, Some(_)) => return Err(mismatch(name, "is missing")),
            (HeaderField::One(header), Some(value)) => {
                if !matches_argument(&decode_value(name, header)?, value) {
                    return Err(mismatch(name, "differs from the body"));
                }
            }
        }
    }
    Ok(())
}

/// The names and values of headers that mirror arguments.
pub type MirroredHeaders = Vec<(Box<str>, Box<str>)>;

/// Builds the headers for a call to a server that annotates its tools; `arguments` is JSON text.
///
/// An absent or null argument has no header (2026-07-28/basic/transports/streamable-http, "Client Behavior").
pub fn for_call(annotated: &[ParamHeader], arguments: Option<&str>) -> MirroredHeaders {
    let header = |param: &ParamHeader| {
        let value = param.value_in(arguments?)?;
        let text = match value.as_bytes().first()? {
            b'"' => json::string(value)?,
            b'{' | b'[' | b'n' => return None,
            b't' | b'f' => Cow::Borrowed(value),
            _ => match Number::parse(value) {
                Number::SafeInteger(integer) => Cow::Owned(integer.to_string()),
                Number::UnsafeInteger | Number::Fraction => Cow::Borrowed(value),
            },
        };
        Some((param.header.as_str().into(), encode_value(&text).into()))
    };
    annotated.iter().filter_map(header).collect()
}

/// Checks that integers which a server wants in headers are those that a double represents exactly
/// (2026-07-28/basic/transports/streamable-http, "Schema Extension"). `arguments` is JSON text.
///
/// # Errors
/// `-32602` naming the argument.
pub fn check_integers(annotated: &[ParamHeader], arguments: Option<&str>) -> Result<(), McpError> {
    for param in annotated {
        let value = arguments.and_then(|arguments| param.value_in(arguments));
        let is_number = |value: &&str| value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        if value.filter(is_number).is_some_and(|value| Number::parse(value) == Number::UnsafeInteger) {
            let name = param.path.join(".");
            let message =
                format!("the argument `{name}` must be between -2^53+1 and 2^53-1, because it is sent in a header");
            return Err(McpError::invalid_param(&format!("arguments.{name}"), message));
        }
    }
    Ok(())
}

/// The kinds of JSON numbers that matter for headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// An integer from −2⁵³+1 to 2⁵³−1.
    SafeInteger(i64),
    UnsafeInteger,
    Fraction,
}

impl Number {
    /// Reads a JSON number exactly. `42.0` and `4.2e1` are the integer 42.
    fn parse(text: &str) -> Self {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (is_negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |mantissa| (true, mantissa));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = [whole, fraction].concat();
        let digits = digits.trim_start_matches('0');
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Self::SafeInteger(0);
        }
        let overflow = if exponent.starts_with('-') { i64::MIN } else { i64::MAX };
        let exponent = exponent.parse().unwrap_or(overflow);
        let count = |digits: usize| i64::try_from(digits).unwrap_or(i64::MAX);
        // The number is `significant`, followed by this many zeros.
        let zeros =
            exponent.saturating_add(count(digits.len() - significant.len())).saturating_sub(count(fraction.len()));
        if zeros < 0 {
            return Self::Fraction;
        }
        let has_few_digits = |zeros: &usize| significant.len().saturating_add(*zeros) <= 16;
        let zeros = usize::try_from(zeros).ok().filter(has_few_digits);
        let integer = zeros.and_then(|zeros| format!("{significant}{}", "0".repeat(zeros)).parse::<i64>().ok());
        match integer.filter(|integer| *integer < 1 << 53) {
            Some(integer) => Self::SafeInteger(if is_negative { -integer } else { integer }),
            None => Self::UnsafeInteger,
        }
    }
}

/// Returns `true` if a decoded header equals the argument; integers compare as numbers (`42.0` is `42`).
fn matches_argument(header: &str, value: &Value) -> bool {
    match value {
        Value::String(text) => header == text,
        Value::Bool(flag) => header == if *flag { "true" } else { "false" },
        Value::Number(number) => {
            let is_numeric =
                header.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
            match (header.parse::<f64>(), number.as_f64()) {
                (Ok(h), Some(n)) if is_numeric && n.abs() <= MAX_SAFE_INTEGER => h == n,
                // Larger integers lose precision as doubles, so their digits are compared.
                _ => header == number.to_string(),
            }
        }
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

#[cfg(test)]
mod tests;
