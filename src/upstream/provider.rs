//! An upstream as a provider: its lists for the router, its tools for the Executor.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, value::RawValue};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{actor::Execute, preview, server::Upstream};
use crate::{
    changes::Preview,
    lanes::{LARGE, aside},
    protocol::{ErrorKind, McpError},
    providers::{
        CallContext, Completion, CompletionRef, PromptDef, PromptResult, Provider, ProviderEvent, ResourceDef,
        ResourceTemplateDef, ResourceText, ToolDef, ToolResult,
    },
};

/// An [`Upstream`] among the providers.
pub struct UpstreamProvider(pub Arc<Upstream>);

impl UpstreamProvider {
    fn tool(&self, name: &str) -> Result<ToolDef, McpError> {
        let offered = self.0.offered.load();
        offered.tools.iter().find(|def| def.name == name).cloned().ok_or_else(|| {
            let shown: String = name.chars().take(128).collect();
            let away = !matches!(self.0.phase(), super::server::Phase::Up);
            if away {
                // It may well have the tool.
                return McpError::new(ErrorKind::UpstreamUnavailable, format!("{} is not connected", self.name()))
                    .with("outcome", "not_applied");
            }
            McpError::new(ErrorKind::ToolNotFound, format!("{} has no tool {shown}", self.name())).with("tool", shown)
        })
    }

    /// Clients reach these by way of [`crate::bridge`].
    fn not_here<T>(&self) -> Result<T, McpError> {
        Err(McpError::new(ErrorKind::Internal, format!("{} is an upstream server", self.name())))
    }
}

impl Provider for UpstreamProvider {
    fn name(&self) -> &str {
        &self.0.config.name
    }

    fn tools(&self) -> Vec<ToolDef> {
        self.0.offered.load().tools.clone()
    }

    fn resources<'a>(&'a self, _: &'a CallContext) -> BoxFuture<'a, Result<Vec<ResourceDef>, McpError>> {
        self.0.refresh_if_stale();
        Box::pin(std::future::ready(Ok(self.0.offered.load().resources.clone())))
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        self.0.offered.load().templates.clone()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        self.0.offered.load().prompts.clone()
    }

    /// Where its URIs have a scheme of their own, that one; else those of what it lists.
    fn uri_schemes(&self) -> Vec<String> {
        let scheme = self.0.names.scheme();
        if !scheme.is_empty() {
            return vec![scheme.to_owned()];
        }
        Vec::new()
    }

    fn call<'a>(
        &'a self,
        tool: &'a str,
        arguments: &'a RawValue,
        ctx: &'a CallContext,
    ) -> BoxFuture<'a, Result<ToolResult, McpError>> {
        Box::pin(async move {
            let gone = || {
                McpError::new(ErrorKind::UpstreamUnavailable, format!("{} is being closed", self.name()))
                    .with("outcome", "not_applied")
            };
            let actor = self.0.actor.get().ok_or_else(gone)?;
            let dropped = CancellationToken::new();
            let _dropped = dropped.clone().drop_guard();
            let execute = Execute { tool: tool.into(), arguments: arguments.to_owned(), context: ctx.clone(), dropped };
            // A mailbox that is closed has not taken it; one that closes later leaves the outcome open.
            match actor.send(execute).await {
                Ok(result) => result,
                Err(actix::MailboxError::Closed) if self.0.stop.is_cancelled() => {
                    Err(McpError::new(ErrorKind::UpstreamUnavailable, format!("{} was closed meanwhile", self.name()))
                        .with("outcome", "unknown"))
                }
                Err(_) => Err(gone().with("outcome", "unknown")),
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
        let own = self.0.names.own(tool).unwrap_or(tool);
        if arguments.get().len() <= LARGE {
            return Box::pin(std::future::ready(def.and_then(|def| preview::of(self.name(), own, &def, arguments))));
        }
        let (name, own, arguments) = (self.name().to_owned(), own.to_owned(), arguments.to_owned());
        Box::pin(async move {
            let def = def?;
            aside(arguments.get().len(), move || preview::of(&name, &own, &def, &arguments)).await?
        })
    }

    fn read_resource<'a>(
        &'a self,
        _: &'a str,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Vec<ResourceText>, McpError>> {
        Box::pin(std::future::ready(self.not_here()))
    }

    fn get_prompt<'a>(
        &'a self,
        _: &'a str,
        _: &'a Map<String, Value>,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<PromptResult, McpError>> {
        Box::pin(std::future::ready(self.not_here()))
    }

    fn complete<'a>(
        &'a self,
        _: &'a CompletionRef,
        _: (&'a str, &'a str),
        _: &'a Map<String, Value>,
        _: &'a CallContext,
    ) -> BoxFuture<'a, Result<Completion, McpError>> {
        Box::pin(std::future::ready(self.not_here()))
    }

    fn events(&self) -> broadcast::Receiver<ProviderEvent> {
        self.0.events.subscribe()
    }

    fn upstream(&self) -> Option<&Arc<Upstream>> {
        Some(&self.0)
    }

    fn available(&self) -> Result<(), McpError> {
        match self.0.phase() {
            super::server::Phase::Up => Ok(()),
            _ => Err(McpError::new(ErrorKind::UpstreamUnavailable, format!("{} is not connected", self.name()))
                .with("provider", self.name())),
        }
    }
}
