//! Starts gateways on what the last one left, and ends them the hard way.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use countersign_runtime::crash::CRASH_POINTS;

use super::{chance::Chance, plan::Plan, world::World};
use support::{self, Gateway, Options, PATIENCE, Process, listening, postgres};

pub struct Killer<'a> {
    world: &'a World,
    chance: Chance,
    /// How often the gateway ended itself at each point.
    pub points: BTreeMap<&'static str, usize>,
    /// SIGKILL while it served, while it started, and while it ended in order.
    pub at_random: usize,
    pub during_start: usize,
    pub during_end: usize,
    /// How often the store's server crashed under a gateway that lived on.
    pub servers: usize,
    /// So many kills are wanted.
    pub enough: usize,
    last: Option<Process>,
    /// The audit trail's head after the last kill: it must still be in the trail after the next.
    head: Option<String>,
}

/// Points that a run of this kind passes.
pub fn reachable() -> impl Iterator<Item = &'static str> {
    CRASH_POINTS.iter().copied().filter(|point| !point.contains("prune"))
}

#[derive(Debug)]
enum Kill {
    /// At a named point's n-th passage.
    Point(&'static str, u64),
    /// So long after it listens and so many changes were proposed, if that many come.
    Random(Duration, usize),
    /// So long after its start, whether it listens or not.
    Start(Duration),
    /// So long after it listens the server of its store crashes, and is there again so long after that.
    Server(Duration, Duration),
    /// So long after it listens it is told to end, and so long after that it is killed.
    End(Duration, Duration),
}

impl<'a> Killer<'a> {
    pub fn new(world: &'a World, chance: Chance, enough: usize) -> Self {
        let points = BTreeMap::new();
        let (at_random, during_start, during_end, servers) = (0, 0, 0, 0);
        Self { world, chance, points, at_random, during_start, during_end, servers, enough, last: None, head: None }
    }

    pub fn kills(&self) -> usize {
        self.at_points() + self.at_random + self.during_start + self.during_end
    }

    pub fn at_points(&self) -> usize {
        self.points.values().sum()
    }

    /// Points that no gateway has ended at yet.
    pub fn missing(&self) -> Vec<&'static str> {
        reachable().filter(|point| !self.points.contains_key(point)).collect()
    }

    /// One gateway's life.
    pub fn round(&mut self) {
        let (began, plan) = (Instant::now(), self.choose_kill());
        let name = format!("{plan:?}");
        match plan {
            Kill::Point(point, passage) => {
                let passage = passage.to_string();
                let env = vec![("COUNTERSIGN_CRASH_AT", point), ("COUNTERSIGN_CRASH_AFTER", passage.as_str())];
                *self.world.wanted.lock().unwrap() = Plan::reaching_point(point);
                let mut process = self.start(env);
                if self.ended(&mut process, PATIENCE / 2) {
                    *self.points.entry(point).or_default() += 1;
                } else {
                    // Nobody came that way.
                    self.kill(process);
                    self.at_random += 1;
                }
                *self.world.wanted.lock().unwrap() = None;
            }
            Kill::Random(after, more) => {
                let process = self.start(Vec::new());
                let proposed = || self.world.proposed.load(Ordering::SeqCst);
                let (end, enough) = (Instant::now() + PATIENCE / 2, proposed() + more);
                while proposed() < enough && Instant::now() < end && !self.world.enough.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(after);
                self.kill(process);
                self.at_random += 1;
            }
            Kill::Start(after) => {
                let process = self.spawn(Vec::new());
                std::thread::sleep(after);
                self.kill(process);
                self.during_start += 1;
            }
            Kill::Server(after, then) => {
                let process = self.start(Vec::new());
                for pause in [after, then, after] {
                    std::thread::sleep(pause);
                    postgres::shared().halt();
                    std::thread::sleep(then);
                    postgres::shared().launch();
                    self.servers += 1;
                }
                std::thread::sleep(after);
                self.kill(process);
                self.at_random += 1;
            }
            Kill::End(after, then) => {
                let process = self.start(Vec::new());
                std::thread::sleep(after);
                process.terminate();
                std::thread::sleep(then);
                self.kill(process);
                self.during_end += 1;
            }
        }
        self.world.ports[0].store(0, Ordering::SeqCst);
        let ended = began.elapsed();
        self.verify();
        if std::env::var_os("CRASH_PROOF_TRACE").is_some() {
            println!("{name}: {:.0?} and {:.0?}", ended, began.elapsed() - ended);
        }
    }

    /// Each point once; then whatever comes.
    fn choose_kill(&mut self) -> Kill {
        let what = self.chance.below(20);
        let passage = 1 + self.chance.below(8);
        if let Some(point) = self.missing().first().filter(|_| what < 17) {
            return Kill::Point(point, passage.min(3));
        }
        // Once there were enough kills, more changes for each.
        let most = if self.kills() < self.enough { 20 } else { 120 };
        let more = usize::try_from(self.chance.below(most)).unwrap();
        // With enough kills, most of what is left is work.
        let what = if self.kills() < self.enough { what } else { what.max(9) };
        let mut some = |most| Duration::from_millis(1 + self.chance.below(most));
        match what {
            0..9 => {
                let points: Vec<_> = reachable().collect();
                Kill::Point(points[usize::try_from(self.chance.below(points.len() as u64)).unwrap()], passage)
            }
            9..13 if postgres::is_asked_for() => Kill::Server(some(400), some(400)),
            9..16 => Kill::Random(some(400), more),
            16..18 => Kill::End(some(500), some(150)),
            _ => Kill::Start(some(250)),
        }
    }

    pub fn start_for_good(&mut self) {
        let process = self.start(Vec::new());
        self.last = Some(process);
    }

    /// In order: the last one.
    pub fn stop(&mut self) {
        let mut process = self.last.take().unwrap();
        process.terminate();
        assert!(process.ended().success(), "{}", self.world.log());
    }

    /// Whoever starts on what a crash has left comes up, and at once.
    fn start(&mut self, env: Vec<(&'static str, &str)>) -> Process {
        for _ in 0..3 {
            let mut process = self.spawn(env.clone());
            if let Some(port) = listening(&mut process, &self.world.data()) {
                self.world.lives.fetch_add(1, Ordering::SeqCst);
                self.world.ports[0].store(port, Ordering::SeqCst);
                return process;
            }
            // An armed one may have ended itself already, while it recovered.
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
        // Nobody is sent there any more once it is dead, and not a moment earlier.
        support::signal(process.0.id(), rustix::process::Signal::KILL);
        process.0.wait().unwrap();
    }

    fn ended(&self, process: &mut Process, within: Duration) -> bool {
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

    /// The trail of what the killed one left holds, and goes on from where the one before it ended. Answers how many
    /// entries it has, and its head.
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
