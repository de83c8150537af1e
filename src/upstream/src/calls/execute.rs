//! Runs an approved change at an upstream: exactly the approved arguments, exactly once. Questions of the tool go to
//! the proposing client if the rule says so, and are declined otherwise.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    CallOrigin, OutgoingCall, may_be_processed,
    rounds::{InputRounds, MAX_QUESTIONS, MAX_ROUNDS, RoundError},
};
use crate::{
    link::{Listener, OutgoingRequest, Response, UpstreamNotification, handshake::add_meta_for},
    server::{Caller, LinkChoice, Upstream},
};
use countersign_domain::text::truncate;
use countersign_protocol::{
    Era, ErrorKind, McpError, RequestId,
    json::{Member, MemberEdit, add_members, member, merge_meta, quoted, string},
    param_headers::{self, MirroredHeaders, annotated_params},
    redact::redact,
    rpc_error::RpcError,
};
use countersign_provider::{
    AnswerError, CallContext, Inquirer, ProgressSink, ToolDef, ToolResult,
    previews::confirmation::ConfirmingInquirer,
    request::{Replier, UpstreamRequest},
};

/// The codes with which clients of the official TypeScript SDK report a closed connection and a timeout. A proxy that is built
/// with it answers with them.
const SDK_LOSS_CODES: [i64; 2] = [-32000, -32001];

/// Runs the change once, until it is cancelled. `tool` is the name that clients use.
///
/// # Errors
/// As [`countersign_provider::Provider::call`]; `data.outcome` tells whether it may have been applied. `INPUT_REQUIRED`
/// if the tool needs an answer from a person.
pub(crate) async fn execute_change(
    upstream: Arc<Upstream>,
    tool: String,
    arguments: Box<RawValue>,
    context: CallContext,
) -> Result<ToolResult, McpError> {
    let work = call_tool(&upstream, &tool, &arguments, &context);
    let cancelled_error =
        || McpError::new(ErrorKind::Cancelled, "the gateway cancelled the call").with("outcome", "unknown");
    context.cancel.run_until_cancelled(work).await.unwrap_or_else(|| Err(cancelled_error()))
}

impl Upstream {
    /// Returns the headers that mirror arguments of a call if its tool is annotated and its server speaks this era.
    ///
    /// # Errors
    /// `-32602` for an integer that a header over HTTP must not have.
    pub(crate) fn param_headers(
        &self,
        era: Era,
        definition: Option<&ToolDef>,
        arguments: &RawValue,
    ) -> Result<MirroredHeaders, McpError> {
        if era == Era::Legacy {
            return Ok(Vec::new());
        }
        let annotated = definition.and_then(|def| annotated_params(&def.input_schema).ok()).unwrap_or_default();
        let arguments = Some(arguments.get());
        if !self.needs_exclusive_links() {
            param_headers::check_integers(&annotated, arguments)?;
        }
        Ok(param_headers::for_call(&annotated, arguments))
    }
}

