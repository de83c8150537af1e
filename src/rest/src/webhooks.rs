//! Webhooks and their deliveries.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;

use super::{Caller, Problem, Query, json_ok, path_name};
use countersign_store::webhooks::Delivery;
use countersign_webhooks::{WebhookSummary, Webhooks};

/// `GET /api/webhooks`
pub async fn list(_: Caller, webhooks: web::Data<Webhooks>) -> HttpResponse {
    #[derive(Serialize)]
    struct WebhookList {
        webhooks: Vec<WebhookSummary>,
    }
    json_ok(&WebhookList { webhooks: webhooks.list() })
}

/// `GET /api/webhooks/{name}/deliveries?limit=&cursor=`, newest first.
pub async fn deliveries(
    _: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct DeliveryPage {
        deliveries: Vec<Delivery>,
        next_cursor: Option<String>,
    }
    let query = Query::read(&request, &["limit", "cursor"])?;
    let limit = query.limit()?;
    // One more than the limit shows whether there is a next page.
    let found = webhooks.deliveries(path_name(&request), query.number("cursor")?, limit + 1);
    let mut deliveries = found.await?;
    let more = deliveries.len() > limit;
    deliveries.truncate(limit);
    let next_cursor = deliveries.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(json_ok(&DeliveryPage { deliveries, next_cursor }))
}

/// `POST /api/webhooks/{name}/retry`
pub async fn retry(
    caller: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    #[derive(Serialize)]
    struct RetryResult {
        again: usize,
    }
    caller.reviewer()?;
    Ok(json_ok(&RetryResult { again: webhooks.retry(path_name(&request)).await? }))
}

/// `POST /api/webhooks/{name}/test`
pub async fn test(
    caller: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    caller.reviewer()?;
    Ok(json_ok(&webhooks.send_test(path_name(&request)).await?))
}
