//! Serves the OpenAPI document of the API, `src/rest/openapi.json`.
//!
//! The file is derived from the handlers and the types of their bodies, but by a test and not by the program, which would need
//! more than a megabyte of machine code for it.
//!
//! To add an endpoint:
//! 1. Write the handler with `#[utoipa::path]` in the file of its subject. Its bodies derive `ToSchema`.
//! 2. List it in `Operations` of `src/rest/src/openapi/description.rs` and in `ROUTES` of `src/rest/src/lib.rs`.
//!    `described_routes_equal_served_routes` compares the two.
//! 3. Write the file again: `cargo test -p countersign-rest write_openapi_file -- --ignored`
//!    (`openapi_file_matches_the_code`).
//! 4. Add an example to `responses_match_the_description`, and a row to `docs/rest.md`
//!    (`documented_endpoints_match_openapi`).

#[cfg(test)]
pub mod description;

use std::io;

use actix_web::{
    HttpRequest, HttpResponse,
    http::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};

use crate::embedded_files::EmbeddedFile;

/// Returns this document.
#[utoipa::path(get, path = "/api/openapi.json", operation_id = "getOpenApi", security(()), responses(
    (status = 200, description = "OpenAPI 3.1", body = Object)))]
pub async fn get(request: HttpRequest) -> io::Result<HttpResponse> {
    let file = EmbeddedFile::find("openapi.json").ok_or(io::ErrorKind::NotFound)?;
    let mut response = HttpResponse::Ok();
    response
        .content_type("application/json")
        .insert_header((CACHE_CONTROL, HeaderValue::from_static("no-cache")))
        .insert_header((X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    file.respond(&request, response)
}
