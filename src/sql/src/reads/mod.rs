//! Decides whether a statement only reads. Every node of it must be one that is known to change nothing.
//!
//! The checker visits the nodes of a query (`tables`, `expressions`). It passes them on to `repeatability`, which decides whether
//! the result depends on the data alone.

mod expressions;
mod present_time;
mod repeatability;
mod tables;
mod values;

use std::collections::BTreeSet;

use sqlparser::{
    ast::{
        DescribeAlias, Expr, Ident, ObjectName, ObjectNamePart, Query, Select, SelectFlavor, SetExpr,
        ShowStatementFilter, ShowStatementFilterPosition, ShowStatementOptions, Statement, UtilityOption, With,
    },
    keywords::Keyword,
};

pub use self::present_time::replace_times_and_random_values;
use self::{present_time::replace_compared_time, repeatability::Repeatability, tables::RowSource};
use crate::{
    Dialect,
    names::{exact_name, unquote},
    text::{self, ParsedStatement},
};

/// The reason why a statement is not a read.
pub type Reason = String;
type Check = Result<(), Reason>;

/// A query with one of these keywords does not count as a read, even if the parser takes the keyword for a name. Every query
/// that writes by itself contains one; functions are checked separately.
const WRITING_KEYWORDS: &[Keyword] = &[
    Keyword::INSERT,
    Keyword::UPDATE,
    Keyword::DELETE,
    Keyword::MERGE,
    Keyword::INTO,
    Keyword::CREATE,
    Keyword::ALTER,
    Keyword::DROP,
    Keyword::TRUNCATE,
    Keyword::COPY,
    Keyword::CALL,
    Keyword::EXECUTE,
    Keyword::GRANT,
    Keyword::REVOKE,
    Keyword::LOCK,
    Keyword::LOAD,
];

/// Pragmas of SQLite that read, and whose argument only selects what they read.
const READING_PRAGMAS: &[&str] =
    &["table_info", "table_xinfo", "index_list", "index_info", "index_xinfo", "foreign_key_list", "table_list"];
/// Pragmas of SQLite that read unless they are given a value.
const VALUELESS_PRAGMAS: &[&str] = &[
    "application_id",
    "cache_size",
    "collation_list",
    "compile_options",
    "database_list",
    "encoding",
    "foreign_keys",
    "freelist_count",
    "function_list",
    "module_list",
    "page_count",
    "page_size",
    "pragma_list",
    "schema_version",
    "synchronous",
    "user_version",
];

/// Returns `Ok` if the statement only reads.
///
/// # Errors
/// Returns the reason why it may do more.
pub fn check(dialect: Dialect, parsed: &ParsedStatement) -> Check {
    let checker = QueryChecker::new(dialect, Repeatability::optional(dialect));
    match &parsed.statement {
        Statement::Query(query) => checker.check_whole_query(query, &parsed.keywords),
        Statement::Explain {
            describe_alias: _,
            analyze: false,
            verbose: _,
            query_plan: _,
            estimate: false,
            statement,
            format: _,
            options,
        } => {
            options.iter().flatten().try_for_each(check_explain_option)?;
            let Statement::Query(query) = statement.as_ref() else {
                return Err("it explains a statement that is not a query".to_owned());
            };
            checker.check_whole_query(query, &parsed.keywords)
        }
        Statement::Explain { .. } => Err("EXPLAIN ANALYZE runs the statement".to_owned()),
        Statement::Pragma { name, value, is_eq } if dialect == Dialect::Sqlite => {
            let name = last_part(name).ok_or("it is an unknown pragma")?;
            let is_read = match (value, is_eq) {
                (None, _) => is_read_without_value(&name),
                (Some(_), false) => READING_PRAGMAS.contains(&name.as_str()),
                (Some(_), true) => false,
            };
            if is_read { Ok(()) } else { Err(pragma_reason(&name)) }
        }
        other => check_show(dialect, other),
    }
}

/// Returns `true` if the text is one statement that only reads. It needs a thread with a large stack ([`crate::classify`]).
pub fn is_single_read(dialect: Dialect, text: &str) -> bool {
    parse_single(dialect, text).is_ok_and(|parsed| check(dialect, &parsed).is_ok())
}

