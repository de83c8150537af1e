//! Runs shared statements on a connection to PostgreSQL.

use deadpool_postgres::ClientWrapper;
use tokio_postgres::types::ToSql;

use super::{claims::TARGET_TAKEN_MS, rows, trail};
use crate::{
    Heads, StoreError,
    sql::{Dialect, Row, Sql, Value},
};

impl Sql for ClientWrapper {
    const DIALECT: Dialect = Dialect {
        find: "strpos",
        join_in_order: "JOIN",
        for_update: " FOR UPDATE",
        title: "title",
        has_votes: "votes > 0",
        not_redacted: "NOT redacted",
        created_since: "s.created_ms >= ?1",
        target_taken_ms: TARGET_TAKEN_MS,
        event_time: "at_ms",
        store_rule: "INSERT INTO standing_rules (id, \"over\", body, allows) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (id) DO UPDATE
                     SET \"over\" = excluded.\"over\", body = excluded.body, allows = excluded.allows",
        rule_allows: "allows",
        policies: "SELECT NULL::text, value FROM facts WHERE name = ?1
                   UNION ALL SELECT id, policy FROM nodes WHERE policy <> ''",
        find_table: "SELECT name::text FROM to_regclass(?1) AS name WHERE name IS NOT NULL",
    };

    async fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, StoreError> {
        rows::query(self, &number_placeholders(sql), &as_parameters(values)).await?.iter().map(Row::try_from).collect()
    }

    async fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        rows::execute(self, &number_placeholders(sql), &as_parameters(values)).await
    }

    async fn write(&self, sql: &str, values: &[Value<'_>]) -> Result<u64, StoreError> {
        rows::write(self, &number_placeholders(sql), &as_parameters(values)).await
    }

    async fn heads(&self) -> Result<Heads, StoreError> {
        rows::heads(self).await
    }

    async fn append_entry(&self, event: &'static str, actor: &str, details: &str) -> Result<(), StoreError> {
        trail::append_entry(self, event, actor, details).await
    }
}

/// Returns the statement with `$1` in place of `?1`.
fn number_placeholders(sql: &str) -> String {
    sql.replace('?', "$")
}

fn as_parameters<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as _).collect()
}
