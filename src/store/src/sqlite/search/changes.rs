//! Listings of changes, and what changes are searched by: a table of small rows beside them.

use rusqlite::{Connection, Row, params, types::Value};

use crate::{
    Draft, ListQuery, Listing, MAX_PAGE_BYTES, Narrow, StoreError,
    rows::{parse_change, signed, unsigned},
    search::needle,
};
use countersign_domain::changes::{ChangeState, machine::EventKind};

/// Conditions on `s`, a row of `change_search`, each with `AND` before it; their values are added to `values`.
fn conditions(narrow: &Narrow, values: &mut Vec<Value>) -> String {
    let mut sql = String::new();
    for (column, names) in [("provider", &narrow.providers), ("tool", &narrow.tools)] {
        if names.is_empty() {
            continue;
        }
        sql.push_str(&format!(" AND s.{column} IN (?{})", ",?".repeat(names.len() - 1)));
        values.extend(names.iter().cloned().map(Value::Text));
    }
    if let Some(text) = &narrow.text {
        sql.push_str(" AND instr(s.needle, ?) > 0");
        values.push(Value::Text(text.to_lowercase()));
    }
    if let Some(since) = narrow.since {
        sql.push_str(" AND s.created_ms >= ?");
        values.push(Value::Integer(since.as_millisecond()));
    }
    if let Some(until) = narrow.until {
        sql.push_str(" AND s.created_ms < ?");
        values.push(Value::Integer(until.as_millisecond()));
    }
    sql
}

/// Keeps the row of a change that was just written, on the connection and in the transaction of its writer.
pub(crate) fn follow(conn: &Connection, draft: &Draft) -> rusqlite::Result<()> {
    let change = &draft.change;
    match draft.kind {
        EventKind::Created => {
            conn.prepare_cached(
                "INSERT INTO change_search (no, provider, tool, created_ms, call_hash, needle)
                 SELECT no, ?2, ?3, ?4, ?5, ?6 FROM changes WHERE id = ?1",
            )?
            .execute(params![
                change.id,
                change.provider,
                change.tool,
                change.created_at.as_millisecond(),
                draft.call_hash,
                needle(change),
            ])?;
        }
        // What it is called may be something else now.
        EventKind::Edited | EventKind::Refreshed => {
            conn.prepare_cached(
                "UPDATE change_search SET needle = ?2 WHERE no = (SELECT no FROM changes WHERE id = ?1)",
            )?
            .execute(params![change.id, needle(change)])?;
        }
        _ => {}
    }
    Ok(())
}

/// A page of changes, newest first.
pub(crate) fn list(conn: &Connection, query: &ListQuery) -> Result<Listing, StoreError> {
    let numbers = list_numbers(conn, query)?;
    let mut listing = Listing::default();
    let mut bytes = 0;
    let mut statement = conn.prepare_cached("SELECT body FROM changes WHERE no = ?1")?;
    for no in numbers {
        let mut rows = statement.query([no])?;
        let Some(row) = rows.next()? else { continue };
        let body = row.get_ref(0)?.as_str().unwrap_or_default();
        if listing.items.len() >= query.limit || (bytes + body.len() > MAX_PAGE_BYTES && !listing.items.is_empty()) {
            listing.more = true;
            break;
        }
        bytes += body.len();
        listing.items.push((unsigned(no)?, parse_change(body)?));
    }
    Ok(listing)
}

/// The numbers of the page, and one more if there is one.
fn list_numbers(conn: &Connection, query: &ListQuery) -> Result<Vec<i64>, StoreError> {
    let before = query.before.map_or(i64::MAX, signed);
    let limit = signed(query.limit as u64).saturating_add(1);
    let row = |row: &Row<'_>| row.get::<_, i64>(0);
    if !query.narrow.is_empty() {
        return narrow_numbers(conn, query, before);
    }
    if query.states.is_empty() && query.principals.is_empty() {
        let mut statement = conn.prepare_cached("SELECT no FROM changes WHERE no < ?1 ORDER BY no DESC LIMIT ?2")?;
        return Ok(statement.query_map(params![before, limit], row)?.collect::<Result<_, _>>()?);
    }
    // One query within an index for each state, merged: a long history in other states costs nothing.
    let states = if query.states.is_empty() { &ChangeState::ALL[..] } else { &query.states };
    let mut numbers: Vec<i64> = Vec::new();
    for state in states {
        let state = state.as_str();
        for principal in &query.principals {
            let mut statement = conn.prepare_cached(
                "SELECT no FROM changes WHERE principal = ?1 AND state = ?2 AND no < ?3 ORDER BY no DESC LIMIT ?4",
            )?;
            for no in statement.query_map(params![principal, state, before, limit], row)? {
                numbers.push(no?);
            }
        }
        if query.principals.is_empty() {
            let mut statement =
                conn.prepare_cached("SELECT no FROM changes WHERE state = ?1 AND no < ?2 ORDER BY no DESC LIMIT ?3")?;
            for no in statement.query_map(params![state, before, limit], row)? {
                numbers.push(no?);
            }
        }
    }
    numbers.sort_unstable_by_key(|no| std::cmp::Reverse(*no));
    // A state may have been named twice.
    numbers.dedup();
    Ok(numbers)
}

