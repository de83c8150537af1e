//! Several gateways, and whatever may happen to them, to their connections, to their clocks and to the two databases, of which
//! one follows the other.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use rustix::process::Signal;

use super::{super::clock, proxy::Proxy};
use crate::crash_proof::{chance::Chance, world::World};
use support::{Gateway, Options, Process, http::Conn, listening, postgres::Server};

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
    pub done: BTreeMap<Fault, usize>,
    /// Processes that were started.
    pub lives: AtomicUsize,
}

struct Node {
    process: Option<Process>,
    /// To either database.
    proxies: [Proxy; 2],
}

impl<'a> Nemesis<'a> {
    /// Starts them all.
    pub fn new(world: &'a World, server: &'a Server, chance: Chance) -> Self {
        let nodes = world
            .ports
            .iter()
            .map(|_| Node { process: None, proxies: server.folders().map(|folder| Proxy::to(&folder)) })
            .collect();
        let library = clock::library();
        let (done, lives) = (BTreeMap::new(), AtomicUsize::new(0));
        let mut nemesis = Self { world, server, chance, nodes, library, done, lives };
        for n in 0..nemesis.nodes.len() {
            std::fs::create_dir(world.node(n)).unwrap();
            clock::set_clock(&world.node(n), 0);
            nemesis.start(n);
        }
        nemesis
    }

    pub fn faults(&self) -> usize {
        self.done.values().sum()
    }

    /// Each kind once, and then whatever comes.
    pub fn fault(&mut self) {
        let missing = Fault::ALL.into_iter().find(|fault| !self.done.contains_key(fault));
        let any = Fault::ALL[self.below(Fault::ALL.len())];
        // Three of them take long.
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
                self.kill(n);
                self.rest(3000);
                self.start(n);
            }
            Fault::Stopped => self.stop(n),
            Fault::ServerCrashed => {
                self.server.halt();
                self.rest(1500);
                self.server.launch();
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
                self.rest(3000);
                self.nodes[n].proxies.iter().for_each(Proxy::pass);
            }
            Fault::ClockStepped => {
                let seconds = [-3600, -60, -5, 5, 60, 3600][self.below(6)];
                self.set_clock(n, seconds);
                self.rest(3000);
                if self.chance.below(2) == 0 {
                    self.set_clock(n, 0);
                }
            }
            Fault::RollingRestart => {
                for n in 0..self.nodes.len() {
                    self.world.ports[n].store(0, Ordering::SeqCst);
                    let mut process = self.nodes[n].process.take().unwrap();
                    process.terminate();
                    assert!(process.ended().success(), "{}", self.world.log());
                    self.start(n);
                }
            }
            Fault::FailedOver => {
                // What one of them has alone is lost with it, by its own rules: it is not seen by anybody before the other
                // one has it, but for a crash in between.
                self.server.in_step();
                self.server.halt();
                self.rest(1500);
                self.server.promote();
                self.rest(1500);
                self.server.follow();
            }
        }
        self.world.note_fault("over");
        *self.done.entry(fault).or_default() += 1;
        self.rest(600);
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.chance.below(bound as u64)).unwrap()
    }

    fn rest(&mut self, most: u64) {
        std::thread::sleep(Duration::from_millis(1 + self.chance.below(most)));
    }

    fn pause_or_outlast(&mut self) {
        if self.chance.below(3) == 0 { std::thread::sleep(LONGER_THAN_LEASE) } else { self.rest(2500) }
    }

    /// The node's own time is off by that from now on, as it says itself in what it answers.
    fn set_clock(&self, n: usize, seconds: i64) {
        clock::set_clock(&self.world.node(n), seconds);
        let port = self.world.ports[n].load(Ordering::SeqCst);
        support::eventually("its time is another one", || {
            let mut conn = Conn::try_open(([127, 0, 0, 1], port).into()).ok()?;
            conn.request("GET", "/health", &[], b"");
            let ahead = clock::ahead(&conn.try_response()?)?;
            (ahead.abs_diff(seconds) <= 2).then_some(())
        });
    }

    /// For longer than a lease, with calls in its hands; then it goes on as if nothing had been.
    fn stop(&mut self, n: usize) {
        let pid = self.nodes[n].process.as_ref().unwrap().0.id();
        support::signal(pid, Signal::STOP);
        let port = self.world.ports[n].swap(0, Ordering::SeqCst);
        std::thread::sleep(LONGER_THAN_LEASE);
        self.rest(1500);
        support::signal(pid, Signal::CONT);
        self.world.ports[n].store(port, Ordering::SeqCst);
    }

    fn kill(&mut self, n: usize) {
        let mut process = self.nodes[n].process.take().unwrap();
        support::signal(process.0.id(), Signal::KILL);
        process.0.wait().unwrap();
        self.world.ports[n].store(0, Ordering::SeqCst);
    }

    fn start(&mut self, n: usize) {
        let home = self.world.node(n);
        let config = self.world.home.path().join("countersign.yaml");
        let [one, other] = self.nodes[n].proxies.each_ref().map(|proxy| proxy.port);
        let url = format!("postgres://countersign@127.0.0.1:{one},127.0.0.1:{other}/cluster");
        let time = home.join("clock");
        let mut env = vec![("COUNTERSIGN_CONFIG", config.to_str().unwrap()), ("COUNTERSIGN_STORE__URL", url.as_str())];
        env.extend(clock::env(&self.library, &time));
        let mut process = Gateway::spawn(&home, &Options { env, config: None });
        let port = listening(&mut process, &home.join("data"));
        let port = port.unwrap_or_else(|| panic!("node {n} does not start:\n{}", self.world.log()));
        self.lives.fetch_add(1, Ordering::SeqCst);
        self.world.lives.fetch_add(1, Ordering::SeqCst);
        self.world.ports[n].store(port, Ordering::SeqCst);
        self.nodes[n].process = Some(process);
    }

    /// In order, at the end.
    pub fn end(&mut self) {
        for n in 0..self.nodes.len() {
            let mut process = self.nodes[n].process.take().unwrap();
            process.terminate();
            assert!(process.ended().success(), "{}", self.world.log());
        }
    }
}
