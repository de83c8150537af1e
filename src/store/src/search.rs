//! What changes are searched by, in a table of small rows beside them.

use jiff::Timestamp;
use rusqlite::{Connection, params, types::Value};

use super::{Draft, rows::signed};
use countersign_domain::changes::{Change, machine::EventKind};

/// Narrows a listing of changes; what is empty or none says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narrow {
    /// Only of these servers and modules.
    pub providers: Vec<String>,
    pub tools: Vec<String>,
    /// Somewhere in the summary, the label of the target, the id, the tool, the server or the proposer's name, whatever
    /// the case.
    pub text: Option<String>,
    /// Only those proposed at this time or later, to the millisecond.
    pub since: Option<Timestamp>,
    /// Only those proposed before this time.
    pub until: Option<Timestamp>,
}

impl Narrow {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Conditions on `s`, a row of `change_search`, each with `AND` before it; their values are added to `values`.
    pub(super) fn conditions(&self, values: &mut Vec<Value>) -> String {
        let mut sql = String::new();
        for (column, names) in [("provider", &self.providers), ("tool", &self.tools)] {
            if names.is_empty() {
                continue;
            }
            sql.push_str(&format!(" AND s.{column} IN (?{})", ",?".repeat(names.len() - 1)));
            values.extend(names.iter().cloned().map(Value::Text));
        }
        if let Some(text) = &self.text {
            sql.push_str(" AND instr(s.needle, ?) > 0");
            values.push(Value::Text(text.to_lowercase()));
        }
        if let Some(since) = self.since {
            sql.push_str(" AND s.created_ms >= ?");
            values.push(Value::Integer(since.as_millisecond()));
        }
        if let Some(until) = self.until {
            sql.push_str(" AND s.created_ms < ?");
            values.push(Value::Integer(until.as_millisecond()));
        }
        sql
    }
}

fn needle(change: &Change) -> String {
    let parts = [
        change.id.as_str(),
        &change.provider,
        &change.tool,
        &change.proposer.principal,
        &change.target.label,
        &change.summary,
    ];
    parts.join("\n").to_lowercase()
}

/// Keeps the row of a change that was just written, on the connection and in the transaction of its writer.
pub(super) fn follow(conn: &Connection, draft: &Draft) -> rusqlite::Result<()> {
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

/// The numbers of the changes that are looked for, newest first; `who` is a condition on their principal and state, in
/// the columns of an index.
pub(super) fn numbers(
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
    sql.push_str(&narrow.conditions(&mut values));
    sql.push_str(if who.is_empty() { " ORDER BY s.no DESC LIMIT ?" } else { " ORDER BY c.no DESC LIMIT ?" });
    values.push(Value::Integer(signed(limit as u64)));
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(rusqlite::params_from_iter(values), |row| row.get(0))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ListQuery, open, rows, suite};

    fn found(conn: &Connection, narrow: Narrow) -> Vec<String> {
        let query = ListQuery { narrow, limit: 10, ..ListQuery::default() };
        rows::list(conn, &query).unwrap().items.into_iter().map(|(_, change)| change.id.clone()).collect()
    }

    #[test]
    fn changes_from_before_there_was_a_search_are_found_too() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open::older(dir.path(), 3);
        for id in ["chg_A", "chg_B"] {
            let draft = suite::created(id);
            let change = &draft.change;
            conn.execute(
                "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body) VALUES (?1, 1, 'pending', ?2, 9, ?3, ?4)",
                params![id, change.proposer.principal, change.expires_at.to_string(), draft.body],
            )
            .unwrap();
        }
        drop(conn);
        let conn = open::open_writer(dir.path()).unwrap();
        let change = &suite::created("chg_A").change;
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
