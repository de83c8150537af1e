//! Builds a table from the lists of all providers.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use serde_json::Value;

use super::{
    Aliases, PromptRoute, RouteTable, RouteTarget, ToolRoute, UsedHeaders,
    name_conflicts::{NameClaims, Warnings},
    operations::OperationRoutes,
    reserved_names::ReservedNames,
    resources::Resources,
    ruling::{self, RuledCalls, RuledTool},
    server_instructions::ServerInstructions,
    unreached_upstreams::{NameKind, UnreachedUpstreams},
};
use countersign_domain::policy::{OperationStatus, Policy, ToolOperation, pins::AcceptedReads};
use countersign_protocol::{Era, Revision, param_headers::annotated_params};
use countersign_provider::ToolDef;
use countersign_upstream::names;

/// The reason why a table cannot be built. The previous table stays in use.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("both {first} and {second} offer {item} named {name:?}")]
    Collision { item: &'static str, name: String, first: String, second: String },
    #[error("the pattern {pattern:?} of the routes is not a regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("the input schema of {provider}'s tool {tool:?} cannot be used: {reason}")]
    Schema { provider: String, tool: String, reason: String },
}

/// The inputs of a new table.
pub struct TableInputs<'a> {
    pub providers: &'a [RouteTarget],
    pub policy: &'a Policy,
    pub aliases: &'a Aliases,
    /// The output schema of a pending answer.
    pub pending_schema: &'a Arc<Value>,
    /// The table that the new one replaces.
    pub previous: Option<&'a RouteTable>,
    /// `true` if two providers that claim one name are an error, unless the previous table had the same conflict. Otherwise
    /// the previous owner keeps the name.
    pub strict: bool,
}

/// The hashes of a table's lists. Clients are notified of the lists whose hash has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListFingerprints {
    pub tools: u64,
    pub prompts: u64,
    /// Covers the resources of upstreams, and all resource templates.
    pub resources: u64,
}

impl RouteTable {
    /// Builds the table that follows the previous one.
    ///
    /// # Errors
    /// Fails if a module's schema does not compile, and, if the build is strict, because of a new conflict of names.
    pub fn build(inputs: &TableInputs<'_>) -> Result<Self, RouteError> {
        let TableInputs { providers, policy, aliases, previous, .. } = *inputs;
        let mut warnings = Warnings::default();
        let (mut tools, mut prompts) = (NameClaims::new("a tool"), NameClaims::new("a prompt"));
        let mut mirror_arguments = false;
        // This is determined before the lists are read. An upstream that connects meanwhile counts as unreached until the next
        // table.
        let unreached = UnreachedUpstreams::new(providers, policy.pins());
        let reserved = ReservedNames::new(providers, aliases, &unreached);
        for (index, provider) in providers.iter().enumerate() {
            let mut tools_of_provider = provider.as_provider().tools();
            tools_of_provider.retain(|def| reserved.allows(provider, NameKind::Tool, &def.name, &mut warnings));
            ruling::pin_first_seen(policy, provider, &tools_of_provider);
            for def in tools_of_provider {
                let Some(route) = build_tool_route(inputs, provider, def, &mut warnings)? else {
                    continue;
                };
                mirror_arguments |= !route.param_headers.is_empty();
                let name = route.name.clone();
                if !tools.add(index, name.clone(), route) {
                    warnings.add(provider.name(), format!("the tool {name:?} is listed twice: the first one counts"));
                }
            }
            for def in provider.as_provider().prompts() {
                if !reserved.allows(provider, NameKind::Prompt, &def.name, &mut warnings) {
                    continue;
                }
                let name = def.name.clone();
                if !prompts.add(index, name.clone(), Arc::new(PromptRoute::new(provider.clone(), def))) {
                    warnings.add(provider.name(), format!("the prompt {name:?} is listed twice: the first one counts"));
                }
            }
        }
        let current_holder = |name: &str| {
            let pinned_by =
                || providers.iter().map(|provider| provider.name()).find(|p| unreached.has_pinned_tool(p, name));
            let previous_route = previous.and_then(|table| table.tools.by_name.get(name));
            previous_route.map(|route| route.provider.name()).or_else(pinned_by).map(str::to_owned)
        };
        let tools = tools.resolve(inputs, previous.map(|table| &table.tools), current_holder, &mut warnings)?;
        let current_holder = |name: &str| Some(previous?.prompts.by_name.get(name)?.provider.name().to_owned());
        let prompts = prompts.resolve(inputs, previous.map(|table| &table.prompts), current_holder, &mut warnings)?;
        let resources = Resources::build(inputs, &mut warnings)?;
        let mut table = Self {
            providers: providers.to_vec(),
            tools,
            prompts,
            resources,
            aliases: aliases.clone(),
            policy: Some(policy.clone()),
            warnings,
            headers: UsedHeaders { mirror_arguments, forwarded: collect_forwarded_headers(providers) },
            unreached,
            generation: previous.map_or(0, |table| table.generation) + 1,
            ..Self::default()
        };
        table.warnings.log_new(previous.map_or(&Warnings::default(), |table| &table.warnings));
        table.fingerprints = table.compute_fingerprints();
        table.server_instructions = ServerInstructions::for_table(&table);
        table.varies_by_principal =
            table.has_personal_lists() || table.tools().iter().any(|route| route.ruling.fixed_decision().is_none());
        Ok(table)
    }

