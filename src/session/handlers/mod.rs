//! What each method does. A handler gives a [`Reply`] in the plainest form; [`Reply::finish`] makes of it what the
//! client's revision wants.

pub mod arrival;
pub mod lifecycle;
pub mod listen;
pub mod page;
pub mod prompts;
pub mod resources;
pub mod reviewed;
pub mod tasks;
pub mod tools;

use std::{borrow::Cow, time::Duration};

use super::{cancel::Cancel, exchange::Exchange};
use crate::{
    gateway::Gateway,
    protocol::{ErrorKind, McpError, Revision, envelope::Request, method::Method, params, splice},
    router::RouteTable,
};

/// How long a client may reuse an answer (2026-07-28/server/utilities/caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    pub ttl_ms: u32,
    /// The same for every principal.
    pub public: bool,
}

impl CacheHint {
    /// Lists that only change with the gateway's configuration.
    pub const STATIC: Self = Self { ttl_ms: 60_000, public: true };
    /// Live data.
    pub const LIVE: Self = Self { ttl_ms: 0, public: false };

    /// Lists of what providers offer. Upstreams may change theirs at any time, and while one was never reached, what
    /// it offers is missing.
    #[must_use]
    pub fn of_list(table: &RouteTable) -> Self {
        match (table.has_upstreams(), table.is_complete()) {
            (false, _) => Self::STATIC,
            (true, true) => Self { ttl_ms: 5_000, public: true },
            (true, false) => Self { ttl_ms: 0, public: true },
        }
    }

    /// Lists that leave out resources or prompts which a principal may not use.
    #[must_use]
    pub fn of_shown(table: &RouteTable) -> Self {
        let hint = Self::of_list(table);
        Self { public: hint.public && table.refusing_policy().is_none(), ..hint }
    }

    /// `tools/list`, which leaves out what a principal may not call.
    #[must_use]
    pub fn of_tools(table: &RouteTable) -> Self {
        Self { public: !table.varies_by_principal(), ..Self::of_list(table) }
    }
}

/// The result of a request.
#[derive(Debug)]
pub struct Reply {
    /// A JSON object without what only some revisions have.
    json: String,
    cache: Option<CacheHint>,
    /// Further entries of `_meta`, as raw JSON.
    meta: Option<(&'static str, String)>,
    /// The revision that the handshake has just fixed.
    pub revision: Option<Revision>,
    /// A failure that is told in-band.
    pub failure: Option<ErrorKind>,
    /// A person has to approve it.
    pub pending: bool,
    /// It is an upstream's, already as the client's revision wants it.
    finished: bool,
}

impl Reply {
    #[must_use]
    pub fn new(json: String) -> Self {
        Self { json, cache: None, meta: None, revision: None, failure: None, pending: false, finished: false }
    }

    /// A result that goes to its client as it is.
    #[must_use]
    pub fn passed_on(json: String) -> Self {
        Self { finished: true, ..Self::new(json) }
    }

    /// It tells of a failure.
    #[must_use]
    pub fn failing(mut self, failure: Option<ErrorKind>) -> Self {
        self.failure = failure;
        self
    }

    #[must_use]
    pub fn cached(mut self, hint: CacheHint) -> Self {
        self.cache = Some(hint);
        self
    }

    #[must_use]
    pub fn with_meta(mut self, key: &'static str, value: String) -> Self {
        self.meta = Some((key, value));
        self
    }

