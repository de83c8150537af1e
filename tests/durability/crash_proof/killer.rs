//! Starts gateways on the last one's data, and ends them the hard way.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use super::{chance::Chance, points::CRASH_POINTS, scenario::Scenario, world::World};
use support::{self, Gateway, MAX_WAIT, Options, Process, postgres::Server, wait_until_ready};

pub struct Killer<'a> {
    world: &'a World,
    /// The server that keeps the store, if it is PostgreSQL.
    server: Option<&'a Server>,
    chance: Chance,
    /// The number of times that the gateway killed itself at each point.
    pub points: BTreeMap<&'static str, usize>,
    /// SIGKILLs while serving, while starting, and while shutting down.
    pub random_kills: usize,
    pub start_kills: usize,
    pub end_kills: usize,
    /// The number of crashes of the store's server that the gateway survived.
    pub server_crashes: usize,
    /// The minimum number of kills.
    pub target_kills: usize,
    last: Option<Process>,
    /// The audit trail's head after the last kill, which must still be in the trail after the next.
    head: Option<String>,
}

/// Returns the points that a run of this kind passes.
pub fn reachable() -> impl Iterator<Item = &'static str> {
    CRASH_POINTS.iter().copied().filter(|point| !point.contains("prune"))
}

#[derive(Debug)]
enum Kill {
    /// A kill at the n-th passage of a named point.
    Point(&'static str, u64),
    /// A kill that long after it listens, or after so many proposals.
    Random(Duration, usize),
    /// A kill that long after its start, whether it listens or not.
    Start(Duration),
    /// A crash of the store's server that long after the gateway listens, and a restart that much later.
    Server(Duration, Duration),
    /// A SIGTERM that long after it listens, and a kill that much later.
    End(Duration, Duration),
}

impl<'a> Killer<'a> {
    pub fn new(world: &'a World, server: Option<&'a Server>, chance: Chance, enough: usize) -> Self {
        let points = BTreeMap::new();
        let (at_random, during_start, during_end, servers) = (0, 0, 0, 0);
        Self {
            world,
            server,
            chance,
            points,
            random_kills: at_random,
            start_kills: during_start,
            end_kills: during_end,
            server_crashes: servers,
            target_kills: enough,
            last: None,
            head: None,
        }
    }

    pub fn kills(&self) -> usize {
        self.at_points() + self.random_kills + self.start_kills + self.end_kills
    }

    pub fn at_points(&self) -> usize {
        self.points.values().sum()
    }

    /// Returns the points at which no gateway has ended yet.
    pub fn missing(&self) -> Vec<&'static str> {
        reachable().filter(|point| !self.points.contains_key(point)).collect()
    }

    /// Runs one gateway from its start to its end.
    pub fn run_life(&mut self) {
        let (began, kill) = (Instant::now(), self.choose_kill());
        let name = format!("{kill:?}");
        match kill {
            Kill::Point(point, passage) => {
                let passage = passage.to_string();
                let env = vec![("COUNTERSIGN_CRASH_AT", point), ("COUNTERSIGN_CRASH_AFTER", passage.as_str())];
                *self.world.wanted_scenario.lock().unwrap() = Scenario::reaching_point(point);
                let mut process = self.start(env);
                if self.has_ended(&mut process, MAX_WAIT / 2) {
                    *self.points.entry(point).or_default() += 1;
                } else {
                    // Nothing passed the point.
                    self.kill(process);
                    self.random_kills += 1;
                }
                *self.world.wanted_scenario.lock().unwrap() = None;
            }
            Kill::Random(after, more) => {
                let process = self.start(Vec::new());
                let proposed = || self.world.proposed.load(Ordering::SeqCst);
                let (end, enough) = (Instant::now() + MAX_WAIT / 2, proposed() + more);
                while proposed() < enough && Instant::now() < end && !self.world.has_enough.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(after);
                self.kill(process);
                self.random_kills += 1;
            }
            Kill::Start(after) => {
                let process = self.spawn(Vec::new());
                std::thread::sleep(after);
                self.kill(process);
                self.start_kills += 1;
            }
            Kill::Server(after, then) => {
                let server = self.server.expect("the store has a server");
                let process = self.start(Vec::new());
                for pause in [after, then, after] {
                    std::thread::sleep(pause);
                    server.halt();
                    std::thread::sleep(then);
                    server.restart();
                    self.server_crashes += 1;
                }
                std::thread::sleep(after);
                self.kill(process);
                self.random_kills += 1;
            }
            Kill::End(after, then) => {
                let process = self.start(Vec::new());
                std::thread::sleep(after);
                process.terminate();
                std::thread::sleep(then);
                self.kill(process);
                self.end_kills += 1;
            }
        }
        self.world.ports[0].store(0, Ordering::SeqCst);
        let ended = began.elapsed();
        self.verify();
        if std::env::var_os("CRASH_PROOF_TRACE").is_some() {
            println!("{name}: {:.0?} and {:.0?}", ended, began.elapsed() - ended);
        }
    }

