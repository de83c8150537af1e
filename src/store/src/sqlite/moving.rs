//! A database of a data directory that is moved, or moved into.

use std::path::Path;

use rusqlite::{Connection, params_from_iter};

use super::{
    open::{database_path, open_writer},
    sql::{rows, run},
    verify,
};
use crate::{
    DataLock, StoreError, Verified, VerifyError, lock_data_dir,
    moving::{Kind, MoveError, Shelf, Table, Wanted},
    rows::unsigned,
    sql::{Cell, Row, Value},
    statements::facts,
};

/// Nobody serves it as long as this lives.
pub(crate) struct Closed {
    conn: Connection,
    _lock: DataLock,
}

impl Closed {
    pub fn take(dir: &Path, new: bool) -> Result<Self, MoveError> {
        let path = database_path(dir);
        if !new && let Err(source) = std::fs::metadata(&path) {
            return Err(StoreError::DataDir { path, source: source.into() }.into());
        }
        let lock = lock_data_dir(dir)?;
        Ok(Self { conn: open_writer(dir)?, _lock: lock })
    }
}

/// `"a", "b"`
fn columns(table: &Table) -> String {
    table.columns.iter().map(|(name, _)| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

impl Shelf for Closed {
    fn fact(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        run(facts::get(&self.conn, name))
    }

    fn set_fact(&mut self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        run(facts::set(&self.conn, name, value))
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM {}", table.name);
        unsigned(self.conn.query_row(&sql, [], |row| row.get(0))?)
    }

    fn last(&mut self, table: &Table) -> Result<i64, StoreError> {
        let sql = format!("SELECT coalesce(max({}), 0) FROM {}", table.columns[0].0, table.name);
        Ok(self.conn.query_row(&sql, [], |row| row.get(0))?)
    }

    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Vec<Cell>>, StoreError> {
        let Wanted { table, after } = wanted;
        let from = format!("SELECT {} FROM {}", columns(table), table.name);
        let (sql, values) = match table.page {
            Some(page) => (
                format!("{from} WHERE {0} > ?1 ORDER BY {0} LIMIT {page}", table.columns[0].0),
                vec![Value::Int(*after)],
            ),
            None => (from, Vec::new()),
        };
        let mut rows = rows(&self.conn, &sql, &values)?;
        for Row(cells) in &mut rows {
            for (cell, (_, kind)) in cells.iter_mut().zip(table.columns) {
                if let (Cell::Int(number), Kind::Bool) = (&*cell, kind) {
                    *cell = Cell::Bool(*number != 0);
                }
            }
        }
        Ok(rows.into_iter().map(|Row(cells)| cells).collect())
    }

    fn write(&mut self, table: &Table, rows: Vec<Vec<Cell>>) -> Result<(), StoreError> {
        let tx = self.conn.transaction()?;
        {
            let places = vec!["?"; table.columns.len()].join(", ");
            let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, columns(table));
            let mut statement = tx.prepare_cached(&sql)?;
            for row in rows {
                statement.execute(params_from_iter(row.iter().map(Cell::as_value)))?;
            }
        }
        Ok(tx.commit()?)
    }

    fn clear(&mut self, table: &Table) -> Result<(), StoreError> {
        self.conn.execute(&format!("DELETE FROM {}", table.name), [])?;
        Ok(())
    }

    fn settle(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    fn verify(&mut self) -> Result<Verified, VerifyError> {
        verify::verify_connection(&self.conn, None)
    }
}
