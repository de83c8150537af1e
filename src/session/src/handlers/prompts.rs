//! Prompts, and the completion of their arguments and of resource templates.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{
    ItemRequest,
    lists::{self, render_page},
};
use crate::policy::{ListFilter, check_policy};
use countersign_bridge::{self, Bridge, Call, RequestedItem};
use countersign_domain::{policy::Subject, text::truncate};
use countersign_exchange::{context::Exchange, facts::check_uri, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::Request,
    json::{MemberEdit, edit, elements, member},
    params,
};
use countersign_provider::CompletionRef;
use countersign_routing::{RouteTable, RouteTarget, table::PromptRoute};
use countersign_upstream::{ListKinds, Upstream};

/// The maximum number of values in one completion (2025-11-25/server/utilities/completion).
const MAX_COMPLETION_VALUES: usize = 100;

/// A completion without suggestions.
const NO_SUGGESTIONS: &str = r#"{"completion":{"values":[],"total":0,"hasMore":false}}"#;

/// Answers `prompts/list`.
pub fn list(exchange: &Exchange, table: &RouteTable, request: &Request<'_>) -> Result<Reply, McpError> {
    let params: params::ListParams<'_> = params::parse(request.params)?;
    table.refresh_stale_lists();
    let revision = exchange.revision();
    let filter = ListFilter::for_requester(exchange, table);
    let is_shown = |route: &&Arc<PromptRoute>| filter.shows(&route.provider, Subject::Prompt(&route.def.name));
    let prompts: Vec<_> = table.prompts_for(&exchange.identity.principal).filter(is_shown).collect();
    let cursor = params.cursor.as_deref();
    let json = render_page("prompts", &prompts, |route| &route.def.name, |route| route.list_entry(revision), cursor)?;
    Ok(Reply::new(json).with_cache_hint(lists::hint_for_filtered_list(table, ListKinds::PROMPTS)))
}

/// Answers `prompts/get`.
pub async fn get(item: ItemRequest<'_>, bridge: &Arc<Bridge>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::GetPromptParams<'_> = params::parse(request.params)?;
    let route = finder.find_prompt(&params.name).await?.ok_or_else(|| unknown_prompt_error(&params.name))?;
    check_policy(exchange, &finder.table, &route.provider, Subject::Prompt(&route.def.name))?;
    let module = match &route.provider {
        RouteTarget::Upstream(upstream) => {
            let name = upstream.names.upstream_name(&route.def.name).unwrap_or(&route.def.name);
            let call = Call::new(exchange, bridge, upstream, RequestedItem::Prompt(name), request);
            return countersign_bridge::call(call).await;
        }
        RouteTarget::Module(module) => module,
    };
    let mut required = route.def.arguments.iter().filter(|argument| argument.required);
    if let Some(argument) = required.find(|argument| !params.arguments.contains_key(&argument.name)) {
        let text = format!("the prompt {} needs the argument `{}`", route.def.name, argument.name);
        return Err(McpError::new(ErrorKind::InvalidParams, text).with("argument", argument.name.clone()));
    }
    let context = exchange.call_context(cancel, None);
    let work = module.get_prompt(&route.def.name, &params.arguments, &context);
    let result = limits.with_timeout(work).await?;
    let messages: Vec<Value> = result
        .messages
        .iter()
        .map(|m| json!({ "role": m.role, "content": { "type": "text", "text": m.text } }))
        .collect();
    Ok(Reply::new(json!({ "description": result.description, "messages": messages }).to_string()))
}

/// Answers `completion/complete`.
pub async fn complete(item: ItemRequest<'_>, bridge: &Arc<Bridge>) -> Result<Reply, McpError> {
    let ItemRequest { exchange, request, cancel, mut finder, limits } = item;
    let params: params::CompleteParams<'_> = params::parse(request.params)?;
    let (target, subject) = match &params.reference {
        params::Reference::Prompt { name } => {
            let to_target =
                |route: Arc<PromptRoute>| (route.provider.clone(), CompletionRef::Prompt(route.def.name.clone()));
            (finder.find_prompt(name).await?.map(to_target), Subject::Prompt(name))
        }
        params::Reference::Resource { uri } => {
            check_uri(limits.max_uri, "ref.uri", uri)?;
            let to_target = |provider| (provider, CompletionRef::ResourceTemplate(uri.clone().into_owned()));
            (finder.find_resource(uri).await?.map(to_target), Subject::Resource(uri))
        }
    };
    let Some((provider, reference)) = target else {
        // Completion only helps a person type, so an unknown prompt or template has no suggestions. The specification's
        // -32602 is a SHOULD that its own test suite does not follow.
        return Ok(Reply::new(NO_SUGGESTIONS.into()));
    };
    check_policy(exchange, &finder.table, &provider, subject)?;
    if let Subject::Resource(template) = subject {
        // A principal that may not read the resulting resource gets no suggestions for it either.
        let expanded = expand_template(template, &params);
        check_policy(exchange, &finder.table, &provider, Subject::Resource(&expanded))?;
    }
    let module = match &provider {
        RouteTarget::Upstream(upstream) => {
            return complete_upstream(exchange, bridge, request, upstream).await;
        }
        RouteTarget::Module(module) => module,
    };
    let context = exchange.call_context(cancel, None);
    let context_arguments: &Map<String, Value> = &params.context.arguments;
    let argument = (params.argument.name.as_ref(), params.argument.value.as_ref());
    let work = module.complete(&reference, argument, context_arguments, &context);
    let mut completion = limits.with_timeout(work).await?;
    let total_found = completion.values.len();
    completion.values.truncate(MAX_COMPLETION_VALUES);
    let has_more = completion.has_more || total_found > MAX_COMPLETION_VALUES;
    let mut out = json!({ "values": completion.values, "hasMore": has_more });
    if let Some(total) = completion.total {
        out["total"] = total.into();
    }
    Ok(Reply::new(json!({ "completion": out }).to_string()))
}

