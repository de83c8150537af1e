//! Changes as tasks of the 2026-07-28 extension, with the official Rust SDK: proposed, waited for, read, cancelled, and
//! found again on another connection.

mod gateway;

use std::{borrow::Cow, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use gateway::{Gateway, binary, environment};
use rmcp::{
    ClientHandler, ClientServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, ClientCapabilities, ClientConfig, DetailedTask,
        GetTaskParams, Implementation, ProtocolVersion, TASKS_EXTENSION_ID, TaskPayload, TaskStatus,
    },
    service::{ClientLifecycleMode, RoleClient, RunningService, ServiceError},
    transport::{ConfigureCommandExt as _, StreamableHttpClientTransport, TokioChildProcess},
};
use serde_json::{Value, json};

/// Declares the extension.
struct Handler;

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.extensions = Some([(TASKS_EXTENSION_ID.to_owned(), Default::default())].into());
        ClientConfig::new(capabilities, Implementation::new("rust-sdk-tasks", "3.9.0"))
    }
}

struct Agent(RunningService<RoleClient, Handler>);

impl Agent {
    async fn connect(gateway: &Gateway, stdio: bool) -> Result<Self> {
        let lifecycle = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] };
        if stdio {
            let command = tokio::process::Command::new(binary()).configure(|command| {
                command.args(["stdio", "--data"]).arg(gateway.data()).env_clear().envs(environment());
            });
            return Ok(Self(Handler.serve_with_lifecycle(TokioChildProcess::new(command)?, lifecycle).await?));
        }
        let transport = StreamableHttpClientTransport::from_uri(format!("{}/mcp", gateway.url()));
        Ok(Self(Handler.serve_with_lifecycle(transport, lifecycle).await?))
    }

    async fn call(&self, name: &'static str, arguments: Value) -> Result<CallToolResponse> {
        let mut params = CallToolRequestParams::new(Cow::Borrowed(name));
        params.arguments = arguments.as_object().cloned();
        Ok(self.0.peer().call_tool_once(params).await?)
    }

    /// Proposes a story as a task; returns its id.
    async fn propose(&self, title: &str) -> Result<String> {
        let CallToolResponse::Complete(listed) = self.call("list_projects", json!({})).await? else {
            bail!("a read is answered at once")
        };
        let project = listed.structured_content.context("no structured content")?["projects"][0]["id"].clone();
        let story = json!({"projectId": project, "title": title, "type": "Story"});
        let CallToolResponse::Task(created) = self.call("create_issue", story).await? else { bail!("no task") };
        ensure!(created.task.status == TaskStatus::Working && created.task.ttl_ms.is_none(), "{created:?}");
        Ok(created.task.task_id)
    }

    async fn get(&self, id: &str) -> Result<DetailedTask> {
        Ok(self.0.peer().get_task(GetTaskParams::new(id)).await?.task)
    }

    /// Polls as often as the task asks, until it has ended.
    async fn wait_for_end(&self, id: &str) -> Result<DetailedTask> {
        for _ in 0..200 {
            let task = self.get(id).await?;
            if task.status().is_terminal() {
                return Ok(task);
            }
            let pause = task.task.poll_interval_ms.context("no interval")?.min(200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        bail!("task {id} does not end")
    }
}

async fn journey(stdio: bool) -> Result<()> {
    let gateway = Gateway::start().await?;
    let agent = Agent::connect(&gateway, stdio).await?;

    let id = agent.propose("Applied").await?;
    ensure!(agent.get(&id).await?.payload == TaskPayload::Working, "it waits for a person");
    gateway.decide(&id, "approve", "go ahead").await?;
    let task = agent.wait_for_end(&id).await?;
    let TaskPayload::Completed { result } = &task.payload else { bail!("{task:?}") };
    ensure!(result["structuredContent"]["issue"]["title"] == "Applied", "the tool's own result: {result:?}");
    ensure!(task.task.ttl_ms.is_some(), "now it is known how long it is kept");

    let rejected = agent.propose("Rejected").await?;
    gateway.decide(&rejected, "reject", "use the other project").await?;
    let TaskPayload::Completed { result } = agent.wait_for_end(&rejected).await?.payload else {
        bail!("a tool's own error")
    };
    ensure!(result["isError"] == true, "{result:?}");
    ensure!(result["content"][0]["text"].as_str().is_some_and(|text| text.contains("use the other project")));

    let withdrawn = agent.propose("Withdrawn").await?;
    agent.0.peer().cancel_task(CancelTaskParams::new(withdrawn.as_str())).await?;
    ensure!(agent.wait_for_end(&withdrawn).await?.payload == TaskPayload::Cancelled);
    agent.0.peer().cancel_task(CancelTaskParams::new(id.as_str())).await?;
    ensure!(agent.get(&id).await?.status() == TaskStatus::Completed, "what has run stays so");

    // Another connection finds it again.
    agent.0.cancel().await?;
    let agent = Agent::connect(&gateway, false).await?;
    ensure!(agent.get(&id).await? == task);
    let unknown = agent.get("chg_000000000000000000000000").await.expect_err("no such task");
    let code = match unknown.downcast_ref::<ServiceError>() {
        Some(ServiceError::McpError(data)) => data.code.0,
        other => bail!("{other:?}"),
    };
    ensure!(code == -32602, "{unknown:?}");
    agent.0.cancel().await?;
    Ok(())
}

#[tokio::test]
async fn tasks_over_http() -> Result<()> {
    journey(false).await
}

#[tokio::test]
async fn tasks_over_stdio() -> Result<()> {
    journey(true).await
}
