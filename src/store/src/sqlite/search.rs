//! Maintains the search rows of changes.

use rusqlite::Connection;

use super::sql::execute;
use crate::{StoreError, TransitionDraft, search::search_text, values};
use countersign_domain::changes::machine::EventKind;

/// Inserts or updates the search row of a change, within the transaction that writes the change.
pub(crate) fn update_search_row(conn: &Connection, draft: &TransitionDraft) -> Result<(), StoreError> {
    let change = &draft.change;
    match draft.kind {
        EventKind::Created => {
            let sql = "INSERT INTO change_search (no, provider, tool, created_ms, call_hash, needle)
                       SELECT no, ?2, ?3, ?4, ?5, ?6 FROM changes WHERE id = ?1";
            let (created, call) = (change.created_at.as_millisecond(), draft.call_hash.as_ref());
            let (id, text) = (&change.id, search_text(change));
            execute(conn, sql, values![id, &change.provider, &change.tool, created, call, &text])?;
        }
        // The summary may have changed.
        EventKind::Edited | EventKind::Refreshed => {
            let sql = "UPDATE change_search SET needle = ?2 WHERE no = (SELECT no FROM changes WHERE id = ?1)";
            execute(conn, sql, values![&change.id, &search_text(change)])?;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        ChangeCriteria, ListQuery, drafts,
        sqlite::{open, sql::run},
        statements::changes::{list, list_live},
    };

    fn found(conn: &Connection, criteria: ChangeCriteria) -> Vec<String> {
        let query = ListQuery { criteria, limit: 10, ..ListQuery::default() };
        run(list(conn, &query))
            .unwrap()
            .parse()
            .unwrap()
            .items
            .into_iter()
            .map(|(_, change)| change.id.clone())
            .collect()
    }

    #[test]
    fn changes_of_older_schema_become_searchable() {
        let dir = tempfile::tempdir().unwrap();
        let conn = open::create_with_migrations(dir.path(), 3);
        for id in ["chg_A", "chg_B"] {
            let draft = drafts::created_draft(id);
            let change = &draft.change;
            conn.execute(
                "INSERT INTO changes (id, version, state, principal, bytes, expires_at, body) VALUES (?1, 1, 'pending', ?2, 9, ?3, ?4)",
                rusqlite::params![id, change.proposer.principal, change.expires_at.to_string(), draft.body],
            )
            .unwrap();
        }
        drop(conn);
        let conn = open::open_writer(dir.path()).unwrap();
        let change = &drafts::created_draft("chg_A").change;
        let criteria = |text: &str| ChangeCriteria { text: Some(text.into()), ..ChangeCriteria::default() };
        assert_eq!(found(&conn, criteria("CHG_a")), ["chg_A"]);
        assert_eq!(found(&conn, criteria(&change.summary.to_uppercase())).len(), 2);
        let exactly = |since: i64, until: i64| ChangeCriteria {
            providers: vec![change.provider.clone()],
            tools: vec!["x".into(), change.tool.clone()],
            since: Timestamp::from_millisecond(change.created_at.as_millisecond() + since).ok(),
            until: Timestamp::from_millisecond(change.created_at.as_millisecond() + until).ok(),
            ..ChangeCriteria::default()
        };
        assert_eq!(found(&conn, exactly(0, 1)), ["chg_B", "chg_A"]);
        assert!(found(&conn, exactly(1, 2)).is_empty() && found(&conn, exactly(-1, 0)).is_empty());
        assert_eq!(run(list_live(&conn)).unwrap().iter().filter(|live| live.call_hash.is_none()).count(), 2);
        conn.execute("DELETE FROM changes WHERE id = 'chg_A'", []).unwrap();
        let left: i64 = conn.query_row("SELECT count(*) FROM change_search", [], |row| row.get(0)).unwrap();
        assert_eq!(left, 1, "the search row is deleted with the change");
    }
}
