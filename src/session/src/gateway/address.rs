//! The address at which people reach the gateway, for links to its pages.

use std::{net::SocketAddr, sync::OnceLock};

use countersign_config::{Config, Environment, local_url};
use countersign_runtime::installation::Installation;

/// The address at which people reach the gateway.
pub struct GatewayAddress {
    /// The configured public URL, without a slash at its end.
    public_url: Option<String>,
    has_tls: bool,
    configured_address: SocketAddr,
    /// The command with which a person on this machine signs in to the dashboard.
    pub open_command: String,
    /// The address that the listener is bound to; empty until it is bound.
    bound_address: OnceLock<SocketAddr>,
}

impl GatewayAddress {
    pub fn new(config: &Config) -> Self {
        Self {
            public_url: config.public_url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            has_tls: config.tls.is_some(),
            configured_address: config.listen,
            open_command: open_command(config),
            bound_address: OnceLock::new(),
        }
    }

    /// Stores the address that the listener is bound to. Later calls have no effect.
    pub fn set_listen_address(&self, address: SocketAddr) {
        self.bound_address.get_or_init(|| address);
    }

    /// Returns the address that the listener is bound to, or the configured one until it is bound.
    pub fn listen_address(&self) -> SocketAddr {
        self.bound_address.get().copied().unwrap_or(self.configured_address)
    }

    /// Returns the URL of a change in the dashboard.
    pub fn change_url(&self, id: &str) -> String {
        format!("{}inbox/{id}", self.dashboard_url())
    }

    /// Returns the link that signs a person in with a code. The code is in the fragment, which browsers never send.
    pub fn sign_in_link(&self, code: &str) -> String {
        format!("{}/#code={code}", self.base_url())
    }

    /// Returns the URL of the dashboard, to which the name of a page is appended.
    pub fn dashboard_url(&self) -> String {
        format!("{}/#/", self.base_url())
    }

    /// Returns the URL at which people reach the gateway, without a slash at its end.
    pub fn base_url(&self) -> String {
        self.public_url.clone().unwrap_or_else(|| local_url(self.has_tls, self.listen_address()))
    }
}

/// Returns the command that signs in to the dashboard of the gateway, with the data directory unless it is the default.
fn open_command(config: &Config) -> String {
    let command = Installation::current().command("open");
    let default = Environment::from_process().state_home().map(|state| state.join("countersign"));
    if default.as_ref() == Some(&config.data) {
        return command;
    }
    let data = config.data.to_string_lossy();
    let is_plain = data.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let data = if is_plain { data.into_owned() } else { format!("'{}'", data.replace('\'', r"'\''")) };
    format!("{command} --data {data}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_that_listens_everywhere_is_reached_at_loopback() {
        let address = GatewayAddress::new(&Config::default());
        address.set_listen_address("0.0.0.0:81".parse().unwrap());
        assert_eq!(address.change_url("chg_1"), "http://127.0.0.1:81/#/inbox/chg_1");
        assert_eq!(address.sign_in_link("c"), "http://127.0.0.1:81/#code=c");
        let address = GatewayAddress::new(&Config::default());
        address.set_listen_address("[::]:80".parse().unwrap());
        assert_eq!(address.dashboard_url(), "http://[::1]:80/#/");
    }

    #[test]
    fn open_command_names_other_data_directory() {
        let config = Config { data: "/srv/my data".into(), ..Config::default() };
        assert_eq!(GatewayAddress::new(&config).open_command, "countersign open --data '/srv/my data'");
    }

    #[test]
    fn public_url_takes_precedence() {
        let config = Config { public_url: Some("https://a.example/".into()), ..Config::default() };
        assert_eq!(GatewayAddress::new(&config).dashboard_url(), "https://a.example/#/");
    }
}
