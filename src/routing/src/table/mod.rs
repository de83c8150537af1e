//! The route table, which resolves names to providers. It is immutable; every change builds a new one.

mod aliases;
pub mod list_entries;
pub mod listing;
mod name_conflicts;
mod reserved_names;
pub mod resources;
mod revision_filter;
mod server_instructions;
mod template;
pub mod unreached_upstreams;
pub mod validate;

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, OnceLock},
};

use jsonschema::PatternOptions;
use parking_lot::RwLock;
use serde_json::{Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;

use self::{
    list_entries::{RenderedEntry, ResourceRoute, TemplateRoute},
    name_conflicts::{ConflictRules, NameClaims, ResolvedNames, Warnings},
    reserved_names::ReservedNames,
    resources::Resources,
    server_instructions::ServerInstructions,
    unreached_upstreams::UnreachedUpstreams,
};
use crate::{ruling, target::RouteTarget};
use countersign_domain::{
    changes::Change,
    policy::{Decision, DefinitionStatus, Policy, Requester, Ruling, Verdict},
    principal::Principal,
};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    param_headers::{ParamHeader, annotated_params},
    redact::redact,
    suggest,
};
use countersign_provider::{Provider, ProviderDirectory, ToolDef, schema_cost};
use countersign_telemetry::metrics::Breaker;
use countersign_upstream::{Upstream, names, server::Phase};

pub use self::{aliases::Aliases, list_entries::PromptRoute};

/// A tool in the table: its provider, its schema, and the policy's ruling on it.
pub struct ToolRoute {
    /// The name that clients use.
    pub name: String,
    pub provider: RouteTarget,
    pub def: ToolDef,
    /// `sha256:…` of the definition. Every change stores it, so that a call runs only with the definition that was
    /// approved.
    pub hash: String,
    /// The reviewers' decision about this definition.
    pub standing: DefinitionStatus,
    /// The policy's ruling on calls.
    pub ruling: Ruling,
    /// The policy's ruling on calls that only read, if a writing tool of a module has such calls.
    read_ruling: Option<Ruling>,
    /// Arguments that HTTP clients mirror into headers (2026-07-28/server/tools, `x-mcp-header`).
    pub param_headers: Vec<ParamHeader>,
    /// The output schema of a pending answer, if calls of this tool may be put under review.
    pending_schema: Option<Arc<Value>>,
    validator: OnceLock<Result<Option<jsonschema::Validator>, String>>,
    allows_structured_error: OnceLock<bool>,
    rendered: RenderedEntry,
}

impl ToolRoute {
    /// Returns the tool's entry in `tools/list`.
    #[must_use]
    pub fn list_entry(&self, revision: Revision) -> &str {
        let pending_schema = self.pending_schema.as_deref();
        self.rendered.get_or_write(
            revision,
            self.def.raw.as_ref(),
            |raw, revision| revision_filter::filter_tool(raw, pending_schema, revision),
            || listing::tool_entry(&self.def, &self.name, pending_schema, revision),
        )
    }

    /// Returns `true` if the tool is listed for that principal. Tools that the principal may never call are hidden.
    #[must_use]
    pub fn is_visible_to(&self, principal: &Principal) -> bool {
        self.ruling.is_listed_to(principal)
    }

