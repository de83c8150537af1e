//! The open requests of an upstream on one link.
//!
//! Each request is answered at most once, and never after the upstream cancelled it. The number of open requests is
//! limited.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::{
    MalformedMessage,
    wire::{cancelled_id, encode_response},
};
use countersign_protocol::{ErrorKind, RequestId, envelope::Request, rpc_error::RpcError};
use countersign_provider::request::{Replier, UpstreamRequest};

/// The maximum number of open requests of one link.
const MAX_OPEN_REQUESTS: usize = 256;

/// Queues one message to the upstream. It must not block.
pub type ReplySender = Arc<dyn Fn(Bytes) + Send + Sync>;

/// The open requests of one link.
#[derive(Clone, Default)]
pub struct OpenRequests {
    /// The configured name of the server, for logs.
    server: Arc<str>,
    state: Arc<Mutex<OpenRequestsState>>,
}

#[derive(Default)]
struct OpenRequestsState {
    by_id: HashMap<RequestId, OpenRequest>,
    /// Distinguishes consecutive requests with the same id.
    last_number: u64,
    has_ended: bool,
}

struct OpenRequest {
    number: u64,
    /// The call during which the request arrived.
    call: Option<u64>,
    cancelled: CancellationToken,
}

impl OpenRequests {
    pub fn new(server: &str) -> Self {
        Self { server: server.into(), state: Arc::default() }
    }

    /// Registers a request that arrived during `call`. Returns `None` if no listener needs to answer: for a `ping`, a
    /// duplicate id, a request over the limit, or a request after the end of the link.
    pub fn register(&self, request: Request<'_>, call: Option<u64>, send: &ReplySender) -> Option<UpstreamRequest> {
        let Request { id, method, params, .. } = request;
        if method == "ping" {
            send(encode_response(&id, Ok("{}")));
            return None;
        }
        let cancelled = CancellationToken::new();
        let number = {
            let mut state = self.state.lock();
            if state.by_id.contains_key(&id) {
                // Ids are unique (2025-11-25/basic/index, "Requests"), so an answer to the second would end the first.
                tracing::warn!(
                    upstream = %self.server, %id, %method,
                    "the server sent two requests with the same id; the second one is dropped"
                );
                return None;
            }
            if state.by_id.len() >= MAX_OPEN_REQUESTS || state.has_ended {
                let message = if state.has_ended {
                    "the connection has ended".to_owned()
                } else {
                    format!("more than {MAX_OPEN_REQUESTS} requests of this server are open")
                };
                drop(state);
                send(encode_response(&id, Err(&RpcError::new(ErrorKind::Internal.number(), message))));
                return None;
            }
            state.last_number += 1;
            let number = state.last_number;
            state.by_id.insert(id.clone(), OpenRequest { number, call, cancelled: cancelled.clone() });
            number
        };
        let (state, send, reply_id) = (Arc::clone(&self.state), Arc::clone(send), id.clone());
        let reply = Replier::new(move |outcome| {
            let is_open = {
                let by_id = &mut state.lock().by_id;
                let is_open = by_id.get(&reply_id).is_some_and(|request| request.number == number);
                is_open && by_id.remove(&reply_id).is_some()
            };
            if is_open {
                send(encode_response(&reply_id, outcome.as_ref().map(|result| result.get())));
            }
        });
        let (method, params) = (method.into_owned(), params.map(ToOwned::to_owned));
        Some(UpstreamRequest { id, method, params, reply, cancelled })
    }

    /// Answers a malformed request with an error that says what is wrong with it, unless a request with the same id is
    /// open. Returns `false` for any other message.
    pub fn refuse_malformed(&self, malformed: &MalformedMessage<'_>, send: &ReplySender) -> bool {
        let Some((id, error)) = malformed.refused_request() else { return false };
        let is_open = self.state.lock().by_id.contains_key(&id);
        if !is_open {
            send(encode_response(&id, Err(&error)));
        }
        true
    }

