//! Answers of one upstream that may be given again: results that name a time for which they are fresh
//! (2026-07-28/server/utilities/caching).
//!
//! What is kept is the upstream's own text, so that each client gets it in the words of its revision. Bounded in bytes,
//! and in number because each entry weighs at least [`OVERHEAD`]. What makes entries worthless raises a counter that
//! they remember, so that an answer which was under way meanwhile is worthless too when it arrives.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::value::RawValue;
use tokio::time::Instant;

use countersign_domain::principal::Principal;
use countersign_protocol::capabilities::ClientCapabilities;
use countersign_telemetry::metrics::CacheMetrics;

/// Bytes of all entries of one upstream.
const CAPACITY: u64 = 16 << 20;
/// Bytes of a result that is kept.
const LARGEST: usize = 1 << 20;
/// Bytes that an entry counts beside its text.
const OVERHEAD: usize = 512;
/// However long a server says that its answer stays fresh.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Counters of changed resources. Resources that share one are forgotten together.
const SLOTS: usize = 256;
/// Folders above a changed resource that are forgotten with it.
const ABOVE: usize = 32;

/// All that an answer depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    method: &'static str,
    /// The upstream's own name or URI.
    subject: Arc<str>,
    /// Of the other parameters.
    digest: Arc<str>,
    /// A server may answer otherwise whom it can ask.
    capabilities: Arc<ClientCapabilities>,
    /// Whose answer it is; `None` for everybody's.
    owner: Option<Arc<str>>,
}

/// The counters when a question was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    all: u64,
    subject: u64,
}

/// A request whose answer may be kept.
#[derive(Debug)]
pub struct Question {
    key: Key,
    stamp: Stamp,
}

/// What a request asks, and for whom.
pub struct Asked<'a> {
    pub method: &'static str,
    /// The upstream's own name or URI.
    pub subject: &'a str,
    /// Of all other parameters that the answer may depend on.
    pub digest: String,
    pub capabilities: &'a ClientCapabilities,
    pub principal: &'a Principal,
}

struct CachedResult {
    result: Box<RawValue>,
    received: Instant,
    ttl: Duration,
    stamp: Stamp,
}

/// An answer that is still fresh.
#[derive(Debug)]
pub struct Fresh {
    /// As the upstream wrote it.
    pub result: Box<RawValue>,
    /// How much longer it is fresh.
    pub left: Duration,
}

/// See the module's page.
pub struct Cache {
    entries: moka::sync::Cache<Key, Arc<CachedResult>>,
    all: AtomicU64,
    subjects: Box<[AtomicU64]>,
    hasher: RandomState,
}

struct Lifetime;

