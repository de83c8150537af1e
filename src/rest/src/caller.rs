//! Authenticates callers of the REST and feed endpoints, which need a credential even on loopback.
//!
//! The credential is a key or an access token in `Authorization`, or the dashboard's cookie together with its header. Agents are refused, because an
//! agent that can reach the port must not see or decide the changes of others.

use std::{
    future::{Ready, ready},
    sync::Arc,
};

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};

use super::Problem;
use countersign_auth::scopes::require_scope;
use countersign_config::HttpConfig;
use countersign_domain::principal::{Credential, Principal, Scope};
use countersign_http::{connections::Connection, guard::RequestAuthenticator};
use countersign_protocol::ErrorKind;

/// A principal who may see all changes: a reviewer, a viewer or an admin.
#[derive(Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    pub credential: Credential,
}

impl Caller {
    /// Returns the principal if they may decide.
    ///
    /// # Errors
    /// `FORBIDDEN`
    pub fn reviewer(&self) -> Result<&Arc<Principal>, Problem> {
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
    let identity = admission(request)?.authentication.identify(request)?;
    require_scope(&identity.principal, Scope::ChangesDecide)?;
    if !identity.principal.role.may_view() {
        return Err(Problem::new(
            ErrorKind::Forbidden,
            "this endpoint needs a reviewer's or viewer's key, not an agent's",
        ));
    }
    if let Some(connection) = Connection::for_request(request) {
        connection.reserve_reviewer_place();
    }
    Ok(Caller { principal: identity.principal, credential: identity.credential })
}

/// The data that every endpoint uses before its handler runs.
pub struct Admission {
    pub authentication: Arc<RequestAuthenticator>,
    pub http: HttpConfig,
}

/// Returns the data of the application.
///
/// # Errors
/// `INTERNAL_ERROR` if the application has none.
pub fn admission(request: &HttpRequest) -> Result<&web::Data<Admission>, Problem> {
    request.app_data::<web::Data<Admission>>().ok_or_else(|| {
        tracing::error!("the REST endpoints are served without their data");
        Problem::new(ErrorKind::Internal, "the REST endpoints are not set up")
    })
}
