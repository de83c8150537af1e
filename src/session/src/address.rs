//! Where people reach the gateway, for links to its pages.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::OnceLock,
};

use countersign_config::Config;

/// See the module's page.
pub struct GatewayAddress {
    public_url: Option<String>,
    scheme: &'static str,
    configured: SocketAddr,
    /// The address that is really bound, once it is.
    bound: OnceLock<SocketAddr>,
}

impl GatewayAddress {
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            public_url: config.public_url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            scheme: config.scheme(),
            configured: config.listen,
            bound: OnceLock::new(),
        }
    }

    /// Notes the address that was bound.
    pub fn bind(&self, address: SocketAddr) {
        self.bound.get_or_init(|| address);
    }

    /// The address that was bound, or the configured one before.
    #[must_use]
    pub fn bound(&self) -> SocketAddr {
        self.bound.get().copied().unwrap_or(self.configured)
    }

    /// The page of a change in the dashboard.
    #[must_use]
    pub fn page_of_change(&self, id: &str) -> String {
        format!("{}inbox/{id}", self.dashboard())
    }

    /// The dashboard's address, up to the name of a page.
    #[must_use]
    pub fn dashboard(&self) -> String {
        match &self.public_url {
            Some(url) => format!("{url}/#/"),
            None => format!("{}://{}/#/", self.scheme, self.reached_at()),
        }
    }

    /// Where a person at this machine reaches the gateway.
    fn reached_at(&self) -> SocketAddr {
        let address = self.bound();
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, address.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_that_listens_everywhere_is_reached_at_loopback() {
        let address = GatewayAddress::new(&Config::default());
        address.bind("0.0.0.0:81".parse().unwrap());
        assert_eq!(address.page_of_change("chg_1"), "http://127.0.0.1:81/#/inbox/chg_1");
    }

    #[test]
    fn public_url_takes_precedence() {
        let config = Config { public_url: Some("https://a.example/".into()), ..Config::default() };
        assert_eq!(GatewayAddress::new(&config).dashboard(), "https://a.example/#/");
    }
}
