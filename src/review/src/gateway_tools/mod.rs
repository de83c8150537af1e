//! The gateway's own tools, with which an agent follows, awaits and withdraws the changes it proposed, and proposes several
//! calls as a plan.
//!
//! An agent never sees changes of other principals. Nothing here decides on a change. The session carries out `propose_plan`,
//! because only it knows the policy for the calls.

mod calls;
mod plan_view;
mod resources;
mod schema;
#[cfg(test)]
mod tests;
mod text;
mod tools;
mod view;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use plan_view::plan_result;
pub use text::{change_text, edits_note, progress_message, task_status_message};
pub use tools::{PROPOSE_PLAN, PlannedCall, ProposePlanArgs, tool_definitions};
pub use view::{change_output_schema, change_result, change_result_with_hint};

use crate::Changes;
use countersign_domain::changes::Preview;
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    Audience, CallContext, Provider, ProviderEvent, ResourceDef, ResourceTemplateDef, ToolDef, ToolResult,
    text::unknown_tool_error,
};

/// Events buffered for a slow receiver; a receiver that lags further reads the resources again.
const EVENT_CAPACITY: usize = 1024;
/// The delay between attempts to read the feed.
const FEED_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The module with the gateway's tools. Routes call it `gateway`.
pub struct GatewayTools {
    changes: Changes,
    max_wait: Duration,
    /// Returns the number of providers, for `countersign://gateway`.
    count_providers: Box<dyn Fn() -> usize + Send + Sync>,
    events: broadcast::Sender<ProviderEvent>,
    /// Cancels the task that forwards the feed when dropped.
    _feed_task: DropGuard,
}

impl GatewayTools {
    /// Starts to forward the feed. Call it within a tokio runtime that outlives the module: the task runs there until the
    /// feed is closed or the module is dropped.
    pub fn new(
        changes: Changes,
        max_wait: Duration,
        count_providers: impl Fn() -> usize + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (events, _) = broadcast::channel(EVENT_CAPACITY);
        let stop = CancellationToken::new();
        let feed = changes.feed().clone();
        // The head is read here, because the task may start only after the next change.
        let forwarding = forward_feed(feed.head(), feed, events.clone());
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(forwarding).await });
        Arc::new(Self {
            changes,
            max_wait,
            count_providers: Box::new(count_providers),
            events,
            _feed_task: stop.drop_guard(),
        })
    }
}

/// Forwards every change event after number `since` as a resource update.
async fn forward_feed(mut since: u64, feed: Feed, events: broadcast::Sender<ProviderEvent>) {
    while let Some(mut subscription) = feed.subscribe(Some(since)) {
        while let Some(event) = subscription.next().await {
            let Some(change) = &event.change else { continue };
            let audience =
                |viewers| Audience { principal: change.proposer.principal.clone(), include_viewers: viewers };
            // A change is visible to its proposer and to viewers; the list of own changes differs for each principal.
            let updated = vec![
                (resources::change_uri(&change.id), audience(true)),
                (resources::OPEN_CHANGES_URI.to_owned(), audience(false)),
            ];
            // An error only means that there is no receiver.
            let _ = events.send(ProviderEvent::PrivateResourcesUpdated(updated));
        }
        since = subscription.position();
        // The feed is closed or the store could not be read; the next subscription shows which.
        tokio::time::sleep(FEED_RETRY_DELAY).await;
    }
}

#[async_trait]
impl Provider for GatewayTools {
    fn name(&self) -> &str {
        "gateway"
    }

    fn tools(&self) -> Vec<ToolDef> {
        tool_definitions(self.max_wait)
    }

    async fn resources(&self, _: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        Ok(resources::list())
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        resources::templates()
    }

    fn uri_prefixes(&self) -> Vec<String> {
        vec![resources::CHANGE_SCHEME.to_owned(), resources::GATEWAY_SCHEME.to_owned()]
    }

    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        match tool {
            "get_change" => self.get_change(arguments, ctx).await,
            "list_changes" => self.list_changes(arguments, ctx).await,
            "wait_for_change" => self.wait_for_change(arguments, ctx).await,
            "withdraw_change" => self.withdraw_change(arguments, ctx).await,
            PROPOSE_PLAN => Err(McpError::new(
                ErrorKind::InvalidRequest,
                "A plan cannot be proposed here; the session that receives the call does it.",
            )),
            _ => Err(unknown_tool_error("The gateway", tool)),
        }
    }

    /// Fails: these tools are never reviewed, so they have no preview.
    async fn preview(&self, _: &str, _: &RawValue, _: &CallContext) -> Result<Preview, McpError> {
        let message = "This tool is never reviewed and has no preview";
        Err(McpError::new(ErrorKind::Internal, message))
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }
}
