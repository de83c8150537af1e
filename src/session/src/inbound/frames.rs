//! Processes the frames of connections with an outbox.

use std::{
    future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;

use crate::{gateway::server::McpServer, inbound::MessageSource};
use countersign_domain::principal::Identity;
use countersign_exchange::{body_budget::Reservation, reply::RelatedChannel, state::SessionState};
use countersign_protocol::{
    Revision,
    envelope::{self, Incoming, Message},
};
use countersign_runtime::is_large;

/// Sent by a pump to its session for one received message. The answer to a large one comes once the message was parsed on
/// another thread; until then, the pump reads nothing more.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct InboundMessage {
    /// The identity of the request or the connection that brought the message.
    pub identity: Identity,
    pub frame: Bytes,
    /// The reserved bytes of the body, held until the message is answered.
    pub reservation: Option<Reservation>,
}

/// Processes one frame of a connection with an outbox. It never waits: work that cannot finish at once continues in the
/// background.
///
/// For a large frame ([`countersign_runtime::large_messages`]), it returns a future that processes the frame and resolves
/// once the message was parsed and run to its first wait. A caller that waits for it before reading the next frame
/// preserves the order of messages and holds at most one unparsed message.
#[must_use]
pub fn process_frame(
    server: &Arc<McpServer>,
    session: &Arc<SessionState>,
    message: InboundMessage,
) -> Option<impl Future<Output = ()> + use<>> {
    if !is_large(message.frame.len()) {
        poll_then_spawn(answer_frame(server, session, message));
        return None;
    }
    let (server, session) = (Arc::clone(server), Arc::clone(session));
    Some(async move {
        let large_messages = Arc::clone(&server.large_messages);
        let principal = Arc::clone(session.principal());
        let work = move || async move { poll_then_spawn(answer_frame(&server, &session, message)) };
        if let Err(error) = large_messages.run(&principal.name, work).await {
            tracing::debug!(%error, "a large message was not processed");
        }
    })
}

/// Answers one frame over its connection.
fn answer_frame(
    server: &Arc<McpServer>,
    session: &Arc<SessionState>,
    message: InboundMessage,
) -> Pin<Box<impl Future<Output = ()> + use<>>> {
    let InboundMessage { identity, frame, reservation } = message;
    let source = MessageSource {
        server: server.clone(),
        session: session.clone(),
        identity,
        transport: session.transport,
        related: RelatedChannel::Outbox(session.clone()),
        assumed_revision: Revision::NEWEST_LEGACY,
        headers: None,
        table: server.routing.routes.load_full(),
    };
    // Boxed where it is created, because moving a future of this size costs hundreds of instructions.
    Box::pin(async move {
        let _reservation = reservation;
        let related = source.related.clone();
        let answer = match envelope::parse(&frame, &source.server.limits.envelope) {
            Ok(Incoming::Single(Message::Request(request))) => source.answer_request(&request).await,
            Ok(Incoming::Single(Message::Notification(notification))) => {
                source.handle_notification(&notification);
                None
            }
            Ok(Incoming::Single(Message::Response(response))) => {
                source.session.questions.deliver_answer(&response);
                None
            }
            Ok(Incoming::Batch(members)) => source.answer_batch(members).await,
            Err(fault) => source.fault_response(&fault),
        };
        if let Some(answer) = answer {
            related.send(answer.bytes);
        }
    })
}

/// Runs a future to its first wait at once, and the rest, if any, in the background. This keeps the order of messages
/// that are answered at once, such as `initialize` before the next message. It also saves spawning them as tasks, which
/// would cost 1,400 instructions (`scripts/bench instructions --beside PROGRAM` shows it).
fn poll_then_spawn(mut work: Pin<Box<impl Future<Output = ()> + 'static>>) {
    let first_wait = Arc::new(FirstWait::default());
    if work.as_mut().poll(&mut Context::from_waker(&Arc::clone(&first_wait).into())).is_ready() {
        return;
    }
    actix::spawn(async move {
        // A poll before the end of the wait would be in vain, and it would pass through all layers of a call.
        future::poll_fn(|cx| {
            first_wait.task.register(cx.waker());
            if first_wait.has_ended.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        work.await;
    });
}

/// The first wait of a future that was polled outside of its task.
#[derive(Default)]
struct FirstWait {
    has_ended: AtomicBool,
    task: AtomicWaker,
}

impl Wake for FirstWait {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_ended.store(true, Ordering::Release);
        self.task.wake();
    }
}
