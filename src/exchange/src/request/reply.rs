//! The plain answer to a request. [`Reply::finish`] adapts it to the client's revision.

use std::borrow::Cow;

use countersign_protocol::{ErrorKind, Revision, json::add_members};

/// `{"io.modelcontextprotocol/serverInfo": …}`, the `_meta` of all results that the gateway creates for stateless
/// clients.
pub const SERVER_META: &str = concat!(
    r#"{"io.modelcontextprotocol/serverInfo":{"name":"countersign","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#"","title":"Countersign"}}"#
);

/// The time for which a client may reuse an answer (2026-07-28/server/utilities/caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    pub ttl_ms: u32,
    /// `true` if the answer is the same for all principals.
    pub public: bool,
}

impl CacheHint {
    /// The hint for lists that change only with the gateway's configuration.
    pub const STATIC: Self = Self { ttl_ms: 60_000, public: true };
    /// The hint for live data, which must not be reused.
    pub const LIVE: Self = Self { ttl_ms: 0, public: false };
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// A JSON object without members that only some revisions have.
    pub json: String,
    pub cache: Option<CacheHint>,
    /// An additional member of `_meta`, with its value as JSON text.
    pub meta: Option<(&'static str, String)>,
    /// The revision that the handshake has just negotiated.
    pub revision: Option<Revision>,
    /// The failure that the result describes.
    pub failure: Option<ErrorKind>,
    /// `true` if the call waits for a person's approval.
    pub pending: bool,
    /// The id of the change that was proposed for the request.
    pub change_id: Option<String>,
    /// `true` if the result needs no adaptation, for example because it comes from an upstream.
    pub finished: bool,
}

impl Reply {
    #[must_use]
    pub fn new(json: String) -> Self {
        Self { json, ..Self::default() }
    }

    /// Creates a result that goes to its client unchanged.
    #[must_use]
    pub fn passed_on(json: String) -> Self {
        Self { finished: true, ..Self::new(json) }
    }

    /// Marks the result as one that describes a failure.
    #[must_use]
    pub fn failing(mut self, failure: Option<ErrorKind>) -> Self {
        self.failure = failure;
        self
    }

    #[must_use]
    pub fn cached(mut self, hint: CacheHint) -> Self {
        self.cache = Some(hint);
        self
    }

    /// Returns the `result` for the client. The modern era adds `resultType`, the server's name in `_meta` and cache
    /// hints (2026-07-28/basic/index, "ResultType" and "Per-response protocol fields").
    #[must_use]
    pub fn finish(&self, revision: Revision) -> Cow<'_, str> {
        if self.finished || !revision.rules().result_type {
            return Cow::Borrowed(&self.json);
        }
        let meta = match &self.meta {
            None => SERVER_META.to_owned(),
            Some((key, value)) => add_members(SERVER_META, &[(key, value)]),
        };
        let mut members = vec![("resultType", r#""complete""#), ("_meta", meta.as_str())];
        let ttl;
        if let Some(hint) = self.cache {
            ttl = hint.ttl_ms.to_string();
            members.push(("ttlMs", &ttl));
            members.push(("cacheScope", if hint.public { r#""public""# } else { r#""private""# }));
        }
        Cow::Owned(add_members(&self.json, &members))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn finished(reply: &Reply, revision: Revision) -> Value {
        serde_json::from_str(&reply.finish(revision)).unwrap()
    }

    #[test]
    fn result_has_members_that_its_revision_requires() {
        let reply =
            Reply { meta: Some(("id", "7".into())), ..Reply::new(r#"{"n":1}"#.into()).cached(CacheHint::STATIC) };
        assert_eq!(reply.finish(Revision::V2025_11_25), r#"{"n":1}"#, "the handshake era has none of these members");
        let mut meta: Value = serde_json::from_str(SERVER_META).unwrap();
        meta["id"] = 7.into();
        let expected = json!({
            "n": 1, "resultType": "complete", "_meta": meta, "ttlMs": 60_000, "cacheScope": "public",
        });
        assert_eq!(finished(&reply, Revision::MODERN), expected);
        let live = Reply::new("{}".into()).cached(CacheHint::LIVE);
        assert_eq!(finished(&live, Revision::MODERN)["cacheScope"], "private");
        let plain = finished(&Reply::new("{}".into()), Revision::MODERN);
        assert!(plain.get("ttlMs").is_none() && plain.get("cacheScope").is_none());
        // A result of an upstream stays unchanged.
        assert_eq!(Reply::passed_on("{ }".into()).finish(Revision::MODERN), "{ }");
    }
}
