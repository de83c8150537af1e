//! What the policy says of a call that nobody makes.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    Problem, RestState, json_ok,
    posted::{Asked, Body},
};
use crate::{
    auth::{Principal, Role},
    changes::Terms,
    config::HttpConfig,
    policy::{CallFacts, Mark, StandingRule, Verdict},
    protocol::{ErrorKind, McpError},
    router::{RouteTable, ToolRoute},
    suggest,
};

/// Bytes of a body with arguments.
const MAX_BODY: usize = 2 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Who {
    name: String,
    role: Role,
    owner: Option<String>,
}

/// The call that is asked about.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestBody {
    tool: String,
    arguments: Option<Box<RawValue>>,
    principal: Option<Who>,
    transport: Option<String>,
    revision: Option<String>,
    client: Option<String>,
}

impl Body for TestBody {
    fn most(_: &HttpConfig) -> usize {
        MAX_BODY
    }
}

/// What would become of it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    tool: String,
    server: String,
    /// What the policy says, whether it is enforced or not.
    verdict: Verdict,
    rule: Option<Arc<str>>,
    standing_rule: Option<Arc<StandingRule>>,
    reason: Arc<str>,
    mark: Option<Mark>,
    /// Of a review.
    terms: Option<Arc<Terms>>,
    /// It is not enforced.
    simulated: bool,
    /// The tool is in this principal's list.
    listed: bool,
}

impl TestBody {
    #[must_use]
    pub fn tool(&self) -> &str {
        &self.tool
    }

    /// Asks the rules of a table. Conditions may take their time. Nothing is called, proposed or counted.
    ///
    /// # Errors
    /// `TOOL_NOT_FOUND`, `VALIDATION_FAILED`.
    pub fn ask(self, table: &RouteTable) -> Result<Tested, McpError> {
        let arguments = match self.arguments {
            Some(arguments) => arguments,
            None => RawValue::from_string("{}".to_owned())
                .map_err(|error| McpError::new(ErrorKind::Internal, error.to_string()))?,
        };
        if !arguments.get().starts_with('{') {
            return Err(McpError::new(ErrorKind::ValidationFailed, "`arguments` is an object"));
        }
        let route: Arc<ToolRoute> = table.tool(&self.tool).ok_or_else(|| {
            let name: String = self.tool.chars().take(128).flat_map(char::escape_debug).collect();
            // Reviewers ask, who see every tool.
            let names: Vec<&str> = table.tools().iter().map(|route| route.name.as_str()).collect();
            let meant = suggest::nearest_tool(&self.tool, &names);
            let meant = meant.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            McpError::new(ErrorKind::ToolNotFound, format!("there is no tool {name}{meant}"))
        })?;
        let principal = self.principal.map_or_else(Principal::local_agent, |Who { name, role, owner }| Principal {
            name,
            role,
            key_id: None,
            owner,
        });
        let decision = route.ruling.decide(&CallFacts {
            principal: &principal,
            transport: self.transport.as_deref().unwrap_or_default(),
            revision: self.revision.as_deref().unwrap_or_default(),
            client: self.client.as_deref(),
            arguments: &arguments,
        });
        let verdict = decision.meant();
        Ok(Tested {
            tool: route.name.clone(),
            server: route.provider.name().to_owned(),
            verdict,
            rule: decision.rule.filter(|_| decision.standing.is_none()),
            standing_rule: decision.standing,
            reason: decision.reason,
            mark: decision.mark,
            terms: (verdict == Verdict::Review).then_some(decision.terms),
            simulated: decision.simulated.is_some(),
            listed: route.visible_to(&principal),
        })
    }
}

/// `POST /api/policy/test`
pub async fn test(asked: Asked<TestBody>, state: web::Data<RestState>) -> Result<HttpResponse, Problem> {
    let table = state.standing.routes().load_full();
    // Away from the thread that serves connections.
    let tested = web::block(move || asked.0.ask(&table)).await;
    let tested = tested.map_err(|_| Problem::new(ErrorKind::Internal, "the policy could not be asked"))?;
    Ok(json_ok(&tested?))
}
