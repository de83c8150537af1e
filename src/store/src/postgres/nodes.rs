//! This gateway as a node. A thread with its own connection renews the lease, listens for writes of other nodes, and
//! looks for them each second in any case.
//!
//! The lease is measured by the server's clock where it is stored, and here by a clock that also advances while the
//! process is stopped. Here it begins before the renewal is sent and has a margin, so it ends first. Actions that need
//! a lease to be over lock the rows of the nodes, so that no renewal is under way.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::SyncSender,
    },
    thread::JoinHandle,
    time::Duration,
};

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{
    PgConnector, claims,
    clock::{ServerClock, steady},
    connect::spawn_runtime,
    error,
    node_rows::{CHANNEL, list, read_reach},
    rows::{execute, heads_and, one, query},
};
use crate::{
    Heads, StoreError, StoreFuture,
    nodes::{Introduction, Node, Nodes, Peer, ServerStates, StoreUpdates},
    rows::{parse_hash, signed, unsigned},
};
use countersign_domain::changes::{
    Claimant,
    audit::{AuditHead, EntryHash},
    digest::PartHasher,
};

/// The seconds for which a silent node counts as alive: at least [`RENEWAL_INTERVAL`], [`ANSWER_TIMEOUT`] and
/// [`LEASE_MARGIN`] together, because a renewal may wait three seconds until the database ends a frozen node's
/// transaction.
const LEASE_SECS: i32 = 5;
/// The time by which the lease ends earlier here.
const LEASE_MARGIN: Duration = Duration::from_secs(1);
/// The interval between renewals.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout for the answer to a renewal.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The minimum interval between renewals, however often one is requested.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_millis(50);
/// The delay before a new connection is tried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The text of the notification that a node's servers or leadership have changed.
const SERVERS_CHANGED: &str = "servers";

struct NodeEpoch {
    epoch: u64,
    /// The end of the lease, by [`steady`].
    until: Duration,
    /// The epoch in which the sessions began ([`Nodes::sessions_since`]).
    sessions_since: u64,
}

/// The numbers of the last renewal that began, and of the last that succeeded.
struct Renewals {
    begun: AtomicU64,
    done: watch::Sender<u64>,
}

/// The membership of this gateway among the nodes.
pub(super) struct Membership {
    connector: Arc<PgConnector>,
    pub id: String,
    process: String,
    started_at: Timestamp,
    life: Mutex<NodeEpoch>,
    leads: AtomicBool,
    /// This node must not lead any more.
    resigned: AtomicBool,
    live: AtomicUsize,
    differing: AtomicUsize,
    /// The addresses of the other live nodes, and the ends of their leases by [`steady`].
    peers: Mutex<HashMap<String, (Peer, Duration)>>,
    renewals: Renewals,
    secret: OnceLock<[u8; 32]>,
    news: watch::Sender<StoreUpdates>,
    says: Mutex<Introduction>,
    reach: Mutex<Own>,
    /// The server states of the other live nodes, and the number of each report.
    others: Mutex<HashMap<String, (i64, ServerStates)>>,
    /// Notified to renew at once, or to end.
    wake: Notify,
    closing: AtomicBool,
    /// Another process has this node's place, or the logs are not those that this node knows.
    replaced: AtomicBool,
    /// The known ends of the logs: after this node's last write, or at the last renewal.
    known: Mutex<Heads>,
    clock: ServerClock,
}

/// The server states of this node.
#[derive(Default)]
struct Own {
    reach: ServerStates,
    /// They were written to the database.
    said: bool,
}

/// The outcome of a renewal.
enum RenewalOutcome {
    Renewed,
    Lapsed,
    Replaced,
}

