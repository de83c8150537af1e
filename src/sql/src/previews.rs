//! Derives the queries that show what a write would change. There is no preview if one of them is not a read itself.

use sqlparser::ast::{
    Assignment, AssignmentTarget, Delete, Expr, Insert, ObjectName, Query, SetExpr, Statement, TableFactor,
    TableWithJoins, Truncate, Update, UpdateTableFromKind, Values,
};

use crate::{
    ALIAS_PREFIX, ColumnAssignment, Dialect, PreviewSource, RowQueries, Write, WriteKind, definitions,
    lookup::{self, DefinitionChange, ReadBack, TableRows},
    reads::{self, Reason},
    writes,
};

/// Maximum objects whose definitions one statement's preview shows.
const MAX_DEFINITIONS: usize = 10;

/// Describes a statement that is not a read for this reason.
pub fn describe_write(dialect: Dialect, statement: &Statement, reason: Reason, max_rows: usize) -> Write {
    let builder = PreviewBuilder { dialect, max_rows };
    if let Some(objects) = definitions::objects(statement) {
        let targets = objects.iter().map(|object| object.name.to_string()).collect();
        let read_back = ReadBack::Definitions(DefinitionChange::of_statement(statement));
        return Write { kind: WriteKind::Ddl, targets, reason, preview: builder.definitions(&objects), read_back };
    }
    let (kind, targets) = writes::kind_and_tables(statement);
    let preview = builder.preview(statement).unwrap_or_else(|reason| PreviewSource::None { reason });
    let table = writes::changed_table(statement).and_then(|table| TableRows::new(dialect, table));
    Write { kind, targets, reason, preview, read_back: table.map_or(ReadBack::Nothing, ReadBack::Rows) }
}

struct PreviewBuilder {
    dialect: Dialect,
    max_rows: usize,
}

/// The rows that a statement changes.
struct Selection {
    /// CTEs that the statement begins with.
    with: String,
    table: String,
    /// The name by which the statement calls the table.
    alias: String,
    /// Further tables that the condition uses.
    other_tables: Vec<String>,
    condition: Option<String>,
    /// The ORDER BY and LIMIT clauses of the statement itself.
    own_limit: Option<String>,
}

type Preview = Result<PreviewSource, Reason>;

impl PreviewBuilder {
    fn preview(&self, statement: &Statement) -> Preview {
        let (statement, query) = writes::inner_statement(statement);
        let with = query.and_then(|query| query.with.as_ref()).map_or(String::new(), |with| format!("{with} "));
        match statement {
            Statement::Update(update) => self.update(update, with),
            Statement::Delete(delete) => self.delete(delete, with),
            Statement::Insert(insert) => self.insert(insert, &with),
            Statement::Truncate(Truncate { table_names, partitions: None, .. }) => match table_names.as_slice() {
                [table] => self.whole_table(&table.name),
                _ => Err("it empties several tables".to_owned()),
            },
            _ => Err("there is no preview for statements of this kind".to_owned()),
        }
    }

    fn definitions(&self, objects: &[definitions::SchemaObject]) -> PreviewSource {
        let queries: Option<Vec<String>> = objects
            .iter()
            .map(|object| object.definition_query(self.dialect).filter(|query| self.is_read(query)))
            .collect();
        match queries {
            Some(queries) if (1..=MAX_DEFINITIONS).contains(&queries.len()) => PreviewSource::Definitions(queries),
            _ => PreviewSource::None { reason: "the definitions of such objects are not shown".to_owned() },
        }
    }

    fn is_read(&self, query: &str) -> bool {
        reads::is_read(self.dialect, query)
    }

    fn whole_table(&self, table: &ObjectName) -> Preview {
        let selection = Selection {
            with: String::new(),
            table: table.to_string(),
            alias: table.to_string(),
            other_tables: Vec::new(),
            condition: None,
            own_limit: None,
        };
        self.rows_of(&selection, Vec::new())
    }

