//! Derives the queries that show what a write would change. There is no preview if one of them is not a read itself.

mod insertions;

use std::collections::BTreeSet;

use sqlparser::ast::{
    Assignment, AssignmentTarget, CascadeOption, Cte, Delete, Expr, Ident, ObjectName, ObjectNamePart, OrderByExpr,
    SelectItem, Statement, TableFactor, TableWithJoins, Truncate, Update, UpdateTableFromKind, With,
};

use crate::{
    ALIAS_PREFIX, ColumnAssignment, ConflictRule, Dialect, ObjectDefinition, PreviewSource, RowPreview, Write,
    WriteKind, definitions,
    lookup::{self, DefinitionChange, ReadBack, TableRows},
    names::{exact_name, unquote},
    reads::{self, Reason, UsedNames},
    selection::Selection,
    writes,
};

/// The maximum number of definitions in a preview. A statement about more objects has no preview.
const MAX_DEFINITIONS: usize = 10;
/// Names for the number of a row in SQLite, in quotes. They are texts where a statement has several tables, and name the row
/// where a query for the rows of the statement has one.
const QUOTED_ROW_IDS: [&str; 3] = ["\"oid\"", "\"rowid\"", "\"_rowid_\""];
/// The number of bytes that PostgreSQL keeps of a name in any case: it cuts longer names to at most 63, between two characters.
const COMPARED_NAME_BYTES: usize = 60;

/// Describes a statement that is not a read for this reason.
pub fn describe_write(dialect: Dialect, statement: &Statement, reason: Reason, max_rows: usize) -> Write {
    let uses_aliases = statement.to_string().to_ascii_lowercase().contains(ALIAS_PREFIX);
    let (inner, with) = writes::inner_statement(statement);
    let conflict_rule = writes::conflict_rule(inner);
    let (kind, tables) = writes::kind_and_tables(inner);
    let changed_table = match tables.as_slice() {
        [table] => Some(*table),
        _ => None,
    };
    let builder = PreviewBuilder { dialect, max_rows, uses_aliases, conflict_rule, changed_table, with };
    if let Some(objects) = definitions::defined_objects(statement) {
        let read_back = ReadBack::Definitions(DefinitionChange::for_statement(statement));
        let preview = match definitions::stored_query(statement) {
            Some(query) if !builder.is_read(&query.to_string()) => {
                Err("its query is not known to only read".to_owned())
            }
            _ => builder.preview_definitions(&objects),
        };
        let targets = objects.into_iter().map(|object| object.name).collect();
        return Write {
            kind: WriteKind::Ddl,
            conflict_rule,
            targets,
            reason,
            preview,
            replacement_query: None,
            read_back,
        };
    }
    let targets = tables.iter().map(ToString::to_string).collect();
    let preview = builder.preview(inner, &reason);
    let replacement_query = changed_table
        .filter(|_| matches!(kind, WriteKind::Insert | WriteKind::Update))
        .and_then(|table| lookup::replacement_query(dialect, table));
    let rows = changed_table.and_then(|table| TableRows::new(dialect, table));
    let read_back = rows.map_or(ReadBack::Nothing, ReadBack::Rows);
    Write { kind, conflict_rule, targets, reason, preview, replacement_query, read_back }
}

struct PreviewBuilder<'a> {
    dialect: Dialect,
    max_rows: usize,
    /// The statement contains [`ALIAS_PREFIX`], so that a name may mean something else in a query for its rows.
    uses_aliases: bool,
    conflict_rule: ConflictRule,
    /// The only table that the statement changes.
    changed_table: Option<&'a ObjectName>,
    /// The CTEs with which the statement begins.
    with: Option<&'a With>,
}

type Preview = Result<PreviewSource, Reason>;

