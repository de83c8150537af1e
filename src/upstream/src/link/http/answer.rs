//! What comes back for one request: a JSON body or a stream of its own, whatever the status.

use std::{sync::Arc, time::Duration};

use actix_http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, StreamExt};

use super::{
    client::{self, HttpAnswer},
    head::Field,
    link::{HttpLink, Mode},
    listen,
};
use crate::link::{
    LinkError, Listener, Response,
    received::{self, MAX_MESSAGE, Received, shown},
    wire::{cancelled_id, is_about_server},
};
use countersign_protocol::event_stream::{Event, EventReader, EventTooLong};

/// How often an interrupted stream is taken up again without anything new on it.
const RESUMES: u32 = 5;

/// What a server may still say after its answer, so that its connection can be used again.
const REST: usize = 64 << 10;
const REST_TIME: Duration = Duration::from_secs(2);

impl HttpLink {
    pub(super) async fn answer(
        &self,
        mut response: HttpAnswer,
        mode: &Mode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Response, LinkError> {
        let status = response.status();
        let gone = status == StatusCode::NOT_FOUND && mode.session.is_some();
        if response.field(Field::ContentEncoding).is_some_and(|encoding| encoding != b"identity") {
            return Err(LinkError::Protocol("its answer is compressed, which was not asked for".to_owned()));
        }
        if is_stream(&response) {
            // Boxed, so that answers which are no streams need not carry its room.
            let answer = Box::pin(self.stream(response, mode, id, listener)).await;
            return match answer {
                _ if gone => Err(self.shared.gone()),
                Ok(answer) => Ok(with_status(answer, status)),
                Err(LinkError::Lost(_)) if !status.is_success() => {
                    Err(LinkError::Status { status: status.as_u16(), body: String::new() })
                }
                Err(error) => Err(error),
            };
        }
        let body = body(&mut response, MAX_MESSAGE).await;
        if gone {
            // In this era a 404 says that the session has ended, and nothing else; yet some use it as the other does.
            let unknown = body.is_ok_and(|body| is_method_not_found(&body, id));
            if !unknown {
                return Err(self.shared.gone());
            }
            return Ok(with_status(
                Response::Error(countersign_protocol::rpc_error::RpcError::new(-32601, "Method not found")),
                status,
            ));
        }
        let body = body?;
        match self.json(&body, mode, id, listener) {
            Ok(answer) => Ok(with_status(answer, status)),
            Err(_) if !status.is_success() || body.is_empty() => {
                Err(LinkError::Status { status: status.as_u16(), body: shown(&body) })
            }
            Err(error) => Err(error),
        }
    }

    /// The response in a body, or in one event.
    fn json(&self, body: &[u8], mode: &Mode, id: u64, listener: &Arc<dyn Listener>) -> Result<Response, LinkError> {
        match self.messages(body, mode, id, listener) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(LinkError::Protocol("its answer is not for the request that was sent".to_owned())),
            Err(unreadable) if unreadable.cut_off => Err(LinkError::Lost("its answer broke off".to_owned())),
            Err(unreadable) => Err(LinkError::Protocol(unreadable.why)),
        }
    }

