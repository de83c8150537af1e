//! Runs the statements in a real SQLite.

use countersign_sql::{Dialect, WriteKind};
use rusqlite::{Batch, Connection, fallible_iterator::FallibleIterator as _, types::Value};

use crate::{
    classify_write,
    corpus::{Case, DEPENDENT_TABLES, cases_in},
};

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(include_str!("sqlite.sql")).unwrap();
    connection
}

fn rows(connection: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect()).unwrap();
    rows.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Returns everything that a statement may change: rows, definitions, settings.
fn content(connection: &Connection) -> Vec<Vec<Vec<Value>>> {
    let settings = ["user_version", "foreign_keys", "writable_schema", "database_list", "application_id"];
    let mut all: Vec<_> = settings.iter().map(|pragma| rows(connection, &format!("PRAGMA {pragma}"))).collect();
    all.push(rows(connection, "SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2"));
    let tables = rows(connection, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1");
    for table in tables {
        let [Value::Text(table)] = table.as_slice() else { panic!("{table:?}") };
        all.push(rows(connection, &format!("SELECT * FROM \"{}\"", table.replace('"', "\"\""))));
    }
    all
}

/// Runs the statements until one fails. Returns `true` if SQLite calls all of them reads.
fn run(connection: &Connection, case: &Case) -> Result<bool, rusqlite::Error> {
    let mut are_reads = true;
    let mut batch = Batch::new(connection, &case.sql);
    while let Some(mut statement) = batch.next()? {
        are_reads &= statement.readonly();
        let mut found = statement.query([])?;
        while found.next()?.is_some() {}
    }
    Ok(are_reads)
}

#[test]
fn reads_change_nothing_in_sqlite() {
    let reads: Vec<_> = cases_in(Dialect::Sqlite).into_iter().filter(Case::is_read).collect();
    assert!(reads.len() > 20, "{}", reads.len());
    for case in reads {
        let connection = database();
        let before = content(&connection);
        let are_reads = run(&connection, &case).unwrap_or_else(|error| panic!("{}: {error}", case.sql));
        assert!(are_reads, "{}", case.sql);
        assert_eq!(before, content(&connection), "{}", case.sql);
    }
}

#[test]
fn hidden_writes_change_sqlite() {
    for case in cases_in(Dialect::Sqlite).iter().filter(|case| case.is_marked_as_changing) {
        let connection = database();
        let before = content(&connection);
        // A later statement may fail.
        let _ = run(&connection, case);
        assert!(before != content(&connection), "{}", case.sql);
    }
}

#[test]
fn previews_select_what_sqlite_changes() {
    let mut compared = 0;
    for case in cases_in(Dialect::Sqlite) {
        let Some((kind, queries)) = case.row_queries() else { continue };
        let connection = database();
        let selected = rows(&connection, &queries.rows);
        let count = rows(&connection, &queries.count);
        let changes_before = connection.total_changes();
        run(&connection, &case).unwrap_or_else(|error| panic!("{}: {error}", case.sql));
        let changes = i64::try_from(connection.total_changes() - changes_before).unwrap();
        // The trigger of `accounts` adds a row for each deleted one.
        let changes = if kind == WriteKind::Delete && case.sql.contains("accounts") { changes / 2 } else { changes };
        assert_eq!(count, [[Value::Integer(changes)]], "{}", case.sql);
        if kind == WriteKind::Update {
            let names = ["id", "owner", "balance", "active"];
            let aliases: Vec<_> = queries.assignments.iter().filter(|value| value.alias.is_some()).collect();
            for row in selected {
                let Value::Integer(id) = row[0] else { panic!("{row:?}") };
                if queries.assignments.iter().any(|value| value.column == "id") {
                    continue;
                }
                let after = rows(&connection, &format!("SELECT * FROM accounts WHERE id = {id}")).remove(0);
                for (index, value) in aliases.iter().enumerate() {
                    let column = names.iter().position(|name| *name == value.column).unwrap();
                    let number = |value: &Value| match value {
                        Value::Integer(number) => Value::Real(*number as f64),
                        other => other.clone(),
                    };
                    assert_eq!(number(&row[names.len() + index]), number(&after[column]), "{}", case.sql);
                }
            }
        }
        compared += 1;
    }
    assert!(compared > 8, "{compared}");
    let connection = database();
    for query in cases_in(Dialect::Sqlite).iter().flat_map(Case::definition_queries) {
        rows(&connection, &query);
    }
    let keys =
        cases_in(Dialect::Sqlite).iter().flat_map(Case::read_back_queries).find(|query| query.contains("('accounts')"));
    assert_eq!(rows(&connection, &keys.unwrap()), [[Value::Text("id".to_owned())]]);
}

#[test]
fn tables_that_replace_rows_are_found_in_sqlite() {
    let connection = Connection::open_in_memory().unwrap();
    let tables = "CREATE TABLE Replacing (id INTEGER PRIMARY KEY on /* a */ conflict\nReplace, a TEXT); \
        CREATE TABLE plain (id INTEGER PRIMARY KEY ON CONFLICT FAIL, a TEXT)";
    connection.execute_batch(tables).unwrap();
    for (sql, expected) in [
        ("INSERT INTO replacing VALUES (1, 'new')", Some(1)),
        ("UPDATE main.\"REPLACING\" SET id = 2 WHERE id = 1", Some(1)),
        ("INSERT INTO plain SELECT * FROM replacing", Some(0)),
        ("DELETE FROM replacing WHERE id = 1", None),
    ] {
        let write = classify_write(Dialect::Sqlite, sql);
        let found = write.replacement_query.map(|query| rows(&connection, &query).len());
        assert_eq!(found, expected, "{sql}");
    }
}

#[test]
fn tables_that_a_deletion_also_reaches_are_found_in_sqlite() {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(DEPENDENT_TABLES).unwrap();
    for (table, expected) in
        [("parent", vec!["Child", "grandchild"]), ("main.PARENT", vec!["Child", "grandchild"]), ("other", vec![])]
    {
        let found = rows(&connection, &Case::dependents_query(Dialect::Sqlite, table));
        let expected: Vec<_> = expected.into_iter().map(|name| vec![Value::Text(name.to_owned())]).collect();
        assert_eq!(found, expected, "{table}");
    }
}
