//! Queries about the tables and objects of a statement: those that read back its effect after it ran, such as its changed rows
//! by their primary key, and those that find what it reaches besides the rows that it names.

use sqlparser::ast::{Ident, ObjectName, ObjectNamePart, Statement};

use crate::{
    Dialect,
    definitions::sqlite_schema_prefix,
    names::{exact_name, unquote},
    reads,
};

/// The method that reads back the effect of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// Reads the changed rows again by their keys.
    Rows(TableRows),
    /// Reads the definitions of its objects again.
    Definitions(DefinitionChange),
    /// Reads nothing, because there is no way to find what it changed.
    Nothing,
}

/// The effect of a statement on the definition of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefinitionChange {
    Creation,
    Removal,
    Alteration,
}

impl DefinitionChange {
    pub(crate) fn for_statement(statement: &Statement) -> Self {
        // The parser has many kinds of such statements, but all that create or drop something begin with these words.
        match statement.to_string().split_whitespace().next() {
            Some("CREATE") => Self::Creation,
            Some("DROP") => Self::Removal,
            _ => Self::Alteration,
        }
    }
}

/// A value with which a column is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal<'a> {
    Null,
    Boolean(bool),
    Number(String),
    Text(&'a str),
}

/// A table whose rows are found by the values of their columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRows {
    dialect: Dialect,
    /// The name of the table as the statement has it.
    table: String,
    key_columns_query: String,
}

impl TableRows {
    /// Returns `None` if the primary key of such a table cannot be queried.
    pub(crate) fn new(dialect: Dialect, name: &ObjectName) -> Option<Self> {
        let key_columns_query = key_columns_query(dialect, name)?;
        reads::is_single_read(dialect, &key_columns_query).then(|| Self {
            dialect,
            table: name.to_string(),
            key_columns_query,
        })
    }

    /// Returns the query for the columns of the primary key, whose names are in its only column.
    pub fn key_columns_query(&self) -> &str {
        &self.key_columns_query
    }

