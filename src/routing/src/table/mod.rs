//! The route table, which resolves names to providers. It is immutable; every change builds a new one.

mod aliases;
mod build;
pub mod list_entries;
mod module_entries;
mod name_conflicts;
mod operations;
mod personal_lists;
mod reserved_names;
pub mod resources;
mod revision_filter;
pub mod ruling;
mod server_instructions;
mod template;
pub mod unreached_upstreams;
pub mod validate;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash},
    sync::{Arc, OnceLock},
};

use parking_lot::RwLock;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::{
    list_entries::{RenderedEntry, ResourceRoute, TemplateRoute},
    name_conflicts::{ResolvedNames, Warnings},
    operations::OperationRoutes,
    personal_lists::PersonalLists,
    resources::{Resources, UpstreamResource},
    server_instructions::ServerInstructions,
    unreached_upstreams::UnreachedUpstreams,
};
use countersign_domain::{
    policy::{DefinitionStatus, Policy, Requester, Ruling, ToolFacts, known_reads::KnownTool},
    principal::Principal,
    recipes::SqlRecipe,
};
use countersign_protocol::{ErrorKind, McpError, Revision, param_headers::ParamHeader, suggest};
use countersign_provider::{
    Module, Provider, ToolDef,
    compiled_schema::{CompiledSchema, PatternEngine},
};
use countersign_telemetry::metrics::CircuitState;
use countersign_upstream::{CONNECT_TOOL, ListKinds, Upstream, server::Phase};

pub use self::{
    aliases::Aliases,
    build::{ListFingerprints, RouteError, TableInputs},
    list_entries::PromptRoute,
};

/// The destination of a name, which is decided when a table is built.
#[derive(Clone)]
pub enum RouteTarget {
    /// A module, called directly with parsed values.
    Module(Arc<dyn Module>),
    /// An upstream, called through the bridge with the client's bytes. The Executor calls it as a provider.
    Upstream(Arc<Upstream>),
}

impl RouteTarget {
    /// Returns the upstream, if the target is one.
    #[must_use]
    pub fn upstream(&self) -> Option<&Arc<Upstream>> {
        match self {
            Self::Module(_) => None,
            Self::Upstream(upstream) => Some(upstream),
        }
    }

    pub fn as_provider(&self) -> &dyn Provider {
        match self {
            Self::Module(module) => &**module,
            Self::Upstream(upstream) => &**upstream,
        }
    }

    pub fn name(&self) -> &str {
        self.as_provider().name()
    }

    pub fn is_module(&self) -> bool {
        self.as_provider().is_module()
    }

    /// Returns the target as a provider, for previews and the Executor.
    pub fn provider(&self) -> Arc<dyn Provider> {
        match self {
            Self::Module(module) => Arc::clone(module) as _,
            Self::Upstream(upstream) => Arc::clone(upstream) as _,
        }
    }

    /// Returns `true` if both are the same instance, not only providers of the same name.
    pub fn is_same_provider(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }

    /// Returns a number that distinguishes this instance from others of the same name.
    pub fn identity(&self) -> usize {
        match self {
            Self::Module(module) => Arc::as_ptr(module).cast::<()>() as usize,
            Self::Upstream(upstream) => Arc::as_ptr(upstream).cast::<()>() as usize,
        }
    }
}