/// As [`list_numbers`], of a listing that is narrowed: within an index where a state or a principal is named, else from
/// the newest on until there are enough.
fn narrow_numbers(conn: &Connection, query: &ListQuery, before: i64) -> Result<Vec<i64>, StoreError> {
    let mut ways: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
    if !query.principals.is_empty() {
        ways = query.principals.iter().map(|principal| vec![("principal", principal.as_str())]).collect();
    }
    if !query.states.is_empty() || !query.principals.is_empty() {
        let states = if query.states.is_empty() { &ChangeState::ALL[..] } else { &query.states };
        let with = |way: &Vec<_>| -> Vec<Vec<_>> {
            states.iter().map(|state| way.iter().copied().chain([("state", state.as_str())]).collect()).collect()
        };
        ways = ways.iter().flat_map(with).collect();
    }
    let mut found = Vec::new();
    for way in ways {
        found.extend(numbers(conn, &way, &query.narrow, before, query.limit.saturating_add(1))?);
    }
    found.sort_unstable_by_key(|no| std::cmp::Reverse(*no));
    found.dedup();
    Ok(found)
}

/// The numbers of the changes that are looked for, newest first; `who` is a condition on their principal and state, in
/// the columns of an index.
fn numbers(
    conn: &Connection,
    who: &[(&str, &str)],
    narrow: &Narrow,
    before: i64,
    limit: usize,
) -> rusqlite::Result<Vec<i64>> {
    let mut values = vec![Value::Integer(before)];
    let mut sql = String::from(if who.is_empty() {
        "SELECT s.no FROM change_search s WHERE s.no < ?"
    } else {
        // By the index of the changes, whose order is that of the numbers.
        "SELECT c.no FROM changes c CROSS JOIN change_search s ON s.no = c.no WHERE c.no < ?"
    });
    for (column, value) in who {
        sql.push_str(&format!(" AND c.{column} = ?"));
        values.push(Value::Text((*value).to_owned()));
    }
    sql.push_str(&conditions(narrow, &mut values));
    sql.push_str(if who.is_empty() { " ORDER BY s.no DESC LIMIT ?" } else { " ORDER BY c.no DESC LIMIT ?" });
    values.push(Value::Integer(signed(limit as u64)));
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(rusqlite::params_from_iter(values), |row| row.get(0))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        drafts,
        sqlite::{open, rows},
    };

    fn found(conn: &Connection, narrow: Narrow) -> Vec<String> {
        let query = ListQuery { narrow, limit: 10, ..ListQuery::default() };
        list(conn, &query).unwrap().items.into_iter().map(|(_, change)| change.id.clone()).collect()
    }

    #[test]
    fn changes_from_before_there_was_a_search_are_found_too() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open::older(dir.path(), 3);
        for id in ["chg_A", "chg_B"] {
            let draft = drafts::created(id);
            let change = &draft.change;
            conn.execute(
                "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body) VALUES (?1, 1, 'pending', ?2, 9, ?3, ?4)",
                params![id, change.proposer.principal, change.expires_at.to_string(), draft.body],
            )
            .unwrap();
        }
        drop(conn);
        let conn = open::open_writer(dir.path()).unwrap();
        let change = &drafts::created("chg_A").change;
        let narrow = |text: &str| Narrow { text: Some(text.into()), ..Narrow::default() };
        assert_eq!(found(&conn, narrow("CHG_a")), ["chg_A"]);
        assert_eq!(found(&conn, narrow(&change.summary.to_uppercase())).len(), 2);
        let exactly = |since: i64, until: i64| Narrow {
            providers: vec![change.provider.clone()],
            tools: vec!["x".into(), change.tool.clone()],
            since: Timestamp::from_millisecond(change.created_at.as_millisecond() + since).ok(),
            until: Timestamp::from_millisecond(change.created_at.as_millisecond() + until).ok(),
            ..Narrow::default()
        };
        assert_eq!(found(&conn, exactly(0, 1)), ["chg_B", "chg_A"]);
        assert!(found(&conn, exactly(1, 2)).is_empty() && found(&conn, exactly(-1, 0)).is_empty());
        assert_eq!(rows::live(&conn).unwrap().iter().filter(|live| live.call_hash.is_none()).count(), 2);
        conn.execute("DELETE FROM changes WHERE id = 'chg_A'", []).unwrap();
        let left: i64 = conn.query_row("SELECT count(*) FROM change_search", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 1, "what is deleted is not found");
    }
}
