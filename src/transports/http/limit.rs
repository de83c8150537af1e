//! Tells a connection over the limit that it is one too many.

use actix_web::{
    HttpResponse,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform, forward_ready},
    http::header::{CONNECTION, HeaderValue, RETRY_AFTER},
};
use futures_util::future::{Either, Ready, ready};

use crate::{
    protocol::{ErrorKind, McpError},
    rest::Problem,
    transports::connections::Connection,
};

/// See the module's page.
pub struct RefuseExcess;

impl<S, B> Transform<S, ServiceRequest> for RefuseExcess
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = actix_web::Error>,
    B: MessageBody,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = actix_web::Error;
    type Transform = RefuseExcessService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(RefuseExcessService { inner: service }))
    }
}

/// See the module's page.
pub struct RefuseExcessService<S> {
    inner: S,
}

impl<S, B> Service<ServiceRequest> for RefuseExcessService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = actix_web::Error>,
    B: MessageBody,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = actix_web::Error;
    type Future = Either<
        Ready<Result<Self::Response, Self::Error>>,
        futures_util::future::MapOk<S::Future, fn(ServiceResponse<B>) -> Self::Response>,
    >;

    forward_ready!(inner);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        if request.conn_data::<Connection>().is_some_and(Connection::is_refused) {
            return Either::Left(ready(Ok(request.into_response(refusal()).map_into_right_body())));
        }
        let map: fn(ServiceResponse<B>) -> Self::Response = ServiceResponse::map_into_left_body;
        Either::Right(futures_util::TryFutureExt::map_ok(self.inner.call(request), map))
    }
}

fn refusal() -> HttpResponse {
    let error = McpError::new(ErrorKind::Overloaded, "too many connections");
    let mut response = actix_web::ResponseError::error_response(&Problem::from(error));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.head_mut().set_connection_type(actix_web::http::ConnectionType::Close);
    response
}
