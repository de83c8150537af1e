//! Calls to stateless upstreams: what they need is in their result, and the call is made again with the answers
//! (2026-07-28/basic/patterns/mrtr).

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, value::RawValue};

use super::{
    Ready, Verb,
    park::binding,
    questions,
    relay::{Relay, tell_completed},
    response_cache,
    result::{Glance, Kind},
    tasks,
};
use countersign_exchange::{
    ask::{AskError, ask},
    reply::Reply,
};
use countersign_protocol::{
    ErrorKind, McpError,
    edit::{Op, edit, member, members, string},
};
use countersign_upstream::Response;

/// Rounds of one call at most.
const MAX_ROUNDS: usize = 16;

/// Questions of one round at most.
const MAX_QUESTIONS: usize = 64;

/// How long to wait before a call is made again for which nothing was asked; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A stateless client before a stateless upstream: each speaks for itself.
pub async fn pass_through(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(ready.hearer(), true);
    let state = brought(ready)?;
    let more = state.as_deref().map(|state| [("requestState", state)]);
    let outgoing = ready.outgoing(more.as_ref().map_or(&[], |more| more.as_slice()));
    let response = ready.call.upstream.call(&ready.caller, &outgoing, relay).await?;
    let Response::Result(result) = &response else { return ready.reply(response) };
    let glance = Glance::at(result.get());
    match glance.kind() {
        Kind::Complete if ready.may_be_task() || ready.call.verb == Verb::Extension => {
            response_cache::keep(ready, &response);
            ready.reply(response)
        }
        Kind::Complete => {
            response_cache::keep(ready, &response);
            let outcome = ready.dress().outcome(result.get(), &glance)?;
            match response {
                Response::Result(result) => Ok(outcome.reply(result)),
                response => ready.reply(response),
            }
        }
        Kind::InputRequired => {
            check_input(ready, result.get())?;
            ready.reply(Response::Result(handed_out(ready, result.get())?))
        }
        Kind::Other(kind) => {
            if ready.shares_an_extension() {
                ready.reply(response)
            } else {
                Err(unknown_type(&kind))
            }
        }
    }
}

/// The `requestState` that a client brings back, as its upstream gave it, in JSON.
///
/// # Errors
/// `-32602` for one that was not given to this client for this request.
fn brought(ready: &Ready<'_>) -> Result<Option<String>, McpError> {
    let refused = |why: &str| {
        let message = format!("this requestState cannot be used: {why}; the call was not made again");
        McpError::new(ErrorKind::InvalidParams, message).with("member", "requestState")
    };
    let mut found = ready.params.object.members().filter(|member| member.key == "requestState");
    let Some(member) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(refused("it is there more than once"));
    }
    let sealed = string(member.value).ok_or_else(|| refused("it must be a string"))?;
    let state = ready.call.bridge.carrier.open_sealed(&sealed, &binding(ready));
    state.map(Some).ok_or_else(|| refused("it is not one that this gateway gave this client for this request"))
}