fn parse_single(dialect: Dialect, text: &str) -> Result<ParsedStatement, Reason> {
    match text::split(dialect, text)?.as_slice() {
        [piece] => piece.parse(dialect),
        _ => Err("it is not one statement".to_owned()),
    }
}

/// Checks that the text is one query that only reads, and whose result depends on the data alone, apart from one comparison of
/// a column with the present time. The table `changed_table` counts as an ordinary one, whatever its name. The check needs a
/// thread with a large stack ([`crate::classify`]).
///
/// # Errors
/// Returns the reason why the result may be another one when the query runs again, or when a statement contains it.
pub fn check_repeatable(dialect: Dialect, changed_table: Option<&ObjectName>, text: &str) -> Check {
    let ParsedStatement { statement: Statement::Query(mut query), keywords } = parse_single(dialect, text)? else {
        return Err("it is not a query".to_owned());
    };
    replace_compared_time(dialect, &mut query);
    QueryChecker::new(dialect, Repeatability::required(dialect, changed_table)).check_whole_query(&query, &keywords)
}

/// The names that a part of a statement uses, in lower case and without quotes.
#[derive(Default)]
pub struct UsedNames {
    /// The tables and CTEs that it reads, without their schemas.
    pub tables: BTreeSet<String>,
    /// The columns, without the names of their tables.
    pub columns: BTreeSet<String>,
    /// The columns in double quotes without a table, for which SQLite takes a text if there is no such column.
    pub quoted_columns: BTreeSet<String>,
    /// It is a query or contains one.
    pub has_query: bool,
}

impl UsedNames {
    /// Returns the names in an expression, or `None` if it is not known to only read.
    pub fn in_expression(dialect: Dialect, expression: &Expr) -> Option<Self> {
        Self::collect(dialect, |checker| checker.check_expression(expression))
    }

    /// Returns the names in these CTEs and this query, or `None` if they are not known to only read.
    pub fn in_query(dialect: Dialect, with: Option<&With>, query: Option<&Query>) -> Option<Self> {
        Self::collect(dialect, |checker| {
            with.map_or(Ok(()), |with| checker.check_ctes(with))?;
            query.map_or(Ok(()), |query| checker.check_query(query))
        })
    }

    fn collect(dialect: Dialect, check: impl FnOnce(&mut QueryChecker) -> Check) -> Option<Self> {
        let mut checker = QueryChecker::new(dialect, Repeatability::optional(dialect));
        check(&mut checker).ok()?;
        Some(checker.names)
    }
}

/// Checks the statements that show settings and definitions. They change nothing in PostgreSQL and MySQL.
fn check_show(dialect: Dialect, statement: &Statement) -> Check {
    let is_read = match (dialect, statement) {
        (Dialect::Postgres | Dialect::Mysql, Statement::ShowVariable { .. })
        | (
            Dialect::Mysql,
            Statement::ShowCreate { .. } | Statement::ShowProcessList { .. } | Statement::ShowCharset(_),
        ) => true,
        (
            Dialect::Mysql,
            Statement::ExplainTable { describe_alias, hive_format: None, has_table_keyword: false, table_name: _ },
        ) => matches!(describe_alias, DescribeAlias::Describe | DescribeAlias::Desc),
        (
            Dialect::Mysql,
            Statement::ShowStatus { filter, .. }
            | Statement::ShowVariables { filter, .. }
            | Statement::ShowCollation { filter },
        ) => filter.as_ref().is_none_or(is_pattern),
        (
            Dialect::Mysql,
            Statement::ShowColumns { show_options, .. }
            | Statement::ShowTables { show_options, .. }
            | Statement::ShowDatabases { show_options, .. },
        ) => {
            let ShowStatementOptions { show_in: _, starts_with: None, limit: None, limit_from: None, filter_position } =
                show_options
            else {
                return Err("it is an unknown form of SHOW".to_owned());
            };
            filter_position.as_ref().is_none_or(|position| match position {
                ShowStatementFilterPosition::Infix(filter) | ShowStatementFilterPosition::Suffix(filter) => {
                    is_pattern(filter)
                }
            })
        }
        _ => false,
    };
    if is_read { Ok(()) } else { Err("it is not a query".to_owned()) }
}

fn is_pattern(filter: &ShowStatementFilter) -> bool {
    matches!(filter, ShowStatementFilter::Like(_))
}

