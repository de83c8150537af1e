//! What clients see of a rolling restart through the balancers whose configurations are shipped (`config/`).

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    BALANCER, GATEWAYS, Machines,
    hosts::{Host, inside},
    nginx, shipped,
};
use support::{
    Process, eventually,
    http::Conn,
    mcp::{ACCEPT, JSON, MODERN, request, with_meta},
};

const HAPROXY: &str = "10.0.0.31";

/// HAProxy with this configuration, without TLS.
fn haproxy(host: &Host, config: &str) -> Process {
    let tls = " ssl crt /etc/haproxy/gateway.example.com.pem alpn h2,http/1.1";
    assert!(config.contains(tls));
    std::fs::write(host.mnt().join("haproxy.cfg"), config.replace(tls, "")).unwrap();
    host.spawn(&["haproxy", "-db", "-f", "/mnt/haproxy.cfg"], &[])
}

/// What became of the requests of one client.
#[derive(Debug, Default)]
struct Seen {
    served: usize,
    /// Answers that the client did not want, by what they were.
    failed: BTreeMap<String, usize>,
    /// The longest time between two requests that were served.
    gap: Duration,
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
    /// The status of the answer and, where it is not 200, its text.
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

/// Asks one request after another through a balancer, each by a connection of its own, until told to stop.
fn client(ask: Ask, balancer: &'static str, key: &str, stop: &Arc<AtomicBool>) -> JoinHandle<Seen> {
    let (key, stop) = (key.to_owned(), Arc::clone(stop));
    std::thread::spawn(move || {
        let (mut seen, mut last) = (Seen::default(), Instant::now());
        while !stop.load(Ordering::SeqCst) {
            let (status, text) = ask.send(balancer, &key);
            if status == 200 {
                seen.served += 1;
                seen.gap = seen.gap.max(last.elapsed());
                last = Instant::now();
            } else {
                *seen.failed.entry(format!("{status} {text}")).or_default() += 1;
            }
        }
        seen
    })
}

/// How many nodes live, and the sum of their epochs, which rises whenever one is started.
fn live(key: &str) -> Option<(usize, u64)> {
    let listed = super::ask("GET", "/api/nodes", key, &[], &Value::Null).filter(|response| response.status == 200)?;
    let nodes = listed.json()["nodes"].as_array()?.clone();
    let live: Vec<u64> =
        nodes.iter().filter(|node| node["live"] == true).map(|node| node["epoch"].as_u64().unwrap()).collect();
    Some((live.len(), live.iter().sum()))
}

#[test]
fn balancers_survive_a_rolling_restart_and_a_frozen_node() {
    inside("deployment::balancers::balancers_survive_a_rolling_restart_and_a_frozen_node", || {
        let mut machines = Machines::start();
        let (reviewer, agent) = (machines.key("reviewer", "alice"), machines.key("agent", "robot"));
        let hosts = [machines.lan.host("nginx", BALANCER), machines.lan.host("haproxy", HAPROXY)];
        let (nginx_conf, haproxy_cfg) = (shipped("nginx.conf"), shipped("haproxy.cfg"));
        let balancers = [nginx(&hosts[0], &nginx_conf), haproxy(&hosts[1], &haproxy_cfg)];
        restart_one_after_another(&mut machines, &reviewer, &agent);

        // The same, with less to wait for until a node counts as frozen.
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

fn restart_one_after_another(machines: &mut Machines, reviewer: &str, agent: &str) {
    let all_live = || live(reviewer).filter(|(count, _)| *count == GATEWAYS.len());
    eventually("all gateways serve", all_live);
    eventually("HAProxy serves", || (Ask::Read.send(HAPROXY, reviewer).0 == 200).then_some(()));
    let stop = Arc::new(AtomicBool::new(false));
    let clients = [("nginx", BALANCER), ("HAProxy", HAPROXY)].map(|(name, balancer)| {
        (name, client(Ask::Read, balancer, reviewer, &stop), client(Ask::Call, balancer, agent, &stop))
    });
    for n in 0..GATEWAYS.len() {
        let (_, before) = eventually("all gateways serve", all_live);
        machines.gateways[n].terminate();
        assert!(machines.gateways[n].ended().success());
        machines.gateways[n] = machines.spawn(n);
        eventually("it serves again", || all_live().filter(|(_, epochs)| *epochs > before));
    }
    stop.store(true, Ordering::SeqCst);
    for (name, reads, calls) in clients {
        let [reads, calls] = [reads, calls].map(|client| client.join().unwrap());
        println!("{name}: reads {reads:?}, calls {calls:?}");
        assert!(reads.served > 0 && calls.served > 0);
        assert!(reads.failed.is_empty(), "{name}: {:?}", reads.failed);
        // A node that ends refuses new calls until it accepts no more connections; at that moment one may be under way.
        let is_refused = |text: &String| text.starts_with("503 ") && text.contains("SHUTTING_DOWN");
        let broken: usize = calls.failed.iter().filter(|(text, _)| !is_refused(text)).map(|(_, count)| count).sum();
        assert!(broken <= 2 * GATEWAYS.len(), "{name}: {:?}", calls.failed);
    }
}

fn freeze_one(machines: &Machines, reviewer: &str, agent: &str) {
    for balancer in [BALANCER, HAPROXY] {
        eventually("it serves", || (Ask::Read.send(balancer, reviewer).0 == 200).then_some(()));
    }
    support::signal(machines.gateways[0].0.id(), rustix::process::Signal::STOP);
    for (ask, key) in [(Ask::Post, reviewer), (Ask::Call, agent)] {
        eventually("nginx gives up", || (ask.send(BALANCER, key).0 == 504).then_some(()));
        // HAProxy asks the node whether it is there, and then passes it over.
        let seen: Vec<u16> = (0..6).map(|_| ask.send(HAPROXY, key).0).collect();
        assert!(seen.iter().all(|status| [200, 504].contains(status)), "{seen:?}");
    }
    let seen: Vec<u16> = (0..3).map(|_| Ask::Read.send(BALANCER, reviewer).0).collect();
    assert_eq!(seen, [200; 3], "nginx sends a read that gets no answer to another node");
}