    /// The `result` for the wire: in the modern era with `resultType`, the server's name in `_meta`, and cache hints
    /// (2026-07-28/basic/index, "ResultType" and "Per-response protocol fields").
    #[must_use]
    pub fn finish(&self, revision: Revision, gateway: &Gateway) -> Cow<'_, str> {
        if self.finished || !revision.rules().result_type {
            return Cow::Borrowed(&self.json);
        }
        let meta = match &self.meta {
            None => gateway.server_meta.clone(),
            Some((key, value)) => splice::add_members(&gateway.server_meta, &[(key, value)]),
        };
        let mut members = vec![("resultType", r#""complete""#), ("_meta", meta.as_str())];
        let ttl;
        if let Some(hint) = self.cache {
            ttl = hint.ttl_ms.to_string();
            members.push(("ttlMs", &ttl));
            members.push(("cacheScope", if hint.public { r#""public""# } else { r#""private""# }));
        }
        Cow::Owned(splice::add_members(&self.json, &members))
    }
}

/// Runs the handler of a method that exists in the exchange's revision.
///
/// # Errors
/// Protocol errors; what a tool itself has to say of its failure is a result.
pub async fn handle(
    exchange: &Exchange,
    method: Method,
    request: &Request<'_>,
    cancel: &Cancel,
) -> Result<Reply, McpError> {
    if is_list(method) {
        early(exchange).await;
    }
    match method {
        Method::Ping => Ok(Reply::new("{}".into())),
        Method::Initialize => lifecycle::initialize(exchange, request),
        Method::Discover => Ok(lifecycle::discover(exchange)),
        Method::HealthCheck => Ok(lifecycle::health(exchange)),
        Method::ServerInfo => Ok(lifecycle::info(exchange)),
        Method::MetricsGet => Ok(lifecycle::metrics(exchange)),
        Method::ToolsList => tools::list(exchange, request),
        Method::ToolsCall => tools::call_request(exchange, request, cancel).await,
        Method::ResourcesList => resources::list(exchange, request, cancel).await,
        Method::ResourceTemplatesList => resources::templates(exchange, request),
        Method::ResourcesRead => resources::read(exchange, request, cancel).await,
        Method::ResourcesSubscribe => resources::subscribe(exchange, request, cancel).await,
        Method::ResourcesUnsubscribe => resources::unsubscribe(exchange, request).await,
        Method::PromptsList => prompts::list(exchange, request),
        Method::PromptsGet => prompts::get(exchange, request, cancel).await,
        Method::Complete => prompts::complete(exchange, request, cancel).await,
        Method::SetLevel => lifecycle::set_level(exchange, request),
        Method::TasksGet | Method::TasksUpdate | Method::TasksCancel | Method::TasksResult | Method::TasksList => {
            Box::pin(tasks::handle(exchange, method, request)).await
        }
        Method::Listen => Box::pin(listen::listen(exchange, request, cancel)).await,
        // Notifications with an id: not requests of any revision.
        _ => Err(McpError::new(ErrorKind::MethodNotFound, "not a request")),
    }
}

const fn is_list(method: Method) -> bool {
    matches!(method, Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::ResourceTemplatesList)
}

/// How long after the gateway's start its first clients wait for servers that are still on their way.
const EARLY: Duration = Duration::from_secs(10);
/// What lists wait at most for them.
const AT_MOST: Duration = Duration::from_secs(5);
/// From a server's answer to a table that has it.
const PUBLISHED: Duration = Duration::from_millis(150);

/// Many clients list once, when they start, which is often when the gateway does: then servers have not answered yet.
async fn early(exchange: &Exchange) {
    let gateway = &exchange.gateway;
    if gateway.started.elapsed() < EARLY && !gateway.routes.load().is_complete() {
        gateway.upstreams.settled(AT_MOST).await;
        tokio::time::sleep(PUBLISHED).await;
    }
}

/// Whether one call may answer several equal requests of a batch: it reads, and takes no progress token.
#[must_use]
pub fn is_shareable_read(gateway: &Gateway, request: &Request<'_>) -> bool {
    if !request.meta().is_ok_and(|meta| meta.progress_token.is_none()) {
        return false;
    }
    match Method::parse(&request.method) {
        Some(
            Method::Ping
            | Method::ToolsList
            | Method::ResourcesList
            | Method::ResourceTemplatesList
            | Method::ResourcesRead
            | Method::PromptsList
            | Method::PromptsGet
            | Method::Complete,
        ) => true,
        Some(Method::ToolsCall) => params::parse::<params::CallTool<'_>>(request.params).is_ok_and(|call| {
            gateway.routes.load().tool(&call.name).is_some_and(|route| {
                route.ruling.always_allows() && route.def.annotations.read_only_hint && !route.def.long_running
            })
        }),
        _ => false,
    }
}