impl Membership {
    pub fn new(connector: Arc<PgConnector>, id: String) -> Arc<Self> {
        Arc::new(Self {
            connector,
            id,
            process: nanoid::nanoid!(),
            started_at: Timestamp::now(),
            life: Mutex::new(NodeEpoch { epoch: 0, until: Duration::ZERO, sessions_since: 0 }),
            leads: AtomicBool::new(false),
            resigned: AtomicBool::new(false),
            live: AtomicUsize::new(1),
            differing: AtomicUsize::new(0),
            peers: Mutex::default(),
            renewals: Renewals { begun: AtomicU64::new(0), done: watch::channel(0).0 },
            secret: OnceLock::new(),
            news: watch::channel(StoreUpdates::default()).0,
            says: Mutex::default(),
            reach: Mutex::default(),
            others: Mutex::default(),
            wake: Notify::new(),
            closing: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            known: Mutex::default(),
            clock: ServerClock::default(),
        })
    }

    /// Joins, and renews the lease until the membership is closed.
    ///
    /// # Errors
    /// Why it could not join.
    pub fn start(self: &Arc<Self>) -> Result<JoinHandle<()>, StoreError> {
        let node = Arc::clone(self);
        spawn_runtime("store-node", |ready| node.run(ready))
    }

    /// Leaves, so that another node leads at once.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    fn life(&self) -> std::sync::MutexGuard<'_, NodeEpoch> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> Heads {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the logs end there, or later.
    pub fn know(&self, heads: Heads) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if heads.audit.seq > known.audit.seq {
            *known = heads;
        }
    }

    /// Reads and locks the ends of the logs, so that nobody else writes before the caller's transaction ends.
    ///
    /// # Errors
    /// [`StoreError::Lost`] where something is gone that was there, whatever others have written since.
    pub async fn take_heads(&self, link: &ClientWrapper) -> Result<Heads, StoreError> {
        let known = self.known();
        let (heads, entry) = heads_and(link, known.audit.seq, true).await?;
        if continues_known_logs(known, heads, entry) { Ok(heads) } else { Err(StoreError::Lost) }
    }

    /// Reads where the logs end, and knows it from then on.
    ///
    /// # Errors
    /// [`StoreError::Lost`] if something is gone that was there.
    pub async fn check_logs(&self, client: &ClientWrapper) -> Result<(), StoreError> {
        let known = self.known();
        let (heads, entry) = heads_and(client, known.audit.seq, false).await?;
        if !continues_known_logs(known, heads, entry) {
            return Err(StoreError::Lost);
        }
        self.know(heads);
        Ok(())
    }

    fn says(&self) -> Introduction {
        self.says.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn run(self: Arc<Self>, ready: SyncSender<Result<(), StoreError>>) {
        let mut ready = Some(ready);
        while !self.closing.load(Ordering::Acquire) {
            match self.stay(&mut ready).await {
                // The opener of the store waits for the first renewal.
                Err(error) if ready.is_some() => {
                    if let Some(ready) = ready.take() {
                        let _ = ready.send(Err(error));
                    }
                    return;
                }
                Err(error @ (StoreError::Superseded | StoreError::Lost)) => {
                    self.replaced.store(true, Ordering::Release);
                    self.connector.health.failed(&error);
                    tracing::error!(%error, "this gateway serves no more");
                    return;
                }
                Err(error) => tracing::warn!(%error, "this node's connection to the store ended; connecting again"),
                Ok(()) => return,
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Renews the lease with one connection, until that ends.
    async fn stay(self: &Arc<Self>, ready: &mut Option<SyncSender<Result<(), StoreError>>>) -> Result<(), StoreError> {
        let node = Arc::downgrade(self);
        let hear = move |told: &str| {
            if let Some(node) = node.upgrade() {
                node.hear(told);
            }
        };
        let link = self.connector.listen(hear).await?;
        self.connector.silence.asks_regularly();
        link.batch_execute(&format!("LISTEN {CHANNEL}")).await?;
        if ready.is_some() {
            self.join(&link, true).await?;
        }
        let mut told = false;
        loop {
            let began = Instant::now();
            if !told && self.resigned.load(Ordering::Acquire) {
                self.soon(self.hand_over(&link)).await?;
                told = true;
            }
            match self.soon(self.renew(&link)).await? {
                RenewalOutcome::Renewed => {}
                RenewalOutcome::Replaced => return Err(StoreError::Superseded),
                RenewalOutcome::Lapsed => {
                    tracing::warn!("this node's lease ran out; what it was running then is taken to be lost");
                    self.soon(self.join(&link, false)).await?;
                    self.soon(self.renew(&link)).await?;
                }
            }
            if let Some(ready) = ready.take() {
                let _ = ready.send(Ok(()));
            }
            let woken = async {
                self.wake.notified().await;
                sleep_until(began + MIN_RENEWAL_INTERVAL).await;
            };
            tokio::select! {
                () = sleep_until(began + RENEWAL_INTERVAL) => {}
                () = woken => {}
            }
            if self.closing.load(Ordering::Acquire) {
                return self.soon(self.leave(&link)).await;
            }
            if link.is_closed() {
                return Err(error::no_answer());
            }
        }
    }

    async fn soon<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.connector.answer(Instant::now() + ANSWER_TIMEOUT, work).await.unwrap_or_else(|| Err(error::no_answer()))
    }

    /// Begins an epoch.
    async fn join(&self, link: &ClientWrapper, anew: bool) -> Result<(), StoreError> {
        link.batch_execute("BEGIN").await?;
        // Nodes join one after another, so that each sees those that joined before.
        self.connector.joining(link).await?;
        let sql = "DELETE FROM nodes WHERE lease_until < clock_timestamp() - interval '1 day'
                   AND NOT EXISTS (SELECT FROM claims WHERE claims.node = nodes.id)";
        execute(link, sql, &[]).await?;
        let Introduction { url, version, configuration, certificate } = self.says();
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
        let started = self.started_at.as_millisecond();
        let sent = steady();
        let resigned = self.resigned.load(Ordering::Acquire);
        // The epochs rise even if the row of this node was deleted, so that claims of earlier epochs stay invalid.
        let next = signed(self.life().epoch + 1);
        let values: [super::rows::Value<'_>; 11] = [
            &self.id,
            &self.process,
            &LEASE_SECS,
            &started,
            &url,
            &version,
            &configuration,
            &anew,
            &resigned,
            &certificate,
            &next,
        ];
        let row = one(link, sql, &values).await?;
        let received = steady();
        claims::end_waits_of_old_process(link, &self.id).await?;
        self.load_cluster_secret(link).await?;
        link.batch_execute("COMMIT").await?;
        self.reach.lock().unwrap_or_else(PoisonError::into_inner).said = false;
        let row = row.ok_or(StoreError::Superseded)?;
        self.clock.heard(row.get("time"), sent, received);
        self.leads.store(false, Ordering::Release);
        let mut life = self.life();
        let epoch = unsigned(row.get(0))?;
        // Sessions of a node that was alone have not been reported as gone. Other nodes may have reported those of a
        // node that outlived its lease.
        let sessions_since = if anew || row.get("others") { epoch } else { life.sessions_since };
        *life = NodeEpoch { epoch, until: end(sent), sessions_since };
        tracing::info!(node = self.id, epoch = life.epoch, "this node has joined");
        Ok(())
    }

    /// Loads the secret of all nodes, which the first node created.
    async fn load_cluster_secret(&self, link: &ClientWrapper) -> Result<(), StoreError> {
        let alphabet: Vec<char> = "0123456789abcdef".chars().collect();
        let new = nanoid::nanoid!(64, &alphabet);
        let sql = "INSERT INTO facts (name, value) VALUES ('cluster_secret', $1) ON CONFLICT (name) DO NOTHING";
        execute(link, sql, &[&new]).await?;
        let kept = one(link, "SELECT value FROM facts WHERE name = 'cluster_secret'", &[]).await?;
        let mut hasher = PartHasher::new("countersign.cluster.1");
        hasher.add_part(kept.as_ref().map_or("", |row| row.get::<_, &str>(0)).as_bytes());
        self.secret.get_or_init(|| hasher.finish_bytes());
        Ok(())
    }

    async fn renew(&self, link: &ClientWrapper) -> Result<RenewalOutcome, StoreError> {
        let number = self.renewals.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let Introduction { url, version, configuration, certificate } = self.says();
        let epoch = signed(self.life().epoch);
        let servers = {
            let mut own = self.reach.lock().unwrap_or_else(PoisonError::into_inner);
            (!std::mem::replace(&mut own.said, true)).then(|| serde_json::to_string(&own.reach).unwrap_or_default())
        };
        let sql = "WITH renewed AS (
                     UPDATE nodes SET lease_until = clock_timestamp() + $4::int * interval '1 second', url = $5, version = $6,
                                      configuration = $7, certificate = $9, servers = coalesce($8, servers),
                                      servers_no = servers_no + CASE WHEN $8 IS NULL THEN 0 ELSE 1 END
                     WHERE id = $1 AND epoch = $2 AND process = $3 AND lease_until > clock_timestamp() RETURNING joined),
                   others AS (SELECT id, url, certificate, joined, resigned, servers_no,
                                     lease_until > clock_timestamp() AS live,
                                     (extract(epoch FROM lease_until - clock_timestamp()) * 1000000)::bigint AS lease,
                                     version = $6 AND configuration NOT IN ('', $7) AS other
                              FROM nodes WHERE id <> $1)
                   SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS time,
                          event, audit, hash, records, (SELECT hash FROM audit WHERE seq = $10) AS entry,
                          (SELECT joined FROM renewed) AS joined, (SELECT process FROM nodes WHERE id = $1) AS process,
                          EXISTS (SELECT FROM others, renewed
                                  WHERE live AND NOT resigned AND others.joined < renewed.joined) AS ahead,
                          EXISTS (SELECT FROM words WHERE node = $1) AS words,
                          (SELECT count(*) FROM others WHERE live AND other) AS differing,
                          ARRAY(SELECT id FROM others WHERE live ORDER BY id) AS live,
                          ARRAY(SELECT servers_no FROM others WHERE live ORDER BY id) AS said,
                          ARRAY(SELECT id FROM others WHERE live AND url <> '' ORDER BY id) AS reached,
                          ARRAY(SELECT url FROM others WHERE live AND url <> '' ORDER BY id) AS urls,
                          ARRAY(SELECT certificate FROM others WHERE live AND url <> '' ORDER BY id) AS certificates,
                          ARRAY(SELECT lease FROM others WHERE live AND url <> '' ORDER BY id) AS leases
                   FROM heads";
        let known = self.known();
        let last = signed(known.audit.seq);
        let sent = steady();
        let values: [super::rows::Value<'_>; 10] = [
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
        let row = one(link, sql, &values).await;
        let received = steady();
        if row.is_err() && servers.is_some() {
            self.reach.lock().unwrap_or_else(PoisonError::into_inner).said = false;
        }
        let Some(row) = row? else {
            return Err(StoreError::BadRecord("nothing says where the logs end".into()));
        };
        self.clock.heard(row.get("time"), sent, received);
        if servers.is_some() {
            self.wake_others(link).await?;
        }
        let (live, said): (Vec<String>, Vec<i64>) = (row.get("live"), row.get("said"));
        let others = live.len();
        self.read_others(link, live.into_iter().zip(said).collect()).await?;
        let audit = AuditHead { seq: unsigned(row.get("audit"))?, hash: parse_hash(row.get("hash"))? };
        let heads = Heads { event: unsigned(row.get("event"))?, audit };
        if !continues_known_logs(known, heads, row.get::<_, Option<&[u8]>>("entry").map(parse_hash).transpose()?) {
            return Err(StoreError::Lost);
        }
        self.know(heads);
        note(&self.news, heads.event, unsigned(row.get("records"))?, row.get("words"));
        self.live.store(others + 1, Ordering::Release);
        self.differing.store(usize::try_from(row.get::<_, i64>("differing")).unwrap_or(0), Ordering::Release);
        let (reached, urls): (Vec<String>, Vec<String>) = (row.get("reached"), row.get("urls"));
        let (certificates, leases): (Vec<String>, Vec<i64>) = (row.get("certificates"), row.get("leases"));
        let peers = urls.into_iter().zip(certificates).zip(leases).map(|((url, certificate), lease)| {
            let left = Duration::from_micros(u64::try_from(lease).unwrap_or(0));
            (Peer { url, certificate }, received + left)
        });
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = reached.into_iter().zip(peers).collect();
        let Some(joined) = row.get::<_, Option<i64>>("joined") else {
            let other = row.get::<_, Option<&str>>("process").is_some_and(|process| process != self.process);
            return Ok(if other { RenewalOutcome::Replaced } else { RenewalOutcome::Lapsed });
        };
        self.life().until = end(sent);
        self.renewals.done.send_replace(number);
        let ahead = row.get::<_, bool>("ahead") || self.resigned.load(Ordering::Acquire);
        if !self.leads.load(Ordering::Acquire) && !ahead && first(link, joined).await? {
            tracing::info!(node = self.id, "this node leads");
            self.leads.store(true, Ordering::Release);
        }
        Ok(RenewalOutcome::Renewed)
    }

    /// Marks this node as resigned. Waits for its last write as the leader, which holds the row.
    async fn hand_over(&self, link: &ClientWrapper) -> Result<(), StoreError> {
        let sql = "WITH held AS MATERIALIZED (
                     SELECT id FROM nodes WHERE id = $1 AND epoch = $2 AND process = $3 FOR UPDATE)
                   UPDATE nodes SET resigned = true FROM held WHERE nodes.id = held.id";
        let epoch = signed(self.life().epoch);
        execute(link, sql, &[&self.id, &epoch, &self.process]).await?;
        self.wake_others(link).await?;
        tracing::info!(node = self.id, "this node leads no more");
        Ok(())
    }

    /// Notifies the other nodes, so that they look at the nodes at once.
    async fn wake_others(&self, link: &ClientWrapper) -> Result<(), StoreError> {
        execute(link, "SELECT pg_notify($1, $2)", &[&CHANNEL, &format!("{} {SERVERS_CHANGED}", self.id)])
            .await
            .map(drop)
    }

    /// Handles a notification. Anybody with access to the database can send one, so it is only a hint. It begins with
    /// the sender; then come the ends of the logs, the receiver of a message after `to`, or a change of servers.
    fn hear(&self, told: &str) {
        match *told.split(' ').collect::<Vec<_>>() {
            [_, "to", node] if node == self.id => note(&self.news, 0, 0, true),
            [from, SERVERS_CHANGED] if from != self.id => self.wake.notify_one(),
            [from, event, records] if from != self.id => {
                if let (Ok(event), Ok(records)) = (event.parse(), records.parse()) {
                    note(&self.news, event, records, false);
                }
            }
            _ => {}
        }
    }

    /// Reads the server states of nodes that have reported new ones.
    async fn read_others(&self, link: &ClientWrapper, said: Vec<(String, i64)>) -> Result<(), StoreError> {
        let news: Vec<&str> = {
            let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            others.retain(|id, _| said.iter().any(|(live, _)| live == id));
            let known = |id: &str| others.get(id).map_or(0, |(number, _)| *number);
            said.iter().filter(|(id, number)| known(id) != *number).map(|(id, _)| id.as_str()).collect()
        };
        if news.is_empty() {
            return Ok(());
        }
        let rows = query(link, "SELECT id, servers_no, servers FROM nodes WHERE id = ANY($1)", &[&news]).await?;
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            others.insert(row.get(0), (row.get(1), read_reach(row.get(2))));
        }
        drop(others);
        self.news.send_modify(|news| news.reach += 1);
        Ok(())
    }

    async fn leave(&self, link: &ClientWrapper) -> Result<(), StoreError> {
        self.leads.store(false, Ordering::Release);
        let epoch = {
            let mut life = self.life();
            life.until = Duration::ZERO;
            signed(life.epoch)
        };
        let sql = "UPDATE nodes SET lease_until = clock_timestamp() WHERE id = $1 AND epoch = $2 AND process = $3";
        execute(link, sql, &[&self.id, &epoch, &self.process]).await?;
        self.wake_others(link).await
    }
}