    /// Chooses each point once, and random kills afterwards.
    fn choose_kill(&mut self) -> Kill {
        let kind = self.chance.below(20);
        let passage = 1 + self.chance.below(8);
        if let Some(point) = self.missing().first().filter(|_| kind < 17) {
            return Kill::Point(point, passage.min(3));
        }
        // With enough kills, more changes happen in each life.
        let max_proposals = if self.kills() < self.target_kills { 20 } else { 120 };
        let more = usize::try_from(self.chance.below(max_proposals)).unwrap();
        // With enough kills, the rest is mostly work.
        let kind = if self.kills() < self.target_kills { kind } else { kind.max(9) };
        let mut some = |most| Duration::from_millis(1 + self.chance.below(most));
        match kind {
            0..9 => {
                let points: Vec<_> = reachable().collect();
                Kill::Point(points[usize::try_from(self.chance.below(points.len() as u64)).unwrap()], passage)
            }
            9..13 if self.server.is_some() => Kill::Server(some(400), some(400)),
            9..16 => Kill::Random(some(400), more),
            16..18 => Kill::End(some(500), some(150)),
            _ => Kill::Start(some(250)),
        }
    }

    pub fn start_for_good(&mut self) {
        let process = self.start(Vec::new());
        self.last = Some(process);
    }

    /// Ends the last gateway with SIGTERM.
    pub fn stop(&mut self) {
        let mut process = self.last.take().unwrap();
        process.terminate();
        assert!(process.wait_for_exit().success(), "{}", self.world.log());
    }

    /// Starts a gateway on the data of a crash, which must come up at once.
    fn start(&mut self, env: Vec<(&'static str, &str)>) -> Process {
        for _ in 0..3 {
            let mut process = self.spawn(env.clone());
            if let Some(port) = wait_until_ready(&mut process, &self.world.data()) {
                self.world.lives.fetch_add(1, Ordering::SeqCst);
                self.world.ports[0].store(port, Ordering::SeqCst);
                return process;
            }
            // An armed gateway may have killed itself during recovery.
            let status = process.0.try_wait().unwrap();
            if !env.is_empty() && status.is_some_and(|status| status.code().is_none()) {
                return process;
            }
        }
        panic!("the gateway does not start any more:\n{}", self.world.log());
    }

    fn spawn(&self, env: Vec<(&str, &str)>) -> Process {
        let config = self.world.home.path().join("countersign.yaml");
        let mut all = vec![("COUNTERSIGN_CONFIG", config.to_str().unwrap())];
        all.extend(env);
        let env = all;
        Gateway::spawn(self.world.home.path(), &Options { env, config: None })
    }

    fn kill(&self, mut process: Process) {
        // Its port is withdrawn once it is dead, and not earlier.
        support::signal(process.0.id(), rustix::process::Signal::KILL);
        process.0.wait().unwrap();
    }

    fn has_ended(&self, process: &mut Process, within: Duration) -> bool {
        let end = Instant::now() + within;
        while Instant::now() < end {
            if let Some(status) = process.0.try_wait().unwrap() {
                assert_eq!(status.code(), None, "it ended by itself and was not killed:\n{}", self.world.log());
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// Checks that the trail continues from where the previous gateway left it; returns the number of entries and the
    /// head.
    pub fn verify(&mut self) -> (u64, String) {
        let data = self.world.data();
        let mut arguments = vec!["audit", "verify", "--data", data.to_str().unwrap()];
        if let Some(head) = &self.head {
            arguments.extend(["--head", head.as_str()]);
        }
        let (code, out, err) = support::run(&arguments);
        assert_eq!(code, Some(0), "{out}{err}");
        let head = out.trim().to_owned();
        let entries = head.split(':').next().unwrap().parse().unwrap();
        self.head = Some(head.clone());
        (entries, head)
    }
}
