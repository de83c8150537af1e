//! A model of what several gateways do with one approved change: claim, look at the lease, call, record, lose track, settle.
//! All interleavings of two nodes are explored, with processes that stand still anywhere, die and come back, and leases that
//! run out at any moment. Another change of the same target runs at either node as soon as the target is free.
//!
//! What the model is of: `src/store/src/postgres/claims.rs` (claims and fences), `src/store/src/postgres/nodes.rs` (leases, of
//! which the node's own ends before the store's), `src/review/src/executor` (the look before the call, the late result). Time is
//! not in it but for two things that the clocks give: a lease has run out at its node before it has at the store, and nobody
//! stands still between the look and the first byte for longer than a lapsed claim is held.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use stateright::{Checker as _, HasDiscoveries, Model, Property};

const NODES: usize = 2;
/// Lives of a node that are followed: each may lose its lease and die.
const EPOCHS: u8 = 3;

/// What is left out to see whether the model notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// What a node leaves is approved again: as in queues that deliver at least once.
    LapsedIsApprovedAgain,
    /// Whoever has called says how it ended, whatever became of the claim meanwhile.
    ResultIsNotFenced,
    /// The lease is not looked at between the claim and the call.
    NoLookBeforeTheCall,
    /// A person may settle at once.
    SettledAtOnce,
    /// A lease that ran out is renewed as if nothing had been.
    SameEpochAfterTheLease,
    /// The target is free as soon as the outcome is unknown.
    TargetFreeAtOnce,
    /// The target is free once the call's time is over, counted from when its node was taken for gone.
    TargetFreeWhileHeld,
}

