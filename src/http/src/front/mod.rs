//! What every request passes on its way in and every answer on its way out, whatever its path: the guard of hosts and
//! origins ([`guard`]), the limit of connections ([`limit`]), the memory for what clients leave unread ([`unread`]),
//! compression ([`mod@compress`]).
//!
//! One middleware for all: each would wrap the future of a request and the body of its answer once more.

mod compress;
mod limit;
pub mod unread;

use std::{
    future::{Future, Ready, ready},
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use actix_http::encoding::Encoder;
use actix_web::{
    Error,
    body::BoxBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};

use crate::{
    authentication::RequestAuthenticator,
    connections::{Connection, places::Working},
    guard::{self, Cors},
};
use compress::compress;
use countersign_exchange::memory::Memory;

/// Wraps the whole application, as the last (outermost) `wrap`.
#[derive(Clone)]
pub struct Front {
    authentication: Arc<RequestAuthenticator>,
    memory: Arc<Memory>,
}

impl Front {
    #[must_use]
    pub const fn new(authentication: Arc<RequestAuthenticator>, memory: Arc<Memory>) -> Self {
        Self { authentication, memory }
    }
}

impl<S> Transform<S, ServiceRequest> for Front
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error>,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Transform = FrontService<S>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(FrontService { service, front: Rc::new(self.clone()) }))
    }
}

/// See [`Front`].
pub struct FrontService<S> {
    service: S,
    front: Rc<Front>,
}

impl<S> Service<ServiceRequest> for FrontService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse, Error = Error>,
    S::Future: Unpin,
{
    type Response = ServiceResponse<Encoder<BoxBody>>;
    type Error = Error;
    type Future = Passing<S::Future>;

    actix_web::dev::forward_ready!(service);

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let cors = match guard::admit(&self.front.authentication.origins, &request) {
            Ok(cors) => cors,
            Err(response) => return Passing::Refused(Some(Box::new(request.into_response(*response))), Cors::No),
        };
        let refused = Connection::of(request.request()).map(|connection| {
            match limit::refused(&self.front.authentication, &connection, &request) {
                Some(response) => Err(response),
                None => Ok(connection.place().work()),
            }
        });
        let working = match refused.transpose() {
            Ok(working) => working,
            Err(response) => return Passing::Refused(Some(Box::new(request.into_response(response))), cors),
        };
        let front = Rc::clone(&self.front);
        Passing::Inside { answer: self.service.call(request), front, cors, _working: working }
    }
}

/// The answer to a request, on its way.
pub enum Passing<F> {
    /// Until it is taken.
    Refused(Option<Box<ServiceResponse>>, Cors),
    Inside {
        answer: F,
        front: Rc<Front>,
        cors: Cors,
        /// Its connection is not to be broken meanwhile.
        _working: Option<Working>,
    },
}

impl<F> Future for Passing<F>
where
    F: Future<Output = Result<ServiceResponse, Error>> + Unpin,
{
    type Output = Result<ServiceResponse<Encoder<BoxBody>>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (mut response, cors) = match &mut *self {
            Self::Inside { answer, front, cors, .. } => {
                let response = std::task::ready!(Pin::new(answer).poll(cx))?;
                (unread::count(&front.authentication, &front.memory, response), cors)
            }
            // A refusal is short.
            Self::Refused(response, cors) => match response.take() {
                Some(response) => (*response, cors),
                None => return Poll::Pending,
            },
        };
        cors.dress(response.headers_mut());
        Poll::Ready(Ok(compress(response)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use actix_web::{
        App, HttpResponse,
        http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_ENCODING, VARY},
        test::{self, TestRequest},
        web,
    };

    use super::*;
    use crate::testing::front;
    use countersign_config::Config;

    #[actix::test]
    async fn only_what_may_ask_gets_in_and_every_answer_is_dressed_for_its_origin() {
        let mut config = Config::default();
        config.transports.http.cors_origins = vec!["https://app.example".into()];
        let inside = Arc::new(AtomicUsize::new(0));
        let count = web::Data::from(Arc::clone(&inside));
        let handler = |count: web::Data<AtomicUsize>| async move {
            count.fetch_add(1, Ordering::Relaxed);
            HttpResponse::BadRequest().body("x".repeat(5000))
        };
        let app = App::new().app_data(count).default_service(web::to(handler));
        let app = test::init_service(app.wrap(front(&config))).await;
        for (origin, preflight, status, entered) in [
            ("https://app.example", false, 400, true),
            ("https://app.example", true, 204, false),
            ("https://evil.example", false, 403, false),
            ("https://evil.example", true, 403, false),
        ] {
            let mut request = TestRequest::get().append_header(("host", "localhost:8080"));
            request = request.append_header(("origin", origin)).append_header(("accept-encoding", "gzip"));
            if preflight {
                request = request.method(actix_web::http::Method::OPTIONS);
                request = request.append_header(("access-control-request-method", "POST"));
            }
            let before = inside.load(Ordering::Relaxed);
            let response = test::call_service(&app, request.to_request()).await;
            assert_eq!(response.status().as_u16(), status, "{origin} {preflight}");
            assert_eq!(inside.load(Ordering::Relaxed) > before, entered, "{origin} {preflight}");
            let allowed = response.headers().get(ACCESS_CONTROL_ALLOW_ORIGIN).map(|value| value.as_bytes());
            assert_eq!(allowed, (status != 403).then_some(origin.as_bytes()), "{origin} {preflight}");
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), entered, "{origin} {preflight}");
            let varies = response.headers().get_all(VARY).any(|value| value.as_bytes().starts_with(b"Origin"));
            assert_eq!(varies, status != 403, "{origin} {preflight}");
        }
    }
}
