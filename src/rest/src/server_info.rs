//! Describes servers and modules for the endpoints that show them.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::future::join_all;
use serde::Serialize;
use utoipa::ToSchema;

use countersign_domain::principal::Principal;
use countersign_provider::{CallContext, Report};
use countersign_routing::{PublishedTable, RouteTable, RouteTarget};
use countersign_upstream::UpstreamStatus;

/// The maximum time that a server may take to list its resources. A module that takes longer counts as down.
const LISTING_TIMEOUT: Duration = Duration::from_secs(3);

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

/// Provides the servers that the endpoints show.
#[async_trait]
pub trait ServerSource: Send + Sync + 'static {
    /// Describes all servers and modules.
    async fn list_servers(&self) -> Vec<ServerInfo>;
}

/// The servers and modules of the published table.
pub struct RoutedServers {
    pub routes: Arc<PublishedTable>,
    /// The limit of the whole request that shows the servers.
    pub request_timeout: Duration,
}

#[async_trait]
impl ServerSource for RoutedServers {
    /// Asks all servers concurrently, so that one that does not answer delays no other.
    async fn list_servers(&self) -> Vec<ServerInfo> {
        let table = self.routes.load_full();
        let context = CallContext::new(Arc::new(Principal::local_agent()));
        let limit = LISTING_TIMEOUT.min(self.request_timeout / 2);
        join_all(table.providers().iter().map(|provider| describe(&table, provider, &context, limit))).await
    }
}

/// Describes a server, and waits at most `limit` for its resources.
async fn describe(table: &RouteTable, provider: &RouteTarget, context: &CallContext, limit: Duration) -> ServerInfo {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

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
        let infos = tokio::time::timeout(request_timeout / 2, routed.list_servers()).await.expect("an answer in time");
        let shown: Vec<_> = infos.iter().map(|info| (info.name.as_str(), info.status)).collect();
        assert_eq!(shown, [("hung", "down"), ("stuck", "down"), ("files", "up")]);
    }
}
