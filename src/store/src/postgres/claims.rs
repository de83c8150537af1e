//! Claims: which node runs which change. A claim is committed together with the transition to executing, and deleted
//! together with the transition that ends the run. A claim belongs to one node and epoch. Another node may end the
//! claim only if that node is gone.
//!
//! If the outcome is unknown, the row remains and blocks the target until `taken_ms`, or until a person settles the
//! change. The next claim of the target replaces the row.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::rows::{self, execute, query, query_opt};
use crate::{
    LateCall, StoreError, TransitionDraft, WriteError,
    rows::{parse_time_ms, signed},
    statements::claims::plan_condition,
};
use countersign_domain::changes::{Change, ChangeState, Claimant, PlanStep, machine::EventKind};

/// The effect of a transition on the claim of the change.
pub(super) enum ClaimEffect<'a> {
    /// No effect.
    None,
    /// Makes the claim.
    Makes(&'a Claimant),
    /// Needs the claim, and may end the run.
    Needs(&'a Claimant),
    /// Ends the claim of a node that is gone.
    EndsOrphan,
    /// A person settles an unknown outcome.
    Settles,
    /// A person undoes the approval of a step of this plan.
    Undoes(&'a PlanStep),
}

impl<'a> ClaimEffect<'a> {
    pub fn for_draft(draft: &'a TransitionDraft) -> Self {
        match (draft.kind, draft.from, &draft.change.claimed_by) {
            (EventKind::Executing, _, Some(by)) => Self::Makes(by),
            (_, Some(ChangeState::Executing), _) if draft.ends_orphaned_claim => Self::EndsOrphan,
            (_, Some(ChangeState::Executing), Some(by)) => Self::Needs(by),
            (_, Some(ChangeState::OutcomeUnknown), _) => Self::Settles,
            _ => draft.plan_of_undone_step().map_or(Self::None, Self::Undoes),
        }
    }
}

/// The seconds after the end of a node's lease during which a call may still be sent, because a process may be
/// suspended between its check of the lease and the call. Nobody may settle the change before.
pub(super) const MAX_SEND_DELAY_SECS: i32 = 120;

/// The present time in milliseconds since the Unix epoch.
const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
/// The time until which a claim keeps its target after the run; null during the run. Older versions did not write
/// `taken_ms`.
pub(super) const TARGET_TAKEN_MS: &str =
    "coalesce(claims.taken_ms, (extract(epoch FROM claims.lapsed_until) * 1000)::bigint)";

/// Updates an existing change that still has its contents. Callers append `RETURNING`.
pub(super) const UPDATE_CHANGE: &str =
    "UPDATE changes SET version = $3, state = $4, expires_at = $5, body = $6, finished_at = $7, votes = $8, title = $9,
                        run_after_ms = $10
     WHERE id = $1 AND version = $2 AND NOT redacted";

/// Returns the CTE `steps` with the steps of a plan, given the parameter with its id. It waits for concurrent transitions of the
/// steps, and locks them in their order: a claim of one step and an undo of the approval of another must see each other.
fn steps_cte(plan: &str) -> String {
    format!(
        "steps AS MATERIALIZED (SELECT s.plan_index, s.plan_last, s.state, s.run_after_ms FROM changes s
                                WHERE s.plan_id = {plan} ORDER BY s.plan_index FOR UPDATE)"
    )
}

/// Undoes the approval of a step of a plan, unless a step runs: the grace period may have ended between the request and this
/// transaction, and then the approval has let that step run.
pub(super) async fn write_undo(
    client: &ClientWrapper,
    values: [rows::Value<'_>; 10],
    plan: &PlanStep,
) -> Result<Result<i64, WriteError>, StoreError> {
    let mut parameters = values.to_vec();
    parameters.push(&plan.id);
    let running = "EXISTS (SELECT FROM steps s WHERE s.state = 'executing')";
    let sql = format!(
        "WITH {}, moved AS ({UPDATE_CHANGE} AND NOT {running} RETURNING no)
         SELECT (SELECT no FROM moved), {running}",
        steps_cte("$11")
    );
    let row = query_opt(client, &sql, &parameters).await?;
    let (no, is_running) = row.map_or((None, false), |row| (row.get::<_, Option<i64>>(0), row.get(1)));
    Ok(no.ok_or(if is_running { WriteError::Busy } else { WriteError::Conflict }))
}

/// Writes a transition and its claim in one statement, and returns the change's number. A new claim needs the expected
/// version, a valid lease, a free target, and a plan that lets the change run if it has one. Other transitions need the claim itself.
pub(super) async fn write_with_claim(
    client: &ClientWrapper,
    values: [rows::Value<'_>; 10],
    effect: &ClaimEffect<'_>,
    draft: &TransitionDraft,
    claimant: &Claimant,
) -> Result<Result<i64, WriteError>, StoreError> {
    let change = &draft.change;
    let epoch = signed(claimant.epoch);
    let target = change.target_hash();
    let taken_until = change.target_taken_until.map(Timestamp::as_millisecond);
    let mut ready =
        "ready AS MATERIALIZED (SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE)".to_owned();
    let own_claim = "change_id = $1 AND node = $11 AND epoch = $12 AND lapsed_until IS NULL AND taken_ms IS NULL
               AND EXISTS (SELECT FROM ready)";
    let plan = change.plan.as_ref().map(|plan| (&plan.id, i64::from(plan.index)));
    let at = draft.at.as_millisecond();
    let mut parameters = values.to_vec();
    parameters.extend([&claimant.node as rows::Value<'_>, &epoch]);
    let (alive, claim) = match effect {
        ClaimEffect::Makes(_) => {
            parameters.push(&target);
            let plan_allows = plan.as_ref().map_or_else(String::new, |(id, index)| {
                parameters.extend([id as rows::Value<'_>, index, &at]);
                // The steps are locked before the change itself, so that all transactions take them in the same order.
                let change = "SELECT 1 FROM changes WHERE id = $1 AND version = $2 AND EXISTS (SELECT FROM steps)";
                ready = format!("{}, ready AS MATERIALIZED ({change} FOR UPDATE)", steps_cte("$14"));
                format!("AND {}", plan_condition("FROM steps s WHERE true", "$15::bigint", "$16::bigint"))
            });
            let alive = "SELECT 1 FROM nodes WHERE id = $11 AND epoch = $12 AND lease_until > clock_timestamp()";
            let claim = format!(
                "INSERT INTO claims (change_id, target, node, epoch)
                 SELECT $1, $13, $11, $12 WHERE EXISTS (SELECT FROM alive) AND EXISTS (SELECT FROM ready)
                   {plan_allows}
                   -- Checked first, so that a refused claim does not lock the row of the present holder.
                   AND NOT EXISTS (SELECT FROM claims WHERE target = $13 AND coalesce({TARGET_TAKEN_MS} > {NOW_MS}, true))
                 ON CONFLICT (target) DO UPDATE SET change_id = excluded.change_id, node = excluded.node,
                     epoch = excluded.epoch, lapsed_until = NULL, taken_ms = NULL
                 WHERE {TARGET_TAKEN_MS} <= {NOW_MS} RETURNING 1"
            );
            (alive, claim)
        }
        _ if change.state == ChangeState::Executing => {
            ("SELECT 1", format!("SELECT 1 FROM claims WHERE {own_claim} FOR SHARE"))
        }
        _ if taken_until.is_some() => {
            parameters.push(&taken_until);
            ("SELECT 1", format!("UPDATE claims SET taken_ms = $13 WHERE {own_claim} RETURNING 1"))
        }
        _ => ("SELECT 1", format!("DELETE FROM claims WHERE {own_claim} RETURNING 1")),
    };
    let sql = format!(
        "WITH alive AS MATERIALIZED ({alive}), {ready}, claim AS MATERIALIZED ({claim}),
              moved AS ({UPDATE_CHANGE} AND EXISTS (SELECT FROM claim) RETURNING no)
         SELECT (SELECT no FROM moved), EXISTS (SELECT FROM alive), EXISTS (SELECT FROM ready)"
    );
    let row = query_opt(client, &sql, &parameters).await?;
    let (no, is_alive, is_ready) =
        row.map_or((None, false, false), |row| (row.get::<_, Option<i64>>(0), row.get(1), row.get(2)));
    Ok(match no {
        Some(no) => Ok(no),
        None if !is_ready => Err(WriteError::Conflict),
        None if is_alive && matches!(effect, ClaimEffect::Makes(_)) => Err(WriteError::Busy),
        None => Err(WriteError::Fenced),
    })
}

/// Ends the claim of a node that is gone. A lock ensures that the node cannot renew its lease before the transaction
/// ends. As long as a late call may be sent, nobody may settle the change, and the target stays taken for the duration
/// of such a call. Returns `false` if the claim is still valid.
pub(super) async fn end_lost_claim(client: &ClientWrapper, change: &Change) -> Result<bool, StoreError> {
    let id = &change.id;
    let taken_until = change.target_taken_until.map(Timestamp::as_millisecond);
    // Locks the claim first, in the same order as `write_with_claim`. A locked row means that another transaction is
    // ending or making the claim.
    let claim = "SELECT node, epoch FROM claims WHERE change_id = $1 AND lapsed_until IS NULL";
    let Some(claim) = query_opt(client, &format!("{claim} FOR UPDATE SKIP LOCKED"), &[&id]).await? else {
        let unclaimed = query_opt(client, claim, &[&id]).await?.is_none();
        if unclaimed && taken_until.is_some() {
            // A store that was moved here has no claims of running changes.
            let sql = "INSERT INTO claims (change_id, target, node, epoch, taken_ms) VALUES ($1, $2, '', 0, $3)
                       ON CONFLICT DO NOTHING";
            execute(client, sql, &[&id, &change.target_hash(), &taken_until]).await?;
        }
        return Ok(unclaimed);
    };
    let (node, epoch): (String, i64) = (claim.get(0), claim.get(1));
    let sql = "SELECT epoch > $2 OR lease_until < clock_timestamp(), process_epoch > $2
               FROM nodes WHERE id = $1 FOR SHARE";
    let row = query_opt(client, sql, &[&node, &epoch]).await?;
    match row.map(|row| (row.get(0), row.get(1))) {
        Some((false, _)) => return Ok(false),
        // The process has ended, or the node's row was deleted after a day without renewals.
        Some((true, true)) | None if taken_until.is_some() => {
            execute(client, "UPDATE claims SET taken_ms = $2 WHERE change_id = $1", &[&id, &taken_until]).await?
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

/// Frees the target of a change that a person settles. Returns `false` if a call of an ended claim may still be sent.
pub(super) async fn end_settled_claim(client: &ClientWrapper, id: &str) -> Result<bool, StoreError> {
    if in_flight_until(client, id).await?.is_some() {
        return Ok(false);
    }
    execute(client, "DELETE FROM claims WHERE change_id = $1", &[&id]).await?;
    Ok(true)
}

/// Records that the call of an ended claim has returned, so that no further call can be sent. Frees the target unless
/// the outcome is still unknown.
pub(super) async fn record_late_call(client: &ClientWrapper, id: &str, late: &LateCall) -> Result<(), StoreError> {
    let condition = "change_id = $1 AND node = $2 AND epoch = $3 AND lapsed_until IS NOT NULL";
    let (claimant, epoch) = (&late.claimant, signed(late.claimant.epoch));
    match late.taken_until.map(Timestamp::as_millisecond) {
        Some(until) => {
            let sql = format!("UPDATE claims SET lapsed_until = NULL, taken_ms = $4 WHERE {condition}");
            execute(client, &sql, &[&id, &claimant.node, &epoch, &until]).await.map(drop)
        }
        None => execute(client, &format!("DELETE FROM claims WHERE {condition}"), &[&id, &claimant.node, &epoch])
            .await
            .map(drop),
    }
}

/// Ends the wait for late calls of an earlier process of the node. That process has ended, so it sends no more calls.
pub(super) async fn end_waits_of_old_process(client: &ClientWrapper, node: &str) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE claims SET lapsed_until = NULL,
                taken_ms = least(taken_ms, {NOW_MS} + taken_ms - (extract(epoch FROM lapsed_until) * 1000)::bigint)
         WHERE node = $1 AND lapsed_until IS NOT NULL AND taken_ms IS NOT NULL
           AND epoch < (SELECT process_epoch FROM nodes WHERE id = $1)"
    );
    execute(client, &sql, &[&node]).await.map(drop)
}

/// Returns the time until which a call of an ended claim may be sent. After the node's process has restarted, there is
/// none.
pub(super) async fn in_flight_until(client: &ClientWrapper, id: &str) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT (extract(epoch FROM c.lapsed_until) * 1000)::bigint
               FROM claims c JOIN nodes n ON n.id = c.node AND n.process_epoch <= c.epoch
               WHERE c.change_id = $1 AND c.lapsed_until > clock_timestamp()";
    query_opt(client, sql, &[&id]).await?.map(|row| parse_time_ms(row.get(0))).transpose()
}

/// Returns executing changes without a valid claim.
pub(super) async fn orphaned_changes(client: &ClientWrapper) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT h.id FROM changes h
               LEFT JOIN claims c ON c.change_id = h.id AND c.lapsed_until IS NULL
               LEFT JOIN nodes n ON n.id = c.node
               WHERE h.state = 'executing'
                 AND (n.id IS NULL OR n.epoch > c.epoch OR n.lease_until < clock_timestamp())
               ORDER BY h.no";
    Ok(query(client, sql, &[]).await?.iter().map(|row| row.get(0)).collect())
}
