//! The provider of an upstream: its lists for the router, and its tools for the Executor.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::sync::broadcast;

use crate::{
    calls::execute::execute_change,
    server::{CONNECT_TOOL, Upstream, accounts::PersonalUpstreams},
};
use countersign_config::Serialization;
use countersign_domain::{
    changes::{Preview, ServerIdentity},
    policy::known_reads::KnownReads,
    principal::Principal,
    recipes::Recipe,
    text::truncate,
};
use countersign_protocol::{ErrorKind, McpError, annotations::ToolAnnotations};
use countersign_provider::{
    CallContext, PromptDef, Provider, ProviderEvent, ResourceDef, ResourceTemplateDef, ToolDef, ToolResult,
    previews::arguments as preview,
};
use countersign_runtime::large_messages::offload;

impl Upstream {
    fn unavailable_error(&self, reason: &str) -> McpError {
        McpError::new(ErrorKind::UpstreamUnavailable, format!("{} {reason}", self.name()))
    }

    /// Returns the only tool of a server whose account nobody has connected.
    fn connect_tool(&self) -> ToolDef {
        let name = self.name();
        ToolDef {
            name: self.names.expose(CONNECT_TOOL).into_owned(),
            title: format!("Connect {name}"),
            description: format!(
                "Connects the server {name}, whose tools are not known yet, because it requires an account and nobody has \
                 connected one. Returns a link that a person opens in a browser to sign in and to consent. The tools of {name} \
                 are listed after that. Changes nothing by itself."
            ),
            input_schema: serde_json::json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            output_schema: None,
            annotations: ToolAnnotations {
                read_only_hint: true,
                destructive_hint: false,
                idempotent_hint: true,
                open_world_hint: false,
            },
            self_service: true,
            long_running: false,
            read_only_when: None,
            raw: None,
        }
    }

    fn find_tool(&self, name: &str) -> Result<ToolDef, McpError> {
        let definitions = self.definitions.load();
        definitions.tools.iter().find(|def| def.name == name).cloned().ok_or_else(|| {
            let short_name = truncate(name, 128);
            if !self.is_up() {
                // The tool may exist, because the lists of a disconnected upstream may be incomplete.
                return self.unavailable_error("is not connected").with("outcome", "not_applied");
            }
            McpError::new(ErrorKind::ToolNotFound, format!("{} has no tool {short_name}", self.name()))
                .with("tool", short_name)
        })
    }
}

#[async_trait]
impl Provider for Upstream {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn tools(&self) -> Vec<ToolDef> {
        if self.needs_consent() {
            return vec![self.connect_tool()];
        }
        self.definitions.load().tools.clone()
    }

    async fn resources(&self, ctx: &CallContext) -> Result<Vec<ResourceDef>, McpError> {
        self.refresh_if_stale();
        let personal = self.find_open_upstream(&ctx.principal);
        let definitions = personal.as_deref().unwrap_or(self).definitions.load();
        Ok(definitions.resources.clone())
    }

    fn resource_templates(&self) -> Vec<ResourceTemplateDef> {
        self.definitions.load().templates.clone()
    }

    fn prompts(&self) -> Vec<PromptDef> {
        self.definitions.load().prompts.clone()
    }

    /// Returns the additional URI scheme of the upstream, if it has one.
    fn uri_prefixes(&self) -> Vec<String> {
        Some(self.names.uri_prefix()).filter(|prefix| !prefix.is_empty()).map(str::to_owned).into_iter().collect()
    }