type Claim = (usize, u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    Approved,
    Executing(Claim),
    Unknown(Claim),
    /// As a result says.
    Applied,
    /// As a person says, who has looked at what was done.
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

/// What a process has in its hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ProcessState {
    Empty,
    /// Claimed as this epoch; its lease is not looked at yet.
    Claimed(u8),
    /// Looked: the call goes out next, whenever that is.
    Looked(u8),
    Called(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    alive: bool,
    epoch: u8,
    /// With which its process began.
    began: u8,
    /// As the node knows it, and as the store does.
    holds: bool,
    leased: bool,
    hands: ProcessState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    nodes: [Node; NODES],
    change: Change,
    /// A claim that has lapsed, and whose call may still go out as far as anybody knows.
    held: Option<Claim>,
    /// What was really done.
    calls: u8,
    /// The call is at work at the upstream, whatever became of its node.
    works: bool,
    /// The time of a call whose outcome is unknown is not over.
    taken: bool,
    other: OtherChange,
    /// The other change of the target was at work while this one was.
    overlapped: bool,
    late: bool,
    /// Somebody was told that its outcome is unknown.
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Claim(usize),
    Look(usize),
    Call(usize),
    Record(usize),
    /// Its lease runs out, as it knows itself, and then as the store does.
    EndsHere(usize),
    EndsThere(usize),
    Renew(usize),
    Dies(usize),
    Begins(usize),
    /// By whoever leads.
    Sweep,
    HoldEnds,
    Settle,
    /// The upstream is done with the call, and the time of a lost one is over: it is longer than any call takes.
    Ends,
    TimeEnds,
    /// The connection of a call breaks, which goes on at the upstream.
    Breaks(usize),
    /// The other change is claimed and called, and is done.
    OtherRuns,
    OtherEnds,
}

struct Cluster(Bug);

impl Cluster {
    /// Whether this claim's node is certainly another one by now, or gone.
    fn lapsed(world: &World, (node, epoch): Claim) -> bool {
        let node = &world.nodes[node];
        node.epoch > epoch || !node.leased
    }
}

impl Model for Cluster {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let node = Node { alive: true, epoch: 1, began: 1, holds: true, leased: true, hands: ProcessState::Empty };
        let (change, held, calls, late, lost) = (Change::Approved, None, 0, false, false);
        let (works, taken, other, overlapped) = (false, false, OtherChange::Waits, false);
        vec![World { nodes: [node; NODES], change, held, calls, works, taken, other, overlapped, late, lost }]
    }

    fn actions(&self, _: &World, steps: &mut Vec<Step>) {
        for n in 0..NODES {
            steps.extend([Step::Claim(n), Step::Look(n), Step::Call(n), Step::Record(n), Step::EndsHere(n)]);
            steps.extend([Step::EndsThere(n), Step::Renew(n), Step::Dies(n), Step::Begins(n), Step::Breaks(n)]);
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
                    && node.hands == ProcessState::Empty)
                {
                    return None;
                }
                node.hands = ProcessState::Claimed(node.epoch);
                world.change = Change::Executing((n, node.epoch));
            }
            Step::Look(n) => {
                let node = &mut world.nodes[n];
                let ProcessState::Claimed(epoch) = node.hands else { return None };
                let may = node.holds && node.epoch == epoch || bug == Bug::NoLookBeforeTheCall;
                if !node.alive || !may {
                    return None;
                }
                node.hands = ProcessState::Looked(epoch);
            }
            Step::Call(n) => {
                let node = &mut world.nodes[n];
                let ProcessState::Looked(epoch) = node.hands else { return None };
                if !node.alive {
                    return None;
                }
                node.hands = ProcessState::Called(epoch);
                world.calls += 1;
                world.works = true;
                world.overlapped |= world.other == OtherChange::Works;
            }
            Step::Record(n) => {
                let ProcessState::Called(epoch) = world.nodes[n].hands else { return None };
                if !world.nodes[n].alive || (world.works && world.change == Change::Executing((n, epoch))) {
                    return None;
                }
                world.nodes[n].hands = ProcessState::Empty;
                let own = world.change == Change::Executing((n, epoch));
                if own || bug == Bug::ResultIsNotFenced {
                    world.change = Change::Applied;
                } else {
                    world.late = true;
                    world.held = world.held.filter(|held| *held != (n, epoch));
                    // With an answer the call is over; else its time counts from when it was sent.
                    world.taken &= world.works;
                }
            }
            Step::EndsHere(n) => {
                if !world.nodes[n].holds {
                    return None;
                }
                world.nodes[n].holds = false;
            }
            Step::EndsThere(n) => {
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
                    if bug != Bug::SameEpochAfterTheLease {
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
                // Whatever it had in its hands is gone; its lease is not.
                world.nodes[n] = Node { alive: false, holds: false, hands: ProcessState::Empty, ..world.nodes[n] };
            }
            Step::Begins(n) => {
                let node = &mut world.nodes[n];
                if node.alive || node.epoch == EPOCHS {
                    return None;
                }
                let epoch = node.epoch + 1;
                *node =
                    Node { alive: true, epoch, began: epoch, holds: true, leased: true, hands: ProcessState::Empty };
            }
            Step::Sweep => {
                let Change::Executing(claim) = world.change else { return None };
                if !Self::lapsed(&world, claim) {
                    return None;
                }
                (world.change, world.lost) = (Change::Unknown(claim), true);
                world.taken = bug != Bug::TargetFreeAtOnce;
                // A process that was started anew has nothing in its hands.
                world.held = Some(claim).filter(|(node, epoch)| world.nodes[*node].began <= *epoch);
                if bug == Bug::LapsedIsApprovedAgain {
                    (world.change, world.held, world.lost) = (Change::Approved, None, false);
                }
            }
            Step::HoldEnds => {
                let (node, epoch) = world.held?;
                // Nobody stands still for so long right before the first byte.
                if world.nodes[node].hands == ProcessState::Looked(epoch) {
                    return None;
                }
                world.held = None;
            }
            Step::Ends => {
                if !world.works {
                    return None;
                }
                world.works = false;
            }
            Step::TimeEnds => {
                // Longer than any call takes; it begins when nothing can go out any more.
                let begun = world.held.is_none() || bug == Bug::TargetFreeWhileHeld;
                if !world.taken || world.works || !begun {
                    return None;
                }
                world.taken = false;
            }
            Step::Breaks(n) => {
                let ProcessState::Called(epoch) = world.nodes[n].hands else { return None };
                if !world.nodes[n].alive || !world.works || world.change != Change::Executing((n, epoch)) {
                    return None;
                }
                world.nodes[n].hands = ProcessState::Empty;
                (world.change, world.lost) = (Change::Unknown((n, epoch)), true);
                world.taken = bug != Bug::TargetFreeAtOnce;
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
                    Change::Unknown(_) => !world.taken,
                };
                if world.other != OtherChange::Waits || !free {
                    return None;
                }
                world.other = OtherChange::Works;
                // Whoever settles it has looked.
                world.overlapped |= world.works && !matches!(world.change, Change::Settled { .. });
            }
            Step::Settle => {
                let Change::Unknown(claim) = world.change else { return None };
                let anew = world.nodes[claim.0].began > claim.1;
                if world.held.is_some() && !anew && bug != Bug::SettledAtOnce {
                    return None;
                }
                // They look at what was done, and say so.
                world.change = Change::Settled { applied: world.calls > 0 };
                world.taken = false;
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("it runs at most once", |_, world: &World| world.calls <= 1),
            Property::always("what is applied was done", |_, world: &World| {
                world.change != Change::Applied || world.calls == 1
            }),
            Property::always(
                "what a person has settled stays true",
                |_, world: &World| !matches!(world.change, Change::Settled { applied } if applied != (world.calls > 0)),
            ),
            Property::always("what is lost track of is a person's to settle", |_, world: &World| {
                !world.lost || matches!(world.change, Change::Unknown(_) | Change::Settled { .. })
            }),
            Property::always(
                "nothing is done under a claim that somebody else's stands in the place of",
                |_, world: &World| {
                    let active = |node: &Node| matches!(node.hands, ProcessState::Looked(epoch) if node.holds && node.epoch == epoch);
                    world.nodes.iter().filter(|node| active(node)).count() <= 1
                },
            ),
            Property::always("two calls to one target never overlap", |_, world: &World| !world.overlapped),
            Property::sometimes("the other change runs after a lost one's time", |_, world: &World| {
                world.other == OtherChange::Works && matches!(world.change, Change::Unknown(_))
            }),
            Property::sometimes("it is applied", |_, world: &World| world.change == Change::Applied),
            Property::sometimes("a node is lost and a person settles it", |_, world: &World| {
                world.change == Change::Settled { applied: false }
            }),
            Property::sometimes("what comes back is too late", |_, world: &World| world.late),
            Property::sometimes("a call goes out after its claim has lapsed", |_, world: &World| {
                matches!(world.change, Change::Unknown(claim)
                    if matches!(world.nodes[claim.0].hands, ProcessState::Called(epoch) if epoch == claim.1) && world.calls == 1)
            }),
        ]
    }
}

