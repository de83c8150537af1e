//! Lists the tool definitions of upstream servers, accepts them for reviewers and revokes acceptances.

mod counts;

use std::{collections::HashMap, sync::Arc};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

pub use self::counts::{PendingToolCounts, ToolVerdictCounts};
use crate::completion::run_to_completion;
use countersign_domain::{
    policy::{
        AcceptanceMark, DefinitionStatus, PinSource as _, Verdict,
        known_reads::{KnownReads, KnownTool},
        pins::{AcceptedReads, Definition},
    },
    principal::Principal,
};
use countersign_feed::Feed;
use countersign_protocol::{ErrorKind, McpError, annotations::ToolAnnotations};
use countersign_routing::{
    ruling::definition,
    table::{PublishedTable, ToolRoute},
};
use countersign_store::PinStore;

/// Rebuilds the route table with the current pins and standing rules.
pub type RouteRebuilder = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The maximum number of tools that an error names.
const MAX_TOOLS_IN_ERROR: usize = 20;

/// The maximum number of tools in one acceptance.
pub const MAX_TOOLS_PER_ACCEPTANCE: usize = 20_000;

/// A tool as the API and the dashboard show it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ProviderTool)]
pub struct ToolInfo {
    /// The name as clients see it.
    pub name: String,
    pub title: String,
    pub description: String,
    /// `allow`, `review` or `deny` for every call, or `depends`.
    #[schema(pattern = "^(allow|review|deny|depends)$")]
    pub verdict: &'static str,
    /// The reason, if it is the same for every call.
    #[schema(required)]
    pub reason: Option<String>,
    /// The rules that decide, in order; empty if `policy.default` decides.
    pub rules: Vec<String>,
    /// The annotations of the tool's definition.
    pub annotations: ToolAnnotations,
    /// The status of the definition, which determines whether its annotations are trusted.
    pub definition_status: DefinitionStatus,
    /// The reason why every call is reviewed regardless of the policy.
    #[schema(required)]
    pub mark: Option<AcceptanceMark>,
    /// The tool claims to be read-only, and would count as such if its definition were accepted.
    pub claims_read: bool,
    /// The hash of the definition, which an acceptance names.
    #[schema(pattern = "^sha256:[0-9a-f]{64}$")]
    pub hash: String,
    /// The whole definition as the original JSON.
    pub definition: Arc<str>,
    /// The definition that was accepted or first seen, if its text differs from the present one. If it is `null` for a
    /// changed tool, only the command or address of the server has changed.
    #[schema(required)]
    pub previous: Option<Arc<str>>,
    #[schema(required)]
    pub accepted_by: Option<String>,
    #[schema(required)]
    pub accepted_at: Option<Timestamp>,
    /// A reviewer accepted the tool as one that only reads, whatever it declares.
    pub accepted_as_read: bool,
    /// A reviewer accepted that calls of the tool run without review if their SQL statements only read.
    pub accepted_sql_reads: bool,
    /// The entry for this definition in the server's list of known reads.
    #[schema(required)]
    #[serde(rename = "known")]
    pub known_tool: Option<KnownTool>,
    /// If a reviewer accepts the known reads of the server, this definition is among them.
    #[serde(rename = "offered")]
    pub is_acceptable_known_read: bool,
    /// Set if a reviewer lets the tool run without review.
    #[schema(required)]
    #[serde(rename = "letRun")]
    pub run_permission: Option<RunPermission>,
    /// A reviewer may let the tool run without review: `policy.default` decides on its calls, and their reviews need only one
    /// approval.
    #[serde(rename = "mayLetRun")]
    pub may_be_permitted: bool,
}

/// The permission to run without review: who gave it, and why.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = LetRun)]
pub struct RunPermission {
    /// The id of the standing rule, which can be revoked.
    pub rule: String,
    pub by: String,
    pub at: Timestamp,
    #[schema(required)]
    pub reason: Option<String>,
}

