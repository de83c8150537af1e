//! Who asks at the REST and feed endpoints, where a credential is needed even on loopback.
//!
//! A key in `Authorization`, or the dashboard's cookie together with its header. Agents are refused: an agent that
//! can reach the port must not see or decide what others proposed.

use std::{
    future::{Ready, ready},
    net::IpAddr,
    sync::Arc,
};

use actix_web::{FromRequest, HttpRequest, dev::Payload, http::Method, web};
use jiff::Timestamp;

use super::{Problem, RestState};
use crate::{connections::Connection, guard};
use countersign_auth::{bearer, dashboard};
use countersign_config::Config;
use countersign_domain::principal::{Credential, Identity, Principal};
use countersign_protocol::{ErrorKind, McpError};

/// Someone who may see all changes: a reviewer, a viewer or an admin.
#[derive(Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    pub credential: Credential,
}

impl Caller {
    /// Whoever asks, if they may decide.
    ///
    /// # Errors
    /// `FORBIDDEN`
    pub fn decides(&self) -> Result<&Arc<Principal>, Problem> {
        if self.principal.role.may_decide() {
            return Ok(&self.principal);
        }
        Err(Problem::new(ErrorKind::Forbidden, "a viewer sees changes but does not decide on them"))
    }
}

impl FromRequest for Caller {
    type Error = Problem;
    type Future = Ready<Result<Self, Problem>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(authenticate(request))
    }
}

fn authenticate(request: &HttpRequest) -> Result<Caller, Problem> {
    let state = state(request)?;
    let identity = identify(request, state)?;
    if !identity.principal.role.may_view() {
        return Err(Problem::new(
            ErrorKind::Forbidden,
            "this endpoint needs a reviewer's or viewer's key, not an agent's",
        ));
    }
    if let Some(connection) = Connection::of(request) {
        connection.is_reviewers();
    }
    Ok(Caller { principal: identity.principal, credential: identity.credential })
}

/// Whether a request shows the credential of somebody who may see changes. The dashboard's cookie alone counts too: it
/// opens nothing, but a page that is loaded has nothing else to show.
#[must_use]
pub fn may_view(request: &HttpRequest) -> bool {
    let Ok(state) = state(request) else { return false };
    identify(request, state).is_ok_and(|identity| identity.principal.role.may_view())
        || state.sign_ins.knows(&cookies(request), Timestamp::now())
}

/// Whose credential a request shows: a key, or the dashboard's cookie with its header.
///
/// # Errors
/// `UNAUTHORIZED` where it shows none, and `FORBIDDEN` from a foreign page.
pub fn identify(request: &HttpRequest, state: &RestState) -> Result<Identity, McpError> {
    let headers = request.headers();
    if let Some(authorization) = bearer::header(headers)? {
        return state.authenticator.identify(Some(authorization), peer(request, &state.config));
    }
    let mut secrets = headers.get_all(dashboard::SECRET_HEADER);
    let Some(secret) = secrets.next().filter(|_| secrets.next().is_none()) else {
        return Err(McpError::new(
            ErrorKind::Unauthorized,
            "a reviewer's or viewer's credential is needed: Authorization: Bearer <key>, or sign in to the dashboard",
        ));
    };
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    dashboard::check_page(guard::verdict(&state.origins, request), is_get)?;
    state.sign_ins.authenticate(&cookies(request), Some(secret.as_bytes()), Timestamp::now())
}

/// The values of our cookie; more than one where other ports of the host set some.
#[must_use]
pub fn cookies(request: &HttpRequest) -> Vec<String> {
    let Ok(all) = request.cookies() else { return Vec::new() };
    all.iter().filter(|cookie| cookie.name() == dashboard::COOKIE).map(|cookie| cookie.value().to_owned()).collect()
}

/// The address that failed attempts are counted under: the socket's, or behind a proxy the one that it names.
#[must_use]
pub fn peer(request: &HttpRequest, config: &Config) -> Option<IpAddr> {
    let socket = request.peer_addr().map(|address| address.ip());
    if !config.behind_tls_proxy {
        return socket;
    }
    // The last one was added by the proxy itself; those before it are the client's word.
    let forwarded = request.headers().get_all("x-forwarded-for").last();
    let last = forwarded.and_then(|value| value.to_str().ok()).and_then(|value| value.rsplit(',').next());
    last.and_then(|text| text.trim().parse().ok()).or(socket)
}

/// The state that the application was given.
///
/// # Errors
/// `INTERNAL_ERROR` where it did not.
pub fn state(request: &HttpRequest) -> Result<&web::Data<RestState>, Problem> {
    request.app_data::<web::Data<RestState>>().ok_or_else(|| {
        tracing::error!("the REST endpoints are served without their state");
        Problem::new(ErrorKind::Internal, "the REST endpoints are not set up")
    })
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn behind_a_proxy_the_peer_is_the_one_that_it_names_last() {
        let of = |behind_tls_proxy: bool, forwarded: &[&str]| {
            let config = Config { behind_tls_proxy, ..Config::default() };
            let request = TestRequest::default().peer_addr("10.0.0.1:5".parse().unwrap());
            let request = forwarded.iter().fold(request, |r, value| r.append_header(("x-forwarded-for", *value)));
            peer(&request.to_http_request(), &config).unwrap().to_string()
        };
        assert_eq!(of(false, &["1.1.1.1"]), "10.0.0.1", "nobody may say who he is");
        assert_eq!(of(true, &[]), "10.0.0.1");
        assert_eq!(of(true, &["1.1.1.1"]), "1.1.1.1");
        assert_eq!(of(true, &["6.6.6.6, 1.1.1.1"]), "1.1.1.1");
        assert_eq!(of(true, &["6.6.6.6", "7.7.7.7 ,2001:db8::1"]), "2001:db8::1");
        assert_eq!(of(true, &["1.1.1.1, unknown"]), "10.0.0.1");
    }

    #[test]
    fn only_cookies_of_our_name_are_looked_at_and_all_of_them() {
        let of = |value: &str| cookies(&TestRequest::default().append_header(("cookie", value)).to_http_request());
        let ours = dashboard::COOKIE;
        assert_eq!(of(&format!("a=1; {ours}=x; {ours}2=z; {ours}=y")), ["x", "y"]);
        assert!(of("other=1").is_empty());
        assert!(cookies(&TestRequest::default().to_http_request()).is_empty());
    }
}
