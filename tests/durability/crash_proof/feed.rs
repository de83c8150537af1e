//! A subscriber that resumes after every crash from the last id that it saw.

use std::{
    net::SocketAddr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

use serde_json::Value;

use super::world::World;
use support::http::Conn;

/// A transition that the feed reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedTransition {
    pub seq: u64,
    pub kind: String,
    pub change: String,
    pub version: u64,
}

#[derive(Default)]
pub struct Subscriber {
    pub received: Mutex<Vec<FeedTransition>>,
    pub ended: AtomicBool,
}

impl Subscriber {
    /// Follows the feed until [`Subscriber::ended`] is set.
    pub fn run(&self, world: &World) {
        while !self.ended.load(Ordering::SeqCst) {
            let last = self.received.lock().unwrap().last().map_or(0, |transition| transition.seq);
            let Some(mut conn) = open(world, Some(last)) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            while let Some(event) = conn.event_within(Duration::from_millis(700)) {
                if let Some(id) = &event.id {
                    self.record(id.parse().unwrap(), &event.json());
                }
            }
        }
    }

    /// Checks that every number comes once, in order and without a gap: a gateway that forgot an event would reuse its
    /// number.
    fn record(&self, id: u64, event: &Value) {
        let mut received = self.received.lock().unwrap();
        let last = received.last().map_or(0, |transition| transition.seq);
        assert_eq!(id, last + 1, "the feed has a gap or repeats itself: {event}");
        received.push(FeedTransition::read(id, event));
    }
}

impl FeedTransition {
    pub fn read(id: u64, event: &Value) -> Self {
        assert_eq!(event["seq"].as_u64(), Some(id), "{event}");
        Self {
            seq: id,
            kind: event["type"].as_str().unwrap().to_owned(),
            change: event["change"]["id"].as_str().unwrap_or_default().to_owned(),
            version: event["change"]["version"].as_u64().unwrap_or_default(),
        }
    }
}

fn open(world: &World, last: Option<u64>) -> Option<Conn> {
    open_at(world, world.address(), last)
}

fn open_at(world: &World, address: SocketAddr, last: Option<u64>) -> Option<Conn> {
    let bearer = format!("Bearer {}", world.reviewers[0]);
    let last = last.map(|last| last.to_string());
    let mut conn = Conn::try_open(address).ok()?;
    let mut headers = vec![("Authorization", bearer.as_str())];
    headers.extend(last.as_deref().map(|last| ("Last-Event-ID", last)));
    conn.request("GET", "/api/events", &headers, b"");
    (conn.try_head()?.status == 200).then_some(conn)
}

/// Returns the number of the last event. All gateways are up; the one with the event knows it first, and the others a
/// moment later.
pub fn head(world: &World) -> u64 {
    let of = |port: &AtomicU16| {
        let address = ([127, 0, 0, 1], port.load(Ordering::SeqCst)).into();
        let hello = open_at(world, address, None).expect("the feed").event().expect("a greeting").json();
        assert_eq!(hello["type"], "hello");
        hello["seq"].as_u64().unwrap()
    };
    world.ports.iter().map(of).max().unwrap()
}

/// Returns the whole feed as stored in the end.
pub fn replay(world: &World, until: u64) -> Vec<FeedTransition> {
    let mut conn = open(world, Some(0)).expect("the feed");
    let mut all = Vec::new();
    while (all.len() as u64) < until {
        let event = conn.event().expect("the feed goes on to its end");
        if let Some(id) = &event.id {
            all.push(FeedTransition::read(id.parse().unwrap(), &event.json()));
        }
    }
    all
}