/// Replaces each variable of the template with its known value or with the text typed so far. Unknown variables stay.
fn expand_template(template: &str, params: &params::CompleteParams<'_>) -> String {
    let mut expanded = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, from)) = rest.split_once('{') {
        let Some((variable, after)) = from.split_once('}') else { break };
        expanded.push_str(before);
        let name = variable.trim_start_matches(['+', '#', '/', '.', ';', '?', '&']);
        match params.context.arguments.get(name).and_then(Value::as_str) {
            Some(value) => expanded.push_str(value),
            None if name == params.argument.name => expanded.push_str(&params.argument.value),
            None => expanded.extend(["{", variable, "}"]),
        }
        rest = after;
    }
    expanded.push_str(rest);
    expanded
}

/// Passes the completion on to the upstream that owns the prompt or template.
async fn complete_upstream(
    exchange: &Exchange,
    bridge: &Arc<Bridge>,
    request: &Request<'_>,
    upstream: &Arc<Upstream>,
) -> Result<Reply, McpError> {
    // A server without completions would refuse the request (2025-11-25/server/utilities/completion#capabilities).
    // Revisions older than the capability have the method without it.
    let has_completions = upstream.negotiated().is_none_or(|negotiated| {
        !negotiated.revision.rules().completions_capability
            || member(negotiated.capabilities.get(), "completions").is_some()
    });
    if !has_completions {
        return Ok(Reply::new(NO_SUGGESTIONS.into()));
    }
    let reference = request.params.and_then(|params| member(params.get(), "ref")).unwrap_or("{}");
    let reference = upstream.names.upstream_reference(reference);
    let call = Call::new(exchange, bridge, upstream, RequestedItem::Completion(&reference), request);
    let reply = countersign_bridge::call(call).await?;
    Ok(match truncate_values(&reply.json) {
        Some(json) => Reply { json, ..reply },
        None => reply,
    })
}

/// Limits the values of a completion result to [`MAX_COMPLETION_VALUES`]. Returns `None` if the result has no more than that.
fn truncate_values(result: &str) -> Option<String> {
    let completion = member(result, "completion")?;
    let list = member(completion, "values")?;
    let values: Vec<&str> = elements(list).map(|(_, value)| value).collect();
    if values.len() <= MAX_COMPLETION_VALUES {
        return None;
    }
    let values = format!("[{}]", values[..MAX_COMPLETION_VALUES].join(","));
    let completion = edit(completion, &[("values", MemberEdit::Set(&values)), ("hasMore", MemberEdit::Set("true"))]);
    Some(edit(result, &[("completion", MemberEdit::Set(&completion))]))
}

fn unknown_prompt_error(name: &str) -> McpError {
    let name = truncate(name, 128);
    McpError::new(ErrorKind::PromptNotFound, format!("Unknown prompt: {name}")).with("prompt", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_excess_completion_values_are_cut() {
        let result = |n: usize, more: &str| {
            let values: Vec<_> = (0..n).map(|n| format!(r#""v{n},]""#)).collect();
            let values = format!("[{}]", values.join(","));
            format!(r#"{{"x":1.0,"completion":{{ "values":{values},"total":1e3{more}}}}}"#)
        };
        assert_eq!(truncate_values(&result(100, "")), None);
        assert_eq!(truncate_values(&result(101, "")), Some(result(100, r#","hasMore":true"#)));
        assert_eq!(truncate_values(&result(500, r#","hasMore":false"#)), Some(result(100, r#","hasMore":true"#)));
        for odd in ["{}", r#"{"completion":5}"#, r#"{"completion":{"values":5}}"#] {
            assert_eq!(truncate_values(odd), None);
        }
    }
}
