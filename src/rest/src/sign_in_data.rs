//! The data that the endpoints of accounts, keys and absences share.

use std::sync::Arc;

use countersign_auth::{ProviderSignIns, attempts::FailedAttempts, stored_credentials::StoredCredentials};
use countersign_domain::policy::Reviewers;
use countersign_http::guard::RequestAuthenticator;

/// The data of all endpoints that read or write sign-ins, keys or absences.
pub struct SignInData {
    pub authentication: Arc<RequestAuthenticator>,
    pub credentials: Arc<StoredCredentials>,
    pub provider_sign_ins: Arc<ProviderSignIns>,
    pub attempts: FailedAttempts,
    pub reviewers: Arc<Reviewers>,
}
