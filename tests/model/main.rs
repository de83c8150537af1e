//! A model of several gateways with one approved change: claim, check of the lease, call, result, loss, settlement. It
//! explores all interleavings of two nodes, with processes that freeze anywhere, die and restart, and leases that
//! expire at any moment. Another change of the same target runs at either node as soon as the target is free.
//!
//! It models `src/store/src/postgres/claims.rs` (claims and fences), `src/store/src/postgres/nodes.rs` (leases, which
//! end at the node before they end in the store), and `src/review/src/executor` (the check before the call, the late
//! result). It has no time except for two guarantees of the clocks: a lease expires at its node before it expires in
//! the store, and no process freezes between the check and the first byte for longer than a lapsed claim is held.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use stateright::{Checker as _, HasDiscoveries, Model, Property};

const NODES: usize = 2;
/// The number of lives of a node that are modelled. In each, the node may lose its lease and die.
const EPOCHS: u8 = 3;

/// A rule that is left out, to see whether the model detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A lapsed change is approved again, as in queues with at-least-once delivery.
    LapsedClaimIsRetried,
    /// A caller records its result whatever happened to the claim in the meantime.
    ResultWithoutFence,
    /// The lease is not checked between the claim and the call.
    NoLeaseCheckBeforeCall,
    /// A person may settle at once.
    SettlementAtOnce,
    /// An expired lease is renewed without a new epoch.
    SameEpochAfterLease,
    /// The target is free as soon as the outcome is unknown.
    TargetFreeAtOnce,
    /// The target is free once the call's time is over, counted from when its node was declared dead.
    TargetFreeWhileHeld,
}

type Claim = (usize, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    Approved,
    Executing(Claim),
    Unknown(Claim),
    /// Recorded from the call's result.
    Applied,
    /// Settled by a person who has looked at the effect.
    Settled {
        applied: bool,
    },
}

/// Another change of the same target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OtherChange {
    Waits,
    Works,
    Done,
}

/// The progress of a process with a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ProcessState {
    Empty,
    /// Claimed in this epoch; its lease has not been checked yet.
    Claimed(u8),
    /// The lease has been checked. The call is sent next, at any later time.
    LeaseChecked(u8),
    Called(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    alive: bool,
    epoch: u8,
    /// The epoch in which its process started.
    started_in: u8,
    /// Set while the lease is valid according to the node, and below according to the store.
    holds: bool,
    leased: bool,
    state: ProcessState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    change: Change,
    /// A lapsed claim whose call may still be sent, as far as anybody knows.
    lapsed_claim: Option<Claim>,
    /// The number of calls that really took effect.
    calls: u8,
    /// The call is running at the upstream, whatever happened to its node.
    is_running: bool,
    /// The time of a call with unknown outcome is not over.
    target_held: bool,
    other: OtherChange,
    /// The other change of the target ran at the same time.
    overlapped: bool,
    late: bool,
    /// Somebody was told that its outcome is unknown.
    has_lost_outcome: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Claim(usize),
    Look(usize),
    Call(usize),
    Record(usize),
    /// The lease expires, first at the node and then in the store.
    LeaseEndsAtNode(usize),
    LeaseEndsAtStore(usize),
    Renew(usize),
    Dies(usize),
    Begins(usize),
    /// Done by the leader.
    Sweep,
    HoldEnds,
    Settle,
    /// The upstream has finished the call; the time of a lost call, which is longer than any call, is over.
    Ends,
    TimeEnds,
    /// The connection of a call breaks, and the call continues at the upstream.
    Breaks(usize),
    /// The other change is claimed and called, and ends.
    OtherRuns,
    OtherEnds,
}

struct Cluster(Bug);