    /// Handles `notifications/cancelled` of the upstream. Returns `true` if the request was open.
    pub fn cancel(&self, params: Option<&RawValue>) -> bool {
        let Some(id) = cancelled_id(params) else { return false };
        let request = self.state.lock().by_id.remove(&id);
        request.is_some_and(|request| {
            request.cancelled.cancel();
            true
        })
    }

    /// Cancels the requests that arrived during a call that has ended.
    pub fn end_call(&self, call: u64) {
        let state = self.state.lock();
        let call_requests = state.by_id.values().filter(|request| request.call == Some(call));
        call_requests.for_each(|request| request.cancelled.cancel());
    }

    /// Cancels all requests, because the link has ended.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        state.by_id.drain().for_each(|(_, request)| request.cancelled.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox() -> (ReplySender, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let out = Arc::clone(&sent);
        let send: ReplySender = Arc::new(move |message: Bytes| {
            out.lock().push(String::from_utf8(message.to_vec()).unwrap());
        });
        (send, sent)
    }

    fn request(id: &str, method: &'static str) -> Request<'static> {
        let outline = Default::default();
        Request { id: RequestId::from_json(id).unwrap(), method: method.into(), params: None, outline }
    }

    fn list_roots(id: &str) -> Request<'static> {
        request(id, "roots/list")
    }

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn ping_is_answered_at_once() {
        let (send, sent) = outbox();
        assert!(OpenRequests::default().register(request("\"p\"", "ping"), None, &send).is_none());
        assert_eq!(sent.lock()[..], [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
    }

    #[test]
    fn answer_is_sent_once_and_on_one_line() {
        let (send, sent) = outbox();
        let requests = OpenRequests::default();
        let request = requests.register(list_roots("1"), None, &send).unwrap();
        request.reply.answer(Ok(raw("{\n\"a\":\r\n1}")));
        assert_eq!(sent.lock()[..], ["{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{ \"a\":  1}}"]);
        // The id is free again.
        assert!(requests.register(list_roots("1"), None, &send).is_some());
    }

    #[test]
    fn dropped_request_is_declined() {
        let (send, sent) = outbox();
        drop(OpenRequests::default().register(list_roots("1"), None, &send));
        assert!(sent.lock()[0].contains("-32601"), "{:?}", sent.lock());
    }

    #[test]
    fn cancelled_request_is_not_answered() {
        let (send, sent) = outbox();
        let requests = OpenRequests::default();
        let request = requests.register(list_roots("\"a\""), None, &send).unwrap();
        assert!(!requests.cancel(Some(&raw(r#"{"requestId":"b"}"#))));
        assert!(!requests.cancel(Some(&raw("{}"))));
        assert!(!requests.cancel(None));
        assert!(requests.cancel(Some(&raw(r#"{"requestId":"a","reason":"enough"}"#))));
        assert!(request.cancelled.is_cancelled());
        // The late answer does not go to the next request with that id either.
        let next = requests.register(list_roots("\"a\""), Some(7), &send).unwrap();
        request.reply.answer(Ok(raw("{}")));
        assert!(sent.lock().is_empty() && !next.cancelled.is_cancelled());
        requests.end_call(7);
        assert!(next.cancelled.is_cancelled());
    }

    #[test]
    fn open_requests_are_bounded_and_ids_unique() {
        let (send, sent) = outbox();
        let requests = OpenRequests::default();
        let open = |n: usize| requests.register(list_roots(&n.to_string()), None, &send);
        let all: Vec<_> = (0..MAX_OPEN_REQUESTS).map(|n| open(n).unwrap()).collect();
        assert!(open(3).is_none());
        assert!(sent.lock().is_empty());
        assert!(open(MAX_OPEN_REQUESTS).is_none());
        assert!(sent.lock()[0].contains("-32603"));
        requests.end();
        assert!(all.iter().all(|request| request.cancelled.is_cancelled()));
        assert!(requests.register(list_roots("\"late\""), None, &send).is_none());
    }
}
