//! Classifies a call once, before the policy is asked. The admitted call keeps its classification to its end.

use serde_json::value::RawValue;

use crate::tasks;
use countersign_exchange::context::Exchange;
use countersign_protocol::{Era, outline::OutlinedObject};
use countersign_upstream::Upstream;

/// The properties of a call that determine how it is handled. Finding them out has no side effects.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallPlan {
    /// `true` if the client continues a call for which it was asked for input.
    pub is_retry: bool,
    /// `true` if the request resumes a parked call or is refused, so that no new call is made.
    pub resumes_parked_call: bool,
    /// `true` if a client of 2025-11-25 requests the call as a task.
    pub wants_task: bool,
    /// `true` if the upstream can run the call as the requested task.
    pub is_upstream_task: bool,
}

impl CallPlan {
    /// Classifies a request that is no tool call.
    #[must_use]
    pub fn new(params: &OutlinedObject<'_>) -> Self {
        let is_retry = params.members().any(|member| matches!(&*member.key, "inputResponses" | "requestState"));
        Self { is_retry, ..Self::default() }
    }

    /// Classifies a tool call. `upstream` is `None` for a module; otherwise it includes the tool's definition.
    #[must_use]
    pub fn for_tool(
        exchange: &Exchange,
        params: &OutlinedObject<'_>,
        upstream: Option<(&Upstream, Option<&RawValue>)>,
    ) -> Self {
        let plan = Self { wants_task: tasks::is_requested(exchange, params), ..Self::new(params) };
        let Some((upstream, definition)) = upstream else { return plan };
        let is_legacy = || upstream.negotiated().is_some_and(|negotiated| negotiated.revision.era() == Era::Legacy);
        Self {
            resumes_parked_call: plan.is_retry
                && exchange.is_modern()
                && params.member("requestState").is_some()
                && is_legacy(),
            is_upstream_task: plan.wants_task && tasks::can_run_as_task(upstream, definition),
            ..plan
        }
    }
}
