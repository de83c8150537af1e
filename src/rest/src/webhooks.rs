//! Webhooks and their deliveries.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Caller, Problem, Query, json_response, page::PageParams, path_name};
use countersign_store::webhooks::Delivery;
use countersign_webhooks::{TestResult, WebhookSummary, Webhooks};

#[derive(Serialize, ToSchema)]
struct WebhookList {
    webhooks: Vec<WebhookSummary>,
}

/// Lists webhooks with their status.
#[utoipa::path(get, path = "/api/webhooks", operation_id = "listWebhooks", responses(
    (status = 200, description = "The webhooks in the order of the configuration", body = WebhookList)))]
pub async fn list(_: Caller, webhooks: web::Data<Webhooks>) -> HttpResponse {
    json_response(&WebhookList { webhooks: webhooks.list() })
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct WebhookDeliveryPage {
    deliveries: Vec<Delivery>,
    #[schema(required)]
    next_cursor: Option<String>,
}

/// Lists the deliveries of a webhook, newest first.
///
/// The list has the waiting deliveries, and the latest 1,000 that were delivered or given up.
#[utoipa::path(get, path = "/api/webhooks/{name}/deliveries", operation_id = "listWebhookDeliveries", params(PageParams),
    responses((status = 200, description = "A page of deliveries", body = WebhookDeliveryPage)))]
pub async fn deliveries(
    _: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["limit", "cursor"])?;
    let limit = query.limit()?;
    // One more than the limit shows whether there is a next page.
    let name = path_name(&request);
    let page_read = webhooks.deliveries(&name, query.number("cursor")?, limit + 1);
    let mut deliveries = page_read.await?;
    let has_more = deliveries.len() > limit;
    deliveries.truncate(limit);
    let next_cursor = deliveries.last().filter(|_| has_more).map(|last| last.id.to_string());
    Ok(json_response(&WebhookDeliveryPage { deliveries, next_cursor }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = WebhookRetried)]
struct RetryResult {
    /// The number of given up deliveries that wait again.
    again: usize,
}

/// Retries all waiting and given up deliveries of a webhook at once.
///
/// Requires the role reviewer or admin. Deliveries that were given up arrive after later ones.
#[utoipa::path(post, path = "/api/webhooks/{name}/retry", operation_id = "retryWebhook", responses(
    (status = 200, description = "The number of deliveries that wait again", body = RetryResult)))]
pub async fn retry(
    caller: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    caller.require_reviewer()?;
    Ok(json_response(&RetryResult { again: webhooks.retry(&path_name(&request)).await? }))
}

/// Sends an event of the type `webhook.test`.
///
/// Requires the role reviewer or admin. The event is sent once and at once, before waiting deliveries. The response comes within
/// the `timeout` of the webhook, even if that is longer than `transports.http.request_timeout`.
#[utoipa::path(post, path = "/api/webhooks/{name}/test", operation_id = "testWebhook", responses(
    (status = 200, description = "The result of the delivery", body = TestResult)))]
pub async fn test(
    caller: Caller,
    request: HttpRequest,
    webhooks: web::Data<Webhooks>,
) -> Result<HttpResponse, Problem> {
    caller.require_reviewer()?;
    Ok(json_response(&webhooks.send_test(&path_name(&request)).await?))
}
