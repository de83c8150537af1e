//! Bodies that are large ([`countersign_runtime::lanes`]): read away from the threads that serve connections.

use std::sync::Arc;

use actix_web::HttpResponse;
use bytes::Bytes;

use super::{View, mcp::Post, modern};
use countersign_http::answer;
use countersign_protocol::{
    ErrorKind, McpError,
    envelope::{self, EnvelopeFault, Incoming, Message},
};
use countersign_runtime::lanes::DropOnOwnerThread;
use countersign_session::owned::{OwnedMessage, OwnedRequest};

/// What a large body is.
pub enum Read {
    Single(DropOnOwnerThread<OwnedMessage>, ArgumentsChecked),
    Batch,
}

/// Whether the arguments of a tool's call stand in its headers too, where the tool wants that: found out with the rest,
/// because they are large.
pub type ArgumentsChecked = Result<modern::Headers, McpError>;

/// A large request, and what was found out about it already.
pub struct Large {
    pub request: Arc<OwnedRequest>,
    pub checked: ArgumentsChecked,
}

/// Reads the envelope of a large body.
///
/// # Errors
/// What is wrong with it; the answer while the gateway shuts down.
pub async fn read(post: &Post, body: &Bytes) -> Result<Result<Read, EnvelopeFault>, Box<HttpResponse>> {
    let (endpoint, body) = (post.endpoint.clone().into_inner(), body.clone());
    let table = endpoint.server.routing.routes.load_full();
    let headers = (table.mirrors_arguments || !table.was_built_complete()).then(|| post.request.headers().clone());
    let lanes = Arc::clone(&endpoint.server.lanes);
    let work = move || async move {
        Ok(match envelope::parse(&body, &endpoint.server.limits.envelope)? {
            Incoming::Batch(_) => Read::Batch,
            Incoming::Single(message) => {
                let checked = match (&message, &headers) {
                    (Message::Request(request), Some(headers)) => {
                        modern::check_param_headers(&table, &View(headers), request)
                    }
                    _ => Ok(modern::Headers::Fine),
                };
                Read::Single(DropOnOwnerThread::on_current_thread(OwnedMessage::from_message(&message)), checked)
            }
        })
    };
    lanes.run(&post.identity.principal.name, work).await.map_err(|error| Box::new(unavailable(&error)))
}

/// Of a gateway that shuts down.
pub fn unavailable(error: &McpError) -> HttpResponse {
    debug_assert_eq!(error.kind, ErrorKind::ShuttingDown);
    answer::with_status(503, error, countersign_protocol::Revision::NEWEST_LEGACY)
}
