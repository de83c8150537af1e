//! The first steps of a new gateway: connect an agent, add a server, and decide on a change.
//!
//! The test change is an ordinary change, proposed by an agent that only the gateway acts as, so that the reviewer who asked
//! for it may approve it.

use std::{sync::Arc, time::Duration};

use actix_web::{HttpResponse, web};
use serde::Serialize;
use serde_json::{Value, json, value::RawValue};
use utoipa::ToSchema;

use super::{
    Caller, Problem, ServerSource, SessionSource, json_response, keys, offload_json_response, previews::limit_time,
};
use countersign_auth::keys::TEST_AGENT;
use countersign_domain::{
    changes::{Change, ChangeState, Proposer},
    policy::Verdict,
    principal::Role,
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::{
    CallContext, ProviderDirectory as _,
    previews::{self, PreviewRequest},
};
use countersign_reload::Reloader;
use countersign_review::{ChangeFilter, Changes, Proposal};
use countersign_routing::RouteDirectory;
use countersign_rulings::standing_rules::StandingRuleService;
use countersign_session::handlers::reviewed::PreviewedCall;

/// The module of the test change.
const TRACKER: &str = "tracker";
/// The number of the newest changes among which an agent's change, or a decided one, is looked for.
const INSPECTED_CHANGES: usize = 10;

/// The command with which agents of this machine connect to this gateway.
#[derive(Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentCommand {
    /// The path of the program on the gateway's machine, or the package runner that it was started with.
    pub program: String,
    pub arguments: Vec<String>,
    /// `true` if agents need a key.
    pub needs_key: bool,
}

/// The first steps, and the command with which agents connect.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct FirstSteps {
    #[serde(flatten)]
    command: AgentCommand,
    /// `true` if the caller may create keys of agents.
    may_create_agent_keys: bool,
    /// `true` if an agent is connected or has proposed a change.
    agent_seen: bool,
    /// `true` if a server is configured.
    server_added: bool,
    /// `true` if the gateway can propose a test change.
    can_propose_test_change: bool,
    /// `true` if somebody has decided on a change.
    change_decided: bool,
}

/// Returns which of the first steps are done, and how agents connect.
#[utoipa::path(get, path = "/api/first-steps", operation_id = "getFirstSteps", responses(
    (status = 200, description = "The first steps", body = FirstSteps)))]
pub async fn get(
    caller: Caller,
    command: web::Data<AgentCommand>,
    sessions: web::Data<dyn SessionSource>,
    servers: web::Data<dyn ServerSource>,
    standing_rules: web::Data<StandingRuleService>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let newest = changes.list(ChangeFilter::default(), INSPECTED_CHANGES, None).await?.items;
    let is_from_agent = |change: &Arc<Change>| change.proposer.principal != TEST_AGENT;
    let states = ChangeState::VARIANTS.iter().copied().filter(|state| can_be_decided(*state)).collect();
    let decided = ChangeFilter { states, ..ChangeFilter::default() };
    let decided = changes.list(decided, INSPECTED_CHANGES, None).await?.items;
    let directory = RouteDirectory(Arc::clone(standing_rules.routes()));
    Ok(json_response(&FirstSteps {
        command: AgentCommand::clone(&command),
        may_create_agent_keys: keys::manageable_roles(&caller).contains(&Role::Agent),
        agent_seen: !sessions.list_sessions().is_empty() || newest.iter().any(is_from_agent),
        server_added: servers.list_servers().await.iter().any(|server| server.kind == "upstream"),
        can_propose_test_change: directory.tool_hash(TRACKER, "create_issue").is_some(),
        change_decided: decided.iter().any(|change| !change.decisions.is_empty()),
    }))
}

/// Returns `true` if somebody may have decided on changes in this state. Plans have steps that the policy allows, and changes
/// may be rejected because they expire.
const fn can_be_decided(state: ChangeState) -> bool {
    !state.awaits_decision() && !matches!(state, ChangeState::Expired | ChangeState::Withdrawn)
}

