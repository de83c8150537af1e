//! Reads incoming messages, finds their era and revision, passes each to its handler, and regroups batches.

mod forwarding;
pub mod frames;
pub mod middleware;

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, future::LocalBoxFuture, stream};

use crate::{
    gateway::server::{McpServer, RequestScope},
    handlers,
    owned_messages::OwnedRequest,
};
use countersign_domain::principal::Identity;
use countersign_exchange::{
    body_budget::Reservation,
    context::{Exchange, ForwardedHeaders, InFlightRequest, WireResponse},
    facts::{ClientFacts, FactLimits},
    reply::{RelatedChannel, Reply},
    state::SessionState,
};
use countersign_protocol::{
    Era, ErrorKind, McpError, Method, Revision, encode,
    envelope::{self, EnvelopeError, Incoming, Message, Notification, Request},
    headers,
    params::{self, LoggingLevel, Meta},
};
use countersign_routing::RouteTable;
use countersign_telemetry::{
    RequestMetrics,
    metrics::{Cache, CacheMetrics, Transport},
};

/// A request being handled. Resolves to its answer, or to `None` if it was cancelled.
///
/// It is boxed in this crate, because the code of an unboxed future, which includes all handlers, would be compiled again
/// in each crate that polls it.
pub type AnswerFuture = LocalBoxFuture<'static, Option<WireResponse>>;

/// The origin of a message, with the gateway that answers it: everything that the message itself does not state.
#[derive(Clone)]
pub struct MessageSource {
    pub server: Arc<McpServer>,
    pub session: Arc<SessionState>,
    pub identity: Identity,
    pub transport: Transport,
    pub related: RelatedChannel,
    /// The revision that counts for a handshake-era message before or without a handshake.
    pub assumed_revision: Revision,
    /// See [`Exchange::headers`].
    pub headers: Option<Arc<ForwardedHeaders>>,
    /// See [`RequestScope::table`].
    pub table: Arc<RouteTable>,
}

impl MessageSource {
    /// Returns the revision of the session, or the assumed one before its handshake. It is used for batches and for
    /// messages that cannot be read.
    pub fn revision(&self) -> Revision {
        self.session.legacy_revision().unwrap_or(self.assumed_revision)
    }

    /// Returns the response to an invalid message; `None` for [a notification](EnvelopeError::is_notification), which is not
    /// answered.
    pub fn fault_response(&self, fault: &EnvelopeError) -> Option<WireResponse> {
        RequestMetrics::get().record_error(fault.error.kind);
        (!fault.is_notification).then(|| WireResponse::error(fault.id.as_ref(), &fault.error, self.revision()))
    }

    /// Answers a request that is not a member of a batch. Returns `None` if its client has cancelled it.
    pub(crate) fn answer_request(self, request: &Request<'_>) -> impl Future<Output = Option<WireResponse>> {
        // Not an async function, so that the future does not keep the memory of `self`.
        let scope = self.into_scope(request);
        async move {
            match &scope {
                Ok(scope) => answer(scope, request).await,
                Err((error, revision)) => Some(WireResponse::error(Some(&request.id), error, *revision)),
            }
        }
    }

    /// Determines the era, the revision and the client facts of a request.
    ///
    /// # Errors
    /// The error of a request that cannot be answered, with the revision for the answer.
    pub fn into_scope(self, request: &Request<'_>) -> Result<RequestScope, (McpError, Revision)> {
        let meta = request.meta().map_err(|e| (e, self.revision()))?;
        let log_level: Option<LoggingLevel> = meta.log_level().map_err(|e| (e, Revision::MODERN))?;
        // Without a handshake, a request that lacks only its revision is an invalid one of the stateless era.
        let is_stateless = || {
            let is_stateless_method = matches!(Method::parse(&request.method), Some(Method::Discover | Method::Listen));
            (meta.is_stateless() || is_stateless_method) && self.session.legacy_revision().is_none()
        };
        let facts = if meta.names_revision() || is_stateless() {
            let limits = self.server.limits.facts;
            let facts = modern_facts(&meta, limits).map_err(|e| (e, Revision::MODERN))?;
            if !self.session.has_facts(&facts) && self.session.legacy_revision().is_none() {
                self.server.publish_facts(&self.session, &facts);
            }
            facts
        } else {
            self.legacy_facts(request)?
        };
        let Self { server, session, identity, transport, related, assumed_revision: _, headers, table } = self;
        let exchange = Exchange { session, facts, identity, transport, related, log_level, headers };
        Ok(RequestScope { exchange, server, table })
    }