/// A tool in the table: its provider, its schema, and the policy's ruling on it.
pub struct ToolRoute {
    /// The name that clients use.
    pub name: String,
    /// `true` if the route is for one operation of a tool, with the name `tool/operation`. No client calls it by that name.
    pub is_operation: bool,
    pub provider: RouteTarget,
    pub def: ToolDef,
    /// `sha256:…` of the definition. Every change stores it, so that a call runs only with the definition that was
    /// approved.
    pub hash: String,
    /// The reviewers' decision about this definition.
    pub definition_status: DefinitionStatus,
    /// The entry of this definition in the list of the server's known reads.
    pub known_tool: Option<KnownTool>,
    is_read_only: bool,
    /// The policy's ruling on calls.
    pub ruling: Ruling,
    /// The policy's ruling on calls that only read, if a writing tool has such calls.
    read_ruling: Option<Ruling>,
    /// Finds the SQL of a call, if a reviewer accepted that statements which only read run without review.
    sql: Option<Arc<SqlRecipe>>,
    /// The operations, if the recipe of the tool says which argument names one.
    operations: Option<OperationRoutes>,
    /// Arguments that HTTP clients mirror into headers (2026-07-28/server/tools, `x-mcp-header`).
    pub param_headers: Vec<ParamHeader>,
    /// The output schema of a pending answer, if calls of this tool may be put under review.
    pending_schema: Option<Arc<Value>>,
    compiled_schema: OnceLock<Result<Option<CompiledSchema>, String>>,
    allows_structured_error: OnceLock<bool>,
    rendered: RenderedEntry,
}

impl ToolRoute {
    /// Creates a route with the policy's ruling. It has no operations, reads or headers yet, which only some tools have.
    fn new(provider: &RouteTarget, def: ToolDef, hash: String, (facts, ruling): (ToolFacts, Ruling)) -> Self {
        Self {
            name: def.name.clone(),
            is_operation: false,
            provider: provider.clone(),
            def,
            hash,
            definition_status: facts.definition_status,
            known_tool: None,
            is_read_only: facts.effective_annotations().read_only_hint,
            ruling,
            read_ruling: None,
            sql: None,
            operations: None,
            param_headers: Vec::new(),
            pending_schema: None,
            compiled_schema: OnceLock::new(),
            allows_structured_error: OnceLock::new(),
            rendered: RenderedEntry::default(),
        }
    }

    /// Returns the tool's entry in `tools/list`.
    pub fn list_entry(&self, revision: Revision) -> &str {
        let pending_schema = self.pending_schema.as_deref();
        self.rendered.get_or_write(
            revision,
            self.def.raw.as_ref(),
            |raw, revision| revision_filter::filter_tool(raw, pending_schema, revision),
            || module_entries::tool_entry(&self.def, &self.name, pending_schema, revision),
        )
    }

    /// Returns `true` if the tool is listed for that principal. Tools that the principal may never call are hidden, and tools
    /// that the principal's own account at the server does not have.
    pub fn is_visible_to(&self, principal: &Principal) -> bool {
        self.is_in(&mut PersonalLists::new(principal))
    }

    /// Returns `true` if the tool is visible to the principal of these lists, which look up those of each server once.
    fn is_in(&self, lists: &mut PersonalLists<'_>) -> bool {
        let operations = || self.operations.as_ref().is_some_and(|all| all.are_listed_to(lists.principal));
        (self.ruling.is_listed_to(lists.principal) || operations()) && lists.has_tool(&self.provider, &self.name)
    }

    /// Returns `true` for the tool with which the gateway asks a person to connect the server (see
    /// [`Upstream::needs_consent`]).
    pub fn is_connect_tool(&self) -> bool {
        self.def.self_service && !self.provider.is_module()
    }

    /// Returns `true` if the tool's annotations are trusted and say that it only reads, or a reviewer accepted it as a read.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns `true` if a reviewer accepted that SQL statements which only read run without review.
    pub fn passes_sql_reads(&self) -> bool {
        self.sql.is_some()
    }

    /// Returns `true` if a failed call may report its error in `structuredContent` too, because the output schema
    /// allows it.
    pub fn allows_structured_error(&self) -> bool {
        *self.allows_structured_error.get_or_init(|| {
            let error = json!({ "error": true, "code": "INTERNAL_ERROR", "message": "", "details": {} });
            let schema = self.def.output_schema.as_ref().filter(|_| self.def.raw.is_none());
            let compile = |schema| CompiledSchema::compile(schema, None, PatternEngine::Linear);
            schema.is_some_and(|schema| compile(schema).is_ok_and(|schema| schema.is_valid(&error)))
        })
    }

