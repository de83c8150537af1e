//! Sessions and servers as the endpoints show them.

use std::{cmp::Reverse, fmt, str::FromStr, sync::Arc, time::Duration};

use actix_web::{HttpRequest, HttpResponse, web};
use async_trait::async_trait;
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Caller, Problem, Query, json_ok,
    page::{self, PageParams},
};
use countersign_domain::principal::Principal;
use countersign_exchange::state::short_session_id;
use countersign_provider::{CallContext, Report};
use countersign_routing::{PublishedTable, RouteTable, RouteTarget};
use countersign_session::{Registry, registry::SessionInfo};
use countersign_upstream::UpstreamStatus;

/// The maximum time that a server may take to list its resources. A module that takes longer counts as down.
const LISTING_TIMEOUT: Duration = Duration::from_secs(3);

/// Sorts sessions newest first, and those of one moment by the beginning of their ids.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SessionSortKey(Reverse<i128>, String);

impl SessionSortKey {
    fn new(session: &SessionInfo) -> Self {
        Self(Reverse(session.created_at.as_nanosecond()), short_session_id(&session.id).to_owned())
    }
}

impl fmt::Display for SessionSortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0.0, self.1)
    }
}

impl FromStr for SessionSortKey {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (created, id) = text.split_once('.').unwrap_or((text, ""));
        Ok(Self(Reverse(created.parse()?), id.to_owned()))
    }
}

/// A server, which is an upstream or a module.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = ProviderInfo)]
pub struct ServerInfo {
    pub name: String,
    /// `module` or `upstream`.
    pub kind: &'static str,
    /// `up` or `down`; an upstream may also be `connecting`, or `needs_connection` until a person has connected an account.
    pub status: &'static str,
    pub tools: usize,
    pub resources: usize,
    pub prompts: usize,
    /// The contents of a module that reports them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// Problems that do not stop calls, such as tool names that clients refuse, names used by several servers, or data that
    /// cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The status of an upstream, or `None` for a module.
    #[serde(flatten)]
    pub upstream: Option<UpstreamStatus>,
}

/// Lists sessions.
pub trait SessionsView: Send + Sync + 'static {
    fn sessions(&self) -> Vec<SessionInfo>;
}

/// Lists servers.
#[async_trait]
pub trait ServersView: Send + Sync + 'static {
    async fn servers(&self) -> Vec<ServerInfo>;
}

impl SessionsView for Registry {
    fn sessions(&self) -> Vec<SessionInfo> {
        self.describe_all()
    }
}

/// The servers and modules of the published table.
pub struct RoutedServers {
    pub routes: Arc<PublishedTable>,
    /// The limit of the whole request that shows the servers.
    pub request_timeout: Duration,
}

#[async_trait]
impl ServersView for RoutedServers {
    /// Describes all servers, which are asked concurrently, so that one that does not answer delays no other.
    async fn servers(&self) -> Vec<ServerInfo> {
        let table = self.routes.load_full();
        let context = CallContext::new(Arc::new(Principal::local_agent()));
        let limit = LISTING_TIMEOUT.min(self.request_timeout / 2);
        join_all(table.providers().iter().map(|provider| server_info(&table, provider, &context, limit))).await
    }
}

async fn server_info(table: &RouteTable, provider: &RouteTarget, context: &CallContext, limit: Duration) -> ServerInfo {
    let listed = tokio::time::timeout(limit, provider.as_provider().resources(context)).await;
    let resources = listed.ok().and_then(Result::ok);
    let upstream = provider.upstream().map(|upstream| upstream.status());
    let Report { details, warnings } = provider.as_provider().report();
    ServerInfo {
        name: provider.name().to_owned(),
        kind: if upstream.is_some() { "upstream" } else { "module" },
        status: match &upstream {
            Some(upstream) => upstream.status,
            None if resources.is_some() => "up",
            None => "down",
        },
        upstream,
        tools: table.tools().iter().filter(|route| route.provider.name() == provider.name()).count(),
        resources: resources.map_or(0, |all| all.len()),
        prompts: provider.as_provider().prompts().len(),
        details,
        warnings: table.warnings(provider.name()).into_iter().chain(warnings).collect(),
    }
}

/// A page of sessions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SessionPage {
    sessions: Vec<SessionInfo>,
    #[schema(required)]
    next_cursor: Option<String>,
    /// The number of sessions on all pages.
    total: usize,
    /// The number of requests being answered in all sessions.
    in_flight: usize,
}

/// Lists live sessions of clients, newest first.
#[utoipa::path(get, path = "/api/sessions", operation_id = "listSessions", params(PageParams), responses(
    (status = 200, description = "A page of sessions", body = SessionPage)))]
pub async fn sessions(
    _: Caller,
    request: HttpRequest,
    view: web::Data<dyn SessionsView>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let mut sessions = view.sessions();
    let (total, in_flight) = (sessions.len(), sessions.iter().map(|session| session.in_flight).sum());
    sessions.sort_by_cached_key(SessionSortKey::new);
    let page = page::by_key(&query, sessions, SessionSortKey::new)?;
    Ok(json_ok(&SessionPage { sessions: page.items, next_cursor: page.next_cursor, total, in_flight }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use countersign_domain::policy::{Policy, PolicyConfig, PolicyDefault};
    use countersign_provider::testing::FakeProvider;
    use countersign_routing::table::{Aliases, TableInputs};

    #[tokio::test(start_paused = true)]
    async fn hung_modules_are_down_and_delay_no_other() {
        let module = |name, is_hung| {
            let fake = FakeProvider::new(name);
            fake.resources_hang.store(is_hung, Ordering::SeqCst);
            RouteTarget::Module(Arc::new(fake))
        };
        let table = RouteTable::build(&TableInputs {
            providers: &[module("hung", true), module("stuck", true), module("files", false)],
            policy: &Policy::new(&PolicyConfig::from(PolicyDefault::ReviewWrites)),
            aliases: &Aliases::default(),
            pending_schema: &Arc::new(json!({})),
            previous: None,
            strict: true,
        });
        let request_timeout = Duration::from_secs(30);
        let routed = RoutedServers { routes: Arc::new(PublishedTable::from_pointee(table.unwrap())), request_timeout };
        // The limit of the request began before the servers were asked.
        let infos = tokio::time::timeout(request_timeout / 2, routed.servers()).await.expect("an answer in time");
        let shown: Vec<_> = infos.iter().map(|info| (info.name.as_str(), info.status)).collect();
        assert_eq!(shown, [("hung", "down"), ("stuck", "down"), ("files", "up")]);
    }

    #[test]
    fn session_id_is_shown_shortened_without_its_node() {
        for id in ["V1StGXR8_Z5jdHi6B-myTabcdefghijk", "nOdE_0-123.V1StGXR8_Z5jdHi6B-myTabcdefghijk"] {
            check_shown(id);
        }
    }

    fn check_shown(id: &str) {
        let info = SessionInfo {
            id: id.into(),
            transport: "http".into(),
            revision: Some("2025-11-25".into()),
            client_name: None,
            client_version: None,
            principal: "local-agent".into(),
            created_at: Timestamp::UNIX_EPOCH,
            last_active_at: Timestamp::UNIX_EPOCH,
            connected: true,
            in_flight: 2,
        };
        let json = serde_json::to_value(&info).unwrap();
        assert_eq!(json["id"], "V1StGXR8…");
        assert_eq!(json["inFlight"], 2);
        assert_eq!(json["clientName"], serde_json::Value::Null);
    }
}
