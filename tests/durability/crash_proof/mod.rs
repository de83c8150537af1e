//! The crash proof: agents propose, reviewers approve, edit and reject, and the gateway is killed at every named point
//! and at random moments, again and again. Afterwards every promise of a gateway is compared with what the last one
//! says and with the upstream's effects.
//!
//! The short run is an ordinary test. The long one is `scripts/crash-proof`, which prints its figures.

pub mod agent;
pub mod chance;
pub mod checks;
pub mod feed;
mod killer;
mod plans;
mod points;
mod receiver;
mod rules;
mod scenario;
mod session;
pub mod upstream;
mod web_socket;
mod wire;
pub mod worker;
pub mod world;

use std::{sync::atomic::Ordering, time::Instant};

use agent::Agent;
use chance::Chance;
use feed::Subscriber;
use killer::Killer;
use support::postgres::{self, Server};
use world::World;

/// The size of a run.
struct RunSize {
    /// The minimum number of kills, and below of changes; each named point is among the kills.
    kills: usize,
    changes: usize,
    workers: u64,
    seed: u64,
}

#[test]
fn crashes_lose_nothing_and_repeat_nothing() {
    run_proof(&RunSize { kills: killer::reachable().count() + 4, changes: 100, workers: 6, seed: 7 });
}

#[test]
#[ignore = "takes minutes: scripts/crash-proof"]
fn the_long_run() {
    let number = |name: &str, default| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    run_proof(&RunSize {
        kills: number("CRASH_PROOF_KILLS", 100),
        changes: number("CRASH_PROOF_CHANGES", 2000),
        workers: number("CRASH_PROOF_WORKERS", 10) as u64,
        seed: number("CRASH_PROOF_SEED", 1) as u64,
    });
}

/// Stops the subscriber and the workers when dropped.
struct StopOnDrop<'a>(&'a Subscriber, &'a World);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
        self.1.has_enough.store(true, Ordering::SeqCst);
        self.1.is_over.store(true, Ordering::SeqCst);
    }
}

fn run_proof(size: &RunSize) {
    let began = Instant::now();
    // The proof crashes the server, so it shares none with other tests.
    let server = postgres::is_enabled().then(|| Server::start(&["-c", "fsync=off"]));
    let world = World::new(1, |data, name| {
        if let Some(server) = &server {
            postgres::assign_database(data, server);
        }
        support::create_key(data, "reviewer", name)
    });
    let subscriber = Subscriber::default();
    let mut killer = Killer::new(&world, server.as_ref(), Chance::new(size.seed), size.kills);
    std::thread::scope(|scope| {
        let listening = scope.spawn(|| subscriber.run(&world));
        // If something fails, they are not waited for forever.
        let _ended = StopOnDrop(&subscriber, &world);
        let workers: Vec<_> = (0..size.workers)
            .map(|n| {
                let (world, chance) = (&world, Chance::new(size.seed.wrapping_add(n + 1)));
                scope.spawn(move || worker::run(world, &format!("w{n}"), Agent::Stateless, chance))
            })
            .collect();
        let broken = || workers.iter().any(std::thread::ScopedJoinHandle::is_finished) || listening.is_finished();
        let proposed = || world.proposed.load(Ordering::SeqCst);
        while (killer.kills() < size.kills || proposed() < size.changes || !killer.missing().is_empty()) && !broken() {
            killer.run_life();
        }
        let early = broken();
        world.has_enough.store(true, Ordering::SeqCst);
        // Work in progress completes while the killing continues for a while.
        if !early {
            killer.run_life();
        }
        killer.start_for_good();
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        if results.iter().all(Result::is_ok) && !early {
            let end = checks::wait_until_settled(&world);
            support::eventually("the subscriber has heard everything", || {
                (listening.is_finished() || subscriber.received.lock().unwrap().len() as u64 >= end).then_some(())
            });
        }
        subscriber.ended.store(true, Ordering::SeqCst);
        let subscriber_result = listening.join();
        for result in results {
            result.unwrap_or_else(|_| panic!("a worker failed:\n{}", world.log()));
        }
        subscriber_result.unwrap_or_else(|_| panic!("the subscriber failed:\n{}", world.log()));
    });
    let received = subscriber.received.into_inner().unwrap();
    let found = checks::check_everything(&world, &received);
    killer.stop();
    let (entries, head) = killer.verify();
    let (kills, states) = (killer.kills(), |state| found.state(state));
    println!("changes {} ({} requests unanswered)", found.changes, world.unanswered.load(Ordering::SeqCst));
    println!(
        "kills {kills} ({} at {} named points, {} at random, {} during the start, {} during the end)",
        killer.at_points(),
        killer.points.len(),
        killer.random_kills,
        killer.start_kills,
        killer.end_kills,
    );
    if server.is_some() {
        println!("crashes of the store's server under a gateway that lived on: {}", killer.server_crashes);
    }
    println!(
        "upstream calls {}; applied {}, failed {}, of unknown outcome {} (settled by a person), rejected {}, withdrawn {}, \
         expired {}, pending {}, stale {}",
        found.calls,
        states("applied"),
        states("failed"),
        found.unknown,
        states("rejected"),
        states("withdrawn"),
        states("expired"),
        states("pending"),
        states("stale"),
    );
    println!(
        "corrected {}, approvals taken back {}, targets that had moved {}, tasks {}, standing rules {}",
        found.edited, found.undone, found.stale, found.tasks, found.rules,
    );
    println!("{}", found.describe_plans());
    println!(
        "feed events {}, each delivered once and in order over {} gateways; deliveries of two webhooks {}, {} of them again, in order \
         for each change; audit entries {entries}, verified after each kill against the heads before; {head}",
        received.len(),
        kills + 1,
        found.delivered,
        found.delivered_again,
    );
    println!("{:.0} s", began.elapsed().as_secs_f64());
    assert!(killer.missing().is_empty(), "never crashed at {:?}", killer.missing());
    let each = [found.edited, found.undone, found.stale, found.tasks, found.rules, found.plans];
    assert!(!each.contains(&0), "something was never done: {found:?}");
    assert!(found.state("applied") > 10, "too little was applied to prove anything: {found:?}");
}
