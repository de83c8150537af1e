//! Recognizes URLs and hosts of this machine.

use url::Url;

/// Returns `true` if the host of a URL is this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Returns `true` if a `Host` header, with or without a port, names this machine.
pub fn is_loopback_host(host: &str) -> bool {
    Url::parse(&format!("http://{host}")).is_ok_and(|url| is_loopback(&url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_this_machine_are_recognized() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "a.localhost"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "10.0.0.1", "x@localhost.example", "[::2]"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
