//! Limits the addresses to which a client connects, so that a host name that somebody else chose cannot lead into the
//! operator's network. Also caches the clients of each thread by range and authorities.

use std::{
    cell::RefCell,
    error::Error,
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    pin::Pin,
};

use actix_rt::task::spawn_blocking;
use actix_tls::connect::{Connector, Resolve, Resolver};
use awc::Client;
use rustls::pki_types::CertificateDer;

use super::{client::client_with_connector, tls};

/// The addresses to which a client may connect. The derived order only makes the type usable as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressRange {
    /// Addresses of the internet.
    Public,
    /// Addresses of the internet and of private networks.
    PublicAndPrivate,
    /// Addresses of the internet and of this machine.
    PublicAndLoopback,
    /// All addresses, also link-local and special ones, where cloud platforms serve credentials.
    Any,
}

impl AddressRange {
    /// Returns the smallest range that contains the address.
    pub fn for_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::for_v4(address),
            IpAddr::V6(address) => Self::for_v6(address),
        }
    }

    /// Returns `true` if this range contains all addresses of the other one.
    #[must_use]
    pub fn includes(self, other: Self) -> bool {
        other == Self::Public || other == self || self == Self::Any
    }

    fn for_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            [127, ..] => Self::PublicAndLoopback,
            // Private networks (RFC 1918), and the shared addresses of carriers (RFC 6598).
            [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Self::PublicAndPrivate,
            // "This network", link-local, IETF protocol assignments, benchmarking, multicast and reserved (RFC 6890).
            [0, ..] | [169, 254, ..] | [192, 0, 0, _] | [198, 18..=19, ..] | [224..=255, ..] => Self::Any,
            _ => Self::Public,
        }
    }

    fn for_v6(address: Ipv6Addr) -> Self {
        let embedded = |high: u16, low: u16| Self::for_v4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
        match address.segments() {
            _ if address.is_loopback() => Self::PublicAndLoopback,
            // Unique local addresses (RFC 4193).
            [0xfc00..=0xfdff, ..] => Self::PublicAndPrivate,
            // Translated IPv4 addresses (RFC 6052) and 6to4 (RFC 3056).
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
            // Teredo, benchmarking and other IETF protocol assignments (RFC 2928).
            [0x2001, 0..=0x1ff, ..] => Self::Any,
            // Global unicast addresses (RFC 4291).
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Any,
        }
    }
}

/// A client that its thread shares, with the parameters from which it was built.
struct SharedClient {
    range: Option<AddressRange>,
    authorities: Option<Vec<CertificateDer<'static>>>,
    client: Client,
}

thread_local! {
    static SHARED_CLIENTS: RefCell<Vec<SharedClient>> = const { RefCell::new(Vec::new()) };
}

/// Returns the client of this thread that trusts these authorities in addition to the public ones. With a range, it refuses
/// host names that resolve to an address outside of it, but an IP address in a URL must be checked by the caller. Clients for
/// different ranges share no connections, since each checks the addresses to which it connects.
pub fn shared_client(range: Option<AddressRange>, authorities: Option<&[CertificateDer<'static>]>) -> Client {
    SHARED_CLIENTS.with_borrow_mut(|clients| {
        let matches = |shared: &&SharedClient| shared.range == range && shared.authorities.as_deref() == authorities;
        if let Some(shared) = clients.iter().find(matches) {
            return shared.client.clone();
        }
        let connector = match range {
            Some(range) => Connector::new(Resolver::custom(LimitedResolver(range))),
            None => Connector::default(),
        };
        let client = client_with_connector(connector, None, tls::config_with_authorities(authorities));
        let authorities = authorities.map(<[_]>::to_vec);
        clients.push(SharedClient { range, authorities, client: client.clone() });
        client
    })
}

struct LimitedResolver(AddressRange);

type Lookup<'a> = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, Box<dyn Error>>> + 'a>>;

impl Resolve for LimitedResolver {
    fn lookup<'a>(&'a self, host: &'a str, port: u16) -> Lookup<'a> {
        let name = format!("{host}:{port}");
        Box::pin(async move {
            let addresses = spawn_blocking(move || name.to_socket_addrs().map(Vec::from_iter)).await??;
            // One address outside the range is enough to distrust the name, so none of its addresses is tried.
            let is_refused = |address: &&SocketAddr| !self.0.includes(AddressRange::for_address(address.ip()));
            if let Some(refused) = addresses.iter().find(is_refused) {
                let refused_ip = refused.ip();
                let reason = format!("the host name resolves to {refused_ip}, to which this client may not connect");
                return Err(io::Error::other(reason).into());
            }
            Ok(addresses)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_belongs_to_the_smallest_range() {
        for (address, range) in [
            ("8.8.8.8", AddressRange::Public),
            ("2606:4700::1111", AddressRange::Public),
            ("10.0.0.1", AddressRange::PublicAndPrivate),
            ("172.31.255.255", AddressRange::PublicAndPrivate),
            ("172.32.0.1", AddressRange::Public),
            ("192.168.1.1", AddressRange::PublicAndPrivate),
            ("100.100.0.1", AddressRange::PublicAndPrivate),
            ("fd00::1", AddressRange::PublicAndPrivate),
            ("127.8.0.1", AddressRange::PublicAndLoopback),
            ("::1", AddressRange::PublicAndLoopback),
            ("::ffff:127.0.0.1", AddressRange::PublicAndLoopback),
            ("::ffff:10.0.0.1", AddressRange::PublicAndPrivate),
            ("64:ff9b::a9fe:a9fe", AddressRange::Any),
            ("64:ff9b::808:808", AddressRange::Public),
            ("2002:7f00:1::", AddressRange::PublicAndLoopback),
            ("169.254.169.254", AddressRange::Any),
            ("fe80::1", AddressRange::Any),
            ("0.0.0.0", AddressRange::Any),
            ("::", AddressRange::Any),
            ("ff02::1", AddressRange::Any),
            ("255.255.255.255", AddressRange::Any),
        ] {
            assert_eq!(AddressRange::for_address(address.parse().unwrap()), range, "{address}");
        }
    }

    #[actix::test]
    async fn limited_client_refuses_name_of_loopback_address() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let client = shared_client(Some(AddressRange::PublicAndPrivate), None);
        let error = client.get(&url).send().await.err().unwrap();
        assert!(error.to_string().contains("to which this client may not connect"), "{error}");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "nothing connected");
    }
}
