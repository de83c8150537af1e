//! Classifies a call once, before policy is asked. The call that policy admits carries the result to its end.

use serde_json::value::RawValue;

use crate::tasks;
use countersign_exchange::context::Exchange;
use countersign_protocol::{Era, outline::OutlinedObject};
use countersign_upstream::Upstream;

/// The properties of a call on which its way depends. Finding them out has no side effects.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallPlan {
    /// The client goes on with a call for which it was asked for input.
    pub is_retry: bool,
    /// The request takes up a parked call or is refused, so no new call is made.
    pub resumes_parked_call: bool,
    /// A client of 2025-11-25 wants the call to be a task.
    pub wants_task: bool,
    /// The upstream can run the call as the task that its client wants.
    pub is_upstream_task: bool,
}

impl CallPlan {
    /// Classifies a request that is no call of a tool.
    #[must_use]
    pub fn new(params: &OutlinedObject<'_>) -> Self {
        let is_retry = params.members().any(|member| matches!(&*member.key, "inputResponses" | "requestState"));
        Self { is_retry, ..Self::default() }
    }

    /// Classifies a call of a tool: of an upstream, with the definition that it wrote, or of a module.
    #[must_use]
    pub fn for_tool(
        exchange: &Exchange,
        params: &OutlinedObject<'_>,
        upstream: Option<(&Upstream, Option<&RawValue>)>,
    ) -> Self {
        let plan = Self { wants_task: tasks::wanted(exchange, params), ..Self::new(params) };
        let Some((upstream, definition)) = upstream else { return plan };
        let is_legacy = || upstream.negotiated().is_some_and(|negotiated| negotiated.revision.era() == Era::Legacy);
        Self {
            resumes_parked_call: plan.is_retry
                && exchange.is_modern()
                && params.member("requestState").is_some()
                && is_legacy(),
            is_upstream_task: plan.wants_task && tasks::runs_there(upstream, definition),
            ..plan
        }
    }
}