    /// Returns a query for the rows that have one of these sets of values, or `None` if it would not only read.
    pub fn rows_query(&self, sets: &[Vec<(&str, Literal<'_>)>]) -> Option<String> {
        let Self { dialect, table, .. } = self;
        let condition = |(column, value): &(&str, Literal<'_>)| {
            let column = dialect.quote_name(column);
            match value {
                Literal::Null => format!("{column} IS NULL"),
                value => format!("{column} = {}", literal_text(*dialect, value)),
            }
        };
        let all = |values: &Vec<_>| format!("({})", values.iter().map(condition).collect::<Vec<_>>().join(" AND "));
        let conditions: Vec<String> = sets.iter().map(all).collect();
        let query = format!("SELECT * FROM {table} WHERE {}", conditions.join(" OR "));
        // The caller's thread may have too little stack for the parser.
        crate::is_read(*dialect, &query).then_some(query)
    }
}

/// Formats a literal. PostgreSQL converts a number in quotes to the type of the column with which it is compared.
pub fn literal_text(dialect: Dialect, value: &Literal<'_>) -> String {
    match value {
        Literal::Null => "NULL".to_owned(),
        Literal::Boolean(value) => value.to_string().to_uppercase(),
        Literal::Number(number) if dialect != Dialect::Postgres => number.clone(),
        Literal::Number(number) => dialect.literal(number),
        Literal::Text(text) => dialect.literal(text),
    }
}

/// Returns the schema of a table, if it is named, and the table's own name. A name before the schema can only be that of the
/// current database, because no statement reaches another one.
fn split_table_name(name: &ObjectName) -> Option<(Option<&Ident>, &Ident)> {
    let parts: Option<Vec<&Ident>> = name.0.iter().map(ObjectNamePart::as_ident).collect();
    match parts?.as_slice() {
        [table] => Some((None, *table)),
        [schema, table] | [_, schema, table] => Some((Some(*schema), *table)),
        _ => None,
    }
}

/// Returns the expression that finds a table in PostgreSQL, with `NULL` as its value if there is none.
fn postgres_table_expression(schema: Option<&Ident>, table: &Ident) -> String {
    let quoted_name = |name| Dialect::Postgres.quote_name(&exact_name(Dialect::Postgres, name));
    let names: Vec<String> = schema.into_iter().chain([table]).map(quoted_name).collect();
    format!("to_regclass({})", Dialect::Postgres.literal(&names.join(".")))
}

fn key_columns_query(dialect: Dialect, name: &ObjectName) -> Option<String> {
    let (schema, table) = split_table_name(name)?;
    let literal = |name: &Ident| dialect.literal(&unquote(name));
    Some(match dialect {
        Dialect::Postgres => format!(
            "SELECT attname AS name FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey) \
             WHERE indrelid = {} AND indisprimary ORDER BY attnum",
            postgres_table_expression(schema, table)
        ),
        Dialect::Sqlite => {
            let schema = schema.map_or(String::new(), |schema| format!(", {}", literal(schema)));
            format!("SELECT name FROM pragma_table_info({}{schema}) WHERE pk > 0 ORDER BY pk", literal(table))
        }
        Dialect::Mysql => {
            let schema = schema.map_or("database()".to_owned(), literal);
            format!(
                "SELECT column_name AS name FROM information_schema.key_column_usage WHERE constraint_name = 'PRIMARY' \
                 AND table_schema = {schema} AND table_name = {} ORDER BY ordinal_position",
                literal(table)
            )
        }
    })
}

/// Returns the query for the tables whose rows foreign keys delete or change when rows of this table are deleted. Its only
/// column has their names. In MySQL, whose older versions have no recursive queries, it finds only the tables that refer to
/// this one.
pub fn dependents_query(dialect: Dialect, name: &ObjectName) -> Option<String> {
    let (schema, table) = split_table_name(name)?;
    let literal = |name: &Ident| dialect.literal(&unquote(name));
    Some(match dialect {
        // A deletion also reaches the partitions of a table, the tables that inherit from it, and the tables under a view.
        // `set_columns` has the columns that a key changes, or is NULL if rows are deleted.
        Dialect::Postgres => format!(
            "WITH RECURSIVE links AS (SELECT confrelid AS parent, conrelid AS child, confdeltype AS on_delete, \
             confupdtype AS on_update, confkey AS parent_columns, conkey AS child_columns, true AS is_key \
             FROM pg_constraint WHERE contype = 'f' \
             UNION ALL SELECT inhparent, inhrelid, 'c', 'a', NULL, NULL, false FROM pg_inherits \
             UNION ALL SELECT ev_class, refobjid, 'c', 'a', NULL, NULL, false FROM pg_rewrite \
             JOIN pg_depend ON objid = pg_rewrite.oid WHERE classid = 'pg_rewrite'::regclass \
             AND refclassid = 'pg_class'::regclass AND ev_type = '1'), \
             reached AS (SELECT {}::oid AS table_id, NULL::int2[] AS set_columns, false AS is_dependent \
             UNION SELECT child, CASE WHEN set_columns IS NULL AND on_delete = 'c' THEN NULL ELSE child_columns END, \
             is_key OR is_dependent FROM reached JOIN links ON parent = table_id \
             WHERE (set_columns IS NULL AND on_delete IN ('c', 'n', 'd')) \
             OR (set_columns && parent_columns AND on_update IN ('c', 'n', 'd'))) \
             SELECT DISTINCT table_id::regclass::text AS name FROM reached WHERE is_dependent ORDER BY 1",
            postgres_table_expression(schema, table)
        ),
        Dialect::Sqlite => {
            let argument = schema.map_or(String::new(), |schema| format!(", {}", literal(schema)));
            let schema = sqlite_schema_prefix(schema);
            format!(
                "SELECT name FROM (WITH RECURSIVE links AS (SELECT m.name AS child, lower(f.\"table\") AS parent \
                 FROM {schema}sqlite_master AS m, pragma_foreign_key_list(m.name{argument}) AS f WHERE type = 'table' \
                 AND on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT')), reached(name) AS (SELECT child FROM links \
                 WHERE parent = {} UNION SELECT links.child FROM links JOIN reached ON links.parent = lower(reached.name)) \
                 SELECT name FROM reached) AS found ORDER BY 1",
                dialect.literal(&unquote(table).to_ascii_lowercase())
            )
        }
        Dialect::Mysql => {
            let schema = schema.map_or("database()".to_owned(), literal);
            format!(
                "SELECT DISTINCT concat(constraint_schema, '.', table_name) AS name \
                 FROM information_schema.referential_constraints WHERE unique_constraint_schema = {schema} \
                 AND referenced_table_name = {} AND delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') ORDER BY 1",
                literal(table)
            )
        }
    })
}

/// Returns the query that finds this table if its definition in SQLite contains `ON CONFLICT REPLACE`.
pub fn replacement_query(dialect: Dialect, name: &ObjectName) -> Option<String> {
    let (schema, table) = split_table_name(name).filter(|_| dialect == Dialect::Sqlite)?;
    let schema = sqlite_schema_prefix(schema);
    let table = dialect.literal(&unquote(table).to_ascii_lowercase());
    // Spaces and comments may be between the words.
    let query = format!(
        "SELECT name FROM {schema}sqlite_master WHERE type = 'table' AND lower(name) = {table} \
         AND lower(sql) LIKE '%conflict%replace%'"
    );
    reads::is_single_read(dialect, &query).then_some(query)
}
