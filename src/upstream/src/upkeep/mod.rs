//! Keeps a configured upstream connected and its lists fresh. Runs on the upstreams' thread.

pub(crate) mod lists;
mod lists_connection;
mod personal_lists;
mod subscriptions;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix::{Arbiter, ArbiterHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::{lists::refresh, lists_connection::ListsConnection};
use crate::{
    catalog::ListKinds,
    credentials::AuthorizationError,
    link::{LinkError, LinkKind, Listener, SilentListener, detect, handshake},
    server::{
        Phase, Upstream,
        connection::{LinkCalls, UpstreamConnection},
        endpoint::Endpoint,
    },
};
use countersign_config::UpstreamTarget;
use countersign_net::Backoff;
use countersign_protocol::{Era, negotiate::ClientCapabilities};
use countersign_provider::{List, ProviderEvent};
use countersign_runtime::background;

/// A connection that lasted this long counts as stable, so that the next attempt follows at once.
const STABLE_CONNECTION_TIME: Duration = Duration::from_secs(10);
/// The minimum time between attempts, even if a call waits for the upstream.
const MIN_RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
/// The delay after the first announcement of a change, so that further changes are read together.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// The number of announcements in a row after which the delay doubles with each further one, to at most 32 times
/// [`SETTLE_TIME`], because every new list makes the gateway build a route table for all clients.
const CHANGES_BEFORE_SLOWDOWN: u32 = 5;
/// A pause of this length ends a series of announcements.
const QUIET_TIME: Duration = Duration::from_secs(5);
/// The delay before the next attempt after [`refresh`] failed.
const FAILED_REFRESH_DELAY: Duration = Duration::from_secs(1);
/// The interval at which idle links are closed.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The time after which an upstream without a usable account looks for one that was connected at another node.
const ACCOUNT_CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// The time limit for connecting before another replica is tried; some servers install themselves first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(120);

impl Upstream {
    /// Connects the upstream and keeps it connected, on the thread of all upstreams.
    pub(crate) fn start_on(self: &Arc<Self>, thread: ArbiterHandle) {
        let _ = self.thread.set(thread);
        let upstream = Arc::clone(self);
        self.spawn_on_thread(move || run(upstream));
    }

