//! An agent in an HTTP session of the handshake era: each request goes to another gateway, its stream resumes through
//! another one, and after a 404 it initializes again.

use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};

use serde_json::Value;

use super::{
    agent::{FollowedChanges, REVISION, SessionAgent},
    world::{Answer, World},
};
use support::{
    http::Conn,
    mcp::{ACCEPT, JSON, initialize_params, notification, request},
};

#[derive(Default)]
pub struct HttpSession {
    id: Option<String>,
    stream: Option<Conn>,
    /// The id of the last event of its stream.
    last: Option<String>,
    /// The ids of all events with a message.
    event_ids: BTreeSet<String>,
    followed: FollowedChanges,
    /// The number of its last request.
    number: i64,
}

impl HttpSession {
    fn post(&self, world: &World, body: &Value) -> Option<Answer> {
        let mut headers = vec![ACCEPT];
        if let Some(id) = &self.id {
            headers.extend([("Mcp-Session-Id", id.as_str()), ("MCP-Protocol-Version", REVISION)]);
        }
        world.ask("POST", "/mcp", &headers, body).filter(|answer| !answer.is_retryable())
    }

    fn forget_session(&mut self, world: &World) {
        world.sessions.losses.fetch_add(1, Ordering::Relaxed);
        *self = Self { number: self.number, ..Self::default() };
    }

    /// Initializes a session and opens its stream, from whose beginning on nothing is lost.
    fn initialize(&mut self, world: &World) {
        let patience = world.retry_budget();
        while self.id.is_none() {
            if let Some(answer) = self.post(world, &request(0, "initialize", initialize_params(REVISION))) {
                assert_eq!(answer.status, 200, "{}", answer.body);
                if answer.body["result"].is_object() {
                    self.id = answer.session;
                    self.initialized(world);
                }
            }
            while self.id.is_some() && self.last.is_none() {
                self.drop_connection();
                self.listen(world, Duration::from_millis(500));
                patience.pause(|| "a stream".into());
            }
            patience.pause(|| "a session".into());
        }
        world.sessions.starts.fetch_add(1, Ordering::Relaxed);
    }

    fn initialized(&mut self, world: &World) {
        let patience = world.retry_budget();
        while self.id.is_some() {
            match self.post(world, &notification("notifications/initialized")) {
                Some(answer) if answer.status == 202 => return,
                Some(answer) if answer.status == 404 => self.forget_session(world),
                Some(answer) => panic!("{} {}", answer.status, answer.body),
                None => patience.pause(|| "an initialized session".into()),
            }
        }
    }

    /// Resumes its stream through another gateway.
    fn resume_stream(&mut self, world: &World) {
        let Some(id) = &self.id else { return };
        let Ok(mut conn) = Conn::try_open(world.address()) else { return };
        let mut headers = vec![
            JSON,
            ("Accept", "text/event-stream"),
            ("Mcp-Session-Id", id.as_str()),
            ("MCP-Protocol-Version", REVISION),
        ];
        headers.extend(self.last.as_deref().map(|last| ("Last-Event-ID", last)));
        conn.request("GET", "/mcp", &headers, b"");
        match conn.try_head().map(|head| head.status) {
            Some(200) => {
                if self.last.is_some() {
                    world.sessions.streams_resumed.fetch_add(1, Ordering::Relaxed);
                }
                self.stream = Some(conn);
            }
            Some(404) => self.forget_session(world),
            // More was missed than the gateway keeps.
            Some(410) => {
                world.sessions.too_late.fetch_add(1, Ordering::Relaxed);
                (self.last, self.followed) = (None, FollowedChanges::default());
            }
            None | Some(429 | 500..) => {}
            Some(status) => panic!("its stream: {status}"),
        }
    }
}

impl SessionAgent for HttpSession {
    fn request(&mut self, world: &World, method: &str, params: &Value) -> Value {
        let patience = world.retry_budget();
        loop {
            if self.id.is_none() {
                self.initialize(world);
            }
            self.number += 1;
            match self.post(world, &request(self.number, method, params.clone())) {
                Some(answer) if answer.status == 404 => self.forget_session(world),
                Some(answer) => return answer.body,
                None => patience.pause(|| format!("an answer to {method} {params}")),
            }
        }
    }

    fn listen(&mut self, world: &World, time: Duration) {
        if self.stream.is_none() {
            self.resume_stream(world);
        }
        let Some(stream) = &mut self.stream else { return };
        while let Some(event) = stream.event_within(time) {
            let Some(id) = event.id.clone() else { continue };
            // The first event of a stream has only an id.
            if event.data.as_deref().is_some_and(|data| !data.is_empty()) {
                assert!(self.event_ids.insert(id.clone()), "twice in a stream: {event:?}");
                self.followed.record_update(world, &event.json());
            }
            self.last = Some(id);
        }
    }

    fn drop_connection(&mut self) {
        self.stream = None;
    }

    fn followed(&mut self) -> &mut FollowedChanges {
        &mut self.followed
    }
}
