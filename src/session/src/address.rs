//! The address at which people reach the gateway, for links to its pages.

use std::{net::SocketAddr, sync::OnceLock};

use countersign_config::Config;

/// The address at which people reach the gateway.
pub struct GatewayAddress {
    config: Config,
    /// The address that the listener is bound to; empty until it is bound.
    bound: OnceLock<SocketAddr>,
}

impl GatewayAddress {
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self { config: config.clone(), bound: OnceLock::new() }
    }

    /// Stores the address that the listener is bound to. Later calls have no effect.
    pub fn set_listen_address(&self, address: SocketAddr) {
        self.bound.get_or_init(|| address);
    }

    /// Returns the address that the listener is bound to, or the configured one until it is bound.
    #[must_use]
    pub fn listen_address(&self) -> SocketAddr {
        self.bound.get().copied().unwrap_or(self.config.listen)
    }

    /// Returns the page of a change in the dashboard.
    #[must_use]
    pub fn page_of_change(&self, id: &str) -> String {
        format!("{}inbox/{id}", self.dashboard())
    }

    /// Returns the link that signs a person in with a code. The code is in the fragment, which browsers never send.
    #[must_use]
    pub fn sign_in_link(&self, code: &str) -> String {
        format!("{}/#code={code}", self.base())
    }

    /// Returns the URL of the dashboard, to which the name of a page is appended.
    #[must_use]
    pub fn dashboard(&self) -> String {
        format!("{}/#/", self.base())
    }

    fn base(&self) -> String {
        match &self.config.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => self.config.local_url(self.listen_address()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_that_listens_everywhere_is_reached_at_loopback() {
        let address = GatewayAddress::new(&Config::default());
        address.set_listen_address("0.0.0.0:81".parse().unwrap());
        assert_eq!(address.page_of_change("chg_1"), "http://127.0.0.1:81/#/inbox/chg_1");
        assert_eq!(address.sign_in_link("c"), "http://127.0.0.1:81/#code=c");
        let address = GatewayAddress::new(&Config::default());
        address.set_listen_address("[::]:80".parse().unwrap());
        assert_eq!(address.dashboard(), "http://[::1]:80/#/");
    }

    #[test]
    fn public_url_takes_precedence() {
        let config = Config { public_url: Some("https://a.example/".into()), ..Config::default() };
        assert_eq!(GatewayAddress::new(&config).dashboard(), "https://a.example/#/");
    }
}
