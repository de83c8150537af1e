//! The configuration in force, the last reload, and the consent to looser policies.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem,
    body::{Body, Submission},
    json_ok,
};
use countersign_protocol::ErrorKind;
use countersign_reload::{DecideError, PendingPolicy, Reloader, Status, settings_view};

/// `GET /api/reload`
pub async fn status(_: Caller, reloads: web::Data<Reloader>) -> HttpResponse {
    json_ok(&reloads.status())
}

#[derive(Serialize)]
struct ActiveConfig {
    /// The configuration file that is watched, if any.
    file: Option<String>,
    settings: Vec<settings_view::ActiveSetting>,
    waiting: Option<PendingPolicy>,
}

/// `GET /api/config`: the settings in force, and the policy that waits for consent. Secrets are hidden.
pub async fn in_force(_: Caller, reloads: web::Data<Reloader>) -> HttpResponse {
    let Status { file, waiting, .. } = reloads.status();
    json_ok(&ActiveConfig { file, settings: reloads.settings(), waiting })
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Accept,
    Refuse,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsentBody {
    digest: String,
    verdict: Verdict,
}

impl Body for ConsentBody {}

/// `POST /api/reload/consent`: accepts or refuses a looser policy. Responds as `GET /api/reload`.
pub async fn consent(
    submission: Submission<ConsentBody>,
    reloads: web::Data<Reloader>,
) -> Result<HttpResponse, Problem> {
    let Submission { principal, body, .. } = submission;
    let deciding = Arc::clone(&reloads);
    // The decision runs in its own task, so that a client that disconnects cannot interrupt it half-way.
    let decided = actix_web::rt::spawn(async move {
        deciding.decide(&body.digest, body.verdict == Verdict::Accept, &principal.name).await
    });
    let decided = decided.await.map_err(|_| Problem::new(ErrorKind::Internal, "the decision was not carried out"))?;
    decided.map_err(|error| {
        let kind = match &error {
            DecideError::NothingPending => ErrorKind::NotFound,
            DecideError::Superseded => ErrorKind::VersionConflict,
            DecideError::NotRecorded(_) => ErrorKind::StoreUnavailable,
            DecideError::NotInForce(_) => ErrorKind::ValidationFailed,
        };
        Problem::new(kind, error.to_string())
    })?;
    Ok(json_ok(&reloads.status()))
}
