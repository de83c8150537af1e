//! The configuration while the gateway runs: what came of the last reload, what waits for consent, and the consent.

use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::{Deserialize, Serialize};

use super::{
    Caller, Problem, json_ok,
    posted::{Body, Posted},
};
use countersign_protocol::ErrorKind;
use countersign_reload::{DecideError, PendingPolicy, Reloader, Status, settings_view};

/// `GET /api/reload`
pub async fn status(_: Caller, reloads: web::Data<Reloader>) -> HttpResponse {
    json_ok(&reloads.status())
}

#[derive(Serialize)]
struct InForce {
    /// The file that is watched, if any.
    file: Option<String>,
    settings: Vec<settings_view::ActiveSetting>,
    waiting: Option<PendingPolicy>,
}

/// `GET /api/config`: what is in force, key by key, and what waits for consent. Secrets are hidden.
pub async fn in_force(_: Caller, reloads: web::Data<Reloader>) -> HttpResponse {
    let Status { file, waiting, .. } = reloads.status();
    json_ok(&InForce { file, settings: reloads.settings(), waiting })
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

/// `POST /api/reload/consent`: a reviewer's word on what loosens policy. Answers as `GET /api/reload`.
pub async fn consent(asked: Posted<ConsentBody>, reloads: web::Data<Reloader>) -> Result<HttpResponse, Problem> {
    let Posted { reviewer, body } = asked;
    let deciding = Arc::clone(&reloads);
    // On its own: a client that goes away in the middle leaves nothing half in force.
    let decided = actix_web::rt::spawn(async move {
        deciding.decide(&body.digest, body.verdict == Verdict::Accept, &reviewer.name).await
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