/// The list of known reads that is shipped for a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = KnownReads)]
pub struct KnownReadsInfo {
    /// The name of the recipe set for the same server.
    #[serde(rename = "set")]
    pub recipe_set: &'static str,
    /// The packages whose definitions are listed, with their versions.
    pub packages: Vec<String>,
}

impl From<&KnownReads> for KnownReadsInfo {
    fn from(known: &KnownReads) -> Self {
        Self { recipe_set: known.recipe_set, packages: known.packages.clone() }
    }
}

/// A definition that was shown.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DefinitionRef {
    pub name: String,
    /// The hash that was shown.
    pub hash: String,
}

/// Lists tool definitions, accepts them and revokes acceptances.
pub struct ToolAcceptances {
    routes: Arc<PublishedTable>,
    pins: Arc<PinStore>,
    rebuild: RouteRebuilder,
    feed: Feed,
}

/// A reviewer's decision about definitions.
#[derive(Clone, Copy, Debug)]
pub enum DefinitionDecision {
    Accept,
    /// Tools listed as reads then count as read-only, whatever they declare, and calls of tools that run SQL do if their
    /// statements only read. Tools listed as dry runs are only accepted, so that previews may call them.
    AcceptKnownReads,
    Revoke,
}

/// The kind of a decision in feed events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptanceAction {
    Accepted,
    Revoked,
}

/// Returns the feed event about definitions.
pub fn acceptance_event(provider: &str, action: AcceptanceAction, tools: &[&str], by: Option<&str>) -> Value {
    json!({
        "type": "provider.changed", "at": Timestamp::now().to_string(), "provider": provider,
        "actor": by, "what": action, "tools": tools, "count": tools.len(),
    })
}

impl ToolAcceptances {
    pub fn new(routes: Arc<PublishedTable>, pins: Arc<PinStore>, rebuild: RouteRebuilder, feed: Feed) -> Self {
        Self { routes, pins, rebuild, feed }
    }

    /// Returns the tools of a provider in the order of its list, or `None` if there is no such provider.
    pub fn tools(&self, provider: &str) -> Option<Vec<ToolInfo>> {
        let table = self.routes.load_full();
        table.provider(provider).map(|_| table.definitions(provider).map(|route| self.describe_tool(route)).collect())
    }

    /// Returns the list of known reads that is shipped for the provider.
    pub fn known_reads(&self, provider: &str) -> Option<KnownReadsInfo> {
        self.routes.load().provider(provider)?.as_provider().known_reads().map(KnownReadsInfo::from)
    }

    /// Decides on definitions as they were shown: on all of them or none.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown provider, `VERSION_CONFLICT` if a definition has changed since, `VALIDATION_FAILED` if the
    /// tool belongs to a module or a definition is not a known read (both with the names of the tools in `data.tools`),
    /// `STORE_UNAVAILABLE`.
    pub async fn decide(
        self: &Arc<Self>,
        provider: &str,
        decision: DefinitionDecision,
        shown_definitions: &[DefinitionRef],
        reviewer: &Principal,
    ) -> Result<(), McpError> {
        let (this, provider) = (Arc::clone(self), provider.to_owned());
        let (shown_definitions, reviewer) = (shown_definitions.to_vec(), reviewer.clone());
        run_to_completion(async move {
            let (target, definitions) = this.find_current_definitions(&provider, &shown_definitions)?;
            let (server, by) = ((provider.as_str(), target.as_str()), reviewer.name.as_str());
            let (action, result) = match decision {
                DefinitionDecision::Accept => {
                    (AcceptanceAction::Accepted, this.pins.accept(server, &definitions, None, by).await)
                }
                DefinitionDecision::AcceptKnownReads => {
                    let reads = this.find_accepted_reads(&provider, &definitions)?;
                    (AcceptanceAction::Accepted, this.pins.accept(server, &definitions, Some(&reads), by).await)
                }
                DefinitionDecision::Revoke => {
                    (AcceptanceAction::Revoked, this.pins.revoke(&provider, &definitions, by).await)
                }
            };
            result.map_err(|error| {
                tracing::error!(%error, "a decision on tool definitions could not be stored");
                error.to_user_error("the decision could not be stored; nothing was accepted or revoked")
            })?;
            tracing::info!(%provider, tools = definitions.len(), by, ?decision, "a reviewer decided on definitions");
            (this.rebuild)().await;
            let tools: Vec<&str> = shown_definitions.iter().map(|definition| definition.name.as_str()).collect();
            this.feed.publish_live(&acceptance_event(&provider, action, &tools, Some(by)));
            Ok(())
        })
        .await
    }

