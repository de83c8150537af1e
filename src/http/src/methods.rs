//! Matches and refuses the HTTP methods of paths outside the MCP endpoints.

use actix_web::{
    HttpRequest, HttpResponse, Route,
    guard::{self, Guard},
    web,
};

use crate::problem::Problem;

/// The `Allow` header of a path that can only be read.
pub const READ_METHODS: &str = "GET, HEAD";

/// Returns the guard of a handler of GET, which must answer HEAD too (RFC 9110, section 9.1).
#[must_use]
pub fn get_or_head() -> impl Guard {
    guard::Any(guard::Get()).or(guard::Head())
}

/// Returns the default service of a path, which refuses all methods without a handler. `allow` is the `Allow` header.
pub fn refuse_other_methods(allow: &'static str) -> Route {
    web::to(move |request: HttpRequest| {
        let problem = Problem::method_not_allowed(request.method().as_str(), allow);
        async move { Err::<HttpResponse, _>(problem) }
    })
}
