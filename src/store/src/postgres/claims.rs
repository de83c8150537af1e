//! What runs, and by whom: committed with the step that makes a change executing, and gone with the step that ends it. A
//! claim holds by its node and epoch; one whose node is gone is ended by another node, and only then.

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;

use super::{
    nodes::HOLD,
    rows::{self, execute, one, query},
};
use crate::{
    Draft, StoreError, WriteError,
    rows::{parse_moment, signed},
};
use countersign_domain::changes::{Change, ChangeState, Claimant, digest::PartHasher, machine::EventKind};

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

/// What a change acts on. Two providers may use the same key for different things.
fn target(change: &Change) -> String {
    let mut hasher = PartHasher::new("countersign.target.1");
    hasher.part(change.provider.as_bytes()).part(change.target.lock_key.as_bytes());
    hasher.finish()
}

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
    let acts_on;
    let ready = "ready AS MATERIALIZED (SELECT 1 FROM changes WHERE id = $1 AND version = $2 FOR UPDATE)";
    let own = "change_id = $1 AND node = $10 AND epoch = $11 AND lapsed_until IS NULL AND EXISTS (SELECT FROM ready)";
    let mut given = values.to_vec();
    given.extend([&by.node as rows::Value<'_>, &epoch]);
    let (here, claim) = match role {
        Role::Takes(_) => {
            acts_on = target(change);
            given.push(&acts_on);
            let here = "SELECT 1 FROM nodes WHERE id = $10 AND epoch = $11 AND lease_until > clock_timestamp()";
            let claim = "INSERT INTO claims (change_id, target, node, epoch)
                         SELECT $1, $12, $10, $11 WHERE EXISTS (SELECT FROM here) AND EXISTS (SELECT FROM ready)
                         ON CONFLICT DO NOTHING RETURNING 1";
            (here, claim.to_owned())
        }
        _ if change.state == ChangeState::Executing => {
            ("SELECT 1", format!("SELECT 1 FROM claims WHERE {own} FOR SHARE"))
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
/// its process may still have in its hands holds up whoever would settle.
pub(super) async fn lapse(client: &ClientWrapper, id: &str) -> Result<bool, StoreError> {
    // The claim first, as who ends it in order. Somebody who holds it does so, or does what was approved at this moment.
    let claim = "SELECT node, epoch FROM claims WHERE change_id = $1 AND lapsed_until IS NULL";
    let Some(claim) = one(client, &format!("{claim} FOR UPDATE SKIP LOCKED"), &[&id]).await? else {
        return Ok(one(client, claim, &[&id]).await?.is_none());
    };
    let (node, epoch): (String, i64) = (claim.get(0), claim.get(1));
    let sql = "SELECT epoch > $2 OR lease_until < clock_timestamp(), process_epoch > $2
               FROM nodes WHERE id = $1 FOR SHARE";
    let row = one(client, sql, &[&node, &epoch]).await?;
    match row.map(|row| (row.get(0), row.get(1))) {
        Some((false, _)) => return Ok(false),
        // Its process has ended, or has been unheard of for a day.
        Some((true, true)) | None => execute(client, "DELETE FROM claims WHERE change_id = $1", &[&id]).await?,
        Some((true, false)) => {
            let sql = "UPDATE claims SET lapsed_until = clock_timestamp() + $2::int * interval '1 second'
                       WHERE change_id = $1";
            execute(client, sql, &[&id, &HOLD]).await?
        }
    };
    Ok(true)
}

/// Whether nothing of a lapsed claim can go out any more.
pub(super) async fn settle(client: &ClientWrapper, id: &str) -> Result<bool, StoreError> {
    if held_until(client, id).await?.is_some() {
        return Ok(false);
    }
    execute(client, "DELETE FROM claims WHERE change_id = $1 AND lapsed_until IS NOT NULL", &[&id]).await?;
    Ok(true)
}

/// What came of a lapsed claim is known: nothing of it can go out any more.
pub(super) async fn came_back(client: &ClientWrapper, id: &str, by: &Claimant) -> Result<(), StoreError> {
    let sql = "DELETE FROM claims WHERE change_id = $1 AND node = $2 AND epoch = $3 AND lapsed_until IS NOT NULL";
    execute(client, sql, &[&id, &by.node, &signed(by.epoch)]).await.map(drop)
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
