//! Messages that outlive the buffers they came in.

use std::sync::Arc;

use compact_str::CompactString;
use serde_json::value::RawValue;

use countersign_protocol::{
    ErrorKind, McpError, RequestId,
    envelope::{Message, Notification, Request, Response},
    json::{MemberEdit, edit},
    outline::Outline,
};

/// A request that outlives the buffer it came in.
pub struct OwnedRequest {
    pub id: RequestId,
    method: CompactString,
    params: Option<Box<RawValue>>,
    outline: Outline,
}

impl OwnedRequest {
    pub fn from_request(request: &Request<'_>) -> Self {
        Self {
            id: request.id.clone(),
            method: (&*request.method).into(),
            params: request.params.map(ToOwned::to_owned),
            outline: request.outline.clone(),
        }
    }

    /// Copies a request with changed members of its `params`.
    ///
    /// # Errors
    /// `-32602` if the `params` are not JSON afterwards.
    pub fn with_edits(request: &Request<'_>, edits: &[(&str, MemberEdit<'_>)]) -> Result<Self, McpError> {
        let params = edit(request.params.map_or("{}", RawValue::get), edits);
        let outline = Outline::new(&params);
        let params = RawValue::from_string(params)
            .map_err(|_| McpError::new(ErrorKind::InvalidParams, "`params` are not JSON"))?;
        Ok(Self { id: request.id.clone(), method: (&*request.method).into(), params: Some(params), outline })
    }

    pub fn as_request(&self) -> Request<'_> {
        Request {
            id: self.id.clone(),
            method: self.method.as_str().into(),
            params: self.params.as_deref(),
            outline: self.outline.clone(),
        }
    }
}

/// A message that outlives the buffer it came in, and goes from one thread to another.
pub enum OwnedMessage {
    Request(Arc<OwnedRequest>),
    Notification { method: CompactString, params: Option<Box<RawValue>> },
    Response { id: Option<RequestId>, outcome: Result<Box<RawValue>, Box<RawValue>> },
}

impl OwnedMessage {
    pub fn from_message(message: &Message<'_>) -> Self {
        match message {
            Message::Request(request) => Self::Request(Arc::new(OwnedRequest::from_request(request))),
            Message::Notification(Notification { method, params }) => {
                Self::Notification { method: (&**method).into(), params: params.map(ToOwned::to_owned) }
            }
            Message::Response(Response { id, outcome }) => {
                Self::Response { id: id.clone(), outcome: outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned) }
            }
        }
    }

    pub fn as_message(&self) -> Message<'_> {
        match self {
            Self::Request(request) => Message::Request(request.as_request()),
            Self::Notification { method, params } => {
                Message::Notification(Notification { method: method.as_str().into(), params: params.as_deref() })
            }
            Self::Response { id, outcome } => Message::Response(Response {
                id: id.clone(),
                outcome: outcome.as_ref().map(|raw| &**raw).map_err(|raw| &**raw),
            }),
        }
    }
}
