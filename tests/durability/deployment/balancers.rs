//! The effect of a rolling restart, a crash of all nodes, and a frozen node on clients behind the balancers whose
//! configurations are in `config/`. Prints the figures of `docs/cluster.md`.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::SocketAddr,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    BALANCER, GATEWAYS, Machines,
    hosts::{Host, run_in_namespaces},
    nginx, shipped_file,
};
use support::{
    Process, eventually,
    http::Conn,
    mcp::{ACCEPT, JSON, MODERN, request, with_meta},
};

const HAPROXY: &str = "10.0.0.31";

/// Starts HAProxy with this configuration, without TLS, and with a socket for status queries.
fn haproxy(host: &Host, config: &str) -> Process {
    let tls = " ssl crt /etc/haproxy/gateway.example.com.pem alpn h2,http/1.1";
    assert!(config.contains(tls));
    let config = format!("global\n    stats socket /mnt/haproxy.sock\n{}", config.replace(tls, ""));
    std::fs::write(host.mnt().join("haproxy.cfg"), config).unwrap();
    host.spawn(&["haproxy", "-db", "-f", "/mnt/haproxy.cfg"], &[])
}

/// Returns `true` if HAProxy has found all gateways ready, which it checks every second.
fn all_are_up(haproxy: &Host) -> bool {
    let Ok(mut socket) = UnixStream::connect(haproxy.mnt().join("haproxy.sock")) else { return false };
    let mut servers = String::new();
    socket.write_all(b"show stat\n").and_then(|()| socket.read_to_string(&mut servers)).unwrap();
    let is_up = |line: &&str| line.starts_with("requests,") && line.split(',').nth(17) == Some("UP");
    // One of the lines is the backend itself.
    servers.lines().filter(is_up).count() == GATEWAYS.len() + 1
}

/// The results of one client's requests.
#[derive(Debug, Default)]
struct ClientResult {
    served: usize,
    /// Unwanted answers by their kind.
    failed: BTreeMap<String, usize>,
    /// The longest time between two successful requests.
    gap: Duration,
}

impl std::fmt::Display for ClientResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failed: usize = self.failed.values().sum();
        write!(f, "{} served, {failed} failed, longest gap {:.1} s", self.served, self.gap.as_secs_f64())
    }
}

#[derive(Clone, Copy)]
enum Ask {
    /// A `GET` of the REST API.
    Read,
    /// A `POST` of the REST API.
    Post,
    /// A stateless request of MCP.
    Call,
}

