//! Tells a connection over the limit that it is one too many, and one of HTTP/2 that it has too many requests open.

use actix_web::{
    HttpResponse,
    dev::ServiceRequest,
    http::{
        Version,
        header::{CONNECTION, HeaderValue, RETRY_AFTER},
    },
};

use crate::{connections::Connection, problem::Problem, rest};
use countersign_protocol::{ErrorKind, McpError};

/// The answer to a request on a connection that is one too many, or to one that is.
#[must_use]
pub fn refused(connection: &Connection, request: &ServiceRequest, max_streams: usize) -> Option<HttpResponse> {
    // Whoever has shown a reviewer's credential has a place of their own.
    if connection.is_refused() && !(rest::caller::may_view(request.request()) && connection.is_reviewers()) {
        return Some(refusal("too many connections", true));
    }
    // Clients are told how many streams they may open; who opens more all the same is told so again.
    let over = request.version() == Version::HTTP_2 && connection.place().open() >= max_streams;
    over.then(|| refusal("too many requests on one connection (transports.http.max_concurrent_streams)", false))
}

fn refusal(why: &'static str, close: bool) -> HttpResponse {
    let error = McpError::new(ErrorKind::Overloaded, why);
    let mut response = actix_web::ResponseError::error_response(&Problem::from(error));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    if close {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response.head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    }
    response
}
