//! Tells a connection over the limit that it is one too many.

use actix_web::{
    HttpResponse,
    dev::ServiceRequest,
    http::header::{CONNECTION, HeaderValue, RETRY_AFTER},
};

use crate::{authentication::RequestAuthenticator, connections::Connection, problem::Problem};
use countersign_protocol::{ErrorKind, McpError};

/// The answer to a request on a connection that is one too many, or to one that is.
#[must_use]
pub fn refused(
    authentication: &RequestAuthenticator,
    connection: &Connection,
    request: &ServiceRequest,
) -> Option<HttpResponse> {
    // Whoever has shown a reviewer's credential has a place of their own.
    if !connection.is_refused() || (authentication.may_view(request.request()) && connection.is_reviewers()) {
        return None;
    }
    let error = McpError::new(ErrorKind::Overloaded, "too many connections");
    let mut response = actix_web::ResponseError::error_response(&Problem::from(error));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    Some(response)
}
