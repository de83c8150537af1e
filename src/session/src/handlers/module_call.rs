//! Runs admitted calls of modules within their limits.

use super::{
    client_questions::ClientQuestions,
    reviewed::finished_call::FinishedCall,
    tool_call::{ToolOutcome, arguments_or_empty, input_responses},
    tools::ProviderCall,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::CallContext;

/// Runs a call of a module's tool with valid arguments.
pub(super) async fn run_module(call: &ProviderCall<'_>) -> Result<ToolOutcome, McpError> {
    let ProviderCall { exchange, runner, cancel, request, .. } = *call;
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
    Ok(ToolOutcome::Finished(FinishedCall { result, failure, fits_output_schema }, None))
}
