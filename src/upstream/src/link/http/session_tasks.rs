//! Background work of a handshake-era session: answers to the server's requests, cancellations, and the end of the
//! session. It runs on the thread that opened the session.

use std::{sync::Arc, time::Duration};

use actix_http::Method;
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    METHOD_HEADER, Mode, SharedLinkState,
    answer::{self, ACCEPT_TIMEOUT},
    client::{self, ExtraHeaders},
    header_value, listen,
};
use crate::link::{LinkError, server_requests::ReplySender};

/// Maximum number of messages that are sent at the same time, because each may hold a connection.
pub(super) const MAX_CONCURRENT_POSTS: usize = 64;
/// Maximum number of waiting tasks.
pub(super) const MAX_WAITING: usize = 1024;
/// Time limit for the messages in flight after the session has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) enum SessionTask {
    /// Sends a response or a notification.
    Post(Bytes),
    /// Listens on the GET stream, if the server has one. The sender takes the answers to requests of the server.
    Listen(ReplySender),
    /// Ends the session.
    End,
}

/// Starts to run the tasks of one session. The queue is bounded, because each `ping` of a server adds a task.
pub(super) fn start(shared: Arc<SharedLinkState>) -> Sender<SessionTask> {
    let (sender, receiver) = channel(MAX_WAITING);
    actix_web::rt::spawn(run(shared, receiver));
    sender
}

async fn run(shared: Arc<SharedLinkState>, mut tasks: Receiver<SessionTask>) {
    let mut posts = FuturesUnordered::new();
    loop {
        let task = tokio::select! {
            Some(()) = posts.next(), if !posts.is_empty() => continue,
            task = tasks.recv(), if posts.len() < MAX_CONCURRENT_POSTS => task,
        };
        let shared = Arc::clone(&shared);
        match task {
            Some(SessionTask::Post(message)) => posts.push(async move {
                if let Err(error) = post(&shared, &shared.mode(), message, "").await {
                    tracing::debug!(%error, "the server did not accept a message");
                }
            }),
            Some(SessionTask::Listen(replies)) => {
                actix_web::rt::spawn(listen::run(shared, replies));
            }
            Some(SessionTask::End) => {
                let mode = shared.mode();
                if mode.session_id.is_some() {
                    actix_web::rt::spawn(async move { end(&shared, &mode).await });
                }
            }
            None => break,
        }
    }
    let rest = async { while let Some(()) = posts.next().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}

/// Sends a message that has no answer. A server accepts it with 202 or any other success.
pub(super) async fn post(shared: &SharedLinkState, mode: &Mode, message: Bytes, method: &str) -> Result<(), LinkError> {
    let mut extra = ExtraHeaders::new();
    if mode.modern {
        extra.push((METHOD_HEADER.clone(), header_value(method)?));
    }
    match answer::post(&mode.post, extra, &message, None).await {
        Err(LinkError::Status { status: 404, .. }) if mode.session_id.is_some() => Err(shared.end()),
        result => result,
    }
}

/// Sends DELETE (2025-11-25/basic/transports, "Session Management"). If the server refuses it, the session ends by
/// itself.
async fn end(shared: &SharedLinkState, mode: &Mode) {
    let sending = client::request(Method::DELETE, shared.uri.clone(), mode.headers.clone(), &shared.trust);
    match tokio::time::timeout(ACCEPT_TIMEOUT, sending).await {
        Ok(Ok(response)) => tracing::debug!(status = response.status().as_u16(), "a session was ended"),
        Ok(Err(error)) => tracing::debug!(%error, "a session could not be ended"),
        Err(_) => tracing::debug!("a session could not be ended in time"),
    }
}
