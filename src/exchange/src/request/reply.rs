//! What a request is answered with, in the plainest form; [`Reply::finish`] makes of it what the client's revision wants.

use std::borrow::Cow;

use countersign_protocol::{ErrorKind, Revision, json::add_members};

/// `{"io.modelcontextprotocol/serverInfo": …}`, the `_meta` of every result that the gateway makes for stateless clients.
pub const SERVER_META: &str = concat!(
    r#"{"io.modelcontextprotocol/serverInfo":{"name":"countersign","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#"","title":"Countersign"}}"#
);

/// The time for which a client may reuse an answer (2026-07-28/server/utilities/caching).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheHint {
    pub ttl_ms: u32,
    /// The same for every principal.
    pub public: bool,
}

impl CacheHint {
    /// Lists that only change with the gateway's configuration.
    pub const STATIC: Self = Self { ttl_ms: 60_000, public: true };
    /// Live data.
    pub const LIVE: Self = Self { ttl_ms: 0, public: false };
}

/// The result of a request.
#[derive(Debug, Default)]
pub struct Reply {
    /// A JSON object without what only some revisions have.
    pub json: String,
    pub cache: Option<CacheHint>,
    /// Further entries of `_meta`, as raw JSON.
    pub meta: Option<(&'static str, String)>,
    /// The revision that the handshake has just fixed.
    pub revision: Option<Revision>,
    /// A failure that is told in-band.
    pub failure: Option<ErrorKind>,
    /// A person has to approve it.
    pub pending: bool,
    /// The id of the change that was proposed for the request.
    pub change_id: Option<String>,
    /// It is an upstream's, already as the client's revision wants it.
    pub finished: bool,
}

impl Reply {
    #[must_use]
    pub fn new(json: String) -> Self {
        Self { json, ..Self::default() }
    }

    /// A result that goes to its client as it is.
    #[must_use]
    pub fn passed_on(json: String) -> Self {
        Self { finished: true, ..Self::new(json) }
    }

    /// It tells of a failure.
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

    /// The `result` for the wire: in the modern era with `resultType`, the server's name in `_meta`, and cache hints
    /// (2026-07-28/basic/index, "ResultType" and "Per-response protocol fields").
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
    fn a_result_says_what_its_revision_wants_of_it() {
        let reply =
            Reply { meta: Some(("id", "7".into())), ..Reply::new(r#"{"n":1}"#.into()).cached(CacheHint::STATIC) };
        assert_eq!(reply.finish(Revision::V2025_11_25), r#"{"n":1}"#, "the handshake era has none of it");
        let mut meta: Value = serde_json::from_str(SERVER_META).unwrap();
        meta["id"] = 7.into();
        let wanted = json!({
            "n": 1, "resultType": "complete", "_meta": meta, "ttlMs": 60_000, "cacheScope": "public",
        });
        assert_eq!(finished(&reply, Revision::MODERN), wanted);
        let live = Reply::new("{}".into()).cached(CacheHint::LIVE);
        assert_eq!(finished(&live, Revision::MODERN)["cacheScope"], "private");
        let plain = finished(&Reply::new("{}".into()), Revision::MODERN);
        assert!(plain.get("ttlMs").is_none() && plain.get("cacheScope").is_none());
        // An upstream's is its own affair.
        assert_eq!(Reply::passed_on("{ }".into()).finish(Revision::MODERN), "{ }");
    }
}
