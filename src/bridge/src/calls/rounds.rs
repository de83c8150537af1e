//! Calls to stateless upstreams. A result may ask for input, and the call is then repeated with the answers
//! (2026-07-28/basic/patterns/mrtr).

use futures_util::future::join_all;
use serde_json::value::RawValue;

use super::{Call, parking::binding, prepared_call::PreparedCall, reply::reply_for_legacy_client};
use crate::{
    questions::{self, Relay, notify_url_completed},
    request_state::{StateKind, invalid_state_error},
    tasks,
    translation::{
        request::RequestedItem,
        result::{ResultMembers, ResultType},
    },
};
use countersign_domain::{
    questions::{elicitation::attribute_requests, is_url_elicitation},
    text::truncate,
};
use countersign_exchange::reply::Reply;
use countersign_protocol::{
    ErrorKind, McpError,
    json::{Member, edit, member, members, quoted, set_members, string},
};
use countersign_upstream::{
    Response,
    rounds::{InputRounds, MAX_QUESTIONS, MAX_ROUNDS, RoundError},
};

/// Calls a stateless upstream for a stateless client. Questions and answers pass through.
pub async fn pass_through(prepared: &PreparedCall<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(prepared.recipient());
    let state = unseal_state(prepared)?;
    let extra = state.as_deref().map(|state| [("requestState", state)]);
    let outgoing = prepared.build_request(extra.as_ref().map_or(&[], |extra| extra.as_slice()));
    let result = match prepared.call.upstream.call(&prepared.caller, &outgoing, relay).await? {
        Response::Result(result) => result,
        error @ Response::Error(_) => return prepared.reply(error),
    };
    let parsed = ResultMembers::parse(result.get());
    match parsed.parse_type() {
        ResultType::Complete => {
            prepared.cache_result(&result);
            if prepared.may_be_task() || prepared.call.item.is_extension() {
                return prepared.reply(Response::Result(result));
            }
            Ok(prepared.response_adapter().adapt_parsed(result.get(), &parsed)?.reply(result))
        }
        ResultType::InputRequired => {
            check_input(prepared, result.get())?;
            prepared.reply(Response::Result(seal_input_result(prepared, result.get())?))
        }
        ResultType::Extension(_) if prepared.shares_extension() => prepared.reply(Response::Result(result)),
        ResultType::Extension(name) => Err(unknown_type_error(&name)),
    }
}

/// Returns the `requestState` that the client sent, in the upstream's own form, as JSON text.
///
/// # Errors
/// `-32602` for a state that was not issued to this principal for this request.
fn unseal_state(prepared: &PreparedCall<'_>) -> Result<Option<String>, McpError> {
    let mut state_members = prepared.params.object.members().filter(|member| member.key == "requestState");
    let Some(member) = state_members.next() else { return Ok(None) };
    if state_members.next().is_some() {
        return Err(invalid_state_error("it is given more than once"));
    }
    let sealed = string(member.value).ok_or_else(|| invalid_state_error("it must be a string"))?;
    prepared.call.bridge.sealer.open(StateKind::Upstream, &sealed, &binding(prepared)).map(Some)
}

/// Seals the state of an upstream's result that needs input, and names the upstream in its questions.
fn seal_input_result(prepared: &PreparedCall<'_>, result: &str) -> Result<Box<RawValue>, McpError> {
    let Call { upstream, bridge, .. } = prepared.call;
    let requests = member(result, "inputRequests");
    let requests = requests.and_then(|requests| attribute_requests(&upstream.config.name, requests));
    let seal = |state: &str| bridge.sealer.seal(StateKind::Upstream, state, &binding(prepared));
    let state = member(result, "requestState").map(seal).transpose()?.map(|state| quoted(&state));
    RawValue::from_string(edit(result, &set_members([("inputRequests", &requests), ("requestState", &state)])))
        .map_err(|_| McpError::new(ErrorKind::NotBridgeable, "the upstream's result is not JSON"))
}

