//! Joins the nodes and renews this node's lease, on a thread with its own connection.

use std::{
    sync::{Arc, atomic::Ordering, mpsc::SyncSender},
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Row;

use super::{
    super::{
        claims,
        clock::time_since_boot,
        error,
        node_rows::CHANNEL,
        rows::{Value, execute, no_heads_error, query_opt},
        schema::{self, JOINING_LOCK},
    },
    Membership, NodeEpoch, PeerRow, SERVERS_CHANGED, is_continuation, raise_counters,
};
use crate::{
    Heads, StoreError,
    nodes::{Introduction, PeerAddress},
    rows::{parse_hash, signed, unsigned},
    statements::facts,
};
use countersign_domain::changes::{audit::AuditHead, digest::PartHasher};

/// The seconds for which a silent node counts as alive. This is at least the sum of [`RENEWAL_INTERVAL`],
/// [`ANSWER_TIMEOUT`] and [`LEASE_MARGIN`], because a renewal may wait three seconds until the database ends the
/// transaction of a frozen node.
const LEASE_SECS: i32 = 5;
/// The time by which the local lease ends before the stored one.
const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// The interval between renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout for the answer to a renewal.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The minimum interval between renewals, however often callers request one.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_millis(50);
/// The delay before the node reconnects.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// Renews the lease, and reads what other nodes have written.
const RENEWAL: &str = "WITH renewed AS (
    UPDATE nodes SET lease_until = clock_timestamp() + $4::int * interval '1 second', url = $5, version = $6,
                     configuration = $7, certificate = $9, servers = coalesce($8, servers),
                     servers_no = servers_no + CASE WHEN $8 IS NULL THEN 0 ELSE 1 END
    WHERE id = $1 AND epoch = $2 AND process = $3 AND lease_until > clock_timestamp() RETURNING joined),
  others AS (SELECT id, url, certificate, joined, resigned, servers_no, lease_until > clock_timestamp() AS live,
                    (extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint AS lease,
                    version = $6 AND configuration NOT IN ('', $7) AS differs
             FROM nodes WHERE id <> $1)
  SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS time,
         event, audit, hash, records, (SELECT hash FROM audit WHERE seq = $10) AS entry,
         (SELECT joined FROM renewed) AS joined, (SELECT process FROM nodes WHERE id = $1) AS process,
         EXISTS (SELECT FROM others, renewed WHERE live AND NOT resigned AND others.joined < renewed.joined) AS has_senior,
         EXISTS (SELECT FROM words WHERE node = $1) AS has_messages,
         (SELECT count(*) FROM others WHERE live AND differs) AS differing,
         (SELECT coalesce(json_agg(others), '[]')::text FROM others WHERE live) AS peers
  FROM heads";

impl Membership {
    pub(super) async fn run(self: Arc<Self>, ready: SyncSender<Result<(), StoreError>>) {
        let mut ready = Some(ready);
        while !self.closing.load(Ordering::Acquire) {
            match self.keep_lease(&mut ready).await {
                // The opener of the store waits for the first renewal.
                Err(error) if ready.is_some() => {
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Err(error));
                    }
                    return;
                }
                Err(error @ (StoreError::Superseded | StoreError::WritesLost)) => {
                    let _ = self.stop_reason.set(error.clone());
                    self.connector.health.record_failure(&error);
                    tracing::error!(%error, "this gateway stops serving the store");
                    return;
                }
                Err(error) => tracing::warn!(%error, "the connection for this node's lease ended; reconnecting"),
                Ok(()) => return,
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Renews the lease over one connection, until the connection ends.
    async fn keep_lease(
        self: &Arc<Self>,
        ready: &mut Option<SyncSender<Result<(), StoreError>>>,
    ) -> Result<(), StoreError> {
        let node = Arc::downgrade(self);
        let on_notification = move |text: &str| {
            if let Some(node) = node.upgrade() {
                node.handle_notification(text);
            }
        };
        let client = self.connector.listen(on_notification).await?;
        self.connector.silence.expect_regular_answers();
        let listen = format!("LISTEN {CHANNEL}");
        self.with_timeout(async { Ok(client.batch_execute(&listen).await?) }).await?;
        if ready.is_some() {
            self.join(&client, true).await?;
        }
        let mut resignation_sent = false;
        loop {
            let began = Instant::now();
            if !resignation_sent && self.resigned.load(Ordering::Acquire) {
                self.with_timeout(self.mark_resigned(&client)).await?;
                resignation_sent = true;
            }
            if !self.with_timeout(self.renew(&client)).await? {
                tracing::warn!(
                    "the lease of this node expired; the outcome of the changes that it was running is unknown"
                );
                self.with_timeout(self.join(&client, false)).await?;
                self.with_timeout(self.renew(&client)).await?;
            }
            if let Some(ready) = ready.take() {
                let _ = ready.send(Ok(()));
            }
            let woken_early = async {
                self.wake.notified().await;
                sleep_until(began + MIN_RENEWAL_INTERVAL).await;
            };
            tokio::select! {
                () = sleep_until(began + RENEWAL_INTERVAL) => {}
                () = woken_early => {}
            }
            if self.closing.load(Ordering::Acquire) {
                return self.with_timeout(self.leave(&client)).await;
            }
            if client.is_closed() {
                return Err(error::no_answer());
            }
        }
    }

    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.connector.silence.require_answer(ANSWER_TIMEOUT, work).await
    }

    /// Joins, which begins a new epoch. `is_start` is set when the process joins for the first time.
    async fn join(&self, client: &ClientWrapper, is_start: bool) -> Result<(), StoreError> {
        client.batch_execute("BEGIN").await?;
        // Nodes join one after another, so that each sees those that joined before.
        schema::lock(client, JOINING_LOCK).await?;
        let sql = "DELETE FROM nodes WHERE lease_until < clock_timestamp() - interval '1 day'
                   AND NOT EXISTS (SELECT FROM claims WHERE claims.node = nodes.id)";
        execute(client, sql, &[]).await?;
        let Introduction { url, version, configuration, certificate } = self.introduction.lock().clone();
        let sql = "INSERT INTO nodes (id, epoch, process_epoch, process, joined, lease_until, started_ms, url, version,
                                      configuration, resigned, certificate)
                   VALUES ($1, $11, $11, $2, (SELECT coalesce(max(joined), 0) + 1 FROM nodes),
                           clock_timestamp() + $3::int * interval '1 second', $4, $5, $6, $7, $9, $10)
                   ON CONFLICT (id) DO UPDATE SET resigned = excluded.resigned,
                     epoch = nodes.epoch + 1, joined = excluded.joined, lease_until = excluded.lease_until,
                     process = excluded.process, started_ms = excluded.started_ms,
                     process_epoch = CASE WHEN nodes.process = excluded.process THEN nodes.process_epoch
                                          ELSE nodes.epoch + 1 END
                   WHERE $8 OR nodes.process = excluded.process
                   RETURNING epoch, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS time,
                     EXISTS (SELECT FROM nodes AS others
                             WHERE others.id <> $1 AND others.lease_until > coalesce(
                               (SELECT before.lease_until FROM nodes AS before WHERE before.id = $1), '-infinity'))
                       AS others";
        let started_ms = self.started_at.as_millisecond();
        let sent_at = time_since_boot();
        let resigned = self.resigned.load(Ordering::Acquire);
        // The epoch rises even if the row of this node was deleted, so that claims of earlier epochs stay invalid.
        let next = signed(self.current_epoch.lock().epoch + 1);
        let values: [Value<'_>; 11] = [
            &self.id,
            &self.process,
            &LEASE_SECS,
            &started_ms,
            &url,
            &version,
            &configuration,
            &is_start,
            &resigned,
            &certificate,
            &next,
        ];
        let row = query_opt(client, sql, &values).await?;
        let received_at = time_since_boot();
        claims::end_waits_of_old_process(client, &self.id).await?;
        self.load_cluster_secret(client).await?;
        client.batch_execute("COMMIT").await?;
        self.server_states.lock().is_published = false;
        let row = row.ok_or(StoreError::Superseded)?;
        self.clock.adjust(row.get("time"), sent_at, received_at);
        self.is_leader.store(false, Ordering::Release);
        let mut current = self.current_epoch.lock();
        let epoch = unsigned(row.get(0))?;
        // If this node was alone, nobody has told clients that its sessions are gone. Otherwise, other nodes may have
        // done so after the lease expired.
        let sessions_since = if is_start || row.get("others") { epoch } else { current.sessions_since };
        *current = NodeEpoch { epoch, lease_end: local_lease_end(sent_at), sessions_since };
        tracing::info!(node = self.id, epoch = current.epoch, "this node has joined");
        Ok(())
    }

    /// Loads the secret that all nodes share, and creates it if there is none.
    async fn load_cluster_secret(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        let alphabet: Vec<char> = "0123456789abcdef".chars().collect();
        let new = nanoid::nanoid!(64, &alphabet);
        let sql = "INSERT INTO facts (name, value) VALUES ('cluster_secret', $1) ON CONFLICT (name) DO NOTHING";
        execute(client, sql, &[&new]).await?;
        let secret = facts::get(client, "cluster_secret").await?.unwrap_or_default();
        let mut hasher = PartHasher::new("countersign.cluster.1");
        hasher.add_part(secret.as_bytes());
        self.secret.get_or_init(|| hasher.finish_bytes());
        Ok(())
    }

    /// Renews the lease, and reads in the same statement what other nodes have written. Returns `false` if the lease has
    /// expired.
    ///
    /// # Errors
    /// [`StoreError::Superseded`] if another process has joined with the id of this node.
    async fn renew(&self, client: &ClientWrapper) -> Result<bool, StoreError> {
        let number = self.started_renewals.fetch_add(1, Ordering::AcqRel) + 1;
        let Introduction { url, version, configuration, certificate } = self.introduction.lock().clone();
        let epoch = signed(self.current_epoch.lock().epoch);
        let new_states = {
            let server_states = self.server_states.lock();
            (!server_states.is_published).then(|| server_states.states.clone())
        };
        let servers = new_states.as_ref().map(|states| serde_json::to_string(states).unwrap_or_default());
        let known_heads = *self.known_heads.lock();
        let last = signed(known_heads.audit.seq);
        let sent_at = time_since_boot();
        let values: [Value<'_>; 10] = [
            &self.id,
            &epoch,
            &self.process,
            &LEASE_SECS,
            &url,
            &version,
            &configuration,
            &servers,
            &certificate,
            &last,
        ];
        let row = query_opt(client, RENEWAL, &values).await?;
        let received_at = time_since_boot();
        let row = row.ok_or_else(no_heads_error)?;
        self.clock.adjust(row.get("time"), sent_at, received_at);
        if let Some(states) = new_states {
            {
                let mut server_states = self.server_states.lock();
                // The next renewal publishes states that were set meanwhile.
                server_states.is_published = server_states.states == states;
            }
            self.notify_peers(client).await?;
        }
        self.load_cluster_state(client, &row, known_heads, received_at).await?;
        let Some(joined) = row.get::<_, Option<i64>>("joined") else {
            let is_replaced = row.get::<_, Option<&str>>("process").is_some_and(|process| process != self.process);
            return if is_replaced { Err(StoreError::Superseded) } else { Ok(false) };
        };
        self.current_epoch.lock().lease_end = local_lease_end(sent_at);
        self.completed_renewals.send_replace(number);
        let must_wait = row.get::<_, bool>("has_senior") || self.resigned.load(Ordering::Acquire);
        if !self.is_leader.load(Ordering::Acquire) && !must_wait && may_lead(client, joined).await? {
            tracing::info!(node = self.id, "this node has become the leader");
            self.is_leader.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Takes over what a renewal has read of the store and of other nodes. `known_heads` are the heads whose entry it
    /// has read again.
    ///
    /// # Errors
    /// [`StoreError::WritesLost`] if known entries are missing.
    async fn load_cluster_state(
        &self,
        client: &ClientWrapper,
        row: &Row,
        known_heads: Heads,
        received_at: Duration,
    ) -> Result<(), StoreError> {
        let peers: Vec<PeerRow> = serde_json::from_str(row.get("peers"))?;
        self.load_peer_servers(client, &peers).await?;
        let audit = AuditHead { seq: unsigned(row.get("audit"))?, hash: parse_hash(row.get("hash"))? };
        let heads = Heads { event: unsigned(row.get("event"))?, audit };
        if !is_continuation(known_heads, heads, row.get::<_, Option<&[u8]>>("entry").map(parse_hash).transpose()?) {
            return Err(StoreError::WritesLost);
        }
        self.remember_heads(heads);
        raise_counters(&self.updates, heads.event, unsigned(row.get("records"))?, row.get("has_messages"));
        self.live_nodes.store(peers.len() + 1, Ordering::Release);
        self.differing_nodes.store(usize::try_from(row.get::<_, i64>("differing")).unwrap_or(0), Ordering::Release);
        let reachable = peers.into_iter().filter(|peer| !peer.url.is_empty());
        let addresses = reachable.map(|PeerRow { id, url, certificate, lease, .. }| {
            let remaining = Duration::from_micros(u64::try_from(lease).unwrap_or(0));
            (id, (PeerAddress { url, certificate }, received_at + remaining))
        });
        *self.peers.lock() = addresses.collect();
        Ok(())
    }

    /// Marks this node as resigned in the database. Waits for this node's last write as the leader, which locks the
    /// row.
    async fn mark_resigned(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        let sql = "WITH held AS MATERIALIZED (
                     SELECT id FROM nodes WHERE id = $1 AND epoch = $2 AND process = $3 FOR UPDATE)
                   UPDATE nodes SET resigned = true FROM held WHERE nodes.id = held.id";
        let epoch = signed(self.current_epoch.lock().epoch);
        execute(client, sql, &[&self.id, &epoch, &self.process]).await?;
        self.notify_peers(client).await?;
        tracing::info!(node = self.id, "this node has resigned as the leader");
        Ok(())
    }

    /// Notifies the other nodes, so that they read the list of nodes at once.
    async fn notify_peers(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        execute(client, "SELECT pg_notify($1, $2)", &[&CHANNEL, &format!("{} {SERVERS_CHANGED}", self.id)])
            .await
            .map(drop)
    }

    /// Ends the lease.
    async fn leave(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        self.is_leader.store(false, Ordering::Release);
        let epoch = {
            let mut current = self.current_epoch.lock();
            current.lease_end = Duration::ZERO;
            signed(current.epoch)
        };
        let sql = "UPDATE nodes SET lease_until = clock_timestamp() WHERE id = $1 AND epoch = $2 AND process = $3";
        execute(client, sql, &[&self.id, &epoch, &self.process]).await?;
        self.notify_peers(client).await
    }
}

/// Returns the local end of a lease that was requested at `sent`.
fn local_lease_end(sent: Duration) -> Duration {
    (sent + Duration::from_secs(LEASE_SECS.unsigned_abs().into())).saturating_sub(LEASE_MARGIN)
}

/// Returns `true` if every node that joined earlier is gone or has resigned. Locks the rows of those nodes, which
/// excludes concurrent renewals and waits for their writes as the leader.
async fn may_lead(client: &ClientWrapper, joined: i64) -> Result<bool, StoreError> {
    let sql = "SELECT coalesce(bool_or(lease_until > clock_timestamp() AND NOT resigned), false)
               FROM (SELECT lease_until, resigned FROM nodes WHERE joined < $1 FOR UPDATE) AS earlier";
    Ok(query_opt(client, sql, &[&joined]).await?.is_some_and(|row| !row.get::<_, bool>(0)))
}
