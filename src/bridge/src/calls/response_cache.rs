//! Answers that need not be asked for again, where a server's configuration wants that (`cache: true`).
//!
//! Only what reads: resources, and tools that policy has just allowed and that are believed to read. Only results of
//! stateless servers, since no others say how long they are fresh (2026-07-28/server/utilities/caching). Never what
//! depends on more than its key tells: answers to questions, tasks, calls with progress, and such that carry a
//! member in `_meta` that the gateway does not know.

use super::{Call, ready::Ready};
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

/// Members of a request's `_meta` on which no answer depends, beside those of which the key knows.
const WITHOUT_EFFECT: [&str; 7] = [
    keys::PROTOCOL_VERSION,
    keys::CLIENT_INFO,
    keys::CLIENT_CAPABILITIES,
    keys::LOG_LEVEL,
    "traceparent",
    "tracestate",
    "baggage",
];

/// The request, if its answer may be one that was kept, or may be kept.
#[must_use]
pub fn question(ready: &Ready<'_>) -> Option<CacheLookup> {
    let Call { upstream, verb, subject, reads, .. } = ready.call;
    let cache = upstream.cache()?;
    let may = reads
        && matches!(verb, Verb::Tool | Verb::Resource)
        && ready.negotiated.revision.era() == Era::Modern
        && !ready.augmented()
        && !ready.call.plan.is_retry;
    if !may || ready.params.object.members().any(|member| member.key == "task") {
        return None;
    }
    if ready
        .params
        .meta
        .into_iter()
        .flat_map(|meta| meta.members())
        .any(|member| !WITHOUT_EFFECT.contains(&&*member.key))
    {
        return None;
    }
    // The subject stands in the key under the upstream's own name, the client's may be another.
    let own = if verb == Verb::Tool { "name" } else { "uri" };
    let mut digest =
        canonical_text_hash(&ready.params.object.edit(&[("_meta", MemberEdit::Drop), (own, MemberEdit::Drop)]));
    for (name, value) in ready.forwarded() {
        digest.push_str(&format!("\n{name}:{value}"));
    }
    Some(cache.prepare(CacheRequest {
        method: verb.method()?,
        subject: subject.text(),
        digest,
        capabilities: &ready.caller.capabilities,
        principal: &ready.caller.principal,
    }))
}

/// The answer that was kept, as this client gets it; how long it may be reused is what is left of its time.
///
/// # Errors
/// The errors of [`Ready::reply`].
pub fn answer(ready: &Ready<'_>) -> Result<Option<Reply>, McpError> {
    let Some((question, cache)) = ready.question.as_ref().zip(ready.call.upstream.cache()) else { return Ok(None) };
    let Some(FreshResult { result, remaining_ttl: left }) = cache.get(question) else { return Ok(None) };
    ready.call.upstream.refresh_if_stale();
    let left = left.as_millis().to_string();
    let aged = edit(result.get(), &[("ttlMs", MemberEdit::Set(&left))]);
    let result = serde_json::value::RawValue::from_string(aged).unwrap_or(result);
    ready.reply(Response::Result(result)).map(Some)
}

/// Keeps a result that no input was needed for, if it is such a one.
pub fn keep(ready: &Ready<'_>, response: &Response) {
    let (Some(question), Some(cache), Response::Result(result)) =
        (&ready.question, ready.call.upstream.cache(), response)
    else {
        return;
    };
    let glance = ResultMembers::parse(result.get());
    // A whole number that is not negative; anything else says nothing.
    let ttl = glance.ttl.and_then(|ttl| ttl.parse::<u64>().ok()).unwrap_or(0);
    if glance.kind() == Kind::Complete && !glance.is_error && result.get().starts_with('{') {
        let public = glance.scope.and_then(string).is_some_and(|scope| scope == "public");
        cache.insert(question, result, ttl, public);
    }
}