#[test]
fn no_interleaving_breaks_a_promise() {
    let checked = Cluster(Bug::None).checker().spawn_bfs().join();
    checked.assert_properties();
    println!("{} states, {} of them different", checked.state_count(), checked.unique_state_count());
    assert!(checked.unique_state_count() > 1000, "too few to prove anything");
}

#[test]
fn model_detects_each_left_out_rule() {
    for (bug, broken) in [
        (Bug::LapsedIsApprovedAgain, "it runs at most once"),
        (Bug::ResultIsNotFenced, "what is lost track of is a person's to settle"),
        (Bug::NoLookBeforeTheCall, "what a person has settled stays true"),
        (Bug::SettledAtOnce, "what a person has settled stays true"),
        (Bug::SameEpochAfterTheLease, "what a person has settled stays true"),
        (Bug::TargetFreeAtOnce, "two calls to one target never overlap"),
        (Bug::TargetFreeWhileHeld, "two calls to one target never overlap"),
    ] {
        let checked = Cluster(bug).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let found: Vec<_> = checked.discoveries().into_keys().collect();
        let violated = Cluster(bug).properties().into_iter().any(|property| {
            matches!(property.expectation, stateright::Expectation::Always) && found.contains(&property.name)
        });
        println!("{bug:?}: {}", if violated { "found" } else { "not found" });
        assert!(violated, "{bug:?} breaks nothing, but should break: {broken}");
    }
}
