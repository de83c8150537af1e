//! Claims: which node runs which change. A claim is committed with the step that makes a change executing, and deleted
//! with the step that ends it. It holds by its node and epoch. Only if the node is gone may another node end it.
//!
//! If the outcome is unknown, the row remains and keeps others from the target until `taken_ms`, or until a person
//! settles the change. The next claim of the target takes the row over.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::rows::{self, execute, one, query};
use crate::{
    Draft, LateCall, StoreError, WriteError,
    rows::{parse_moment, signed},
};
use countersign_domain::changes::{Change, ChangeState, Claimant, machine::EventKind};

/// The effect of a transition on the claim of its change.
pub(super) enum Role<'a> {
    /// No effect.
    None,
    /// Makes the claim.
    Takes(&'a Claimant),
    /// Needs the claim: during the run, or as its end.
    Holds(&'a Claimant),
    /// Ends the claim of a node that is gone.
    Orphan,
    /// A person settles the outcome.
    Settles,
}

impl<'a> Role<'a> {
    pub fn of(draft: &'a Draft) -> Self {
        match (draft.kind, draft.from, &draft.change.claimed_by) {
            (EventKind::Executing, _, Some(by)) => Self::Takes(by),
            (_, Some(ChangeState::Executing), _) if draft.orphan => Self::Orphan,
            (_, Some(ChangeState::Executing), Some(by)) => Self::Holds(by),
            (_, Some(ChangeState::OutcomeUnknown), _) => Self::Settles,
            _ => Self::None,
        }
    }
}

/// The seconds after the end of a node's lease for which a call may still go out, because a process may be stopped
/// between its check of the lease and the call. Nobody settles before.
pub(super) const MAX_SEND_DELAY_SECS: i32 = 120;

/// The present time in milliseconds since the Unix epoch.
const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// The time until which a claim keeps its target after the run; null while it runs. Older versions did not write
/// `taken_ms`.
pub(super) const TARGET_TAKEN_MS: &str =
    "coalesce(claims.taken_ms, (extract(epoch FROM claims.lapsed_until) * 1000)::bigint)";

/// Updates an existing change; `RETURNING` is added.
pub(super) const UPDATE_CHANGE: &str =
    "UPDATE changes SET version = $3, state = $4, expires_at = $5, body = $6, finished_at = $7, votes = $8, title = $9
     WHERE id = $1 AND version = $2";

/// Writes a step with its claim in one statement, and returns the change's number. A new claim needs the expected
/// version, a valid lease and a free target; other steps need the claim itself.
pub(super) async fn step(
    link: &ClientWrapper,
    values: [rows::Value<'_>; 9],
    role: &Role<'_>,
    change: &Change,
    by: &Claimant,
) -> Result<Result<i64, WriteError>, StoreError> {
    let epoch = signed(by.epoch);
    let acts_on = change.target_hash();
    let taken = change.target_taken_until.map(Timestamp::as_millisecond);
    let ready = "ready AS MATERIALIZED (SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE)";
    let own = "change_id = $1 AND node = $10 AND epoch = $11 AND lapsed_until IS NULL AND taken_ms IS NULL
               AND EXISTS (SELECT FROM ready)";
    let mut given = values.to_vec();
    given.extend([&by.node as rows::Value<'_>, &epoch]);
    let (here, claim) = match role {
        Role::Takes(_) => {
            given.push(&acts_on);
            let here = "SELECT 1 FROM nodes WHERE id = $10 AND epoch = $11 AND lease_until > clock_timestamp()";
            let claim = format!(
                "INSERT INTO claims (change_id, target, node, epoch)
                 SELECT $1, $12, $10, $11 WHERE EXISTS (SELECT FROM here) AND EXISTS (SELECT FROM ready)
                   -- Seen first, so that whoever comes in vain locks nothing of whoever has the target.
                   AND NOT EXISTS (SELECT FROM claims WHERE target = $12 AND coalesce({TARGET_TAKEN_MS} > {NOW_MS}, true))
                 ON CONFLICT (target) DO UPDATE SET change_id = excluded.change_id, node = excluded.node,
                     epoch = excluded.epoch, lapsed_until = NULL, taken_ms = NULL
                 WHERE {TARGET_TAKEN_MS} <= {NOW_MS} RETURNING 1"
            );
            (here, claim)
        }
        _ if change.state == ChangeState::Executing => {
            ("SELECT 1", format!("SELECT 1 FROM claims WHERE {own} FOR SHARE"))
        }
        _ if taken.is_some() => {
            given.push(&taken);
            ("SELECT 1", format!("UPDATE claims SET taken_ms = $12 WHERE {own} RETURNING 1"))
        }
        _ => ("SELECT 1", format!("DELETE FROM claims WHERE {own} RETURNING 1")),
    };
    let sql = format!(
        "WITH here AS MATERIALIZED ({here}), {ready}, claim AS MATERIALIZED ({claim}),
              moved AS ({UPDATE_CHANGE} AND EXISTS (SELECT FROM claim) RETURNING no)
         SELECT (SELECT no FROM moved), EXISTS (SELECT FROM here), EXISTS (SELECT FROM ready)"
    );
    let row = one(link, &sql, &given).await?;
    let (no, here, ready) =
        row.map_or((None, false, false), |row| (row.get::<_, Option<i64>>(0), row.get(1), row.get(2)));
    Ok(match no {
        Some(no) => Ok(no),
        None if !ready => Err(WriteError::Conflict),
        None if here && matches!(role, Role::Takes(_)) => Err(WriteError::Busy),
        None => Err(WriteError::Fenced),
    })
}

/// Ends the claim of a node that is certainly gone: its lease cannot be renewed before the transaction ends. Until a
/// late call can no longer go out, nobody may settle the change, and the target stays taken for the time of such a
/// call. Returns `false` if the claim still holds.
pub(super) async fn end_lost_claim(client: &ClientWrapper, change: &Change) -> Result<bool, StoreError> {
    let id = &change.id;
    let taken = change.target_taken_until.map(Timestamp::as_millisecond);
    // Locks the claim first, in the same order as a step. If somebody else holds it, the claim is ending or was just
    // made.
    let claim = "SELECT node, epoch FROM claims WHERE change_id = $1 AND lapsed_until IS NULL";
    let Some(claim) = one(client, &format!("{claim} FOR UPDATE SKIP LOCKED"), &[&id]).await? else {
        let unclaimed = one(client, claim, &[&id]).await?.is_none();
        if unclaimed && taken.is_some() {
            // The store was moved from another one.
            let sql = "INSERT INTO claims (change_id, target, node, epoch, taken_ms) VALUES ($1, $2, '', 0, $3)
                       ON CONFLICT DO NOTHING";
            execute(client, sql, &[&id, &change.target_hash(), &taken]).await?;
        }
        return Ok(unclaimed);
    };
    let (node, epoch): (String, i64) = (claim.get(0), claim.get(1));
    let sql = "SELECT epoch > $2 OR lease_until < clock_timestamp(), process_epoch > $2
               FROM nodes WHERE id = $1 FOR SHARE";
    let row = one(client, sql, &[&node, &epoch]).await?;
    match row.map(|row| (row.get(0), row.get(1))) {
        Some((false, _)) => return Ok(false),
        // The process has ended, or was not heard of for a day.
        Some((true, true)) | None if taken.is_some() => {
            execute(client, "UPDATE claims SET taken_ms = $2 WHERE change_id = $1", &[&id, &taken]).await?
        }
        Some((true, true)) | None => execute(client, "DELETE FROM claims WHERE change_id = $1", &[&id]).await?,
        Some((true, false)) => {
            let sql = format!(
                "UPDATE claims SET lapsed_until = clock_timestamp() + $2::int * interval '1 second',
                                   taken_ms = {NOW_MS} + $2::bigint * 1000 + $3
                 WHERE change_id = $1"
            );
            let timeout = change.call_deadline(Timestamp::UNIX_EPOCH).as_millisecond();
            execute(client, &sql, &[&id, &MAX_SEND_DELAY_SECS, &timeout]).await?
        }
    };
    Ok(true)
}

/// Frees the target unless a call of an ended claim may still go out. Returns `true` if it was freed.
pub(super) async fn end_settled_claim(client: &ClientWrapper, id: &str) -> Result<bool, StoreError> {
    if in_flight_until(client, id).await?.is_some() {
        return Ok(false);
    }
    execute(client, "DELETE FROM claims WHERE change_id = $1", &[&id]).await?;
    Ok(true)
}

/// Records that the call of an ended claim has come back, so that no other call can go out. The target is free unless
/// the outcome is unknown all the same.
pub(super) async fn record_late_call(client: &ClientWrapper, id: &str, late: &LateCall) -> Result<(), StoreError> {
    let of = "change_id = $1 AND node = $2 AND epoch = $3 AND lapsed_until IS NOT NULL";
    let (by, epoch) = (&late.by, signed(late.by.epoch));
    match late.taken_until.map(Timestamp::as_millisecond) {
        Some(until) => {
            let sql = format!("UPDATE claims SET lapsed_until = NULL, taken_ms = $4 WHERE {of}");
            execute(client, &sql, &[&id, &by.node, &epoch, &until]).await.map(drop)
        }
        None => execute(client, &format!("DELETE FROM claims WHERE {of}"), &[&id, &by.node, &epoch]).await.map(drop),
    }
}

/// Ends the wait for late calls of an earlier process of the node, once the node has restarted: those calls went out
/// before.
pub(super) async fn end_waits_of_old_process(client: &ClientWrapper, node: &str) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE claims SET lapsed_until = NULL,
                taken_ms = least(taken_ms, {NOW_MS} + taken_ms - (extract(epoch FROM lapsed_until) * 1000)::bigint)
         WHERE node = $1 AND lapsed_until IS NOT NULL AND taken_ms IS NOT NULL
           AND epoch < (SELECT process_epoch FROM nodes WHERE id = $1)"
    );
    execute(client, &sql, &[&node]).await.map(drop)
}

/// Returns the time until which a call of an ended claim may go out. A restarted process holds none.
pub(super) async fn in_flight_until(client: &ClientWrapper, id: &str) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT (extract(epoch FROM c.lapsed_until) * 1000)::bigint
               FROM claims c JOIN nodes n ON n.id = c.node AND n.process_epoch <= c.epoch
               WHERE c.change_id = $1 AND c.lapsed_until > clock_timestamp()";
    one(client, sql, &[&id]).await?.map(|row| parse_moment(row.get(0))).transpose()
}

/// Returns executing changes without a valid claim.
pub(super) async fn orphans(client: &ClientWrapper) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT h.id FROM changes h
               LEFT JOIN claims c ON c.change_id = h.id AND c.lapsed_until IS NULL
               LEFT JOIN nodes n ON n.id = c.node
               WHERE h.state = 'executing'
                 AND (n.id IS NULL OR n.epoch > c.epoch OR n.lease_until < clock_timestamp())
               ORDER BY h.no";
    Ok(query(client, sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}