    /// Returns the input schema, compiled on first use and without remote `$ref`s. `None` for an upstream's schema
    /// whose check could take too long ([`schema_cost`], and patterns with look-around or back-references).
    ///
    /// # Errors
    /// `TOOL_EXECUTION_ERROR` if the schema is invalid, which only affects calls of this tool.
    pub fn compiled_schema(&self) -> Result<Option<&CompiledSchema>, McpError> {
        self.compiled_schema.get_or_init(|| validate::compile_schema(&self.def)).as_ref().map(Option::as_ref).map_err(
            |reason| {
                let message = format!("the input schema of {} cannot be used: {reason}", self.name);
                McpError::new(ErrorKind::ToolExecution, message).with("tool", self.name.clone())
            },
        )
    }

    /// Hashes the data that decides whether the containing list has changed.
    fn hash_list_entry(&self, hasher: &mut DefaultHasher) {
        self.name.hash(hasher);
        self.pending_schema.is_some().hash(hasher);
        let rulings = std::iter::once(&self.ruling).chain(self.operations.iter().flat_map(OperationRoutes::rulings));
        for ruling in rulings {
            ruling.fixed_decision().map(|decision| decision.verdict as u8).hash(hasher);
        }
        match &self.def.raw {
            Some(raw) => raw.get().hash(hasher),
            None => self.list_entry(Revision::MODERN).hash(hasher),
        }
    }
}

/// Maximum number of tools whose names are compared with an unknown one.
const MAX_COMPARED_TOOLS: usize = 2000;

/// The headers of requests that the tools and servers of a table use.
#[derive(Default)]
pub struct UsedHeaders {
    /// `true` if some tool wants arguments mirrored into headers ([`ToolRoute::param_headers`]).
    pub mirror_arguments: bool,
    /// Names of request headers that are forwarded to some upstream, without duplicates.
    pub forwarded: Vec<String>,
}

/// An immutable table of all tools, prompts, resources and their providers. The default is an empty one.
#[derive(Default)]
pub struct RouteTable {
    /// Increases with every table; 0 for the empty one.
    pub generation: u64,
    pub fingerprints: ListFingerprints,
    providers: Vec<RouteTarget>,
    tools: ResolvedNames<ToolRoute>,
    prompts: ResolvedNames<PromptRoute>,
    pub(super) resources: Resources,
    aliases: Aliases,
    /// The tools to which names have been resolved by aliases.
    resolved_aliases: RwLock<HashMap<String, Arc<ToolRoute>>>,
    /// `None` in an empty table.
    pub policy: Option<Policy>,
    warnings: Warnings,
    server_instructions: ServerInstructions,
    /// `true` if principals may see different lists of tools ([`ToolRoute::is_visible_to`]).
    pub varies_by_principal: bool,
    pub headers: UsedHeaders,
    pub(super) unreached: UnreachedUpstreams,
    /// Cancelled when another table has replaced this one.
    pub superseded: CancellationToken,
}

impl RouteTable {
    /// Iterates over the tools of a provider, each followed by its known operations.
    pub fn definitions<'a>(&'a self, provider: &'a str) -> impl Iterator<Item = &'a Arc<ToolRoute>> {
        let tools = self.tools().iter().filter(move |route| route.provider.name() == provider);
        tools.flat_map(ToolRoute::with_operations)
    }

    /// Resolves a tool's name. An exact name comes first, then `<provider>.<name>`, configured prefixes, categories,
    /// patterns and the fallback. Each alias may use the server's own name of the tool.
    pub fn find_tool(&self, name: &str) -> Option<Arc<ToolRoute>> {
        if let Some(route) = self.tools.by_name.get(name) {
            return Some(self.first_available(route));
        }
        // An alias has no failover: it names its provider, or must always lead to the same one.
        self.find_by_alias(name)
    }