fn refuse_writing_keywords(keywords: &[Keyword]) -> Check {
    match keywords.iter().find(|keyword| WRITING_KEYWORDS.contains(keyword)) {
        Some(keyword) => Err(format!("it contains {keyword:?}")),
        None => Ok(()),
    }
}

fn check_explain_option(option: &UtilityOption) -> Check {
    let UtilityOption { name, arg } = option;
    let is_harmless = ["verbose", "costs", "settings", "summary", "format"]
        .iter()
        .any(|known| name.value.eq_ignore_ascii_case(known));
    let is_constant = arg.as_ref().is_none_or(|arg| matches!(arg, Expr::Identifier(_) | Expr::Value(_)));
    if is_harmless && is_constant { Ok(()) } else { Err(format!("EXPLAIN has the option {name}")) }
}

/// Returns `true` if the pragma reads when it is given no value.
fn is_read_without_value(pragma: &str) -> bool {
    VALUELESS_PRAGMAS.contains(&pragma) || READING_PRAGMAS.contains(&pragma)
}

fn pragma_reason(pragma: &str) -> Reason {
    format!("the pragma {pragma} may change settings or data")
}

/// Returns the last part of a name in lower case.
fn last_part(name: &ObjectName) -> Option<String> {
    match name.0.last()? {
        ObjectNamePart::Identifier(part) => Some(unquote(part).to_ascii_lowercase()),
        ObjectNamePart::Function(_) => None,
    }
}

/// Checks the nodes of a query.
struct QueryChecker {
    dialect: Dialect,
    /// The sources of rows in FROM clauses.
    row_sources: Vec<RowSource>,
    /// Qualified names of columns: the last two parts.
    qualified_names: Vec<(String, String)>,
    names: UsedNames,
    repeatability: Repeatability,
}

impl QueryChecker {
    fn new(dialect: Dialect, repeatability: Repeatability) -> Self {
        let (row_sources, qualified_names) = (Vec::new(), Vec::new());
        Self { dialect, row_sources, qualified_names, names: UsedNames::default(), repeatability }
    }

    fn check_whole_query(mut self, query: &Query, keywords: &[Keyword]) -> Check {
        refuse_writing_keywords(keywords)?;
        self.check_query(query)?;
        self.repeatability.check_times(&self.names)?;
        self.check_qualified_names()
    }

    fn check_query(&mut self, query: &Query) -> Check {
        let Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        if !locks.is_empty() || for_clause.is_some() {
            return Err("it locks rows".to_owned());
        }
        if settings.is_some() || format_clause.is_some() || !pipe_operators.is_empty() {
            return Err("it has unknown clauses".to_owned());
        }
        self.names.has_query = true;
        if let Some(with) = with {
            self.check_ctes(with)?;
        }
        self.check_set_expression(body)?;
        if let Some(order_by) = order_by {
            self.check_order_by(order_by)?;
        }
        if let Some(limit) = limit_clause {
            self.check_limit(limit)?;
        }
        match fetch.as_ref().and_then(|fetch| fetch.quantity.as_ref()) {
            Some(quantity) => self.check_expression(quantity),
            None => Ok(()),
        }
    }

    fn check_ctes(&mut self, with: &With) -> Check {
        for cte in &with.cte_tables {
            if cte.from.is_some() {
                return Err("it has unknown clauses".to_owned());
            }
            self.check_alias(Some(&cte.alias))?;
            self.repeatability.add_query(Some(&cte.alias), &cte.query.body);
            self.check_query(&cte.query)?;
        }
        Ok(())
    }

