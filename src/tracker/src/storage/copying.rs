//! Copies the tracker's data from one database into another, row by row, in one transaction of the target database.

use super::{FILE_NAME, Storage, TrackerError};
use crate::db::{Cell, Db, DbResult, Row, Value};
use countersign_domain::changes::digest::PartHasher;
use countersign_store::ModuleStorage;

/// The number of rows that are read at a time.
const PAGE_SIZE: i64 = 500;

/// The tables with their columns. Each table follows those that it refers to, and its rows are read in the order of its
/// first column. The counts of a project's issues are derived when the issues are inserted.
const TABLES: [(&str, &str); 6] = [
    ("people", "id, uuid, name, kind, principal, created_at"),
    ("projects", "id, uuid, key, name, description, next_number, created_at, created_by"),
    (
        "issues",
        "id, uuid, project, number, key, type, title, description, status, priority, assignee, parent, \
         estimated_hours, version, created_at, created_by, updated_at",
    ),
    ("comments", "id, uuid, issue, author, person, content, change_id, created_at"),
    ("history", "id, project, issue_uuid, issue_key, at, actor, change_id, action, changes"),
    ("runs", "change_id, tool, at, content, structured"),
];

/// Receives the number of copied rows and the total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Calls a function with all rows of a table, page by page.
fn for_each_page(
    from: Db<'_>,
    table: &str,
    columns: &str,
    mut handle: impl FnMut(&[Row]) -> DbResult<()>,
) -> DbResult<()> {
    let (first, _) = columns.split_once(',').unwrap_or((columns, ""));
    let mut after: Option<Cell> = None;
    loop {
        let (filter, values) = match &after {
            None => (String::new(), vec![Value::Int(PAGE_SIZE)]),
            Some(last) => (format!("WHERE {first} > ?2"), vec![Value::Int(PAGE_SIZE), last.as_value()]),
        };
        let sql = format!("SELECT {columns} FROM {table} {filter} ORDER BY {first} LIMIT ?1");
        let mut rows = from.query_all(&sql, &values, |row| Ok(row.clone()))?;
        handle(&rows)?;
        let Some(Row(mut last)) = rows.pop() else { return Ok(()) };
        after = Some(last.swap_remove(0));
    }
}

/// Copies all rows into empty tables, and returns their number.
pub(super) fn copy(from: Db<'_>, to: Db<'_>, progress: &mut Progress<'_>) -> DbResult<u64> {
    match to {
        Db::Sqlite(conn) => conn.pragma_update(None, "defer_foreign_keys", true)?,
        Db::Postgres(connection) => connection.batch("SET CONSTRAINTS ALL DEFERRED")?,
    }
    let (mut copied, total) = (0, count(from)?);
    for (table, columns) in TABLES {
        let parameters: Vec<String> = (1..=columns.split(", ").count()).map(|number| format!("?{number}")).collect();
        let insert = format!("INSERT INTO {table} ({columns}) VALUES ({})", parameters.join(", "));
        for_each_page(from, table, columns, |rows| {
            for row in rows {
                let values: Vec<Value<'_>> = row.0.iter().map(Cell::as_value).collect();
                to.execute(&insert, &values)?;
                match table {
                    "issues" => to.index_issue(row.get(0)?, row.get(4)?, row.get(6)?, row.get(7)?)?,
                    "comments" => to.index_comment(row.get(0)?, row.get(5)?)?,
                    _ => {}
                }
            }
            copied += rows.len() as u64;
            progress(copied, total);
            Ok(())
        })?;
        if let Db::Postgres(_) = to
            && columns.starts_with("id,")
        {
            let set_next_id = format!(
                "SELECT setval(pg_get_serial_sequence('tracker_{table}', 'id'), COALESCE(MAX(id), 0) + 1, false) \
                 FROM {table}"
            );
            to.query_optional(&set_next_id, &[], |_| Ok(()))?;
        }
    }
    Ok(copied)
}

fn count(db: Db<'_>) -> DbResult<u64> {
    TABLES.iter().try_fold(0, |total, (table, _)| {
        Ok(total + db.query_one(&format!("SELECT COUNT(*) FROM {table}"), &[], |row| row.get::<u64>(0))?)
    })
}

/// Returns a hash of all data. Hashes of rows are sorted, because databases order texts differently.
fn hash_data(db: Db<'_>) -> DbResult<String> {
    let mut hasher = PartHasher::new("countersign.tracker.1");
    for (table, columns) in TABLES {
        let mut hashes = Vec::new();
        for_each_page(db, table, columns, |rows| {
            hashes.extend(rows.iter().map(hash_row));
            Ok(())
        })?;
        hashes.sort_unstable();
        hasher.add_part(table.as_bytes());
        hashes.iter().for_each(|hash| _ = hasher.add_part(hash));
    }
    Ok(hasher.finish())
}

fn hash_row(row: &Row) -> [u8; 32] {
    let mut hasher = PartHasher::new("countersign.tracker.row.1");
    for value in &row.0 {
        // Texts of older files may have NUL characters, which the store replaces when it writes to PostgreSQL.
        let value = match value {
            Cell::Text(text) => Cell::Text(text.replace('\0', "\u{2400}").into()),
            value => value.clone(),
        };
        hasher.add_part(format!("{value:?}").as_bytes());
    }
    hasher.finish_bytes()
}

/// Copies the tracker's data from one storage into another, all or nothing. If the target already has equal data,
/// nothing is copied. Different data is replaced only if `replace` is set.
///
/// Returns the number of copied rows, or `None` if the target has different data, which was kept.
///
/// # Errors
/// Fails if a file or a connection fails.
pub fn copy_data(
    from: &ModuleStorage,
    to: &ModuleStorage,
    replace: bool,
    progress: &mut Progress<'_>,
) -> Result<Option<u64>, TrackerError> {
    if let ModuleStorage::Directory(dir) = from
        && !dir.join(FILE_NAME).exists()
    {
        return Ok(Some(0));
    }
    let (source, target) = (Storage::open(from, |_, _| Ok(()))?, Storage::open(to, |_, _| Ok(()))?);
    source.with_transaction(|from| {
        target.with_transaction(|to| {
            if count(to)? > 0 {
                if hash_data(to)? == hash_data(from)? {
                    return Ok(Some(0));
                }
                if !replace {
                    return Ok(None);
                }
                for (table, _) in TABLES.iter().rev() {
                    to.execute(&format!("DELETE FROM {table}"), &[])?;
                }
            }
            Ok(copy(from, to, progress).map(Some)?)
        })
    })
}
