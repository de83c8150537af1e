//! Authenticates callers of the REST and feed endpoints, which need a credential even on loopback.
//!
//! The credential is a key or an access token in `Authorization`, or the dashboard's cookie together with its header. Agents
//! are refused, because an agent that can reach the port must not see or decide the changes of others.

use std::{
    future::{Ready, ready},
    sync::Arc,
};

use actix_web::{FromRequest, HttpRequest, dev::Payload, web};

use super::Problem;
use countersign_auth::{ProviderSignIns, attempts::FailedAttempts, stored_credentials::StoredCredentials};
use countersign_config::HttpConfig;
use countersign_domain::{
    policy::Reviewers,
    principal::{Credential, Principal, Scope},
};
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
    pub fn require_reviewer(&self) -> Result<&Arc<Principal>, Problem> {
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

/// Authenticates the caller of a request.
///
/// # Errors
/// `UNAUTHORIZED`, or `FORBIDDEN` for an agent.
pub fn authenticate(request: &HttpRequest) -> Result<Caller, Problem> {
    let identity = access_data(request)?.authentication.identify(request)?;
    check_access(&identity.principal)?;
    if let Some(connection) = Connection::for_request(request) {
        connection.reserve_reviewer_place();
    }
    Ok(Caller { principal: identity.principal, credential: identity.credential })
}

/// Checks that the principal may see all changes.
fn check_access(principal: &Principal) -> Result<(), Problem> {
    principal.require_scope(Scope::ChangesDecide)?;
    if principal.role.may_view() {
        return Ok(());
    }
    Err(Problem::new(ErrorKind::Forbidden, "this endpoint needs a reviewer's or viewer's key, not an agent's"))
}

/// The data that every endpoint needs before its handler runs: the check of the caller, and the limits of requests.
pub struct AccessData {
    pub authentication: Arc<RequestAuthenticator>,
    pub http: HttpConfig,
}

/// The data of all endpoints that read or write sign-ins, keys or absences.
pub struct SignInData {
    pub authentication: Arc<RequestAuthenticator>,
    pub credentials: Arc<StoredCredentials>,
    pub provider_sign_ins: Arc<ProviderSignIns>,
    pub attempts: FailedAttempts,
    pub reviewers: Arc<Reviewers>,
}

/// Returns the access data of the application.
///
/// # Errors
/// `INTERNAL_ERROR` if the application has none.
pub fn access_data(request: &HttpRequest) -> Result<&web::Data<AccessData>, Problem> {
    request.app_data::<web::Data<AccessData>>().ok_or_else(|| {
        tracing::error!("the REST endpoints are served without their data");
        Problem::new(ErrorKind::Internal, "the REST endpoints are not set up")
    })
}

#[cfg(test)]
mod tests {
    use actix_web::{ResponseError as _, http::header::WWW_AUTHENTICATE};

    use super::*;
    use countersign_domain::principal::Role;
    use countersign_exchange::testing::token_identity;

    #[test]
    fn token_needs_the_scope_to_decide() {
        let check = |role, scopes: &[Scope]| check_access(&token_identity("ann", role, scopes, i64::MAX).principal);
        check(Role::Reviewer, &[Scope::ChangesDecide]).unwrap();
        check(Role::Admin, &[Scope::Admin]).unwrap();
        let response = check(Role::Agent, &[Scope::ToolsPropose]).unwrap_err().error_response();
        assert_eq!(response.status().as_u16(), 403);
        let challenge = response.headers().get(WWW_AUTHENTICATE).unwrap();
        assert_eq!(challenge, r#"Bearer error="insufficient_scope", scope="changes:decide""#);
    }
}
