//! Runs admitted calls: those of upstreams over the bridge, those of modules within their limits.

use super::{
    account_connection,
    client_questions::ClientQuestions,
    reviewed::finished_call::FinishedCall,
    tool_call::{ToolOutcome, arguments_or_empty, input_responses},
    tools::{invalid_arguments_reply, is_for_model, to_tool_failure},
};
use crate::{gateway::server::CallRunner, policy::AdmittedRoute};
use countersign_bridge::{self, CallFlags, RequestedItem};
use countersign_exchange::{context::Exchange, reply::Reply, state::Cancellation};
use countersign_protocol::{ErrorKind, McpError, envelope::Request};
use countersign_provider::CallContext;
use countersign_routing::validate;

/// A call that the policy has admitted, with the parts of the gateway that run it.
pub struct AdmittedCall<'a> {
    pub exchange: &'a Exchange,
    pub runner: &'a CallRunner,
    pub cancel: &'a Cancellation,
    pub request: &'a Request<'a>,
    pub admitted: AdmittedRoute,
    pub flags: CallFlags,
}

impl AdmittedCall<'_> {
    /// Runs the call in its task. The arguments of a module's tool are checked first.
    ///
    /// # Errors
    /// The errors of the call.
    pub async fn run_as_task(self) -> Result<Reply, McpError> {
        let route = self.admitted.route();
        if route.provider.upstream().is_none()
            && let Err(error) =
                validate::check_arguments(route, arguments_or_empty(self.request.tool_call()?.arguments)?)
        {
            return invalid_arguments_reply(self.exchange, route, error);
        }
        self.run().await
    }

    /// Runs the call. The arguments of a module's tool must be valid.
    ///
    /// # Errors
    /// Those of the provider, unless the model can act on them.
    pub async fn run(self) -> Result<Reply, McpError> {
        let Self { exchange, runner, request, flags, .. } = self;
        let route = self.admitted.route();
        let Some(upstream) = route.provider.upstream() else {
            let outcome = Box::pin(run_module(&self)).await;
            return to_tool_failure(outcome, route)?.into_reply(exchange.revision());
        };
        if route.is_connect_tool() {
            return Box::pin(account_connection::answer_connect_tool(exchange, upstream)).await;
        }
        let call = countersign_bridge::Call {
            exchange,
            bridge: &runner.bridge,
            upstream,
            item: RequestedItem::Tool(upstream.names.upstream_name(&route.def.name).unwrap_or(&route.def.name)),
            request,
            definition: route.def.raw.as_deref(),
            headers: &route.param_headers,
            is_read_only: route.is_read_only(),
            flags,
        };
        match countersign_bridge::call(call).await {
            Err(error) if error.passthrough.is_none() && is_for_model(&error) => {
                Ok(countersign_bridge::tool_error_reply(&error))
            }
            outcome => outcome,
        }
    }
}

/// Runs a call of a module's tool with valid arguments.
async fn run_module(call: &AdmittedCall<'_>) -> Result<ToolOutcome, McpError> {
    let AdmittedCall { exchange, runner, cancel, request, .. } = *call;
    let route = call.admitted.route();
    let responses = input_responses(exchange, request);
    let questions = route.def.long_running.then(|| ClientQuestions::for_call(exchange, responses)).flatten();
    let (inquirer, mut questions) = questions.unzip();
    let meter = Some(runner.limiter.meter(&exchange.identity.principal));
    let progress_token = request.meta()?.progress_token;
    let context = CallContext { inquirer, meter, ..exchange.call_context(cancel, progress_token) };
    let arguments = arguments_or_empty(request.tool_call()?.arguments)?;
    let work = route.provider.as_provider().call(&route.def.name, arguments, &context);
    let result = if route.def.long_running {
        // The tool may wait for a person, so there is no timeout. The gateway bounds only the number of such calls.
        let _slot = runner.long_requests.slots.take(&exchange.identity.principal.name)?;
        let asking = async {
            match &mut questions {
                Some(questions) => questions.serve().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = work => result?,
            result = asking => return Ok(ToolOutcome::NeedsInput { result, pending: false }),
            () = runner.long_requests.shutdown.cancelled() => {
                return Err(McpError::shutting_down());
            }
            error = runner.long_requests.authenticator.wait_until_invalid(&exchange.identity) => return Err(error),
        }
    } else {
        runner.limits.with_timeout(work).await?
    };
    let failure = result.is_error.then_some(ErrorKind::ToolExecution);
    let fits_output_schema = failure.is_none() || route.allows_structured_error();
    Ok(ToolOutcome::Finished(FinishedCall { result, failure, fits_output_schema, change_id: None }))
}
