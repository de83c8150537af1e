//! Checks `Host` and `Origin` headers, to defend against DNS rebinding and cross-site requests.
//!
//! The rules are computed once from the configuration, and `countersign_http::guard` applies them to every request.
//! Hosts are compared as parsed names, never as text, and everything that URL parsers might read differently is
//! refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use countersign_config::Config;

/// The maximum number of bytes of `host[:port]`: a name of 253 with a trailing dot, and a port of five digits.
const MAX_AUTHORITY_LEN: usize = 253 + ".:65535".len();

/// The result of checking an `Origin` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginVerdict {
    /// No header: the client is not a browser, or navigates to a page.
    Absent,
    /// A page served by this gateway from the requested port.
    SameOrigin,
    /// An origin in `transports.http.cors_origins`.
    CorsAllowed,
    /// Any other origin, including `null`.
    Forbidden,
}

/// A host without its port: a name in lower case, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    Ip(IpAddr),
}

impl Host {
    fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost",
            Self::Ip(ip) => ip.is_loopback(),
        }
    }
}

/// An origin: scheme, host and port for http and https, otherwise the text in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Web { https: bool, host: Host, port: u16 },
    Other(String),
}

impl Origin {
    /// Parses an origin as browsers write it (RFC 6454): `scheme://host[:port]` with nothing after it.
    /// Returns `None` for `null`, user info, paths, trailing dots, and anything else that is not an origin.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let https = match scheme.as_str() {
            "http" => false,
            "https" => true,
            other => {
                let is_legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~[]:+".contains(&b);
                let has_legal_scheme =
                    !other.is_empty() && other.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
                let has_legal_rest = (1..=255).contains(&rest.len()) && rest.bytes().all(is_legal);
                return (has_legal_scheme && has_legal_rest)
                    .then(|| Self::Other(format!("{other}://{}", rest.to_ascii_lowercase())));
            }
        };
        if rest.split(':').next().is_some_and(|host| host.ends_with('.')) {
            return None;
        }
        let (host, port) = parse_authority(rest.as_bytes())?;
        Some(Self::Web { https, host, port: port.unwrap_or(default_port(https)) })
    }

    /// Returns the origin of an http or https URL with any path.
    fn from_url(url: &str) -> Option<Self> {
        let after_scheme = url.find("://")? + 3;
        let end = url.get(after_scheme..)?.find(['/', '?', '#']).map_or(url.len(), |at| after_scheme + at);
        Self::parse(url.get(..end)?).filter(|origin| matches!(origin, Self::Web { .. }))
    }
}

const fn default_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}

/// Parses `host[:port]` as in a `Host` header (RFC 9112), but more strictly: without user info, escapes, an empty port,
/// or notations of addresses that only some parsers accept.
fn parse_authority(text: &[u8]) -> Option<(Host, Option<u16>)> {
    if text.len() > MAX_AUTHORITY_LEN || !text.is_ascii() {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, after) = rest.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        let port = match after {
            "" => None,
            _ => Some(after.strip_prefix(':')?),
        };
        (Host::Ip(IpAddr::V6(address)), port)
    } else {
        let (name, port) = text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
        (parse_name(name)?, port)
    };
    let port = match port {
        None => None,
        Some(digits) if (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) => {
            Some(digits.parse().ok()?)
        }
        Some(_) => return None,
    };
    Some((host, port))
}