    /// Starts the upstream on the current thread, for tests.
    pub fn start(self: &Arc<Self>) {
        self.start_on(Arbiter::current());
    }
}

/// The pauses before the next attempt, after a server has exited or could not be reached.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(60) };

/// Connects the upstream and keeps it connected until [`Upstream::close`], with pauses after failures.
async fn run(upstream: Arc<Upstream>) {
    let mut failures = 0_u32;
    let mut era: Option<Era> = None;
    while !upstream.stop.is_cancelled() {
        if upstream.personal_upstreams().is_some() {
            personal_lists::run(&upstream).await;
            break;
        }
        upstream.set_phase(Phase::Connecting);
        let started_at = Instant::now();
        let connecting = upstream.stop.run_until_cancelled(connect(&upstream, &mut era));
        let Some(connected) = connecting.await else { break };
        let was_connected = connected.is_ok();
        let error = match connected {
            Ok((connection, lists_connection)) => {
                let connected_at = Instant::now();
                let Some(error) = maintain_connection(&upstream, &connection, lists_connection).await else {
                    failures = 0;
                    continue;
                };
                if upstream.stop.is_cancelled() {
                    break;
                }
                if matches!(error, LinkError::Protocol(_)) {
                    era = None;
                }
                upstream.metrics.record_restart();
                tracing::warn!(upstream = %upstream.config.name, %error, "the connection to the upstream has ended");
                if connected_at.elapsed() >= STABLE_CONNECTION_TIME {
                    failures = 0;
                    continue;
                }
                error
            }
            Err(error) => {
                if matches!(upstream.config.target, UpstreamTarget::Command { .. }) {
                    upstream.metrics.record_restart();
                }
                // Only the first failure is a warning.
                if failures == 0 {
                    tracing::warn!(upstream = %upstream.config.name, %error, "the upstream cannot be reached; the gateway tries again");
                } else {
                    tracing::debug!(upstream = %upstream.config.name, %error, failures, "the upstream cannot be reached");
                }
                if !matches!(error, LinkError::Unreachable(_)) {
                    // The server may have been replaced by one of another era.
                    era = None;
                }
                error
            }
        };
        if let LinkError::Unauthorized(AuthorizationError::ConsentNeeded(reason)) = error {
            if !upstream.require_personal_accounts() {
                wait_for_account(&upstream, reason).await;
                failures = 0;
            }
            continue;
        }
        // After a loss, calls wait for the first attempt to reconnect. While later attempts follow, calls fail at once.
        upstream.set_phase(if failures > 0 || !was_connected { Phase::Down(error) } else { Phase::Connecting });
        wait_for_retry(&upstream, started_at, BACKOFF.pause(failures)).await;
        failures = failures.saturating_add(1);
    }
    upstream.close();
}

/// Waits until the account was connected, here or at another node.
async fn wait_for_account(upstream: &Upstream, reason: String) {
    upstream.close_links();
    upstream.set_consent_needed(reason);
    let Some(credentials) = upstream.accounts.as_ref().map(|accounts| &accounts.account.credentials) else { return };
    let before = credentials.connected_at();
    loop {
        tokio::select! {
            () = upstream.account_changed.notified() => return,
            () = upstream.stop.cancelled() => return,
            () = tokio::time::sleep(ACCOUNT_CHECK_INTERVAL) => {}
        }
        // The credentials read the store when they are prepared.
        if credentials.prepare().await.is_ok() && credentials.connected_at() != before {
            return;
        }
    }
}

/// Waits before the next attempt, shorter if a call needs the upstream.
async fn wait_for_retry(upstream: &Upstream, started_at: Instant, wait: Duration) {
    let requested = async {
        tokio::time::sleep_until(started_at + MIN_RECONNECT_INTERVAL).await;
        upstream.reconnect.notified().await;
    };
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = requested => {}
        () = upstream.account_changed.notified() => {}
        () = upstream.stop.cancelled() => {}
    }
}

/// The common connection, and the connection on which the lists were read, if that is another one.
type OpenConnections = (Arc<UpstreamConnection>, Option<Arc<UpstreamConnection>>);

/// Connects to the first endpoint that answers, beginning with the last one used, and reads the lists.
async fn connect(upstream: &Arc<Upstream>, era: &mut Option<Era>) -> Result<OpenConnections, LinkError> {
    let mut first_error = None;
    let (before, from_current) = upstream.endpoints.split_at(upstream.current_endpoint());
    for endpoint in from_current.iter().chain(before) {
        let open_result = tokio::time::timeout(CONNECT_TIMEOUT, open(upstream, endpoint, *era)).await;
        let open_result = open_result.unwrap_or_else(|_| Err(LinkError::Lost("it took too long to open".into())));
        let error = match open_result {
            Ok(connection) => {
                upstream.current_endpoint.store(endpoint.index, Ordering::Relaxed);
                let lists_connection = lists_connection::open(upstream, &connection).await;
                match read_first_lists(upstream, endpoint, lists_connection.as_ref().unwrap_or(&connection)).await {
                    Ok(()) => {
                        *era = Some(connection.era);
                        return Ok((connection, lists_connection));
                    }
                    Err(error) => {
                        connection.close();
                        lists_connection.inspect(|connection| connection.close());
                        error
                    }
                }
            }
            Err(error) => error,
        };
        first_error.get_or_insert(error);
    }
    Err(first_error.unwrap_or_else(|| LinkError::Unreachable("it has no address".into())))
}

