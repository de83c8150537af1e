//! A call with everything that is known about its client and its upstream, and the cache of results of servers whose
//! configuration allows it (`cache: true`).

use std::{borrow::Cow, sync::Arc};

use serde_json::value::RawValue;

use super::{Call, build_caller};
use crate::{
    questions::{ClientAsker, MessageRecipient, StatelessClient},
    tasks,
    translation::{
        request::{self, DeclaredClient, RequestDraft, client_info},
        result::{self, ResultMembers, ResultType},
    },
};
use countersign_exchange::reply::{Reply, SERVER_META};
use countersign_protocol::{
    Era, ErrorKind, McpError, Revision,
    arguments::canonical_text_hash,
    json::{self, MemberEdit, edit, member, members, string},
    negotiate::ClientCapabilities,
    outline::OutlinedParams,
    param_headers,
    params::keys,
    task,
};
use countersign_upstream::{
    Caller, NegotiatedSession, OutgoingRequest, Response,
    cache::{CacheLookup, CacheRequest, FreshResult},
};

/// The members of a request's `_meta` that do not affect its result, or that the cache's key covers.
const IGNORED_META: [&str; 7] = [
    keys::PROTOCOL_VERSION,
    keys::CLIENT_INFO,
    keys::CLIENT_CAPABILITIES,
    keys::LOG_LEVEL,
    "traceparent",
    "tracestate",
    "baggage",
];

/// A task that the gateway requests, by who waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestedTask {
    /// The client gets a task of the extension.
    ForClient,
    /// The client does not know the extension, so the call waits for the result.
    ForCall,
}

/// A call with everything that is known about its client and its upstream. It creates the requests to the upstream.
pub struct PreparedCall<'a> {
    pub call: Call<'a>,
    pub negotiated: Arc<NegotiatedSession>,
    pub caller: Caller,
    pub(super) params: OutlinedParams<'a>,
    pub(super) declared_client: DeclaredClient<'a>,
    /// The task that the gateway requests, because the tool requires one and the client cannot ask for it.
    pub(super) requested_task: Option<RequestedTask>,
    /// The cache lookup for the call; `None` if its result must not be cached.
    pub(super) cache_lookup: Option<CacheLookup>,
}

