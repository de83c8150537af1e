//! Arguments that a call lacks by its tool's schema, asked of whoever sits at the client before the call is proposed,
//! where the rule has that (`questions: ask`): so that a reviewer sees them, and nothing need be asked once it runs.
//!
//! Only what a form can ask for (2025-11-25/client/elicitation, "Requested Schema"): flat values. The model's own
//! arguments stay as they are.

use std::sync::Arc;

use serde_json::{Map, Value, json, value::RawValue};

use super::super::tools::Call;
use crate::{
    Handling,
    policy::{self, Judged},
};
use countersign_bridge::result::input_result;
use countersign_domain::{
    policy::Verdict,
    questions::{ELICITATION, adapt_params},
};
use countersign_exchange::{ask::ask, reply::SERVER_META};
use countersign_protocol::{
    Revision,
    capabilities::ClientCapabilities,
    json::{MemberEdit, edit, member, members, string},
};
use countersign_routing::ToolRoute;

/// What the request is known by in `inputRequests`.
pub const KEY: &str = "missing-arguments";

/// Arguments in one form at most.
const MAX: usize = 16;

/// What a form may say of a value.
const KEYWORDS: [&str; 12] = [
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
    "pattern",
];
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// What becomes of a call that lacks arguments.
pub enum Missing {
    /// They are there now: all of its arguments.
    Filled(Box<RawValue>),
    /// A stateless client is asked for them, by this result.
    Asks(String),
}

/// `None` where there is nothing to ask for, nobody to ask, or no answer: the call is wrong then, as any other.
/// Nothing is counted: with other arguments it is another call, which is decided on when it is whole.
pub(in crate::handlers) async fn ask_for(
    exchange: &Handling,
    route: &Arc<ToolRoute>,
    judged: Option<Judged>,
    raw: &RawValue,
    call: &Call<'_>,
) -> Option<Missing> {
    if !can_fill_in_forms(exchange) {
        return None;
    }
    let schema = form(&route.def.input_schema, raw.get())?;
    let judged = match judged {
        Some(judged) => judged,
        None => policy::judge(exchange, route, raw).await.ok()?,
    };
    if judged.verdict() != Verdict::Review || !judged.decision.terms.questions {
        return None;
    }
    let title = if route.def.title.is_empty() { &route.name } else { &route.def.title };
    let message = format!("{title} lacks arguments. Fill them in here; a person then decides on the call.");
    let params = json!({ "mode": "form", "message": message, "requestedSchema": schema }).to_string();
    if exchange.is_modern() {
        let Some(answer) = call.responses.and_then(|responses| member(responses, KEY)) else {
            let requests = [(KEY, ELICITATION, Some(params.as_str()))];
            return Some(Missing::Asks(input_result(requests.into_iter(), None, SERVER_META)));
        };
        return fill(raw, &schema, answer).map(Missing::Filled);
    }
    let _slot = exchange.server.long_requests.admit(&exchange.identity.principal).ok()?;
    let params = adapt_params(ELICITATION, Some(&params), exchange.revision(), None);
    let answer = tokio::select! {
        answer = ask(&exchange.session, &exchange.related, ELICITATION, params.as_deref()) => answer.ok()?,
        () = exchange.server.long_requests.shutdown.cancelled() => return None,
    };
    fill(raw, &schema, answer.get()).map(Missing::Filled)
}

fn can_fill_in_forms(exchange: &Handling) -> bool {
    exchange.revision() >= Revision::V2025_06_18
        && ClientCapabilities::from_declaration(&exchange.facts.capabilities).elicitation_form
}

/// The schema of a form that asks for every required argument that is not there.
fn form(schema: &Value, arguments: &str) -> Option<Value> {
    let there: Vec<_> = members(arguments).map(|member| member.key.into_owned()).collect();
    let required = schema["required"].as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
    let missing: Vec<&str> = required.into_iter().filter(|name| !there.iter().any(|key| key == name)).collect();
    if missing.is_empty() || missing.len() > MAX {
        return None;
    }
    let mut properties = Map::new();
    for name in &missing {
        properties.insert((*name).to_owned(), flat(&schema["properties"][*name])?);
    }
    Some(json!({ "type": "object", "properties": properties, "required": missing }))
}

/// A value's schema in the words of a form; `None` for what no form can ask for.
fn flat(schema: &Value) -> Option<Value> {
    let of = schema.as_object()?;
    let kind = of.get("type")?.as_str()?;
    if !matches!(kind, "string" | "number" | "integer" | "boolean") {
        return None;
    }
    let mut out = Map::new();
    for (key, value) in of.iter().filter(|(key, _)| KEYWORDS.contains(&key.as_str())) {
        match key.as_str() {
            "format" if !value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {}
            // A choice among other things than texts is none that a form has.
            "enum" if kind != "string" || !value.as_array()?.iter().all(Value::is_string) => return None,
            "pattern" => {}
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    Some(Value::Object(out))
}

/// The arguments with what was filled in: what the form asked for, and nothing else.
fn fill(raw: &RawValue, schema: &Value, answer: &str) -> Option<Box<RawValue>> {
    if member(answer, "action").and_then(string)? != "accept" {
        return None;
    }
    let content = member(answer, "content").filter(|content| content.starts_with('{'))?;
    let asked = schema["properties"].as_object()?;
    let given: Vec<_> = members(content).filter(|given| asked.contains_key(given.key.as_ref())).collect();
    let edits: Vec<(&str, MemberEdit<'_>)> =
        given.iter().map(|given| (given.key.as_ref(), MemberEdit::Default(given.value))).collect();
    RawValue::from_string(edit(raw.get(), &edits)).ok()
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
    fn a_form_asks_for_what_is_required_and_not_there() {
        let asked = form(&schema(), r#"{"there":{"a":1}}"#).unwrap();
        assert_eq!(
            asked,
            json!({ "type": "object", "required": ["name", "count"], "properties": {
                "name": { "type": "string", "title": "Name" }, "count": { "type": "integer", "minimum": 1 } } })
        );
        assert_eq!(form(&schema(), "{}"), None, "no form asks for an object");
        assert_eq!(form(&schema(), r#"{"there":1,"name":1,"count":"x"}"#), None, "what is wrong is not missing");
        assert_eq!(form(&json!(true), "{}"), None);
        let choice = json!({ "required": ["a"], "properties": { "a": { "type": "integer", "enum": [1, 2] } } });
        assert_eq!(form(&choice, "{}"), None);
    }

    #[test]
    fn what_was_filled_in_goes_beside_what_was_there() {
        let raw = RawValue::from_string(r#"{"there":{"a":1.0}}"#.into()).unwrap();
        let asked = form(&schema(), raw.get()).unwrap();
        let answer = r#"{"action":"accept","content":{"name":"x","there":7,"count":1e2,"other":true}}"#;
        assert_eq!(fill(&raw, &asked, answer).unwrap().get(), r#"{"there":{"a":1.0},"name":"x","count":1e2}"#);
        for no in [r#"{"action":"decline"}"#, r#"{"action":"accept"}"#, r#"{"content":{}}"#, "{}"] {
            assert!(fill(&raw, &asked, no).is_none(), "{no}");
        }
    }
}
