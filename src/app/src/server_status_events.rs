//! Tells the feed what people want to hear of servers: that one is away or back, that its breaker opened or closed, and
//! that tools are new or others and wait to be accepted.
//!
//! It looks every second in place of an event for each step: a server that is restarted is no news, one that stays away
//! is, and a breaker closes again without an event. Its events are live only. After a restart it tells again of what still
//! waits to be accepted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use countersign_domain::policy::standing::DefinitionStatus;
use countersign_feed::Feed;
use countersign_protocol::redact::redact;
use countersign_routing::table::{PublishedTable, RouteTable};
use countersign_telemetry::metrics::Breaker;
use countersign_upstream::server::Phase;

const LOOK: Duration = Duration::from_secs(1);
/// Looks that a server must be away, or back, before it is told.
const LASTS: u32 = 3;
/// Names of tools in one event; how many there are is said as well.
const NAMED: usize = 20;

/// How a server is at a look.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// `None` while it is on the way.
    up: Option<bool>,
    error: Option<String>,
    /// `None` while a call tries.
    breaker_open: Option<bool>,
}

/// What is known of a server, and was told.
#[derive(Debug, Default)]
struct Known {
    /// As told; `None` before it was ever up or told to be down.
    up: Option<bool>,
    /// Looks in a row that said otherwise.
    otherwise: u32,
    breaker_open: bool,
    new: BTreeSet<String>,
    changed: BTreeSet<String>,
}

/// Tools that wait to be accepted: new ones, and those that are others by now.
type Waiting = (BTreeSet<String>, BTreeSet<String>);

/// See the module's page.
#[derive(Debug, Default)]
struct News(BTreeMap<String, Known>);

impl News {
    /// Takes a look; answers what is to be told.
    fn look(&mut self, servers: &BTreeMap<String, Seen>, waiting: Option<&BTreeMap<String, Waiting>>) -> Vec<Value> {
        // One that is not configured any more says nothing.
        self.0.retain(|name, _| servers.contains_key(name));
        let mut told = Vec::new();
        for (name, seen) in servers {
            let known = self.0.entry(name.clone()).or_default();
            let mut tell = |kind: &str, more: Value| {
                let mut event = json!({ "type": kind, "provider": name });
                if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
                    event.extend(more);
                }
                told.push(event);
            };
            if let Some(up) = known.hears(seen.up) {
                let error = if up { Value::Null } else { json!(seen.error) };
                tell(if up { "provider.up" } else { "provider.down" }, json!({ "error": error }));
            }
            if let Some(open) = seen.breaker_open.filter(|open| *open != known.breaker_open) {
                known.breaker_open = open;
                let kind = if open { "provider.breaker_opened" } else { "provider.breaker_closed" };
                tell(kind, json!({ "error": if open { json!(seen.error) } else { Value::Null } }));
            }
            let none = Waiting::default();
            if let Some((new, changed)) = waiting.map(|waiting| waiting.get(name).unwrap_or(&none)) {
                let news: Vec<&String> = new.difference(&known.new).collect();
                let others: Vec<&String> = changed.difference(&known.changed).collect();
                if !news.is_empty() || !others.is_empty() {
                    let tools: Vec<&String> = others.iter().chain(&news).copied().take(NAMED).collect();
                    tell(
                        "provider.tools_waiting",
                        json!({ "tools": tools, "new": news.len(), "changed": others.len() }),
                    );
                }
                (known.new, known.changed) = (new.clone(), changed.clone());
            }
        }
        told
    }
}

impl Known {
    /// Whether it is up, if that is news. That a server is reached for the first time is none.
    fn hears(&mut self, up: Option<bool>) -> Option<bool> {
        match (self.up, up) {
            // On the way says neither; on the way again and again is being away.
            (Some(true), None) | (_, Some(false)) if self.up != Some(false) => self.otherwise += 1,
            (Some(false), Some(true)) => self.otherwise += 1,
            (None, Some(true)) => {
                (self.up, self.otherwise) = (Some(true), 0);
                return None;
            }
            (None, None) => return None,
            _ => {
                self.otherwise = 0;
                return None;
            }
        }
        if self.otherwise < LASTS {
            return None;
        }
        self.otherwise = 0;
        self.up = Some(self.up == Some(false));
        self.up
    }
}

fn servers(table: &RouteTable) -> BTreeMap<String, Seen> {
    let upstreams = table.providers().iter().filter_map(|provider| provider.upstream());
    let seen = upstreams.map(|upstream| {
        let phase = upstream.phase();
        let error = match &phase {
            Phase::Down(error) => Some(redact(&error.to_string()).chars().take(500).collect()),
            _ => None,
        };
        let up = match phase {
            Phase::Up => Some(true),
            Phase::Down(_) => Some(false),
            Phase::Connecting => None,
        };
        let breaker_open = match upstream.breaker_state() {
            Breaker::Open => Some(true),
            Breaker::Closed => Some(false),
            Breaker::HalfOpen => None,
        };
        (upstream.config.name.clone(), Seen { up, error, breaker_open })
    });
    seen.collect()
}

