//! The cluster proof: agents with and without sessions, reviewers, dashboards and two webhook receivers use several
//! gateways on a PostgreSQL with a replica. Meanwhile gateways are killed, frozen for longer than a lease, cut off,
//! slowed down, restarted and given wrong clocks, and the database crashes or fails over. Afterwards every promise of a
//! gateway is compared with the store and with the upstream's effects.
//!
//! The short run is an ordinary test. The long one is `scripts/cluster-proof`, which prints its figures.

mod nemesis;
pub(crate) mod proxy;

use std::{path::Path, sync::atomic::Ordering, time::Instant};

use crate::crash_proof::{agent::Agent, chance::Chance, checks, feed::Subscriber, worker, world::World};
use nemesis::{Fault, Nemesis};
use support::postgres::Server;

struct RunSize {
    nodes: usize,
    /// The minimum number of faults, and below of changes.
    faults: usize,
    changes: usize,
    workers: u64,
    seed: u64,
}

#[test]
fn cluster_loses_nothing_and_runs_nothing_twice() {
    run_proof(&RunSize { nodes: 3, faults: Fault::ALL.len() + 2, changes: 100, workers: 6, seed: 7 });
}

#[test]
#[ignore = "takes minutes: scripts/cluster-proof"]
fn the_long_run() {
    let number = |name: &str, default| std::env::var(name).ok().map_or(default, |text| text.parse().unwrap());
    run_proof(&RunSize {
        nodes: number("CLUSTER_PROOF_NODES", 3),
        faults: number("CLUSTER_PROOF_FAULTS", 100),
        changes: number("CLUSTER_PROOF_CHANGES", 2000),
        workers: number("CLUSTER_PROOF_WORKERS", 10) as u64,
        seed: number("CLUSTER_PROOF_SEED", 1) as u64,
    });
}

/// Listening dashboards, each moving from gateway to gateway.
const DASHBOARDS: usize = 3;

/// Stops the subscribers and workers when dropped.
struct StopOnDrop<'a>(&'a [Subscriber], &'a World);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|dashboard| dashboard.ended.store(true, Ordering::SeqCst));
        self.1.has_enough.store(true, Ordering::SeqCst);
        self.1.is_over.store(true, Ordering::SeqCst);
    }
}

fn run_proof(size: &RunSize) {
    let began = Instant::now();
    let server = Server::start(&["-c", "fsync=off", "-c", "max_connections=300"]);
    server.sql("postgres", "CREATE DATABASE cluster");
    server.add_replica();
    let url = server.database_of_both("cluster");
    let make_key = |data: &Path, name: &str| support::create_key_in(&url, data, "reviewer", name);
    let world = World::new(size.nodes, make_key);
    let dashboards: Vec<Subscriber> = (0..DASHBOARDS).map(|_| Subscriber::default()).collect();
    let mut nemesis = Nemesis::new(&world, &server, Chance::new(size.seed));
    std::thread::scope(|scope| {
        let listening: Vec<_> = dashboards.iter().map(|dashboard| scope.spawn(|| dashboard.run(&world))).collect();
        // If something fails, they are not waited for forever.
        let _ended = StopOnDrop(&dashboards, &world);
        let workers: Vec<_> = (0..size.workers)
            .map(|n| {
                let (world, chance) = (&world, Chance::new(size.seed.wrapping_add(n + 1)));
                scope.spawn(move || worker::run(world, &format!("w{n}"), Agent::any(n), chance))
            })
            .collect();
        let broken = || {
            workers.iter().any(std::thread::ScopedJoinHandle::is_finished)
                || listening.iter().any(std::thread::ScopedJoinHandle::is_finished)
        };
        let proposed = || world.proposed.load(Ordering::SeqCst);
        while (nemesis.faults() < size.faults || proposed() < size.changes) && !broken() {
            if nemesis.faults() < size.faults {
                nemesis.inject_fault();
            } else {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        }
        let early = broken();
        world.has_enough.store(true, Ordering::SeqCst);
        let results: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        if results.iter().all(Result::is_ok) && !early {
            let end = checks::wait_until_settled(&world);
            support::eventually("all dashboards have heard everything", || {
                let all = |dashboard: &Subscriber| dashboard.received.lock().unwrap().len() as u64 >= end;
                (listening.iter().any(std::thread::ScopedJoinHandle::is_finished) || dashboards.iter().all(all))
                    .then_some(())
            });
        }
        dashboards.iter().for_each(|dashboard| dashboard.ended.store(true, Ordering::SeqCst));
        let dashboard_results: Vec<_> = listening.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        for result in results {
            result.unwrap_or_else(|_| panic!("a worker failed:\n{}", world.log()));
        }
        for result in dashboard_results {
            result.unwrap_or_else(|_| panic!("a dashboard failed:\n{}", world.log()));
        }
    });
    let mut received = dashboards.into_iter().map(|dashboard| dashboard.received.into_inner().unwrap());
    let first = received.next().unwrap();
    for other in received {
        let both = first.len().min(other.len());
        assert_eq!(first[..both], other[..both], "two dashboards got different events");
    }
    let found = checks::check_everything(&world, &first);
    nemesis.end_in_order();
    let mut verify = support::command(&[("COUNTERSIGN_STORE__URL", url.as_str())]);
    let output = verify.args(["audit", "verify", "--data"]).arg(world.data()).output().unwrap();
    let verified = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(output.status.success(), "{verified}");
    let count = |sql: &str| server.sql("cluster", sql);
    let states = |state| found.state(state);
    println!("changes {} ({} requests unanswered)", found.changes, world.unanswered.load(Ordering::SeqCst));
    println!(
        "faults {} at {} nodes, of {} processes: {:?}",
        nemesis.faults(),
        size.nodes,
        nemesis.lives.load(Ordering::SeqCst),
        nemesis.injected
    );
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
        "claims by node {}; late results {}; corrected {}, approvals taken back {}, targets that had moved {}, tasks {}",
        count(
            "SELECT string_agg(n::text, ', ') FROM (SELECT count(*) AS n FROM changes WHERE body LIKE '%\"claimedBy\"%'
               GROUP BY substring(body FROM '\"claimedBy\":\\{\"node\":\"([^\"]+)') ORDER BY 1) AS each"
        ),
        count("SELECT count(*) FROM audit WHERE event = 'late_result'"),
        found.edited,
        found.undone,
        found.stale,
        found.tasks,
    );
    println!("{}", found.describe_plans());
    println!(
        "feed events {}, each delivered once and in order by {DASHBOARDS} dashboards; deliveries of two webhooks {}, {} of them again, in \
         order for each change; {verified}",
        first.len(),
        found.delivered,
        found.delivered_again,
    );
    println!("sessions of agents: {:?}", world.sessions);
    println!("{:.0} s", began.elapsed().as_secs_f64());
    let sessions = &world.sessions;
    for some in [&sessions.losses, &sessions.streams_resumed, &sessions.sockets_resumed, &sessions.updates] {
        assert_ne!(some.load(Ordering::SeqCst), 0, "some event never happened to sessions: {sessions:?}");
    }
    assert_eq!(count("SELECT count(*) FROM claims"), "0", "what was claimed is over");
    assert_eq!(count("SELECT count(*) - max(seq) FROM events"), "0", "without a gap");
    assert_ne!(found.plans, 0, "no plan was proposed");
    assert!(found.state("applied") > 10, "too little was applied to prove anything: {found:?}");
}
