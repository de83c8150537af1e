//! The rows that a statement changes, and the queries for them.

use crate::ALIAS_PREFIX;

/// The rows that a statement changes.
pub struct Selection {
    /// CTEs that the statement begins with.
    pub with: String,
    /// The table as the statement names it, with its alias if it has one.
    pub table: String,
    /// The name by which the statement calls the table.
    pub alias: String,
    /// Further tables that the condition uses.
    pub other_tables: Vec<String>,
    pub condition: Option<String>,
    /// The ORDER BY and LIMIT clauses of the statement itself, if it has a limit.
    pub limit_clause: Option<String>,
}

impl Selection {
    /// Returns the query for the rows, with these expressions and their aliases.
    pub fn rows_query(&self, max_rows: usize, values: &[(&str, &str)]) -> String {
        let Self { with, table, alias, limit_clause, .. } = self;
        let values: String = values.iter().map(|(expression, name)| format!(", {expression} AS {name}")).collect();
        // The values may use the other tables, which must then be in the FROM clause.
        let tables = if values.is_empty() { table.clone() } else { self.all_tables() };
        let condition = if values.is_empty() { self.where_clause_on_table() } else { self.where_clause() };
        let limit = max_rows + 1;
        match limit_clause {
            Some(limit_clause) => format!(
                "{with}SELECT * FROM (SELECT {alias}.*{values} FROM {tables}{condition}{limit_clause}) AS {ALIAS_PREFIX}rows LIMIT {limit}"
            ),
            None => format!("{with}SELECT {alias}.*{values} FROM {tables}{condition} ORDER BY 1 LIMIT {limit}"),
        }
    }

    /// Returns a query that computes these values for all rows of the tables.
    pub fn values_query(&self, values: &str) -> String {
        format!("{}SELECT {values} FROM {}", self.with, self.all_tables())
    }

    fn all_tables(&self) -> String {
        [std::slice::from_ref(&self.table), &self.other_tables].concat().join(", ")
    }

    pub fn count_query(&self) -> String {
        let Self { with, table, limit_clause, .. } = self;
        let condition = self.where_clause_on_table();
        match limit_clause {
            Some(limit_clause) => format!(
                "{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM (SELECT 1 FROM {table}{condition}{limit_clause}) AS {ALIAS_PREFIX}rows"
            ),
            None => format!("{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM {table}{condition}"),
        }
    }

    fn where_clause(&self) -> String {
        self.condition.as_ref().map_or(String::new(), |condition| format!(" WHERE {condition}"))
    }

    /// Returns the WHERE clause for the table alone, so that a row which several rows of the other tables match counts once.
    pub fn where_clause_on_table(&self) -> String {
        if self.other_tables.is_empty() {
            return self.where_clause();
        }
        format!(" WHERE EXISTS (SELECT 1 FROM {}{})", self.other_tables.join(", "), self.where_clause())
    }
}
