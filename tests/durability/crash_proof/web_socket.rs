//! An agent in a WebSocket session, which disconnects and resumes through another gateway with the number of received
//! frames. If the session is gone, or it is too late, it begins another one.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    agent::{FollowedChanges, REVISION, SessionAgent},
    world::World,
};
use support::{
    http::Conn,
    mcp::{initialize_params, notification, request},
    ws::{PING, PONG, TEXT, Ws},
};

#[derive(Default)]
pub struct WsSession {
    ws: Option<Ws>,
    id: Option<String>,
    /// Frames received over earlier connections.
    received_before: u64,
    followed: FollowedChanges,
    /// The number of its last request.
    number: i64,
}

/// Returns the next message; `None` if the connection is gone.
fn message(ws: &mut Ws) -> Option<Value> {
    loop {
        let frame = ws.any_frame()?;
        match frame.opcode {
            TEXT => return Some(frame.json()),
            PING => ws.send_frame(true, PONG, &frame.payload),
            _ => {}
        }
    }
}

impl WsSession {
    fn forget_session(&mut self, world: &World) {
        world.sessions.losses.fetch_add(1, Ordering::Relaxed);
        *self = Self { number: self.number, ..Self::default() };
    }

    /// Resumes the session, or begins a new one.
    fn connect(&mut self, world: &World) {
        let patience = world.retry_budget();
        while self.ws.is_none() {
            let path = match &self.id {
                Some(id) => format!("/ws?session={id}&received={}", self.received_before),
                None => "/ws".into(),
            };
            let conn = Conn::try_open(world.address()).ok();
            let ws = conn.and_then(|conn| Ws::open_on(conn, &path, &[("Sec-WebSocket-Protocol", "mcp")]));
            match ws.as_ref().map(|ws| ws.head.status) {
                Some(101) if self.id.is_some() => {
                    world.sessions.sockets_resumed.fetch_add(1, Ordering::Relaxed);
                    self.ws = ws;
                }
                Some(101) => self.begin(world, ws),
                Some(404) => self.forget_session(world),
                Some(410) => {
                    world.sessions.too_late.fetch_add(1, Ordering::Relaxed);
                    self.forget_session(world);
                }
                None | Some(429 | 500..) => {}
                Some(status) => panic!("{path}: {status}\n{}", world.log()),
            }
            if self.ws.is_none() {
                patience.pause(|| path.clone());
            }
        }
    }

    fn begin(&mut self, world: &World, ws: Option<Ws>) {
        let Some(mut ws) = ws else { return };
        ws.send_json(&request(0, "initialize", initialize_params(REVISION)));
        while let Some(message) = message(&mut ws) {
            if message["id"] == 0 {
                // The gateway accepted the connection and then began to end: another one is tried.
                if message["error"]["data"]["code"] == "SHUTTING_DOWN" {
                    return;
                }
                assert!(message["result"].is_object(), "{message}");
                ws.send_json(&notification("notifications/initialized"));
                world.sessions.starts.fetch_add(1, Ordering::Relaxed);
                self.id = ws.session().map(str::to_owned);
                self.ws = Some(ws);
                return;
            }
        }
    }
}

impl SessionAgent for WsSession {
    fn request(&mut self, world: &World, method: &str, params: &Value) -> Value {
        let patience = world.retry_budget();
        loop {
            self.connect(world);
            self.number += 1;
            let number = self.number;
            if let Some(ws) = &mut self.ws {
                ws.send_json(&request(number, method, params.clone()));
                while let Some(message) = message(ws) {
                    if message["id"] == number && message.get("method").is_none() {
                        return message;
                    }
                    self.followed.record_update(world, &message);
                }
            }
            // Whether the request arrived is unknown: the agent reconnects and asks again.
            world.unanswered.fetch_add(1, Ordering::Relaxed);
            self.drop_connection();
            patience.pause(|| format!("an answer to {method} {params}"));
        }
    }

    fn listen(&mut self, world: &World, time: Duration) {
        self.connect(world);
        let end = Instant::now() + time;
        let Some(ws) = &mut self.ws else { return };
        while let Some(arrived) = ws.conn.arrived_within(end.saturating_duration_since(Instant::now())) {
            match (arrived > 0).then(|| ws.any_frame()).flatten() {
                Some(frame) if frame.opcode == TEXT => self.followed.record_update(world, &frame.json()),
                Some(frame) if frame.opcode == PING => ws.send_frame(true, PONG, &frame.payload),
                // The gateway is ending: the next use reconnects.
                _ => return self.drop_connection(),
            }
        }
    }

    fn drop_connection(&mut self) {
        if let Some(ws) = self.ws.take() {
            self.received_before += ws.received;
        }
    }

    fn followed(&mut self) -> &mut FollowedChanges {
        &mut self.followed
    }
}
