//! Background work of a handshake-era session: answers to the server's requests, cancellations, and the end of the
//! session. It runs on the thread that opened the session.

use std::{sync::Arc, time::Duration};

use actix_http::Method;
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    HttpLinkState, LinkMode,
    answer::{self, ACCEPT_TIMEOUT},
    client,
};
use crate::link::LinkError;
use countersign_runtime::background;

/// The maximum number of messages that are sent at the same time, because each may hold a connection.
pub(super) const MAX_CONCURRENT_POSTS: usize = 64;
/// The maximum number of waiting tasks.
pub(super) const MAX_WAITING: usize = 1024;
/// The time limit for the messages in flight after the session has ended.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Background work of a session.
pub(super) enum SessionTask {
    /// Sends a response or a notification.
    Post(Bytes),
    /// Ends the session.
    End,
}

/// Starts to run the tasks of one session. The queue is bounded, because each `ping` of a server adds a task.
pub(super) fn start(state: Arc<HttpLinkState>) -> Sender<SessionTask> {
    let (sender, receiver) = channel(MAX_WAITING);
    background::spawn(run(state, receiver));
    sender
}

/// Runs the tasks of one session, until its link is dropped.
async fn run(state: Arc<HttpLinkState>, mut tasks: Receiver<SessionTask>) {
    let mut posts = FuturesUnordered::new();
    loop {
        let task = tokio::select! {
            Some(()) = posts.next(), if !posts.is_empty() => continue,
            task = tasks.recv(), if posts.len() < MAX_CONCURRENT_POSTS => task,
        };
        let state = Arc::clone(&state);
        match task {
            Some(SessionTask::Post(message)) => posts.push(async move {
                if let Err(error) = post(&state, &state.mode(), message).await {
                    tracing::debug!(upstream = %state.target.server, %error, "the server did not accept a message");
                }
            }),
            Some(SessionTask::End) => {
                let mode = state.mode();
                if mode.session_id.is_some() {
                    background::spawn(async move { end(&state, &mode).await });
                }
            }
            None => break,
        }
    }
    let rest = async { while let Some(()) = posts.next().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, rest).await;
}

/// Sends a message that has no answer. A server accepts it with 202 or any other success.
pub(super) async fn post(state: &HttpLinkState, mode: &LinkMode, message: Bytes) -> Result<(), LinkError> {
    match answer::post(&mode.post, &message, None).await {
        Err(LinkError::Status { status: 404, .. }) if mode.session_id.is_some() => Err(state.end_session()),
        result => result,
    }
}

/// Sends DELETE (2025-11-25/basic/transports, "Session Management"). If the server refuses it, the session ends by
/// itself.
async fn end(state: &HttpLinkState, mode: &LinkMode) {
    let sending = client::request(Method::DELETE, state.uri.clone(), mode.headers.clone(), &state.target.access);
    let upstream = &*state.target.server;
    match tokio::time::timeout(ACCEPT_TIMEOUT, sending).await {
        Ok(Ok(response)) => tracing::debug!(upstream, status = response.status().as_u16(), "a session was ended"),
        Ok(Err(error)) => tracing::debug!(upstream, %error, "a session could not be ended"),
        Err(_) => tracing::debug!(upstream, "a session could not be ended in time"),
    }
}