    /// Returns `true` if the tool's annotations are trusted and say that it only reads.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.def.annotations.read_only_hint && self.standing.trusts_annotations(self.provider.trust_annotations())
    }

    /// Returns the policy's ruling on a call with these arguments.
    #[must_use]
    pub fn ruling_for(&self, arguments: &RawValue) -> &Ruling {
        match (&self.read_ruling, self.def.read_only_when) {
            (Some(read_ruling), Some(reads)) if reads(arguments) => read_ruling,
            _ => &self.ruling,
        }
    }

    /// Returns `true` if a failed call may report its error in `structuredContent` too, because the output schema
    /// allows it.
    #[must_use]
    pub fn allows_structured_error(&self) -> bool {
        *self.allows_structured_error.get_or_init(|| {
            let error = json!({ "error": true, "code": "INTERNAL_ERROR", "message": "", "details": {} });
            let schema = self.def.output_schema.as_ref().filter(|_| self.def.raw.is_none());
            schema.is_some_and(|schema| jsonschema::validator_for(schema).is_ok_and(|schema| schema.is_valid(&error)))
        })
    }

    /// Returns the input schema, compiled on first use and without remote `$ref`s. `None` for an upstream's schema
    /// whose check could take too long ([`schema_cost`], and patterns with look-around or back-references).
    ///
    /// # Errors
    /// `TOOL_EXECUTION_ERROR` if the schema is invalid, which only affects calls of this tool.
    pub fn validator(&self) -> Result<Option<&jsonschema::Validator>, McpError> {
        self.validator.get_or_init(|| compile_schema(&self.def)).as_ref().map(Option::as_ref).map_err(|reason| {
            let message = format!("the input schema of {} cannot be used: {reason}", self.name);
            McpError::new(ErrorKind::ToolExecution, message).with("tool", self.name.clone())
        })
    }

    /// Hashes the data that decides whether the containing list has changed.
    fn hash_identity(&self, hasher: &mut DefaultHasher) {
        self.name.hash(hasher);
        self.pending_schema.is_some().hash(hasher);
        self.ruling.fixed_decision().map(|decision| decision.verdict as u8).hash(hasher);
        match &self.def.raw {
            Some(raw) => raw.get().hash(hasher),
            None => self.list_entry(Revision::MODERN).hash(hasher),
        }
    }
}

fn compile_schema(def: &ToolDef) -> Result<Option<jsonschema::Validator>, String> {
    let unchecked = || {
        tracing::warn!(tool = %def.name, "the input schema of the tool is too complex to check; only its server checks the arguments");
        Ok(None)
    };
    if def.raw.is_some() && !schema_cost::is_bounded(&def.input_schema) {
        return unchecked();
    }
    let options = jsonschema::options().should_validate_formats(true);
    // An upstream may declare another dialect; without a declaration, 2020-12 applies
    // (2025-11-25/basic/index#json-schema-usage).
    let options = if def.raw.is_some() { options } else { options.with_draft(jsonschema::Draft::Draft202012) };
    // Patterns are matched in linear time.
    let linear = PatternOptions::regex().size_limit(MAX_PATTERN_BYTES);
    match options.clone().with_pattern_options(linear).build(&def.input_schema) {
        Ok(validator) => Ok(Some(validator)),
        // Patterns with look-around or back-references are accepted as well.
        Err(_) if def.raw.is_some() && options.build(&def.input_schema).is_ok() => unchecked(),
        Err(error) => Err(redact(&error.to_string()).chars().take(500).collect()),
    }
}

/// Maximum bytes of a compiled pattern of a schema.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The reason why a table cannot be built. The previous table stays in use.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("both {first} and {second} offer {what} named {name:?}")]
    Collision { what: &'static str, name: String, first: String, second: String },
    #[error("the pattern {pattern:?} of the routes is not a regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("the input schema of {provider}'s tool {tool:?} cannot be used: {reason}")]
    Schema { provider: String, tool: String, reason: String },
}

/// Maximum number, and maximum length, of aliases whose resolution is cached.
const MAX_CACHED_ALIASES: usize = 4096;
const MAX_CACHED_ALIAS_LEN: usize = 256;
/// Maximum number of tools whose names are compared with an unknown one.
const MAX_COMPARED_TOOLS: usize = 2000;

/// The generations in which each list last changed. Cursors contain them, so that a page never continues another
/// version of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListVersions {
    pub tools: u64,
    pub prompts: u64,
    /// Covers the resources of upstreams, and all resource templates.
    pub resources: u64,
}

/// An immutable table of all tools, prompts, resources and their providers. The default is an empty one.
#[derive(Default)]
pub struct RouteTable {
    /// Increases with every table.
    pub generation: u64,
    pub versions: ListVersions,
    providers: Vec<RouteTarget>,
    tools: ResolvedNames<ToolRoute>,
    prompts: ResolvedNames<PromptRoute>,
    pub(super) resources: Resources,
    aliases: Aliases,
    /// `None` in an empty table.
    pub policy: Option<Policy>,
    warnings: Warnings,
    server_instructions: ServerInstructions,
    /// A hash of the tools, of the prompts and of the resources, to detect changes.
    list_fingerprints: [u64; 3],
    /// `true` if principals see different lists of tools ([`ToolRoute::is_visible_to`]).
    pub varies_by_principal: bool,
    /// `true` if some tool wants arguments mirrored into headers ([`ToolRoute::param_headers`]).
    pub mirrors_arguments: bool,
    /// Names of request headers that are forwarded to some upstream, without duplicates.
    pub forwarded_headers: Vec<String>,
    alias_cache: RwLock<HashMap<String, Arc<ToolRoute>>>,
    pub(super) unreached: UnreachedUpstreams,
    /// Cancelled when another table has replaced this one.
    pub superseded: CancellationToken,
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
    /// `true` if two providers that claim one name are an error. Otherwise the previous owner keeps the name.
    pub strict: bool,
}

