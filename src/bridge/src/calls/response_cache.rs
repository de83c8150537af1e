//! Caches results of servers whose configuration allows it (`cache: true`).
//!
//! Only reads are cached: resources, and tools that the policy has just allowed and that count as read-only. Only
//! stateless servers state how long a result is fresh (2026-07-28/server/utilities/caching). A result that depends on
//! more than its key is never cached: answers to questions, tasks, calls with progress, and calls with an unknown
//! member in `_meta`.

use super::{Call, prepared_call::PreparedCall};
use crate::translation::{
    request::Verb,
    result::{Kind, ResultMembers},
};
use countersign_exchange::reply::Reply;
use countersign_protocol::{
    Era, McpError,
    arguments::canonical_text_hash,
    json::{MemberEdit, edit, string},
    params::keys,
};
use countersign_upstream::{
    Response,
    cache::{CacheLookup, CacheRequest, FreshResult},
};

/// The members of a request's `_meta` that have no effect on its result, apart from those in the key.
const META_WITHOUT_EFFECT: [&str; 7] = [
    keys::PROTOCOL_VERSION,
    keys::CLIENT_INFO,
    keys::CLIENT_CAPABILITIES,
    keys::LOG_LEVEL,
    "traceparent",
    "tracestate",
    "baggage",
];

/// Prepares the cache lookup for a request. Returns `None` if its result must not be cached.
#[must_use]
pub fn prepare_lookup(prepared: &PreparedCall<'_>) -> Option<CacheLookup> {
    let Call { upstream, verb, subject, is_read_only, .. } = prepared.call;
    let cache = upstream.cache()?;
    let is_cacheable = is_read_only
        && matches!(verb, Verb::Tool | Verb::Resource)
        && prepared.negotiated.revision.era() == Era::Modern
        && !prepared.requests_task()
        && !prepared.call.plan.is_retry;
    if !is_cacheable || prepared.params.object.members().any(|member| member.key == "task") {
        return None;
    }
    if prepared
        .params
        .meta
        .into_iter()
        .flat_map(|meta| meta.members())
        .any(|member| !META_WITHOUT_EFFECT.contains(&&*member.key))
    {
        return None;
    }
    // The key contains the subject under the upstream's own name. The client may use another name.
    let subject_member = if verb == Verb::Tool { "name" } else { "uri" };
    let mut digest = canonical_text_hash(
        &prepared.params.object.edit(&[("_meta", MemberEdit::Drop), (subject_member, MemberEdit::Drop)]),
    );
    for (name, value) in prepared.forwarded() {
        digest.push_str(&format!("\n{name}:{value}"));
    }
    Some(cache.prepare(CacheRequest {
        method: verb.method()?,
        subject: subject.text(),
        digest,
        capabilities: &prepared.caller.capabilities,
        principal: &prepared.caller.principal,
    }))
}

/// Returns the cached result in the form of this client. Its `ttlMs` is the time for which it is still fresh.
///
/// # Errors
/// The errors of [`PreparedCall::reply`].
pub fn cached_reply(prepared: &PreparedCall<'_>) -> Result<Option<Reply>, McpError> {
    let Some((lookup, cache)) = prepared.cache_lookup.as_ref().zip(prepared.call.upstream.cache()) else {
        return Ok(None);
    };
    let Some(FreshResult { result, remaining_ttl }) = cache.get(lookup) else { return Ok(None) };
    prepared.call.upstream.refresh_if_stale();
    let ttl_ms = remaining_ttl.as_millis().to_string();
    let aged = edit(result.get(), &[("ttlMs", MemberEdit::Set(&ttl_ms))]);
    let result = serde_json::value::RawValue::from_string(aged).unwrap_or(result);
    prepared.reply(Response::Result(result)).map(Some)
}

/// Caches a result that needed no input, if it may be cached.
pub fn store(prepared: &PreparedCall<'_>, response: &Response) {
    let (Some(lookup), Some(cache), Response::Result(result)) =
        (&prepared.cache_lookup, prepared.call.upstream.cache(), response)
    else {
        return;
    };
    let parsed = ResultMembers::parse(result.get());
    // Only a non-negative integer is a valid `ttlMs`; any other value counts as 0.
    let ttl = parsed.ttl.and_then(|ttl| ttl.parse::<u64>().ok()).unwrap_or(0);
    if parsed.kind() == Kind::Complete && !parsed.is_error && result.get().starts_with('{') {
        let public = parsed.scope.and_then(string).is_some_and(|scope| scope == "public");
        cache.insert(lookup, result, ttl, public);
    }
}