/// Calls the tool, and continues while the server asks for input.
async fn call_tool(
    upstream: &Arc<Upstream>,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Result<ToolResult, McpError> {
    let upstream_name = upstream.names.upstream_name(tool).unwrap_or(tool);
    let era = upstream.era();
    let confirming = confirming_inquirer(upstream, upstream_name, arguments, context);
    let inquirer = confirming.clone().map(|inquirer| inquirer as Arc<dyn Inquirer>).or(context.inquirer.clone());
    let capabilities = inquirer.as_ref().map(|inquirer| inquirer.capabilities().clone()).unwrap_or_default();
    let (headers, requires_task) = {
        let definitions = upstream.definitions.load();
        let definition = definitions.tools.iter().find(|def| def.name == tool);
        let raw = definition.and_then(|def| def.raw.as_deref());
        let requires_task = upstream.negotiated().is_some_and(|negotiated| negotiated.requires_task(raw));
        (upstream.param_headers(era, definition, arguments)?, requires_task)
    };
    let caller = Caller {
        principal: Arc::clone(&context.principal),
        session: None,
        session_ended: None,
        capabilities,
        is_modern: true,
        log_level: None,
        link_choice: LinkChoice::default(),
    };
    let listener = Arc::new(CallListener {
        server: upstream.config.name.clone(),
        progress: Arc::clone(&context.progress),
        inquirer: inquirer.clone(),
        has_declined: AtomicBool::new(false),
    });
    let origin = CallOrigin::ApprovedChange { preferred: upstream.ensure_session_alive(&caller).await? };
    let mut rounds = InputRounds::default();
    loop {
        let id = upstream.next_request_id();
        let mut params = format!(r#"{{"name":{},"arguments":{}}}"#, Value::from(upstream_name), arguments.get());
        if era == Era::Modern {
            params = add_meta_for(&add_members(&params, &rounds.extra_params()), &caller.capabilities);
        }
        if requires_task {
            params = add_members(&params, &[("task", "{}")]);
        }
        if context.progress.has_listener() {
            params = merge_meta(&params, &[("progressToken", MemberEdit::Set(&id.to_string()))]);
        }
        let outgoing = OutgoingRequest {
            name: Some(upstream_name.into()),
            headers: headers.clone(),
            permit: context.permit.clone(),
            waits_for_task: requires_task,
            ..OutgoingRequest::new(id, "tools/call", Some(&params))
        };
        let call = OutgoingCall { caller: &caller, outgoing: &outgoing, listener: Arc::clone(&listener) as _, origin };
        let response = upstream.send(call).await?;
        if era == Era::Modern
            && let Some(inquirer) = &inquirer
            && let Response::Result(result) = &response
            && member(result.get(), "resultType").and_then(string).is_some_and(|kind| kind == "input_required")
        {
            let round =
                rounds.next(result.get(), async |requests| ask_proposer(requests, inquirer.as_ref()).await).await;
            round.map_err(|reason| match reason {
                RoundError::NothingAsked => unreadable_answer_error("it needs input but asks no question"),
                RoundError::TooManyQuestions => {
                    too_much_input_error(format!("The tool asks more than {MAX_QUESTIONS} questions at once"))
                }
                RoundError::TooManyRounds => {
                    too_much_input_error(format!("The tool asked for input in more than {MAX_ROUNDS} rounds"))
                }
                RoundError::Unanswered(error) => error,
            })?;
            continue;
        }
        let declined = confirming.as_ref().and_then(|inquirer| inquirer.declined_question());
        let declined =
            declined.or(listener.has_declined.load(Ordering::Relaxed).then_some("its question was declined"));
        return into_tool_result(response, declined);
    }
}

/// Returns the inquirer that answers the question with which the server confirms the call, if the approved preview showed this
/// answer.
fn confirming_inquirer(
    upstream: &Upstream,
    tool: &str,
    arguments: &RawValue,
    context: &CallContext,
) -> Option<Arc<ConfirmingInquirer>> {
    let recipe = upstream.config.previews.get(tool).filter(|_| context.answers_confirmation)?;
    ConfirmingInquirer::for_call(recipe, arguments, context.inquirer.clone()).map(Arc::new)
}

/// Asks the proposing client all questions, and waits for the answers.
///
/// # Errors
/// `INPUT_REQUIRED` for a question without an answer, in which case nothing was applied.
async fn ask_proposer(requests: &[Member<'_>], inquirer: &dyn Inquirer) -> Result<Vec<Box<RawValue>>, McpError> {
    // Cancels the questions if not all of them are answered.
    let cancelled = CancellationToken::new();
    let _cancel_on_drop = cancelled.clone().drop_guard();
    let receivers = requests.iter().map(|request| {
        let (answer, answered) = oneshot::channel();
        inquirer.ask(UpstreamRequest {
            id: RequestId::from_raw(&quoted(&request.key)),
            method: member(request.value, "method").and_then(string).unwrap_or_default().into_owned(),
            params: member(request.value, "params").and_then(|params| RawValue::from_string(params.into()).ok()),
            reply: Replier::new(move |outcome| drop(answer.send(outcome))),
            cancelled: cancelled.clone(),
        });
        answered
    });
    let answers = join_all(receivers.collect::<Vec<_>>()).await.into_iter();
    let to_cancelled = |_| Err(RpcError::new(ErrorKind::Internal.number(), "the gateway cancelled the question"));
    answers
        .map(|answer| answer.unwrap_or_else(to_cancelled).map_err(|error| input_required_error(&error.message)))
        .collect()
}

/// Converts the upstream's answer. `declined` says which question was declined, if any.
fn into_tool_result(response: Response, declined: Option<&str>) -> Result<ToolResult, McpError> {
    let result = match response {
        Response::Error(error) => {
            let refusal = refusal_error(&error);
            return Err(match declined {
                Some(_) if !refusal.data.contains_key("outcome") => {
                    input_required_error(&error.message).with("upstreamCode", error.code)
                }
                // A lost answer leaves the outcome unknown, even if a question was declined before.
                _ => refusal,
            });
        }
        Response::Result(result) => result,
    };
    let answer = ToolResult::from_answer(result.get()).map_err(|error| match error {
        AnswerError::InputRequired => input_required_error("it asks for input"),
        AnswerError::Unreadable(reason) => unreadable_answer_error(&reason),
    })?;
    match declined {
        Some(declined) if answer.is_error => Err(input_required_error(declined)),
        _ => Ok(answer),
    }
}

fn unreadable_answer_error(reason: &str) -> McpError {
    McpError::new(ErrorKind::UpstreamUnavailable, format!("the server's answer cannot be read: {reason}"))
        .with("outcome", "unknown")
}

/// Creates the error for an error of the server, which usually means that it did not apply the change. It may have applied the
/// change if its HTTP status says so or, without an HTTP error, if a proxy of the official SDK lost it.
fn refusal_error(error: &RpcError) -> McpError {
    // Secrets are redacted first, because truncation could leave the beginning of a secret.
    let message = truncate(&redact(&error.message), 1000).to_owned();
    let may_be_applied = match error.status {
        Some(status @ 400..) => may_be_processed(status),
        _ => SDK_LOSS_CODES.contains(&error.code),
    };
    let refusal = McpError::new(ErrorKind::UpstreamError, message).with("upstreamCode", error.code);
    if may_be_applied { refusal.with("outcome", "unknown") } else { refusal }
}

fn input_required_error(reason: &str) -> McpError {
    let reason = truncate(&redact(reason), 500).to_owned();
    McpError::new(
        ErrorKind::InputRequired,
        format!(
            "The tool needs an answer that the approved change did not get. Set `questions: ask` in its rule, and use \
             a client that can be asked: {reason}"
        ),
    )
}

fn too_much_input_error(message: String) -> McpError {
    McpError::new(ErrorKind::InputRequired, message)
}

/// Receives progress, and forwards or declines questions.
struct CallListener {
    /// The name of the server, for the log.
    server: String,
    progress: Arc<dyn ProgressSink>,
    inquirer: Option<Arc<dyn Inquirer>>,
    /// `true` once a question was declined.
    has_declined: AtomicBool,
}

impl Listener for CallListener {
    fn handle_notification(&self, notification: UpstreamNotification) {
        #[derive(Deserialize)]
        struct Progress {
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        if notification.method != "notifications/progress" || !self.progress.has_listener() {
            return;
        }
        let progress = notification.params.and_then(|p| serde_json::from_str::<Progress>(p.get()).ok());
        if let Some(Progress { progress, total, message }) = progress {
            self.progress.progress(progress, total, message.as_deref());
        }
    }

    fn handle_request(&self, request: UpstreamRequest) {
        if let Some(inquirer) = &self.inquirer {
            return inquirer.ask(request);
        }
        self.has_declined.store(true, Ordering::Relaxed);
        tracing::info!(
            upstream = %self.server, method = %request.method,
            "an approved change asked for input, and the gateway declined"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, has_declined: bool) -> Result<ToolResult, McpError> {
        let declined = has_declined.then_some("it asks");
        into_tool_result(Response::Result(RawValue::from_string(text.into()).unwrap()), declined)
    }

    #[test]
    fn lost_answer_after_declined_question_is_unknown() {
        let fail = |code: i64, status: Option<u16>| {
            let error = RpcError { status, ..RpcError::new(code, "no") };
            into_tool_result(Response::Error(error), Some("it asks")).unwrap_err()
        };
        for (code, status) in
            [(-32000, None), (-32001, Some(200)), (-32603, Some(500)), (-32603, Some(408)), (-32000, Some(499))]
        {
            let error = fail(code, status);
            assert_eq!((error.kind, &error.data["outcome"]), (ErrorKind::UpstreamError, &"unknown".into()), "{code}");
        }
        for (code, status) in [(-32603, 400), (-32000, 400), (-32001, 404), (-32000, 429)] {
            let error = fail(code, Some(status));
            assert_eq!((error.kind, &error.data["upstreamCode"]), (ErrorKind::InputRequired, &code.into()), "{status}");
            assert!(!error.data.contains_key("outcome"), "{code} {status}");
        }
        assert_eq!(parse("7", true).unwrap_err().data["outcome"], "unknown", "an answer that cannot be read");
    }

    #[test]
    fn answer_is_kept_verbatim_and_declined_question_fails() {
        let tool_result =
            parse(r#"{"content":[{"type":"text","text":"x"}],"structuredContent":{"n":1.0}}"#, true).unwrap();
        assert!(!tool_result.is_error, "a result counts even if a question was declined");
        assert_eq!(tool_result.structured_content.unwrap().get(), r#"{"n":1.0}"#);
        assert_eq!(parse("{}", false).unwrap().content.get(), "[]");
        assert!(parse(r#"{"content":[],"isError":true}"#, false).unwrap().is_error);
        for (text, asked) in [(r#"{"content":[],"isError":true}"#, true), (r#"{"resultType":"input_required"}"#, false)]
        {
            assert_eq!(parse(text, asked).unwrap_err().kind, ErrorKind::InputRequired, "{text}");
        }
        for garbage in ["7", r#"{"resultType":"task"}"#, r#"{"isError":"yes"}"#] {
            assert_eq!(parse(garbage, false).unwrap_err().data["outcome"], "unknown", "{garbage}");
        }
        let error = into_tool_result(Response::Error(RpcError::new(-32603, "no")), None).unwrap_err();
        assert_eq!((error.kind, &error.data["upstreamCode"]), (ErrorKind::UpstreamError, &(-32603).into()));
    }
}