    fn legacy_facts(&self, request: &Request<'_>) -> Result<Arc<ClientFacts>, (McpError, Revision)> {
        if let Some(facts) = self.session.facts().filter(|f| f.revision.era() == Era::Legacy) {
            // A client that sends other requests has finished its handshake, even without `notifications/initialized`.
            if request.method != "initialize" && request.method != "ping" {
                self.session.mark_initialized();
            }
            return Ok(facts);
        }
        if Method::parse(&request.method).is_some_and(Method::needs_session) {
            let error = McpError::new(
                ErrorKind::NotInitialized,
                "send `initialize` first, or name a protocol version in `_meta`",
            );
            return Err((error, self.assumed_revision));
        }
        Ok(Arc::new(ClientFacts {
            revision: self.assumed_revision,
            client: None,
            client_info: None,
            capabilities: "{}".into(),
        }))
    }

    /// Handles a notification, which is never answered.
    pub fn handle_notification(&self, notification: &Notification<'_>) {
        match Method::parse(&notification.method) {
            Some(Method::Initialized) => self.session.mark_initialized(),
            Some(Method::Cancelled) => {
                if let Ok(cancelled) = params::parse::<params::CancelledParams>(notification.params) {
                    // The id and the reason are not logged: both are text of the client, of any length.
                    tracing::debug!(session = %self.session.short_id(), "a request is cancelled by its client");
                    self.session.cancel(&cancelled.request_id);
                }
            }
            // No other notification of a client concerns the gateway, and notifications are never answered.
            _ => tracing::trace!(session = %self.session.short_id(), "notification ignored"),
        }
    }

    /// Answers a body that is a batch, and holds its reserved bytes until then. A large one is answered on the principal's
    /// thread for large messages ([`countersign_runtime::large_messages`]).
    pub fn answer_batch_body(self, body: Bytes, reservation: Option<Reservation>) -> AnswerFuture {
        let large_messages = Arc::clone(&self.server.large_messages);
        let (bytes, principal) = (body.len(), Arc::clone(&self.identity.principal));
        let answer_batch = move || async move {
            let _reservation = reservation;
            match envelope::parse(&body, &self.server.limits.envelope) {
                Ok(Incoming::Batch(members)) => self.answer_batch(members).await,
                // Impossible, because the same body was parsed as a batch before.
                Ok(Incoming::Single(_)) | Err(_) => None,
            }
        };
        Box::pin(async move { large_messages.run_sized(bytes, &principal.name, answer_batch).await.unwrap_or(None) })
    }

    /// Answers the members of a batch, `limits.batch_concurrency` at a time, and regroups the answers
    /// (2025-03-26/basic/index#batching).
    pub(crate) async fn answer_batch(&self, members: Vec<Result<Message<'_>, EnvelopeError>>) -> Option<WireResponse> {
        let revision = self.revision();
        if !revision.rules().batches {
            let error = McpError::new(ErrorKind::InvalidRequest, "this protocol revision has no batches");
            return Some(WireResponse::error(None, &error, revision));
        }
        let mut answers: Vec<Option<Bytes>> = Vec::with_capacity(members.len());
        let mut requests = Vec::new();
        for member in &members {
            let index = answers.len();
            answers.push(None);
            match member {
                Err(fault) => answers[index] = self.fault_response(fault).map(|a| a.bytes),
                Ok(Message::Request(request)) if request.method == "initialize" => {
                    let error = McpError::new(ErrorKind::InvalidRequest, "`initialize` must not be part of a batch");
                    answers[index] = Some(WireResponse::error(Some(&request.id), &error, revision).bytes);
                }
                Ok(Message::Request(request)) => requests.push((index, request)),
                Ok(Message::Notification(notification)) => self.handle_notification(notification),
                Ok(Message::Response(response)) => self.session.questions.deliver_answer(response),
            }
        }
        let groups = self.group_identical_reads(&requests);
        let answered_groups: Vec<_> = stream::iter(groups)
            .map(|group| self.answer_group(group))
            .buffer_unordered(self.server.limits.batch_concurrency)
            .collect()
            .await;
        for (index, bytes) in answered_groups.into_iter().flatten() {
            answers[index] = Some(bytes);
        }
        let answers: Vec<Bytes> = answers.into_iter().flatten().collect();
        (!answers.is_empty()).then(|| WireResponse::result(encode::batch(&answers)))
    }