/// Calls a stateless upstream for a handshake-era client, and asks the client the upstream's questions between the
/// rounds.
pub async fn ask_in_rounds(prepared: &PreparedCall<'_>) -> Result<Reply, McpError> {
    let relay = Relay::new(prepared.recipient());
    let mut rounds = InputRounds::default();
    let mut elicitation_ids: Vec<String> = Vec::new();
    loop {
        let answer_members = rounds.extra_params();
        let outgoing = prepared.build_request(&answer_members);
        let response = prepared.call.upstream.call(&prepared.caller, &outgoing, relay.clone()).await?;
        let Response::Result(result) = &response else { return prepared.reply(response) };
        match ResultMembers::parse(result.get()).parse_type() {
            ResultType::Complete => {
                for elicitation_id in &elicitation_ids {
                    notify_url_completed(&prepared.call.exchange.related, elicitation_id);
                }
                if answer_members.is_empty() {
                    prepared.cache_result(result);
                }
                return prepared.reply(response);
            }
            ResultType::Extension(name)
                if name == "task"
                    && tasks::declares_extension_for(prepared.call.exchange.revision(), &prepared.negotiated) =>
            {
                return Box::pin(reply_for_legacy_client(prepared, response)).await;
            }
            ResultType::Extension(name) => return Err(unknown_type_error(&name)),
            ResultType::InputRequired => {}
        }
        check_input(prepared, result.get())?;
        let next = rounds
            .next(result.get(), async |requests| ask_client(prepared, requests, &mut elicitation_ids).await)
            .await;
        next.map_err(|error| match error {
            RoundError::Unanswered(error) => error,
            RoundError::TooManyRounds => McpError::new(
                ErrorKind::NotBridgeable,
                "the upstream asked for input more often than the gateway allows",
            )
            .with("limit", MAX_ROUNDS),
            RoundError::TooManyQuestions => not_bridgeable_error(TOO_MANY_QUESTIONS),
            RoundError::NothingAsked => not_bridgeable_error(NOTHING_ASKED),
        })?;
    }
}

/// Asks the client all questions at once. The ids of its URL elicitations are added to `elicitation_ids`.
async fn ask_client(
    prepared: &PreparedCall<'_>,
    requests: &[Member<'_>],
    elicitation_ids: &mut Vec<String>,
) -> Result<Vec<Box<RawValue>>, McpError> {
    let asker = &prepared.client_asker();
    let questions = requests.iter().map(|request| {
        let method = member(request.value, "method").and_then(string).unwrap_or_default();
        let params = member(request.value, "params");
        let elicitation_id = is_url_elicitation(&method, params).then(|| nanoid::nanoid!(24));
        elicitation_ids.extend(elicitation_id.clone());
        async move {
            let answer = asker.ask(&method, params, elicitation_id.as_deref()).await;
            (method, answer)
        }
    });
    let answers = join_all(questions.collect::<Vec<_>>()).await.into_iter();
    answers.map(|(method, answer)| questions::answer_or_error(&method, answer)).collect()
}

const NOTHING_ASKED: &str = "the upstream needs input and does not say which";
const TOO_MANY_QUESTIONS: &str = "the upstream asks for more input at once than the gateway takes";

fn not_bridgeable_error(message: &'static str) -> McpError {
    McpError::new(ErrorKind::NotBridgeable, message)
}

/// Checks a result that needs input.
///
/// # Errors
/// `NOT_BRIDGEABLE` for a completion, for a result with neither questions nor state, and for more than
/// [`MAX_QUESTIONS`]; the errors of [`questions::check_requests`].
fn check_input(prepared: &PreparedCall<'_>, result: &str) -> Result<(), McpError> {
    if matches!(prepared.call.item, RequestedItem::Completion(_)) {
        return Err(not_bridgeable_error(
            "the upstream needs input for a completion, which the protocol does not have",
        ));
    }
    let requests = member(result, "inputRequests");
    if requests.is_none() && member(result, "requestState").is_none() {
        return Err(not_bridgeable_error(NOTHING_ASKED));
    }
    let Some(requests) = requests else { return Ok(()) };
    if members(requests).count() > MAX_QUESTIONS {
        return Err(not_bridgeable_error(TOO_MANY_QUESTIONS));
    }
    let call = &prepared.call;
    questions::check_requests(call.exchange, &call.upstream.config, &prepared.caller.capabilities, requests)
}

/// Returns the error for a result of a type that only an extension defines, which the client does not declare.
fn unknown_type_error(name: &str) -> McpError {
    McpError::new(ErrorKind::NotBridgeable, "the upstream's result is of a type that this client does not know")
        .with("resultType", truncate(name, 64))
}
