//! Refuses foreign `Host` and `Origin` headers on every endpoint, answers CORS requests of the configured origins, and
//! authenticates requests. It never allows a browser's cookies for another origin.
//!
//! Agents send a key or connect from this machine. People who use the REST endpoints send a key, or the dashboard's cookie
//! together with its header.

use std::{net::IpAddr, sync::Arc};

use actix_web::{
    HttpMessage as _, HttpRequest, HttpResponse, ResponseError as _,
    body::BoxBody,
    dev::ServiceRequest,
    http::{
        Method,
        header::{
            ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
            ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
            ACCESS_CONTROL_REQUEST_METHOD, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, VARY,
        },
    },
};
use jiff::Timestamp;

use crate::{answer, connections::Connection, problem::Problem, protected_resource::METADATA_PATH};
use countersign_auth::{
    Authenticator, DashboardSignIns, OriginRules, OriginVerdict, authenticator::authorization_header,
    dashboard_sign_ins,
};
use countersign_domain::principal::Identity;
use countersign_protocol::{ErrorKind, McpError, Revision};

/// HTTP methods that pages may use.
const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS");
/// Response headers that pages may read in addition to the CORS-safelisted ones.
const EXPOSED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Mcp-Session-Id, MCP-Protocol-Version, WWW-Authenticate, Retry-After, Content-Encoding, Allow",
);
/// Request headers that pages may send. `Mcp-Param-*` headers are added by name.
const ALLOWED_HEADERS: [&str; 10] = [
    "authorization",
    "content-type",
    "accept",
    "last-event-id",
    "mcp-session-id",
    "mcp-protocol-version",
    "mcp-method",
    "mcp-name",
    "idempotency-key",
    "countersign-reason",
];
const ANY_ORIGIN: HeaderValue = HeaderValue::from_static("*");
const PRIVATE_NETWORK_REQUEST: HeaderName = HeaderName::from_static("access-control-request-private-network");
const PRIVATE_NETWORK_ALLOW: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// The CORS headers of a response.
pub enum Cors {
    /// Adds no headers, because no other origin may call.
    No,
    /// Adds `Vary`, because other origins may call and a cache must keep their responses apart.
    Vary,
    /// Allows the origin that sent the request to read the response.
    Origin(HeaderValue),
    /// Allows every origin to read the response, which is public.
    Public,
}

impl Cors {
    /// Adds the CORS headers to a response.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        match self {
            Self::No => return,
            Self::Public => {
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY_ORIGIN);
                return;
            }
            Self::Vary => {}
            Self::Origin(origin) => {
                headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
                headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_HEADERS);
            }
        }
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// Checks the `Host`, the URL and the `Origin` of a request, and returns the CORS headers of its response.
///
/// # Errors
/// Returns the final response to a request that is refused, or to a preflight.
pub fn admit(rules: &OriginRules, request: &ServiceRequest) -> Result<Cors, Box<HttpResponse>> {
    let cors = check_request(rules, request).map_err(|error| {
        tracing::warn!(path = request.path(), peer = ?request.peer_addr(), "{}", error.message);
        Box::new(refusal_response(request.path(), &error))
    })?;
    match &cors {
        Cors::Origin(origin) if is_preflight(request) => Err(Box::new(preflight(request.headers(), origin.clone()))),
        Cors::Public if is_preflight(request) => Err(Box::new(preflight(request.headers(), ANY_ORIGIN))),
        _ => Ok(cors),
    }
}

fn check_request(rules: &OriginRules, request: &ServiceRequest) -> Result<Cors, McpError> {
    let host = check_host(rules, request)?;
    // Tokens in URLs end up in logs and histories (2026-07-28/basic/authorization, "Token Requirements").
    if request.query_string().split('&').any(|pair| pair.split('=').next() == Some("access_token")) {
        let text = "an access token must not be part of a URL; send it as Authorization: Bearer <token>";
        return Err(McpError::new(ErrorKind::InvalidRequest, text));
    }
    // Clients in browsers look for the issuers before they can have a token.
    if request.path().starts_with(METADATA_PATH) {
        return Ok(Cors::Public);
    }
    let verdict = check_origin(rules, request.headers(), host)?;
    if verdict == OriginVerdict::CorsAllowed
        && let Some(origin) = request.headers().get(ORIGIN)
    {
        return Ok(Cors::Origin(origin.clone()));
    }
    Ok(if rules.has_cors() { Cors::Vary } else { Cors::No })
}