    /// Groups requests that one call can answer: the same read with the same parameters.
    fn group_identical_reads<'r, 'a>(
        &self,
        requests: &[(usize, &'r Request<'a>)],
    ) -> Vec<Vec<(usize, &'r Request<'a>)>> {
        let mut groups: Vec<Vec<(usize, &Request<'_>)>> = Vec::new();
        let mut group_by_request: HashMap<(&str, &str), usize> = HashMap::new();
        for &(index, request) in requests {
            let key = (request.method.as_ref(), request.params.map_or("", |p| p.get()));
            if !handlers::is_shareable_read(&self.table, request) {
                groups.push(vec![(index, request)]);
            } else if let Some(&group) = group_by_request.get(&key) {
                groups[group].push((index, request));
            } else {
                group_by_request.insert(key, groups.len());
                groups.push(vec![(index, request)]);
            }
        }
        groups
    }

    /// Answers all members of a group with the call of the first one. If that one is cancelled or refused, the others
    /// are answered without it.
    async fn answer_group(&self, group: Vec<(usize, &Request<'_>)>) -> Vec<(usize, Bytes)> {
        let mut answers = Vec::with_capacity(group.len());
        let mut group = group.as_slice();
        while let Some((&(index, first), others)) = group.split_first() {
            if others.is_empty() {
                answers.extend(self.clone().answer_request(first).await.map(|a| (index, a.bytes)));
                break;
            }
            let scope = match self.clone().into_scope(first) {
                Ok(scope) => scope,
                Err((error, revision)) => {
                    answers.extend(group.iter().map(|member| refuse_member(member, &error, revision)));
                    break;
                }
            };
            let revision = scope.exchange.revision();
            match serve(&scope, first).await {
                ServeOutcome::Reply(reply) => {
                    let cache = CacheMetrics::for_cache(Cache::Reads);
                    cache.miss();
                    others.iter().for_each(|_| cache.hit());
                    let result = reply.as_ref().map(|reply| reply.finish(revision));
                    answers.extend(group.iter().map(|member| match &result {
                        Ok(result) => (member.0, encode::result(&member.1.id, result)),
                        Err(error) => refuse_member(member, error, revision),
                    }));
                    break;
                }
                ServeOutcome::Refused(error) => answers.push(refuse_member(&(index, first), &error, revision)),
                ServeOutcome::Cancelled => {}
            }
            group = others;
        }
        answers
    }
}

/// Returns the error response to one member of a batch, with the index of the member.
fn refuse_member(&(index, request): &(usize, &Request<'_>), error: &McpError, revision: Revision) -> (usize, Bytes) {
    (index, WireResponse::error(Some(&request.id), error, revision).bytes)
}

/// Runs one request to its answer, and holds the reserved bytes of its body until then.
pub fn answer_owned(scope: RequestScope, request: OwnedRequest, reservation: Option<Reservation>) -> AnswerFuture {
    Box::pin(async move {
        let _reservation = reservation;
        answer(&scope, &request.as_request()).await
    })
}

/// Runs a large request like [`answer_owned`], on the principal's thread for large messages
/// ([`countersign_runtime::large_messages`]).
pub fn answer_large(scope: RequestScope, request: Arc<OwnedRequest>, reservation: Option<Reservation>) -> AnswerFuture {
    let (large_messages, revision, id) =
        (Arc::clone(&scope.server.large_messages), scope.exchange.revision(), request.id.clone());
    let principal = Arc::clone(&scope.exchange.identity.principal);
    let work = move || async move { answer(&scope, &request.as_request()).await };
    Box::pin(async move {
        let _reservation = reservation;
        large_messages
            .run(&principal.name, work)
            .await
            .unwrap_or_else(|error| Some(WireResponse::error(Some(&id), &error, revision)))
    })
}

/// Runs a request of an endpoint that has no envelopes. Boxed for the same reason as an [`AnswerFuture`].
///
/// # Errors
/// The error of the first layer that refuses the request, or of its handler.
pub fn run_request<'a>(
    scope: &'a RequestScope,
    request: &'a Request<'a>,
) -> LocalBoxFuture<'a, Result<Reply, McpError>> {
    Box::pin(async move {
        let mut in_flight = InFlightRequest::register(&scope.server.slots, &scope.exchange.session, &request.id)?;
        let reply = middleware::run(scope, request, &in_flight.cancel).await?;
        in_flight.is_answered = true;
        Ok(reply)
    })
}

/// Runs one request to its answer. Returns `None` if its client has cancelled it.
pub(crate) async fn answer(scope: &RequestScope, request: &Request<'_>) -> Option<WireResponse> {
    let RequestScope { exchange, server, .. } = scope;
    if let Some(cluster) = server.cluster.as_deref()
        && let Some(lookup) = forwarding::find_forward_target(cluster, exchange, request)
    {
        match lookup.await {
            Ok(Some(target)) => {
                return Box::pin(forwarding::forward_to_owner(scope, cluster, target, request)).await;
            }
            Ok(None) => {}
            Err(error) => return Some(WireResponse::error(Some(&request.id), &error, exchange.revision())),
        }
    }
    match serve(scope, request).await {
        ServeOutcome::Reply(Ok(reply)) => {
            // Only the reply to a handshake has a revision of its own, which was negotiated just now.
            let revision = reply.revision.unwrap_or(exchange.revision());
            let result = reply.finish(revision);
            Some(WireResponse::result(encode::result(&request.id, &result)))
        }
        ServeOutcome::Reply(Err(error)) | ServeOutcome::Refused(error) => {
            Some(WireResponse::error(Some(&request.id), &error, exchange.revision()))
        }
        ServeOutcome::Cancelled => None,
    }
}

/// Reads the facts that a modern request states about its client (2026-07-28/basic/index, "Per-request protocol
/// fields").
///
/// # Errors
/// `-32602` without the required members or for capabilities that are too long, `-32022` for a version that is not
/// served statelessly.
pub fn modern_facts(meta: &Meta<'_>, limits: FactLimits) -> Result<Arc<ClientFacts>, McpError> {
    let revision = headers::check_envelope(meta)?;
    let capabilities = meta.client_capabilities.unwrap_or("{}");
    if let Some(facts) = CACHED_FACTS.with_borrow(|cached| cached.find(revision, meta.client_info, capabilities)) {
        return Ok(facts);
    }
    limits.check_capabilities(CAPABILITIES_PATH, capabilities)?;
    let client = meta.client_info()?.map(|client| limits.shorten_names(client));
    // `clientInfo` is not stored, because every stateless request carries it.
    let facts = Arc::new(ClientFacts { revision, client, client_info: None, capabilities: capabilities.into() });
    if meta.client_info.map_or(0, str::len) + capabilities.len() <= MAX_CACHED_FACTS_BYTES {
        CACHED_FACTS.set(CachedFacts { info: meta.client_info.map(Into::into), facts: Some(Arc::clone(&facts)) });
    }
    Ok(facts)
}

/// The path of the capabilities in the `params` of a stateless request.
const CAPABILITIES_PATH: &str = "_meta.io.modelcontextprotocol/clientCapabilities";

/// The maximum size of the client facts that are cached for the next request.
const MAX_CACHED_FACTS_BYTES: usize = 4096;

thread_local!(static CACHED_FACTS: RefCell<CachedFacts> = RefCell::default());

/// The facts that a request on this thread stated last. A client states the same facts with each request. Parsing them
/// again would cost 2,600 instructions, 2 to 3 % of a proxied stateless call (`scripts/bench instructions --beside
/// PROGRAM` shows it).
#[derive(Default)]
struct CachedFacts {
    info: Option<Box<str>>,
    facts: Option<Arc<ClientFacts>>,
}

impl CachedFacts {
    /// Returns the cached facts if they were stated with exactly this text.
    fn find(&self, revision: Revision, info: Option<&str>, capabilities: &str) -> Option<Arc<ClientFacts>> {
        let facts = self.facts.as_ref()?;
        let is_same =
            facts.revision == revision && self.info.as_deref() == info && *facts.capabilities == *capabilities;
        is_same.then(|| Arc::clone(facts))
    }
}

/// The outcome of a request in [`serve`].
enum ServeOutcome {
    Reply(Result<Reply, McpError>),
    /// The id of the request is in use, or its session has too many requests in flight.
    Refused(McpError),
    /// The client has cancelled the request, so it gets no answer (2025-11-25/basic/utilities/cancellation).
    Cancelled,
}

/// Runs one request through the middleware, until it is answered, cancelled or the session ends.
async fn serve(scope: &RequestScope, request: &Request<'_>) -> ServeOutcome {
    let mut in_flight = match InFlightRequest::register(&scope.server.slots, &scope.exchange.session, &request.id) {
        Ok(in_flight) => in_flight,
        Err(error) => return ServeOutcome::Refused(error),
    };
    let cancel = &in_flight.cancel;
    if cancel.is_cancelled() {
        // The session has ended, so the request must not begin.
        return ServeOutcome::Cancelled;
    }
    let served = tokio::select! {
        biased;
        reply = middleware::run(scope, request, cancel) => ServeOutcome::Reply(reply),
        () = cancel.cancelled() => ServeOutcome::Cancelled,
    };
    let is_cancelled = cancel.is_cancelled();
    in_flight.is_answered = true;
    if is_cancelled { ServeOutcome::Cancelled } else { served }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::limits::RequestLimits;

    fn meta<'a>(info: Option<&'a str>, capabilities: &'a str) -> Meta<'a> {
        Meta {
            protocol_version: Some("2026-07-28".into()),
            client_info: info,
            client_capabilities: Some(capabilities),
            ..Meta::default()
        }
    }

    fn facts(meta: &Meta<'_>) -> Result<Arc<ClientFacts>, McpError> {
        modern_facts(meta, RequestLimits::new(&countersign_config::Config::default()).facts)
    }

    #[test]
    fn facts_are_shared_only_by_requests_that_state_the_same() {
        let (a, b) = (r#"{"name":"a","version":"1"}"#, r#"{"name":"b","version":"1"}"#);
        let first = facts(&meta(Some(a), "{}")).unwrap();
        assert!(Arc::ptr_eq(&first, &facts(&meta(Some(a), "{}")).unwrap()));
        let with_sampling = facts(&meta(Some(a), r#"{"sampling":{}}"#)).unwrap();
        assert_eq!((&*with_sampling.capabilities, &*first.capabilities), (r#"{"sampling":{}}"#, "{}"));
        let of_other_client = facts(&meta(Some(b), r#"{"sampling":{}}"#)).unwrap();
        assert_eq!(of_other_client.client.as_ref().unwrap().name, "b");
        assert!(facts(&meta(None, r#"{"sampling":{}}"#)).unwrap().client.is_none());
        // The capabilities are too long to be cached.
        let long = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_CACHED_FACTS_BYTES));
        let once = facts(&meta(Some(a), &long)).unwrap();
        assert_eq!(*once.capabilities, *long);
        assert!(!Arc::ptr_eq(&once, &facts(&meta(Some(a), &long)).unwrap()));
        // Invalid facts do not stay in the cache.
        assert_eq!(facts(&meta(Some("{}"), "{}")).unwrap_err().kind, ErrorKind::InvalidParams);
        assert_eq!(facts(&meta(Some(a), "{}")).unwrap().client.as_ref().unwrap().name, "a");
    }
}
