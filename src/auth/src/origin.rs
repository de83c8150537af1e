//! Which `Host` and `Origin` headers are ours: the defence against DNS rebinding and cross-site requests.
//!
//! Pure: computed once from the configuration, asked by `countersign_http::guard` for every request. Host names are compared
//! as names, never as text, and whatever a URL parser might read in two ways is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use countersign_config::Config;

/// What an `Origin` header means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginVerdict {
    /// No header: not a browser, or a plain navigation.
    Absent,
    /// A page that this gateway served itself, on the very port that is asked.
    SameOrigin,
    /// One of `transports.http.cors_origins`.
    CorsAllowed,
    /// Anything else, `null` included.
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

/// An origin: scheme, host and port, where the scheme has them; else the text in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(OriginKind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum OriginKind {
    Web { https: bool, host: Host, port: u16 },
    Other(String),
}

impl Origin {
    /// Parses an origin as a browser writes it (RFC 6454): `scheme://host[:port]`, nothing after it.
    /// `None` for `null`, user info, paths, trailing dots, and everything that is not an origin.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let https = match scheme.as_str() {
            "http" => false,
            "https" => true,
            other => {
                let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._~[]:+".contains(&b);
                let named =
                    !other.is_empty() && other.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
                let fits = named && !rest.is_empty() && rest.len() <= 255 && rest.bytes().all(legal);
                return fits.then(|| Self(OriginKind::Other(format!("{other}://{}", rest.to_ascii_lowercase()))));
            }
        };
        if rest.split(':').next().is_some_and(|host| host.ends_with('.')) {
            return None;
        }
        let (host, port) = parse_authority(rest.as_bytes())?;
        Some(Self(OriginKind::Web { https, host, port: port.unwrap_or(default_port(https)) }))
    }

    /// The origin of an http(s) URL, whatever path follows.
    #[must_use]
    pub fn of_url(url: &str) -> Option<Self> {
        let after_scheme = url.find("://")? + 3;
        let end = url.get(after_scheme..)?.find(['/', '?', '#']).map_or(url.len(), |at| after_scheme + at);
        Self::parse(url.get(..end)?).filter(|origin| matches!(origin.0, OriginKind::Web { .. }))
    }
}

const fn default_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}

