//! Drives the real gateway with the official Rust SDK: both eras over HTTP and stdio, from the first list to an
//! approved and a rejected change.

mod gateway;

use std::{borrow::Cow, sync::Mutex, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::{Gateway, binary, environment};
use rmcp::{
    ClientHandler, ClientServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResult, ClientConfig, GetPromptRequestParams, Implementation, ProtocolVersion,
        ReadResourceRequestParams, ResourceUpdatedNotificationParam, ServerNotification, SubscribeRequestParams,
        SubscriptionFilter, UnsubscribeRequestParams,
    },
    service::{ClientLifecycleMode, NotificationContext, Peer, RoleClient, RunningService, ServiceError},
    transport::{ConfigureCommandExt as _, StreamableHttpClientTransport, TokioChildProcess},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const NAME: &str = "rust-sdk";

/// Forwards the URIs of updated resources.
struct Handler {
    updated: Mutex<mpsc::UnboundedSender<String>>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(Default::default(), Implementation::new(NAME, "3.9.0"))
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        let _ = self.updated.lock().expect("lock").send(params.uri);
    }
}

/// A connected client with the updates that it receives outside of listen streams.
struct Agent {
    running: RunningService<RoleClient, Handler>,
    updated: mpsc::UnboundedReceiver<String>,
    modern: bool,
}

impl Agent {
    async fn connect(gateway: &Gateway, stdio: bool, lifecycle: ClientLifecycleMode) -> Result<Self> {
        let (sender, updated) = mpsc::unbounded_channel();
        let handler = Handler { updated: Mutex::new(sender) };
        let modern = lifecycle != ClientLifecycleMode::Initialize;
        let running = if stdio {
            let command = tokio::process::Command::new(binary()).configure(|command| {
                command.args(["stdio", "--data"]).arg(gateway.data()).env_clear().envs(environment());
            });
            handler.serve_with_lifecycle(TokioChildProcess::new(command)?, lifecycle).await?
        } else {
            let transport = StreamableHttpClientTransport::from_uri(format!("{}/mcp", gateway.url()));
            handler.serve_with_lifecycle(transport, lifecycle).await?
        };
        Ok(Self { running, updated, modern })
    }

    fn peer(&self) -> &Peer<RoleClient> {
        self.running.peer()
    }

    async fn call(&self, name: &'static str, arguments: Value) -> Result<CallToolResult> {
        let mut params = CallToolRequestParams::new(Cow::Borrowed(name));
        params.arguments = arguments.as_object().cloned();
        Ok(self.peer().call_tool(params).await?)
    }

    async fn structured(&self, name: &'static str, arguments: Value) -> Result<Value> {
        let result = self.call(name, arguments).await?;
        ensure!(result.is_error != Some(true), "{name}: {}", text(&result));
        result.structured_content.context("no structured content")
    }

    async fn project(&self) -> Result<String> {
        let projects = self.structured("list_projects", json!({})).await?;
        Ok(projects["projects"][0]["id"].as_str().context("no project")?.to_owned())
    }

    async fn propose(&self, project: &str, title: &str) -> Result<String> {
        let change =
            self.structured("create_issue", json!({"projectId": project, "title": title, "type": "Story"})).await?;
        ensure!(change["status"] == "pending", "{change}");
        Ok(change["changeId"].as_str().context("no id")?.to_owned())
    }

    async fn has_issue(&self, project: &str, title: &str) -> Result<bool> {
        let issues = self.structured("list_issues", json!({"projectId": project})).await?;
        Ok(issues["issues"].as_array().context("no issues")?.iter().any(|issue| issue["title"] == title))
    }

    /// Waits for the final state of a change; returns it with the text about it.
    async fn wait_for_final_state(&self, change: &str) -> Result<(String, String)> {
        for _ in 0..20 {
            let result = self.call("wait_for_change", json!({"changeId": change})).await?;
            let state = result.structured_content.as_ref().context("no structured content")?["status"].clone();
            if ["applied", "failed", "rejected", "expired", "withdrawn"].iter().any(|last| state == *last) {
                return Ok((state.as_str().unwrap_or_default().to_owned(), text(&result)));
            }
        }
        bail!("change {change} does not settle")
    }
}

fn text(result: &CallToolResult) -> String {
    result.content.iter().filter_map(|block| block.as_text()).map(|block| block.text.as_str()).collect()
}

fn code_of(error: &anyhow::Error) -> Option<i32> {
    match error.downcast_ref::<ServiceError>()? {
        ServiceError::McpError(data) => Some(data.code.0),
        _ => None,
    }
}

#[expect(deprecated, reason = "the handshake revisions have no listen stream")]
async fn subscribe_and_hear(agent: &mut Agent, gateway: &Gateway, change: &str, uri: &str) -> Result<()> {
    agent.peer().subscribe(SubscribeRequestParams::new(uri)).await?;
    gateway.decide(change, "approve", "go ahead").await?;
    let updated_uri = tokio::time::timeout(Duration::from_secs(60), agent.updated.recv()).await?;
    ensure!(updated_uri.as_deref() == Some(uri), "{updated_uri:?}");
    agent.peer().unsubscribe(UnsubscribeRequestParams::new(uri)).await?;
    Ok(())
}