impl RouteTable {
    /// Builds the table that follows the previous one.
    ///
    /// # Errors
    /// Fails if a module's schema does not compile, and, if the build is strict, if two providers claim one name.
    pub fn build(inputs: &TableInputs<'_>) -> Result<Self, RouteError> {
        let TableInputs { providers, policy, aliases, pending_schema, previous, strict } = *inputs;
        let rules = ConflictRules { providers, aliases, strict };
        let mut warnings = Warnings::default();
        let (mut tools, mut prompts) = (NameClaims::new("a tool"), NameClaims::new("a prompt"));
        let mut mirrors_arguments = false;
        // This is determined before the lists are read. An upstream that connects meanwhile counts as unreached until the next
        // table.
        let unreached = UnreachedUpstreams::new(providers, policy.pins());
        let reserved = ReservedNames::new(providers, aliases, &unreached);
        for (index, provider) in providers.iter().enumerate() {
            let mut tools_of_provider = provider.tools();
            tools_of_provider.retain(|def| is_name_allowed(&reserved, provider, (&def.name, true), &mut warnings));
            ruling::pin_first_seen(policy, provider, &tools_of_provider);
            for def in tools_of_provider {
                let Some(route) = build_tool_route(provider, def, policy, pending_schema, &mut warnings)? else {
                    continue;
                };
                mirrors_arguments |= !route.param_headers.is_empty();
                let name = route.name.clone();
                if !tools.add(index, name.clone(), route) {
                    warnings.add(provider.name(), format!("the tool {name:?} is listed twice: the first one counts"));
                }
            }
            for def in provider.prompts() {
                if !is_name_allowed(&reserved, provider, (&def.name, false), &mut warnings) {
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
        let tools = tools.resolve(&rules, current_holder, &mut warnings)?;
        let current_holder =
            |name: &str| previous?.prompts.by_name.get(name).map(|route| route.provider.name().to_owned());
        let prompts = prompts.resolve(&rules, current_holder, &mut warnings)?;
        let resources = Resources::build(&rules, previous, &mut warnings)?;
        let mut table = Self {
            generation: previous.map_or(1, |table| table.generation + 1),
            providers: providers.to_vec(),
            tools,
            prompts,
            resources,
            aliases: aliases.clone(),
            policy: Some(policy.clone()),
            warnings,
            mirrors_arguments,
            forwarded_headers: collect_forwarded_headers(providers),
            unreached,
            ..Self::default()
        };
        table.warnings.log_new(previous.map_or(&Warnings::default(), |table| &table.warnings));
        table.list_fingerprints = table.compute_fingerprints();
        table.server_instructions = ServerInstructions::for_table(&table);
        table.varies_by_principal = table.tools().iter().any(|route| route.ruling.fixed_decision().is_none());
        let old = previous.map_or([0; 3], |table| table.list_fingerprints);
        let versions = previous.map(|table| table.versions).unwrap_or_default();
        let version = |list: usize, before: u64| {
            if table.list_fingerprints[list] == old[list] { before } else { table.generation }
        };
        table.versions = ListVersions {
            tools: version(0, versions.tools),
            prompts: version(1, versions.prompts),
            resources: version(2, versions.resources),
        };
        Ok(table)
    }

    fn compute_fingerprints(&self) -> [u64; 3] {
        let mut tools = DefaultHasher::new();
        self.tools.order.iter().for_each(|route| route.hash_identity(&mut tools));
        let mut prompts = DefaultHasher::new();
        for route in &self.prompts.order {
            route.list_entry(Revision::MODERN).hash(&mut prompts);
        }
        let mut resources = DefaultHasher::new();
        for route in self.resources() {
            route.list_entry(Revision::MODERN).hash(&mut resources);
        }
        for route in self.templates() {
            route.list_entry(Revision::MODERN).hash(&mut resources);
        }
        [tools, prompts, resources].map(|hasher| hasher.finish())
    }

    /// Resolves a tool's name. An exact name comes first, then `<provider>.<name>`, configured prefixes, categories,
    /// patterns and the fallback. Each alias may use the server's own name of the tool.
    #[must_use]
    pub fn find_tool(&self, name: &str) -> Option<Arc<ToolRoute>> {
        if let Some(route) = self.tools.by_name.get(name) {
            return Some(self.first_available(route));
        }
        // Failover does not apply to aliases: an alias names its provider, or must always lead to the same one.
        if let Some(route) = self.alias_cache.read().get(name) {
            return Some(route.clone());
        }
        let route = self.resolve_alias(name)?;
        // Unresolved names are not cached, because clients could fill the cache with invented names.
        if name.len() <= MAX_CACHED_ALIAS_LEN {
            let mut alias_cache = self.alias_cache.write();
            if alias_cache.len() < MAX_CACHED_ALIASES {
                alias_cache.insert(name.to_owned(), route.clone());
            }
        }
        Some(route)
    }

    fn resolve_alias(&self, name: &str) -> Option<Arc<ToolRoute>> {
        let by_provider = || {
            self.providers.iter().find_map(|provider| {
                let own = name.strip_prefix(provider.name())?.strip_prefix('.')?;
                self.tool_by_own_name(provider, own)
            })
        };
        let by_prefix = || {
            self.aliases.prefixes.iter().find_map(|(prefix, provider)| {
                let own = name.strip_prefix(prefix.as_str())?;
                self.tool_by_own_name(self.provider(provider)?, own)
            })
        };
        let by_category = || {
            self.aliases.categories.iter().find_map(|category| {
                let own = category.own_name(name)?;
                self.tool_by_own_name(self.provider(&category.provider)?, &own)
            })
        };
        let by_pattern = || {
            self.aliases.patterns.iter().find_map(|pattern| {
                let captures = pattern.pattern.captures(name)?;
                let mut target = String::new();
                captures.expand(&pattern.to, &mut target);
                self.tools.by_name.get(&target).cloned()
            })
        };
        let by_fallback = || self.tool_by_own_name(self.provider(self.aliases.fallback.as_deref()?)?, name);
        by_provider().or_else(by_prefix).or_else(by_category).or_else(by_pattern).or_else(by_fallback)
    }

    /// Returns the tool that replaces one whose server is unavailable: the tool of the same own name at the configured
    /// fallback provider.
    #[must_use]
    pub fn fallback_of(&self, route: &ToolRoute) -> Option<Arc<ToolRoute>> {
        let upstream = route.provider.upstream()?;
        let fallback = self.provider(upstream.config.fallback.as_deref()?)?;
        let own = upstream.names.own_name(&route.def.name).unwrap_or(&route.def.name);
        let prefix = fallback.upstream().map_or("", |upstream| upstream.config.prefix.as_str());
        self.tool_of_provider(&format!("{prefix}{own}"), fallback.name())
    }

    /// Returns `true` if the policy allows the method for the requester (see [`Policy::allows_method`]). A server is also gated
    /// if its configuration hides some of its tools.
    #[must_use]
    pub fn allows_method(&self, upstream: &Upstream, method: &str, requester: &Requester<'_>) -> bool {
        let server = upstream.config.name.as_str();
        let hides_tools = !upstream.config.tools_allow.is_empty() || !upstream.config.tools_deny.is_empty();
        let is_gated = || {
            let mut tools = self.tools().iter().filter(|route| route.provider.name() == server);
            hides_tools || tools.any(|route| route.ruling.may_block(requester.principal))
        };
        self.policy.as_ref().is_some_and(|policy| policy.allows_method(server, method, requester, is_gated))
    }

    /// Returns the policy if it could refuse a resource or prompt to some principal.
    #[must_use]
    pub fn refusing_policy(&self) -> Option<&Policy> {
        self.policy.as_ref().filter(|policy| policy.can_refuse_access())
    }

    /// Returns a provider's tool by its own name or by the name that clients use.
    fn tool_by_own_name(&self, provider: &RouteTarget, own: &str) -> Option<Arc<ToolRoute>> {
        let prefix = provider.upstream().map_or("", |upstream| upstream.config.prefix.as_str());
        let exposed = (!prefix.is_empty()).then(|| format!("{prefix}{own}"));
        exposed
            .and_then(|name| self.tool_of_provider(&name, provider.name()))
            .or_else(|| self.tool_of_provider(own, provider.name()))
    }

    /// Returns the tool of that name at that provider, even if another provider serves the name.
    fn tool_of_provider(&self, name: &str, provider: &str) -> Option<Arc<ToolRoute>> {
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
    #[must_use]
    pub fn nearest_tool(&self, name: &str, principal: &Principal) -> Option<String> {
        let visible = |route: &&Arc<ToolRoute>| route.is_visible_to(principal);
        let names: Vec<&str> =
            self.tools().iter().filter(visible).take(MAX_COMPARED_TOOLS).map(|route| route.name.as_str()).collect();
        suggest::nearest_tool(name, &names).map(str::to_owned)
    }

    #[must_use]
    pub fn tools(&self) -> &[Arc<ToolRoute>] {
        &self.tools.order
    }

    #[must_use]
    pub fn prompt(&self, name: &str) -> Option<Arc<PromptRoute>> {
        self.prompts.by_name.get(name).cloned()
    }

    #[must_use]
    pub fn prompts(&self) -> &[Arc<PromptRoute>] {
        &self.prompts.order
    }

    /// Returns the resources that upstreams list. Modules are asked for theirs on each request.
    #[must_use]
    pub fn resources(&self) -> &[Arc<ResourceRoute>] {
        &self.resources.resources.order
    }

    #[must_use]
    pub fn templates(&self) -> &[Arc<TemplateRoute>] {
        &self.resources.templates.order
    }

    #[must_use]
    pub fn providers(&self) -> &[RouteTarget] {
        &self.providers
    }

    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&RouteTarget> {
        self.providers.iter().find(|provider| provider.name() == name)
    }

    /// Returns the provider that serves a URI or a URI template.
    #[must_use]
    pub fn provider_for_uri(&self, uri: &str) -> Option<RouteTarget> {
        self.resources.find(uri).cloned()
    }

    /// Returns the instructions of the servers that this principal sees.
    #[must_use]
    pub fn instructions_for(&self, principal: &Principal) -> Arc<str> {
        self.server_instructions.for_principal(principal)
    }

    /// Returns warnings about a provider's definitions, such as omitted ones and names that clients reject.
    #[must_use]
    pub fn warnings(&self, provider: &str) -> Vec<String> {
        self.warnings.for_provider(provider)
    }

    /// Starts a background refresh of upstreams whose lists have expired. Called when a client reads lists.
    pub fn refresh_stale_lists(&self) {
        self.providers
            .iter()
            .filter_map(|provider| provider.upstream())
            .for_each(|upstream| upstream.refresh_if_stale());
    }

    #[must_use]
    pub fn has_upstreams(&self) -> bool {
        self.providers.iter().any(|provider| provider.upstream().is_some())
    }

    /// Returns `true` if every upstream has been reached, so that the lists are complete.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.providers.iter().all(is_connected)
    }
}

/// Returns `false` and adds a warning if the provider may not offer a tool (or prompt) of that name.
fn is_name_allowed(
    reserved: &ReservedNames<'_>,
    provider: &RouteTarget,
    (name, is_tool): (&str, bool),
    warnings: &mut Warnings,
) -> bool {
    match reserved.refusal(provider, name, is_tool) {
        Some(why) => {
            warnings.add(provider.name(), why);
            false
        }
        None => true,
    }
}

fn is_connected(provider: &RouteTarget) -> bool {
    provider.upstream().is_none_or(|upstream| upstream.negotiated().is_some())
}

fn can_serve(provider: &RouteTarget) -> bool {
    provider.upstream().is_none_or(|upstream| {
        upstream.negotiated().is_some()
            && !matches!(upstream.phase(), Phase::Down(_))
            && upstream.breaker_state() != Breaker::Open
    })
}

fn collect_forwarded_headers(providers: &[RouteTarget]) -> Vec<String> {
    let mut names = Vec::new();
    for name in providers.iter().filter_map(|provider| provider.upstream()).flat_map(|up| &up.config.forward_headers) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// Returns `None` and adds a warning if the tool must not be offered.
fn build_tool_route(
    provider: &RouteTarget,
    def: ToolDef,
    policy: &Policy,
    pending_schema: &Arc<Value>,
    warnings: &mut Warnings,
) -> Result<Option<Arc<ToolRoute>>, RouteError> {
    let fault =
        |reason: String| RouteError::Schema { provider: provider.name().to_owned(), tool: def.name.clone(), reason };
    let upstream = provider.upstream();
    let param_headers = match (annotated_params(&def.input_schema), upstream) {
        (Ok(headers), _) => headers,
        (Err(reason), None) => return Err(fault(reason)),
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
    let validator = OnceLock::new();
    if def.raw.is_none() {
        // A module's schema is part of the gateway and must compile at start.
        validator.get_or_init(|| compile_schema(&def)).as_ref().map_err(|reason| fault(reason.clone()))?;
    }
    let hash = ruling::definition_hash(&def);
    let (standing, ruling) = ruling::tool_ruling(policy, provider, &def, &hash);
    let read_ruling = def.read_only_when.filter(|_| provider.is_module()).map(|_| {
        let mut reader = def.clone();
        reader.annotations.read_only_hint = true;
        reader.annotations.destructive_hint = false;
        ruling::tool_ruling(policy, provider, &reader, &hash).1
    });
    let pending_schema = ruling.may_review().then(|| pending_schema.clone());
    Ok(Some(Arc::new(ToolRoute {
        name: def.name.clone(),
        provider: provider.clone(),
        def,
        hash,
        standing,
        ruling,
        read_ruling,
        param_headers,
        pending_schema,
        validator,
        allows_structured_error: OnceLock::new(),
        rendered: RenderedEntry::default(),
    })))
}

/// The published table. Loading it takes about ten nanoseconds and no message to the actor.
pub type PublishedTable = arc_swap::ArcSwap<RouteTable>;

/// Finds providers in the published table, so that the Executor does not depend on routes.
pub struct RouteDirectory(pub Arc<PublishedTable>);

impl ProviderDirectory for RouteDirectory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.0.load().provider(name).map(RouteTarget::provider)
    }

    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String> {
        self.0.load().tool_of_provider(tool, provider).map(|route| route.hash.clone())
    }

    fn verdict(&self, provider: &str, tool: &str, principal: &Principal, arguments: &RawValue) -> Verdict {
        let Some(route) = self.0.load().tool_of_provider(tool, provider) else { return Verdict::Deny };
        // There is no session, so conditions on sessions are false.
        let requester = Requester { principal, transport: "", revision: "", client: None };
        // Calls that simulate mode lets through are hidden too, because the mode may change.
        route.ruling_for(arguments).decide(&requester, arguments).intended_verdict()
    }

    fn is_pinned(&self, provider: &str, tool: &str) -> bool {
        self.0.load().tool_of_provider(tool, provider).is_some_and(|route| route.standing.mark().is_none())
    }

    fn is_accepted(&self, provider: &str, tool: &str) -> bool {
        self.0.load().tool_of_provider(tool, provider).is_some_and(|route| route.standing == DefinitionStatus::Accepted)
    }

    fn validate(&self, provider: &str, tool: &str, arguments: &RawValue) -> Result<(), McpError> {
        let route = self.0.load().tool_of_provider(tool, provider);
        let route = route.ok_or_else(|| match self.has_tools(provider) {
            true => McpError::new(ErrorKind::ToolNotFound, format!("{provider} offers no tool {tool} now")),
            // The tools of a provider that was not reached are unknown.
            false => McpError::new(ErrorKind::UpstreamUnavailable, format!("{provider} has not been reached yet")),
        })?;
        validate::check_arguments(&route, arguments)
    }

    fn judge_edited_arguments(&self, change: &Change, arguments: &RawValue) -> Option<Decision> {
        let proposer = change.proposer.to_agent();
        let requester = Requester::for_proposer(&change.proposer, &proposer);
        let route = self.0.load().tool_of_provider(&change.tool, &change.provider)?;
        Some(route.ruling_for(arguments).decide(&requester, arguments))
    }

    fn has_tools(&self, provider: &str) -> bool {
        self.0.load().tools().iter().any(|route| route.provider.name() == provider)
    }
}

#[cfg(test)]
mod tests;
