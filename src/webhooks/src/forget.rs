//! Forgets webhooks that are in the configuration no more, at the node that leads by now: who led when they were taken out
//! may have ended before it did.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use countersign_store::{Nodes, StoreError, webhooks::Deliveries};

/// How often it is looked whether this node leads by now.
const LOOK: Duration = Duration::from_secs(1);

pub(super) struct Forgetful {
    pub store: Arc<dyn Deliveries>,
    pub nodes: Arc<dyn Nodes>,
    /// One set of webhooks after another.
    pub turn: Arc<tokio::sync::Mutex<()>>,
}

impl Forgetful {
    /// Once each time that this node begins to lead; not while another node has another configuration, which may be the
    /// newer one. `names` are those of the webhooks of this one.
    pub async fn run(self, names: impl Fn() -> Vec<String>, shutdown: CancellationToken) {
        let mut done = false;
        loop {
            if !self.nodes.leads() {
                done = false;
            } else if !done && self.nodes.differing() == 0 {
                let _turn = self.turn.lock().await;
                let (store, names) = (Arc::clone(&self.store), names());
                let kept = tokio::task::spawn_blocking(move || store.keep_only(&names)).await;
                match kept.unwrap_or(Err(StoreError::Closed)) {
                    Ok(()) => done = true,
                    Err(error) => tracing::warn!(%error, "webhooks that are gone cannot be forgotten; trying again"),
                }
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(LOOK) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use tokio::sync::watch;

    use super::*;
    use countersign_domain::changes::Claimant;
    use countersign_store::{
        Place, StoreFuture,
        nodes::{Introduction, News, Node, Peer, Reach},
        webhooks::Waiting,
    };

    #[derive(Default)]
    struct Two {
        leads: AtomicBool,
        differing: AtomicUsize,
    }

    impl Nodes for Two {
        fn claimant(&self) -> Option<Claimant> {
            None
        }
        fn holds(&self, _: Option<&Claimant>) -> bool {
            true
        }
        fn leads(&self) -> bool {
            self.leads.load(Ordering::SeqCst)
        }
        fn live(&self) -> usize {
            2
        }
        fn differing(&self) -> usize {
            self.differing.load(Ordering::SeqCst)
        }
        fn resign(&self) {}
        fn peer(&self, _: &str) -> Option<Peer> {
            None
        }
        fn outward(&self) -> Option<std::net::IpAddr> {
            None
        }
        fn secret(&self) -> Option<[u8; 32]> {
            None
        }
        fn news(&self) -> watch::Receiver<News> {
            watch::channel(News::default()).1
        }
        fn introduce(&self, _: Introduction) {}
        fn reach(&self, _: Reach) {}
        fn others(&self) -> Vec<Reach> {
            Vec::new()
        }
        fn list(&self) -> StoreFuture<Vec<Node>> {
            Box::pin(async { Ok(Vec::new()) })
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
                since: jiff::Timestamp::UNIX_EPOCH,
            };
            store.take_in(name, 1, &[waiting]).unwrap();
        }
        let waits = |name: &str| store.waiting(name).unwrap().len();
        let nodes = Arc::new(Two { differing: AtomicUsize::new(1), ..Two::default() });
        let forgetful = Forgetful { store: Arc::clone(&store), nodes: Arc::clone(&nodes) as _, turn: Arc::default() };
        tokio::time::pause();
        actix::spawn(forgetful.run(|| vec!["stays".to_owned()], CancellationToken::new()));
        several_looks().await;
        nodes.leads.store(true, Ordering::SeqCst);
        several_looks().await;
        assert_eq!((waits("stays"), waits("goes")), (1, 1), "another one may be the newer configuration");
        nodes.differing.store(0, Ordering::SeqCst);
        while waits("goes") > 0 {
            several_looks().await;
        }
        assert_eq!(waits("stays"), 1);
    }
}
