//! Connections with one stream for everything whose server answers nothing any more: a child that hangs never ends by
//! itself, and everybody who shares it would wait for its time-outs. After several of them in a row, with no answer to
//! anything in between, it is asked for a sign of life; without one the connection is given up, its calls fail, and
//! another is opened.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{Upstream, held::Held, own_requests::AskError};
use crate::link::{LinkError, LinkKind};
use countersign_protocol::Era;

/// Time-outs in a row that make it suspect.
const TIMEOUTS: u32 = 3;
/// How long a sign of life may take: a server that does one thing at a time may have one under way.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of one connection.
#[derive(Debug, Default)]
pub struct Silence {
    timeouts: AtomicU32,
    asked: AtomicBool,
}

impl Silence {
    /// It has answered something.
    pub fn broken(&self) {
        // Mostly it is nothing else than it was: many threads read it, and none need write.
        if self.timeouts.load(Ordering::Relaxed) != 0 {
            self.timeouts.store(0, Ordering::Relaxed);
        }
    }

    /// It has let a call run out; whether it is to be asked for a sign of life now.
    fn lasts(&self) -> bool {
        self.timeouts.fetch_add(1, Ordering::Relaxed) + 1 >= TIMEOUTS && !self.asked.swap(true, Ordering::AcqRel)
    }
}

impl Upstream {
    /// A call on that connection has run out of time.
    pub(crate) fn ran_out(&self, held: &Arc<Held>) {
        // Elsewhere each request has a stream of its own.
        if held.link.kind() != LinkKind::Shared || !held.silence.lasts() {
            return;
        }
        let (me, held) = (self.me.clone(), Arc::clone(held));
        actix::spawn(async move {
            if let Some(upstream) = me.upgrade() {
                upstream.prod(&held).await;
            }
        });
    }

    async fn prod(&self, held: &Held) {
        // The stateless era has no ping (2026-07-28/changelog).
        let method = if held.era == Era::Modern { "server/discover" } else { "ping" };
        match self.ask_within(held, method, "{}", PATIENCE).await {
            Err(AskError::Timeout) => {
                tracing::warn!(
                    upstream = %self.config.name,
                    "it no longer answers, not even {method}; the gateway closes the connection"
                );
                held.give_up(LinkError::Lost("it no longer answered, and is started again".to_owned()));
            }
            // It has ended by itself.
            Err(AskError::Link(_)) => {}
            // An error is an answer too.
            Ok(_) | Err(AskError::Rpc(_) | AskError::Garbage(_)) => {
                held.silence.broken();
                held.silence.asked.store(false, Ordering::Release);
            }
        }
    }
}