/// Checks that the request is for this gateway, and returns its host.
fn check_host<'a>(rules: &OriginRules, request: &'a ServiceRequest) -> Result<&'a [u8], McpError> {
    let forbidden = |problem| McpError::new(ErrorKind::Forbidden, problem);
    let headers = request.headers();
    let mut hosts = headers.get_all(HOST);
    let header = hosts.next().map(HeaderValue::as_bytes);
    if hosts.next().is_some() {
        return Err(forbidden("more than one Host header"));
    }
    // HTTP/2, and HTTP/1.1 in absolute form, name the host in the target of the request. The header and the target must both
    // name this gateway.
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = header.or(target).ok_or_else(|| forbidden("the Host header is missing"))?;
    if !rules.is_own_host(host) || target.is_some_and(|target| !rules.is_own_host(target)) {
        return Err(forbidden("the Host header does not name this gateway; see allowed_hosts and public_url"));
    }
    Ok(host)
}

/// Checks that the request is from an origin that may call.
fn check_origin(rules: &OriginRules, headers: &HeaderMap, host: &[u8]) -> Result<OriginVerdict, McpError> {
    let forbidden = |problem| McpError::new(ErrorKind::Forbidden, problem);
    let mut origins = headers.get_all(ORIGIN);
    let origin = origins.next().map(HeaderValue::as_bytes);
    if origins.next().is_some() {
        return Err(forbidden("more than one Origin header"));
    }
    match rules.check_origin(origin, host) {
        OriginVerdict::Forbidden => Err(forbidden("this Origin may not call; see transports.http.cors_origins")),
        verdict => Ok(verdict),
    }
}

/// Returns the verdict on the origin of an admitted request, for stricter checks
/// ([`dashboard_sign_ins::check_page_origin`]).
#[must_use]
pub fn origin_verdict(rules: &OriginRules, request: &HttpRequest) -> OriginVerdict {
    let headers = request.headers();
    let target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let host = headers.get(HOST).map(HeaderValue::as_bytes).or(target).unwrap_or_default();
    rules.check_origin(headers.get(ORIGIN).map(HeaderValue::as_bytes), host)
}

/// Returns the response to a refused request: a JSON-RPC error without an id at the MCP endpoints
/// (2025-11-25/basic/transports, "Security Warning"), and a problem document elsewhere.
pub(crate) fn refusal_response(path: &str, error: &McpError) -> HttpResponse<BoxBody> {
    if matches!(path, "/mcp" | "/sse" | "/messages" | "/ws") {
        return answer::refusal(error, Revision::NEWEST_LEGACY);
    }
    Problem::from(error.clone()).error_response()
}