impl PreviewBuilder<'_> {
    fn preview(&self, statement: &Statement, write_reason: &str) -> Preview {
        // An insertion is allowed, because its query reads the CTE in the statement itself, too.
        if !matches!(statement, Statement::Insert(_))
            && let Some(table) = self.changed_table
            && self.with.is_some_and(|with| with.cte_tables.iter().any(|cte| self.hides_table(cte, table)))
        {
            return Err(format!("it changes {table}, but a query for its rows would read the CTE of this name"));
        }
        match statement {
            Statement::Update(update) => self.preview_update(update),
            Statement::Delete(delete) => self.preview_delete(delete),
            Statement::Insert(insert) => self.preview_insert(insert),
            Statement::Truncate(Truncate { cascade: Some(CascadeOption::Cascade), .. }) => {
                Err("it also empties the tables that refer to this one".to_owned())
            }
            Statement::Truncate(Truncate { table_names, partitions: None, .. }) => match table_names.as_slice() {
                [table] => self.preview_whole_table(&table.name),
                _ => Err("it empties several tables".to_owned()),
            },
            _ => Err(format!(
                "there is no preview for statements of this kind; this one counts as a write because {write_reason}"
            )),
        }
    }

    /// Returns `true` if the table may have the name of the CTE. A statement then changes the table, while a query reads the
    /// CTE.
    fn hides_table(&self, cte: &Cte, table: &ObjectName) -> bool {
        // PostgreSQL folds the case of letters beyond ASCII by the encoding of the database, and cuts long names.
        let name = |name: &Ident| {
            let name = match self.dialect {
                Dialect::Postgres if name.value.is_ascii() => exact_name(self.dialect, name),
                _ => unquote(name).to_lowercase(),
            };
            name.into_bytes().into_iter().take(COMPARED_NAME_BYTES).collect::<Vec<u8>>()
        };
        match table.0.as_slice() {
            [ObjectNamePart::Identifier(table)] => name(table) == name(&cte.alias.name),
            _ => false,
        }
    }

    fn preview_definitions(&self, objects: &[definitions::SchemaObject<'_>]) -> Preview {
        let definitions: Option<Vec<_>> = objects
            .iter()
            .map(|object| {
                let definition = object.definition_query(self.dialect).filter(|query| self.is_read(query))?;
                Some(ObjectDefinition { name: object.name.clone(), definition })
            })
            .collect();
        definitions
            .filter(|definitions| (1..=MAX_DEFINITIONS).contains(&definitions.len()))
            .map(PreviewSource::Definitions)
            .ok_or_else(|| "the definitions of such objects are not shown".to_owned())
    }

    /// Returns the CTEs of the statement, for the beginning of a query.
    fn with_clause(&self) -> String {
        self.with.map_or(String::new(), |with| format!("{with} "))
    }

    fn is_read(&self, query: &str) -> bool {
        reads::is_single_read(self.dialect, query)
    }

    fn check_repeatable(&self, query: &str) -> Result<(), Reason> {
        reads::check_repeatable(self.dialect, self.changed_table, query)
    }

    fn preview_whole_table(&self, table: &ObjectName) -> Preview {
        let selection = Selection {
            with: String::new(),
            table: table.to_string(),
            alias: table.to_string(),
            other_tables: Vec::new(),
            condition: None,
            limit_clause: None,
        };
        // A table to which others refer cannot be truncated alone.
        self.preview_rows(&selection, Vec::new(), None)
    }

    fn preview_update(&self, update: &Update) -> Preview {
        if update.or.is_some() {
            return Err("it may replace or skip rows that conflict with others".to_owned());
        }
        let Update {
            update_token: _,
            optimizer_hints: _,
            table,
            on_cluster: None,
            assignments,
            from,
            selection: condition,
            returning,
            output: None,
            or: _,
            order_by,
            limit,
            settings: None,
        } = update
        else {
            return Err("the statement has unknown clauses".to_owned());
        };
        let other_tables = match from {
            Some(UpdateTableFromKind::BeforeSet(tables) | UpdateTableFromKind::AfterSet(tables)) => tables.as_slice(),
            None => &[],
        };
        let selection = self.build_selection(
            table,
            other_tables,
            condition.as_ref(),
            limit_clause(self.dialect, order_by, limit.as_ref())?,
        )?;
        self.check_returning(returning.as_deref(), |items| selection.values_query(items))?;
        let has_subquery = |condition| {
            UsedNames::in_expression(self.dialect, condition).is_none_or(|names: UsedNames| names.has_query)
        };
        let reads_other_rows = !other_tables.is_empty() || condition.as_ref().is_some_and(has_subquery);
        let (mut values, mut assigned) = (Vec::new(), BTreeSet::new());
        for assignment in assignments {
            let value = assignment.value.to_string();
            if reads_other_rows && (is_default(&value) || !self.is_read(&selection.values_query(&value))) {
                return Err("a value that it assigns may change something, and its condition may then find other rows"
                    .to_owned());
            }
            for (column, own_expression) in assigned_columns(assignment) {
                let mut value = self.build_assignment(column, own_expression, &assignment.value);
                let is_changed_before =
                    own_expression.is_some_and(|expression| self.uses_changed_value(expression, &assigned));
                if !assigned.insert(value.column.to_lowercase()) {
                    return Err(format!("it assigns {} twice", value.column));
                }
                let alias = format!("{ALIAS_PREFIX}after_{}", values.len());
                let test_query = selection.rows_query(self.max_rows, &[(value.expression.as_str(), alias.as_str())]);
                let is_evaluable = own_expression.is_some()
                    && !self.is_field(column)
                    && !is_default(&value.expression)
                    && !is_changed_before;
                value.alias = Some(alias).filter(|_| is_evaluable && self.check_repeatable(&test_query).is_ok());
                values.push(value);
            }
        }
        self.preview_rows(&selection, values, None)
    }

    /// Builds the assignment, without the alias under which a query selects its value.
    fn build_assignment(
        &self,
        column: &ObjectName,
        own_expression: Option<&Expr>,
        right_side: &Expr,
    ) -> ColumnAssignment {
        let expression = match (own_expression, right_side) {
            (Some(expression), _) => expression.to_string(),
            (None, Expr::Subquery(query)) => query.to_string(),
            (None, row) => row.to_string(),
        };
        let part = if self.is_field(column) { column.0.first() } else { column.0.last() };
        let column = part.and_then(ObjectNamePart::as_ident).map_or_else(|| column.to_string(), unquote);
        ColumnAssignment { column, expression, alias: None }
    }

    /// Returns `true` if the expression may read what the statement itself has changed by then. Only PostgreSQL computes all
    /// values from the data before the statement. In the other databases, subqueries see the rows that are changed already, and
    /// MySQL makes the assignments of a row one after the other. `changed` has the names of the columns assigned so far, in
    /// lower case.
    fn uses_changed_value(&self, expression: &Expr, changed: &BTreeSet<String>) -> bool {
        let table = self.changed_table.and_then(|table| table.0.last()).and_then(ObjectNamePart::as_ident);
        let (Some(names), Some(table)) = (UsedNames::in_expression(self.dialect, expression), table) else {
            return true;
        };
        let table = unquote(table).to_lowercase();
        let is_read_by_ctes = || {
            let names = UsedNames::in_query(self.dialect, self.with, None);
            names.is_none_or(|names| names.tables.contains(&table))
        };
        let reads_table = || names.tables.contains(&table) || names.has_query && is_read_by_ctes();
        match self.dialect {
            Dialect::Postgres => false,
            Dialect::Sqlite => reads_table(),
            Dialect::Mysql => !names.columns.is_disjoint(changed) || reads_table(),
        }
    }

    /// Returns `true` if an assignment to the name changes only a field of a column.
    fn is_field(&self, column: &ObjectName) -> bool {
        // Other dialects put the table before the column.
        self.dialect == Dialect::Postgres && column.0.len() > 1
    }

    fn preview_delete(&self, delete: &Delete) -> Preview {
        let Delete {
            delete_token: _,
            optimizer_hints: _,
            tables,
            from,
            on_cluster: None,
            using,
            selection,
            returning,
            output: None,
            order_by,
            limit,
            settings: None,
        } = delete
        else {
            return Err("the statement has unknown clauses".to_owned());
        };
        let ([], [table]) = (tables.as_slice(), writes::source_tables(from)) else {
            return Err("it deletes from several tables".to_owned());
        };
        let using = using.as_deref().unwrap_or_default();
        let selection = self.build_selection(
            table,
            using,
            selection.as_ref(),
            limit_clause(self.dialect, order_by, limit.as_ref())?,
        )?;
        self.check_returning(returning.as_deref(), |items| selection.values_query(items))?;
        let dependents = writes::table_name(table).and_then(|name| lookup::dependents_query(self.dialect, name));
        match dependents.filter(|query| self.is_read(query)) {
            Some(dependents) => self.preview_rows(&selection, Vec::new(), Some(dependents)),
            None => Err("the foreign keys that refer to its table cannot be found".to_owned()),
        }
    }

    fn build_selection(
        &self,
        table: &TableWithJoins,
        other_tables: &[TableWithJoins],
        condition: Option<&Expr>,
        limit_clause: Option<String>,
    ) -> Result<Selection, Reason> {
        let name = writes::table_name(table).ok_or("it changes several tables")?;
        let TableFactor::Table { alias, .. } = &table.relation else { return Err("it changes no table".to_owned()) };
        let last_part = name.0.last().ok_or("it changes no table")?.to_string();
        let alias = alias.as_ref().map_or(last_part, |alias| alias.name.to_string());
        let selection = Selection {
            with: self.with_clause(),
            table: table.to_string(),
            alias,
            other_tables: other_tables.iter().map(ToString::to_string).collect(),
            condition: condition.map(ToString::to_string),
            limit_clause,
        };
        let where_clause = selection.where_clause_on_table().to_ascii_lowercase();
        if self.dialect == Dialect::Sqlite
            && !other_tables.is_empty()
            && let Some(name) = QUOTED_ROW_IDS.iter().find(|name| where_clause.contains(**name))
        {
            return Err(format!("{name} may mean something else in a query for its rows"));
        }
        Ok(selection)
    }

    /// Checks that the RETURNING clause of a statement changes nothing, because previews do not show it.
    /// `build_query` builds a query that selects its items.
    fn check_returning(
        &self,
        items: Option<&[SelectItem]>,
        build_query: impl FnOnce(&str) -> String,
    ) -> Result<(), Reason> {
        let items: Vec<String> = items.unwrap_or_default().iter().map(ToString::to_string).collect();
        if items.is_empty() || self.is_read(&build_query(&items.join(", "))) {
            return Ok(());
        }
        Err("its RETURNING clause may change something".to_owned())
    }

    fn preview_rows(
        &self,
        selection: &Selection,
        assignments: Vec<ColumnAssignment>,
        dependents: Option<String>,
    ) -> Preview {
        let values: Vec<(&str, &str)> =
            assignments.iter().filter_map(|value| Some((value.expression.as_str(), value.alias.as_deref()?))).collect();
        let queries = RowPreview {
            rows: self.wrap_ctes_for_sqlite(&selection.with, selection.rows_query(self.max_rows, &values)),
            count: self.wrap_ctes_for_sqlite(&selection.with, selection.count_query()),
            dependents,
            assignments,
        };
        self.check_queries(queries)
    }

    /// Wraps a query that begins with CTEs, because servers for SQLite want SELECT as its first word.
    fn wrap_ctes_for_sqlite(&self, with: &str, query: String) -> String {
        if self.dialect != Dialect::Sqlite || with.is_empty() {
            return query;
        }
        format!("SELECT * FROM ({query}) AS {ALIAS_PREFIX}query")
    }

    /// Returns the queries if all of them only read, and find the rows that the statement changes.
    fn check_queries(&self, queries: RowPreview) -> Preview {
        if self.uses_aliases {
            return Err(format!("it contains {ALIAS_PREFIX}, with which the names in the query for its rows begin"));
        }
        if !self.is_read(&queries.rows) || !self.is_read(&queries.count) {
            return Err("the query for its rows is not known to only read".to_owned());
        }
        // Apart from values, which are selected only if they are repeatable, both queries are the same.
        self.check_repeatable(&queries.count)
            .map_err(|reason| format!("it may find other rows when it runs: {reason}"))?;
        Ok(PreviewSource::Rows(queries))
    }
}

