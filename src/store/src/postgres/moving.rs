//! A database of a server that is moved, or moved into.

use std::{sync::Arc, time::Duration};

use deadpool_postgres::ClientWrapper;
use futures_util::future::try_join_all;

use super::{
    Ground, connect,
    rows::{one, query},
    trail::set_heads,
    verify,
};
use crate::{
    Heads, StoreError, Verified, VerifyError,
    moving::{Shelf, TABLES, Table, Wanted},
    rows::{parse_hash, unsigned},
    sql::{Cell, Row},
    statements::facts,
};
use countersign_domain::changes::audit::AuditHead;

/// How long the gateways that served it may still be about to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Nobody serves it as long as this lives.
pub(crate) struct Closed {
    ground: Arc<Ground>,
    /// Keeps out whoever would serve.
    client: Arc<ClientWrapper>,
}

impl Closed {
    pub fn take(ground: Arc<Ground>) -> Result<Self, StoreError> {
        let taking = Arc::clone(&ground);
        let client = ground.block(async move {
            let client = taking.serve(PATIENCE, true).await?;
            if connect::schema(&client).await?.is_none() {
                return Err(connect::nothing_there());
            }
            // Nobody else is there to be held up.
            let limits = "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '30s'";
            client.batch_execute(limits).await?;
            Ok(client)
        })?;
        Ok(Self { ground, client: Arc::new(client) })
    }

    fn run<T, F, Fut>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(Arc<ClientWrapper>) -> Fut,
        Fut: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.ground.block(work(Arc::clone(&self.client)))
    }
}

fn columns<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

fn of(table: &Table) -> String {
    columns(table.columns.iter().map(|(name, _)| *name))
}

impl Shelf for Closed {
    fn fact(&mut self, name: &str) -> Result<Option<String>, StoreError> {
        let name = name.to_owned();
        self.run(|client| async move { facts::get(&*client, &name).await })
    }

    fn set_fact(&mut self, name: &str, value: Option<&str>) -> Result<(), StoreError> {
        let (name, value) = (name.to_owned(), value.map(str::to_owned));
        self.run(|client| async move { facts::set(&*client, &name, value.as_deref()).await })
    }

    fn count(&mut self, table: &Table) -> Result<u64, StoreError> {
        let sql = format!("SELECT count(*) FROM {}", table.name);
        self.run(|client| async move { unsigned(client.query_one(&sql, &[]).await?.get(0)) })
    }

    fn last(&mut self, table: &Table) -> Result<i64, StoreError> {
        let sql = format!("SELECT coalesce(max({}), 0)::bigint FROM {}", table.columns[0].0, table.name);
        self.run(|client| async move { Ok(client.query_one(&sql, &[]).await?.get(0)) })
    }

    fn read(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Vec<Cell>>, StoreError> {
        let Wanted { table, after } = *wanted;
        let from = format!("SELECT {} FROM {}", of(table), table.name);
        let sql = match table.page {
            Some(page) => format!("{from} WHERE {0} > $1 ORDER BY {0} LIMIT {page}", table.columns[0].0),
            None => format!("{from} WHERE $1::bigint IS NOT NULL"),
        };
        let rows = self.run(|client| async move { query(&client, &sql, &[&after]).await })?;
        rows.iter().map(|row| Row::try_from(row).map(|Row(cells)| cells)).collect()
    }

    fn write(&mut self, table: &Table, mut rows: Vec<Vec<Cell>>) -> Result<(), StoreError> {
        let mut names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        for (n, row) in rows.iter_mut().enumerate() {
            // Its picture would alter what the trail has hashes of.
            if row.iter().any(|cell| matches!(cell, Cell::Text(text) if text.contains('\0'))) {
                return Err(StoreError::Database("U+0000, which PostgreSQL has no room for".into()));
            }
            for (name, cell) in table.derived(row) {
                if n == 0 {
                    names.push(name);
                }
                row.push(cell);
            }
        }
        let places: Vec<String> = (1..=names.len()).map(|n| format!("${n}")).collect();
        let places = places.join(", ");
        let sql = format!("INSERT INTO {} ({}) VALUES ({places})", table.name, columns(names.iter().copied()));
        self.run(|client| async move {
            let insert = client.prepare_cached(&sql).await?;
            client.batch_execute("BEGIN").await?;
            let written = try_join_all(rows.iter().map(|row| {
                let (client, insert) = (&client, &insert);
                async move {
                    let values: Vec<super::rows::Value<'_>> = row.iter().map(|cell| cell as _).collect();
                    client.execute(insert, &values).await
                }
            }));
            match written.await {
                Ok(_) => Ok(client.batch_execute("COMMIT").await?),
                Err(error) => {
                    client.batch_execute("ROLLBACK").await?;
                    Err(error.into())
                }
            }
        })
    }

    fn clear(&mut self, table: &Table) -> Result<(), StoreError> {
        let sql = format!("DELETE FROM {}", table.name);
        self.run(|client| async move { Ok(client.batch_execute(&sql).await?) })
    }

    /// The heads, and where rows are numbered on.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.run(|client| async move {
            for table in TABLES.iter().filter(|table| table.page.is_some()) {
                let (name, key) = (table.name, table.columns[0].0);
                let numbered = format!("SELECT pg_get_serial_sequence('{name}', '{key}')");
                let sequence: Option<String> = client.query_one(&numbered, &[]).await?.get(0);
                if let Some(sequence) = sequence {
                    let sql = format!("SELECT setval('{sequence}', max({key})) FROM {name} HAVING count(*) > 0");
                    client.query(&sql, &[]).await?;
                }
            }
            let event: i64 = client.query_one("SELECT coalesce(max(seq), 0) FROM events", &[]).await?.get(0);
            let last = one(&client, "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1", &[]).await?;
            let audit = match last {
                Some(row) => AuditHead { seq: unsigned(row.get(0))?, hash: parse_hash(row.get(1))? },
                None => AuditHead::default(),
            };
            set_heads(&client, Heads { event: unsigned(event)?, audit }).await
        })
    }

    fn verify(&mut self) -> Result<Verified, VerifyError> {
        let ground = Arc::clone(&self.ground);
        self.ground.block(async move { verify::verify(&ground, None).await })
    }
}
