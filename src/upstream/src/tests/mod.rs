//! Tests of upstreams against fake servers, in simulated time.

mod accounts;
mod cached;
mod calls;
mod execution;
mod lists;
mod pool;
mod registry;
mod subscriptions;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    link::{Connector, LinkKind, Listener, OutgoingRequest, Response},
    server::{Caller, LinkChoice, Upstream},
    testing::{
        RecordingListener,
        fake::{self, FakeServer},
    },
};
use countersign_config::{UpstreamConfig, UpstreamTarget};
use countersign_domain::principal::Principal;
use countersign_protocol::{Era, McpError, negotiate::ClientCapabilities};

fn config(name: &str) -> UpstreamConfig {
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: Default::default(), cwd: None };
    // Questions are disabled, so that no second connection reads the lists. Most tests would have to count it.
    UpstreamConfig { elicitation: false, sampling: false, ..UpstreamConfig::new(name, target) }
}

fn start_with(config: UpstreamConfig, fakes: &[&Arc<FakeServer>]) -> Arc<Upstream> {
    tokio::time::pause();
    let connectors = fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Connector>).collect();
    let upstream = Upstream::new(Arc::new(config), connectors);
    upstream.start();
    upstream
}

/// Starts an upstream, and waits until its lists were read.
async fn start(fake: &Arc<FakeServer>) -> Arc<Upstream> {
    let upstream = start_with(config("fake"), &[fake]);
    upstream.wait_until_settled().await;
    upstream
}

fn legacy() -> Arc<FakeServer> {
    FakeServer::new(Era::Legacy, LinkKind::SingleStream)
}

fn modern() -> Arc<FakeServer> {
    FakeServer::new(Era::Modern, LinkKind::Streams)
}

/// Returns a caller that cannot be asked anything.
fn agent(name: &str) -> Caller {
    Caller {
        principal: Arc::new(Principal { name: name.into(), ..Principal::local_agent() }),
        session: None,
        session_ended: None,
        capabilities: ClientCapabilities::default(),
        is_modern: true,
        log_level: None,
        link_choice: LinkChoice::default(),
    }
}

/// Returns a caller that can be asked to fill in forms.
fn askable(name: &str) -> Caller {
    Caller { capabilities: ClientCapabilities { elicitation_form: true, ..Default::default() }, ..agent(name) }
}

fn in_session(caller: Caller, session: &str) -> Caller {
    let session_ended = Some(CancellationToken::new());
    Caller { session: Some(session.into()), session_ended, is_modern: false, ..caller }
}

fn request(upstream: &Upstream, method: &str) -> OutgoingRequest {
    OutgoingRequest {
        name: Some("echo".into()),
        ..OutgoingRequest::new(
            upstream.next_request_id(),
            method,
            Some(&json!({ "name": "echo", "arguments": {} }).to_string()),
        )
    }
}

async fn call(upstream: &Upstream, caller: &Caller) -> Result<Value, McpError> {
    call_with_listener(upstream, caller, Arc::new(RecordingListener::default())).await
}

async fn call_with_listener(
    upstream: &Upstream,
    caller: &Caller,
    listener: Arc<dyn Listener>,
) -> Result<Value, McpError> {
    match upstream.call(caller, &request(upstream, "tools/call"), listener).await? {
        Response::Result(result) => Ok(serde_json::from_str(result.get()).unwrap()),
        Response::Error(error) => Ok(json!({ "error": error.code })),
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Waits until another thread has met the condition.
pub(crate) async fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the condition was not met in time");
}