fn limit_clause(dialect: Dialect, order_by: &[OrderByExpr], limit: Option<&Expr>) -> Result<Option<String>, Reason> {
    let Some(limit) = limit else { return Ok(None) };
    if !matches!(limit, Expr::Value(_)) {
        return Err("its limit is not a number".to_owned());
    }
    // A number is the position of a column in the ORDER BY clause of a query, and a constant in that of a deletion or an
    // update. SQLite takes a name in double quotes for a text if there is no such column.
    let is_column = |key: &OrderByExpr| match &key.expr {
        Expr::Identifier(name) => dialect != Dialect::Sqlite || name.quote_style != Some('"'),
        expression => matches!(expression, Expr::CompoundIdentifier(_)),
    };
    if order_by.is_empty() || !order_by.iter().all(is_column) {
        return Err(
            "its limit may pick other rows when it runs, because no ORDER BY of columns decides which".to_owned()
        );
    }
    let keys: Vec<String> = order_by.iter().map(ToString::to_string).collect();
    Ok(Some(format!(" ORDER BY {} LIMIT {limit}", keys.join(", "))))
}

/// Returns the columns of an assignment, each with its own expression, or `None` if the column gets an element of a row.
fn assigned_columns(assignment: &Assignment) -> Vec<(&ObjectName, Option<&Expr>)> {
    match (&assignment.target, &assignment.value) {
        (AssignmentTarget::ColumnName(column), expression) => vec![(column, Some(expression))],
        (AssignmentTarget::Tuple(columns), Expr::Tuple(expressions)) if columns.len() == expressions.len() => {
            columns.iter().zip(expressions.iter().map(Some)).collect()
        }
        (AssignmentTarget::Tuple(columns), _) => columns.iter().map(|column| (column, None)).collect(),
    }
}

/// Returns `true` for the default of a column, which only the database knows.
fn is_default(expression: &str) -> bool {
    expression.eq_ignore_ascii_case("default")
}
