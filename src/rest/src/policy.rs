//! Evaluates the policy for a call without making it.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{
    Problem,
    body::{self, Body, Submission},
    json_response,
};
use countersign_domain::{
    changes::Terms,
    policy::{AcceptanceMark, Requester, StandingRule, Subject, Verdict, subjects::Refusal},
    principal::{Principal, Role},
};
use countersign_protocol::{ErrorKind, McpError, suggest};
use countersign_routing::{RouteTable, ToolRoute, ruling::find_refusal};
use countersign_rulings::standing_rules::StandingRuleService;
use countersign_runtime::background;

#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TestedPrincipal {
    pub name: String,
    pub role: Role,
    pub owner: Option<String>,
}

/// The call to evaluate.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyTestRequest {
    /// The name of a tool as clients see it. The body names exactly one of `tool`, `resource`, `prompt` and `method`.
    pub tool: Option<String>,
    /// The URI of a resource.
    pub resource: Option<String>,
    pub prompt: Option<String>,
    /// A method of an extension. `server` names its server.
    pub method: Option<String>,
    pub server: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Box<RawValue>>,
    /// The caller; the local agent if it is missing.
    pub principal: Option<TestedPrincipal>,
    /// `http`, `websocket`, `stdio`, …
    pub transport: Option<String>,
    /// The protocol revision.
    pub revision: Option<String>,
    /// The name that the client reports.
    pub client: Option<String>,
}

impl Body for PolicyTestRequest {
    const NEEDS_REVIEWER: bool = false;
    const MAX_BYTES: Option<usize> = Some(body::MAX_ARGUMENTS_BYTES);
}

/// The decision of the policy about the call.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTest {
    #[serde(flatten)]
    subject: TestSubject,
    server: String,
    /// The verdict of the policy, even if it is not enforced.
    verdict: Verdict,
    /// The rule of the configuration that decided; `null` if `policy.default` or a standing rule did.
    #[schema(required)]
    rule: Option<Arc<str>>,
    /// The standing rule that decided.
    #[schema(required)]
    standing_rule: Option<Arc<StandingRule>>,
    reason: Arc<str>,
    /// The reason why every call of the tool is reviewed regardless of the policy.
    #[schema(required)]
    mark: Option<AcceptanceMark>,
    /// The terms of a review.
    #[schema(required)]
    terms: Option<Arc<Terms>>,
    /// `true` if the policy is not enforced.
    simulated: bool,
    /// `true` if the principal's list has the tool.
    listed: bool,
}

/// The subject of the test.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TestSubject {
    Tool(String),
    Resource(String),
    Prompt(String),
    Method(String),
}

impl PolicyTestRequest {
    /// Evaluates the rules of a table, whose conditions may be slow. Nothing is called, proposed or counted.
    ///
    /// # Errors
    /// `TOOL_NOT_FOUND` and the like, `VALIDATION_FAILED`.
    pub fn evaluate(mut self, table: &RouteTable) -> Result<PolicyTest, McpError> {
        let subjects = [
            self.tool.take().map(TestSubject::Tool),
            self.resource.take().map(TestSubject::Resource),
            self.prompt.take().map(TestSubject::Prompt),
            self.method.take().map(TestSubject::Method),
        ];
        let mut subjects = subjects.into_iter().flatten();
        let (Some(subject), None) = (subjects.next(), subjects.next()) else {
            let message = "name one of `tool`, `resource`, `prompt` and `method`";
            return Err(McpError::new(ErrorKind::ValidationFailed, message));
        };
        let arguments = self.arguments.take();
        let principal = tested_principal(self.principal.take());
        let requester = Requester {
            principal: &principal,
            transport: self.transport.as_deref().unwrap_or_default(),
            revision: self.revision.as_deref().unwrap_or_default(),
            client: self.client.as_deref(),
        };
        let not_found = |kind, item: &str| McpError::new(kind, format!("there is no such {item}"));
        let (policy, server, refusal, default_reason) = match (&subject, &table.policy) {
            (TestSubject::Tool(tool), _) => return evaluate_tool(tool, arguments, &requester, table),
            (_, None) => return Err(McpError::new(ErrorKind::Internal, "there is no policy yet")),
            (TestSubject::Resource(uri), Some(policy)) => {
                let provider = table.provider_for_uri(uri);
                let provider = provider.ok_or_else(|| not_found(ErrorKind::ResourceNotFound, "resource"))?;
                let refusal = find_refusal(policy, &provider, Subject::Resource(uri), &requester);
                (policy, provider.name().to_owned(), refusal, UNDECIDED_REASON)
            }
            (TestSubject::Prompt(name), Some(policy)) => {
                let route = table.prompt(name).ok_or_else(|| not_found(ErrorKind::PromptNotFound, "prompt"))?;
                let refusal = find_refusal(policy, &route.provider, Subject::Prompt(name), &requester);
                (policy, route.provider.name().to_owned(), refusal, UNDECIDED_REASON)
            }
            (TestSubject::Method(method), Some(policy)) => {
                let server = self.server.as_deref().and_then(|server| table.provider(server));
                let server = server.and_then(|server| Some((server, server.upstream()?)));
                let missing = || not_found(ErrorKind::NotFound, "server for the method");
                let (server, upstream) = server.ok_or_else(missing)?;
                let refusal = (!policy.simulates() && !table.allows_method(upstream, method, &requester)).then(|| {
                    find_refusal(policy, server, Subject::Method(method), &requester)
                        .unwrap_or_else(|| Refusal { rule: None, reason: CLOSED_METHOD_REASON.into() })
                });
                (policy, upstream.config.name.clone(), refusal, OPEN_METHOD_REASON)
            }
        };
        let simulated = policy.simulates() && refusal.is_some();
        let verdict = if refusal.is_some() { Verdict::Deny } else { Verdict::Allow };
        let listed = simulated || refusal.is_none();
        let (rule, reason) = match refusal {
            Some(Refusal { rule, reason }) => (rule, reason),
            None => (None, default_reason.into()),
        };
        let (standing_rule, mark, terms) = (None, None, None);
        Ok(PolicyTest { subject, server, verdict, rule, standing_rule, reason, mark, terms, simulated, listed })
    }
}

