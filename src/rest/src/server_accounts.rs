//! Accounts of people at servers that require OAuth: connecting one in the browser, and disconnecting it.
//!
//! Only a person's credential connects, never that of an agent, because an agent could connect an account that is not its
//! person's. Everything that goes wrong in the browser ends on the dashboard, whose address then names the problem.

use actix_web::{HttpRequest, HttpResponse, cookie::Cookie, http::header::ORIGIN, web};
use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;

use super::{
    AccessData, Caller, Problem,
    account::set_cookie,
    identity_provider::{CallbackParams, FlowCookies, redirect},
    json_response, path_name,
};
use countersign_accounts::{
    AccountStatus, CONSENT_COOKIE, ConnectError, MAX_CONSENT_DURATION, StartedConsent, server_page,
};
use countersign_domain::principal::{Credential, Principal};
use countersign_protocol::{ErrorKind, McpError};

/// The path of [`CONSENT_COOKIE`].
const COOKIE_PATH: &str = "/api/servers";

/// The accounts as the endpoints use them.
#[async_trait(?Send)]
pub trait ServerAccounts: Send + Sync + 'static {
    /// Returns the accounts that a principal uses, in the order of the configuration.
    async fn list_statuses(&self, principal: &Principal) -> Result<Vec<AccountStatus>, McpError>;

    /// Begins to connect the account of a principal at a server.
    async fn begin_connection(&self, server: &str, principal: &Principal) -> Result<StartedConsent, ConnectError>;

    /// Finishes a connection with the query of the browser's request and its cookie. Returns the name of the server.
    async fn finish_connection(&self, query: &str, cookie: Option<&str>) -> Result<String, ConnectError>;

    /// Removes the account of a principal. Returns `false` if there was none.
    async fn disconnect(&self, server: &str, principal: &Principal) -> Result<bool, McpError>;

    /// Returns the page on which a person connects a server, at the address to which browsers come back.
    fn connect_url(&self, server: &str) -> String;

    /// Returns the Client ID Metadata Document, if the gateway has one.
    fn client_metadata(&self) -> Option<Value>;
}

/// The account at a server that the caller's calls use.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Account)]
pub(super) struct AccountInfo {
    /// `person` for an account of the caller, or `gateway` for one account that everybody uses.
    #[serde(rename = "as")]
    #[schema(pattern = "^(person|gateway)$")]
    kind: &'static str,
    connected: bool,
    /// `true` if the caller may connect and disconnect it.
    may_connect: bool,
    /// The reason why it must be connected again.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// The time of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// The authorization server.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// The granted scopes.
    scopes: Vec<String>,
}

impl From<AccountStatus> for AccountInfo {
    fn from(status: AccountStatus) -> Self {
        let AccountStatus { server: _, kind, is_connected, may_connect, problem, connected_at, issuer, scopes } =
            status;
        Self { kind: kind.into(), connected: is_connected, may_connect, problem, since: connected_at, issuer, scopes }
    }
}

/// The page on which the caller authorizes the gateway.
#[derive(Serialize, ToSchema)]
#[schema(as = Consent)]
struct AuthorizationPage {
    /// The page of the authorization server, for the browser that has the cookie of this response.
    url: String,
}

/// Begins to connect the caller's account at a server.
///
/// The browser then opens `url`, and comes back to `/api/servers/callback`. An account of the gateway needs the role admin.
#[utoipa::path(post, path = "/api/servers/{name}/connect", operation_id = "connectServer", responses(
    (status = 200, body = AuthorizationPage, headers(("Set-Cookie" = String,
        description = "`countersign_connect`: HttpOnly, SameSite=Lax, Path=/api/servers, and Secure over https.")),
        description = "The page of the authorization server"),
    (status = 502)))]
pub async fn connect(
    caller: Caller,
    request: HttpRequest,
    access: web::Data<AccessData>,
    accounts: web::Data<dyn ServerAccounts>,
) -> Result<HttpResponse, Problem> {
    // Agents present access tokens of people, and could connect an account of somebody else.
    if matches!(caller.credential, Credential::Token(_)) {
        let message = "an access token cannot connect an account; sign in to the dashboard";
        return Err(Problem::new(ErrorKind::Forbidden, message));
    }
    let server = path_name(&request);
    check_host(&request, &accounts.connect_url(&server))?;
    let started = accounts.begin_connection(&server, &caller.principal).await;
    let StartedConsent { url, cookie } = started.map_err(|error| Problem::new(error_kind(error), error.to_string()))?;
    let cookies = FlowCookies { authentication: &access.authentication, path: COOKIE_PATH };
    let cookie = cookies.build(CONSENT_COOKIE, cookie, MAX_CONSENT_DURATION);
    let mut response = json_response(&AuthorizationPage { url });
    set_cookie(&mut response, &cookie)?;
    Ok(response)
}

