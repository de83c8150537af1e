//! A cache for results of one upstream that declare a time to live (2026-07-28/server/utilities/caching).
//!
//! Entries contain the upstream's own text, which is adapted to each client's revision. The cache is bounded in bytes,
//! and therefore in number, because each entry counts at least [`ENTRY_OVERHEAD_BYTES`]. Invalidation increments a
//! generation that entries remember, so that an answer in flight at that time is not cached either.

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
use countersign_protocol::negotiate::ClientCapabilities;
use countersign_telemetry::metrics::CacheMetrics;

/// The maximum number of bytes of all entries of one upstream.
const CAPACITY_BYTES: u64 = 16 << 20;
/// The maximum number of bytes of a cached result.
const MAX_RESULT_BYTES: usize = 1 << 20;
/// The number of bytes that are counted for an entry in addition to its text.
const ENTRY_OVERHEAD_BYTES: usize = 512;
/// The maximum time to live, regardless of what the server declares.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of generation counters for resources. Resources that share a counter are invalidated together.
const COUNTER_SLOTS: usize = 256;
/// The maximum number of parent paths that are invalidated with a resource.
const MAX_ANCESTORS: usize = 32;

/// All properties on which an answer depends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CacheKey {
    method: &'static str,
    /// The upstream's own name or URI.
    subject: Arc<str>,
    /// Digest of the other parameters.
    digest: Arc<str>,
    /// A server may answer differently if it can ask the client.
    capabilities: Arc<ClientCapabilities>,
    /// The principal for whom the answer is cached. `None` if the answer is public.
    principal: Option<Arc<str>>,
}

/// The generations of all entries and of the subject, at the time of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Generations {
    all: u64,
    subject: u64,
}

/// A request whose answer may be cached.
#[derive(Debug)]
pub struct CacheLookup {
    key: CacheKey,
    generations: Generations,
}

/// The properties of a request on which its answer depends.
pub struct CacheRequest<'a> {
    pub method: &'static str,
    /// The upstream's own name or URI.
    pub subject: &'a str,
    /// Digest of all other parameters that the answer may depend on.
    pub digest: String,
    pub capabilities: &'a ClientCapabilities,
    pub principal: &'a Principal,
}

struct CachedResult {
    result: Box<RawValue>,
    received_at: Instant,
    ttl: Duration,
    generations: Generations,
}

/// A cached result that is still fresh.
#[derive(Debug)]
pub struct FreshResult {
    /// The result in the upstream's own text.
    pub result: Box<RawValue>,
    /// The remaining time to live.
    pub remaining_ttl: Duration,
}

