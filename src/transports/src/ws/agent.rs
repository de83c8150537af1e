//! An agent's end of a WebSocket: what comes in goes to its session, and what the session's outbox holds goes out.

use std::sync::Arc;

use actix::Addr;
use bytes::Bytes;

use crate::next_pump_id;
use countersign_exchange::{
    inflow::Held,
    outbox::{Drained, Wake},
    shared::{Channel, SessionShared},
};
use countersign_http::framing::pump::{Backend, Taken};
use countersign_runtime::lanes::LARGE_MESSAGE_BYTES;
use countersign_session::{
    Session,
    actor::{Attach, Disconnected, Inbound, Pump, SignOfLife, deliver},
    sessions::RegisteredSession,
};

/// One connection of a session.
pub struct Agent {
    session: Addr<Session>,
    shared: Arc<SessionShared>,
    id: u64,
    /// Of the session's outbox: which of its connections this is.
    turn: u64,
    cut: Arc<dyn Fn() + Send + Sync>,
}

impl Agent {
    #[must_use]
    pub fn new(entry: &RegisteredSession, turn: u64, cut: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { session: entry.addr.clone(), shared: Arc::clone(&entry.shared), id: next_pump_id(), turn, cut }
    }
}

impl Backend for Agent {
    /// The one that the SDKs ask for; Node refuses a connection where it is not echoed.
    const PROTOCOLS: &'static [&'static str] = &["mcp"];
    const UNSUPPORTED: &'static str = "text frames only";

    fn opened(&mut self, wake: Wake) {
        self.session.do_send(Attach(Pump { id: self.id, turn: self.turn, wake, cut: Arc::clone(&self.cut) }));
    }

    fn drain(&mut self, budget: usize) -> Option<Drained> {
        let Channel::Outbox(outbox) = &self.shared.channel else { return None };
        outbox.drain(self.turn, budget)
    }

    fn taken(&mut self) {
        if let Channel::Outbox(outbox) = &self.shared.channel {
            outbox.taken(self.turn);
        }
    }

    fn message(&mut self, text: Bytes, held: Option<Held>) -> Taken {
        if text.len() <= LARGE_MESSAGE_BYTES {
            self.session.do_send(Inbound { frame: text, held });
            return Taken::Done;
        }
        let session = self.session.clone();
        Taken::Waits(Box::pin(async move {
            // A session that has ended ends this connection too.
            let _ = deliver(&session, text, held).await;
        }))
    }

    fn sign_of_life(&mut self) {
        self.session.do_send(SignOfLife);
    }

    fn closed(&mut self, farewell: bool) {
        self.session.do_send(Disconnected { pump: self.id, farewell });
    }
}
