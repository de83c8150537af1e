//! A database of a data directory that is moved, or moved into.

use std::path::Path;

use rusqlite::{Connection, params_from_iter, types::Value};

use super::{
    open::{database_path, open_writer},
    retention, verify,
};
use crate::{
    DataLock, StoreError, Verified, VerifyError, lock_data_dir,
    moving::{Cell, Kind, MoveError, Shelf, Table, Wanted},
    rows::unsigned,
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
        Ok(retention::fact(&self.conn, name)?)
    }

    fn set_fact(&mut self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        match value {
            Some(value) => {
                self.conn.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?1, ?2)", [name, value])?
            }
            None => self.conn.execute("DELETE FROM facts WHERE name = ?1", [name])?,
        };
        Ok(())
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
            Some(page) => {
                (format!("{from} WHERE {0} > ?1 ORDER BY {0} LIMIT {page}", table.columns[0].0), vec![*after])
            }
            None => (from, Vec::new()),
        };
        let mut statement = self.conn.prepare_cached(&sql)?;
        let mut rows = statement.query(params_from_iter(values))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let cell = |(at, (_, kind)): (usize, &(&str, Kind))| -> Result<Cell, StoreError> {
                Ok(match (row.get::<_, Value>(at)?, kind) {
                    (Value::Null, _) => Cell::Null,
                    (Value::Integer(n), Kind::Bool) => Cell::Bool(n != 0),
                    (Value::Integer(n), _) => Cell::Int(n),
                    (Value::Text(text), _) => Cell::Text(text),
                    (Value::Blob(bytes), _) => Cell::Blob(bytes),
                    (Value::Real(n), _) => return Err(StoreError::BadRecord(format!("{}: {n}", table.name))),
                })
            };
            found.push(table.columns.iter().enumerate().map(cell).collect::<Result<_, _>>()?);
        }
        Ok(found)
    }

    fn write(&mut self, table: &Table, rows: Vec<Vec<Cell>>) -> Result<(), StoreError> {
        let tx = self.conn.transaction()?;
        {
            let places = vec!["?"; table.columns.len()].join(", ");
            let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, columns(table));
            let mut statement = tx.prepare_cached(&sql)?;
            for row in rows {
                let value = |cell| match cell {
                    Cell::Null => Value::Null,
                    Cell::Int(n) => Value::Integer(n),
                    Cell::Bool(is) => Value::Integer(is.into()),
                    Cell::Text(text) => Value::Text(text),
                    Cell::Blob(bytes) => Value::Blob(bytes),
                };
                statement.execute(params_from_iter(row.into_iter().map(value)))?;
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