impl Cluster {
    /// Returns `true` if this claim's node has certainly got another epoch, or is gone.
    fn lapsed(world: &World, (node, epoch): Claim) -> bool {
        let node = &world.nodes[node];
        node.epoch > epoch || !node.leased
    }
}

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let node = Node { alive: true, epoch: 1, started_in: 1, holds: true, leased: true, state: ProcessState::Empty };
        let (change, lapsed_claim, calls, late, has_lost_outcome) = (Change::Approved, None, 0, false, false);
        let (is_running, target_held, other, overlapped) = (false, false, OtherChange::Waits, false);
        vec![World {
            nodes: [node; NODES],
            change,
            lapsed_claim,
            calls,
            is_running,
            target_held,
            other,
            overlapped,
            late,
            has_lost_outcome,
        }]
    }

    fn actions(&self, _: &World, steps: &mut Vec<Step>) {
        for n in 0..NODES {
            steps.extend([Step::Claim(n), Step::Look(n), Step::Call(n), Step::Record(n), Step::LeaseEndsAtNode(n)]);
            steps.extend([Step::LeaseEndsAtStore(n), Step::Renew(n), Step::Dies(n), Step::Begins(n), Step::Breaks(n)]);
        }
        steps.extend([Step::Sweep, Step::HoldEnds, Step::Settle, Step::Ends, Step::TimeEnds]);
        steps.extend([Step::OtherRuns, Step::OtherEnds]);
    }

    fn next_state(&self, before: &World, step: Step) -> Option<World> {
        let mut world = *before;
        let bug = self.0;
        match step {
            Step::Claim(n) => {
                let node = &mut world.nodes[n];
                let free = world.other != OtherChange::Works;
                // In one transaction, by the store's clock.
                if !(node.alive
                    && node.leased
                    && free
                    && world.change == Change::Approved
                    && node.state == ProcessState::Empty)
                {
                    return None;
                }
                node.state = ProcessState::Claimed(node.epoch);
                world.change = Change::Executing((n, node.epoch));
            }
            Step::Look(n) => {
                let node = &mut world.nodes[n];
                let ProcessState::Claimed(epoch) = node.state else { return None };
                let may = node.holds && node.epoch == epoch || bug == Bug::NoLeaseCheckBeforeCall;
                if !node.alive || !may {
                    return None;
                }
                node.state = ProcessState::LeaseChecked(epoch);
            }
            Step::Call(n) => {
                let node = &mut world.nodes[n];
                let ProcessState::LeaseChecked(epoch) = node.state else { return None };
                if !node.alive {
                    return None;
                }
                node.state = ProcessState::Called(epoch);
                world.calls += 1;
                world.is_running = true;
                world.overlapped |= world.other == OtherChange::Works;
            }
            Step::Record(n) => {
                let ProcessState::Called(epoch) = world.nodes[n].state else { return None };
                if !world.nodes[n].alive || (world.is_running && world.change == Change::Executing((n, epoch))) {
                    return None;
                }
                world.nodes[n].state = ProcessState::Empty;
                let own = world.change == Change::Executing((n, epoch));
                if own || bug == Bug::ResultWithoutFence {
                    world.change = Change::Applied;
                } else {
                    world.late = true;
                    world.lapsed_claim = world.lapsed_claim.filter(|claim| *claim != (n, epoch));
                    // With an answer the call is over; otherwise its time counts from when it was sent.
                    world.target_held &= world.is_running;
                }
            }
            Step::LeaseEndsAtNode(n) => {
                if !world.nodes[n].holds {
                    return None;
                }
                world.nodes[n].holds = false;
            }
            Step::LeaseEndsAtStore(n) => {
                if world.nodes[n].holds || !world.nodes[n].leased {
                    return None;
                }
                world.nodes[n].leased = false;
            }
            Step::Renew(n) => {
                let node = &mut world.nodes[n];
                if !node.alive || node.holds {
                    return None;
                }
                if !node.leased {
                    if bug != Bug::SameEpochAfterLease {
                        if node.epoch == EPOCHS {
                            return None;
                        }
                        node.epoch += 1;
                    }
                    node.leased = true;
                }
                node.holds = true;
            }
            Step::Dies(n) => {
                if !world.nodes[n].alive {
                    return None;
                }
                // Its claims in memory are gone; its lease is not.
                world.nodes[n] = Node { alive: false, holds: false, state: ProcessState::Empty, ..world.nodes[n] };
            }
            Step::Begins(n) => {
                let node = &mut world.nodes[n];
                if node.alive || node.epoch == EPOCHS {
                    return None;
                }
                let epoch = node.epoch + 1;
                *node = Node {
                    alive: true,
                    epoch,
                    started_in: epoch,
                    holds: true,
                    leased: true,
                    state: ProcessState::Empty,
                };
            }
            Step::Sweep => {
                let Change::Executing(claim) = world.change else { return None };
                if !Self::lapsed(&world, claim) {
                    return None;
                }
                (world.change, world.has_lost_outcome) = (Change::Unknown(claim), true);
                world.target_held = bug != Bug::TargetFreeAtOnce;
                // A restarted process has no call in progress.
                world.lapsed_claim = Some(claim).filter(|(node, epoch)| world.nodes[*node].started_in <= *epoch);
                if bug == Bug::LapsedClaimIsRetried {
                    (world.change, world.lapsed_claim, world.has_lost_outcome) = (Change::Approved, None, false);
                }
            }
            Step::HoldEnds => {
                let (node, epoch) = world.lapsed_claim?;
                // No process freezes for that long right before the first byte.
                if world.nodes[node].state == ProcessState::LeaseChecked(epoch) {
                    return None;
                }
                world.lapsed_claim = None;
            }
            Step::Ends => {
                if !world.is_running {
                    return None;
                }
                world.is_running = false;
            }
            Step::TimeEnds => {
                // Longer than any call takes, counted from when nothing can be sent any more.
                let begun = world.lapsed_claim.is_none() || bug == Bug::TargetFreeWhileHeld;
                if !world.target_held || world.is_running || !begun {
                    return None;
                }
                world.target_held = false;
            }
            Step::Breaks(n) => {
                let ProcessState::Called(epoch) = world.nodes[n].state else { return None };
                if !world.nodes[n].alive || !world.is_running || world.change != Change::Executing((n, epoch)) {
                    return None;
                }
                world.nodes[n].state = ProcessState::Empty;
                (world.change, world.has_lost_outcome) = (Change::Unknown((n, epoch)), true);
                world.target_held = bug != Bug::TargetFreeAtOnce;
            }
            Step::OtherEnds => {
                if world.other != OtherChange::Works {
                    return None;
                }
                world.other = OtherChange::Done;
            }
            Step::OtherRuns => {
                let free = match world.change {
                    Change::Approved | Change::Applied | Change::Settled { .. } => true,
                    Change::Executing(_) => false,
                    Change::Unknown(_) => !world.target_held,
                };
                if world.other != OtherChange::Waits || !free {
                    return None;
                }
                world.other = OtherChange::Works;
                // Whoever settles it has looked at the effect.
                world.overlapped |= world.is_running && !matches!(world.change, Change::Settled { .. });
            }
            Step::Settle => {
                let Change::Unknown(claim) = world.change else { return None };
                let anew = world.nodes[claim.0].started_in > claim.1;
                if world.lapsed_claim.is_some() && !anew && bug != Bug::SettlementAtOnce {
                    return None;
                }
                // They look at the effect, and report it.
                world.change = Change::Settled { applied: world.calls > 0 };
                world.target_held = false;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("a change runs at most once", |_, world: &World| world.calls <= 1),
            Property::always("an applied change was called", |_, world: &World| {
                world.change != Change::Applied || world.calls == 1
            }),
            Property::always(
                "what a person settled stays true",
                |_, world: &World| !matches!(world.change, Change::Settled { applied } if applied != (world.calls > 0)),
            ),
            Property::always("a lost outcome is settled by a person", |_, world: &World| {
                !world.has_lost_outcome || matches!(world.change, Change::Unknown(_) | Change::Settled { .. })
            }),
            Property::always("no call is made under a claim that another one replaced", |_, world: &World| {
                let active = |node: &Node| matches!(node.state, ProcessState::LeaseChecked(epoch) if node.holds && node.epoch == epoch);
                world.nodes.iter().filter(|node| active(node)).count() <= 1
            }),
            Property::always("two calls to one target never overlap", |_, world: &World| !world.overlapped),
            Property::sometimes("the other change runs after the time of a lost one", |_, world: &World| {
                world.other == OtherChange::Works && matches!(world.change, Change::Unknown(_))
            }),
            Property::sometimes("a change is applied", |_, world: &World| world.change == Change::Applied),
            Property::sometimes("a node is lost and a person settles it", |_, world: &World| {
                world.change == Change::Settled { applied: false }
            }),
            Property::sometimes("a result arrives too late", |_, world: &World| world.late),
            Property::sometimes("a call goes out after its claim has lapsed", |_, world: &World| {
                matches!(world.change, Change::Unknown(claim)
                    if matches!(world.nodes[claim.0].state, ProcessState::Called(epoch) if epoch == claim.1) && world.calls == 1)
            }),
        ]
    }
}