    /// Returns the tool that replaces one whose server is unavailable: the tool of the same own name at the configured
    /// fallback provider.
    pub fn fallback_of(&self, route: &ToolRoute) -> Option<Arc<ToolRoute>> {
        let upstream = route.provider.upstream()?;
        let fallback = self.provider(upstream.config.fallback.as_deref()?)?;
        let own_name = upstream.names.upstream_name(&route.def.name).unwrap_or(&route.def.name);
        self.tool_of_provider(&fallback.as_provider().exposed_name(own_name), fallback.name())
    }

    /// Returns `true` if the policy allows the method for the requester (see [`Policy::allows_method`]). Tools that the
    /// configuration of the server hides count as denied.
    pub fn allows_method(&self, upstream: &Upstream, method: &str, requester: &Requester<'_>) -> bool {
        let server = upstream.config.name.as_str();
        let hides_tools = !upstream.config.tools_allow.is_empty() || !upstream.config.tools_deny.is_empty();
        let may_block_tools = || {
            // This includes tools that are hidden by another server's tool of the same name.
            let all = self.tools().iter().chain(self.tools.alternatives.values().flatten());
            let mut tools = all.filter(|route| route.provider.name() == server);
            hides_tools || tools.any(|route| route.ruling.may_block(requester.principal))
        };
        self.policy.as_ref().is_some_and(|policy| policy.allows_method(server, method, requester, may_block_tools))
    }

    /// Returns the policy if it could refuse a resource or prompt to some principal.
    pub fn refusing_policy(&self) -> Option<&Policy> {
        self.policy.as_ref().filter(|policy| policy.can_refuse_access())
    }

    /// Returns a provider's tool by its own name or by the name that clients use.
    fn tool_by_own_name(&self, provider: &RouteTarget, own: &str) -> Option<Arc<ToolRoute>> {
        let exposed = self.tool_of_provider(&provider.as_provider().exposed_name(own), provider.name());
        exposed.or_else(|| self.tool_of_provider(own, provider.name()))
    }

    /// Returns the tool of that name at that provider, even if another provider serves the name.
    pub fn tool_of_provider(&self, name: &str, provider: &str) -> Option<Arc<ToolRoute>> {
        let first = self.tools.by_name.get(name)?;
        let alternatives = self.tools.alternatives.get(name).into_iter().flatten();
        std::iter::once(first).chain(alternatives).find(|route| route.provider.name() == provider).cloned()
    }

    /// Returns the first tool of this name whose provider can take calls.
    fn first_available(&self, first: &Arc<ToolRoute>) -> Arc<ToolRoute> {
        if self.tools.alternatives.is_empty() || can_serve(&first.provider) {
            return first.clone();
        }
        let mut alternatives = self.tools.alternatives.get(&first.name).into_iter().flatten();
        alternatives.find(|other| can_serve(&other.provider)).unwrap_or(first).clone()
    }

    /// Returns the tool whose name is most similar to an unknown one, among those visible to the principal.
    pub fn nearest_tool(&self, name: &str, principal: &Principal) -> Option<String> {
        let tools = self.tools_for(principal).take(MAX_COMPARED_TOOLS);
        let names: Vec<&str> = tools.map(|route| route.name.as_str()).collect();
        suggest::nearest_tool(name, &names).map(str::to_owned)
    }

    pub fn tools(&self) -> &[Arc<ToolRoute>] {
        &self.tools.order
    }

    /// Returns the tools that are visible to a principal.
    pub fn tools_for<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<ToolRoute>> {
        let mut lists = PersonalLists::new(principal);
        self.tools().iter().filter(move |route| route.is_in(&mut lists))
    }

    pub fn prompt(&self, name: &str) -> Option<Arc<PromptRoute>> {
        self.prompts.by_name.get(name).cloned()
    }

    pub fn prompts(&self) -> &[Arc<PromptRoute>] {
        &self.prompts.order
    }

    /// Returns the prompts without those that the principal's own account at a server does not have.
    pub fn prompts_for<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<PromptRoute>> {
        let mut lists = PersonalLists::new(principal);
        self.prompts().iter().filter(move |route| lists.has_prompt(&route.provider, &route.def.name))
    }

    /// Returns the resources that upstreams list. Modules are asked for theirs on each request.
    pub fn resources(&self) -> &[Arc<ResourceRoute>] {
        &self.resources.resources.order
    }