/// What an upstream needs as its client gets it: the state sealed, and questions of people with who asks them.
fn handed_out(ready: &Ready<'_>, result: &str) -> Result<Box<RawValue>, McpError> {
    let (mut requests, mut state) = (None, None);
    if let Some(asked) = member(result, "inputRequests") {
        requests = questions::attributed_requests(&ready.call.upstream.config.name, asked);
    }
    if let Some(bare) = member(result, "requestState") {
        let sealed = ready.call.bridge.carrier.seal(bare, &binding(ready));
        let no = || McpError::new(ErrorKind::Internal, "the state cannot be sealed: no random numbers are to be had");
        state = Some(sealed.ok_or_else(no)?);
    }
    let values = [("inputRequests", &requests), ("requestState", &state)];
    let edits: Vec<_> = values.iter().filter_map(|(key, text)| Some((*key, Op::Set(text.as_deref()?)))).collect();
    RawValue::from_string(edit(result, &edits))
        .map_err(|_| McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not JSON"))
}

/// A handshake-era client before a stateless upstream: it is asked one by one what the upstream wants to know.
pub async fn gather(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(ready.hearer(), false);
    let mut pause = PAUSE;
    let (mut responses, mut state) = (None::<String>, None::<Box<str>>);
    let mut opened: Vec<String> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let mut more: Vec<(&'static str, &str)> = Vec::new();
        if let Some(responses) = &responses {
            more.push(("inputResponses", responses));
        }
        if let Some(state) = &state {
            more.push(("requestState", state));
        }
        let asked_nothing = more.is_empty();
        let response = ready.call.upstream.call(&ready.caller, &ready.outgoing(&more), relay.clone()).await?;
        let Response::Result(result) = &response else { return ready.reply(response) };
        match Glance::at(result.get()).kind() {
            Kind::Complete => {
                for elicitation in &opened {
                    tell_completed(&ready.call.exchange.related, elicitation);
                }
                if asked_nothing {
                    response_cache::keep(ready, &response);
                }
                return ready.reply(response);
            }
            Kind::Other(kind)
                if kind == "task" && tasks::speaks_for(ready.call.exchange.revision(), &ready.negotiated) =>
            {
                return Box::pin(tasks::for_legacy(ready, response)).await;
            }
            Kind::Other(kind) => return Err(unknown_type(&kind)),
            Kind::InputRequired => {}
        }
        check_input(ready, result.get())?;
        state = member(result.get(), "requestState").map(Into::into);
        responses = match member(result.get(), "inputRequests").filter(|requests| members(requests).next().is_some()) {
            Some(requests) => Some(answers(ready, requests, &mut opened).await?),
            None => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                None
            }
        };
    }
    Err(McpError::new(ErrorKind::NotBridgeable, "the upstream asked for input too often").with("limit", MAX_ROUNDS))
}

/// Asks the client everything at once; the `inputResponses`, as JSON.
async fn answers(ready: &Ready<'_>, requests: &str, opened: &mut Vec<String>) -> Result<String, McpError> {
    let exchange = ready.call.exchange;
    let asked = members(requests).map(|request| {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        let elicitation = questions::is_url(&method, params).then(|| nanoid::nanoid!(24));
        if let Some(elicitation) = &elicitation {
            opened.push(elicitation.clone());
        }
        let server = &ready.call.upstream.config.name;
        let params = questions::asked_by(server, &method, params, exchange.revision(), elicitation.as_deref());
        async move {
            let answer = ask(&exchange.session, &exchange.related, &method, params.as_deref()).await;
            (request.key, method, answer)
        }
    });
    let mut out = String::from("{");
    for (key, method, answer) in join_all(asked.collect::<Vec<_>>()).await {
        let answer: Box<RawValue> = match answer {
            Ok(answer) => answer,
            // A dialogue that failed was not answered, which is an answer; a model's text cannot be made up.
            Err(AskError::Refused(_) | AskError::Silent) if method == questions::ELICITATION => {
                RawValue::from_string(r#"{"action":"cancel"}"#.to_owned()).unwrap_or_default()
            }
            Err(error) => return Err(questions::unanswered(&method, &error)),
        };
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&Value::from(key.as_ref()).to_string());
        out.push(':');
        out.push_str(answer.get());
    }
    out.push('}');
    Ok(out)
}

/// # Errors
/// For what an upstream must not answer: input for other requests than those three, neither questions nor state, or
/// questions that the client did not declare itself able to answer.
fn check_input(ready: &Ready<'_>, result: &str) -> Result<(), McpError> {
    let broken = |why: String| Err(McpError::new(ErrorKind::NotBridgeable, why));
    if ready.call.verb == Verb::Complete {
        return broken("the upstream needs input where the protocol has none".into());
    }
    let requests = member(result, "inputRequests");
    if requests.is_none() && member(result, "requestState").is_none() {
        return broken("the upstream needs input and does not say which".into());
    }
    for (at, request) in requests.into_iter().flat_map(members).enumerate() {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let allowed = questions::may_ask(&ready.caller.capabilities, &method, member(request.value, "params"));
        if let Err(refused) = allowed {
            return broken(format!("the upstream needs what this client cannot give: {}", refused.message));
        }
        if at >= MAX_QUESTIONS {
            return broken("the upstream asks too much at once".into());
        }
    }
    Ok(())
}

fn unknown_type(kind: &str) -> McpError {
    let shown: String = kind.chars().take(64).collect();
    McpError::new(ErrorKind::NotBridgeable, "the upstream's result is of a type that this client does not know")
        .with("resultType", shown)
}
