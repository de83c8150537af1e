//! What somebody posts: who it is, which change it is about, and the body, each checked before the next, so that nobody
//! without a credential learns anything from the order of errors.

use std::sync::Arc;

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};
use futures_util::future::LocalBoxFuture;
use serde::de::DeserializeOwned;

use super::{Caller, Problem, body, caller, path_id};
use countersign_config::HttpConfig;
use countersign_domain::principal::Principal;
use countersign_protocol::ErrorKind;

/// The body of an endpoint.
pub trait Body: DeserializeOwned + Send + 'static {
    /// How many bytes it may have.
    fn most(_: &HttpConfig) -> usize {
        body::MAX_BODY
    }
}

/// A body from somebody who may decide.
pub struct Posted<B> {
    pub reviewer: Arc<Principal>,
    pub body: B,
}

/// The same, about the change with this id.
pub struct OnChange<B> {
    pub id: String,
    pub reviewer: Arc<Principal>,
    pub body: B,
}

/// The same, about the standing rule with this id.
pub struct OnRule<B> {
    pub id: String,
    pub reviewer: Arc<Principal>,
    pub body: B,
}

/// A body from anybody who may look.
pub struct Asked<B>(pub B);

/// Reads a body, once somebody was admitted.
fn read<B: Body, T: 'static>(
    request: &HttpRequest,
    payload: &mut Payload,
    admit: impl FnOnce(Caller) -> Result<T, Problem>,
) -> LocalBoxFuture<'static, Result<(T, B), Problem>> {
    let caller = Caller::from_request(request, payload).into_inner();
    let admitted = caller.and_then(admit).and_then(|who| Ok((who, Arc::clone(&caller::state(request)?.config))));
    let (request, payload) = (request.clone(), web::Payload::from_request(request, payload).into_inner());
    Box::pin(async move {
        let (who, config) = admitted?;
        let payload = payload.map_err(|error| Problem::new(ErrorKind::InvalidRequest, error.to_string()))?;
        let http = &config.transports.http;
        let body = body::json_up_to(B::most(http), &request, payload, http.request_timeout).await?;
        Ok((who, body))
    })
}

/// Whoever may decide, and the id of what it is about.
fn about(
    request: &HttpRequest,
    kind: ErrorKind,
    what: &str,
) -> impl FnOnce(Caller) -> Result<(Arc<Principal>, String), Problem> {
    let id = path_id(request).map(str::to_owned);
    let missing = format!("{what} not found");
    move |caller| {
        let reviewer = Arc::clone(caller.decides()?);
        Ok((reviewer, id.ok_or_else(|| Problem::new(kind, missing))?))
    }
}

impl<B: Body> FromRequest for Posted<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let read = read(request, payload, |caller| caller.decides().map(Arc::clone));
        Box::pin(async move { read.await.map(|(reviewer, body)| Self { reviewer, body }) })
    }
}

impl<B: Body> FromRequest for OnChange<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let read = read(request, payload, about(request, ErrorKind::ChangeNotFound, "Change"));
        Box::pin(async move { read.await.map(|((reviewer, id), body)| Self { id, reviewer, body }) })
    }
}

impl<B: Body> FromRequest for OnRule<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let read = read(request, payload, about(request, ErrorKind::NotFound, "Standing rule"));
        Box::pin(async move { read.await.map(|((reviewer, id), body)| Self { id, reviewer, body }) })
    }
}

impl<B: Body> FromRequest for Asked<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let read = read(request, payload, |_| Ok(()));
        Box::pin(async move { read.await.map(|((), body)| Self(body)) })
    }
}
