//! Starts the router, opens the modules and the servers, and publishes their routes.

use std::sync::Arc;

use actix::{Actor, Addr, Arbiter};
use futures_util::future::BoxFuture;

use super::{ServeError, review::Review};
use crate::{acceptances::bind_acceptances, server_accounts::ServersWithAccounts};
use countersign_accounts::Accounts;
use countersign_config::Config;
use countersign_docs::Docs;
use countersign_review::{
    Changes,
    gateway_tools::{GatewayTools, change_output_schema},
};
use countersign_routing::{
    PublishedTable, RouteTarget, Router,
    actor::{PublishProviders, RefreshRulings},
    table::Aliases,
};
use countersign_rulings::tool_acceptance::RouteRebuilder;
use countersign_session::Registry;
use countersign_store::StoreLocation;
use countersign_telemetry::metrics::CircuitState;
use countersign_tracker::Tracker;
use countersign_upstream::Upstreams;

/// The providers, and the router that publishes their routes.
pub(super) struct Providers {
    pub routes: Arc<PublishedTable>,
    pub router: Addr<Router>,
    pub router_thread: Arbiter,
    /// The sessions, which the router notifies of changed lists.
    pub registry: Arc<Registry>,
    /// The modules, which precede the servers.
    pub modules: Vec<RouteTarget>,
    pub upstreams: Arc<Upstreams>,
    pub accounts: Arc<Accounts>,
}

impl Providers {
    /// Starts the router and the providers, and returns once the routes contain them.
    ///
    /// # Errors
    /// Those of the modules and of the first route table.
    pub(super) async fn start(
        config: &Config,
        location: &StoreLocation,
        servers: ServersWithAccounts,
        review: &Review,
    ) -> Result<Self, ServeError> {
        let ServersWithAccounts { upstreams, accounts } = servers;
        let (routes, registry) = (Arc::clone(&review.routes), Arc::new(Registry::default()));
        let (policy, aliases) = (review.policy(config), Aliases::new(&config.routes)?);
        let router =
            Router::new(Arc::clone(&routes), policy, aliases, change_output_schema(), Arc::clone(&registry) as _);
        let router_thread = Arbiter::new();
        let router = Router::start_in_arbiter(&router_thread.handle(), move |_| router);
        let modules = open_modules(config, location, &review.changes, &routes)?;
        bind_acceptances(&review.pins, &config.upstreams).await;
        let mut providers = modules.clone();
        providers.extend(upstreams.apply(&config.upstreams).into_iter().map(RouteTarget::Upstream));
        router.send(PublishProviders { providers, strict: true }).await.map_err(|_| ServeError::CoreEnded)??;
        Ok(Self { routes, router, router_thread, registry, modules, upstreams, accounts })
    }

    /// Returns a function that makes the router apply the rulings to all tools again.
    pub(super) fn route_rebuilder(&self) -> RouteRebuilder {
        let router = self.router.clone();
        Box::new(move || -> BoxFuture<'static, ()> {
            let refresh_request = router.send(RefreshRulings);
            Box::pin(async move {
                match refresh_request.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "the routes could not be rebuilt"),
                    Err(error) => tracing::error!(%error, "the router does not respond"),
                }
            })
        })
    }
}

/// Opens the modules.
fn open_modules(
    config: &Config,
    location: &StoreLocation,
    changes: &Changes,
    routes: &Arc<PublishedTable>,
) -> Result<Vec<RouteTarget>, ServeError> {
    let mut modules: Vec<RouteTarget> = Vec::new();
    if config.modules.tracker.enabled {
        modules.push(RouteTarget::Module(Tracker::open(&location.module_storage()?, &config.modules.tracker)?));
    }
    if config.modules.docs.enabled {
        modules.push(RouteTarget::Module(Docs::open(&config.data, &config.modules.docs)?));
    }
    let routes = Arc::clone(routes);
    let provider_count = move || routes.load().providers().len();
    modules.push(RouteTarget::Module(GatewayTools::new(changes.clone(), config.limits.max_wait, provider_count)));
    for module in &modules {
        // Modules are always available, so their breakers stay closed.
        countersign_telemetry::metrics::set_breaker_state(module.name(), CircuitState::Closed);
    }
    Ok(modules)
}
