//! Attaches connections to the actors of their sessions.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use actix::{Addr, MailboxError};
use tokio::sync::Notify;

use countersign_http::connections::ConnectionCutter;
use countersign_session::{
    Session,
    actor::{Attach, AttachedConnection},
};

/// Returns a number that no other pump of this process has.
pub fn next_pump_id() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

/// Attaches the only connection that a session ever has. Returns the id of its pump, and the `Notify` that wakes the pump
/// when the outbox has frames for it.
///
/// # Errors
/// Fails if the session has ended.
pub async fn attach_only_connection(
    actor: &Addr<Session>,
    cut: ConnectionCutter,
) -> Result<(u64, Arc<Notify>), MailboxError> {
    let (id, wake_up) = (next_pump_id(), Arc::new(Notify::new()));
    let wake = {
        let wake_up = Arc::clone(&wake_up);
        Arc::new(move || wake_up.notify_one())
    };
    actor.send(Attach(AttachedConnection { id, generation: 0, wake, cut, is_alive: Arc::default() })).await?;
    Ok((id, wake_up))
}