#[test]
fn no_interleaving_breaks_a_promise() {
    let checked = Cluster(Bug::None).checker().spawn_bfs().join();
    checked.assert_properties();
    println!("{} states, {} of them different", checked.state_count(), checked.unique_state_count());
    assert!(checked.unique_state_count() > 1000, "too few states to prove anything");
}

#[test]
fn model_detects_each_left_out_rule() {
    for (bug, broken) in [
        (Bug::LapsedClaimIsRetried, "a change runs at most once"),
        (Bug::ResultWithoutFence, "a lost outcome is settled by a person"),
        (Bug::NoLeaseCheckBeforeCall, "what a person settled stays true"),
        (Bug::SettlementAtOnce, "what a person settled stays true"),
        (Bug::SameEpochAfterLease, "what a person settled stays true"),
        (Bug::TargetFreeAtOnce, "two calls to one target never overlap"),
        (Bug::TargetFreeWhileHeld, "two calls to one target never overlap"),
    ] {
        let checked = Cluster(bug).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found: Vec<_> = checked.discoveries().into_keys().collect();
        let violated = Cluster(bug).properties().into_iter().any(|property| {
            matches!(property.expectation, stateright::Expectation::Always) && found.contains(&property.name)
        });
        println!("{bug:?}: {}", if violated { "found" } else { "not found" });
        assert!(violated, "{bug:?} violates nothing, but should violate: {broken}");
    }
}
