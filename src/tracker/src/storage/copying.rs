//! Copying the tracker's data from one database into another: row by row, in one transaction of the latter.

use super::{FILE, Storage, TrackerError};
use crate::db::{Db, DbError, Owned, Row, Sql, Value, values};
use countersign_store::Room;

/// Rows read at a time.
const PAGE: i64 = 500;

/// Tables in an order in which each row finds what it refers to, but for parents; each with its columns, by the first of
/// which it is read. Counts of a project's issues are made anew by their insertion.
const TABLES: [(&str, &[&str]); 6] = [
    ("people", &["id", "uuid", "name", "kind", "principal", "created_at"]),
    ("projects", &["id", "uuid", "key", "name", "description", "next_number", "created_at", "created_by"]),
    (
        "issues",
        &[
            "id",
            "uuid",
            "project",
            "number",
            "key",
            "type",
            "title",
            "description",
            "status",
            "priority",
            "assignee",
            "parent",
            "estimated_hours",
            "version",
            "created_at",
            "created_by",
            "updated_at",
        ],
    ),
    ("comments", &["id", "uuid", "issue", "author", "person", "content", "change_id", "created_at"]),
    ("history", &["id", "project", "issue_uuid", "issue_key", "at", "actor", "change_id", "action", "changes"]),
    ("runs", &["change_id", "tool", "at", "content", "structured"]),
];

/// Older files may have a character in their texts that a server takes in none: its picture stands for it.
fn without_nul(value: &mut Owned) {
    if let Owned::Text(text) = value
        && text.contains('\0')
    {
        *text = text.replace('\0', "\u{2400}");
    }
}

fn text(value: &Owned) -> &str {
    if let Owned::Text(text) = value { text } else { "" }
}

/// Copies everything into tables that have nothing. How many rows there are.
pub(super) fn copy(from: Db<'_>, to: Db<'_>) -> Sql<u64> {
    match to {
        Db::File(conn) => conn.pragma_update(None, "defer_foreign_keys", true)?,
        Db::Server(session) => session.batch("SET CONSTRAINTS ALL DEFERRED")?,
    }
    let mut copied = 0;
    for (table, columns) in TABLES {
        let (names, first) = (columns.join(", "), columns[0]);
        let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
        let begin = format!("SELECT {names} FROM {table} ORDER BY {first} LIMIT ?1");
        let go_on = format!("SELECT {names} FROM {table} WHERE {first} > ?2 ORDER BY {first} LIMIT ?1");
        let insert = format!("INSERT INTO {table} ({names}) VALUES ({})", places.join(", "));
        let mut last: Option<Owned> = None;
        loop {
            let read =
                |row: Row<'_>| (0..columns.len()).map(|at| Ok(row.value(at)?.into())).collect::<Sql<Vec<Owned>>>();
            let mut rows = match &last {
                None => from.all(&begin, values![PAGE], read)?,
                Some(last) => from.all(&go_on, &[Value::Int(PAGE), last.lent()], read)?,
            };
            for row in &mut rows {
                if let Db::Server(_) = to {
                    row.iter_mut().for_each(without_nul);
                }
                let lent: Vec<Value<'_>> = row.iter().map(Owned::lent).collect();
                to.execute(&insert, &lent)?;
                match (table, lent[0]) {
                    ("issues", Value::Int(id)) => {
                        to.index_issue(id, text(&row[4]), text(&row[6]), text(&row[7]))?;
                    }
                    ("comments", Value::Int(id)) => to.index_comment(id, text(&row[5]))?,
                    _ => {}
                }
            }
            copied += rows.len() as u64;
            let Some(mut end) = rows.into_iter().next_back() else { break };
            last = Some(end.swap_remove(0));
        }
        if let (Db::Server(_), "id") = (to, first) {
            let next = format!(
                "SELECT setval(pg_get_serial_sequence('tracker_{table}', 'id'), COALESCE(MAX(id), 0) + 1, false) \
                 FROM {table}"
            );
            to.find(&next, &[], |_| Ok(()))?;
        }
    }
    Ok(copied)
}

/// How much there is, and how far it came: the same where one is a copy of the other.
fn extent(db: Db<'_>) -> Sql<[i64; 4]> {
    let sql = "SELECT (SELECT COUNT(*) FROM projects), (SELECT COUNT(*) FROM issues), \
               (SELECT COALESCE(MAX(id), 0) FROM history), (SELECT COUNT(*) FROM runs)";
    db.one(sql, &[], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?]))
}

/// Moves what the tracker has from one room into another, all or nothing; what is there already is kept where it is the same,
/// and replaced if `over`. How many rows; `None` where something else is there.
///
/// # Errors
/// Files and connections that fail.
pub fn move_data(from: &Room, to: &Room, over: bool) -> Result<Option<u64>, TrackerError> {
    if let Room::Directory(dir) = from
        && !dir.join(FILE).exists()
    {
        return Ok(Some(0));
    }
    let source = Storage::open(from, Box::new(|_| {}), |_, _| Ok(()))?;
    let target = Storage::open(to, Box::new(|_| {}), |_, _| Ok(()))?;
    let failed = |error: DbError| TrackerError::Data(error.to_string());
    source.blocking(|from| {
        target.blocking(|to| {
            let (there, here) = (extent(to).map_err(failed)?, extent(from).map_err(failed)?);
            if there == here {
                return Ok(Some(0));
            }
            if there != [0; 4] {
                if !over {
                    return Ok(None);
                }
                for (table, _) in TABLES.iter().rev() {
                    to.execute(&format!("DELETE FROM {table}"), &[]).map_err(failed)?;
                }
            }
            copy(from, to).map(Some).map_err(failed)
        })
    })
}

impl Storage {
    /// In one transaction, with nobody else at the database.
    fn blocking<T>(&self, f: impl FnOnce(Db<'_>) -> Result<T, TrackerError>) -> Result<T, TrackerError> {
        match self {
            Self::File(file) => file.blocking(f),
            Self::Server(server) => server.blocking(f),
        }
    }
}