    fn update(&self, update: &Update, with: String) -> Preview {
        let Update {
            update_token: _,
            optimizer_hints: _,
            table,
            on_cluster: None,
            assignments,
            from,
            selection,
            returning: _,
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
        let selection =
            self.selection(with, table, other_tables, selection.as_ref(), own_limit(order_by, limit.as_ref())?)?;
        let mut values: Vec<ColumnAssignment> = assignments.iter().flat_map(assigned_values).collect();
        for (index, value) in values.iter_mut().enumerate() {
            let alias = format!("{ALIAS_PREFIX}after_{index}");
            let probe = selection.rows_query(self.max_rows, &[(value.expression.as_str(), alias.as_str())]);
            value.alias = Some(alias).filter(|_| self.is_read(&probe) && !is_default(&value.expression));
        }
        self.rows_of(&selection, values)
    }

    fn delete(&self, delete: &Delete, with: String) -> Preview {
        let Delete {
            delete_token: _,
            optimizer_hints: _,
            tables,
            from,
            on_cluster: None,
            using,
            selection,
            returning: _,
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
        let selection = self.selection(with, table, using, selection.as_ref(), own_limit(order_by, limit.as_ref())?)?;
        self.rows_of(&selection, Vec::new())
    }

    fn selection(
        &self,
        with: String,
        table: &TableWithJoins,
        other_tables: &[TableWithJoins],
        condition: Option<&Expr>,
        own_limit: Option<String>,
    ) -> Result<Selection, Reason> {
        let name = writes::table_name(table).ok_or("it changes several tables")?;
        let TableFactor::Table { alias, .. } = &table.relation else { return Err("it changes no table".to_owned()) };
        let own_name = name.0.last().ok_or("it changes no table")?.to_string();
        let alias = alias.as_ref().map_or(own_name, |alias| alias.name.to_string());
        Ok(Selection {
            with,
            table: table.to_string(),
            alias,
            other_tables: other_tables.iter().map(ToString::to_string).collect(),
            condition: condition.map(ToString::to_string),
            own_limit,
        })
    }

    fn rows_of(&self, selection: &Selection, assignments: Vec<ColumnAssignment>) -> Preview {
        let values: Vec<(&str, &str)> =
            assignments.iter().filter_map(|value| Some((value.expression.as_str(), value.alias.as_deref()?))).collect();
        let queries = RowQueries {
            rows: self.plain_query(&selection.with, selection.rows_query(self.max_rows, &values)),
            count: self.plain_query(&selection.with, selection.count_query()),
            assignments,
        };
        self.checked(queries)
    }

    /// Returns the query in the form that servers for SQLite accept, which want SELECT as its first word.
    fn plain_query(&self, with: &str, query: String) -> String {
        if self.dialect != Dialect::Sqlite || with.is_empty() {
            return query;
        }
        format!("SELECT * FROM ({query}) AS {ALIAS_PREFIX}query")
    }

    fn insert(&self, insert: &Insert, with: &str) -> Preview {
        if insert.multi_table_insert_type.is_some() || insert.overwrite || insert.partitioned.is_some() {
            return Err("the statement has unknown clauses".to_owned());
        }
        let columns: Vec<String> = insert.columns.iter().map(ToString::to_string).collect();
        let Some(source) = &insert.source else {
            let given: Vec<ColumnAssignment> = insert.assignments.iter().flat_map(assigned_values).collect();
            return match given.as_slice() {
                [] => Err("it inserts a row of defaults".to_owned()),
                given => Ok(PreviewSource::GivenRows {
                    columns: given.iter().map(|value| value.column.clone()).collect(),
                    rows: vec![given.iter().map(|value| value.expression.clone()).collect()],
                    equal: None,
                }),
            };
        };
        if let Query { with: None, body, order_by: None, limit_clause: None, .. } = source.as_ref()
            && let SetExpr::Values(values) = body.as_ref()
        {
            let texts = |row: &Vec<Expr>| row.iter().map(ToString::to_string).collect();
            let rows = values.rows.iter().map(|row| texts(&row.content)).collect();
            return Ok(PreviewSource::GivenRows {
                equal: self.equal_rows_query(insert, &columns, values),
                columns,
                rows,
            });
        }
        let rows = format!("{ALIAS_PREFIX}rows");
        self.checked(RowQueries {
            rows: format!("{with}SELECT * FROM ({source}) AS {rows} ORDER BY 1 LIMIT {}", self.max_rows + 1),
            count: format!("{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM ({source}) AS {rows}"),
            assignments: Vec::new(),
        })
    }

    /// Returns the query that counts the rows with the values of one of the given rows.
    fn equal_rows_query(&self, insert: &Insert, columns: &[String], given: &Values) -> Option<String> {
        let Insert { or: None, ignore: false, on: None, replace_into: false, .. } = insert else { return None };
        if given.rows.len() > self.max_rows {
            return None;
        }
        let conditions: Option<Vec<String>> =
            given.rows.iter().map(|row| lookup::given_row_condition(self.dialect, columns, &row.content)).collect();
        let (table, conditions) = (&insert.table, conditions?.join(" OR "));
        let query = format!("SELECT count(*) AS {ALIAS_PREFIX}count FROM {table} WHERE {conditions}");
        self.is_read(&query).then_some(query)
    }

    /// Returns the queries if all of them only read.
    fn checked(&self, queries: RowQueries) -> Preview {
        if self.is_read(&queries.rows) && self.is_read(&queries.count) {
            Ok(PreviewSource::Rows(queries))
        } else {
            Err("the query for its rows is not known to only read".to_owned())
        }
    }
}

impl Selection {
    /// Returns the query for the rows, with these expressions and their aliases.
    fn rows_query(&self, max_rows: usize, values: &[(&str, &str)]) -> String {
        let Self { with, table, alias, other_tables, own_limit, .. } = self;
        let values: String = values.iter().map(|(expression, name)| format!(", {expression} AS {name}")).collect();
        let tables = if values.is_empty() {
            table.clone()
        } else {
            [std::slice::from_ref(table), other_tables].concat().join(", ")
        };
        let condition = if values.is_empty() { self.condition_on_table() } else { self.plain_condition() };
        let limit = max_rows + 1;
        match own_limit {
            Some(own_limit) => format!(
                "{with}SELECT * FROM (SELECT {alias}.*{values} FROM {tables}{condition}{own_limit}) AS {ALIAS_PREFIX}rows LIMIT {limit}"
            ),
            None => format!("{with}SELECT {alias}.*{values} FROM {tables}{condition} ORDER BY 1 LIMIT {limit}"),
        }
    }

    fn count_query(&self) -> String {
        let Self { with, table, own_limit, .. } = self;
        let condition = self.condition_on_table();
        match own_limit {
            Some(own_limit) => format!(
                "{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM (SELECT 1 FROM {table}{condition}{own_limit}) AS {ALIAS_PREFIX}rows"
            ),
            None => format!("{with}SELECT count(*) AS {ALIAS_PREFIX}count FROM {table}{condition}"),
        }
    }

    fn plain_condition(&self) -> String {
        self.condition.as_ref().map_or(String::new(), |condition| format!(" WHERE {condition}"))
    }

    /// Returns the condition for the table alone, so that a row which several rows of the other tables match counts once.
    fn condition_on_table(&self) -> String {
        if self.other_tables.is_empty() {
            return self.plain_condition();
        }
        format!(" WHERE EXISTS (SELECT 1 FROM {}{})", self.other_tables.join(", "), self.plain_condition())
    }
}

fn own_limit(order_by: &[sqlparser::ast::OrderByExpr], limit: Option<&Expr>) -> Result<Option<String>, Reason> {
    let Some(limit) = limit else { return Ok(None) };
    if !matches!(limit, Expr::Value(_)) {
        return Err("its limit is not a number".to_owned());
    }
    let keys: Vec<String> = order_by.iter().map(ToString::to_string).collect();
    let order = if keys.is_empty() { String::new() } else { format!(" ORDER BY {}", keys.join(", ")) };
    Ok(Some(format!("{order} LIMIT {limit}")))
}

/// Returns the values that an assignment assigns, one for each column.
fn assigned_values(assignment: &Assignment) -> Vec<ColumnAssignment> {
    let value = |column: &ObjectName, expression: String| ColumnAssignment {
        column: column.to_string(),
        is_repeatable: is_repeatable(&expression),
        expression,
        alias: None,
    };
    match (&assignment.target, &assignment.value) {
        (AssignmentTarget::ColumnName(column), expression) => vec![value(column, expression.to_string())],
        (AssignmentTarget::Tuple(columns), Expr::Tuple(expressions)) if columns.len() == expressions.len() => {
            columns.iter().zip(expressions).map(|(column, expression)| value(column, expression.to_string())).collect()
        }
        (AssignmentTarget::Tuple(columns), expression) => {
            let columns: Vec<String> = columns.iter().map(ToString::to_string).collect();
            let column = format!("({})", columns.join(", "));
            // A row cannot be one column of a query.
            vec![ColumnAssignment {
                column,
                expression: format!("ROW {expression}"),
                alias: None,
                is_repeatable: false,
            }]
        }
    }
}

/// Words of functions whose value differs from call to call.
const UNREPEATABLE_WORDS: &[&str] = &[
    "age",
    "changes",
    "clock_timestamp",
    "curdate",
    "current_date",
    "current_time",
    "current_timestamp",
    "curtime",
    "date",
    "datetime",
    "gen_random_uuid",
    "julianday",
    "localtime",
    "localtimestamp",
    "now",
    "rand",
    "random",
    "randomblob",
    "statement_timestamp",
    "strftime",
    "sysdate",
    "time",
    "timeofday",
    "timestamp",
    "today",
    "transaction_timestamp",
    "unix_timestamp",
    "unixepoch",
    "utc_date",
    "utc_time",
    "utc_timestamp",
    "uuid",
];

/// Returns `true` if no word of the expression names a function whose value differs from call to call.
fn is_repeatable(expression: &str) -> bool {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    !words.map(str::to_ascii_lowercase).any(|word| UNREPEATABLE_WORDS.contains(&word.as_str()))
}

/// Returns `true` for the default of a column, which only the database knows.
fn is_default(expression: &str) -> bool {
    expression.eq_ignore_ascii_case("default")
}
