//! What a handshake-era server offers to clients that can be asked things.
//!
//! Some servers list a tool only to a client that declared what the tool needs (elicitation, sampling, roots), and say so
//! some time after the handshake. The plain connection declares nothing, so its lists may lack those. Therefore a second
//! connection declares everything and reads the lists; what a server asks on it is declined. If it sees no more than the
//! plain one it is closed again.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{BACKOFF, lists};
use crate::{
    catalog::{self, Catalog, ListKinds},
    link::{Listener, handshake},
    server::{
        Upstream,
        held::{Held, Traffic},
    },
};
use countersign_protocol::{Era, capabilities::ClientCapabilities};

/// How long a server has to say that its lists are others for such a client.
const PATIENCE: Duration = Duration::from_secs(3);

/// The connection that the lists are read on, where that is not the plain one.
pub(crate) struct Survey {
    held: ArcSwapOption<Held>,
    lost: Notify,
}

impl Survey {
    pub(crate) fn of(held: Option<Arc<Held>>) -> Self {
        Self { held: ArcSwapOption::from(held), lost: Notify::new() }
    }

    pub(crate) fn surveyor(&self) -> Option<Arc<Held>> {
        self.held.load_full().filter(|held| held.usable())
    }

    /// It does not answer: another one is opened.
    pub(crate) fn lost(&self) {
        if let Some(held) = self.held.swap(None) {
            held.close();
        }
        self.lost.notify_one();
    }
}

/// Everything that the gateway can bring to a client.
fn everything(upstream: &Upstream) -> ClientCapabilities {
    let config = &upstream.config;
    ClientCapabilities {
        elicitation_form: config.elicitation,
        elicitation_url: config.elicitation,
        sampling: config.sampling,
        sampling_tools: config.sampling,
        sampling_context: config.sampling,
        roots: true,
        extensions: None,
        experimental: None,
    }
}

/// How long the first lists wait for a server to say that they are others now.
const FIRST: Duration = Duration::from_millis(500);

/// After the first word of a change: what else comes meanwhile is read with it.
const SETTLE: Duration = Duration::from_millis(50);

/// The connection to read the first lists on; `None` where there is none but the plain one.
pub(crate) async fn open(upstream: &Arc<Upstream>, plain: &Held) -> Option<Arc<Held>> {
    let config = &upstream.config;
    if plain.era != Era::Legacy || (!config.elicitation && !config.sampling) {
        return None;
    }
    let endpoint = upstream.endpoints.get(upstream.home())?;
    let traffic = Traffic::new(upstream.me.clone(), false);
    let listener = Arc::clone(&traffic) as Arc<dyn Listener>;
    let known = upstream.negotiated();
    let opened =
        handshake::open(&*endpoint.connector(), Era::Legacy, known.as_deref(), &everything(upstream), listener).await;
    let (link, negotiated) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(upstream = %config.name, %error, "no second connection for its lists");
            return None;
        }
    };
    let held = Arc::new(Held::new(link, traffic, &negotiated));
    if held.offers.tools_changed || held.offers.prompts_changed || held.offers.resources_changed {
        let told = async {
            upstream.wake.notified().await;
            tokio::time::sleep(SETTLE).await;
        };
        let _ = tokio::time::timeout(FIRST, told).await;
    }
    Some(held)
}

/// Runs for one plain connection, until `over`. `survey` has the connection that the first lists were read on.
pub(crate) async fn run(upstream: Arc<Upstream>, plain: Arc<Held>, survey: Arc<Survey>, over: CancellationToken) {
    let work = async {
        let mut losses = 0;
        loop {
            if survey.surveyor().is_none() {
                match open(&upstream, &plain).await {
                    Some(held) => survey.held.store(Some(held)),
                    None if !upstream.config.elicitation && !upstream.config.sampling => return,
                    None => {}
                }
                upstream.stain(ListKinds::all());
            }
            if let Some(held) = survey.surveyor() {
                tokio::time::sleep(PATIENCE).await;
                if sees_the_same(&upstream, &plain, &held).await {
                    survey.held.store(None);
                    held.close();
                    return;
                }
                tokio::select! {
                    () = held.ended() => {}
                    () = survey.lost.notified() => {}
                }
                tracing::debug!(upstream = %upstream.config.name, "the connection that its lists are read on has ended");
            }
            tokio::time::sleep(BACKOFF.pause(losses)).await;
            losses += 1;
        }
    };
    tokio::select! {
        () = work => {}
        () = over.cancelled() => {}
    }
    if let Some(held) = survey.held.swap(None) {
        held.close();
    }
}

/// Whether both connections have the same lists; while one does not answer, they count as different.
async fn sees_the_same(upstream: &Upstream, plain: &Held, held: &Held) -> bool {
    let nothing = Catalog::default();
    let Ok(without) = lists::read(upstream, plain, ListKinds::all(), &nothing).await else { return false };
    let Ok(with) = lists::read(upstream, held, ListKinds::all(), &nothing).await else { return false };
    let (without, with) = (without.catalog, with.catalog);
    catalog::same(&without.tools, &with.tools)
        && catalog::same(&without.prompts, &with.prompts)
        && catalog::same(&without.resources, &with.resources)
        && catalog::same(&without.templates, &with.templates)
}