fn waiting(table: &RouteTable) -> BTreeMap<String, Waiting> {
    let mut all: BTreeMap<String, Waiting> = BTreeMap::new();
    for route in table.tools() {
        let (new, changed) = match route.standing {
            DefinitionStatus::New => (true, false),
            DefinitionStatus::Changed => (false, true),
            _ => continue,
        };
        let of = all.entry(route.provider.name().to_owned()).or_default();
        if new {
            of.0.insert(route.name.to_string());
        }
        if changed {
            of.1.insert(route.name.to_string());
        }
    }
    all
}

/// Looks until the gateway ends.
pub async fn run(routes: Arc<PublishedTable>, feed: Feed, shutdown: CancellationToken) {
    let mut news = News::default();
    let mut looked_at: Option<Arc<RouteTable>> = None;
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let table = routes.load_full();
        // A table may hold many tools, and is seldom another.
        let other = looked_at.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &table));
        let tools = other.then(|| waiting(&table));
        for mut event in news.look(&servers(&table), tools.as_ref()) {
            event["at"] = Timestamp::now().to_string().into();
            tracing::debug!(kind = %event["type"], provider = %event["provider"], "news of a server");
            feed.publish_session(&event);
        }
        looked_at = Some(table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(up: Option<bool>, breaker_open: Option<bool>) -> BTreeMap<String, Seen> {
        let error = (up == Some(false)).then(|| "gone".to_owned());
        [("files".to_owned(), Seen { up, error, breaker_open })].into()
    }

    fn kinds(told: &[Value]) -> Vec<&str> {
        told.iter().map(|event| event["type"].as_str().unwrap()).collect()
    }

    /// What each look tells.
    fn looks(ups: &[Option<bool>]) -> Vec<String> {
        let mut news = News::default();
        let told = ups.iter().flat_map(|up| news.look(&seen(*up, Some(false)), None)).collect::<Vec<_>>();
        kinds(&told).into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn a_server_that_stays_away_is_news_and_a_restart_is_not() {
        let (up, down, way) = (Some(true), Some(false), None);
        assert!(looks(&[way, up, up, down, way, up, down, up, up]).is_empty());
        assert_eq!(looks(&[way, up, down, way, down, down, way, way, down]), ["provider.down"], "once");
        assert_eq!(looks(&[up, down, down, down, up, down, up, up, up, up]), ["provider.down", "provider.up"]);
        assert_eq!(looks(&[way, way, way, way, down, down, down]), ["provider.down"], "never there at all");
        assert!(looks(&[way, way, way, way, way]).is_empty());
        assert!(looks(&[]).is_empty());
    }

    #[test]
    fn a_breaker_is_told_once_for_each_way() {
        let mut news = News::default();
        let mut told = Vec::new();
        for open in [Some(false), Some(true), None, Some(true), None, Some(false), Some(false)] {
            told.extend(news.look(&seen(Some(true), open), None));
        }
        assert_eq!(kinds(&told), ["provider.breaker_opened", "provider.breaker_closed"]);
        news.look(&seen(Some(true), Some(true)), None);
        news.look(&BTreeMap::new(), None);
        assert!(news.look(&seen(Some(true), Some(false)), None).is_empty(), "who is gone is forgotten");
    }

    #[test]
    fn tools_that_begin_to_wait_are_named_once() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let waits = |new: &[&str], changed: &[&str]| [("files".to_owned(), (set(new), set(changed)))].into();
        let (mut news, up) = (News::default(), seen(Some(true), Some(false)));
        assert!(news.look(&up, Some(&waits(&[], &[]))).is_empty());
        let told = news.look(&up, Some(&waits(&["b", "c"], &["a"])));
        assert_eq!(told[0]["tools"], json!(["a", "b", "c"]));
        assert_eq!((&told[0]["new"], &told[0]["changed"]), (&json!(2), &json!(1)));
        assert!(news.look(&up, Some(&waits(&["b", "c"], &["a"]))).is_empty());
        assert!(news.look(&up, None).is_empty(), "the table is the same");
        assert!(news.look(&up, Some(&waits(&[], &["a"]))).is_empty(), "accepted");
        assert_eq!(news.look(&up, Some(&waits(&["b"], &["a"]))).len(), 1, "and new again");
        let many: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
        let many = waits(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let told = news.look(&up, Some(&many));
        assert_eq!((told[0]["tools"].as_array().unwrap().len(), &told[0]["new"]), (NAMED, &json!(50)));
    }
}
