//! Asks the person at the client for required arguments that a call lacks, before the call is proposed, if the rule has
//! `questions: ask`. The reviewer then sees the complete call, and the tool need not ask while it runs. If the policy allows
//! the complete call, it runs without a review.
//!
//! A form can only ask for flat values (2025-11-25/client/elicitation, "Requested Schema"). The arguments of the model
//! stay unchanged.

use serde_json::{Map, Value, json, value::RawValue};

use super::super::tool_call::{RoutedCall, ToolCallScope, input_responses};
use crate::policy::{self, JudgedCall};
use countersign_bridge::result::{InputRequest, input_required_result};
use countersign_domain::{
    policy::Verdict,
    principal::Scope,
    questions::{ELICITATION, adapt_params},
};
use countersign_exchange::{ask::ask, context::Exchange, reply::SERVER_META};
use countersign_protocol::{
    McpError, Revision,
    json::{MemberEdit, edit, member, members, string},
    negotiate::ClientCapabilities,
};

/// The key of the request in `inputRequests`.
const INPUT_KEY: &str = "missing-arguments";

/// The maximum number of arguments in one form.
const MAX_ARGUMENTS: usize = 16;

/// The schema keywords that a form may use for a value.
const FORM_KEYWORDS: [&str; 11] = [
    "type",
    "title",
    "description",
    "default",
    "enum",
    "enumNames",
    "format",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
];

/// The formats that a form may demand of a text.
const FORM_FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// The outcome of asking for missing arguments.
pub enum MissingArguments {
    /// The complete arguments of the call.
    Complete(Box<RawValue>),
    /// The result that asks a stateless client for them.
    NeedsInput(String),
}

/// Asks for the missing arguments. Returns `None` if a form cannot ask for them, nobody can be asked, or no answer came;
/// the arguments are then invalid. The caller decides on the completed call again, because the policy may depend on its
/// arguments.
///
/// # Errors
/// `FORBIDDEN` if the client's token does not permit proposals; the errors of [`policy::judge`].
pub(in crate::handlers) async fn ask_for(
    call: &RoutedCall<'_>,
    judged: Option<JudgedCall>,
) -> Result<Option<MissingArguments>, McpError> {
    let RoutedCall { scope: ToolCallScope { exchange, .. }, route, arguments, .. } = *call;
    if !can_fill_in_forms(exchange) {
        return Ok(None);
    }
    let Some(schema) = form_schema(&route.def.input_schema, arguments.get()) else { return Ok(None) };
    let judged = match judged {
        Some(judged) => judged,
        None => policy::judge(exchange, route, arguments).await?,
    };
    if judged.decision.verdict != Verdict::Review || !judged.decision.terms.questions {
        return Ok(None);
    }
    exchange.identity.principal.require_scope(Scope::ToolsPropose)?;
    Ok(ask_with_form(call, &schema).await)
}

/// Asks for the values of a form.
async fn ask_with_form(call: &RoutedCall<'_>, schema: &Value) -> Option<MissingArguments> {
    let RoutedCall { scope: ToolCallScope { exchange, runner, .. }, route, arguments, .. } = *call;
    let long_requests = &runner.long_requests;
    let title = if route.def.title.is_empty() { &route.name } else { &route.def.title };
    let message = format!("{title} lacks arguments. Fill them in here. A person may then have to approve the call.");
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema }).to_string();
    if exchange.is_modern() {
        let Some(answer) = input_responses(exchange, call.request).and_then(|responses| member(responses, INPUT_KEY))
        else {
            let result = input_required_result([InputRequest::elicitation(INPUT_KEY, &params)], None, SERVER_META);
            return Some(MissingArguments::NeedsInput(result));
        };
        return fill_in(arguments, schema, answer).map(MissingArguments::Complete);
    }
    let _slot = long_requests.slots.take(&exchange.identity.principal.name).ok()?;
    let params = adapt_params(ELICITATION, Some(&params), exchange.revision(), None);
    let answer = tokio::select! {
        answer = ask(&exchange.session, &exchange.related, ELICITATION, params.as_deref()) => answer.ok()?,
        () = long_requests.shutdown.cancelled() => return None,
    };
    fill_in(arguments, schema, answer.get()).map(MissingArguments::Complete)
}

fn can_fill_in_forms(exchange: &Exchange) -> bool {
    exchange.revision() >= Revision::V2025_06_18
        && ClientCapabilities::from_declaration(&exchange.facts.capabilities).elicitation_form
}

