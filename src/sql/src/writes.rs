//! The kind and the targets of statements that write.

use sqlparser::ast::{
    Delete, FromTable, Insert, ObjectName, OnConflict, OnConflictAction, OnInsert, SetExpr, SqliteOnConflict,
    Statement, TableFactor, TableObject, TableWithJoins, Update, With,
};

use crate::{ConflictRule, WriteKind};

/// Returns the write in the body of a query, with the CTEs of the query, or else the statement itself.
pub fn inner_statement(statement: &Statement) -> (&Statement, Option<&With>) {
    match statement {
        Statement::Query(query) => match query.body.as_ref() {
            SetExpr::Insert(inner) | SetExpr::Update(inner) | SetExpr::Delete(inner) | SetExpr::Merge(inner) => {
                (inner, query.with.as_ref())
            }
            _ => (statement, None),
        },
        _ => (statement, None),
    }
}

/// Returns the kind of a write without CTEs, with the tables that it changes.
pub fn kind_and_tables(statement: &Statement) -> (WriteKind, Vec<&ObjectName>) {
    match statement {
        Statement::Insert(Insert { table: TableObject::TableName(table), .. }) => (WriteKind::Insert, vec![table]),
        Statement::Insert(_) => (WriteKind::Insert, Vec::new()),
        Statement::Update(Update { table, .. }) => (WriteKind::Update, table_name(table).into_iter().collect()),
        Statement::Delete(Delete { tables, from, .. }) if tables.is_empty() => {
            (WriteKind::Delete, source_tables(from).iter().filter_map(table_name).collect())
        }
        Statement::Delete(Delete { tables, .. }) => (WriteKind::Delete, tables.iter().collect()),
        Statement::Truncate(truncate) => {
            (WriteKind::Delete, truncate.table_names.iter().map(|target| &target.name).collect())
        }
        // Some dialects have blocks, whose BEGIN contains other statements.
        Statement::StartTransaction { statements, .. } if statements.is_empty() => (WriteKind::Begin, Vec::new()),
        _ => (WriteKind::Other, Vec::new()),
    }
}

/// Returns what the statement does with rows whose key already exists.
pub fn conflict_rule(statement: &Statement) -> ConflictRule {
    let Statement::Insert(insert) = statement else { return ConflictRule::Refuse };
    match insert {
        Insert { replace_into: true, .. } | Insert { or: Some(SqliteOnConflict::Replace), .. } => ConflictRule::Replace,
        Insert { on: Some(OnInsert::OnConflict(OnConflict { action: OnConflictAction::DoNothing, .. })), .. } => {
            ConflictRule::Keep
        }
        Insert { on: Some(_), .. } => ConflictRule::Update,
        Insert { ignore: true, .. } | Insert { or: Some(SqliteOnConflict::Ignore), .. } => ConflictRule::Keep,
        _ => ConflictRule::Refuse,
    }
}

/// Returns the tables of the FROM clause of a DELETE.
pub fn source_tables(from: &FromTable) -> &[TableWithJoins] {
    match from {
        FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables) => tables,
    }
}

/// Returns the name of a table without joins.
pub fn table_name(table: &TableWithJoins) -> Option<&ObjectName> {
    match &table.relation {
        TableFactor::Table { name, args: None, .. } if table.joins.is_empty() => Some(name),
        _ => None,
    }
}
