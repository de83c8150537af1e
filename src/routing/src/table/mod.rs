//! The route table: where a name leads. Immutable; a change makes a new one.

mod aliases;
pub mod awaited;
pub mod listing;
mod name_conflicts;
pub mod rendered;
mod reserved;
pub mod resources;
mod revision_filter;
mod server_instructions;
mod template;
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
    awaited::Awaited,
    name_conflicts::{Claims, Rules, Settled, Warnings},
    rendered::{Rendered, ResourceRoute, TemplateRoute},
    reserved::Reserved,
    resources::Resources,
    server_instructions::Briefings,
};
use crate::{ruling, target::Target};
use countersign_domain::{
    changes::Change,
    policy::{Asker, CallFacts, Decision, Policy, Ruling, Standing, Verdict},
    principal::{Principal, Role},
};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    param_headers::{ParamHeader, x_mcp_headers},
    redact::redacted,
    suggest,
};
use countersign_provider::{Provider, ProviderDirectory, ToolDef, schema_cost};
use countersign_telemetry::metrics::Breaker;
use countersign_upstream::{Upstream, names, server::Phase};

pub use self::{aliases::Aliases, rendered::PromptRoute};

/// A tool as it is reached: its provider, its checked schema, and what policy says of it.
pub struct ToolRoute {
    /// The name clients use.
    pub name: String,
    pub provider: Target,
    pub def: ToolDef,
    /// `sha256:…` of the definition; part of every change, so that nobody approves one tool and runs another.
    pub hash: String,
    /// What was said of this definition.
    pub standing: Standing,
    /// What the policy says of calls.
    pub ruling: Ruling,
    /// What it says of those that only read, of a module's tool that writes otherwise.
    reading: Option<Ruling>,
    /// Arguments that HTTP clients mirror into headers (2026-07-28/server/tools, `x-mcp-header`).
    pub param_headers: Vec<ParamHeader>,
    /// The schema of the answer of a call that waits for a person, where that can happen.
    pending: Option<Arc<Value>>,
    input: OnceLock<Result<Option<jsonschema::Validator>, String>>,
    lists_errors: OnceLock<bool>,
    rendered: Rendered,
}

impl ToolRoute {
    /// The tool's entry in `tools/list`.
    #[must_use]
    pub fn listed(&self, revision: Revision) -> &str {
        let pending = self.pending.as_deref();
        self.rendered.text(
            revision,
            self.def.raw.as_ref(),
            |raw| revision_filter::tool(raw, pending, revision),
            || listing::tool(&self.def, &self.name, pending, revision),
        )
    }

    /// Whether the tool is listed to that principal: what somebody may never call is not.
    #[must_use]
    pub fn visible_to(&self, principal: &Principal) -> bool {
        self.ruling.lists_to(principal)
    }