/// Returns `true` if the logs with these `heads` continue the known ones. `entry` is the present hash of the last known
/// entry.
fn continues_known_logs(known: Heads, heads: Heads, entry: Option<EntryHash>) -> bool {
    known.audit.seq == 0
        || (entry == Some(known.audit.hash)
            && heads.event >= known.event
            && (heads.audit.seq > known.audit.seq || heads == known))
}

/// Returns the local end of a lease that was requested at that time.
fn end(sent: Duration) -> Duration {
    (sent + Duration::from_secs(LEASE_SECS.unsigned_abs().into())).saturating_sub(LEASE_MARGIN)
}

/// Returns `true` if no live node that has not resigned joined earlier. Locks their rows, so that no renewal is under
/// way, and everything that they did as the leader is committed.
async fn first(link: &ClientWrapper, joined: i64) -> Result<bool, StoreError> {
    let sql = "SELECT coalesce(bool_or(lease_until > clock_timestamp() AND NOT resigned), false)
               FROM (SELECT lease_until, resigned FROM nodes WHERE joined < $1 FOR UPDATE) AS earlier";
    Ok(one(link, sql, &[&joined]).await?.is_some_and(|row| !row.get::<_, bool>(0)))
}

/// Updates the counters, and wakes subscribers only if they have risen.
fn note(news: &watch::Sender<StoreUpdates>, event: u64, records: u64, words: bool) {
    news.send_if_modified(|known| {
        let later = StoreUpdates {
            event: known.event.max(event),
            records: known.records.max(records),
            messages: known.messages + u64::from(words),
            reach: known.reach,
        };
        let more = later != *known;
        *known = later;
        more
    });
}