fn is_preflight(request: &ServiceRequest) -> bool {
    request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

fn preflight(headers: &HeaderMap, origin: HeaderValue) -> HttpResponse<BoxBody> {
    let mut response = HttpResponse::NoContent();
    response
        .insert_header((ACCESS_CONTROL_ALLOW_ORIGIN, origin))
        .insert_header((ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS))
        .insert_header((ACCESS_CONTROL_ALLOW_HEADERS, allowed_headers(headers)))
        .insert_header((ACCESS_CONTROL_MAX_AGE, "600"))
        .insert_header((
            VARY,
            "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, Access-Control-Request-Private-Network",
        ));
    if headers.get(&PRIVATE_NETWORK_REQUEST).is_some_and(|value| value == "true") {
        response.insert_header((PRIVATE_NETWORK_ALLOW, "true"));
    }
    response.finish()
}

/// Returns the allowed headers, with those `Mcp-Param-*` that the page requests (2026-07-28/basic/transports/streamable-http).
fn allowed_headers(headers: &HeaderMap) -> String {
    let mut allowed_names = ALLOWED_HEADERS.join(", ");
    let requested =
        headers.get(ACCESS_CONTROL_REQUEST_HEADERS).and_then(|value| value.to_str().ok()).unwrap_or_default();
    for name in requested.split(',').map(str::trim).take(64) {
        let is_parameter = name.get(..10).is_some_and(|start| start.eq_ignore_ascii_case("mcp-param-"));
        if is_parameter && HeaderName::try_from(name).is_ok() {
            allowed_names.push_str(", ");
            allowed_names.push_str(&name.to_ascii_lowercase());
        }
    }
    allowed_names
}

/// The identity behind the access token of a request, which was verified before the request reached a handler.
struct TokenIdentity(Identity);

/// Sets the identity that the authentication of this request returns.
pub(crate) fn set_token_identity(request: &ServiceRequest, identity: Identity) {
    request.extensions_mut().insert(TokenIdentity(identity));
}

fn token_identity(request: &HttpRequest) -> Option<Identity> {
    request.extensions().get::<TokenIdentity>().map(|TokenIdentity(identity)| identity.clone())
}

/// Authenticates an agent by the `Authorization` header, or else by the address of the socket.
///
/// # Errors
/// As [`Authenticator::identify`].
pub fn identify_agent(authenticator: &Authenticator, request: &HttpRequest) -> Result<Identity, McpError> {
    if let Some(identity) = token_identity(request) {
        return Ok(identity);
    }
    let authorization = authorization_header(request.headers())?;
    // Nobody becomes a local agent by an address that a header reports.
    let is_proxied = authorization.is_some() && authenticator.is_behind_tls_proxy();
    authenticator.identify(authorization, client_address(request, is_proxied))
}

/// Returns all values of the dashboard's cookie. There are several if gateways on other ports of this host have set the cookie
/// too.
pub fn dashboard_cookies(request: &HttpRequest) -> Vec<String> {
    let Ok(all) = request.cookies() else { return Vec::new() };
    all.iter()
        .filter(|cookie| cookie.name() == dashboard_sign_ins::SESSION_COOKIE)
        .map(|cookie| cookie.value().to_owned())
        .collect()
}

/// Authenticates requests to the REST endpoints.
pub struct RequestAuthenticator {
    pub authenticator: Arc<Authenticator>,
    pub sign_ins: Arc<DashboardSignIns>,
    pub origins: Arc<OriginRules>,
}

impl RequestAuthenticator {
    /// Identifies the principal of a request by a key, or by the dashboard's cookie together with its header.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if the request has no valid credential, and `FORBIDDEN` if a foreign page sent it.
    pub fn identify(&self, request: &HttpRequest) -> Result<Identity, McpError> {
        if let Some(identity) = token_identity(request) {
            return Ok(identity);
        }
        let headers = request.headers();
        if let Some(authorization) = authorization_header(headers)? {
            return self.authenticator.identify(Some(authorization), self.client_address(request));
        }
        let mut secrets = headers.get_all(dashboard_sign_ins::SECRET_HEADER);
        let Some(secret) = secrets.next().filter(|_| secrets.next().is_none()) else {
            return Err(McpError::new(
                ErrorKind::Unauthorized,
                "a reviewer's or viewer's credential is needed: Authorization: Bearer <key>, or sign in to the dashboard",
            ));
        };
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        dashboard_sign_ins::check_page_origin(origin_verdict(&self.origins, request), is_get)?;
        self.sign_ins.authenticate(&dashboard_cookies(request), Some(secret.as_bytes()), Timestamp::now())
    }

    /// Returns `true` if a request has the credential of somebody who may view changes. The dashboard's cookie alone is enough
    /// here, because a browser that loads a page cannot send the header.
    pub fn may_view(&self, request: &HttpRequest) -> bool {
        self.identify(request).is_ok_and(|identity| identity.principal.role.may_view())
            || self.sign_ins.is_signed_in(&dashboard_cookies(request), Timestamp::now())
    }

    /// Returns the address of the client, by which failed attempts are counted: that of the socket, or the one that a TLS
    /// proxy reports.
    pub fn client_address(&self, request: &HttpRequest) -> Option<IpAddr> {
        client_address(request, self.authenticator.is_behind_tls_proxy())
    }
}

fn client_address(request: &HttpRequest, is_proxied: bool) -> Option<IpAddr> {
    let socket = Connection::for_request(request).and_then(|connection| connection.peer);
    let socket = socket.or_else(|| request.peer_addr()).map(|address| address.ip());
    if !is_proxied {
        return socket;
    }
    // The proxy added the last address. The client may have invented the addresses before the last one.
    let forwarded = request.headers().get_all("x-forwarded-for").last();
    let last = forwarded.and_then(|value| value.to_str().ok()).and_then(|value| value.rsplit(',').next());
    last.and_then(|text| text.trim().parse().ok()).or(socket)
}

#[cfg(test)]
mod tests;