    async fn call(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<ToolResult, McpError> {
        let closed_error = |outcome: &str| self.unavailable_error("is being closed").with("outcome", outcome);
        let upstream = self.weak_self.upgrade().ok_or_else(|| closed_error("not_applied"))?;
        let upstream = upstream.for_principal(&ctx.principal).await?;
        upstream.thread.get().ok_or_else(|| closed_error("not_applied"))?;
        // The call is also cancelled if its result is no longer awaited here.
        let cancel = ctx.cancel.child_token();
        let _cancel_on_drop = cancel.clone().drop_guard();
        let context = CallContext { cancel, ..ctx.clone() };
        let (target, tool, arguments) = (Arc::clone(&upstream), tool.to_owned(), arguments.to_owned());
        // The thread may have ended before or after the call was sent, so the outcome is unknown then.
        match upstream.run_on_thread(move || execute_change(target, tool, arguments, context)).await {
            Some(result) => result,
            None if upstream.stop.is_cancelled() => {
                Err(self.unavailable_error("was closed meanwhile").with("outcome", "unknown"))
            }
            None => Err(closed_error("unknown")),
        }
    }

    async fn preview(&self, tool: &str, arguments: &RawValue, ctx: &CallContext) -> Result<Preview, McpError> {
        let def = self.find_tool(tool)?;
        // Nobody is asked about a call that can never be sent.
        let personal = self.find_open_upstream(&ctx.principal);
        let upstream = personal.as_deref().unwrap_or(self);
        upstream.param_headers(upstream.era(), Some(&def), arguments)?;
        let upstream_name = self.names.upstream_name(tool).unwrap_or(tool);
        let locks_by_tool = self.config.serialize == Serialization::Tool;
        let with_lock_key = move |mut preview: Preview| {
            if locks_by_tool {
                preview.target.lock_key.clone_from(&preview.target.label);
            }
            preview
        };
        let (name, upstream_name) = (self.name().to_owned(), upstream_name.to_owned());
        let arguments = arguments.to_owned();
        offload(arguments.get().len(), move || {
            with_lock_key(preview::preview_arguments(&name, &upstream_name, &def, &arguments))
        })
        .await
    }

    async fn has_definition(&self, tool: &str, hash: &str) -> Result<bool, McpError> {
        // Where persons use accounts of their own, the tools are offered as one of the accounts lists them.
        let list_source = self.personal_upstreams().and_then(PersonalUpstreams::find_list_source);
        let upstream = list_source.as_deref().unwrap_or(self);
        if upstream.is_up() {
            upstream.reread_tools(self.reread_limit()).await;
        }
        // Checked first, so that the definitions are at least as new.
        if !upstream.has_current_tools() {
            let error = self.unavailable_error("has ended its session or process, and its tools were not read since");
            return Err(error.with("provider", self.name()));
        }
        let definitions = upstream.definitions.load_full();
        Ok(definitions.tools.iter().any(|def| def.name == tool && def.definition_hash() == hash))
    }

    fn call_timeout(&self, tool: &str) -> Option<Duration> {
        Some(self.timeouts.for_call("tools/call", Some(self.names.upstream_name(tool).unwrap_or(tool))))
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

    fn server_identity(&self) -> ServerIdentity {
        ServerIdentity { fingerprint: self.target.clone(), label: self.config.label.clone() }
    }

    fn instructions(&self) -> Option<String> {
        if !self.config.instructions {
            return None;
        }
        self.negotiated()?.instructions.clone()
    }

    fn has_trusted_annotations(&self) -> bool {
        self.config.trust_annotations
    }

    fn known_reads(&self) -> Option<&KnownReads> {
        self.config.known_reads()
    }

    fn recipe(&self, tool: &str) -> Option<&Recipe> {
        self.config.previews.get(self.names.upstream_name(tool).unwrap_or(tool))
    }

    fn exposed_name(&self, upstream_name: &str) -> String {
        self.names.expose(upstream_name).into_owned()
    }

    async fn check_available(&self, principal: &Principal) -> Result<(), McpError> {
        let not_connected_error = || self.unavailable_error("is not connected").with("provider", self.name());
        let upstream = self.weak_self.upgrade().ok_or_else(not_connected_error)?;
        let upstream = upstream.for_principal(principal).await?;
        upstream.prepare_account().await?;
        if !upstream.is_up() {
            return Err(not_connected_error());
        }
        // Right before a change is sent, they would have to be read, and the change would fail if that is impossible.
        if !upstream.has_current_tools() {
            upstream.reread_tools(self.reread_limit()).await;
        }
        if !upstream.has_current_tools() {
            return Err(self.unavailable_error("does not list its tools").with("provider", self.name()));
        }
        Ok(())
    }
}