    /// Returns which calls of each definition count as reads. Fails if a definition is not in the provider's list of known
    /// reads.
    fn find_accepted_reads(
        &self,
        provider: &str,
        definitions: &[Definition],
    ) -> Result<HashMap<String, AcceptedReads>, McpError> {
        let table = self.routes.load_full();
        let known_tools: HashMap<(&str, &str), KnownTool> = table
            .definitions(provider)
            .filter_map(|route| Some(((route.name.as_str(), route.hash.as_str()), route.known_tool?)))
            .collect();
        let mut reads = HashMap::new();
        let mut unknown = Vec::new();
        for Definition { name, hash, .. } in definitions {
            let accepted = match known_tools.get(&(name.as_str(), hash.as_str())) {
                Some(KnownTool::Read) => AcceptedReads::All,
                Some(KnownTool::SqlRead) => AcceptedReads::Sql,
                Some(KnownTool::DryRun) => AcceptedReads::None,
                Some(KnownTool::OtherDefinition) | None => {
                    unknown.push(shorten_name(name));
                    continue;
                }
            };
            reads.insert(name.clone(), accepted);
        }
        if unknown.is_empty() {
            return Ok(reads);
        }
        unknown.truncate(MAX_TOOLS_IN_ERROR);
        let message = "the list of the server's known reads does not have this definition of the tool";
        Err(McpError::new(ErrorKind::ValidationFailed, message).with("tools", unknown))
    }

    /// Returns the fingerprint of the provider's target, and the definitions that were shown. Fails if a definition has
    /// changed since.
    fn find_current_definitions(
        &self,
        provider: &str,
        shown_definitions: &[DefinitionRef],
    ) -> Result<(String, Vec<Definition>), McpError> {
        let table = self.routes.load_full();
        let Some(current_provider) = table.provider(provider) else {
            return Err(McpError::new(ErrorKind::NotFound, "there is no server of this name"));
        };
        let routes: HashMap<&str, &Arc<ToolRoute>> = table
            .definitions(provider)
            .filter(|r| !r.provider.is_module())
            .map(|route| (route.name.as_str(), route))
            .collect();
        let mut definitions = Vec::with_capacity(shown_definitions.len());
        let mut outdated = Vec::new();
        for DefinitionRef { name, hash } in shown_definitions {
            match routes.get(name.as_str()).filter(|route| route.hash == *hash) {
                Some(route) => definitions.push(definition(&route.def)),
                None => outdated.push(shorten_name(name)),
            }
        }
        if outdated.is_empty() {
            return Ok((current_provider.as_provider().target_fingerprint().to_owned(), definitions));
        }
        outdated.truncate(MAX_TOOLS_IN_ERROR);
        let (kind, message) = if current_provider.is_module() {
            (ErrorKind::ValidationFailed, "tools of modules need no acceptance")
        } else {
            let message = "a tool's definition differs from the one that was shown, or the tool is gone";
            (ErrorKind::VersionConflict, message)
        };
        Err(McpError::new(kind, message).with("tools", outdated))
    }

