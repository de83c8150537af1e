//! What runs, and by whom: committed with the step that makes a change executing, and gone with the step that ends it. A
//! claim holds by its node and epoch; one whose node is gone is ended by another node, and only then.
//!
//! Where the outcome is unknown, the row stays and keeps others from the target: until `taken_ms`, or until a person has
//! settled the change. Whoever claims the target after that takes the row over.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::rows::{self, execute, one, query};
use crate::{
    Draft, LateCall, StoreError, WriteError,
    rows::{parse_moment, signed},
};
use countersign_domain::changes::{Change, ChangeState, Claimant, machine::EventKind};

/// What a transition is to the claim of its change.
pub(super) enum Role<'a> {
    /// It touches none.
    None,
    /// It makes one.
    Takes(&'a Claimant),
    /// It is made by who has it: while the change runs, or as its end.
    Holds(&'a Claimant),
    /// It ends that of a node that is gone.
    Orphan,
    /// A person says how it ended.
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

/// How long after the lease of its node a call may still go out, in seconds: a process that was stopped right between
/// looking at its lease and sending wakes with the call in its hands. Nobody settles before.
pub(super) const HOLD: i32 = 120;

/// Milliseconds of the Unix epoch.
const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// Until when a claim that does not run any more keeps its target; null of one that runs. A version before wrote no
/// `taken_ms`.
pub(super) const TARGET_TAKEN_MS: &str =
    "coalesce(claims.taken_ms, (extract(epoch FROM claims.lapsed_until) * 1000)::bigint)";

/// A step of a change that exists, up to what it answers.
pub(super) const MOVED: &str =
    "UPDATE changes SET version = $3, state = $4, expires_at = $5, body = $6, finished_at = $7, votes = $8, title = $9
     WHERE id = $1 AND version = $2";

/// A step with its claim, in one statement: made where the change is at that version, the node's lease holds and nothing
/// else runs to its target; or made by who has the claim, which ends with the run. The change's number.
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
              moved AS ({MOVED} AND EXISTS (SELECT FROM claim) RETURNING no)
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

/// Ends the claim of a node that is gone, for certain: its lease cannot be renewed as long as the transaction lasts. What
/// its process may still have in its hands holds up whoever would settle, and the target is taken for as long as a call that
/// goes out at the last moment may take.
pub(super) async fn lapse(client: &ClientWrapper, change: &Change) -> Result<bool, StoreError> {
    let id = &change.id;
    let taken = change.target_taken_until.map(Timestamp::as_millisecond);
    // The claim first, as who ends it in order. Somebody who holds it does so, or does what was approved at this moment.
    let claim = "SELECT node, epoch FROM claims WHERE change_id = $1 AND lapsed_until IS NULL";
    let Some(claim) = one(client, &format!("{claim} FOR UPDATE SKIP LOCKED"), &[&id]).await? else {
        let unclaimed = one(client, claim, &[&id]).await?.is_none();
        if unclaimed && taken.is_some() {
            // As after a move from another store.
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
        // Its process has ended, or has been unheard of for a day.
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
            execute(client, &sql, &[&id, &HOLD, &timeout]).await?
        }
    };
    Ok(true)
}

/// Frees the target where nothing of a lapsed claim can go out any more; whether that is so.
pub(super) async fn settle(client: &ClientWrapper, id: &str) -> Result<bool, StoreError> {
    if held_until(client, id).await?.is_some() {
        return Ok(false);
    }
    execute(client, "DELETE FROM claims WHERE change_id = $1", &[&id]).await?;
    Ok(true)
}

/// Notes that the call of a lapsed claim has come back: nothing of it can go out any more, and its target is free unless its
/// outcome is unknown all the same.
pub(super) async fn came_back(client: &ClientWrapper, id: &str, late: &LateCall) -> Result<(), StoreError> {
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

/// Ends the wait for what an earlier process of the node may still have in its hands, once the node has begun anew: its
/// calls went out before.
pub(super) async fn begin_anew(client: &ClientWrapper, node: &str) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE claims SET lapsed_until = NULL,
                taken_ms = least(taken_ms, {NOW_MS} + taken_ms - (extract(epoch FROM lapsed_until) * 1000)::bigint)
         WHERE node = $1 AND lapsed_until IS NOT NULL AND taken_ms IS NOT NULL
           AND epoch < (SELECT process_epoch FROM nodes WHERE id = $1)"
    );
    execute(client, &sql, &[&node]).await.map(drop)
}

/// See [`crate::Store::held_until`]. A process that has been started anew holds nothing.
pub(super) async fn held_until(client: &ClientWrapper, id: &str) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT (extract(epoch FROM c.lapsed_until) * 1000)::bigint
               FROM claims c JOIN nodes n ON n.id = c.node AND n.process_epoch <= c.epoch
               WHERE c.change_id = $1 AND c.lapsed_until > clock_timestamp()";
    one(client, sql, &[&id]).await?.map(|row| parse_moment(row.get(0))).transpose()
}

/// See [`crate::Store::orphans`].
pub(super) async fn orphans(client: &ClientWrapper) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT h.id FROM changes h
               LEFT JOIN claims c ON c.change_id = h.id AND c.lapsed_until IS NULL
               LEFT JOIN nodes n ON n.id = c.node
               WHERE h.state = 'executing'
                 AND (n.id IS NULL OR n.epoch > c.epoch OR n.lease_until < clock_timestamp())
               ORDER BY h.no";
    Ok(query(client, sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}
