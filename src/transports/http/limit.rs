//! Tells a connection over the limit that it is one too many.

use actix_web::{
    HttpResponse,
    dev::ServiceRequest,
    http::header::{CONNECTION, HeaderValue, RETRY_AFTER},
};

use crate::{
    protocol::{ErrorKind, McpError},
    rest::Problem,
    transports::connections::Connection,
};

/// The answer to a request on a connection that is one too many.
#[must_use]
pub fn refused(request: &ServiceRequest) -> Option<HttpResponse> {
    request.conn_data::<Connection>().is_some_and(Connection::is_refused).then(refusal)
}

fn refusal() -> HttpResponse {
    let error = McpError::new(ErrorKind::Overloaded, "too many connections");
    let mut response = actix_web::ResponseError::error_response(&Problem::from(error));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    response
}
