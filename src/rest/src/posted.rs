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
    /// What the id in the path is of, and the error where there is none.
    const ABOUT: (&'static str, ErrorKind) = ("Change", ErrorKind::ChangeNotFound);

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

/// The same, about what has this id.
pub struct On<B> {
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
    let admitted = caller.and_then(admit).and_then(|who| Ok((who, caller::admission(request)?.clone())));
    let (request, payload) = (request.clone(), web::Payload::from_request(request, payload).into_inner());
    Box::pin(async move {
        let (who, admission) = admitted?;
        let payload = payload.map_err(|error| Problem::new(ErrorKind::InvalidRequest, error.to_string()))?;
        let http = &admission.http;
        let body = body::json_up_to(B::most(http), &request, payload, http.request_timeout).await?;
        Ok((who, body))
    })
}

impl<B: Body> FromRequest for Posted<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let read = read(request, payload, |caller| caller.decides().map(Arc::clone));
        Box::pin(async move { read.await.map(|(reviewer, body)| Self { reviewer, body }) })
    }
}

impl<B: Body> FromRequest for On<B> {
    type Error = Problem;
    type Future = LocalBoxFuture<'static, Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let id = path_id(request).map(str::to_owned);
        let missing = || Problem::new(B::ABOUT.1, format!("{} not found", B::ABOUT.0));
        let read = read(request, payload, move |caller| {
            let reviewer = Arc::clone(caller.decides()?);
            Ok((reviewer, id.ok_or_else(missing)?))
        });
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