    /// Hands on what is not the response to `id`, in order.
    fn messages(
        &self,
        text: &[u8],
        mode: &Mode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Option<Response>, received::Unreadable> {
        let mut answer = None;
        received::read(text, |received| match received {
            Received::Answer { id: of, response } => {
                // Errors come with any id, also an invented one: the request is known by its stream.
                let ours = match &of {
                    None => true,
                    Some(of) => matches!(response, Response::Error(_)) || of.as_json().parse() == Ok(id),
                };
                if ours && answer.is_none() {
                    answer = Some(response);
                } else {
                    tracing::debug!(?of, id, "an answer to another request");
                }
            }
            Received::Notification(notification) => {
                if notification.method == "notifications/cancelled" {
                    let params = notification.params.as_deref();
                    let ends = mode.modern && cancelled_id(params).is_some_and(|of| of.as_json().parse() == Ok(id));
                    if ends && answer.is_none() {
                        // So a stateless server may end a subscription.
                        answer = Some(Response::Error(countersign_protocol::rpc_error::RpcError::new(
                            -32603,
                            "the server has ended the subscription",
                        )));
                    } else {
                        self.shared.asked.cancel(params);
                    }
                } else if !mode.modern && is_about_server(&notification.method) {
                    self.shared.unsolicited.notification(notification);
                } else {
                    listener.notification(notification);
                }
            }
            Received::Request { method, .. } if mode.modern => {
                // 2026-07-28/basic/transports/streamable-http, "Receiving Messages": there are none, nor answers to them.
                tracing::debug!(method, "a stateless server must not send requests");
            }
            Received::Request { id, method, params } => {
                if let Some(request) = self.shared.asked.take(id, method, params, None, &self.queue()) {
                    listener.request(request);
                }
            }
        })?;
        Ok(answer)
    }

    async fn stream(
        &self,
        mut response: HttpAnswer,
        mode: &Mode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Response, LinkError> {
        let mut events = EventReader::new(MAX_MESSAGE);
        let mut idle = 0;
        loop {
            let ended = loop {
                let chunk = match response.next().await {
                    Some(Ok(chunk)) => chunk,
                    Some(Err(error)) => break client::cut(&error),
                    None => break LinkError::Lost("its stream ended before the answer".to_owned()),
                };
                events.push(&chunk);
                while let Some(event) = events.next_event().map_err(too_long)? {
                    idle = 0;
                    if let Some(answer) = self.event(&event, mode, id, listener)? {
                        let more = events.has_input();
                        finish(response, more);
                        return Ok(answer);
                    }
                }
            };
            if mode.modern {
                return Err(ended);
            }
            response = loop {
                idle += 1;
                if idle > RESUMES {
                    return Err(ended);
                }
                match listen::resume(&self.shared, &mut events, idle).await {
                    Ok(Some(response)) => break response,
                    // There is nothing to take it up with, or the server has no such thing.
                    Ok(None) => return Err(ended),
                    Err(error) => tracing::debug!(%error, "an interrupted stream could not be taken up again"),
                }
            };
        }
    }

    fn event(
        &self,
        event: &Event,
        mode: &Mode,
        id: u64,
        listener: &Arc<dyn Listener>,
    ) -> Result<Option<Response>, LinkError> {
        if !event.is_message() {
            return Ok(None);
        }
        self.messages(&event.data, mode, id, listener)
            .map_err(|unreadable| LinkError::Protocol(format!("an event of its answer: {}", unreadable.why)))
    }
}

pub(crate) fn too_long(_: EventTooLong) -> LinkError {
    LinkError::Protocol(format!("a message is longer than {MAX_MESSAGE} bytes"))
}

pub(crate) fn is_stream(response: &HttpAnswer) -> bool {
    const STREAM: &[u8] = b"text/event-stream";
    let kind = response.field(Field::ContentType).map(<[u8]>::trim_ascii);
    kind.is_some_and(|kind| {
        kind.get(..STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(STREAM))
            && matches!(kind.get(STREAM.len()), None | Some(b';' | b' ' | b'\t'))
    })
}

fn with_status(answer: Response, status: StatusCode) -> Response {
    match answer {
        Response::Error(mut error) => {
            error.status = Some(status.as_u16());
            Response::Error(error)
        }
        answer @ Response::Result(_) => answer,
    }
}

fn is_method_not_found(body: &[u8], id: u64) -> bool {
    let mut found = false;
    let read = received::read(body, |received| {
        if let Received::Answer { id: Some(of), response: Response::Error(error) } = received {
            found |= error.code == -32601 && of.as_json().parse() == Ok(id);
        }
    });
    read.is_ok() && found
}

/// The whole body.
pub(crate) async fn body(response: &mut HttpAnswer, max: usize) -> Result<Bytes, LinkError> {
    let too_long = || LinkError::Protocol(format!("its answer is longer than {max} bytes"));
    let length = response.length().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if length.is_some_and(|length| length > max) {
        return Err(too_long());
    }
    let mut first = Bytes::new();
    let mut rest: Option<BytesMut> = None;
    while let Some(chunk) = response.next().await {
        let chunk = chunk.map_err(|error| client::cut(&error))?;
        match &mut rest {
            // Nearly always there is one chunk, which need not be copied.
            None if first.is_empty() => first = chunk,
            None => {
                let mut all = BytesMut::with_capacity(length.unwrap_or(first.len() + chunk.len()));
                all.extend_from_slice(&first);
                all.extend_from_slice(&chunk);
                rest = Some(all);
            }
            Some(all) => all.extend_from_slice(&chunk),
        }
        if rest.as_ref().map_or(first.len(), BytesMut::len) > max {
            return Err(too_long());
        }
    }
    let body = rest.map_or(first, BytesMut::freeze);
    if length.is_some_and(|length| body.len() < length) {
        return Err(LinkError::Lost("its answer broke off".to_owned()));
    }
    Ok(body)
}

/// Reads a stream to its end after the answer, so that its connection can be used again.
fn finish(mut response: HttpAnswer, more: bool) {
    if !more && let Some(end) = response.next().now_or_never() {
        match end {
            None | Some(Err(_)) => return,
            Some(Ok(_)) => {}
        }
    }
    actix_web::rt::spawn(async move {
        let rest = async {
            let mut left = REST;
            while let Some(Ok(chunk)) = response.next().await {
                match left.checked_sub(chunk.len()) {
                    Some(less) => left = less,
                    None => break,
                }
            }
        };
        let _ = tokio::time::timeout(REST_TIME, rest).await;
    });
}
