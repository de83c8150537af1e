//! Authenticates requests. Agents send a key or connect from this machine. People who use the REST endpoints send a key, or the
//! dashboard's cookie together with its header.

use std::{net::IpAddr, sync::Arc};

use actix_web::{HttpRequest, http::Method};
use jiff::Timestamp;

use crate::{connections::Connection, guard};
use countersign_auth::{Authenticator, DashboardSignIns, OriginRules, bearer, dashboard};
use countersign_config::Config;
use countersign_domain::principal::Identity;
use countersign_protocol::{ErrorKind, McpError};

/// Authenticates an agent by the `Authorization` header and the peer's address.
///
/// # Errors
/// As [`Authenticator::identify`].
pub fn identify_agent(authenticator: &Authenticator, request: &HttpRequest) -> Result<Identity, McpError> {
    let socket =
        Connection::for_request(request).and_then(|connection| connection.peer).or_else(|| request.peer_addr());
    authenticator.identify(bearer::authorization_header(request.headers())?, socket.map(|address| address.ip()))
}

/// Returns all values of the dashboard's cookie. There are several if gateways on other ports of this host have set the cookie
/// too.
#[must_use]
pub fn cookies(request: &HttpRequest) -> Vec<String> {
    let Ok(all) = request.cookies() else { return Vec::new() };
    all.iter().filter(|cookie| cookie.name() == dashboard::COOKIE).map(|cookie| cookie.value().to_owned()).collect()
}

/// Authenticates requests to the REST endpoints.
pub struct RequestAuthenticator {
    pub authenticator: Arc<Authenticator>,
    pub sign_ins: Arc<DashboardSignIns>,
    pub origins: Arc<OriginRules>,
    behind_tls_proxy: bool,
}

impl RequestAuthenticator {
    #[must_use]
    pub const fn new(
        authenticator: Arc<Authenticator>,
        sign_ins: Arc<DashboardSignIns>,
        origins: Arc<OriginRules>,
        config: &Config,
    ) -> Self {
        Self { authenticator, sign_ins, origins, behind_tls_proxy: config.behind_tls_proxy }
    }

    /// Identifies the principal of a request by a key, or by the dashboard's cookie together with its header.
    ///
    /// # Errors
    /// `UNAUTHORIZED` if the request has no valid credential, and `FORBIDDEN` if a foreign page sent it.
    pub fn identify(&self, request: &HttpRequest) -> Result<Identity, McpError> {
        let headers = request.headers();
        if let Some(authorization) = bearer::authorization_header(headers)? {
            return self.authenticator.identify(Some(authorization), self.address(request));
        }
        let mut secrets = headers.get_all(dashboard::SECRET_HEADER);
        let Some(secret) = secrets.next().filter(|_| secrets.next().is_none()) else {
            return Err(McpError::new(
                ErrorKind::Unauthorized,
                "a reviewer's or viewer's credential is needed: Authorization: Bearer <key>, or sign in to the dashboard",
            ));
        };
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        dashboard::check_page_origin(guard::origin_verdict(&self.origins, request), is_get)?;
        self.sign_ins.authenticate(&cookies(request), Some(secret.as_bytes()), Timestamp::now())
    }

    /// Returns `true` if a request has the credential of somebody who may view changes. The dashboard's cookie alone is enough
    /// here, because a browser that loads a page cannot send the header.
    #[must_use]
    pub fn may_view(&self, request: &HttpRequest) -> bool {
        self.identify(request).is_ok_and(|identity| identity.principal.role.may_view())
            || self.sign_ins.is_signed_in(&cookies(request), Timestamp::now())
    }

    /// Returns the address under which failed attempts are counted. This is the socket's address, or the address that a TLS
    /// proxy reports.
    #[must_use]
    pub fn address(&self, request: &HttpRequest) -> Option<IpAddr> {
        address(request, self.behind_tls_proxy)
    }
}

fn address(request: &HttpRequest, behind_tls_proxy: bool) -> Option<IpAddr> {
    let socket = request.peer_addr().map(|address| address.ip());
    if !behind_tls_proxy {
        return socket;
    }
    // The proxy added the last address. The client may have invented the addresses before the last one.
    let forwarded = request.headers().get_all("x-forwarded-for").last();
    let last = forwarded.and_then(|value| value.to_str().ok()).and_then(|value| value.rsplit(',').next());
    last.and_then(|text| text.trim().parse().ok()).or(socket)
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

    #[test]
    fn client_address_is_the_one_that_the_proxy_added() {
        let address_for = |proxied: bool, forwarded: &[&str]| {
            let request = TestRequest::default().peer_addr("10.0.0.1:5".parse().unwrap());
            let request = forwarded.iter().fold(request, |r, value| r.append_header(("x-forwarded-for", *value)));
            address(&request.to_http_request(), proxied).unwrap().to_string()
        };
        assert_eq!(address_for(false, &["1.1.1.1"]), "10.0.0.1", "a client cannot choose its address");
        assert_eq!(address_for(true, &[]), "10.0.0.1");
        assert_eq!(address_for(true, &["1.1.1.1"]), "1.1.1.1");
        assert_eq!(address_for(true, &["6.6.6.6, 1.1.1.1"]), "1.1.1.1");
        assert_eq!(address_for(true, &["6.6.6.6", "7.7.7.7 ,2001:db8::1"]), "2001:db8::1");
        assert_eq!(address_for(true, &["1.1.1.1, unknown"]), "10.0.0.1");
    }

    #[test]
    fn all_cookies_of_the_dashboard_are_returned() {
        let cookie_values =
            |value: &str| cookies(&TestRequest::default().append_header(("cookie", value)).to_http_request());
        let ours = dashboard::COOKIE;
        assert_eq!(cookie_values(&format!("a=1; {ours}=x; {ours}2=z; {ours}=y")), ["x", "y"]);
        assert!(cookie_values("other=1").is_empty());
        assert!(cookies(&TestRequest::default().to_http_request()).is_empty());
    }
}
