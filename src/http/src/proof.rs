//! Proves to programs on this machine that this is the gateway of their data directory.

use actix_web::{
    HttpResponse, ResponseError as _,
    http::header::CACHE_CONTROL,
    web::{self, ServiceConfig},
};
use serde::Deserialize;

use crate::problem::Problem;
use countersign_attach::proof::{PROOF_PATH, ProofSecret};
use countersign_protocol::ErrorKind;

/// The secret that answers challenges. `None` if no secret could be made; challenges are then refused. The application
/// registers it as `web::Data`.
pub struct GatewayProof(pub Option<ProofSecret>);

#[derive(Deserialize)]
struct Challenge {
    #[serde(default)]
    challenge: String,
}

/// Adds `GET /proof`.
pub fn routes(config: &mut ServiceConfig) {
    config.service(web::resource(PROOF_PATH).route(web::get().to(prove)));
}

/// Handles `GET /proof?challenge=…` with an answer that only the gateway of the data directory can compute. The request needs
/// no credential, because a program sends its key only after this proof, and the answer reveals nothing about the secret.
async fn prove(proof: web::Data<GatewayProof>, query: web::Query<Challenge>) -> HttpResponse {
    match proof.0.as_ref().and_then(|secret| secret.answer_challenge(&query.challenge)) {
        Some(answer) => HttpResponse::Ok()
            .insert_header((CACHE_CONTROL, "no-store"))
            .content_type("text/plain; charset=utf-8")
            .body(answer),
        None => Problem::new(ErrorKind::InvalidParams, "the challenge is malformed, or this gateway has no secret")
            .error_response(),
    }
}
