//! The requests of an upstream on one link that are not answered yet.
//!
//! Answers go out at most once, never after the upstream took the question back, and never for more questions than
//! a link may have open.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::wire::{Line, cancelled_id, response};
use countersign_protocol::{RequestId, rpc_error::RpcError};
use countersign_provider::request::{Replier, UpstreamRequest};

/// Questions of one upstream that are open on one link.
const MAX_OPEN: usize = 256;

/// Queues one message to the upstream; it must not block.
pub type Queue = Arc<dyn Fn(Line) + Send + Sync>;

/// The open requests of one link.
#[derive(Clone, Default)]
pub struct Asked(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: HashMap<RequestId, Open>,
    /// Distinguishes two requests with one id, one after the other.
    last_number: u64,
    has_ended: bool,
}

struct Open {
    number: u64,
    /// The call in whose course it was asked.
    call: Option<u64>,
    cancelled: CancellationToken,
}

impl Asked {
    /// Takes a request in, which was asked in the course of `call`. Returns `None` if it needs no answer from elsewhere: a
    /// `ping`, one with the id of another open request, one too many, or one after the end of the link.
    pub fn take(
        &self,
        id: RequestId,
        method: String,
        params: Option<Box<RawValue>>,
        call: Option<u64>,
        send: &Queue,
    ) -> Option<UpstreamRequest> {
        if method == "ping" {
            send(response(&id, Ok("{}")));
            return None;
        }
        let cancelled = CancellationToken::new();
        let number = {
            let mut state = self.0.lock();
            if state.open.contains_key(&id) {
                // The first one's answer will end it: ids are unique (25/basic/index, "Requests").
                tracing::warn!(%id, %method, "the server asks twice with the same id; the second is dropped");
                return None;
            }
            if state.open.len() >= MAX_OPEN || state.has_ended {
                drop(state);
                let error = RpcError::new(-32603, format!("more than {MAX_OPEN} requests of this server are open"));
                send(response(&id, Err(&error)));
                return None;
            }
            state.last_number += 1;
            let number = state.last_number;
            state.open.insert(id.clone(), Open { number, call, cancelled: cancelled.clone() });
            number
        };
        let (state, send, own) = (Arc::clone(&self.0), Arc::clone(send), id.clone());
        let reply = Replier::new(move |outcome| {
            let is_open = {
                let open = &mut state.lock().open;
                let is_open = open.get(&own).is_some_and(|open| open.number == number);
                is_open && open.remove(&own).is_some()
            };
            if is_open {
                send(response(&own, outcome.as_ref().map(|result| result.get())));
            }
        });
        Some(UpstreamRequest { id, method, params, reply, cancelled })
    }

    /// The upstream took a request back (`notifications/cancelled`). Whether it was open.
    pub fn cancel(&self, params: Option<&RawValue>) -> bool {
        let Some(id) = cancelled_id(params) else { return false };
        let found = self.0.lock().open.remove(&id);
        if let Some(open) = &found {
            open.cancelled.cancel();
        }
        found.is_some()
    }

    /// The call is over: what was asked in its course needs no answer any more.
    pub fn release(&self, call: u64) {
        self.0.lock().open.values().filter(|open| open.call == Some(call)).for_each(|open| open.cancelled.cancel());
    }

    /// The link has ended: nobody waits for these any more.
    pub fn end(&self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        state.open.drain().for_each(|(_, open)| open.cancelled.cancel());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn outbox() -> (Queue, Arc<Mutex<Vec<String>>>) {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let out = Arc::clone(&sent);
        let send: Queue = Arc::new(move |message: Line| {
            out.lock().push(String::from_utf8(Bytes::from(message).to_vec()).unwrap());
        });
        (send, sent)
    }

    fn id(json: &str) -> RequestId {
        RequestId::from_json(json).unwrap()
    }

    fn raw(json: &str) -> Box<RawValue> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn ping_is_answered_at_once() {
        let (send, sent) = outbox();
        assert!(Asked::default().take(id("\"p\""), "ping".into(), None, None, &send).is_none());
        assert_eq!(sent.lock()[..], [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
    }

    #[test]
    fn an_answer_goes_out_once_and_on_one_line() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let request = asked.take(id("1"), "roots/list".into(), None, None, &send).unwrap();
        request.reply.answer(Ok(raw("{\n\"a\":\r\n1}")));
        assert_eq!(sent.lock()[..], ["{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{ \"a\":  1}}"]);
        // The id is free again.
        assert!(asked.take(id("1"), "roots/list".into(), None, None, &send).is_some());
    }

    #[test]
    fn unanswered_it_declines() {
        let (send, sent) = outbox();
        drop(Asked::default().take(id("1"), "roots/list".into(), None, None, &send));
        assert!(sent.lock()[0].contains("-32601"), "{:?}", sent.lock());
    }

    #[test]
    fn what_was_taken_back_is_not_answered() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let request = asked.take(id("\"a\""), "roots/list".into(), None, None, &send).unwrap();
        assert!(!asked.cancel(Some(&raw(r#"{"requestId":"b"}"#))));
        assert!(!asked.cancel(Some(&raw("{}"))));
        assert!(!asked.cancel(None));
        assert!(asked.cancel(Some(&raw(r#"{"requestId":"a","reason":"enough"}"#))));
        assert!(request.cancelled.is_cancelled());
        // Nor does its late answer go to the next one with that id.
        let next = asked.take(id("\"a\""), "roots/list".into(), None, Some(7), &send).unwrap();
        request.reply.answer(Ok(raw("{}")));
        assert!(sent.lock().is_empty() && !next.cancelled.is_cancelled());
        asked.release(7);
        assert!(next.cancelled.is_cancelled());
    }

    #[test]
    fn open_requests_are_bounded_and_ids_unique() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let mut open = Vec::new();
        for n in 0..MAX_OPEN {
            open.push(asked.take(RequestId::from(n as i64), "roots/list".into(), None, None, &send).unwrap());
        }
        assert!(asked.take(id("3"), "roots/list".into(), None, None, &send).is_none());
        assert!(sent.lock().is_empty());
        assert!(asked.take(id("\"more\""), "roots/list".into(), None, None, &send).is_none());
        assert!(sent.lock()[0].contains("-32603"));
        asked.end();
        assert!(open.iter().all(|request| request.cancelled.is_cancelled()));
        assert!(asked.take(id("\"late\""), "roots/list".into(), None, None, &send).is_none());
    }
}