impl Nodes for Membership {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn claimant(&self) -> Option<Claimant> {
        Some(Claimant { node: self.id.clone(), epoch: self.life().epoch })
    }

    fn holds_claim(&self, claimant: Option<&Claimant>) -> bool {
        let life = self.life();
        claimant.is_none_or(|claimant| claimant.node == self.id && claimant.epoch == life.epoch)
            && steady() < life.until
    }

    fn is_leader(&self) -> bool {
        self.leads.load(Ordering::Acquire) && !self.resigned.load(Ordering::Acquire) && self.holds_claim(None)
    }

    fn resign(&self) {
        self.resigned.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn live_count(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    fn differing_count(&self) -> usize {
        self.differing.load(Ordering::Acquire)
    }

    fn peer(&self, node: &str) -> Option<Peer> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(node).filter(|(_, until)| steady() < *until).map(|(peer, _)| peer.clone())
    }

    fn refresh(&self) -> StoreFuture<()> {
        let after = self.renewals.begun.load(Ordering::Acquire);
        let mut done = self.renewals.done.subscribe();
        self.wake.notify_one();
        Box::pin(async move {
            match timeout(ANSWER_TIMEOUT, done.wait_for(|number| *number > after)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) => Err(StoreError::Closed),
                Err(_) => Err(error::no_answer()),
            }
        })
    }

    fn sessions_since(&self) -> u64 {
        self.life().sessions_since
    }

    fn outward_address(&self) -> Option<IpAddr> {
        self.connector.outward()
    }

    fn cluster_secret(&self) -> Option<[u8; 32]> {
        self.secret.get().copied()
    }

    fn subscribe_updates(&self) -> watch::Receiver<StoreUpdates> {
        self.news.subscribe()
    }

    fn introduce(&self, says: Introduction) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
        self.wake.notify_one();
    }

    fn set_server_states(&self, reach: ServerStates) {
        *self.reach.lock().unwrap_or_else(PoisonError::into_inner) = Own { reach, said: false };
        self.wake.notify_one();
    }

    fn peer_server_states(&self) -> Vec<ServerStates> {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.values().map(|(_, reach)| reach.clone()).collect()
    }

    fn list(&self) -> StoreFuture<Vec<Node>> {
        let here = self.id.clone();
        self.connector.ask(error::no_answer, async move |client| list(client, &here).await)
    }
}
