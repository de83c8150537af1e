//! Forgets webhooks that are in the configuration no more, at the node that leads by now: who led when they were taken out
//! may have ended before it did.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use countersign_store::{Nodes, StoreError, nodes::Node, webhooks::Deliveries};

/// How often it is looked whether this node leads by now.
const LOOK: Duration = Duration::from_secs(1);
/// For so long a node that is gone may have had the newer configuration.
const RECENT: SignedDuration = SignedDuration::from_hours(24);

pub(super) struct Forgetful {
    pub store: Arc<dyn Deliveries>,
    pub nodes: Arc<dyn Nodes>,
    /// One set of webhooks after another.
    pub turn: Arc<tokio::sync::Mutex<()>>,
}

impl Forgetful {
    /// Once each time that this node begins to lead; not while another node has another configuration or version, or had it
    /// within the last day: that may be the newer one. `names` are those of the webhooks of this one.
    pub async fn run(self, names: impl Fn() -> Vec<String>, shutdown: CancellationToken) {
        let mut done = false;
        loop {
            if !self.nodes.leads() {
                done = false;
            } else if !done {
                let _turn = self.turn.lock().await;
                match self.forget(names()).await {
                    Ok(forgot) => done = forgot,
                    Err(error) => tracing::warn!(%error, "webhooks that are gone cannot be forgotten; trying again"),
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Whether it was the time for it.
    async fn forget(&self, names: Vec<String>) -> Result<bool, StoreError> {
        // As of before the look: who leads by then is not this one.
        let by = self.nodes.claimant();
        if !agree(&self.nodes.list().await?, self.nodes.now()) {
            return Ok(false);
        }
        let store = by.and_then(|by| self.store.led_by(&by)).unwrap_or_else(|| Arc::clone(&self.store));
        let kept = tokio::task::spawn_blocking(move || store.keep_only(&names)).await;
        kept.unwrap_or(Err(StoreError::Closed)).map(|()| true)
    }
}

/// Whether all that live, or did a while ago, have said that they are of one configuration and version.
fn agree(nodes: &[Node], now: Timestamp) -> bool {
    let mut recent = nodes.iter().filter(|node| {
        let ended = node.lease_until.filter(|_| !node.live);
        ended.is_none_or(|ended| now.duration_since(ended) < RECENT)
    });
    let Some(first) = recent.next().map(|node| &node.says) else { return false };
    !first.configuration.is_empty()
        && recent.all(|node| (&node.says.configuration, &node.says.version) == (&first.configuration, &first.version))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::testing::Two;
    use countersign_store::{
        Place,
        nodes::{Introduction, Reach},
        webhooks::Waiting,
    };

    fn node(configuration: &str, version: &str, gone_for_hours: Option<i64>) -> Node {
        let says =
            Introduction { version: version.into(), configuration: configuration.into(), ..Introduction::default() };
        let gone = SignedDuration::from_hours(gone_for_hours.unwrap_or(0));
        Node {
            id: String::new(),
            epoch: 1,
            says,
            reach: Reach::default(),
            started_at: Timestamp::UNIX_EPOCH,
            lease_until: Some(Timestamp::now() - gone),
            live: gone_for_hours.is_none(),
            leads: false,
            here: false,
            running: 0,
        }
    }

    /// Long enough that whatever is looked at in between was looked at.
    async fn several_looks() {
        sleep(LOOK * 3).await;
    }

    #[actix::test]
    async fn who_begins_to_lead_forgets_what_is_configured_no_more_once_all_have_one_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let store = Place::directory(dir.path()).deliveries().unwrap();
        for name in ["stays", "goes"] {
            store.position(name, 0).unwrap();
            let waiting = Waiting {
                id: 0,
                key: "1".into(),
                seq: Some(1),
                kind: "change.created".into(),
                subject: "a".into(),
                event: "{}".into(),
                attempts: 0,
                since: Timestamp::UNIX_EPOCH,
            };
            store.take_in(name, 1, &[waiting]).unwrap();
        }
        let waits = |name: &str| store.waiting(name).unwrap().len();
        let own = || node("own", "2", None);
        let nodes = Arc::new(Two::default());
        *nodes.list.lock().unwrap() = vec![own()];
        let forgetful = Forgetful { store: Arc::clone(&store), nodes: Arc::clone(&nodes) as _, turn: Arc::default() };
        tokio::time::pause();
        actix::spawn(forgetful.run(|| vec!["stays".to_owned()], CancellationToken::new()));
        several_looks().await;
        assert_eq!(waits("goes"), 1, "it does not lead");
        // Another one may be the newer configuration: of who lives, of who led until it crashed, of who has not said yet.
        let others =
            [node("other", "2", None), node("own", "1", None), node("other", "2", Some(23)), node("", "", None)];
        for other in others {
            *nodes.list.lock().unwrap() = vec![own(), other];
            nodes.leads.store(true, Ordering::SeqCst);
            several_looks().await;
            assert_eq!((waits("stays"), waits("goes")), (1, 1), "{:?}", nodes.list.lock().unwrap());
        }
        *nodes.list.lock().unwrap() = vec![own(), node("own", "2", Some(1)), node("other", "1", Some(25))];
        while waits("goes") > 0 {
            several_looks().await;
        }
        assert_eq!(waits("stays"), 1);
    }
}