/// Proposes a test change.
///
/// Requires the role reviewer or admin. The agent `countersign-test-agent`, which only the gateway acts as, proposes an issue
/// in the tracker. The change is reviewed, decided and run like any other. If a test change is pending already, or is proposed at
/// the same moment, the response is that change. It is 404 if the tracker is off, and 403 if the policy denies the call.
#[utoipa::path(post, path = "/api/test-change", operation_id = "proposeTestChange", responses(
    (status = 200, description = "The pending change", body = Change), (status = 404)))]
pub async fn propose_test_change(
    caller: Caller,
    standing_rules: web::Data<StandingRuleService>,
    changes: web::Data<Changes>,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    caller.require_reviewer()?;
    let by_test_agent = ChangeFilter { principals: vec![TEST_AGENT.to_owned()], ..ChangeFilter::default() };
    let newest = changes.list(by_test_agent, 1, None).await?.items.pop();
    let change = match newest {
        Some(newest) if newest.state.awaits_decision() => newest,
        newest => {
            let directory = RouteDirectory(Arc::clone(standing_rules.routes()));
            let proposal = prepare_proposal(&directory, reloader.config().changes.expire_after);
            let proposal = limit_time(proposal).await?;
            // Requests that have seen the same newest one make one change, also at different nodes.
            let key = newest.map_or_else(|| "first".to_owned(), |newest| format!("after {}", newest.id));
            changes.propose(Proposal { idempotency_key: Some(key), ..proposal }).await?
        }
    };
    offload_json_response(change.estimated_size(), change).await
}

/// Returns the proposal of the test change, which waits for a reviewer even if the policy would allow the call.
async fn prepare_proposal(directory: &RouteDirectory, expire_after: Duration) -> Result<Proposal, McpError> {
    let tracker_off_error = || McpError::new(ErrorKind::NotFound, "the tracker is off (`modules.tracker.enabled`)");
    let provider = directory.provider(TRACKER).ok_or_else(tracker_off_error)?;
    let proposer = Proposer::new(TEST_AGENT, "rest");
    let principal = Arc::new(proposer.to_agent());
    let context = CallContext::new(Arc::clone(&principal));
    let projects = provider.call("list_projects", &to_arguments(&json!({ "limit": 1 }))?, &context).await?;
    let projects: Value = projects
        .structured_content
        .map_or(Ok(Value::Null), |text| text.get().parse())
        .map_err(|error| McpError::new(ErrorKind::Internal, error.to_string()))?;
    let (tool, arguments) = match projects["projects"][0]["id"].as_str() {
        Some(project) => (
            "create_issue",
            json!({
                "projectId": project,
                "title": "Say hello to Countersign",
                "type": "Story",
                "description": "This is a test change. It is safe to approve, and you can delete the issue later.",
            }),
        ),
        None => ("create_project", json!({ "name": "First steps" })),
    };
    let arguments = to_arguments(&arguments)?;
    directory.validate(TRACKER, tool, &arguments)?;
    let route = directory.0.load().tool_of_provider(tool, TRACKER).ok_or_else(tracker_off_error)?;
    let decision = route.decide_for_proposer(&proposer, &arguments);
    if decision.intended_verdict() == Verdict::Deny {
        let text = format!("the policy denies the test change: {}", decision.reason);
        return Err(McpError::new(ErrorKind::PolicyDenied, text));
    }
    let request = PreviewRequest { directory, provider: &provider, tool, arguments: &arguments, context: &context };
    let preview = previews::preview(request).await?;
    let previewed = PreviewedCall { route: &route, decision: &decision, arguments: &arguments, preview };
    Ok(previewed.into_proposal(proposer, expire_after))
}

fn to_arguments(arguments: &Value) -> Result<Box<RawValue>, McpError> {
    RawValue::from_string(arguments.to_string()).map_err(|error| McpError::new(ErrorKind::Internal, error.to_string()))
}