    /// Whether it says, and is believed, that it only reads.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.def.annotations.read_only_hint && self.standing.is_believed(self.provider.trust_annotations())
    }

    /// What the policy says of a call with these arguments.
    #[must_use]
    pub fn ruling_on(&self, arguments: &RawValue) -> &Ruling {
        match (&self.reading, self.def.reads_when) {
            (Some(reading), Some(reads)) if reads(arguments) => reading,
            _ => &self.ruling,
        }
    }

    /// Whether the answer of a call that failed may have the error in `structuredContent` too: the output schema allows
    /// for it.
    #[must_use]
    pub fn lists_errors(&self) -> bool {
        *self.lists_errors.get_or_init(|| {
            let error = json!({ "error": true, "code": "INTERNAL_ERROR", "message": "", "details": {} });
            let schema = self.def.output_schema.as_ref().filter(|_| self.def.raw.is_none());
            schema.is_some_and(|schema| jsonschema::validator_for(schema).is_ok_and(|schema| schema.is_valid(&error)))
        })
    }

    /// The input schema, compiled when it is first needed. Network `$ref`s are never followed. `None` for one of an
    /// upstream's that could take too long ([`schema_cost`], and patterns that look around or back).
    ///
    /// # Errors
    /// `TOOL_EXECUTION_ERROR` for a schema that is none; it concerns nobody but who calls the tool.
    pub fn input(&self) -> Result<Option<&jsonschema::Validator>, McpError> {
        self.input.get_or_init(|| compile(&self.def)).as_ref().map(Option::as_ref).map_err(|reason| {
            let message = format!("the input schema of {} cannot be used: {reason}", self.name);
            McpError::new(ErrorKind::ToolExecution, message).with("tool", self.name.clone())
        })
    }

    /// What decides whether the list that it stands in has changed.
    fn identify(&self, hasher: &mut DefaultHasher) {
        self.name.hash(hasher);
        self.pending.is_some().hash(hasher);
        self.ruling.fixed().map(|decision| decision.verdict as u8).hash(hasher);
        match &self.def.raw {
            Some(raw) => raw.get().hash(hasher),
            None => self.listed(Revision::MODERN).hash(hasher),
        }
    }
}

fn compile(def: &ToolDef) -> Result<Option<jsonschema::Validator>, String> {
    let unchecked = || {
        tracing::warn!(tool = %def.name, "its input schema is too intricate: only its server checks arguments against it");
        Ok(None)
    };
    if def.raw.is_some() && !schema_cost::is_bounded(&def.input_schema) {
        return unchecked();
    }
    let options = jsonschema::options().should_validate_formats(true);
    // An upstream may write in another dialect and say so; 2020-12 is what is meant where nothing is said
    // (2025-11-25/basic/index#json-schema-usage).
    let options = if def.raw.is_some() { options } else { options.with_draft(jsonschema::Draft::Draft202012) };
    // No pattern takes more than linear time.
    let linear = PatternOptions::regex().size_limit(MAX_PATTERN);
    match options.clone().with_pattern_options(linear).build(&def.input_schema) {
        Ok(validator) => Ok(Some(validator)),
        // Patterns that look around or back are patterns too.
        Err(_) if def.raw.is_some() && options.build(&def.input_schema).is_ok() => unchecked(),
        Err(error) => Err(redacted(&error.to_string()).chars().take(500).collect()),
    }
}

/// Bytes of a compiled pattern of a schema.
const MAX_PATTERN: usize = 1 << 20;

/// Why a table cannot be built; the old one stays.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("both {first} and {second} offer {what} named {name:?}")]
    Collision { what: &'static str, name: String, first: String, second: String },
    #[error("the pattern {pattern:?} of the routes is not a regular expression: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("the input schema of {provider}'s tool {tool:?} cannot be used: {reason}")]
    Schema { provider: String, tool: String, reason: String },
}

/// Names that lead to a tool by a detour are remembered up to this number and this length.
const REMEMBERED: usize = 4096;
const REMEMBERED_LEN: usize = 256;
/// Tools whose names are compared with an unknown one.
const MAX_COMPARED: usize = 2000;

/// The generations in which each list last changed: cursors name them, so that a page is never counted in another list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    pub tools: u64,
    pub prompts: u64,
    /// Of what upstreams list, and of all templates.
    pub resources: u64,
}

/// See the module's page.
pub struct RouteTable {
    /// Rises with every table.
    pub generation: u64,
    pub versions: Versions,
    providers: Vec<Target>,
    tools: Settled<ToolRoute>,
    prompts: Settled<PromptRoute>,
    pub(super) resources: Resources,
    aliases: Aliases,
    /// `None` in an empty table.
    policy: Option<Policy>,
    warnings: Warnings,
    briefings: Briefings,
    /// Of each list, to tell whether it has changed.
    prints: [u64; 3],
    varies: bool,
    /// Some tool wants arguments mirrored into headers.
    mirrors: bool,
    /// Headers of requests that some upstream gets, each once.
    forwarded: Vec<String>,
    detours: RwLock<HashMap<String, Arc<ToolRoute>>>,
    pub(super) awaited: Awaited,
    /// Cancelled when another table has taken its place.
    pub superseded: CancellationToken,
}

