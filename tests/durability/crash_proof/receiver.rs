//! A webhook receiver that sometimes refuses a delivery, and sometimes accepts it and hangs up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Instant,
};

use serde_json::Value;

use super::{feed::FeedTransition, wire, world::World};

pub struct Receiver {
    pub url: String,
    /// Accepted deliveries in the order of their arrival, whether or not the gateway got the answer.
    accepted: Arc<Mutex<Vec<(Instant, FeedTransition)>>>,
}

impl Receiver {
    /// Refuses one request in so many, and hangs up on one in so many others.
    pub fn start(refused: u64, unanswered: u64) -> Self {
        let received: Arc<Mutex<Vec<(Instant, FeedTransition)>>> = Arc::default();
        let (keeps, requests) = (Arc::clone(&received), Mutex::new(0_u64));
        let port = wire::serve(move |_, body| {
            let event: Value = serde_json::from_str(body).unwrap();
            let seq = event["seq"].as_u64().unwrap();
            let mut requests = requests.lock().unwrap();
            *requests += 1;
            if requests.is_multiple_of(refused) {
                return Some((500, String::new()));
            }
            keeps.lock().unwrap().push((Instant::now(), FeedTransition::read(seq, &event)));
            (!requests.is_multiple_of(unanswered)).then(|| (200, String::new()))
        });
        Self { url: format!("http://127.0.0.1:{port}/"), accepted: received }
    }

    /// Checks that all events of each change arrived, possibly repeatedly, but never in another order; returns the
    /// number of deliveries and of repeats.
    pub fn check(&self, stored: &[FeedTransition], world: &World) -> (usize, usize) {
        let accepted = self.accepted.lock().unwrap();
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        let mut arrived: BTreeSet<u64> = BTreeSet::new();
        for (_, delivered) in accepted.iter() {
            let before = last.insert(&delivered.change, delivered.seq).unwrap_or_default();
            assert!(
                before <= delivered.seq,
                "{delivered:?} arrived after event {before}: {}",
                Self::describe(delivered, &accepted, world)
            );
            arrived.insert(delivered.seq);
            let expected = stored.get(usize::try_from(delivered.seq).unwrap() - 1);
            assert_eq!(expected, Some(delivered), "a delivered event differs from the stored one");
        }
        for event in stored.iter().filter(|event| !event.change.is_empty()) {
            assert!(arrived.contains(&event.seq), "never arrived: {event:?}");
        }
        (accepted.len(), accepted.len() - arrived.len())
    }

    /// Describes the deliveries of one change, the faults in the meantime, and the gateways' own reports.
    fn describe(transition: &FeedTransition, accepted: &[(Instant, FeedTransition)], world: &World) -> String {
        let of_it = accepted.iter().filter(|(_, other)| other.change == transition.change);
        let came: Vec<String> = of_it
            .map(|(at, transition)| {
                format!("{} {} at {:.3} s", transition.seq, transition.kind, world.seconds_since_start(*at))
            })
            .collect();
        format!("{came:#?}\n{:#?}\n{}", world.trace.lock().unwrap(), world.log())
    }
}