impl<'a> PreparedCall<'a> {
    pub(super) fn new(call: Call<'a>) -> Result<Self, McpError> {
        let config = &call.upstream.config;
        let negotiated = call.upstream.negotiated().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, format!("{} has not been reached yet", config.name))
                .with("outcome", "not_applied")
        })?;
        let exchange = call.exchange;
        let is_modern = exchange.is_modern();
        let (mut caller, mut is_restricted) = build_caller(exchange, config);
        if call.flags.forbids_questions {
            (caller.capabilities, is_restricted) = (ClientCapabilities::default(), true);
        }
        let params = call.request.outlined_params();
        let declared_client = DeclaredClient {
            is_modern,
            info: exchange.facts.client_info.as_deref().unwrap_or(client_info()).into(),
            capabilities: None,
            log_level: caller.log_level,
        };
        countersign_protocol::outline::check_key_case(&params)?;
        // Only HTTP has headers.
        if negotiated.revision.era() == Era::Modern
            && !call.headers.is_empty()
            && !call.upstream.needs_exclusive_links()
        {
            param_headers::check_integers(call.headers, params.object.member("arguments"))?;
        }
        let mut prepared =
            Self { call, negotiated, caller, params, declared_client, requested_task: None, cache_lookup: None };
        prepared.declared_client.capabilities = prepared.capabilities_to_declare(is_restricted);
        prepared.requested_task = prepared.task_to_request()?;
        Ok(prepared)
    }

    /// Returns the capabilities to send to a stateless upstream, if they differ from the client's own declaration.
    fn capabilities_to_declare(&self, is_restricted: bool) -> Option<Cow<'a, str>> {
        if self.negotiated.revision.era() == Era::Legacy {
            return None;
        }
        let capabilities = &self.caller.capabilities;
        if tasks::declares_extension_for(self.call.exchange.revision(), &self.negotiated) {
            let capabilities = capabilities.to_json(self.negotiated.revision).to_string();
            return Some(tasks::request::with_extension(&capabilities).into());
        }
        let facts = &self.call.exchange.facts;
        if *facts.capabilities == *"{}" {
            return (!self.declared_client.is_modern).then_some("{}".into());
        }
        if self.declared_client.is_modern && !is_restricted {
            return None;
        }
        Some(capabilities.to_json(self.negotiated.revision).to_string().into())
    }

    /// Returns the task that the gateway has to request for the client.
    ///
    /// # Errors
    /// `-32601` if a client requests a task from an upstream without tasks.
    fn task_to_request(&self) -> Result<Option<RequestedTask>, McpError> {
        if !self.call.item.is_tool() {
            return Ok(None);
        }
        if self.call.flags.wants_task {
            return match self.negotiated.has_tasks() {
                true => Ok(None),
                false => Err(McpError::new(ErrorKind::MethodNotFound, "this tool does not run as a task")),
            };
        }
        // A client of 2025-11-25 can request the task itself, and gets the upstream's error if it does not.
        let exchange = self.call.exchange;
        if exchange.revision() == Revision::V2025_11_25 || !self.negotiated.requires_task(self.call.definition) {
            return Ok(None);
        }
        let knows_extension = exchange.is_modern() && task::is_extension_declared(&exchange.facts.capabilities);
        Ok(Some(if knows_extension { RequestedTask::ForClient } else { RequestedTask::ForCall }))
    }

    /// Returns the request for the upstream, with a new id for each use. `extra` are members to add to the parameters.
    pub(super) fn build_request(&self, extra: &[(&'static str, &str)]) -> OutgoingRequest {
        let with_task: Vec<_>;
        let extra = match self.requested_task {
            None => extra,
            Some(_) => {
                with_task = extra.iter().copied().chain([("task", "{}")]).collect();
                &with_task
            }
        };
        let revision = self.negotiated.revision;
        if self.call.item.is_extension() && self.call.request.params.is_none() && revision.era() == Era::Legacy {
            // The client sent no parameters, so the upstream gets none.
            return OutgoingRequest::new(self.call.upstream.next_request_id(), self.call.item.text(), None);
        }
        let draft = RequestDraft {
            method: self.call.item.method().unwrap_or_default(),
            params: self.params,
            item: self.call.item,
            declared_client: self.declared_client.clone(),
            extra,
            // Only a client of 2025-11-25 can request a task, and only for a tool.
            keeps_task: self.call.flags.wants_task || !self.call.item.is_tool(),
        };
        let mut outgoing = request::write_request(self.call.upstream.next_request_id(), revision, &draft);
        outgoing.waits_for_task = self.requested_task == Some(RequestedTask::ForCall);
        outgoing.is_repeatable = self.call.is_read_only && extra.is_empty() && !self.call.flags.is_retry;
        if revision.era() == Era::Modern && !self.call.headers.is_empty() {
            let arguments = self.params.object.member("arguments");
            outgoing.headers = param_headers::for_call(self.call.headers, arguments);
        }
        outgoing.headers.extend(self.forwarded_headers().cloned());
        outgoing
    }

    /// Returns the headers of the client's request that the configuration forwards to the upstream.
    pub(super) fn forwarded_headers(&self) -> impl Iterator<Item = &(Box<str>, Box<str>)> {
        let forwarded = &self.call.upstream.config.forward_headers;
        let headers = self.call.exchange.headers.as_deref().map(Vec::as_slice).unwrap_or_default();
        headers.iter().filter(|(name, _)| forwarded.iter().any(|forwarded| **forwarded == **name))
    }

    /// Returns the client's parameters, a JSON object.
    pub(super) fn params(&self) -> &str {
        self.params.object.text()
    }

    /// Returns `true` if the gateway requests a task on the client's behalf, and the client gets it.
    pub(super) fn requests_client_task(&self) -> bool {
        self.requested_task == Some(RequestedTask::ForClient)
    }

    /// Returns the recipient of the messages that the upstream sends during the call.
    pub(super) fn recipient(&self) -> MessageRecipient {
        let token = self.params.meta.and_then(|meta| meta.member(keys::PROGRESS_TOKEN));
        let mut recipient = MessageRecipient::for_exchange(self.call.exchange, token, self.caller.log_level);
        recipient.wants_unknown = self.negotiated.revision.era() == self.call.exchange.revision().era();
        recipient
    }

    /// Returns the asker of a client of the handshake era.
    pub(super) fn client_asker(&self) -> ClientAsker<'_> {
        let (exchange, upstream) = (self.call.exchange, &self.call.upstream.config.name);
        ClientAsker { exchange, upstream, capabilities: &self.caller.capabilities, task: None }
    }

    /// Returns the client of the call, which is stateless.
    pub(super) fn stateless_client(&self) -> StatelessClient {
        let declared = Arc::clone(&self.call.exchange.facts.capabilities);
        StatelessClient::new(self.caller.capabilities.clone(), declared, self.call.upstream.config.name.clone())
    }

    /// Returns the adapter for the response to this call.
    pub(super) fn response_adapter(&self) -> result::ResponseAdapter<'_> {
        let Call { exchange, upstream, item, .. } = self.call;
        // Only the two sides know what a response of an extension means.
        let uri_prefix = if item.is_extension() { "" } else { upstream.names.uri_prefix() };
        result::ResponseAdapter { item, client: exchange.revision(), upstream: &self.negotiated, uri_prefix }
    }

    /// Returns `_meta` of a result that the gateway creates on the upstream's behalf.
    pub(super) fn server_meta(&self) -> Cow<'_, str> {
        match &self.negotiated.server_info {
            Some(info) => json::object([(keys::SERVER_INFO, info.get())]).into(),
            None => SERVER_META.into(),
        }
    }

    /// Returns `true` if a result may be a task or must become one. Other results are not checked for tasks.
    pub(super) fn may_be_task(&self) -> bool {
        match (self.negotiated.revision.era(), self.declared_client.is_modern) {
            (_, false) => self.call.flags.wants_task,
            (Era::Legacy, true) => self.requests_client_task(),
            (Era::Modern, true) => self.shares_extension(),
        }
    }

    /// Returns `true` if client and upstream both declare an extension, whose results may have another shape.
    pub(super) fn shares_extension(&self) -> bool {
        let Some(client) = self.caller.capabilities.extensions.as_deref() else { return false };
        let server = member(self.negotiated.capabilities.get(), "extensions").unwrap_or("{}");
        members(client).any(|extension| member(server, &extension.key).is_some())
    }

    /// Prepares the cache lookup for a request. Returns `None` if its result must not be cached.
    ///
    /// Only reads are cached: resources, and tools that the policy has just allowed and that count as read-only. Only
    /// stateless servers state how long a result is fresh (2026-07-28/server/utilities/caching). A result that depends
    /// on more than its key is never cached: answers to questions, tasks, calls with progress, and calls with an unknown
    /// member in `_meta`.
    pub(super) fn prepare_lookup(&self) -> Option<CacheLookup> {
        let Call { upstream, item, is_read_only, .. } = self.call;
        let cache = upstream.cache()?;
        let is_cacheable = is_read_only
            && (item.is_tool() || item.is_resource())
            && self.negotiated.revision.era() == Era::Modern
            && !self.call.flags.is_retry;
        let mut meta = self.params.meta.into_iter().flat_map(|meta| meta.members());
        if !is_cacheable
            || self.params.object.members().any(|member| member.key == "task")
            || meta.any(|member| !IGNORED_META.contains(&&*member.key))
        {
            return None;
        }
        // The key contains the item under the upstream's own name. The client may use another name.
        let (method, item_member) = if item.is_tool() { ("tools/call", "name") } else { ("resources/read", "uri") };
        let mut digest = canonical_text_hash(
            &self.params.object.edit(&[("_meta", MemberEdit::Drop), (item_member, MemberEdit::Drop)]),
        );
        for (name, value) in self.forwarded_headers() {
            digest.push_str(&format!("\n{name}:{value}"));
        }
        Some(cache.prepare(CacheRequest {
            method,
            subject: item.text(),
            digest,
            capabilities: &self.caller.capabilities,
            principal: &self.caller.principal,
        }))
    }

    /// Returns the cached result in the form of this client. Its `ttlMs` is the time for which it is still fresh.
    ///
    /// # Errors
    /// The errors of [`Self::reply`].
    pub(super) fn cached_reply(&self) -> Result<Option<Reply>, McpError> {
        let Some((lookup, cache)) = self.cache_lookup.as_ref().zip(self.call.upstream.cache()) else {
            return Ok(None);
        };
        let Some(FreshResult { result, remaining_ttl }) = cache.get(lookup) else { return Ok(None) };
        self.call.upstream.refresh_if_stale();
        let ttl_ms = remaining_ttl.as_millis().to_string();
        let with_remaining_ttl = edit(result.get(), &[("ttlMs", MemberEdit::Set(&ttl_ms))]);
        let result = RawValue::from_string(with_remaining_ttl).unwrap_or(result);
        self.reply(Response::Result(result)).map(Some)
    }

    /// Inserts a result that needed no input into the upstream's cache, if it may be cached.
    pub(super) fn cache_result(&self, result: &RawValue) {
        let Some((lookup, cache)) = self.cache_lookup.as_ref().zip(self.call.upstream.cache()) else { return };
        let parsed = ResultMembers::parse(result.get());
        // Only a non-negative integer is a valid `ttlMs`; any other value counts as 0.
        let ttl_ms = parsed.ttl_ms.and_then(|ttl| ttl.parse::<u64>().ok()).unwrap_or(0);
        if parsed.parse_type() == ResultType::Complete && !parsed.is_error && result.get().starts_with('{') {
            let is_public = parsed.cache_scope.and_then(string).is_some_and(|scope| scope == "public");
            cache.insert(lookup, result, ttl_ms, is_public);
        }
    }
}