    pub fn templates(&self) -> &[Arc<TemplateRoute>] {
        &self.resources.templates.order
    }

    /// Returns the templates without those that the principal's own account at a server does not have.
    pub fn templates_for<'a>(&'a self, principal: &'a Principal) -> impl Iterator<Item = &'a Arc<TemplateRoute>> {
        let mut lists = PersonalLists::new(principal);
        self.templates().iter().filter(move |route| lists.has_template(&route.provider, &route.def.uri_template))
    }

    pub fn providers(&self) -> &[RouteTarget] {
        &self.providers
    }

    pub fn provider(&self, name: &str) -> Option<&RouteTarget> {
        self.providers.iter().find(|provider| provider.name() == name)
    }

    fn upstreams(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.providers.iter().filter_map(RouteTarget::upstream)
    }

    /// Returns the server whose [`CONNECT_TOOL`] has this name. Agents may still call it after the server was connected, when
    /// it is no longer listed.
    #[must_use]
    pub fn upstream_to_connect(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.upstreams().find(|upstream| upstream.uses_accounts() && upstream.names.expose(CONNECT_TOOL) == name)
    }

    /// Returns the provider that serves a URI or a URI template.
    pub fn provider_for_uri(&self, uri: &str) -> Option<RouteTarget> {
        self.resources.find(uri).cloned()
    }

    /// Returns a resource at the upstream that serves it, or `None` if no upstream serves the URI.
    pub fn upstream_resource(&self, uri: &str) -> Option<UpstreamResource> {
        let upstream = self.resources.find(uri)?.upstream()?;
        let own_uri = upstream.names.upstream_uri(uri)?.to_owned();
        Some(UpstreamResource { upstream: Arc::clone(upstream), own_uri })
    }

    /// Returns the instructions of the servers that this principal sees.
    pub fn instructions_for(&self, principal: &Principal) -> Arc<str> {
        self.server_instructions.for_principal(principal)
    }

    /// Returns warnings about a provider's definitions, such as omitted ones and names that clients reject.
    pub fn warnings(&self, provider: &str) -> Vec<String> {
        self.warnings.for_provider(provider)
    }

    /// Starts a background refresh of upstreams whose lists have expired. Called when a client reads lists.
    pub fn refresh_stale_lists(&self) {
        self.upstreams().for_each(|upstream| upstream.refresh_if_stale());
    }

    /// Returns `true` if lists depend on the person who reads them ([`PersonalLists`]).
    pub fn has_personal_lists(&self) -> bool {
        self.upstreams().any(|upstream| upstream.has_personal_accounts())
    }

    /// Returns `true` if a stateless server does not declare one of these lists public
    /// (2026-07-28/server/utilities/caching).
    pub fn has_private_lists(&self, lists: ListKinds) -> bool {
        self.upstreams().any(|upstream| upstream.catalog().private_lists.intersects(lists))
    }

    pub fn has_upstreams(&self) -> bool {
        self.upstreams().next().is_some()
    }

    /// Returns `true` if every upstream had been reached when the table was built.
    pub fn was_complete_when_built(&self) -> bool {
        self.unreached.servers.is_empty()
    }

    /// Returns `true` if every upstream has been reached or waits for a person who connects it, so that the lists are complete.
    pub fn is_complete(&self) -> bool {
        self.upstreams().all(|upstream| upstream.negotiated().is_some() || upstream.needs_consent())
    }
}

fn can_serve(provider: &RouteTarget) -> bool {
    provider.upstream().is_none_or(|upstream| {
        upstream.negotiated().is_some()
            && !matches!(upstream.phase(), Phase::Down(_) | Phase::ConsentNeeded(_))
            && upstream.breaker_state() != CircuitState::Open
    })
}

/// The published table. Loading it takes about ten nanoseconds and no message to the actor.
pub type PublishedTable = arc_swap::ArcSwap<RouteTable>;

#[cfg(test)]
mod tests;