/// Returns the schema of a form that asks for every required argument that is missing.
fn form_schema(schema: &Value, arguments: &str) -> Option<Value> {
    let present: Vec<_> = members(arguments).map(|member| member.key.into_owned()).collect();
    let required = schema["required"].as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
    let missing: Vec<&str> = required.into_iter().filter(|name| !present.iter().any(|key| key == name)).collect();
    if missing.is_empty() || missing.len() > MAX_ARGUMENTS {
        return None;
    }
    let mut properties = Map::new();
    for name in &missing {
        properties.insert((*name).to_owned(), form_value(&schema["properties"][*name])?);
    }
    Some(json!({ "type": "object", "properties": properties, "required": missing }))
}

/// Converts a value's schema to that of a form. Returns `None` if a form cannot ask for the value.
fn form_value(schema: &Value) -> Option<Value> {
    let schema = schema.as_object()?;
    let value_type = schema.get("type")?.as_str()?;
    if !matches!(value_type, "string" | "number" | "integer" | "boolean") {
        return None;
    }
    let mut out = Map::new();
    for (key, value) in schema.iter().filter(|(key, _)| FORM_KEYWORDS.contains(&key.as_str())) {
        match key.as_str() {
            "format" if !value.as_str().is_some_and(|format| FORM_FORMATS.contains(&format)) => {}
            // Forms only have choices among texts.
            "enum" if value_type != "string" || !value.as_array()?.iter().all(Value::is_string) => return None,
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    Some(Value::Object(out))
}

/// Returns the arguments with those that the person filled in. Other values of the answer are ignored.
fn fill_in(arguments: &RawValue, schema: &Value, answer: &str) -> Option<Box<RawValue>> {
    if member(answer, "action").and_then(string)? != "accept" {
        return None;
    }
    let content = member(answer, "content").filter(|content| content.starts_with('{'))?;
    let requested = schema["properties"].as_object()?;
    let inputs: Vec<_> = members(content).filter(|input| requested.contains_key(input.key.as_ref())).collect();
    let edits: Vec<(&str, MemberEdit<'_>)> =
        inputs.iter().map(|input| (input.key.as_ref(), MemberEdit::SetIfMissing(input.value))).collect();
    RawValue::from_string(edit(arguments.get(), &edits)).ok()
}

/// Returns `true` if the arguments could be those of a call before its person filled in the rest of `completed`.
pub(super) fn are_part_of(arguments: &RawValue, completed: &RawValue) -> bool {
    let parse = |raw: &RawValue| raw.get().parse::<Map<String, Value>>().ok();
    let (Some(arguments), Some(completed)) = (parse(arguments), parse(completed)) else { return false };
    arguments.iter().all(|(name, value)| completed.get(name) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({ "type": "object", "required": ["name", "count", "there"], "properties": {
            "name": { "type": "string", "title": "Name", "pattern": "^a", "format": "hostname", "x": 1 },
            "count": { "type": "integer", "minimum": 1 },
            "there": { "type": "object" },
            "more": { "type": "string" },
        } })
    }

    #[test]
    fn form_asks_for_missing_required_arguments() {
        let form = form_schema(&schema(), r#"{"there":{"a":1}}"#).unwrap();
        assert_eq!(
            form,
            json!({ "type": "object", "required": ["name", "count"], "properties": {
                "name": { "type": "string", "title": "Name" }, "count": { "type": "integer", "minimum": 1 } } })
        );
        assert_eq!(form_schema(&schema(), "{}"), None, "no form asks for an object");
        assert_eq!(
            form_schema(&schema(), r#"{"there":1,"name":1,"count":"x"}"#),
            None,
            "an invalid argument is not missing"
        );
        assert_eq!(form_schema(&json!(true), "{}"), None);
        let choice = json!({ "required": ["a"], "properties": { "a": { "type": "integer", "enum": [1, 2] } } });
        assert_eq!(form_schema(&choice, "{}"), None);
    }

    #[test]
    fn answer_completes_arguments_and_keeps_their_bytes() {
        let raw = RawValue::from_string(r#"{"there":{"a":1.0}}"#.into()).unwrap();
        let form = form_schema(&schema(), raw.get()).unwrap();
        let answer = r#"{"action":"accept","content":{"name":"x","there":7,"count":1e2,"other":true}}"#;
        assert_eq!(fill_in(&raw, &form, answer).unwrap().get(), r#"{"there":{"a":1.0},"name":"x","count":1e2}"#);
        for no in [r#"{"action":"decline"}"#, r#"{"action":"accept"}"#, r#"{"content":{}}"#, "{}"] {
            assert!(fill_in(&raw, &form, no).is_none(), "{no}");
        }
    }
}