impl Ask {
    /// Returns the status of the answer and, if it is not 200, its text.
    fn send(self, balancer: &str, key: &str) -> (u16, String) {
        let Ok(mut conn) = Conn::try_open(SocketAddr::new(balancer.parse().unwrap(), 443)) else {
            return (0, "no connection".to_owned());
        };
        let bearer = format!("Bearer {key}");
        let headers = [("Host", "gateway.example.com"), ("Authorization", &bearer), JSON, ACCEPT];
        match self {
            Self::Read => conn.request("GET", "/api/changes", &headers, b""),
            Self::Post => conn.request("POST", "/api/policy/test", &headers, br#"{"tool":"create_issue"}"#),
            Self::Call => {
                let body = request(1, "tools/list", with_meta(json!({}))).to_string();
                let modern = [("MCP-Protocol-Version", MODERN), ("Mcp-Method", "tools/list")];
                conn.request("POST", "/mcp", &[&headers[..], &modern[..]].concat(), body.as_bytes());
            }
        }
        match conn.try_response() {
            None => (0, "no answer".to_owned()),
            Some(response) if response.status == 200 => (200, String::new()),
            Some(response) => (response.status, response.text()),
        }
    }
}

/// Sends one request after another through a balancer, each on a new connection, until told to stop. Counts the
/// successful ones.
fn client(
    ask: Ask,
    balancer: &'static str,
    key: &str,
    stop: &Arc<AtomicBool>,
) -> (JoinHandle<ClientResult>, Arc<AtomicUsize>) {
    let (key, stop, served) = (key.to_owned(), Arc::clone(stop), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&served);
    let thread = std::thread::spawn(move || {
        let (mut seen, mut last) = (ClientResult::default(), Instant::now());
        while !stop.load(Ordering::SeqCst) {
            let (status, text) = ask.send(balancer, &key);
            if status == 200 {
                seen.served += 1;
                count.store(seen.served, Ordering::SeqCst);
                seen.gap = seen.gap.max(last.elapsed());
                last = Instant::now();
            } else {
                *seen.failed.entry(format!("{status} {text}")).or_default() += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        seen
    });
    (thread, served)
}

/// Returns how many nodes live, and the sum of their epochs, which rises with every start.
fn live_nodes(key: &str) -> Option<(usize, u64)> {
    let listed = super::ask("GET", "/api/nodes", key, &[], &Value::Null).filter(|response| response.status == 200)?;
    let nodes = listed.json()["nodes"].as_array()?.clone();
    let live: Vec<u64> =
        nodes.iter().filter(|node| node["live"] == true).map(|node| node["epoch"].as_u64().unwrap()).collect();
    Some((live.len(), live.iter().sum()))
}

#[test]
fn balancers_survive_rolling_restart_and_frozen_node() {
    run_in_namespaces("deployment::balancers::balancers_survive_rolling_restart_and_frozen_node", || {
        let mut machines = Machines::start();
        let (reviewer, agent) = (machines.key("reviewer", "alice"), machines.key("agent", "robot"));
        let hosts = [machines.lan.host("nginx", BALANCER), machines.lan.host("haproxy", HAPROXY)];
        let (nginx_conf, haproxy_cfg) = (shipped_file("nginx.conf"), shipped_file("haproxy.cfg"));
        let balancers = [nginx(&hosts[0], &nginx_conf), haproxy(&hosts[1], &haproxy_cfg)];
        restart_one_after_another(&mut machines, &hosts[1], &reviewer, &agent);
        kill_all_at_once(&mut machines, &reviewer, &agent);

        // The same configuration, with a shorter time until a node counts as frozen.
        drop(balancers);
        let soon = |config: &str| {
            ["40s", "330s", "75s"].iter().fold(config.to_owned(), |config, time| {
                assert!(config.contains(&format!(" {time}")), "{time}");
                config.replace(&format!(" {time}"), " 1s")
            })
        };
        let _balancers = [nginx(&hosts[0], &soon(&nginx_conf)), haproxy(&hosts[1], &soon(&haproxy_cfg))];
        freeze_one(&machines, &reviewer, &agent);
    });
}

/// Returns `true` if that gateway itself says that it is ready.
fn is_ready(gateway: &str) -> bool {
    let Ok(mut conn) = Conn::try_open(SocketAddr::new(gateway.parse().unwrap(), 8080)) else { return false };
    conn.request("GET", "/health", &[("Host", "gateway.example.com")], b"");
    conn.try_response().is_some_and(|response| response.status == 200)
}

/// Injects a fault while clients send requests through both balancers; prints and returns the results of reads and
/// calls for each.
fn results_during(
    name: &str,
    reviewer: &str,
    agent: &str,
    fault: impl FnOnce(),
) -> [(&'static str, ClientResult, ClientResult); 2] {
    eventually("all gateways serve", || live_nodes(reviewer).filter(|(count, _)| *count == GATEWAYS.len()));
    eventually("HAProxy serves", || (Ask::Read.send(HAPROXY, reviewer).0 == 200).then_some(()));
    let stop = Arc::new(AtomicBool::new(false));
    let clients = [("nginx", BALANCER), ("HAProxy", HAPROXY)].map(|(name, balancer)| {
        (name, client(Ask::Read, balancer, reviewer, &stop), client(Ask::Call, balancer, agent, &stop))
    });
    let each_is_served = || {
        let counts = clients.each_ref().map(|(_, reads, calls)| [&reads.1, &calls.1]);
        let before = counts.map(|counts| counts.map(|count| count.load(Ordering::SeqCst)));
        eventually("each client is served", || {
            let is_served = |(count, before): (&&Arc<AtomicUsize>, &usize)| count.load(Ordering::SeqCst) > *before;
            counts.as_flattened().iter().zip(before.as_flattened()).all(is_served).then_some(())
        });
    };
    each_is_served();
    fault();
    each_is_served();
    stop.store(true, Ordering::SeqCst);
    clients.map(|(balancer, reads, calls)| {
        let [reads, calls] = [reads, calls].map(|(client, _)| client.join().unwrap());
        println!("figure: {name}, {balancer}: reads: {reads}; calls: {calls}");
        (balancer, reads, calls)
    })
}

fn restart_one_after_another(machines: &mut Machines, haproxy: &Host, reviewer: &str, agent: &str) {
    let all_live = || live_nodes(reviewer).filter(|(count, _)| *count == GATEWAYS.len());
    let results = results_during("rolling restart", reviewer, agent, || {
        for n in 0..GATEWAYS.len() {
            let (_, before) = eventually("all gateways serve", all_live);
            eventually("HAProxy has them all", || all_are_up(haproxy).then_some(()));
            machines.gateways[n].terminate();
            assert!(machines.gateways[n].wait_for_exit().success());
            machines.gateways[n] = machines.spawn(n);
            eventually("it serves again", || all_live().filter(|(_, epochs)| *epochs > before));
        }
    });
    for (name, reads, calls) in results {
        assert!(reads.failed.is_empty(), "{name}: {:?}", reads.failed);
        // An ending node refuses new calls until it accepts no more connections; one call may be in flight at that
        // moment.
        let is_refused = |text: &String| text.starts_with("503 ") && text.contains("SHUTTING_DOWN");
        let broken: usize = calls.failed.iter().filter(|(text, _)| !is_refused(text)).map(|(_, count)| count).sum();
        assert!(broken <= 2 * GATEWAYS.len(), "{name}: {:?}", calls.failed);
    }
}

fn kill_all_at_once(machines: &mut Machines, reviewer: &str, agent: &str) {
    results_during("all three killed and started at once", reviewer, agent, || {
        for gateway in &mut machines.gateways {
            gateway.0.kill().unwrap();
        }
        for n in 0..GATEWAYS.len() {
            machines.gateways[n].0.wait().unwrap();
            machines.gateways[n] = machines.spawn(n);
        }
        eventually("all are ready", || GATEWAYS.iter().all(|gateway| is_ready(gateway)).then_some(()));
        for balancer in [BALANCER, HAPROXY] {
            eventually("it serves", || (Ask::Read.send(balancer, reviewer).0 == 200).then_some(()));
        }
    });
}

fn freeze_one(machines: &Machines, reviewer: &str, agent: &str) {
    for balancer in [BALANCER, HAPROXY] {
        eventually("it serves", || (Ask::Read.send(balancer, reviewer).0 == 200).then_some(()));
    }
    support::freeze(machines.gateways[0].0.id());
    for (ask, key) in [(Ask::Post, reviewer), (Ask::Call, agent)] {
        eventually("nginx gives up", || (ask.send(BALANCER, key).0 == 504).then_some(()));
        // HAProxy checks the node, and then skips it.
        let statuses: Vec<u16> = (0..6).map(|_| ask.send(HAPROXY, key).0).collect();
        assert!(statuses.iter().all(|status| [200, 504].contains(status)), "{statuses:?}");
    }
    let statuses: Vec<u16> = (0..3).map(|_| Ask::Read.send(BALANCER, reviewer).0).collect();
    assert_eq!(statuses, [200; 3], "nginx sends a read that gets no answer to another node");
}
