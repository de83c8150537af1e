//! Builds the route table again after a ruling on a tool.

use actix::Addr;
use futures_util::future::BoxFuture;

use countersign_routing::{Router, actor::RefreshRulings};
use countersign_rulings::tool_acceptance::RouteRebuilder;

/// Returns a function that makes the router apply the rulings to all tools again.
pub fn route_rebuilder(router: &Addr<Router>) -> RouteRebuilder {
    let router = router.clone();
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
