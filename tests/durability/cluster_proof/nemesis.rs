//! Injects faults into several gateways, their connections, their clocks, and the two databases, one of which
//! replicates the other.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rustix::process::Signal;

use super::{super::clock, proxy::Proxy};
use crate::crash_proof::{chance::Chance, world::World};
use support::{Gateway, Options, Process, http::Conn, postgres::Server, wait_until_ready};

/// Longer than a lease.
const LONGER_THAN_LEASE: Duration = Duration::from_millis(6500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Killed,
    Stopped,
    ServerCrashed,
    Cut,
    Silenced,
    Slowed,
    ClockStepped,
    RollingRestart,
    FailedOver,
}

impl Fault {
    pub const ALL: [Self; 9] = [
        Self::Killed,
        Self::Stopped,
        Self::ServerCrashed,
        Self::Cut,
        Self::Silenced,
        Self::Slowed,
        Self::ClockStepped,
        Self::RollingRestart,
        Self::FailedOver,
    ];
}

pub struct Nemesis<'a> {
    world: &'a World,
    server: &'a Server,
    chance: Chance,
    nodes: Vec<Node>,
    library: std::path::PathBuf,
    pub injected: BTreeMap<Fault, usize>,
    /// The number of processes started.
    pub lives: AtomicUsize,
}

struct Node {
    process: Option<Process>,
    /// Proxies to each database.
    proxies: [Proxy; 2],
}

impl<'a> Nemesis<'a> {
    /// Starts all gateways.
    pub fn new(world: &'a World, server: &'a Server, chance: Chance) -> Self {
        let nodes = world
            .ports
            .iter()
            .map(|_| Node { process: None, proxies: server.folders().map(|folder| Proxy::to_server(&folder)) })
            .collect();
        let library = clock::faketime_library();
        let (done, lives) = (BTreeMap::new(), AtomicUsize::new(0));
        let mut nemesis = Self { world, server, chance, nodes, library, injected: done, lives };
        for n in 0..nemesis.nodes.len() {
            std::fs::create_dir(world.node(n)).unwrap();
            clock::set_clock(&world.node(n), 0);
            nemesis.start_node(n);
        }
        nemesis
    }

    pub fn faults(&self) -> usize {
        self.injected.values().sum()
    }