    fn check_set_expression(&mut self, body: &SetExpr) -> Check {
        match body {
            SetExpr::Select(select) => self.check_select(select),
            SetExpr::Query(query) => self.check_query(query),
            SetExpr::SetOperation { left, op: _, set_quantifier: _, right } => {
                self.check_set_expression(left)?;
                self.check_set_expression(right)
            }
            SetExpr::Values(values) => values.rows.iter().try_for_each(|row| self.check_expressions(&row.content)),
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                Err("it changes data in a part of the query".to_owned())
            }
            SetExpr::Table(_) => Err("it has unknown clauses".to_owned()),
        }
    }

    fn check_select(&mut self, select: &Select) -> Check {
        let Select {
            select_token: _,
            optimizer_hints,
            distinct,
            select_modifiers: _,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from,
            lateral_views,
            prewhere,
            selection,
            connect_by,
            group_by,
            cluster_by,
            distribute_by,
            sort_by,
            having,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        if into.is_some() {
            return Err("SELECT INTO creates or writes something".to_owned());
        }
        let has_unknown_clause = !optimizer_hints.is_empty()
            || top.is_some()
            || exclude.is_some()
            || !lateral_views.is_empty()
            || prewhere.is_some()
            || !connect_by.is_empty()
            || !cluster_by.is_empty()
            || !distribute_by.is_empty()
            || !sort_by.is_empty()
            || qualify.is_some()
            || value_table_mode.is_some()
            || *flavor != SelectFlavor::Standard;
        if has_unknown_clause {
            return Err("it has unknown clauses".to_owned());
        }
        self.check_distinct(distinct.as_ref())?;
        from.iter().try_for_each(|table| self.check_table_with_joins(table))?;
        projection.iter().try_for_each(|item| self.check_select_item(item))?;
        self.check_optional_expression(selection.as_ref())?;
        self.check_group_by(group_by)?;
        self.check_optional_expression(having.as_ref())?;
        named_window.iter().try_for_each(|window| self.check_named_window(window))
    }

    /// Checks that every qualified name means a column. PostgreSQL takes `f.name` for `name(f)` where `f` is a function in
    /// FROM and has no such column; no other database does.
    fn check_qualified_names(&self) -> Check {
        let is_column = |(table, column): &(String, String)| {
            let mut sources = self.row_sources.iter().filter(|source| source.name == *table).peekable();
            sources.peek().is_some() && sources.all(|source| source.may_have_column(column))
        };
        match self.qualified_names.iter().find(|name| !is_column(name)) {
            Some((table, column)) if self.dialect == Dialect::Postgres => {
                Err(format!("{table}.{column} may call a function"))
            }
            _ => Ok(()),
        }
    }

    /// Returns a name as the database compares it.
    fn exact_name(&self, name: &Ident) -> String {
        exact_name(self.dialect, name)
    }
}

#[cfg(test)]
mod tests {
    use sqlparser::parser::Parser;

    use super::*;

    fn names_in(dialect: Dialect, expression: &str) -> UsedNames {
        let parsed = Parser::new(dialect.grammar()).try_with_sql(expression).unwrap().parse_expr().unwrap();
        UsedNames::in_expression(dialect, &parsed).unwrap()
    }

    #[test]
    fn subquery_is_no_word_in_a_text_or_name() {
        for text in ["id IN (select id FROM t)", "EXISTS (SELECT 1)"] {
            assert!(names_in(Dialect::Postgres, text).has_query, "{text}");
        }
        for text in ["status = 'select'", "\"select\" = 1", "selected", "data ->> 'selected_at' = 'x'"] {
            assert!(!names_in(Dialect::Postgres, text).has_query, "{text}");
        }
    }

    #[test]
    fn qualifier_of_a_column_is_not_taken_for_a_table() {
        let reads_table = |text: &str| names_in(Dialect::Sqlite, text).tables.contains("q");
        for text in
            ["(SELECT max(a) FROM q)", "(SELECT 1 FROM main.\"Q\" x)", "(SELECT 1 FROM 'q')", "(SELECT 1 FROM [q])"]
        {
            assert!(reads_table(text), "{text}");
        }
        for text in ["(SELECT a FROM r WHERE r.id = q.id)", "(SELECT a FROM r WHERE id = \"q\" . id)", "q + 1"] {
            assert!(!reads_table(text), "{text}");
        }
    }

    #[test]
    fn columns_are_found_wherever_they_are_named() {
        for (dialect, text, is_used) in [
            (Dialect::Postgres, "id < (SELECT x.Last_Value FROM ticket_no x)", true),
            (Dialect::Postgres, "id IN (SELECT id FROM x JOIN y USING (\"last_value\"))", true),
            (Dialect::Postgres, "last_value(id) OVER (ORDER BY id) = 'last_value'", false),
            (Dialect::Mysql, "\"last_value\" + 1", true),
            (Dialect::Mysql, "MATCH (x.last_value) AGAINST ('y')", true),
        ] {
            assert_eq!(names_in(dialect, text).columns.contains("last_value"), is_used, "{text}");
        }
    }
}