impl moka::Expiry<Key, Arc<CachedResult>> for Lifetime {
    fn expire_after_create(&self, _: &Key, entry: &Arc<CachedResult>, _: std::time::Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(
        &self,
        _: &Key,
        entry: &Arc<CachedResult>,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(entry.ttl)
    }
}

impl Default for Cache {
    fn default() -> Self {
        let weigh = |key: &Key, entry: &Arc<CachedResult>| {
            let bytes = key.subject.len() + key.digest.len() + entry.result.get().len() + OVERHEAD;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self {
            entries: moka::sync::Cache::builder().max_capacity(CAPACITY).weigher(weigh).expire_after(Lifetime).build(),
            all: AtomicU64::new(0),
            subjects: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Cache {
    /// Before the request is sent: what changes from now on makes its answer worthless.
    #[must_use]
    pub fn question(&self, asked: Asked<'_>) -> Question {
        let Principal { name, role, key_id, owner: _ } = asked.principal;
        let owner = format!("{}\n{}\n{name}", role.as_str(), key_id.as_deref().unwrap_or_default());
        let key = Key {
            method: asked.method,
            subject: asked.subject.into(),
            digest: asked.digest.into(),
            capabilities: Arc::new(asked.capabilities.clone()),
            owner: Some(owner.into()),
        };
        Question { stamp: self.stamp(asked.subject), key }
    }

    /// The answer, if a fresh one was kept for this principal or for everybody. Counted as a hit or a miss.
    #[must_use]
    pub fn answer(&self, question: &Question) -> Option<Fresh> {
        let everybodys = Key { owner: None, ..question.key.clone() };
        let fresh = [&question.key, &everybodys].into_iter().find_map(|key| {
            let entry = self.entries.get(key)?;
            let left = entry.ttl.checked_sub(entry.received.elapsed()).filter(|left| !left.is_zero());
            match left {
                Some(left) if entry.stamp == question.stamp => Some(Fresh { result: entry.result.clone(), left }),
                _ => {
                    self.entries.invalidate(key);
                    None
                }
            }
        });
        let metrics = CacheMetrics::of(countersign_telemetry::metrics::Cache::Upstreams);
        if fresh.is_some() {
            metrics.hit()
        } else {
            metrics.miss()
        }
        fresh
    }

    /// Keeps an answer that has just arrived, for `ttl_ms` milliseconds.
    pub fn keep(&self, question: &Question, result: &RawValue, ttl_ms: u64, public: bool) {
        let Question { key, stamp } = question;
        let useless = ttl_ms == 0 || result.get().len() > LARGEST || *stamp != self.stamp(&key.subject);
        if useless {
            return;
        }
        let key = Key { owner: key.owner.clone().filter(|_| !public), ..key.clone() };
        let ttl = Duration::from_millis(ttl_ms).min(LONGEST);
        let entry = CachedResult { result: result.to_owned(), received: Instant::now(), ttl, stamp: *stamp };
        self.entries.insert(key, Arc::new(entry));
    }

    /// It offers something else, was reached anew, or was told to change something.
    pub fn forget_all(&self) {
        self.all.fetch_add(1, Ordering::AcqRel);
        self.entries.invalidate_all();
    }

    /// That resource has changed, and with it those that it may be a part of: what is watched may be told of by the
    /// name of a part (2026-07-28/server/resources, "Subscriptions").
    pub fn forget(&self, uri: &str) {
        self.slot(uri).fetch_add(1, Ordering::AcqRel);
        for (at, _) in uri.match_indices('/').take(ABOVE) {
            for above in [uri.get(..at), uri.get(..=at)].into_iter().flatten() {
                self.slot(above).fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the number of slots")]
    fn slot(&self, subject: &str) -> &AtomicU64 {
        &self.subjects[(self.hasher.hash_one(subject) % SLOTS as u64) as usize]
    }

    fn stamp(&self, subject: &str) -> Stamp {
        Stamp { all: self.all.load(Ordering::Acquire), subject: self.slot(subject).load(Ordering::Acquire) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::principal::Role;

    fn question(cache: &Cache, who: &str, subject: &str, digest: &str) -> Question {
        let principal = Principal { name: who.into(), role: Role::Agent, key_id: None, owner: None };
        cache.question(Asked {
            method: "resources/read",
            subject,
            digest: digest.into(),
            capabilities: &ClientCapabilities::default(),
            principal: &principal,
        })
    }

    fn keep(cache: &Cache, who: &str, subject: &str, public: bool) {
        let asked = question(cache, who, subject, "d");
        cache.keep(&asked, &RawValue::from_string(format!("{{\"of\":\"{who}\"}}")).unwrap(), 1000, public);
    }

    fn found(cache: &Cache, who: &str, subject: &str) -> Option<String> {
        cache.answer(&question(cache, who, subject, "d")).map(|fresh| fresh.result.get().to_owned())
    }

    #[actix::test]
    async fn an_answer_is_its_principals_unless_it_is_public_and_ages() {
        tokio::time::pause();
        let cache = Cache::default();
        keep(&cache, "a", "x:1", false);
        assert_eq!(found(&cache, "a", "x:1").as_deref(), Some(r#"{"of":"a"}"#));
        assert_eq!((found(&cache, "b", "x:1"), found(&cache, "a", "x:2")), (None, None));
        let other = cache.answer(&question(&cache, "a", "x:1", "e"));
        assert!(other.is_none(), "other parameters");
        let with_key = Principal { name: "a".into(), role: Role::Agent, key_id: Some("k".into()), owner: None };
        let able = ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        let plain = ClientCapabilities::default();
        let a = Principal { key_id: None, ..with_key.clone() };
        for (principal, capabilities) in [(&with_key, &plain), (&a, &able)] {
            let asked = Asked { method: "resources/read", subject: "x:1", digest: "d".into(), capabilities, principal };
            assert!(cache.answer(&cache.question(asked)).is_none());
        }
        keep(&cache, "b", "x:3", true);
        assert_eq!(found(&cache, "a", "x:3").as_deref(), Some(r#"{"of":"b"}"#));
        tokio::time::advance(Duration::from_millis(400)).await;
        let fresh = cache.answer(&question(&cache, "a", "x:3", "d")).unwrap();
        assert_eq!(fresh.left, Duration::from_millis(600));
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!((found(&cache, "a", "x:3"), found(&cache, "a", "x:1")), (None, None));
    }

    #[test]
    fn what_changes_is_forgotten_also_where_its_answer_is_under_way() {
        let cache = Cache::default();
        let all = ["x:/a/b/c", "x:/a/b", "x:/a", "y:/a"];
        let fill = || all.iter().for_each(|uri| keep(&cache, "a", uri, false));
        let left = || all.iter().filter(|uri| found(&cache, "a", uri).is_some()).count();
        fill();
        assert_eq!(left(), 4);
        cache.forget("x:/a/b");
        assert!(found(&cache, "a", "x:/a/b").is_none() && found(&cache, "a", "x:/a").is_none());
        fill();
        cache.forget_all();
        assert_eq!(left(), 0);
        let (one, every) = (question(&cache, "a", "x:/a", "d"), question(&cache, "a", "y:/a", "d"));
        cache.forget("x:/a");
        cache.keep(&one, &RawValue::from_string("{}".into()).unwrap(), 1000, false);
        assert!(found(&cache, "a", "x:/a").is_none());
        cache.forget_all();
        cache.keep(&every, &RawValue::from_string("{}".into()).unwrap(), 1000, true);
        assert!(found(&cache, "a", "y:/a").is_none());
    }

    #[test]
    fn it_is_bounded() {
        let cache = Cache::default();
        let asked = question(&cache, "a", "x", "d");
        let large = RawValue::from_string(format!("\"{}\"", "x".repeat(LARGEST))).unwrap();
        cache.keep(&asked, &large, 1000, false);
        let any = RawValue::from_string("{}".into()).unwrap();
        cache.keep(&asked, &any, 0, false);
        assert!(cache.answer(&asked).is_none());
        cache.keep(&asked, &any, u64::MAX, false);
        assert!(cache.answer(&asked).unwrap().left <= LONGEST);
        for number in 0..40_000 {
            cache.keep(&question(&cache, "a", &number.to_string(), "d"), &any, 60_000, false);
        }
        cache.entries.run_pending_tasks();
        assert!(cache.entries.weighted_size() <= CAPACITY && cache.entries.entry_count() < 40_000);
    }
}
