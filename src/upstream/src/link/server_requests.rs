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

/// See the module's page.
#[derive(Clone, Default)]
pub struct Asked {
    open: Arc<Mutex<HashMap<RequestId, CancellationToken>>>,
}

impl Asked {
    /// Takes a request in. `None` if it was answered already: a `ping`, one with the id of another open request, or one
    /// too many.
    pub fn take(
        &self,
        id: RequestId,
        method: String,
        params: Option<Box<RawValue>>,
        send: &Queue,
    ) -> Option<UpstreamRequest> {
        if method == "ping" {
            send(response(&id, Ok("{}")));
            return None;
        }
        let cancelled = CancellationToken::new();
        {
            let mut open = self.open.lock();
            if open.contains_key(&id) {
                // The first one's answer will end it: ids are unique (25/basic/index, "Requests").
                tracing::warn!(%id, %method, "the server asks twice with the same id; the second is dropped");
                return None;
            }
            if open.len() >= MAX_OPEN {
                drop(open);
                let error = RpcError::new(-32603, format!("more than {MAX_OPEN} requests of this server are open"));
                send(response(&id, Err(&error)));
                return None;
            }
            open.insert(id.clone(), cancelled.clone());
        }
        let (open, send, own) = (Arc::clone(&self.open), Arc::clone(send), id.clone());
        let reply = Replier::new(move |outcome| {
            if open.lock().remove(&own).is_some() {
                send(response(&own, outcome.as_ref().map(|result| result.get())));
            }
        });
        Some(UpstreamRequest { id, method, params, reply, cancelled })
    }

    /// The upstream took a request back (`notifications/cancelled`). Whether it was open.
    pub fn cancel(&self, params: Option<&RawValue>) -> bool {
        let Some(id) = cancelled_id(params) else { return false };
        let found = self.open.lock().remove(&id);
        if let Some(token) = &found {
            token.cancel();
        }
        found.is_some()
    }

    /// The link has ended: nobody waits for these any more.
    pub fn end(&self) {
        for (_, token) in self.open.lock().drain() {
            token.cancel();
        }
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
        assert!(Asked::default().take(id("\"p\""), "ping".into(), None, &send).is_none());
        assert_eq!(sent.lock()[..], [r#"{"jsonrpc":"2.0","id":"p","result":{}}"#]);
    }

    #[test]
    fn an_answer_goes_out_once_and_on_one_line() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let request = asked.take(id("1"), "roots/list".into(), None, &send).unwrap();
        request.reply.answer(Ok(raw("{\n\"a\":\r\n1}")));
        assert_eq!(sent.lock()[..], ["{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{ \"a\":  1}}"]);
        // The id is free again.
        assert!(asked.take(id("1"), "roots/list".into(), None, &send).is_some());
    }

    #[test]
    fn unanswered_it_declines() {
        let (send, sent) = outbox();
        drop(Asked::default().take(id("1"), "roots/list".into(), None, &send));
        assert!(sent.lock()[0].contains("-32601"), "{:?}", sent.lock());
    }

    #[test]
    fn what_was_taken_back_is_not_answered() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let request = asked.take(id("\"a\""), "roots/list".into(), None, &send).unwrap();
        assert!(!asked.cancel(Some(&raw(r#"{"requestId":"b"}"#))));
        assert!(!asked.cancel(Some(&raw("{}"))));
        assert!(!asked.cancel(None));
        assert!(asked.cancel(Some(&raw(r#"{"requestId":"a","reason":"enough"}"#))));
        assert!(request.cancelled.is_cancelled());
        request.reply.answer(Ok(raw("{}")));
        assert!(sent.lock().is_empty());
    }

    #[test]
    fn open_requests_are_bounded_and_ids_unique() {
        let (send, sent) = outbox();
        let asked = Asked::default();
        let mut open = Vec::new();
        for n in 0..MAX_OPEN {
            open.push(asked.take(RequestId::from(n as i64), "roots/list".into(), None, &send).unwrap());
        }
        assert!(asked.take(id("3"), "roots/list".into(), None, &send).is_none());
        assert!(sent.lock().is_empty());
        assert!(asked.take(id("\"more\""), "roots/list".into(), None, &send).is_none());
        assert!(sent.lock()[0].contains("-32603"));
        asked.end();
        assert!(open.iter().all(|request| request.cancelled.is_cancelled()));
    }
}