/// `host[:port]` as RFC 9112 has it in `Host`, more strictly: no user info, no escapes, no empty port, no address
/// written in a form that only some parsers take for one.
fn parse_authority(text: &[u8]) -> Option<(Host, Option<u16>)> {
    if text.len() > 261 || !text.is_ascii() {
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
    // One trailing dot only says that the name is complete (RFC 1034 3.1).
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |l: &str| {
        (1..=63).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    if name.is_empty() || name.len() > 253 || !name.split('.').all(label) {
        return None;
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|b| b.is_ascii_digit())
        || last.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
    if numeric {
        // URL parsers take `127.1` and `0x7f.1` for addresses; only the plain form is one here.
        return name.parse::<Ipv4Addr>().ok().map(|ip| Host::Ip(IpAddr::V4(ip)));
    }
    Some(Host::Name(name))
}

/// A host that is served, on one port or on all.
#[derive(Clone, Debug)]
struct HostRule {
    host: Host,
    port: Option<u16>,
}

/// What the configuration allows, computed once.
#[derive(Clone, Debug)]
pub struct OriginRules {
    hosts: Vec<HostRule>,
    /// The spellings that nearly all requests have, compared before anything is parsed.
    usual: Vec<String>,
    /// Listening on all addresses: any address literal is ours, since no name was resolved to get here.
    any_address: bool,
    public: Option<Origin>,
    cors: Vec<Origin>,
    tls: bool,
    behind_tls_proxy: bool,
}

impl OriginRules {
    /// Entries of the configuration that are no host or origin are left out; `config check` names them.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let loopback = [
            Host::Name("localhost".into()),
            Host::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Host::Ip(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        ];
        // The port is not compared for these: a forwarded port (containers, ssh) is still this machine's own name,
        // and rebinding needs a foreign one.
        let mut hosts: Vec<_> = loopback.into_iter().map(|host| HostRule { host, port: None }).collect();
        let listen = config.listen.ip();
        if !listen.is_unspecified() {
            hosts.push(HostRule { host: Host::Ip(listen), port: None });
        }
        for text in &config.allowed_hosts {
            hosts.extend(parse_authority(text.as_bytes()).map(|(host, port)| HostRule { host, port }));
        }
        let public = config.public_url.as_deref().and_then(Origin::of_url);
        if let Some(Origin(OriginKind::Web { host, port, .. })) = &public {
            hosts.push(HostRule { host: host.clone(), port: Some(*port) });
        }
        if let Some(Origin(OriginKind::Web { host, port, .. })) = config.node_url().and_then(Origin::of_url) {
            hosts.push(HostRule { host, port: Some(port) });
        }
        let port = config.listen.port();
        Self {
            hosts,
            usual: vec![format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")],
            any_address: listen.is_unspecified(),
            public,
            cors: config.transports.http.cors_origins.iter().filter_map(|text| Origin::parse(text)).collect(),
            tls: config.tls.is_some(),
            behind_tls_proxy: config.behind_tls_proxy,
        }
    }

    /// Whether a `Host` header (or the authority of a request target) names this gateway.
    #[must_use]
    pub fn check_host(&self, host: &[u8]) -> bool {
        if self.usual.iter().any(|usual| usual.as_bytes() == host) {
            return true;
        }
        parse_authority(host).is_some_and(|(host, port)| self.serves(&host, port))
    }

    fn serves(&self, host: &Host, port: Option<u16>) -> bool {
        let fits = |wanted: u16| port.map_or(matches!(wanted, 80 | 443), |port| port == wanted);
        self.hosts.iter().any(|rule| rule.host == *host && rule.port.is_none_or(fits))
            || (self.any_address && matches!(host, Host::Ip(_)))
    }

    /// What the `Origin` header of a request to `host` (its `Host` header) means.
    #[must_use]
    pub fn check_origin(&self, origin: Option<&[u8]>, host: &[u8]) -> OriginVerdict {
        let Some(origin) = origin else { return OriginVerdict::Absent };
        let Some(origin) = std::str::from_utf8(origin).ok().and_then(Origin::parse) else {
            return OriginVerdict::Forbidden;
        };
        if Some(&origin) == self.public.as_ref() || self.is_own(&origin, host) {
            OriginVerdict::SameOrigin
        } else if self.cors.contains(&origin) {
            OriginVerdict::CorsAllowed
        } else {
            OriginVerdict::Forbidden
        }
    }

    fn is_own(&self, origin: &Origin, asked: &[u8]) -> bool {
        let OriginKind::Web { https, host, port } = &origin.0 else { return false };
        let scheme_fits = if self.tls {
            *https
        } else if self.behind_tls_proxy {
            // Past the proxy a page without TLS may be anybody's; on this machine it is ours.
            *https || host.is_loopback()
        } else {
            !*https
        };
        let Some((asked_host, asked_port)) = parse_authority(asked) else { return false };
        scheme_fits
            && *host == asked_host
            && *port == asked_port.unwrap_or(default_port(*https))
            && self.serves(&asked_host, asked_port)
    }

    /// Whether any page of another origin may call: then every answer depends on `Origin`.
    #[must_use]
    pub fn has_cors(&self) -> bool {
        !self.cors.is_empty()
    }

    /// Whether browsers reach the gateway by https, so that its cookies can be `Secure`.
    #[must_use]
    pub fn browsers_use_https(&self) -> bool {
        let public = self.public.as_ref().map(|o| matches!(o.0, OriginKind::Web { https: true, .. }));
        public.unwrap_or(self.tls || self.behind_tls_proxy)
    }
}

#[cfg(test)]
mod tests;