/// Opens the common connection of one endpoint, and detects the era if it is not known.
async fn open(
    upstream: &Arc<Upstream>,
    endpoint: &Endpoint,
    era: Option<Era>,
) -> Result<Arc<UpstreamConnection>, LinkError> {
    let connector = endpoint.connector();
    let calls = LinkCalls::new(upstream.weak_self.clone(), false);
    let listener = Arc::clone(&calls) as Arc<dyn Listener>;
    // The era is not detected again if that costs a child process.
    let known_session = upstream.negotiated().filter(|_| era.is_some() && connector.kind() == LinkKind::SingleStream);
    let (connector, link, negotiated) = if let Some(known_session) = known_session {
        let no_capabilities = ClientCapabilities::default();
        let (link, negotiated) = handshake::open(&*connector, Some(&known_session), &no_capabilities, listener).await?;
        (connector, link, negotiated)
    } else {
        let detection = detect::detect(connector, listener).await?;
        endpoint.set_connector(Arc::clone(&detection.connector));
        (detection.connector, detection.link, detection.negotiated)
    };
    let connection = Arc::new(UpstreamConnection::new(link, connector.kind(), calls, &negotiated));
    let instructions = negotiated.instructions.clone();
    let before = upstream.negotiated.swap(Some(Arc::new(negotiated)));
    if before.and_then(|before| before.instructions.clone()) != instructions {
        // The instructions are part of the route table, which is rebuilt although no list has changed.
        upstream.emit(ProviderEvent::ListChanged(List::Tools));
    }
    upstream.invalidate_cache();
    if let Some(old) = endpoint.common_connection.swap(Some(Arc::clone(&connection))) {
        old.close();
    }
    Ok(connection)
}

/// Reads the lists of a new connection, and publishes that the upstream is up.
async fn read_first_lists(
    upstream: &Upstream,
    endpoint: &Endpoint,
    connection: &UpstreamConnection,
) -> Result<(), LinkError> {
    refresh(upstream, connection, ListKinds::all()).await?;
    endpoint.breaker.reset();
    upstream.report_breaker();
    let definitions = upstream.definitions.load();
    tracing::info!(
        upstream = %upstream.config.name,
        revision = upstream.negotiated().map_or("", |n| n.revision.as_str()),
        tools = definitions.tools.len(), prompts = definitions.prompts.len(), resources = definitions.resources.len(),
        "connected, and the lists were read"
    );
    upstream.set_phase(Phase::Up);
    Ok(())
}

