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

use super::{
    Backoff, ClientCapabilities, Listener,
    catalog::{self, Catalog, What},
    handshake,
    held::{Held, Traffic},
    server::Upstream,
};
use crate::protocol::Era;

/// How long a server has to say that its lists are others for such a client.
const PATIENCE: Duration = Duration::from_secs(3);

/// The connection that the lists are read on, where that is not the plain one.
#[derive(Default)]
pub(super) struct Survey {
    held: ArcSwapOption<Held>,
    lost: Notify,
}

impl Survey {
    pub(super) fn surveyor(&self) -> Option<Arc<Held>> {
        self.held.load_full().filter(|held| held.usable())
    }

    /// It does not answer: another one is opened.
    pub(super) fn lost(&self) {
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

/// Runs for one plain connection, until `over`.
pub(super) async fn run(upstream: Arc<Upstream>, plain: Arc<Held>, survey: Arc<Survey>, over: CancellationToken) {
    let work = async {
        let mut backoff = Backoff::default();
        loop {
            match look(&upstream, &plain, &survey).await {
                Seen::Same => return,
                Seen::More(held) => {
                    tokio::select! {
                        () = held.ended() => {}
                        () = survey.lost.notified() => {}
                    }
                    tracing::debug!(upstream = %upstream.config.name, "the connection that its lists are read on has ended");
                }
                Seen::Nothing => {}
            }
            tokio::time::sleep(backoff.pause(Duration::ZERO)).await;
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

enum Seen {
    /// No more than on the plain connection.
    Same,
    More(Arc<Held>),
    /// It could not be opened, or not be read.
    Nothing,
}

async fn look(upstream: &Arc<Upstream>, plain: &Held, survey: &Survey) -> Seen {
    if !upstream.config.elicitation && !upstream.config.sampling {
        return Seen::Same;
    }
    let Some(endpoint) = upstream.endpoints.get(upstream.home()) else { return Seen::Same };
    let traffic = Traffic::new(upstream.me.clone(), false);
    let listener = Arc::clone(&traffic) as Arc<dyn Listener>;
    let known = upstream.negotiated();
    let opened =
        handshake::open(&*endpoint.connector(), Era::Legacy, known.as_deref(), &everything(upstream), listener).await;
    let (link, negotiated) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(upstream = %upstream.config.name, %error, "no second connection for its lists");
            return Seen::Nothing;
        }
    };
    let held = Arc::new(Held::new(link, traffic, &negotiated));
    let closed = Closed(Some(Arc::clone(&held)));
    let Ok(without) = catalog::read(upstream, plain, What::ALL, &Catalog::default()).await else {
        return Seen::Nothing;
    };
    if held.offers.tools_changed || held.offers.prompts_changed || held.offers.resources_changed {
        tokio::time::sleep(PATIENCE).await;
    }
    let Ok(with) = catalog::read(upstream, &held, What::ALL, &Catalog::default()).await else { return Seen::Nothing };
    let (without, with) = (without.catalog, with.catalog);
    let same = catalog::same(&without.tools, &with.tools)
        && catalog::same(&without.prompts, &with.prompts)
        && catalog::same(&without.resources, &with.resources)
        && catalog::same(&without.templates, &with.templates);
    if same {
        return Seen::Same;
    }
    closed.keep();
    survey.held.store(Some(Arc::clone(&held)));
    upstream.stain(What::ALL);
    Seen::More(held)
}

/// Closes a connection that is not kept.
struct Closed(Option<Arc<Held>>);

impl Closed {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.close();
        }
    }
}
