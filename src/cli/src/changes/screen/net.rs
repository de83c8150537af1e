//! Talks to the gateway: sends requests in the background, and follows the event feed, which resumes after a lost
//! connection.

use std::{collections::BTreeMap, rc::Rc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::mpsc::Sender;

use super::model::{ListedBundle, ListedChange, MAX_LISTED, TrailEntry};
use crate::{
    changes::feed::{self, FeedUpdate},
    client::{Client, ResponseBody},
    exit::Failure,
};
use countersign_domain::changes::{Change, ChangeState};
use countersign_protocol::event_stream::Event;
use countersign_runtime::background;

const PAGE_SIZE: &str = "100";

/// Events about the gateway that are sent to the loop of the inbox.
pub enum GatewayEvent {
    /// A page of the list, from the request for the list with the number `request`.
    Listed {
        request: u64,
        first: bool,
        page: Vec<ListedChange>,
        counts: BTreeMap<ChangeState, u64>,
        has_more: bool,
    },
    Counts(BTreeMap<ChangeState, u64>),
    Bundles(Vec<ListedBundle>),
    /// The current state of a change; `show` is set if the user asked to open it.
    Change {
        change: Box<Change>,
        show: bool,
    },
    Timeline {
        id: String,
        entries: Vec<TrailEntry>,
    },
    /// The response to a request that changed something.
    Done {
        answer: ResponseBody,
        done_message: &'static str,
        is_bulk: bool,
    },
    /// A request that was to change something was refused. `id` is the change, or `None` if it decided on several.
    Refused {
        message: String,
        id: Option<String>,
    },
    /// A change could not be fetched.
    ReadFailed(String),
    /// A request for the list failed.
    ListFailed {
        request: u64,
        reason: String,
    },
    /// The feed is connected, or has lost events, so everything must be fetched again.
    FeedConnected,
    /// The connection to the feed was lost.
    FeedLost,
    /// The feed reported an update of the change with this id.
    Updated(String),
    /// The feed was refused or could not be reached, so the inbox ends.
    FeedFailed(Failure),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    changes: Vec<ListedChange>,
    next_cursor: Option<String>,
    #[serde(default)]
    counts: BTreeMap<ChangeState, u64>,
}

/// Sends requests; clones share the connection.
#[derive(Clone)]
pub struct GatewayConnection {
    pub client: Rc<Client>,
    pub events: Sender<GatewayEvent>,
}

impl GatewayConnection {
    async fn send(&self, event: GatewayEvent) {
        let _ = self.events.send(event).await;
    }

    /// Fetches a resource. Returns `None` if it cannot be fetched, as from a gateway of an earlier version.
    async fn fetch<T: DeserializeOwned>(&self, path: &[&str], query: &[(&str, &str)]) -> Option<T> {
        self.client.get(path, query).await.ok()?.read().ok()
    }

    /// Fetches the list page by page; the number `request` identifies outdated answers.
    pub fn load_list(&self, request: u64, query: Vec<(&'static str, String)>) -> actix_web::rt::task::JoinHandle<()> {
        let net = self.clone();
        background::spawn(async move {
            let (mut cursor, mut loaded_changes): (Option<String>, usize) = (None, 0);
            loop {
                let mut parts: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
                parts.push(("limit", PAGE_SIZE));
                parts.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
                let answer = net.client.get(&["changes"], &parts).await;
                let page: Page = match answer.and_then(|answer| answer.read()) {
                    Ok(page) => page,
                    Err(failure) => {
                        return net.send(GatewayEvent::ListFailed { request, reason: failure.message }).await;
                    }
                };
                let (first, is_empty) = (loaded_changes == 0, page.changes.is_empty());
                loaded_changes += page.changes.len();
                let has_more = page.next_cursor.is_some() && !is_empty;
                net.send(GatewayEvent::Listed { request, first, page: page.changes, counts: page.counts, has_more })
                    .await;
                if !has_more || loaded_changes >= MAX_LISTED {
                    return;
                }
                cursor = page.next_cursor;
            }
        })
    }

    /// Fetches the bundles.
    pub fn load_bundles(&self) {
        #[derive(Deserialize)]
        struct BundleList {
            bundles: Vec<ListedBundle>,
        }
        let net = self.clone();
        background::spawn(async move {
            if let Some(BundleList { bundles }) = net.fetch(&["bundles"], &[]).await {
                net.send(GatewayEvent::Bundles(bundles)).await;
            }
        });
    }

    /// Fetches the number of changes in each state.
    pub fn load_counts(&self) {
        let net = self.clone();
        background::spawn(async move {
            if let Some(Page { counts, .. }) = net.fetch(&["changes"], &[("limit", "1")]).await {
                net.send(GatewayEvent::Counts(counts)).await;
            }
        });
    }

    /// Fetches a change, and its timeline with `with_timeline`. With `show`, the change is opened.
    pub fn load_change(&self, id: String, show: bool, with_timeline: bool) {
        let net = self.clone();
        background::spawn(async move {
            match net.client.get_change(&id).await {
                Ok(change) => net.send(GatewayEvent::Change { change: Box::new(change), show }).await,
                Err(failure) => return net.send(GatewayEvent::ReadFailed(failure.message)).await,
            }
            if with_timeline {
                net.load_timeline(&id).await;
            }
        });
    }

    async fn load_timeline(&self, id: &str) {
        #[derive(Deserialize)]
        struct Trail {
            entries: Vec<TrailEntry>,
        }
        if let Some(Trail { mut entries }) = self.fetch(&["audit"], &[("change", id), ("limit", PAGE_SIZE)]).await {
            entries.reverse();
            self.send(GatewayEvent::Timeline { id: id.to_owned(), entries }).await;
        }
    }

    /// Sends a request that changes something.
    pub fn post(&self, path: Vec<String>, body: String, done_message: &'static str) {
        let net = self.clone();
        background::spawn(async move {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let is_bulk = path.len() == 1;
            let event = match net.client.post_text(&parts, body).await {
                Ok(answer) => GatewayEvent::Done { answer, done_message, is_bulk },
                Err(failure) => GatewayEvent::Refused { message: failure.message, id: path.get(1).cloned() },
            };
            net.send(event).await;
        });
    }

    /// Follows the feed until it is refused or cannot be reached.
    pub async fn follow(self) {
        let follow_feed = feed::follow(&self.client, None, async |update, last_seq: &mut Option<u64>| {
            match update {
                FeedUpdate::Connected => self.send(GatewayEvent::FeedConnected).await,
                FeedUpdate::Event(event) => self.handle_event(&event, last_seq).await,
                FeedUpdate::Lost => self.send(GatewayEvent::FeedLost).await,
            }
            Ok(())
        });
        if let Err(failure) = follow_feed.await {
            self.send(GatewayEvent::FeedFailed(failure)).await;
        }
    }

    async fn handle_event(&self, event: &Event, last_seq: &mut Option<u64>) {
        let data: Value = String::from_utf8_lossy(&event.data).parse().unwrap_or_default();
        *last_seq = data["seq"].as_u64().or(*last_seq);
        match (event.name.as_str(), data["change"]["id"].as_str()) {
            // Events were lost, so only the whole list tells the current state.
            ("reset", _) => self.send(GatewayEvent::FeedConnected).await,
            (_, Some(id)) => self.send(GatewayEvent::Updated(id.to_owned())).await,
            _ => {}
        }
    }
}