/// What a table is built of.
pub struct Build<'a> {
    pub providers: &'a [Target],
    pub policy: &'a Policy,
    pub aliases: &'a Aliases,
    /// The schema of the answer of a call that waits for a person.
    pub pending: &'a Arc<Value>,
    /// The table that this one takes the place of.
    pub previous: Option<&'a RouteTable>,
    /// Two providers that claim one name are an error. Else the one that had it keeps it.
    pub strict: bool,
}

impl RouteTable {
    /// An empty table, from before the first provider.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            generation: 0,
            versions: Versions::default(),
            providers: Vec::new(),
            tools: Settled::default(),
            prompts: Settled::default(),
            resources: Resources::default(),
            aliases: Aliases::default(),
            policy: None,
            warnings: Warnings::default(),
            briefings: Briefings::default(),
            prints: [0; 3],
            varies: false,
            mirrors: false,
            forwarded: Vec::new(),
            detours: RwLock::default(),
            awaited: Awaited::default(),
            superseded: CancellationToken::new(),
        }
    }

    /// Builds the first table of these providers.
    ///
    /// # Errors
    /// A name that two providers claim, or a module's schema that does not compile.
    pub fn build(
        generation: u64,
        providers: &[Target],
        policy: &Policy,
        aliases: &Aliases,
        pending: &Value,
    ) -> Result<Self, RouteError> {
        let pending = &Arc::new(pending.clone());
        let build = Build { providers, policy, aliases, pending, previous: None, strict: true };
        Ok(Self { generation, ..Self::of(&build)? })
    }

    /// Builds the table after the previous one.
    ///
    /// # Errors
    /// As [`RouteTable::build`]; collisions only where the build is strict.
    pub fn of(build: &Build<'_>) -> Result<Self, RouteError> {
        let Build { providers, policy, aliases, pending, previous, strict } = *build;
        let rules = Rules { providers, aliases, strict };
        let mut warnings = Warnings::default();
        let (mut tools, mut prompts) = (Claims::new("a tool"), Claims::new("a prompt"));
        let mut mirrors = false;
        // Before what they offer is read: who comes meanwhile is waited for until the next table.
        let awaited = Awaited::of(providers, policy.pins());
        let reserved = Reserved::new(providers, aliases, &awaited);
        for (index, provider) in providers.iter().enumerate() {
            let mut offered = provider.tools();
            offered.retain(|def| admitted(&reserved, provider, (&def.name, true), &mut warnings));
            ruling::observe(policy, provider, &offered);
            for def in offered {
                let Some(route) = tool_route(provider, def, policy, pending, &mut warnings)? else { continue };
                mirrors |= !route.param_headers.is_empty();
                let name = route.name.clone();
                if !tools.add(index, name.clone(), route) {
                    warnings.add(provider.name(), format!("the tool {name:?} is listed twice: the first one counts"));
                }
            }
            for def in provider.prompts() {
                if !admitted(&reserved, provider, (&def.name, false), &mut warnings) {
                    continue;
                }
                let name = def.name.clone();
                if !prompts.add(index, name.clone(), Arc::new(PromptRoute::new(provider.clone(), def))) {
                    warnings.add(provider.name(), format!("the prompt {name:?} is listed twice: the first one counts"));
                }
            }
        }
        let held = |name: &str| {
            let known = || providers.iter().map(|provider| provider.name()).find(|p| awaited.knows(p, name));
            let before = previous.and_then(|table| table.tools.by_name.get(name));
            before.map(|route| route.provider.name()).or_else(known).map(str::to_owned)
        };
        let tools = tools.settle(&rules, held, &mut warnings)?;
        let held = |name: &str| previous?.prompts.by_name.get(name).map(|route| route.provider.name().to_owned());
        let prompts = prompts.settle(&rules, held, &mut warnings)?;
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
            mirrors,
            forwarded: forwarded(providers),
            awaited,
            ..Self::empty()
        };
        table.warnings.log(previous.map_or(&Warnings::default(), |table| &table.warnings));
        table.prints = table.fingerprints();
        table.briefings = Briefings::of(&table);
        table.varies = table.tools().iter().any(|route| route.ruling.fixed().is_none());
        let old = previous.map_or([0; 3], |table| table.prints);
        let versions = previous.map(|table| table.versions).unwrap_or_default();
        let version = |list: usize, before: u64| {
            if table.prints[list] == old[list] { before } else { table.generation }
        };
        table.versions = Versions {
            tools: version(0, versions.tools),
            prompts: version(1, versions.prompts),
            resources: version(2, versions.resources),
        };
        Ok(table)
    }

    fn fingerprints(&self) -> [u64; 3] {
        let mut tools = DefaultHasher::new();
        self.tools.order.iter().for_each(|route| route.identify(&mut tools));
        let mut prompts = DefaultHasher::new();
        for route in &self.prompts.order {
            route.listed(Revision::MODERN).hash(&mut prompts);
        }
        let mut resources = DefaultHasher::new();
        for route in self.resources.listed() {
            route.listed(Revision::MODERN).hash(&mut resources);
        }
        for route in self.resources.templates() {
            route.listed(Revision::MODERN).hash(&mut resources);
        }
        [tools, prompts, resources].map(|hasher| hasher.finish())
    }

    /// Where a tool's name leads: the exact name; then `<provider>.<name>`, the configured prefixes, categories and
    /// patterns, and the fallback, each of which may name a tool as its server does; else nowhere.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<Arc<ToolRoute>> {
        if let Some(route) = self.tools.by_name.get(name) {
            return Some(self.best(route));
        }
        // A detour names a provider, or should lead to one and the same place.
        if let Some(route) = self.detours.read().get(name) {
            return Some(route.clone());
        }
        let route = self.detour(name)?;
        // Names that lead nowhere are not remembered: anybody can make those up.
        if name.len() <= REMEMBERED_LEN {
            let mut detours = self.detours.write();
            if detours.len() < REMEMBERED {
                detours.insert(name.to_owned(), route.clone());
            }
        }
        Some(route)
    }

    fn detour(&self, name: &str) -> Option<Arc<ToolRoute>> {
        let by_provider = || {
            self.providers.iter().find_map(|provider| {
                let own = name.strip_prefix(provider.name())?.strip_prefix('.')?;
                self.tool_of(provider, own)
            })
        };
        let by_prefix = || {
            self.aliases.prefixes.iter().find_map(|(prefix, provider)| {
                let own = name.strip_prefix(prefix.as_str())?;
                self.tool_of(self.provider(provider)?, own)
            })
        };
        let by_category = || {
            self.aliases.categories.iter().find_map(|category| {
                let own = category.own(name)?;
                self.tool_of(self.provider(&category.provider)?, &own)
            })
        };
        let by_pattern = || {
            self.aliases.patterns.iter().find_map(|pattern| {
                let captures = pattern.pattern.captures(name)?;
                let mut to = String::new();
                captures.expand(&pattern.to, &mut to);
                self.tools.by_name.get(&to).cloned()
            })
        };
        let by_fallback = || self.tool_of(self.provider(self.aliases.fallback.as_deref()?)?, name);
        by_provider().or_else(by_prefix).or_else(by_category).or_else(by_pattern).or_else(by_fallback)
    }

    /// The tool that answers in the place of one whose server is not tried: that of the same name, as servers call it,
    /// of the provider that the server's configuration names.
    #[must_use]
    pub fn fallback_of(&self, route: &ToolRoute) -> Option<Arc<ToolRoute>> {
        let upstream = route.provider.upstream()?;
        let other = self.provider(upstream.config.fallback.as_deref()?)?;
        let own = upstream.names.own(&route.def.name).unwrap_or(&route.def.name);
        let prefix = other.upstream().map_or("", |upstream| upstream.config.prefix.as_str());
        self.served_by(&format!("{prefix}{own}"), other.name())
    }

    /// See [`Policy::passes`]. A server has tools that are not free while some are held back by its configuration.
    #[must_use]
    pub fn passes(&self, upstream: &Upstream, method: &str, asker: &Asker<'_>) -> bool {
        let server = upstream.config.name.as_str();
        let held_back = !upstream.config.tools_allow.is_empty() || !upstream.config.tools_deny.is_empty();
        let gated = || {
            let mut own = self.tools().iter().filter(|route| route.provider.name() == server);
            held_back || own.any(|route| route.ruling.may_stop(asker.principal))
        };
        self.policy.as_ref().is_some_and(|policy| policy.passes(server, method, asker, gated))
    }

    /// `None` in an empty table.
    #[must_use]
    pub fn policy(&self) -> Option<&Policy> {
        self.policy.as_ref()
    }

    /// The policy, where it could refuse some resource or prompt to somebody.
    #[must_use]
    pub fn refusing_policy(&self) -> Option<&Policy> {
        self.policy.as_ref().filter(|policy| policy.refuses_some())
    }

    /// A provider's tool, by its own name or by that which clients use.
    fn tool_of(&self, provider: &Target, own: &str) -> Option<Arc<ToolRoute>> {
        let prefix = provider.upstream().map_or("", |upstream| upstream.config.prefix.as_str());
        let exposed = (!prefix.is_empty()).then(|| format!("{prefix}{own}"));
        exposed.and_then(|name| self.served_by(&name, provider.name())).or_else(|| self.served_by(own, provider.name()))
    }

    /// The tool of that name at that provider, whoever else serves it.
    fn served_by(&self, name: &str, provider: &str) -> Option<Arc<ToolRoute>> {
        let first = self.tools.by_name.get(name)?;
        let others = self.tools.others.get(name).into_iter().flatten();
        std::iter::once(first).chain(others).find(|route| route.provider.name() == provider).cloned()
    }

    /// Of several that serve one name, the first that can take calls.
    fn best(&self, first: &Arc<ToolRoute>) -> Arc<ToolRoute> {
        if self.tools.others.is_empty() || can_serve(&first.provider) {
            return first.clone();
        }
        let mut others = self.tools.others.get(&first.name).into_iter().flatten();
        others.find(|other| can_serve(&other.provider)).unwrap_or(first).clone()
    }

    /// The tool that an unknown name was probably meant to be, among those that the principal may see.
    #[must_use]
    pub fn nearest_tool(&self, name: &str, principal: &Principal) -> Option<String> {
        let visible = |route: &&Arc<ToolRoute>| route.visible_to(principal);
        let names: Vec<&str> =
            self.tools().iter().filter(visible).take(MAX_COMPARED).map(|route| route.name.as_str()).collect();
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

    /// Those that upstreams list; modules are asked each time.
    #[must_use]
    pub fn resources(&self) -> &[Arc<ResourceRoute>] {
        self.resources.listed()
    }

    #[must_use]
    pub fn templates(&self) -> &[Arc<TemplateRoute>] {
        self.resources.templates()
    }

    pub(super) fn aliases(&self) -> &Aliases {
        &self.aliases
    }

    #[must_use]
    pub fn providers(&self) -> &[Target] {
        &self.providers
    }

    #[must_use]
    pub fn provider(&self, name: &str) -> Option<&Target> {
        self.providers.iter().find(|provider| provider.name() == name)
    }

    /// The provider that answers for a URI or a URI template.
    #[must_use]
    pub fn resource(&self, uri: &str) -> Option<Target> {
        self.resources.find(uri).cloned()
    }

    /// What servers say of themselves to models, as far as this principal sees them.
    #[must_use]
    pub fn briefings(&self, principal: &Principal) -> Arc<str> {
        self.briefings.for_principal(principal)
    }

    /// What is wrong with what a provider offers: definitions that are left out, names that clients refuse.
    #[must_use]
    pub fn warnings(&self, provider: &str) -> Vec<String> {
        self.warnings.of(provider)
    }

    /// Somebody reads the lists: upstreams whose lists are older than they allow read them again in the background.
    pub fn refresh(&self) {
        self.providers
            .iter()
            .filter_map(|provider| provider.upstream())
            .for_each(|upstream| upstream.refresh_if_stale());
    }

    #[must_use]
    pub fn has_upstreams(&self) -> bool {
        self.providers.iter().any(|provider| provider.upstream().is_some())
    }

    /// Whether there is a tool that wants arguments mirrored into headers ([`ToolRoute::param_headers`]).
    #[must_use]
    pub fn mirrors_arguments(&self) -> bool {
        self.mirrors
    }

    /// Headers of a client's request that the configuration of some upstream has passed on.
    #[must_use]
    pub fn forwarded_headers(&self) -> &[String] {
        &self.forwarded
    }

    /// Whether principals see different lists of tools ([`ToolRoute::visible_to`]).
    #[must_use]
    pub fn varies_by_principal(&self) -> bool {
        self.varies
    }

    /// Every upstream was reached: nothing is missing in the lists only because it is early.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.providers.iter().all(is_up)
    }
}

