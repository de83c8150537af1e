//! The baseline: an actix-web endpoint that parses a JSON-RPC request and answers JSON of the requested size.

use actix_web::{App, HttpResponse, HttpServer, web};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
struct Request {
    #[allow(dead_code, reason = "parsed like everything else")]
    jsonrpc: String,
    id: u64,
    #[allow(dead_code, reason = "parsed like everything else")]
    method: String,
    #[serde(default)]
    #[allow(dead_code, reason = "parsed like everything else")]
    params: Value,
}

#[derive(Serialize)]
struct Answer<'a> {
    jsonrpc: &'static str,
    id: u64,
    result: Pad<'a>,
}

#[derive(Serialize)]
struct Pad<'a> {
    text: &'a str,
}

/// Bytes of an answer around its pad.
const BYTES_AROUND_PAD: usize = r#"{"jsonrpc":"2.0","id":1,"result":{"text":""}}"#.len();
/// The largest pad.
const MAX_PAD: usize = 1 << 20;

async fn answer(size: web::Path<usize>, request: web::Json<Request>, pad: web::Data<String>) -> HttpResponse {
    let pad = &pad[..size.saturating_sub(BYTES_AROUND_PAD).min(MAX_PAD)];
    HttpResponse::Ok().json(Answer { jsonrpc: "2.0", id: request.id, result: Pad { text: pad } })
}

/// Serves until it is killed.
pub fn serve(port: u16, workers: usize) -> Result<()> {
    let pad = web::Data::new("x".repeat(MAX_PAD));
    actix_web::rt::System::new().block_on(async move {
        HttpServer::new(move || App::new().app_data(pad.clone()).route("/{size}", web::post().to(answer)))
            .workers(workers)
            .bind(("127.0.0.1", port))?
            .run()
            .await
    })?;
    Ok(())
}
