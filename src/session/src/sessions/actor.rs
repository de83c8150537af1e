//! The actor of one session. All transports use the same type.
//!
//! It owns the session's start, end, heartbeat and idle expiry. It never waits: requests run as tasks beside it, so
//! that no call delays another.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, Message, Response, SpawnHandle};
use tokio::sync::OwnedSemaphorePermit;

use super::Sessions;
use crate::inbound::frames;
use countersign_domain::principal::Credential;
use countersign_exchange::{
    outbox::Wake,
    state::{Channel, SessionState},
};
use countersign_runtime::{background, reclaim};
use countersign_telemetry::{GaugeGuard, metrics::Transport};

pub use crate::inbound::frames::InboundMessage;

/// The close codes of connections (RFC 6455).
pub mod close {
    pub const GOING_AWAY: u16 = 1001;
    pub const POLICY_VIOLATION: u16 = 1008;
    pub const TIMEOUT: u16 = 4000;
}

/// The connection that serves a session at the moment.
pub struct AttachedConnection {
    /// Unique among all pumps of the process. It identifies messages of an old pump.
    pub id: u64,
    /// The generation that [`countersign_exchange::outbox::Outbox::rewind`] returned; 0 for the first connection.
    pub generation: u64,
    pub wake: Wake,
    /// Breaks the connection without waiting for the peer.
    pub cut: Arc<dyn Fn() + Send + Sync>,
    /// Set by a pump whose peer is pinged, when the peer gives a sign of life.
    pub is_alive: Arc<AtomicBool>,
}

/// The actor of one session.
pub struct Session {
    state: Arc<SessionState>,
    sessions: Arc<Sessions>,
    /// The interval of pings; `None` if the transport itself detects a dead peer.
    heartbeat: Option<Duration>,
    connection: Option<AttachedConnection>,
    _gauge: GaugeGuard,
    /// The timer that ends a session without a connection.
    end_timer: Option<SpawnHandle>,
    /// The session's slot among those that wait for their clients.
    waiting_permit: Option<OwnedSemaphorePermit>,
}

/// The time that a WebSocket session waits for its client to come back.
const RESUME_WINDOW: Duration = Duration::from_secs(120);

/// The time that a session waits for a connection that is being opened.
const MAX_OPENING_TIME: Duration = Duration::from_secs(30);

/// The time in which a peer may read the last frames of a closing connection.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

impl Session {
    /// Starts the actor on this thread and enters it in the registry.
    pub fn open(sessions: &Arc<Sessions>, state: Arc<SessionState>, heartbeat: Option<Duration>) -> actix::Addr<Self> {
        let session = Self {
            state: state.clone(),
            sessions: sessions.clone(),
            heartbeat,
            connection: None,
            _gauge: GaugeGuard::session(state.transport),
            end_timer: None,
            waiting_permit: None,
        };
        let actor = session.start();
        sessions.insert(&state, actor.clone());
        sessions.announce("session.opened", &state);
        actor
    }

    fn end(&mut self, ctx: &mut Context<Self>, code: u16, reason: &'static str) {
        tracing::debug!(session = %self.state.short_id(), reason, "session ends");
        if let Channel::Outbox(outbox) = &self.state.channel {
            if outbox.has_overflowed() {
                // All its frames were dropped.
                reclaim::collect_after_large();
            }
            reclaim::collect_if_large(outbox.bytes());
            outbox.close(code, reason);
        }
        self.state.end();
        if let Some(connection) = self.connection.take() {
            // A peer that reads gets the close frame. The connection of a peer that does not read is cut at once.
            let has_overflowed = matches!(&self.state.channel, Channel::Outbox(outbox) if outbox.has_overflowed());
            let grace = if has_overflowed || code == close::TIMEOUT { Duration::ZERO } else { CLOSE_GRACE };
            background::spawn(async move {
                tokio::time::sleep(grace).await;
                (connection.cut)();
            });
        }
        ctx.stop();
    }

    /// Ends the session unless a connection that is being opened is attached. One that breaks meanwhile never reports its end.
    fn await_connection(&mut self, ctx: &mut Context<Self>) {
        self.end_timer = Some(ctx.run_later(MAX_OPENING_TIME, |session, ctx| {
            session.end(ctx, close::GOING_AWAY, "its connection never came");
        }));
    }

    fn check_heartbeat(&mut self, ctx: &mut Context<Self>) {
        let Some(connection) = &self.connection else { return };
        if !connection.is_alive.swap(false, Ordering::Relaxed) {
            tracing::info!(session = %self.state.short_id(), "the session ends because its peer does not answer pings");
            return self.end(ctx, close::TIMEOUT, "no sign of life");
        }
        if let Channel::Outbox(outbox) = &self.state.channel {
            outbox.ping();
        }
    }

    /// Ends the session when the key or the token that keeps it valid is revoked or expires. Its client may have presented a
    /// newer one meanwhile.
    fn watch_credential(&self, ctx: &Context<Self>) {
        let authenticator = Arc::clone(&self.sessions.authenticator);
        let state = Arc::clone(&self.state);
        let actor = ctx.address();
        background::spawn(async move {
            tokio::select! {
                error = authenticator.wait_until_newest_invalid(|| state.identity()) => {
                    tracing::info!(session = %state.short_id(), %error, "the session ends with its credential");
                    let reason = "the credential is no longer valid";
                    let _ = actor.send(EndSession { code: close::POLICY_VIOLATION, reason }).await;
                }
                () = state.ended.cancelled() => {}
            }
        });
    }

