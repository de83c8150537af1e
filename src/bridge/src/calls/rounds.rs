//! Calls to stateless upstreams: what they need is in their result, and the call is made again with the answers
//! (2026-07-28/basic/patterns/mrtr).

use std::borrow::Cow;

use futures_util::future::join_all;
use serde_json::value::RawValue;

use super::{into_task, park::binding, ready::Ready, response_cache};
use crate::{
    questions::{
        self,
        relay::{Relay, tell_completed},
    },
    request_state::{StateKind, refused},
    tasks,
    translation::{
        request::Verb,
        result::{Kind, ResultMembers},
    },
};
use countersign_exchange::{ask::ask, reply::Reply};
use countersign_protocol::{
    ErrorKind, McpError,
    json::{Member, MemberEdit, edit, member, members, quoted, string},
};
use countersign_upstream::{
    Response,
    rounds::{InputRounds, MAX_QUESTIONS, MAX_ROUNDS, RoundError},
};

/// A stateless client before a stateless upstream: each speaks for itself.
pub async fn pass_through(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(ready.hearer(), true);
    let state = unseal_state(ready)?;
    let more = state.as_deref().map(|state| [("requestState", state)]);
    let outgoing = ready.outgoing(more.as_ref().map_or(&[], |more| more.as_slice()));
    let response = ready.call.upstream.call(&ready.caller, &outgoing, relay).await?;
    let Response::Result(result) = &response else { return ready.reply(response) };
    let glance = ResultMembers::parse(result.get());
    match glance.kind() {
        Kind::Complete if ready.may_be_task() || ready.call.verb == Verb::Extension => {
            response_cache::keep(ready, &response);
            ready.reply(response)
        }
        Kind::Complete => {
            response_cache::keep(ready, &response);
            let outcome = ready.result_adapter().outcome(result.get(), &glance)?;
            match response {
                Response::Result(result) => Ok(outcome.reply(result)),
                response => ready.reply(response),
            }
        }
        Kind::InputRequired => {
            check_input(ready, result.get())?;
            ready.reply(Response::Result(seal_input_result(ready, result.get())?))
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
fn unseal_state(ready: &Ready<'_>) -> Result<Option<String>, McpError> {
    let mut found = ready.params.object.members().filter(|member| member.key == "requestState");
    let Some(member) = found.next() else { return Ok(None) };
    if found.next().is_some() {
        return Err(refused("it is given more than once"));
    }
    let sealed = string(member.value).ok_or_else(|| refused("it must be a string"))?;
    ready.call.bridge.carrier.open(StateKind::Upstream, &sealed, &binding(ready)).map(Some)
}

/// Seals the state of an upstream's result that needs input, and names the upstream in its questions.
fn seal_input_result(ready: &Ready<'_>, result: &str) -> Result<Box<RawValue>, McpError> {
    let (mut requests, mut state) = (None, None);
    if let Some(asked) = member(result, "inputRequests") {
        requests = questions::attribute_requests(&ready.call.upstream.config.name, asked);
    }
    if let Some(bare) = member(result, "requestState") {
        state = Some(quoted(&ready.call.bridge.carrier.seal(StateKind::Upstream, bare, &binding(ready))?));
    }
    let values = [("inputRequests", &requests), ("requestState", &state)];
    let edits: Vec<_> =
        values.iter().filter_map(|(key, text)| Some((*key, MemberEdit::Set(text.as_deref()?)))).collect();
    RawValue::from_string(edit(result, &edits))
        .map_err(|_| McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not JSON"))
}

/// A handshake-era client before a stateless upstream: it is asked one by one what the upstream wants to know.
pub async fn gather(ready: &Ready<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(ready.hearer(), false);
    let mut rounds = InputRounds::default();
    let mut opened: Vec<String> = Vec::new();
    loop {
        let brings = rounds.extra_params();
        let outgoing = ready.outgoing(&brings);
        let response = ready.call.upstream.call(&ready.caller, &outgoing, relay.clone()).await?;
        let Response::Result(result) = &response else { return ready.reply(response) };
        match ResultMembers::parse(result.get()).kind() {
            Kind::Complete => {
                for elicitation in &opened {
                    tell_completed(&ready.call.exchange.related, elicitation);
                }
                if brings.is_empty() {
                    response_cache::keep(ready, &response);
                }
                return ready.reply(response);
            }
            Kind::Other(kind)
                if kind == "task" && tasks::speaks_for(ready.call.exchange.revision(), &ready.negotiated) =>
            {
                return Box::pin(into_task::for_legacy(ready, response)).await;
            }
            Kind::Other(kind) => return Err(unknown_type(&kind)),
            Kind::InputRequired => {}
        }
        check_input(ready, result.get())?;
        let next = rounds.next(result.get(), async |requests| answers(ready, requests, &mut opened).await).await;
        next.map_err(|stop| match stop {
            RoundError::Unanswered(error) => error,
            RoundError::TooManyRounds => McpError::new(
                ErrorKind::NotBridgeable,
                "the upstream asked for input more often than the gateway allows",
            )
            .with("limit", MAX_ROUNDS),
            RoundError::TooManyQuestions => broken(TOO_MANY),
            RoundError::NothingAsked => broken(ASKS_NOTHING),
        })?;
    }
}

/// ClientAsker the client everything at once.
async fn answers(
    ready: &Ready<'_>,
    requests: &[Member<'_>],
    opened: &mut Vec<String>,
) -> Result<Vec<Box<RawValue>>, McpError> {
    let exchange = ready.call.exchange;
    let asked = requests.iter().map(|request| {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        let elicitation = questions::is_url_elicitation(&method, params).then(|| nanoid::nanoid!(24));
        if let Some(elicitation) = &elicitation {
            opened.push(elicitation.clone());
        }
        let server = &ready.call.upstream.config.name;
        let params = questions::params_for_client(server, &method, params, exchange.revision(), elicitation.as_deref());
        async move {
            let answer = ask(&exchange.session, &exchange.related, &method, params.as_deref()).await;
            (method, answer)
        }
    });
    let answers = join_all(asked.collect::<Vec<_>>()).await.into_iter();
    answers.map(|(method, answer)| questions::answer(&method, answer)).collect()
}

const ASKS_NOTHING: &str = "the upstream needs input and does not say which";
const TOO_MANY: &str = "the upstream asks for more input at once than the gateway takes";

fn broken(why: impl Into<Cow<'static, str>>) -> McpError {
    McpError::new(ErrorKind::NotBridgeable, why)
}

/// # Errors
/// For what an upstream must not answer: input for other requests than those three, neither questions nor state, or
/// questions that the client did not declare itself able to answer.
fn check_input(ready: &Ready<'_>, result: &str) -> Result<(), McpError> {
    if ready.call.verb == Verb::Complete {
        return Err(broken("the upstream needs input for a completion, which the protocol does not have"));
    }
    let requests = member(result, "inputRequests");
    if requests.is_none() && member(result, "requestState").is_none() {
        return Err(broken(ASKS_NOTHING));
    }
    for (at, request) in requests.into_iter().flat_map(members).enumerate() {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let allowed =
            questions::check_capabilities(&ready.caller.capabilities, &method, member(request.value, "params"));
        if let Err(refused) = allowed {
            return Err(broken(format!("the upstream needs what this client cannot give: {}", refused.message)));
        }
        if at >= MAX_QUESTIONS {
            return Err(broken(TOO_MANY));
        }
    }
    Ok(())
}

fn unknown_type(kind: &str) -> McpError {
    let shown: String = kind.chars().take(64).collect();
    McpError::new(ErrorKind::NotBridgeable, "the upstream's result is of a type that this client does not know")
        .with("resultType", shown)
}
