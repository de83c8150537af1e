//! The gateway's side: requests in the background, and the feed, which is taken up again where it broke.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use futures_util::StreamExt;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use super::model::{Brief, MAX_LISTED};
use crate::{
    changes::feed::{Event, Parser},
    client::{Client, FEED_BACKOFF, Refusal, ResponseBody},
    exit::Failure,
};
use countersign_domain::changes::{Change, ChangeState};

/// The gateway sends a comment every few seconds: longer silence is a dead connection.
const SILENCE: Duration = Duration::from_secs(90);
const PAGE: &str = "100";

/// What comes from the gateway.
pub enum News {
    /// A page of the list, of the request with this number.
    Listed {
        request: u64,
        first: bool,
        page: Vec<Brief>,
        counts: BTreeMap<ChangeState, u64>,
        more: bool,
    },
    Counts(BTreeMap<ChangeState, u64>),
    /// A change as it is now; `show` where it was asked to be opened.
    Change {
        change: Box<Change>,
        show: bool,
    },
    Timeline {
        id: String,
        entries: Vec<(Timestamp, String, String)>,
    },
    /// A request that changed something came back.
    Done {
        answer: ResponseBody,
        said: &'static str,
        many: bool,
    },
    Refused {
        what: String,
        id: Option<String>,
    },
    /// A request of the list failed.
    NotListed {
        request: u64,
        why: String,
    },
    /// The feed: connected (everything is to be read again), lost, a change moved.
    Live,
    Lost,
    Moved(String),
    /// The feed cannot be had: no key, or no right.
    Over(Failure),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    changes: Vec<Brief>,
    next_cursor: Option<String>,
    #[serde(default)]
    counts: BTreeMap<ChangeState, u64>,
}

/// Sends requests; clones share the connection.
#[derive(Clone)]
pub struct Net {
    pub client: Rc<Client>,
    pub news: Sender<News>,
}

impl Net {
    async fn tell(&self, news: News) {
        let _ = self.news.send(news).await;
    }

    /// The list, page by page; `request` tells answers to an older question.
    pub fn list(&self, request: u64, query: Vec<(&'static str, String)>) -> actix_web::rt::task::JoinHandle<()> {
        let net = self.clone();
        actix_web::rt::spawn(async move {
            let (mut cursor, mut many): (Option<String>, usize) = (None, 0);
            loop {
                let mut parts: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
                parts.push(("limit", PAGE));
                parts.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let page: Result<Page, Failure> = match net.client.get(&["changes"], &parts).await {
                    Ok(answer) => answer.read(),
                    Err(refusal) => Err(refusal.into()),
                };
                let page = match page {
                    Ok(page) => page,
                    Err(failure) => return net.tell(News::NotListed { request, why: failure.message }).await,
                };
                let (first, empty) = (many == 0, page.changes.is_empty());
                many += page.changes.len();
                let more = page.next_cursor.is_some() && !empty;
                net.tell(News::Listed { request, first, page: page.changes, counts: page.counts, more }).await;
                if !more || many >= MAX_LISTED {
                    return;
                }
                cursor = page.next_cursor;
            }
        })
    }

    /// The numbers of changes in each state.
    pub fn count(&self) {
        let net = self.clone();
        actix_web::rt::spawn(async move {
            if let Ok(answer) = net.client.get(&["changes"], &[("limit", "1")]).await
                && let Ok(page) = answer.read::<Page>()
            {
                net.tell(News::Counts(page.counts)).await;
            }
        });
    }

    /// One change, to be opened or not; with its timeline where that is looked at.
    pub fn change(&self, id: String, show: bool, trail: bool) {
        let net = self.clone();
        actix_web::rt::spawn(async move {
            let change = match net.client.get(&["changes", &id], &[]).await {
                Ok(answer) => answer.read::<Change>(),
                Err(refusal) => Err(refusal.into()),
            };
            match change {
                Ok(change) => net.tell(News::Change { change: Box::new(change), show }).await,
                Err(failure) => return net.tell(News::Refused { what: failure.message, id: None }).await,
            }
            if trail {
                net.timeline(&id).await;
            }
        });
    }

    async fn timeline(&self, id: &str) {
        #[derive(Deserialize)]
        struct TrailEntry {
            at: Timestamp,
            event: String,
            actor: String,
        }
        #[derive(Deserialize)]
        struct Trail {
            entries: Vec<TrailEntry>,
        }
        if let Ok(answer) = self.client.get(&["audit"], &[("change", id), ("limit", PAGE)]).await
            && let Ok(trail) = answer.read::<Trail>()
        {
            let mut entries: Vec<_> = trail.entries.into_iter().map(|e| (e.at, e.event, e.actor)).collect();
            entries.reverse();
            self.tell(News::Timeline { id: id.to_owned(), entries }).await;
        }
    }

    /// Something that changes something.
    pub fn post(&self, path: Vec<String>, body: String, said: &'static str) {
        let net = self.clone();
        actix_web::rt::spawn(async move {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let many = path.len() == 1;
            let news = match net.client.post_text(&parts, body).await {
                Ok(answer) => News::Done { answer, said, many },
                Err(refusal) => {
                    let id = path.get(1).cloned();
                    News::Refused { what: Failure::from(refusal).message, id }
                }
            };
            net.tell(news).await;
        });
    }

    /// Follows the feed for good.
    pub async fn follow(self) {
        let (mut seen, mut failures, mut connected) = (None, 0, false);
        loop {
            match self.client.feed(seen).await {
                Ok(mut stream) => {
                    (connected, failures) = (true, 0);
                    self.tell(News::Live).await;
                    let mut parser = Parser::default();
                    while let Ok(Some(Ok(bytes))) = tokio::time::timeout(SILENCE, stream.next()).await {
                        let Ok(events) = parser.feed(&bytes) else { break };
                        for event in events {
                            self.take(&event, &mut seen).await;
                        }
                    }
                    self.tell(News::Lost).await;
                }
                Err(refusal) if may_pass(connected, &refusal) => self.tell(News::Lost).await,
                Err(refusal) => return self.tell(News::Over(refusal.into())).await,
            }
            tokio::time::sleep(FEED_BACKOFF.step(failures)).await;
            failures += 1;
        }
    }

    async fn take(&self, event: &Event, seen: &mut Option<u64>) {
        let said: Value = serde_json::from_str(&event.data).unwrap_or_default();
        *seen = event.id.or_else(|| said.get("seq").and_then(Value::as_u64)).or(*seen);
        match (event.kind.as_str(), said.pointer("/change/id").and_then(Value::as_str)) {
            // Events are gone: only the whole list tells what happened.
            ("reset", _) => self.tell(News::Live).await,
            (_, Some(id)) => self.tell(News::Moved(id.to_owned())).await,
            _ => {}
        }
    }
}

/// A first attempt that fails is told; a later one may be a gateway that restarts.
fn may_pass(connected: bool, refusal: &Refusal) -> bool {
    connected && refusal.is_temporary()
}