    fn check_idle(&mut self, ctx: &mut Context<Self>) {
        let limit = self.sessions.limits.idle_timeout;
        let is_read = matches!(&self.state.channel, Channel::Streams(streams) if streams.is_read());
        if self.state.in_flight() == 0 && !is_read && self.state.idle() >= limit {
            self.end(ctx, close::GOING_AWAY, "idle");
        }
    }
}

impl Actor for Session {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        if matches!(self.state.channel, Channel::Outbox(_)) {
            self.await_connection(ctx);
        }
        if self.state.holds_state() {
            match self.state.identity().credential {
                Credential::Key(_) | Credential::Token(_) => self.watch_credential(ctx),
                Credential::Loopback | Credential::SignIn(_) => {}
            }
            // Other threads can end a session only by its token: after an overflow, a DELETE or the shutdown.
            let (end_token, actor) = (self.state.ended.clone(), ctx.address());
            background::spawn(async move {
                end_token.cancelled().await;
                let _ = actor.send(EndSession { code: close::GOING_AWAY, reason: "session ended" }).await;
            });
        }
        if let Some(interval) = self.heartbeat {
            ctx.run_interval(interval, Self::check_heartbeat);
        }
        if matches!(self.state.channel, Channel::Streams(_)) {
            let interval = self.sessions.limits.idle_timeout / 4;
            ctx.run_interval(interval.clamp(Duration::from_secs(1), Duration::from_secs(60)), Self::check_idle);
        }
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.state.end();
        self.sessions.remove(&self.state.id);
        self.sessions.server.release_session(&self.state);
        self.sessions.announce("session.closed", &self.state);
    }
}

impl Handler<InboundMessage> for Session {
    type Result = Response<()>;

    fn handle(&mut self, message: InboundMessage, _: &mut Self::Context) -> Self::Result {
        self.state.touch();
        match frames::process_frame(&self.sessions.server, &self.state, message) {
            Some(work) => Response::fut(work),
            None => Response::reply(()),
        }
    }
}

/// Passes one message to its session and returns once the session has accepted it, so a peer that writes too fast has
/// to wait.
///
/// # Errors
/// Fails if the session has ended.
pub async fn deliver(actor: &actix::Addr<Session>, message: InboundMessage) -> Result<(), actix::MailboxError> {
    reclaim::collect_if_large(message.frame.len());
    actor.send(message).await
}

/// Sent by a pump that ends. A handshake-era WebSocket session then waits for its client to come back; other sessions
/// end.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Disconnected {
    /// [`AttachedConnection::id`].
    pub pump_id: u64,
    /// `true` if the peer has closed the connection cleanly, and so does not come back.
    pub closed_by_peer: bool,
}

impl Handler<Disconnected> for Session {
    type Result = ();

    fn handle(&mut self, Disconnected { pump_id, closed_by_peer }: Disconnected, ctx: &mut Self::Context) {
        let Some(lost) = self.connection.take_if(|current| current.id == pump_id) else { return };
        // The pump of a stdio session still writes its last answers.
        if self.state.transport == Transport::WebSocket
            && let Channel::Outbox(outbox) = &self.state.channel
        {
            reclaim::collect_if_large(outbox.bytes());
            if !outbox.detach(lost.generation) {
                // The client has come back, and its connection is about to be attached.
                return self.await_connection(ctx);
            }
        }
        let can_resume = !closed_by_peer
            && self.state.transport == Transport::WebSocket
            && self.state.legacy_revision().is_some()
            && !self.state.ended.is_cancelled();
        if can_resume {
            self.waiting_permit = Arc::clone(&self.sessions.waiting_permits).try_acquire_owned().ok();
        }
        if self.waiting_permit.is_none() {
            return self.end(ctx, close::GOING_AWAY, "disconnected");
        }
        let window = RESUME_WINDOW.min(self.sessions.limits.idle_timeout);
        self.end_timer =
            Some(ctx.run_later(window, |session, ctx| session.end(ctx, close::GOING_AWAY, "client did not come back")));
    }
}

/// Sent by the connection that serves this session from now on: the first one, or one of a client that comes back
/// (after [`countersign_exchange::outbox::Outbox::rewind`]). The previous connection is cut.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Attach(pub AttachedConnection);

impl Handler<Attach> for Session {
    type Result = ();

    fn handle(&mut self, Attach(connection): Attach, ctx: &mut Self::Context) {
        if let Channel::Outbox(outbox) = &self.state.channel
            && !outbox.attach(connection.generation, connection.wake.clone())
        {
            // Two connections resumed the session at the same time, and the later one serves it.
            return (connection.cut)();
        }
        self.waiting_permit = None;
        if let Some(handle) = self.end_timer.take() {
            ctx.cancel_future(handle);
        }
        connection.is_alive.store(true, Ordering::Relaxed);
        self.state.touch();
        if let Some(old) = self.connection.replace(connection) {
            (old.cut)();
        }
    }
}

/// Ends the session. Sent by any part that may do so.
#[derive(Message)]
#[rtype(result = "()")]
pub struct EndSession {
    pub code: u16,
    pub reason: &'static str,
}

impl Handler<EndSession> for Session {
    type Result = ();

    fn handle(&mut self, EndSession { code, reason }: EndSession, ctx: &mut Self::Context) {
        self.end(ctx, code, reason);
    }
}