    /// Injects each kind of fault once, and random ones afterwards.
    pub fn inject_fault(&mut self) {
        let missing = Fault::ALL.into_iter().find(|fault| !self.injected.contains_key(fault));
        let any = Fault::ALL[self.below(Fault::ALL.len())];
        // Three kinds take long, so they are chosen less often.
        let any = if matches!(any, Fault::RollingRestart | Fault::Stopped | Fault::FailedOver) && self.below(3) > 0 {
            Fault::Killed
        } else {
            any
        };
        let fault = missing.unwrap_or(any);
        let n = self.below(self.nodes.len());
        self.world.note_fault(&format!("{fault:?} of node {n}"));
        match fault {
            Fault::Killed => {
                self.kill_node(n);
                self.pause(3000);
                self.start_node(n);
            }
            Fault::Stopped => self.freeze_node(n),
            Fault::ServerCrashed => {
                self.server.halt();
                self.pause(1500);
                self.server.restart();
            }
            Fault::Cut => {
                self.nodes[n].proxies.iter().for_each(Proxy::cut);
                self.pause_or_outlast();
                self.nodes[n].proxies.iter().for_each(Proxy::pass);
            }
            Fault::Silenced => {
                self.nodes[n].proxies.iter().for_each(Proxy::silence);
                self.pause_or_outlast();
                self.nodes[n].proxies.iter().for_each(Proxy::pass);
            }
            Fault::Slowed => {
                let delay = 5 + self.chance.below(200);
                self.nodes[n].proxies.iter().for_each(|proxy| proxy.delay(delay));
                self.pause(3000);
                self.nodes[n].proxies.iter().for_each(Proxy::pass);
            }
            Fault::ClockStepped => {
                let seconds = [-3600, -60, -5, 5, 60, 3600][self.below(6)];
                self.set_clock(n, seconds);
                self.pause(3000);
                if self.chance.below(2) == 0 {
                    self.set_clock(n, 0);
                }
            }
            Fault::RollingRestart => {
                for n in 0..self.nodes.len() {
                    self.world.ports[n].store(0, Ordering::SeqCst);
                    let mut process = self.nodes[n].process.take().unwrap();
                    process.terminate();
                    assert!(process.wait_for_exit().success(), "{}", self.world.log());
                    self.start_node(n);
                }
            }
            Fault::FailedOver => {
                // A failover loses what only the old primary has. A client could know of it only after a crash between
                // the two commits, so the replica catches up first.
                self.server.wait_for_replica();
                self.server.halt();
                self.pause(1500);
                self.server.fail_over();
                self.pause(1500);
                self.server.add_replica();
            }
        }
        self.world.note_fault("over");
        *self.injected.entry(fault).or_default() += 1;
        self.pause(600);
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.below(bound as u64)).unwrap()
    }

    fn pause(&mut self, bound: u64) {
        std::thread::sleep(Duration::from_millis(1 + self.chance.below(bound)));
    }

    fn pause_or_outlast(&mut self) {
        if self.chance.below(3) == 0 { std::thread::sleep(LONGER_THAN_LEASE) } else { self.pause(2500) }
    }

    /// Sets the node's clock off by so many seconds, and checks it in the node's answers.
    fn set_clock(&self, n: usize, seconds: i64) {
        clock::set_clock(&self.world.node(n), seconds);
        let port = self.world.ports[n].load(Ordering::SeqCst);
        support::eventually("its time is another one", || {
            let mut conn = Conn::try_open(([127, 0, 0, 1], port).into()).ok()?;
            conn.request("GET", "/health", &[], b"");
            let ahead = clock::clock_offset(&conn.try_response()?)?;
            (ahead.abs_diff(seconds) <= 2).then_some(())
        });
    }

    /// Freezes a node with calls in flight for longer than a lease, then lets it continue.
    fn freeze_node(&mut self, n: usize) {
        let pid = self.nodes[n].process.as_ref().unwrap().0.id();
        support::freeze(pid);
        let port = self.world.ports[n].swap(0, Ordering::SeqCst);
        std::thread::sleep(LONGER_THAN_LEASE);
        self.pause(1500);
        support::signal(pid, Signal::CONT);
        self.world.ports[n].store(port, Ordering::SeqCst);
    }

    fn kill_node(&mut self, n: usize) {
        let mut process = self.nodes[n].process.take().unwrap();
        support::signal(process.0.id(), Signal::KILL);
        process.0.wait().unwrap();
        self.world.ports[n].store(0, Ordering::SeqCst);
    }

    fn start_node(&mut self, n: usize) {
        let home = self.world.node(n);
        let config = self.world.home.path().join("countersign.yaml");
        let [one, other] = self.nodes[n].proxies.each_ref().map(|proxy| proxy.port);
        let url = format!("postgres://countersign@127.0.0.1:{one},127.0.0.1:{other}/cluster");
        let time = home.join("clock");
        let mut env = vec![("COUNTERSIGN_CONFIG", config.to_str().unwrap()), ("COUNTERSIGN_STORE__URL", url.as_str())];
        env.extend(clock::faketime_env(&self.library, &time));
        let mut process = Gateway::spawn(&home, &Options { env, config: None });
        let port = wait_until_ready(&mut process, &home.join("data"));
        let port = port.unwrap_or_else(|| panic!("node {n} does not start:\n{}", self.world.log()));
        self.lives.fetch_add(1, Ordering::SeqCst);
        self.world.lives.fetch_add(1, Ordering::SeqCst);
        self.world.ports[n].store(port, Ordering::SeqCst);
        self.nodes[n].process = Some(process);
    }

    /// Ends all nodes with SIGTERM.
    pub fn end_in_order(&mut self) {
        for n in 0..self.nodes.len() {
            let mut process = self.nodes[n].process.take().unwrap();
            process.terminate();
            assert!(process.wait_for_exit().success(), "{}", self.world.log());
        }
    }
}