/// The cached results of one upstream.
pub struct Cache {
    entries: moka::sync::Cache<CacheKey, Arc<CachedResult>>,
    all_generation: AtomicU64,
    subject_generations: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// Removes results when their time to live has passed.
struct Lifetime;

impl moka::Expiry<CacheKey, Arc<CachedResult>> for Lifetime {
    fn expire_after_create(&self, _: &CacheKey, entry: &Arc<CachedResult>, _: std::time::Instant) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(
        &self,
        _: &CacheKey,
        entry: &Arc<CachedResult>,
        _: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        Some(entry.ttl)
    }
}

impl Default for Cache {
    fn default() -> Self {
        let weigh = |key: &CacheKey, entry: &Arc<CachedResult>| {
            let bytes = key.subject.len() + key.digest.len() + entry.result.get().len() + ENTRY_OVERHEAD_BYTES;
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        Self {
            entries: moka::sync::Cache::builder()
                .max_capacity(CAPACITY_BYTES)
                .weigher(weigh)
                .expire_after(Lifetime)
                .build(),
            all_generation: AtomicU64::new(0),
            subject_generations: (0..COUNTER_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl Cache {
    /// Prepares the lookup of a request before it is sent, so that later changes invalidate its answer.
    pub fn prepare(&self, request: CacheRequest<'_>) -> CacheLookup {
        let Principal { name, role, key_id, owner: _, claims: _, key_creators: _ } = request.principal;
        let principal = format!("{}\n{}\n{name}", role.as_str(), key_id.as_deref().unwrap_or_default());
        let key = CacheKey {
            method: request.method,
            subject: request.subject.into(),
            digest: request.digest.into(),
            capabilities: Arc::new(request.capabilities.clone()),
            principal: Some(principal.into()),
        };
        CacheLookup { generations: self.current_generations(request.subject), key }
    }

    /// Returns a fresh answer cached for this principal or for everybody, and counts a hit or a miss.
    pub fn get(&self, lookup: &CacheLookup) -> Option<FreshResult> {
        let public_key = CacheKey { principal: None, ..lookup.key.clone() };
        let fresh = [&lookup.key, &public_key].into_iter().find_map(|key| {
            let entry = self.entries.get(key)?;
            let remaining_ttl = entry.ttl.checked_sub(entry.received_at.elapsed()).filter(|ttl| !ttl.is_zero());
            let remaining_ttl = remaining_ttl.filter(|_| entry.generations == lookup.generations);
            if remaining_ttl.is_none() {
                self.entries.invalidate(key);
            }
            Some(FreshResult { result: entry.result.clone(), remaining_ttl: remaining_ttl? })
        });
        let metrics = CacheMetrics::for_cache(countersign_telemetry::metrics::Cache::Upstreams);
        if fresh.is_some() {
            metrics.hit()
        } else {
            metrics.miss()
        }
        fresh
    }

    /// Caches an answer that has just arrived, for `ttl_ms` milliseconds.
    pub fn insert(&self, lookup: &CacheLookup, result: &RawValue, ttl_ms: u64, is_public: bool) {
        let CacheLookup { key, generations } = lookup;
        let is_uncacheable = ttl_ms == 0
            || result.get().len() > MAX_RESULT_BYTES
            || *generations != self.current_generations(&key.subject);
        if is_uncacheable {
            return;
        }
        let key = CacheKey { principal: key.principal.clone().filter(|_| !is_public), ..key.clone() };
        let ttl = Duration::from_millis(ttl_ms).min(MAX_TTL);
        let entry =
            CachedResult { result: result.to_owned(), received_at: Instant::now(), ttl, generations: *generations };
        self.entries.insert(key, Arc::new(entry));
    }

    /// Invalidates all entries: the lists have changed, the upstream was reconnected, or a call may have changed its
    /// state.
    pub fn invalidate_all(&self) {
        self.all_generation.fetch_add(1, Ordering::AcqRel);
        self.entries.invalidate_all();
    }

    /// Invalidates a resource and the parents that may contain it, because a notification may name a part of the
    /// watched resource (2026-07-28/server/resources, "Subscriptions").
    pub fn invalidate(&self, uri: &str) {
        self.subject_generation(uri).fetch_add(1, Ordering::AcqRel);
        for (index, _) in uri.match_indices('/').take(MAX_ANCESTORS) {
            for parent in [uri.get(..index), uri.get(..=index)].into_iter().flatten() {
                self.subject_generation(parent).fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below the number of slots")]
    fn subject_generation(&self, subject: &str) -> &AtomicU64 {
        &self.subject_generations[(self.hasher.hash_one(subject) % COUNTER_SLOTS as u64) as usize]
    }

    fn current_generations(&self, subject: &str) -> Generations {
        Generations {
            all: self.all_generation.load(Ordering::Acquire),
            subject: self.subject_generation(subject).load(Ordering::Acquire),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::principal::Role;

    fn prepare(cache: &Cache, principal: &str, subject: &str, digest: &str) -> CacheLookup {
        let principal = Principal::new(principal, Role::Agent);
        cache.prepare(CacheRequest {
            method: "resources/read",
            subject,
            digest: digest.into(),
            capabilities: &ClientCapabilities::default(),
            principal: &principal,
        })
    }

    fn insert(cache: &Cache, principal: &str, subject: &str, is_public: bool) {
        let lookup = prepare(cache, principal, subject, "d");
        cache.insert(&lookup, &RawValue::from_string(format!("{{\"of\":\"{principal}\"}}")).unwrap(), 1000, is_public);
    }

    fn cached_answer(cache: &Cache, principal: &str, subject: &str) -> Option<String> {
        cache.get(&prepare(cache, principal, subject, "d")).map(|fresh| fresh.result.get().to_owned())
    }

    #[actix::test]
    async fn cached_answer_is_private_unless_public_and_expires() {
        tokio::time::pause();
        let cache = Cache::default();
        insert(&cache, "a", "x:1", false);
        assert_eq!(cached_answer(&cache, "a", "x:1").as_deref(), Some(r#"{"of":"a"}"#));
        assert_eq!((cached_answer(&cache, "b", "x:1"), cached_answer(&cache, "a", "x:2")), (None, None));
        let other = cache.get(&prepare(&cache, "a", "x:1", "e"));
        assert!(other.is_none(), "other parameters");
        let with_key = Principal { key_id: Some("k".into()), ..Principal::new("a", Role::Agent) };
        let able = ClientCapabilities { roots: true, ..ClientCapabilities::default() };
        let plain = ClientCapabilities::default();
        let a = Principal { key_id: None, ..with_key.clone() };
        for (principal, capabilities) in [(&with_key, &plain), (&a, &able)] {
            let lookup =
                CacheRequest { method: "resources/read", subject: "x:1", digest: "d".into(), capabilities, principal };
            assert!(cache.get(&cache.prepare(lookup)).is_none());
        }
        insert(&cache, "b", "x:3", true);
        assert_eq!(cached_answer(&cache, "a", "x:3").as_deref(), Some(r#"{"of":"b"}"#));
        tokio::time::advance(Duration::from_millis(400)).await;
        let fresh = cache.get(&prepare(&cache, "a", "x:3", "d")).unwrap();
        assert_eq!(fresh.remaining_ttl, Duration::from_millis(600));
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!((cached_answer(&cache, "a", "x:3"), cached_answer(&cache, "a", "x:1")), (None, None));
    }

    #[test]
    fn invalidation_covers_answers_in_flight() {
        let cache = Cache::default();
        let all = ["x:/a/b/c", "x:/a/b", "x:/a", "y:/a"];
        let fill = || all.iter().for_each(|uri| insert(&cache, "a", uri, false));
        let cached_count = || all.iter().filter(|uri| cached_answer(&cache, "a", uri).is_some()).count();
        fill();
        assert_eq!(cached_count(), 4);
        cache.invalidate("x:/a/b");
        assert!(cached_answer(&cache, "a", "x:/a/b").is_none() && cached_answer(&cache, "a", "x:/a").is_none());
        fill();
        cache.invalidate_all();
        assert_eq!(cached_count(), 0);
        let (by_uri, by_all) = (prepare(&cache, "a", "x:/a", "d"), prepare(&cache, "a", "y:/a", "d"));
        cache.invalidate("x:/a");
        cache.insert(&by_uri, &RawValue::from_string("{}".into()).unwrap(), 1000, false);
        assert!(cached_answer(&cache, "a", "x:/a").is_none());
        cache.invalidate_all();
        cache.insert(&by_all, &RawValue::from_string("{}".into()).unwrap(), 1000, true);
        assert!(cached_answer(&cache, "a", "y:/a").is_none());
    }

    #[test]
    fn cache_is_bounded_and_limits_ttl() {
        let cache = Cache::default();
        let request = prepare(&cache, "a", "x", "d");
        let large = RawValue::from_string(format!("\"{}\"", "x".repeat(MAX_RESULT_BYTES))).unwrap();
        cache.insert(&request, &large, 1000, false);
        let any = RawValue::from_string("{}".into()).unwrap();
        cache.insert(&request, &any, 0, false);
        assert!(cache.get(&request).is_none());
        cache.insert(&request, &any, u64::MAX, false);
        assert!(cache.get(&request).unwrap().remaining_ttl <= MAX_TTL);
        for number in 0..40_000 {
            cache.insert(&prepare(&cache, "a", &number.to_string(), "d"), &any, 60_000, false);
        }
        cache.entries.run_pending_tasks();
        assert!(cache.entries.weighted_size() <= CAPACITY_BYTES && cache.entries.entry_count() < 40_000);
    }
}
