//! Decides where requests on behalf of accounts at one server may go. The server chooses the authorization server to
//! which the gateway connects, but it must not lead the gateway into the operator's network or to this machine.

use std::net::IpAddr;

use url::{Host, Url};

use super::OAuthError;
use countersign_auth::tokens::quote;
use countersign_config::is_loopback;
use countersign_net::AddressRange;

/// The origins that the operator configured, which decide where requests may go.
///
/// Requests to these origins may use any address, and HTTP if it is configured. All other requests must use HTTPS at a
/// public address. If the server is configured by an address of a private network or of this machine, other requests
/// may go to that network or machine too, with the server's scheme.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AllowedAddresses {
    #[serde(rename = "server")]
    server_origin: String,
    #[serde(rename = "issuer")]
    issuer_origin: Option<String>,
}

impl AllowedAddresses {
    /// Creates the rules for a server, and an issuer that the operator chose.
    pub fn new(server: &Url, issuer: Option<&str>) -> Self {
        let issuer = issuer.and_then(|issuer| Url::parse(issuer).ok());
        Self { server_origin: origin(server), issuer_origin: issuer.as_ref().map(origin) }
    }

    /// Checks that a URL may be used, and returns it with the range of addresses to which its host may resolve.
    pub(super) fn check(&self, text: &str) -> Result<(Url, AddressRange), OAuthError> {
        let refuse = |reason: &str| Err(OAuthError::Unusable(format!("{} {reason}", quote(text))));
        let Ok(url) = Url::parse(text) else { return refuse("is not a URL") };
        if !matches!(url.scheme(), "https" | "http") {
            return refuse("does not use https");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("contains a user name or password");
        }
        let origin = origin(&url);
        if origin == self.server_origin || self.issuer_origin.as_ref() == Some(&origin) {
            return Ok((url, AddressRange::Any));
        }
        let server = Url::parse(&self.server_origin).ok();
        let range = server.as_ref().and_then(literal_address_range).unwrap_or(AddressRange::Public);
        // `Any` is the range of a server at a link-local or another special address. It does not open the other ones,
        // because cloud platforms serve credentials at link-local addresses.
        let range = if range == AddressRange::Any { AddressRange::Public } else { range };
        let target = literal_address_range(&url);
        if target.is_some_and(|target| !range.includes(target)) {
            return refuse("is an address that is neither public nor in the network of the server");
        }
        let is_local = target.is_some_and(|target| target != AddressRange::Public);
        let has_plain_server = server.is_some_and(|server| server.scheme() == "http");
        if url.scheme() == "http" && !(is_local && has_plain_server) {
            return refuse("does not use https");
        }
        Ok((url, range))
    }
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// Returns the range of the IP address in a URL, or `None` for a host name other than that of this machine.
fn literal_address_range(url: &Url) -> Option<AddressRange> {
    match url.host()? {
        Host::Ipv4(address) => Some(AddressRange::for_address(IpAddr::V4(address))),
        Host::Ipv6(address) => Some(AddressRange::for_address(IpAddr::V6(address))),
        Host::Domain(_) => is_loopback(url).then_some(AddressRange::PublicAndLoopback),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(server: &str, issuer: Option<&str>, url: &str) -> Option<AddressRange> {
        let allowed_addresses = AllowedAddresses::new(&Url::parse(server).unwrap(), issuer);
        allowed_addresses.check(url).ok().map(|(_, range)| range)
    }

    #[test]
    fn public_server_reaches_public_addresses_with_https_only() {
        let range_of = |url| range("https://mcp.example/mcp", None, url);
        assert_eq!(range_of("https://id.example/x"), Some(AddressRange::Public));
        assert_eq!(range_of("https://8.8.8.8/x"), Some(AddressRange::Public));
        for url in [
            "http://id.example",
            "https://127.0.0.1",
            "https://localhost",
            "https://[::1]",
            "https://0x7f.1",
            "https://2130706433",
            "https://10.0.0.1",
            "https://169.254.169.254",
            "https://[::ffff:10.0.0.1]",
            "http://mcp.example/mcp",
            "https://u:p@id.example",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "/authorize",
        ] {
            assert_eq!(range_of(url), None, "{url}");
        }
    }

    #[test]
    fn private_server_reaches_only_its_own_network() {
        let from_loopback = |url| range("http://localhost:3000/mcp", None, url);
        assert_eq!(from_loopback("http://127.0.0.1:4000"), Some(AddressRange::PublicAndLoopback));
        assert_eq!(from_loopback("https://id.example"), Some(AddressRange::PublicAndLoopback));
        assert_eq!(from_loopback("http://id.example"), None);
        assert_eq!(from_loopback("http://169.254.169.254"), None);
        assert_eq!(from_loopback("http://10.0.0.1"), None);
        let from_private = |url| range("http://10.0.0.1/mcp", None, url);
        assert_eq!(from_private("http://10.0.0.2"), Some(AddressRange::PublicAndPrivate));
        assert_eq!(from_private("http://127.0.0.1"), None);
        assert_eq!(range("https://10.0.0.1/mcp", None, "http://10.0.0.2"), None);
    }

    #[test]
    fn configured_origins_are_reached_at_any_address() {
        let range_of = |url| range("http://mcp:8080/mcp", Some("http://sso:9000/realm"), url);
        assert_eq!(range_of("http://mcp:8080/.well-known/x"), Some(AddressRange::Any));
        assert_eq!(range_of("http://sso:9000/token"), Some(AddressRange::Any));
        assert_eq!(range_of("http://sso:9001/token"), None);
        assert_eq!(range_of("https://sso/token"), Some(AddressRange::Public));
    }
}