/// Whether a provider may offer a tool (or prompt) of that name; the warning says why not.
fn admitted(reserved: &Reserved<'_>, provider: &Target, (name, tool): (&str, bool), warnings: &mut Warnings) -> bool {
    match reserved.refuses(provider, name, tool) {
        Some(why) => {
            warnings.add(provider.name(), why);
            false
        }
        None => true,
    }
}

fn is_up(provider: &Target) -> bool {
    provider.upstream().is_none_or(|upstream| upstream.negotiated().is_some())
}

fn can_serve(provider: &Target) -> bool {
    provider.upstream().is_none_or(|upstream| {
        upstream.negotiated().is_some()
            && !matches!(upstream.phase(), Phase::Down(_))
            && upstream.breaker_state() != Breaker::Open
    })
}

fn forwarded(providers: &[Target]) -> Vec<String> {
    let mut names = Vec::new();
    for name in providers.iter().filter_map(|provider| provider.upstream()).flat_map(|up| &up.config.forward_headers) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// `None` for a tool that must not be offered; the warning says why.
fn tool_route(
    provider: &Target,
    def: ToolDef,
    policy: &Policy,
    pending: &Arc<Value>,
    warnings: &mut Warnings,
) -> Result<Option<Arc<ToolRoute>>, RouteError> {
    let fault =
        |reason: String| RouteError::Schema { provider: provider.name().to_owned(), tool: def.name.clone(), reason };
    let upstream = provider.upstream();
    let param_headers = match (x_mcp_headers(&def.input_schema), upstream) {
        (Ok(headers), _) => headers,
        (Err(reason), None) => return Err(fault(reason)),
        // Clients must not use such a tool (2026-07-28/server/tools, `x-mcp-header`), and this is one.
        (Err(reason), Some(upstream)) if upstream.negotiated().is_some_and(|n| n.revision.era() == Era::Modern) => {
            warnings.add(provider.name(), format!("the tool {:?} is left out: {reason}", def.name));
            return Ok(None);
        }
        // To a server of the handshake era the annotation means nothing.
        (Err(_), Some(_)) => Vec::new(),
    };
    if let Some(reason) = upstream.and_then(|_| names::refused_by_clients(&def.name)) {
        warnings.add(provider.name(), format!("some clients refuse the tool name {:?}: {reason}", def.name));
    }
    let input = OnceLock::new();
    if def.raw.is_none() {
        // A module's schema is ours, and must be right from the start.
        input.get_or_init(|| compile(&def)).as_ref().map_err(|reason| fault(reason.clone()))?;
    }
    let hash = ruling::definition_hash(&def);
    let (standing, ruling) = ruling::ruling(policy, provider, &def, &hash);
    let reading = def.reads_when.filter(|_| provider.is_module()).map(|_| {
        let mut reader = def.clone();
        reader.annotations.read_only_hint = true;
        reader.annotations.destructive_hint = false;
        ruling::ruling(policy, provider, &reader, &hash).1
    });
    let pending = ruling.may_review().then(|| pending.clone());
    Ok(Some(Arc::new(ToolRoute {
        name: def.name.clone(),
        provider: provider.clone(),
        def,
        hash,
        standing,
        ruling,
        reading,
        param_headers,
        pending,
        input,
        lists_errors: OnceLock::new(),
        rendered: Rendered::default(),
    })))
}

/// The published snapshot: loading it costs some ten nanoseconds and no hop.
pub type Published = arc_swap::ArcSwap<RouteTable>;

/// Lets the Executor find providers without knowing of routes.
pub struct Directory(pub Arc<Published>);

impl ProviderDirectory for Directory {
    fn provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        self.0.load().provider(name).map(Target::provider)
    }

    fn tool_hash(&self, provider: &str, tool: &str) -> Option<String> {
        self.0.load().served_by(tool, provider).map(|route| route.hash.clone())
    }

    fn verdict(&self, provider: &str, tool: &str, principal: &Principal, arguments: &RawValue) -> Verdict {
        let Some(route) = self.0.load().served_by(tool, provider) else { return Verdict::Deny };
        // Of no session: what a rule asks of one is not so.
        let call = CallFacts { principal, transport: "", revision: "", client: None, arguments };
        // What simulate mode lets through is hidden all the same once the mode is another.
        route.ruling_on(arguments).decide(&call).meant()
    }

    fn is_pinned(&self, provider: &str, tool: &str) -> bool {
        self.0.load().served_by(tool, provider).is_some_and(|route| route.standing.mark().is_none())
    }

    fn is_accepted(&self, provider: &str, tool: &str) -> bool {
        self.0.load().served_by(tool, provider).is_some_and(|route| route.standing == Standing::Accepted)
    }

    fn validate(&self, provider: &str, tool: &str, arguments: &RawValue) -> Result<(), McpError> {
        let route = self.0.load().served_by(tool, provider);
        let route = route.ok_or_else(|| match self.has_tools(provider) {
            true => McpError::new(ErrorKind::ToolNotFound, format!("{provider} offers no tool {tool} now")),
            // That says nothing about the tool.
            false => McpError::new(ErrorKind::UpstreamUnavailable, format!("{provider} has not been reached yet")),
        })?;
        validate::check(&route, arguments)
    }

    fn judge(&self, change: &Change, arguments: &RawValue) -> Option<Decision> {
        let by = &change.proposer;
        let principal = Principal {
            name: by.principal.clone(),
            role: Role::Agent,
            key_id: by.key_id.clone(),
            owner: by.owner.clone(),
        };
        let call = CallFacts {
            principal: &principal,
            transport: &by.transport,
            revision: by.revision.as_deref().unwrap_or_default(),
            client: by.client_name.as_deref(),
            arguments,
        };
        Some(self.0.load().served_by(&change.tool, &change.provider)?.ruling_on(arguments).decide(&call))
    }

    fn has_tools(&self, provider: &str) -> bool {
        self.0.load().tools().iter().any(|route| route.provider.name() == provider)
    }
}

#[cfg(test)]
mod tests;