    fn compute_fingerprints(&self) -> ListFingerprints {
        let mut tools = DefaultHasher::new();
        self.tools.order.iter().for_each(|route| route.hash_list_entry(&mut tools));
        let (mut prompts, mut resources) = (DefaultHasher::new(), DefaultHasher::new());
        self.prompts().iter().for_each(|route| route.list_entry(Revision::MODERN).hash(&mut prompts));
        self.resources().iter().for_each(|route| route.list_entry(Revision::MODERN).hash(&mut resources));
        self.templates().iter().for_each(|route| route.list_entry(Revision::MODERN).hash(&mut resources));
        ListFingerprints { tools: tools.finish(), prompts: prompts.finish(), resources: resources.finish() }
    }
}

fn collect_forwarded_headers(providers: &[RouteTarget]) -> Vec<String> {
    let mut names = Vec::new();
    for name in providers
        .iter()
        .filter_map(|provider| provider.upstream())
        .flat_map(|upstream| &upstream.config.forward_headers)
    {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Returns `None` and adds a warning if the tool must not be offered.
fn build_tool_route(
    inputs: &TableInputs<'_>,
    provider: &RouteTarget,
    def: ToolDef,
    warnings: &mut Warnings,
) -> Result<Option<Arc<ToolRoute>>, RouteError> {
    let TableInputs { policy, pending_schema, .. } = *inputs;
    let upstream = provider.upstream();
    let param_headers = match (annotated_params(&def.input_schema), upstream) {
        (Ok(headers), _) => headers,
        (Err(reason), None) => {
            return Err(RouteError::Schema { provider: provider.name().to_owned(), tool: def.name.clone(), reason });
        }
        // Clients must not use such a tool (2026-07-28/server/tools, `x-mcp-header`), and the gateway is a client here.
        (Err(reason), Some(upstream)) if upstream.negotiated().is_some_and(|n| n.revision.era() == Era::Modern) => {
            warnings.add(provider.name(), format!("the tool {:?} is left out: {reason}", def.name));
            return Ok(None);
        }
        // The annotation has no meaning for a handshake-era server.
        (Err(_), Some(_)) => Vec::new(),
    };
    if let Some(reason) = upstream.and_then(|_| names::client_rejection_reason(&def.name)) {
        warnings.add(provider.name(), format!("some clients refuse the tool name {:?}: {reason}", def.name));
    }
    let hash = def.definition_hash();
    let tool = RuledTool { policy, provider, def: &def, hash: &hash };
    let operations = OperationRoutes::new(tool, pending_schema);
    let (facts, ruling) = match &operations {
        None => tool.rule(RuledCalls::All),
        // This ruling is that on an unknown operation, and describes the tool in lists.
        Some(_) => {
            let operation = ToolOperation { name: String::new(), status: OperationStatus::Unknown };
            let (facts, ruling) = tool.rule(RuledCalls::Operation(operation));
            (facts, ruling.without_fixed_decision())
        }
    };
    let recipe = provider.as_provider().recipe(&def.name);
    let sql = recipe.and_then(|recipe| recipe.sql.clone());
    let sql = sql.filter(|_| tool.accepted_reads(&def.name) == AcceptedReads::Sql);
    let has_reads = sql.is_some() || def.read_only_when.is_some() && provider.is_module();
    let read_ruling = has_reads.then(|| tool.rule(RuledCalls::Reads).1);
    let may_review = ruling.may_review() || operations.as_ref().is_some_and(OperationRoutes::may_review);
    let (known_tool, pending_schema) = (tool.known_tool(None), may_review.then(|| pending_schema.clone()));
    let route = ToolRoute::new(provider, def, hash, (facts, ruling));
    Ok(Some(Arc::new(ToolRoute { known_tool, read_ruling, sql, operations, param_headers, pending_schema, ..route })))
}