fn parse_name(text: &str) -> Option<Host> {
    // A trailing dot only marks the name as complete (RFC 1034 3.1).
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if name.is_empty() || name.len() > 253 || !name.split('.').all(is_label) {
        return None;
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_numeric = last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    if is_numeric {
        // URL parsers read `127.1` and `0x7f.1` as addresses; only the plain form is accepted here.
        return name.parse::<Ipv4Addr>().ok().map(|ip| Host::Ip(IpAddr::V4(ip)));
    }
    Some(Host::Name(name))
}

/// A host of this gateway, with one port or with all ports.
#[derive(Clone, Debug)]
struct HostRule {
    host: Host,
    port: Option<u16>,
}

/// The hosts and origins that the configuration allows.
#[derive(Clone, Debug)]
pub struct OriginRules {
    hosts: Vec<HostRule>,
    /// The `Host` headers that nearly all clients send. Parsing one costs 2 % of a proxied call
    /// (`scripts/bench instructions`).
    common_hosts: Vec<String>,
    /// Set if the gateway listens on all addresses. Any address in a `Host` header is then its own: DNS rebinding needs
    /// a name.
    listens_on_all_addresses: bool,
    public_origin: Option<Origin>,
    cors_origins: Vec<Origin>,
    uses_tls: bool,
    behind_tls_proxy: bool,
}

impl OriginRules {
    /// Computes the rules. Invalid hosts and origins are skipped here; `config check` reports them.
    pub fn new(config: &Config) -> Self {
        let loopback = [
            Host::Name("localhost".into()),
            Host::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Host::Ip(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        // The ports of loopback hosts are not compared: a port that containers or ssh forward differs from the one on
        // which the gateway listens, and DNS rebinding needs a foreign name.
        let mut hosts: Vec<_> = loopback.into_iter().map(|host| HostRule { host, port: None }).collect();
        let listen = config.listen.ip();
        if !listen.is_unspecified() {
            hosts.push(HostRule { host: Host::Ip(listen), port: None });
        }
        for text in &config.allowed_hosts {
            hosts.extend(parse_authority(text.as_bytes()).map(|(host, port)| HostRule { host, port }));
        }
        let public = config.public_url.as_deref().and_then(Origin::from_url);
        if let Some(Origin::Web { host, port, .. }) = &public {
            hosts.push(HostRule { host: host.clone(), port: Some(*port) });
        }
        if let Some(Origin::Web { host, port, .. }) = config.node_url().and_then(Origin::from_url) {
            hosts.push(HostRule { host, port: Some(port) });
        }
        let mut rules = Self {
            hosts,
            common_hosts: Vec::new(),
            listens_on_all_addresses: listen.is_unspecified(),
            public_origin: public,
            cors_origins: config.transports.http.cors_origins.iter().filter_map(|text| Origin::parse(text)).collect(),
            uses_tls: config.tls.is_some(),
            behind_tls_proxy: config.behind_tls_proxy,
        };
        let local = ["localhost", "127.0.0.1", "[::1]"].map(|name| format!("{name}:{}", config.listen.port()));
        let public = config.public_url.as_deref().and_then(|url| url.split_once("://"));
        let public = public.map(|(_, host)| host.trim_end_matches('/').to_owned());
        let all = local.into_iter().chain(public).filter(|host| rules.is_own_host(host.as_bytes()));
        rules.common_hosts = all.collect();
        rules
    }

    /// Returns `true` if a `Host` header (or the authority of a request target) names this gateway.
    pub fn is_own_host(&self, host: &[u8]) -> bool {
        self.common_hosts.iter().any(|common| common.as_bytes() == host)
            || parse_authority(host).is_some_and(|(host, port)| self.serves(&host, port))
    }

    /// Returns `true` if a rule has the host and port. Without a port, the default port of http or https is meant.
    fn serves(&self, host: &Host, port: Option<u16>) -> bool {
        let has_port = |rule_port: u16| port.map_or(matches!(rule_port, 80 | 443), |port| port == rule_port);
        self.hosts.iter().any(|rule| rule.host == *host && rule.port.is_none_or(has_port))
            || (self.listens_on_all_addresses && matches!(host, Host::Ip(_)))
    }

    /// Classifies the `Origin` header of a request whose `Host` header is `host`.
    #[must_use]
    pub fn check_origin(&self, origin: Option<&[u8]>, host: &[u8]) -> OriginVerdict {
        let Some(origin) = origin else { return OriginVerdict::Absent };
        let Some(origin) = std::str::from_utf8(origin).ok().and_then(Origin::parse) else {
            return OriginVerdict::Forbidden;
        };
        if Some(&origin) == self.public_origin.as_ref() || self.is_own(&origin, host) {
            OriginVerdict::SameOrigin
        } else if self.cors_origins.contains(&origin) {
            OriginVerdict::CorsAllowed
        } else {
            OriginVerdict::Forbidden
        }
    }

    /// Returns `true` if an origin is this gateway at the requested host and port.
    fn is_own(&self, origin: &Origin, requested: &[u8]) -> bool {
        let Origin::Web { https, host, port } = origin else { return false };
        let scheme_fits = if self.uses_tls {
            *https
        } else if self.behind_tls_proxy {
            // Behind a TLS proxy, an `http` origin is ours only on loopback; elsewhere anybody could serve it.
            *https || host.is_loopback()
        } else {
            !*https
        };
        let Some((requested_host, requested_port)) = parse_authority(requested) else { return false };
        scheme_fits
            && *host == requested_host
            && *port == requested_port.unwrap_or(default_port(*https))
            && self.serves(&requested_host, requested_port)
    }

    /// Returns `true` if other origins are allowed, so that every response depends on `Origin`.
    pub fn has_cors(&self) -> bool {
        !self.cors_origins.is_empty()
    }

    /// Returns `true` if browsers use https, so that cookies can be `Secure`.
    pub fn browsers_use_https(&self) -> bool {
        let public = self.public_origin.as_ref().map(|o| matches!(o, Origin::Web { https: true, .. }));
        public.unwrap_or(self.uses_tls || self.behind_tls_proxy)
    }
}

#[cfg(test)]
mod tests;