async fn journey(agent: &mut Agent, gateway: &Gateway, label: &str) -> Result<()> {
    let info = agent.peer().peer_info().context("no peer info")?;
    ensure!(info.server_info.as_ref().is_some_and(|server| server.name == "countersign"), "{info:?}");

    let tools = agent.peer().list_all_tools().await?;
    for name in ["create_issue", "list_projects", "wait_for_change", "withdraw_change"] {
        let tool = tools.iter().find(|tool| tool.name == name).with_context(|| format!("{name} is not listed"))?;
        ensure!(tool.output_schema.is_some() && tool.description.is_some(), "{tool:?}");
    }

    let project = agent.project().await?;
    let title = format!("Approved through {label}");
    let change = agent.propose(&project, &title).await?;
    ensure!(!agent.has_issue(&project, &title).await?, "nothing is created yet");
    let uri = format!("change://{change}");

    if agent.modern {
        let filter = SubscriptionFilter::builder().resource_subscriptions([uri.clone()]).build();
        let mut subscription = agent.peer().listen(filter).await?;
        ensure!(subscription.acknowledged().resource_subscriptions.as_deref() == Some(&[uri.clone()][..]));
        gateway.decide(&change, "approve", "go ahead").await?;
        let heard = tokio::time::timeout(Duration::from_secs(60), subscription.next()).await??;
        ensure!(
            matches!(&heard, Some(ServerNotification::ResourceUpdatedNotification(n)) if n.params.uri == uri),
            "{heard:?}"
        );
        subscription.cancel().await?;
    } else {
        subscribe_and_hear(agent, gateway, &change, &uri).await?;
    }
    let (state, about) = agent.wait_for_final_state(&change).await?;
    ensure!(state == "applied", "{about}");
    ensure!(agent.has_issue(&project, &title).await?, "the issue exists");
    let read = agent.peer().read_resource(ReadResourceRequestParams::new(uri)).await?;
    ensure!(serde_json::to_string(&read)?.contains("applied"), "{read:?}");

    let rejected = agent.propose(&project, &format!("Rejected through {label}")).await?;
    gateway.decide(&rejected, "reject", "not like this").await?;
    let (state, about) = agent.wait_for_final_state(&rejected).await?;
    ensure!(state == "rejected" && about.contains("not like this"), "{about}");

    let prompts = agent.peer().list_all_prompts().await?;
    ensure!(prompts.iter().any(|prompt| prompt.name == "capture"), "{prompts:?}");
    let mut params = GetPromptRequestParams::new("capture");
    params.arguments = json!({"type": "problem"}).as_object().cloned();
    ensure!(!agent.peer().get_prompt(params).await?.messages.is_empty());

    let unknown = agent.call("no_such_tool", json!({})).await.expect_err("an unknown tool must be refused");
    ensure!(code_of(&unknown) == Some(-32602), "{unknown:?}");

    // Dropping the future cancels the wait; the connection stays open.
    let abandoned = agent.propose(&project, &format!("Abandoned through {label}")).await?;
    let wait = agent.call("wait_for_change", json!({"changeId": abandoned}));
    ensure!(tokio::time::timeout(Duration::from_millis(300), wait).await.is_err(), "it waits");
    let withdrawn = agent.structured("withdraw_change", json!({"changeId": abandoned})).await?;
    ensure!(withdrawn["status"] == "withdrawn", "{withdrawn}");
    Ok(())
}

async fn run(stdio: bool, lifecycle: ClientLifecycleMode, label: &str) -> Result<()> {
    let gateway = Gateway::start().await?;
    let mut agent = Agent::connect(&gateway, stdio, lifecycle).await?;
    journey(&mut agent, &gateway, label).await?;
    agent.running.cancel().await?;
    Ok(())
}

fn modern() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

#[tokio::test]
async fn handshake_over_http() -> Result<()> {
    run(false, ClientLifecycleMode::Initialize, "the handshake over HTTP").await
}

#[tokio::test]
async fn handshake_over_stdio() -> Result<()> {
    run(true, ClientLifecycleMode::Initialize, "the handshake over stdio").await
}

#[tokio::test]
async fn discover_over_http() -> Result<()> {
    run(false, modern(), "discover over HTTP").await
}

#[tokio::test]
async fn discover_over_stdio() -> Result<()> {
    run(true, modern(), "discover over stdio").await
}

/// The SDK sends its newest revision, 2026-07-28, in `handshake_revision`; the answer has the newest handshake revision.
#[tokio::test]
async fn initialize_is_answered_with_a_handshake_revision() -> Result<()> {
    let gateway = Gateway::start().await?;
    let agent = Agent::connect(&gateway, false, ClientLifecycleMode::Initialize).await?;
    let info = agent.peer().peer_info().context("no peer info")?;
    ensure!(info.protocol_version == ProtocolVersion::V_2025_11_25, "{info:?}");
    agent.running.cancel().await?;
    Ok(())
}

/// `Auto` probes with `server/discover` and stays in the modern era.
#[tokio::test]
async fn auto_detects_the_modern_era() -> Result<()> {
    let gateway = Gateway::start().await?;
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::V_2025_11_25),
    };
    let agent = Agent::connect(&gateway, true, lifecycle).await?;
    let info = agent.peer().peer_info().context("no peer info")?;
    ensure!(info.protocol_version == ProtocolVersion::V_2026_07_28, "{info:?}");
    agent.running.cancel().await?;
    Ok(())
}