/// Maintains a connection until it ends, and returns the reason; `None` if another account must be used.
async fn maintain_connection(
    upstream: &Arc<Upstream>,
    connection: &Arc<UpstreamConnection>,
    lists_connection: Option<Arc<UpstreamConnection>>,
) -> Option<LinkError> {
    let cancelled = CancellationToken::new();
    let _cancel_on_drop = cancelled.clone().drop_guard();
    let lists_connection = Arc::new(ListsConnection::new(lists_connection));
    if connection.era == Era::Legacy {
        background::spawn(lists_connection::run(
            Arc::clone(upstream),
            Arc::clone(connection),
            Arc::clone(&lists_connection),
            cancelled.clone(),
        ));
    }
    background::spawn(subscriptions::run(Arc::clone(upstream), Arc::clone(connection), cancelled));
    let started_at = Instant::now();
    let mut idle_check = tokio::time::interval(IDLE_CHECK_INTERVAL);
    let (mut changes_in_row, mut last_change, mut last_era_check) = (0_u32, started_at, started_at);
    loop {
        tokio::select! {
            () = upstream.account_changed.notified() => {
                connection.retire();
                return None;
            }
            () = connection.wait_until_unusable() => return Some(LinkError::Lost("its connection was closed".into())),
            () = upstream.stop.cancelled() => return Some(LinkError::Lost("the gateway closes it".into())),
            () = upstream.era_doubted.notified() => {
                // The detection is not repeated within a short time, even if the server rejects the revision again.
                if last_era_check.elapsed() >= STABLE_CONNECTION_TIME {
                    last_era_check = Instant::now();
                    let reason = tokio::select! {
                        reason = check_era(upstream, connection) => reason,
                        () = connection.wait_until_unusable() => continue,
                        () = upstream.stop.cancelled() => continue,
                    };
                    if let Some(error) = reason {
                        connection.retire();
                        return Some(error);
                    }
                }
            }
            () = upstream.lists_stale.notified() => {
                // Tools that a call waits for are read at once.
                if !upstream.has_tools_request() {
                    let is_series = last_change.elapsed() < QUIET_TIME;
                    changes_in_row = if is_series { changes_in_row.saturating_add(1) } else { 0 };
                    tokio::select! {
                        () = tokio::time::sleep(settle_time(changes_in_row)) => {}
                        () = upstream.wait_for_tools_request() => {}
                        () = connection.wait_until_unusable() => continue,
                        () = upstream.stop.cancelled() => continue,
                    }
                    last_change = Instant::now();
                }
                if lists_connection.is_awaited() {
                    // The lists are read once it is open, also for those who wait for the tools.
                    if upstream.has_tools_request() {
                        lists_connection.reopen_signal.notify_one();
                    }
                    continue;
                }
                let lists = ListKinds::from_bits_truncate(upstream.stale_lists.swap(0, Ordering::AcqRel));
                let current = lists_connection.current();
                let reader = current.as_ref().unwrap_or(connection);
                if let Err(error) = refresh(upstream, reader, lists).await {
                    upstream.mark_stale(lists);
                    if current.is_some() {
                        lists_connection.discard();
                        tokio::time::sleep(FAILED_REFRESH_DELAY).await;
                        continue;
                    }
                    let is_over = matches!(error, LinkError::SessionGone | LinkError::Unauthorized(_));
                    let is_stateless_http = connection.kind == LinkKind::Streams && connection.era == Era::Modern;
                    if is_stateless_http || is_over {
                        connection.retire();
                        return Some(error);
                    }
                    // A broken connection becomes unusable by itself. The next attempt is delayed until then.
                    tokio::select! {
                        () = connection.wait_until_unusable() => return Some(error),
                        () = tokio::time::sleep(FAILED_REFRESH_DELAY) => {}
                    }
                }
            }
            _ = idle_check.tick() => upstream.endpoints.iter().for_each(|endpoint| endpoint.pool.close_idle()),
        }
    }
}

/// Detects the era of a server whose answers contradict it. Returns the reason to connect again; `None` if the era is
/// still the same or cannot be detected now.
async fn check_era(upstream: &Upstream, connection: &UpstreamConnection) -> Option<LinkError> {
    let changed = || LinkError::Protocol("it speaks another revision now".into());
    // For a child process, the detection would start another one.
    if connection.kind == LinkKind::SingleStream {
        return Some(changed());
    }
    let endpoint = upstream.endpoints.get(upstream.current_endpoint())?;
    let detecting = detect::detect(endpoint.connector(), Arc::new(SilentListener));
    match tokio::time::timeout(CONNECT_TIMEOUT, detecting).await {
        Ok(Ok(detection)) => {
            detection.link.close();
            (detection.era() != connection.era).then(changed)
        }
        // No request to such a stateless server can succeed. A server of the handshake era may only refuse another session.
        Ok(Err(error)) if connection.era == Era::Modern && error.is_refusal() => Some(error),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Returns the delay before the lists are read, after this many announcements in a row.
fn settle_time(changes_in_row: u32) -> Duration {
    SETTLE_TIME * 2_u32.pow(changes_in_row.saturating_sub(CHANGES_BEFORE_SLOWDOWN).min(5))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_changes_increase_settle_time() {
        let pauses = [0, 5, 6, 8, 10, 1000]
            .map(|changes_in_row| settle_time(changes_in_row).as_millis() / SETTLE_TIME.as_millis());
        assert_eq!(pauses, [1, 1, 2, 8, 32, 32]);
    }
}
