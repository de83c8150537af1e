//! Copying the tracker's data from one database into another: row by row, in one transaction of the latter.

use super::{FILE, Storage, TrackerError};
use crate::db::{Cell, Db, Row, Sql, StoreError, Value, values};
use countersign_domain::changes::digest::PartHasher;
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
fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{2400}")
}

/// How far a copy is, in rows.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Hands on everything that a table has, in the order of its first column; nothing at last.
fn pages(from: Db<'_>, table: &str, columns: &[&str], mut each: impl FnMut(&[Row]) -> Sql<()>) -> Sql<()> {
    let (names, first) = (columns.join(", "), columns[0]);
    let begin = format!("SELECT {names} FROM {table} ORDER BY {first} LIMIT ?1");
    let go_on = format!("SELECT {names} FROM {table} WHERE {first} > ?2 ORDER BY {first} LIMIT ?1");
    let mut last: Option<Cell> = None;
    loop {
        let mut rows = match &last {
            None => from.all(&begin, values![PAGE], |row| Ok(row.clone()))?,
            Some(last) => from.all(&go_on, &[Value::Int(PAGE), last.as_value()], |row| Ok(row.clone()))?,
        };
        each(&rows)?;
        let Some(Row(mut end)) = rows.pop() else { return Ok(()) };
        last = Some(end.swap_remove(0));
    }
}

/// Copies everything into tables that have nothing. How many rows there are.
pub(super) fn copy(from: Db<'_>, to: Db<'_>, progress: &mut Progress<'_>) -> Sql<u64> {
    match to {
        Db::File(conn) => conn.pragma_update(None, "defer_foreign_keys", true)?,
        Db::Server(session) => session.batch("SET CONSTRAINTS ALL DEFERRED")?,
    }
    let (mut copied, all) = (0, count(from)?);
    for (table, columns) in TABLES {
        let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
        let insert = format!("INSERT INTO {table} ({}) VALUES ({})", columns.join(", "), places.join(", "));
        pages(from, table, columns, |rows| {
            for row in rows {
                let given: Vec<Value<'_>> = row.0.iter().map(Cell::as_value).collect();
                to.execute(&insert, &given)?;
                match table {
                    "issues" => to.index_issue(row.get(0)?, row.get(4)?, row.get(6)?, row.get(7)?)?,
                    "comments" => to.index_comment(row.get(0)?, row.get(5)?)?,
                    _ => {}
                }
            }
            copied += rows.len() as u64;
            progress(copied, all);
            Ok(())
        })?;
        if let (Db::Server(_), "id") = (to, columns[0]) {
            let next = format!(
                "SELECT setval(pg_get_serial_sequence('tracker_{table}', 'id'), COALESCE(MAX(id), 0) + 1, false) \
                 FROM {table}"
            );
            to.find(&next, &[], |_| Ok(()))?;
        }
    }
    Ok(copied)
}

fn count(db: Db<'_>) -> Sql<u64> {
    TABLES.iter().try_fold(0, |all, (table, _)| {
        let rows: i64 = db.one(&format!("SELECT COUNT(*) FROM {table}"), &[], |row| row.get(0))?;
        Ok(all + u64::try_from(rows).unwrap_or(0))
    })
}

/// Of everything that is there: the same where one is a copy of the other, each of which orders texts in its own way.
fn fingerprint(db: Db<'_>) -> Sql<String> {
    let mut whole = PartHasher::new("countersign.tracker.1");
    for (table, columns) in TABLES {
        let mut hashes = Vec::new();
        pages(db, table, columns, |rows| {
            hashes.extend(rows.iter().map(hash));
            Ok(())
        })?;
        hashes.sort_unstable();
        whole.add_part(table.as_bytes());
        hashes.iter().for_each(|hash| _ = whole.add_part(hash));
    }
    Ok(whole.finish())
}

fn hash(row: &Row) -> [u8; 32] {
    let mut hasher = PartHasher::new("countersign.tracker.row.1");
    for value in &row.0 {
        match value {
            Cell::Null => hasher.add_part(b"null").add_part(b""),
            Cell::Int(number) => hasher.add_part(b"int").add_part(&number.to_be_bytes()),
            Cell::Real(number) => hasher.add_part(b"real").add_part(&number.to_be_bytes()),
            Cell::Text(text) => hasher.add_part(b"text").add_part(without_nul(text).as_bytes()),
            Cell::Bool(is) => hasher.add_part(b"bool").add_part(&[u8::from(*is)]),
            Cell::Blob(bytes) => hasher.add_part(b"blob").add_part(bytes),
        };
    }
    hasher.finish_bytes()
}

/// Moves what the tracker has from one room into another, all or nothing; what is there already is kept where it is the same
/// in every row, and replaced if `over`. How many rows; `None` where something else is there.
///
/// # Errors
/// Files and connections that fail.
pub fn move_data(from: &Room, to: &Room, over: bool, progress: &mut Progress<'_>) -> Result<Option<u64>, TrackerError> {
    if let Room::Directory(dir) = from
        && !dir.join(FILE).exists()
    {
        return Ok(Some(0));
    }
    let source = Storage::open(from, Box::new(|_| {}), |_, _| Ok(()))?;
    let target = Storage::open(to, Box::new(|_| {}), |_, _| Ok(()))?;
    let failed = |error: StoreError| TrackerError::Data(error.to_string());
    source.blocking(|from| {
        target.blocking(|to| {
            if count(to).map_err(failed)? > 0 {
                if fingerprint(to).map_err(failed)? == fingerprint(from).map_err(failed)? {
                    return Ok(Some(0));
                }
                if !over {
                    return Ok(None);
                }
                for (table, _) in TABLES.iter().rev() {
                    to.execute(&format!("DELETE FROM {table}"), &[]).map_err(failed)?;
                }
            }
            copy(from, to, progress).map(Some).map_err(failed)
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
