//! The provider of an upstream: its lists for the router, and its tools for the Executor.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::{
    calls::actor::Execute,
    server::{Phase, Upstream},
};
use countersign_config::Serialization;
use countersign_domain::{
    changes::{Preview, ServerIdentity},
    recipes::Recipe,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, PromptDef, Provider, ProviderEvent, ResourceDef, ResourceTemplateDef, ToolDef, ToolResult,
    previews::arguments as preview,
};
use countersign_runtime::large_messages::offload;

impl Upstream {
    fn unavailable(&self, why: &str) -> McpError {
        McpError::new(ErrorKind::UpstreamUnavailable, format!("{} {why}", self.name()))
    }

    fn tool(&self, name: &str) -> Result<ToolDef, McpError> {
        let definitions = self.definitions.load();
        definitions.tools.iter().find(|def| def.name == name).cloned().ok_or_else(|| {
            let short_name: String = name.chars().take(128).collect();
            let is_disconnected = !matches!(self.phase(), Phase::Up);
            if is_disconnected {
                // The tool may exist, because the lists of a disconnected upstream may be incomplete.
                return self.unavailable("is not connected").with("outcome", "not_applied");
            }
            McpError::new(ErrorKind::ToolNotFound, format!("{} has no tool {short_name}", self.name()))
                .with("tool", short_name)
        })
    }
}

impl Provider for Upstream {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn tools(&self) -> Vec<ToolDef> {
        self.definitions.load().tools.clone()
    }

    fn resources<'a>(&'a self, _: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        self.refresh_if_stale();
        Box::pin(std::future::ready(Ok(self.definitions.load().resources.clone())))
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        self.definitions.load().templates.clone()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        self.definitions.load().prompts.clone()
    }

    /// Returns the upstream's own URI scheme, if it has one.
    fn uri_schemes(&self) -> Vec<String> {
        Some(self.names.scheme()).filter(|scheme| !scheme.is_empty()).map(str::to_owned).into_iter().collect()
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(async move {
            let closed_error = |outcome: &str| self.unavailable("is being closed").with("outcome", outcome);
            let actor = self.actor.get().ok_or_else(|| closed_error("not_applied"))?;
            let dropped = CancellationToken::new();
            let _dropped = dropped.clone().drop_guard();
            let execute = Execute { tool: tool.into(), arguments: arguments.to_owned(), context: ctx.clone(), dropped };
            // A closed mailbox has not accepted the message; if it closes later, the outcome is unknown.
            match actor.send(execute).await {
                Ok(result) => result,
                Err(actix::MailboxError::Closed) if self.stop.is_cancelled() => {
                    Err(self.unavailable("was closed meanwhile").with("outcome", "unknown"))
                }
                Err(_) => Err(closed_error("unknown")),
            }
        })
    }

    fn preview<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Preview, McpError>> {
        let def = self.tool(tool);
        let own = self.names.own_name(tool).unwrap_or(tool);
        let locks_by_tool = self.config.serialize == Serialization::Tool;
        let with_lock_key = move |mut preview: Preview| {
            if locks_by_tool {
                preview.target.lock_key.clone_from(&preview.target.label);
            }
            preview
        };
        let (name, own, arguments) = (self.name().to_owned(), own.to_owned(), arguments.to_owned());
        Box::pin(async move {
            let def = def?;
            offload(arguments.get().len(), move || {
                preview::preview_arguments(&name, &own, &def, &arguments).map(with_lock_key)
            })
            .await?
        })
    }

    fn call_timeout(&self, tool: &str) -> Option<Duration> {
        Some(self.timeouts.for_call("tools/call", Some(self.names.own_name(tool).unwrap_or(tool))))
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.events.subscribe()
    }

    fn is_module(&self) -> bool {
        false
    }

    fn target_fingerprint(&self) -> &str {
        &self.target
    }

    fn served_by(&self) -> ServerIdentity {
        ServerIdentity { fingerprint: self.target.clone(), label: self.config.label.clone() }
    }

    fn instructions(&self) -> Option<String> {
        if !self.config.instructions {
            return None;
        }
        self.negotiated()?.instructions.clone()
    }

    fn trust_annotations(&self) -> bool {
        self.config.trust_annotations
    }

    fn recipe(&self, tool: &str) -> Option<&Recipe> {
        self.config.previews.get(self.names.own_name(tool).unwrap_or(tool))
    }

    fn exposed_name(&self, own: &str) -> String {
        self.names.expose(own).into_owned()
    }

    fn check_available(&self) -> Result<(), McpError> {
        match self.phase() {
            Phase::Up => Ok(()),
            _ => Err(self.unavailable("is not connected").with("provider", self.name())),
        }
    }
}
