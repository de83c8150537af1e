//! Finds tools that a handshake-era server only offers to clients that can be asked questions.
//!
//! Some servers list a tool only if the client has declared what the tool needs (elicitation, sampling, roots),
//! sometimes a while after the handshake. The common connection declares nothing, so its lists may lack such tools. A
//! second connection therefore declares everything and reads the lists; questions on it are declined. It is closed
//! again if it has the same lists.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{BACKOFF, MIN_RECONNECT_INTERVAL, lists};
use crate::{
    catalog::{Catalog, ListKinds},
    link::{Listener, handshake},
    server::{
        Upstream,
        connection::{LinkCalls, UpstreamConnection},
    },
};
use countersign_protocol::{Era, negotiate::ClientCapabilities};

/// The time after which the lists of both connections are compared, because some servers announce tools late.
const CHANGE_NOTICE_DELAY: Duration = Duration::from_secs(3);

/// The connection on which the lists are read, if it is not the common connection.
pub(crate) struct ListsConnection {
    connection: ArcSwapOption<UpstreamConnection>,
    /// `true` while the lists are those of the second connection, even if it has ended and is to be opened again.
    is_needed: AtomicBool,
    /// Notified when somebody waits for the lists, so that the next attempt to open the connection comes sooner.
    pub(super) reopen_signal: Notify,
}

impl ListsConnection {
    pub(crate) fn new(connection: Option<Arc<UpstreamConnection>>) -> Self {
        Self {
            is_needed: AtomicBool::new(connection.is_some()),
            connection: ArcSwapOption::from(connection),
            reopen_signal: Notify::new(),
        }
    }

    /// Returns the connection, if it can be used.
    pub(crate) fn current(&self) -> Option<Arc<UpstreamConnection>> {
        self.connection.load_full().filter(|connection| connection.is_usable())
    }

    /// Returns `true` if the connection has ended and is about to be opened again. The common connection may list fewer tools.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_needed.load(Ordering::Acquire) && self.current().is_none()
    }

    /// Closes a connection that does not answer, so that another one is opened.
    pub(crate) fn discard(&self) {
        if let Some(connection) = self.connection.swap(None) {
            connection.close();
        }
    }
}

/// Returns all capabilities that the gateway can forward to a client.
fn all_capabilities(upstream: &Upstream) -> ClientCapabilities {
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

/// The time limit for a server to announce a change before its first lists are read.
const FIRST_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);

/// The delay after the first announcement before the first lists are read, so that further changes are read together.
/// It is shorter than `SETTLE_TIME` of the upkeep, because the first lists are awaited.
const LIST_SETTLE_TIME: Duration = Duration::from_millis(50);

/// Opens the connection for the first lists. Returns `None` if the common connection is enough.
pub(crate) async fn open(
    upstream: &Arc<Upstream>,
    common_connection: &UpstreamConnection,
) -> Option<Arc<UpstreamConnection>> {
    let config = &upstream.config;
    if common_connection.era != Era::Legacy || (!config.elicitation && !config.sampling) {
        return None;
    }
    let endpoint = upstream.endpoints.get(upstream.current_endpoint())?;
    let calls = LinkCalls::new(upstream.weak_self.clone(), false);
    let listener = Arc::clone(&calls) as Arc<dyn Listener>;
    let connector = endpoint.connector();
    let open_result = handshake::open(&*connector, None, &all_capabilities(upstream), listener).await;
    let open_result = open_result.inspect_err(|error| {
        tracing::debug!(upstream = %config.name, %error, "cannot open a second connection for the lists");
    });
    let (link, negotiated) = open_result.ok()?;
    let connection = Arc::new(UpstreamConnection::new(link, connector.kind(), calls, &negotiated));
    if !connection.features.announced.is_empty() {
        let first_notice = async {
            upstream.lists_stale.notified().await;
            tokio::time::sleep(LIST_SETTLE_TIME).await;
        };
        let _ = tokio::time::timeout(FIRST_NOTICE_TIMEOUT, first_notice).await;
    }
    Some(connection)
}

/// Maintains the second connection until `cancelled`, when the common connection has ended. `lists_connection` holds
/// the connection on which the first lists were read.
pub(crate) async fn run(
    upstream: Arc<Upstream>,
    common_connection: Arc<UpstreamConnection>,
    lists_connection: Arc<ListsConnection>,
    cancelled: CancellationToken,
) {
    let work = async {
        let mut losses = 0;
        // `true` if the connection on which the lists were read has ended, or another one was opened for them.
        let mut must_read = lists_connection.connection.load().is_some();
        loop {
            if lists_connection.current().is_none() {
                let opened = open(&upstream, &common_connection).await;
                if opened.is_none() && !upstream.config.elicitation && !upstream.config.sampling {
                    return;
                }
                must_read |= opened.is_some();
                lists_connection.is_needed.store(opened.is_some(), Ordering::Release);
                lists_connection.connection.store(opened);
                if std::mem::take(&mut must_read) {
                    upstream.mark_stale(ListKinds::all());
                }
            }
            if let Some(connection) = lists_connection.current() {
                let lists_are_equal = async {
                    tokio::time::sleep(CHANGE_NOTICE_DELAY).await;
                    if !has_same_lists(&upstream, &common_connection, &connection).await {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = connection.wait_until_unusable() => {}
                    () = lists_are_equal => {
                        // From now on, the tools are those of the common connection, which lists the same ones.
                        if upstream.has_current_tools() {
                            upstream.set_tools_connection(&common_connection);
                        }
                        lists_connection.is_needed.store(false, Ordering::Release);
                        lists_connection.connection.store(None);
                        connection.close();
                        return;
                    }
                }
                must_read = true;
                tracing::debug!(upstream = %upstream.config.name, "the second connection for the lists has ended");
            }
            let requested = async {
                tokio::time::sleep(MIN_RECONNECT_INTERVAL).await;
                lists_connection.reopen_signal.notified().await;
            };
            tokio::select! {
                () = tokio::time::sleep(BACKOFF.pause(losses)) => {}
                () = requested => {}
            }
            losses += 1;
        }
    };
    cancelled.run_until_cancelled(work).await;
    if let Some(connection) = lists_connection.connection.swap(None) {
        connection.close();
    }
}

/// Returns `true` if both connections have the same lists. Lists that cannot be read count as different.
async fn has_same_lists(
    upstream: &Upstream,
    common_connection: &UpstreamConnection,
    connection: &UpstreamConnection,
) -> bool {
    let nothing = Catalog::default();
    let Ok(common_lists) = lists::read(upstream, common_connection, ListKinds::all(), &nothing).await else {
        return false;
    };
    let Ok(full_lists) = lists::read(upstream, connection, ListKinds::all(), &nothing).await else { return false };
    common_lists.catalog.changed_lists(&full_lists.catalog).is_empty()
}