    fn describe_tool(&self, route: &ToolRoute) -> ToolInfo {
        let pins = self.pins.pins();
        let pin = pins.pin(route.provider.name(), &route.name);
        let accepted =
            pin.and_then(|pin| pin.accepted.as_ref()).filter(|_| route.definition_status == DefinitionStatus::Accepted);
        let fixed_decision = route.ruling.fixed_decision();
        let run_permission = route.ruling.tool_allow_rule().map(|rule| RunPermission {
            rule: rule.id.clone(),
            by: rule.created_by.clone(),
            at: rule.created_at,
            reason: rule.comment.clone(),
        });
        let may_be_permitted = route.definition_status.mark().is_none()
            && route.ruling.default_decision().is_some_and(|decision| {
                decision.verdict == Verdict::Review && decision.terms.single_approval_suffices()
            });
        let (verdict, reason) = match (fixed_decision, &run_permission) {
            (Some(decision), _) => (decision.verdict.as_str(), Some(decision.reason.to_string())),
            (None, Some(permission)) => {
                let suffix = permission.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
                (Verdict::Allow.as_str(), Some(format!("{} lets it run without review{suffix}", permission.by)))
            }
            (None, None) => ("depends", None),
        };
        let rules = match fixed_decision {
            Some(decision) => decision.rule.iter().map(|rule| rule.to_string()).collect(),
            None => route.ruling.rules().map(str::to_owned).collect(),
        };
        let def = definition(&route.def);
        // If only the command or address of the server has changed, the text is the same, and is not shown as the previous one.
        let pin = pin.filter(|_| route.definition_status == DefinitionStatus::Changed);
        let previous = pin.and_then(|pin| pin.text.clone()).filter(|text| *text != def.text);
        ToolInfo {
            name: route.name.clone(),
            title: route.def.title.clone(),
            description: route.def.description.clone(),
            verdict,
            reason,
            rules,
            annotations: route.def.annotations,
            definition_status: route.definition_status,
            mark: route.definition_status.mark(),
            claims_read: claims_to_read(route),
            hash: def.hash,
            definition: def.text,
            previous,
            accepted_by: accepted.map(|accepted| accepted.by.clone()),
            accepted_at: accepted.map(|accepted| accepted.at),
            accepted_as_read: accepted.is_some_and(|accepted| accepted.reads == AcceptedReads::All),
            accepted_sql_reads: accepted.is_some_and(|accepted| accepted.reads == AcceptedReads::Sql),
            known_tool: route.known_tool,
            is_acceptable_known_read: is_acceptable_known_read(route),
            may_be_permitted: may_be_permitted && run_permission.is_none(),
            run_permission,
        }
    }
}

/// Returns `true` if the tool claims to be read-only, and would count as such if its definition were accepted.
fn claims_to_read(route: &ToolRoute) -> bool {
    route.definition_status == DefinitionStatus::FirstSeen
        && route.def.annotations.read_only_hint
        && !route.provider.as_provider().has_trusted_annotations()
        && !is_denied(route)
}

/// Returns `true` if accepting the server's known reads would have an effect for this tool: on the decision about its calls,
/// or on whether previews may call it as a dry run.
fn is_acceptable_known_read(route: &ToolRoute) -> bool {
    if route.is_operation && route.definition_status.mark().is_some() {
        return false;
    }
    match route.known_tool {
        Some(KnownTool::Read) => !route.is_read_only() && !is_denied(route),
        Some(KnownTool::DryRun) => {
            let recipe = route.provider.as_provider().recipe(&route.name);
            let dry_run = recipe.and_then(|recipe| recipe.dry_run.as_ref());
            route.definition_status != DefinitionStatus::Accepted
                && dry_run.is_some_and(|dry_run| !dry_run.is_trusted)
                && !is_denied(route)
        }
        Some(KnownTool::SqlRead) => {
            let recipe = route.provider.as_provider().recipe(&route.name);
            recipe.is_some_and(|recipe| recipe.sql.is_some()) && !route.passes_sql_reads() && !is_denied(route)
        }
        Some(KnownTool::OtherDefinition) | None => false,
    }
}

fn is_denied(route: &ToolRoute) -> bool {
    route.ruling.fixed_decision().is_some_and(|decision| decision.verdict == Verdict::Deny)
}

/// Shortens the name of a tool for an error.
pub(crate) fn shorten_name(tool: &str) -> String {
    tool.chars().take(128).collect()
}
