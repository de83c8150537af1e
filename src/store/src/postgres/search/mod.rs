//! Reading what a person looks for: pages of changes, and of the audit trail.

pub mod audit;
pub mod changes;

use super::rows::Value;

/// The values of a statement that is put together, in the order of their numbers.
#[derive(Default)]
pub(super) struct Values(Vec<Box<dyn tokio_postgres::types::ToSql + Sync + Send>>);

impl Values {
    /// Its place in the statement, as `$3`.
    pub fn add(&mut self, value: impl tokio_postgres::types::ToSql + Sync + Send + 'static) -> String {
        self.0.push(Box::new(value));
        format!("${}", self.0.len())
    }

    pub fn all(&self) -> Vec<Value<'_>> {
        self.0.iter().map(|value| &**value as Value<'_>).collect()
    }
}
