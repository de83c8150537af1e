//! Bundles: changes of one principal that were proposed shortly after one another.

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Caller, Problem, json_response, offload_json_response, path_id};
use countersign_domain::changes::Change;
use countersign_protocol::ErrorKind;
use countersign_review::{Bundle, Changes};

#[derive(Serialize, ToSchema)]
struct BundleList {
    bundles: Vec<Bundle>,
}

/// A bundle with the changes that wait for a decision, in the order of their proposals.
#[derive(Serialize, ToSchema)]
struct BundleContent {
    bundle: Bundle,
    changes: Vec<Arc<Change>>,
}

/// Lists the bundles of at least two changes that wait for a decision, oldest first.
///
/// Changes of one principal form a bundle if each was proposed within `dashboard.bundle_window` of the one before, whatever
/// became of that one. A bundle has at most 200 proposals. The steps of plans are in no bundle.
#[utoipa::path(get, path = "/api/bundles", operation_id = "listBundles", responses(
    (status = 200, description = "The bundles", body = BundleList)))]
pub async fn list(_: Caller, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    Ok(json_response(&BundleList { bundles: changes.bundles().await? }))
}

/// Returns the bundle that contains a change, with its changes that wait for a decision, in order.
///
/// The id is that of any of its changes, also of one that was decided. The response is 404 if the bundle is older
/// than all changes that wait.
#[utoipa::path(get, path = "/api/bundles/{id}", operation_id = "getBundle", responses(
    (status = 200, description = "The bundle", body = BundleContent)))]
pub async fn get(_: Caller, request: HttpRequest, changes: web::Data<Changes>) -> Result<HttpResponse, Problem> {
    let not_found = || Problem::new(ErrorKind::NotFound, "Bundle not found");
    let id = path_id(&request).ok_or_else(not_found)?;
    let (bundle, changes) = changes.bundle(id).await?.ok_or_else(not_found)?;
    let bytes = changes.iter().map(|change| change.estimated_size()).sum();
    offload_json_response(bytes, BundleContent { bundle, changes }).await
}
