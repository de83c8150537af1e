//! Previews of insertions: the rows that a statement gives, or those that its query selects.

use sqlparser::ast::{Expr, Insert, Query, SelectItem, SetExpr, UnaryOperator, Value, Values};

use super::{Preview, PreviewBuilder, assigned_columns};
use crate::{
    ALIAS_PREFIX, ConflictRule, Dialect, PreviewSource, RowPreview,
    lookup::{Literal, literal_text},
    reads::{self, UsedNames},
};

/// Columns that only sequences of PostgreSQL have.
const SEQUENCE_COLUMNS: [&str; 2] = ["is_called", "last_value"];

impl PreviewBuilder<'_> {
    pub(super) fn preview_insert(&self, insert: &Insert) -> Preview {
        match self.conflict_rule {
            ConflictRule::Replace => return Err("it replaces rows with the same key, which are not shown".to_owned()),
            ConflictRule::Update => return Err("it updates rows with the same key, which are not shown".to_owned()),
            ConflictRule::Keep | ConflictRule::Refuse => {}
        }
        if insert.multi_table_insert_type.is_some() || insert.overwrite || insert.partitioned.is_some() {
            return Err("the statement has unknown clauses".to_owned());
        }
        let with = self.with_clause();
        if !self.is_read(&format!("{with}SELECT 1")) {
            return Err("a CTE with which it begins is not known to only read".to_owned());
        }
        self.check_returning(insert.returning.as_deref(), |items| {
            format!("{with}SELECT {items} FROM {}", insert.table)
        })?;
        let columns: Vec<String> = insert.columns.iter().map(ToString::to_string).collect();
        let Some(source) = &insert.source else {
            let columns_and_values = insert.assignments.iter().flat_map(assigned_columns);
            let (columns, row): (Vec<String>, Vec<String>) = columns_and_values
                .filter_map(|(column, expression)| Some((column.to_string(), expression?.to_string())))
                .unzip();
            return if columns.is_empty() {
                Err("it inserts a row of defaults".to_owned())
            } else {
                Ok(PreviewSource::GivenRows { columns, rows: vec![row], equal_count: None })
            };
        };
        if let Query { with: None, body, order_by: None, limit_clause: None, .. } = source.as_ref()
            && let SetExpr::Values(values) = body.as_ref()
        {
            let texts = |row: &Vec<Expr>| row.iter().map(ToString::to_string).collect();
            let rows = values.rows.iter().map(|row| texts(&row.content)).collect();
            return Ok(PreviewSource::GivenRows {
                equal_count: self.equal_count_query(insert, &columns, values),
                columns,
                rows,
            });
        }
        let source = reads::replace_times_and_random_values(self.dialect, source);
        let rows = self.inserted_rows(&columns, &source);
        let selected = format!("{with}SELECT * FROM {rows} ORDER BY 1 LIMIT {}", self.max_rows + 1);
        let counted = format!("{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM {rows}");
        let preview = self.check_queries(RowPreview {
            rows: self.wrap_ctes_for_sqlite(&with, selected),
            count: self.wrap_ctes_for_sqlite(&with, counted),
            dependents: None,
            assignments: Vec::new(),
        })?;
        // The default of a column may advance the sequence after each row.
        let has_sequence_column =
            |names: UsedNames| SEQUENCE_COLUMNS.iter().any(|column| names.columns.contains(*column));
        if self.dialect == Dialect::Postgres
            && UsedNames::in_query(self.dialect, self.with, Some(&source)).is_none_or(has_sequence_column)
        {
            return Err(
                "it may find other rows when it runs, because it reads a sequence, which each inserted row may advance"
                    .to_owned(),
            );
        }
        Ok(preview)
    }

    /// Returns the rows of an insertion's query as a table whose columns have the names of those that they are inserted into, or
    /// numbers. MySQL keeps the names of the query, because older versions cannot rename them; it refuses two of the same name.
    fn inserted_rows(&self, columns: &[String], source: &Query) -> String {
        let rows = format!("{ALIAS_PREFIX}rows");
        let names = if columns.is_empty() { self.numbered_names(source) } else { columns.to_vec() }.join(", ");
        match self.dialect {
            Dialect::Postgres if !names.is_empty() => format!("({source}) AS {rows} ({names})"),
            Dialect::Sqlite if !names.is_empty() => {
                format!("(WITH {rows} ({names}) AS ({source}) SELECT * FROM {rows}) AS {rows}")
            }
            _ => format!("({source}) AS {rows}"),
        }
    }

    /// Returns `value 1` and so on for the columns of a query, or nothing if their number is not known.
    fn numbered_names(&self, query: &Query) -> Vec<String> {
        let SetExpr::Select(select) = query.body.as_ref() else { return Vec::new() };
        let is_one = |item: &SelectItem| matches!(item, SelectItem::UnnamedExpr(_) | SelectItem::ExprWithAlias { .. });
        let count = if select.projection.iter().all(is_one) { select.projection.len() } else { 0 };
        (1..=count).map(|number| self.dialect.quote_name(&format!("value {number}"))).collect()
    }

    /// Returns the query that counts the rows with the values of one of the given rows.
    fn equal_count_query(&self, insert: &Insert, columns: &[String], given: &Values) -> Option<String> {
        if self.conflict_rule != ConflictRule::Refuse || given.rows.len() > self.max_rows {
            return None;
        }
        let conditions: Option<Vec<String>> =
            given.rows.iter().map(|row| given_row_condition(self.dialect, columns, &row.content)).collect();
        let (table, conditions) = (&insert.table, conditions?.join(" OR "));
        let query = format!("SELECT count(*) AS {ALIAS_PREFIX}count FROM {table} WHERE {conditions}");
        self.is_read(&query).then_some(query)
    }
}

/// Returns the condition for rows with the values of this given row. Only literals are compared, and no fractions, which a
/// column may round. Returns `None` if nothing can be compared, or if the row and the columns differ in number.
fn given_row_condition(dialect: Dialect, columns: &[String], row: &[Expr]) -> Option<String> {
    let conditions: Vec<String> = columns
        .iter()
        .zip(row)
        .filter_map(|(column, value)| Some(format!("{column} {}", compare_with_literal(dialect, value)?)))
        .collect();
    (columns.len() == row.len() && !conditions.is_empty()).then(|| format!("({})", conditions.join(" AND ")))
}

/// Returns the comparison of a column with a literal.
fn compare_with_literal(dialect: Dialect, value: &Expr) -> Option<String> {
    let is_whole = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit());
    let equals = |value: &Literal<'_>| Some(format!("= {}", literal_text(dialect, value)));
    match value {
        Expr::Value(value) => match &value.value {
            Value::Null => Some("IS NULL".to_owned()),
            Value::Boolean(value) => equals(&Literal::Boolean(*value)),
            Value::Number(number, false) if is_whole(number) => equals(&Literal::Number(number.clone())),
            // It keeps its quotes, so that it means the same as in the statement.
            Value::SingleQuotedString(_) => Some(format!("= {value}")),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => compare_with_literal(dialect, expr),
        _ => None,
    }
}