fn evaluate_tool(
    tool: &str,
    arguments: Option<Box<RawValue>>,
    requester: &Requester<'_>,
    table: &RouteTable,
) -> Result<PolicyTest, McpError> {
    let arguments = body::arguments_or_empty(arguments)?;
    let route: Arc<ToolRoute> = table.find_tool(tool).ok_or_else(|| {
        let name: String = tool.chars().take(128).flat_map(char::escape_debug).collect();
        // Only reviewers and viewers test, who see every tool.
        let names: Vec<&str> = table.tools().iter().map(|route| route.name.as_str()).collect();
        let suggestion = suggest::nearest_tool(tool, &names);
        let suggestion = suggestion.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        McpError::new(ErrorKind::ToolNotFound, format!("there is no tool {name}{suggestion}"))
    })?;
    let decision = route.ruling_for(&arguments).decide(requester, &arguments);
    let verdict = decision.intended_verdict();
    Ok(PolicyTest {
        subject: TestSubject::Tool(route.qualified_name(&arguments).into_owned()),
        server: route.provider.name().to_owned(),
        verdict,
        rule: decision.rule.filter(|_| decision.standing_rule.is_none()),
        standing_rule: decision.standing_rule,
        reason: decision.reason,
        mark: decision.mark,
        terms: (verdict == Verdict::Review).then_some(decision.terms),
        simulated: decision.simulated.is_some(),
        listed: route.is_visible_to(requester.principal),
    })
}

/// Returns the caller to test: the local agent if the body names none.
fn tested_principal(tested: Option<TestedPrincipal>) -> Principal {
    tested.map_or_else(Principal::local_agent, |TestedPrincipal { name, role, owner }| Principal {
        name,
        role,
        key_id: None,
        owner,
        claims: None,
        key_creators: Vec::new(),
    })
}

/// The reason if neither a rule nor the default decides.
const UNDECIDED_REASON: &str = "no rule denies it, and policy.default does not apply to it";
/// The reasons for a method that no rule denies, and for one that is closed by default.
const OPEN_METHOD_REASON: &str = "every call of this server is allowed, or a rule allows the method";
const CLOSED_METHOD_REASON: &str = "calls of this server may be reviewed or denied, and no rule allows the method";

/// Evaluates the policy for a call without making it.
///
/// Nothing is called, proposed or counted.
#[utoipa::path(post, path = "/api/policy/test", operation_id = "testPolicy", request_body = PolicyTestRequest,
    responses((status = 200, description = "The verdict and its reason", body = PolicyTest), (status = 404)))]
pub async fn test(
    submission: Submission<PolicyTestRequest>,
    standing_rules: web::Data<StandingRuleService>,
) -> Result<HttpResponse, Problem> {
    let table = standing_rules.routes().load_full();
    // The test runs on the blocking pool, because conditions may be slow.
    let tested = background::spawn_blocking(move || submission.body.evaluate(&table)).await;
    let tested = tested.map_err(|_| Problem::new(ErrorKind::Internal, "the policy could not be evaluated"))?;
    Ok(json_response(&tested?))
}
