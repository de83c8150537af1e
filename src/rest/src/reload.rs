//! The configuration in force, the last reload, and the consent to looser policies.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    Caller, Problem,
    body::{Body, Submission},
    json_response, run_uninterrupted,
};
use countersign_protocol::ErrorKind;
use countersign_reload::{ConsentError, ReloadStatus, Reloader, settings_view::ActiveConfig};

/// Returns the last reload of the configuration, and the changes that wait.
///
/// The gateway reads the configuration again on SIGHUP and when its file changes. Changes that loosen policy wait for a reviewer's
/// consent. All others take effect at once, or at the next start if a key is read only then.
#[utoipa::path(get, path = "/api/reload", operation_id = "getReload", responses(
    (status = 200, description = "The last reload and the pending changes", body = ReloadStatus)))]
pub async fn status(caller: Caller, reloader: web::Data<Reloader>) -> HttpResponse {
    json_response(&visible_status(&caller, &reloader))
}

/// Returns the status. Viewers get no lines of a new file, because no reviewer has read them yet.
fn visible_status(caller: &Caller, reloader: &Reloader) -> ReloadStatus {
    let mut status = reloader.status();
    if !caller.principal.role.may_decide()
        && let Some(waiting) = &mut status.waiting
    {
        waiting.content.clear();
    }
    status
}

/// Returns the configuration in force.
///
/// It is listed key by key, as by `countersign config show`: the values in force, the values of the file that wait for a
/// reviewer's consent, and those that are read at the next start. Secrets are hidden.
#[utoipa::path(get, path = "/api/config", operation_id = "getConfig", responses(
    (status = 200, description = "The configuration", body = ActiveConfig)))]
pub async fn active_config(caller: Caller, reloader: web::Data<Reloader>) -> HttpResponse {
    let ReloadStatus { file, waiting, .. } = visible_status(&caller, &reloader);
    json_response(&ActiveConfig { file, settings: reloader.settings(), waiting })
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum ConsentVerdict {
    Accept,
    Refuse,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsentRequest {
    /// The digest of the pending changes that were shown.
    digest: String,
    verdict: ConsentVerdict,
}

impl Body for ConsentRequest {}

/// Accepts or refuses a configuration that loosens policy.
#[utoipa::path(post, path = "/api/reload/consent", operation_id = "consentReload", request_body = ConsentRequest,
    responses((status = 200, description = "The current status", body = ReloadStatus), (status = 404), (status = 409)))]
pub async fn consent(
    Submission { principal, body, .. }: Submission<ConsentRequest>,
    reloader: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    let deciding = Arc::clone(&reloader);
    let decision =
        async move { deciding.decide(&body.digest, body.verdict == ConsentVerdict::Accept, &principal.name).await };
    run_uninterrupted(decision, "the decision was not carried out").await?.map_err(|error| {
        let kind = match &error {
            ConsentError::NothingPending => ErrorKind::NotFound,
            ConsentError::Superseded | ConsentError::DecidedElsewhere => ErrorKind::VersionConflict,
            ConsentError::NotRecorded(_) | ConsentError::NotYetInForce(_) => ErrorKind::StoreUnavailable,
            ConsentError::NotInForce(_) => ErrorKind::ValidationFailed,
        };
        Problem::new(kind, error.to_string())
    })?;
    Ok(json_response(&reloader.status()))
}