/// Checks that the browser is on the host to which it comes back. It would not send the cookie of another host there.
fn check_host(request: &HttpRequest, connect_url: &str) -> Result<(), Problem> {
    let host = |url: &str| Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    match request.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok()) {
        Some(origin) if host(origin) != host(connect_url) => {
            let text = format!(
                "the server's sign-in page leads back to another address of the gateway (public_url); open {connect_url} to \
                 connect"
            );
            Err(Problem::new(ErrorKind::InvalidRequest, text))
        }
        _ => Ok(()),
    }
}

/// Finishes the connection of a browser that comes back from the authorization server.
#[utoipa::path(get, path = "/api/servers/callback", operation_id = "finishServerConnection", security(()),
    params(CallbackParams), responses(
    (status = 302, description = "The page of the server, with `?connected`, or that of all servers with `?connect-problem=…`")))]
pub async fn finish(
    request: HttpRequest,
    access: web::Data<AccessData>,
    accounts: web::Data<dyn ServerAccounts>,
) -> HttpResponse {
    let cookie = request.cookie(CONSENT_COOKIE);
    let finished = accounts.finish_connection(request.query_string(), cookie.as_ref().map(Cookie::value)).await;
    let page = match &finished {
        Ok(server) => format!("{}?connected", server_page(server)),
        Err(error) => format!("/#/servers?connect-problem={}", error.name()),
    };
    let mut response = redirect(&page);
    // The cookie may belong to another connection, which was begun in another tab and can still be finished.
    if finished != Err(ConnectError::Interrupted) {
        let cookies = FlowCookies { authentication: &access.authentication, path: COOKIE_PATH };
        response.cookie(cookies.build_removal(CONSENT_COOKIE));
    }
    response.finish()
}

#[derive(Serialize, Deserialize, ToSchema)]
pub struct Disconnected {
    /// `false` if there was no account.
    pub disconnected: bool,
}

/// Removes the caller's account at a server, with its tokens.
///
/// An account of the gateway needs the role admin.
#[utoipa::path(delete, path = "/api/servers/{name}/connection", operation_id = "disconnectServer", responses(
    (status = 200, body = Disconnected, description = "Whether there was an account")))]
pub async fn disconnect(
    caller: Caller,
    request: HttpRequest,
    accounts: web::Data<dyn ServerAccounts>,
) -> Result<HttpResponse, Problem> {
    let disconnected = accounts.disconnect(&path_name(&request), &caller.principal).await?;
    Ok(json_response(&Disconnected { disconnected }))
}

/// Describes the gateway as a client of authorization servers (OAuth Client ID Metadata Document).
#[utoipa::path(get, path = "/.well-known/oauth-client.json", operation_id = "getClientMetadata", security(()), responses(
    (status = 200, body = Object, description = "The metadata; its URL is the id of the client"),
    (status = 404, description = "The gateway has no `public_url` with https.")))]
pub async fn client_metadata(
    request: HttpRequest,
    accounts: web::Data<dyn ServerAccounts>,
) -> Result<HttpResponse, Problem> {
    accounts
        .client_metadata()
        .map(|metadata| json_response(&metadata))
        .ok_or_else(|| Problem::not_found(request.path()))
}

const fn error_kind(error: ConnectError) -> ErrorKind {
    match error {
        ConnectError::UnknownServer => ErrorKind::NotFound,
        ConnectError::AdminOnly | ConnectError::AccessEnded | ConnectError::Denied | ConnectError::Interrupted => {
            ErrorKind::Forbidden
        }
        ConnectError::AuthorizationServerUnreachable | ConnectError::AuthorizationServerUnusable => {
            ErrorKind::UpstreamUnavailable
        }
        ConnectError::StoreUnavailable => ErrorKind::StoreUnavailable,
    }
}
