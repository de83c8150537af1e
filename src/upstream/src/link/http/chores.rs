//! What a session of the handshake era must send without anybody waiting for it: answers to the server's requests,
//! cancellations, its end. All of it runs on the thread that opened the session, one task for each.

use std::{sync::Arc, time::Duration};

use actix_http::{Method, StatusCode};
use bytes::Bytes;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{
    answer,
    client::{self, Extra},
    link::{self, METHOD, Mode, Shared},
    listen,
};
use crate::link::{LinkError, received::shown, server_requests::Queue};

/// How long a server may take to accept what needs no answer.
const ACCEPT: Duration = Duration::from_secs(30);

/// Messages that are being sent at a time: each may hold a connection.
pub(super) const AT_ONCE: usize = 64;

/// Messages that wait for that.
pub(super) const WAITING: usize = 1024;

/// How long is waited for what is being sent when the session is over.
const LAST: Duration = Duration::from_secs(2);

/// Bytes of an error to such a message; they are for the log.
const MAX_ERROR: usize = 64 << 10;

pub(super) enum Chore {
    /// A response or a notification.
    Post(Bytes),
    /// Listens on the GET stream, if the server has one. Answers to what comes there go to the queue.
    Listen(Queue),
    /// Ends the session.
    End,
}

/// Starts the task that does the chores of one session. Every `ping` of the server is one, so what waits is bounded.
pub(super) fn start(shared: Arc<Shared>) -> Sender<Chore> {
    let (sender, receiver) = channel(WAITING);
    actix_web::rt::spawn(run(shared, receiver));
    sender
}

async fn run(shared: Arc<Shared>, mut chores: Receiver<Chore>) {
    let mut sending = FuturesUnordered::new();
    loop {
        let chore = tokio::select! {
            Some(()) = sending.next(), if !sending.is_empty() => continue,
            chore = chores.recv(), if sending.len() < AT_ONCE => chore,
        };
        let shared = Arc::clone(&shared);
        match chore {
            Some(Chore::Post(message)) => sending.push(async move {
                let mode = shared.mode();
                if let Err(error) = post(&shared, &mode, message, "").await {
                    tracing::debug!(%error, "a message was not accepted");
                }
            }),
            Some(Chore::Listen(queue)) => {
                actix_web::rt::spawn(listen::run(shared, queue));
            }
            Some(Chore::End) => {
                let mode = shared.mode();
                if mode.session.is_some() {
                    actix_web::rt::spawn(async move { end(&shared, &mode).await });
                }
            }
            None => break,
        }
    }
    // The session is over: what a server has not accepted by then, it hardly will.
    let rest = async { while let Some(()) = sending.next().await {} };
    let _ = tokio::time::timeout(LAST, rest).await;
}

/// Sends what has no answer: 202, or any other success.
pub(super) async fn post(shared: &Shared, mode: &Mode, message: Bytes, method: &str) -> Result<(), LinkError> {
    let sending = async {
        let mut extra = Extra::new();
        if mode.modern {
            extra.push((METHOD.clone(), link::value(method)?));
        }
        let mut response = client::send(&mode.post, extra, &message, None).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && mode.session.is_some() {
            return Err(shared.gone());
        }
        if !status.is_success() {
            let body = answer::body(&mut response, MAX_ERROR).await.unwrap_or_default();
            return Err(LinkError::Status { status: status.as_u16(), body: shown(&body) });
        }
        if !answer::is_stream(&response) {
            // Read, so that the connection can be used again; some answer with a body.
            let _ = answer::body(&mut response, MAX_ERROR).await;
        }
        Ok(())
    };
    let late = |_| LinkError::Lost(format!("a notification was not accepted within {} s", ACCEPT.as_secs()));
    tokio::time::timeout(ACCEPT, sending).await.map_err(late)?
}

/// 2025-11-25/basic/transports, "Session Management". Servers may refuse it; then the session ends by itself.
async fn end(shared: &Shared, mode: &Mode) {
    let sending = client::request(Method::DELETE, shared.uri.clone(), mode.plain.clone(), &shared.trust);
    match tokio::time::timeout(ACCEPT, sending).await {
        Ok(Ok(response)) => tracing::debug!(status = response.status().as_u16(), "a session was ended"),
        Ok(Err(error)) => tracing::debug!(%error, "a session could not be ended"),
        Err(_) => tracing::debug!("a session could not be ended in time"),
    }
}
