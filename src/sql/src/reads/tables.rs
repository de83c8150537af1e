//! Tables, functions and other sources of rows in a query.

use sqlparser::ast::{
    FunctionArg, Ident, Join, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart, TableAlias, TableFactor,
    TableFunctionArgs, TableWithJoins,
};

use super::{Check, QueryChecker, is_read_without_value, last_part, pragma_reason, values::argument_value};
use crate::{Dialect, names::unquote};

/// Words that PostgreSQL takes for functions in a FROM clause, unless they are in quotes.
pub(super) const KEYWORD_FUNCTIONS: &[&str] = &[
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "localtime",
    "localtimestamp",
    "session_user",
    "system_user",
    "user",
];

/// Names of virtual tables that read files, in the shell and the extensions of SQLite.
const FILE_TABLES: &[&str] = &["fsdir", "zipfile", "csv"];

/// Bytes after which PostgreSQL cuts off a name.
const MAX_NAME_BYTES: usize = 63;

/// A source of rows in a FROM clause.
pub(super) struct RowSource {
    pub(super) name: String,
    /// The known columns of a function. `None` for a table or a query, because only user-defined functions take rows of these.
    columns: Option<Vec<String>>,
}

impl RowSource {
    pub(super) fn may_have_column(&self, name: &str) -> bool {
        self.columns.as_ref().is_none_or(|columns| columns.iter().any(|column| column == name))
    }
}

impl QueryChecker {
    pub(super) fn check_table_with_joins(&mut self, table: &TableWithJoins) -> Check {
        self.check_table(&table.relation)?;
        table.joins.iter().try_for_each(|join| self.check_join(join))
    }

    fn check_join(&mut self, join: &Join) -> Check {
        let Join { relation, global: _, join_operator } = join;
        self.check_table(relation)?;
        let constraint = match join_operator {
            JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint)
            | JoinOperator::Right(constraint)
            | JoinOperator::RightOuter(constraint)
            | JoinOperator::FullOuter(constraint)
            | JoinOperator::CrossJoin(constraint)
            | JoinOperator::StraightJoin(constraint) => constraint,
            _ => return Err("it has an unknown kind of join".to_owned()),
        };
        match constraint {
            JoinConstraint::On(condition) => self.check_expression(condition),
            JoinConstraint::UsingAlias(columns, alias) => {
                columns.iter().for_each(|column| self.add_named_column(column));
                self.add_row_source(Some(alias));
                Ok(())
            }
            JoinConstraint::Using(columns) => {
                columns.iter().for_each(|column| self.add_named_column(column));
                Ok(())
            }
            JoinConstraint::Natural | JoinConstraint::None => Ok(()),
        }
    }

    fn check_table(&mut self, table: &TableFactor) -> Check {
        match table {
            TableFactor::Table {
                name,
                alias,
                args,
                with_hints,
                version: None,
                with_ordinality: _,
                partitions: _,
                json_path: None,
                sample: None,
                index_directives: _,
                inheritance: _,
            } if with_hints.is_empty() => match args {
                Some(TableFunctionArgs { args, settings: None }) => {
                    self.check_table_function(name, args, alias.as_ref())
                }
                Some(_) => Err("it has unknown clauses".to_owned()),
                None => {
                    self.check_alias(alias.as_ref())?;
                    let own_name = name.0.last().and_then(ObjectNamePart::as_ident);
                    self.names.tables.extend(own_name.map(|name| unquote(name).to_lowercase()));
                    self.add_row_source(alias.as_ref().map(|alias| &alias.name).or(own_name));
                    self.check_table_name(name)
                }
            },
            TableFactor::Derived { lateral: _, subquery, alias, sample: None } => {
                self.check_alias(alias.as_ref())?;
                self.add_row_source(alias.as_ref().map(|alias| &alias.name));
                self.repeatability.add_query(alias.as_ref(), &subquery.body);
                self.check_query(subquery)
            }
            TableFactor::Function { lateral: _, name, args, with_ordinality: _, alias } => {
                self.check_table_function(name, args, alias.as_ref())
            }
            TableFactor::UNNEST {
                alias,
                array_exprs,
                with_offset: false,
                with_offset_alias: None,
                with_ordinality: _,
            } => {
                self.check_alias(alias.as_ref())?;
                self.check_expressions(array_exprs)?;
                self.repeatability.add_function(array_exprs.iter().map(Some));
                self.add_table_function(&ObjectName::from(vec!["unnest".into()]), alias.as_ref())
            }
            TableFactor::NestedJoin { table_with_joins, alias } => {
                self.check_alias(alias.as_ref())?;
                self.add_row_source(alias.as_ref().map(|alias| &alias.name));
                self.check_table_with_joins(table_with_joins)
            }
            _ => Err("it reads from an unknown kind of table".to_owned()),
        }
    }

    /// Checks a call of a function in the FROM clause.
    fn check_table_function(&mut self, name: &ObjectName, args: &[FunctionArg], alias: Option<&TableAlias>) -> Check {
        self.check_alias(alias)?;
        self.check_call(name, args)?;
        self.check_function_arguments(args)?;
        self.repeatability.add_function(args.iter().map(argument_value));
        self.add_table_function(name, alias)
    }

    fn check_table_name(&mut self, name: &ObjectName) -> Check {
        self.repeatability.check_table(name)?;
        let table = last_part(name).ok_or("it reads from an unknown kind of table")?;
        match self.dialect {
            Dialect::Postgres if is_unquoted_word(name) && KEYWORD_FUNCTIONS.contains(&table.as_str()) => {
                Err(format!("{table} is a function, not a table"))
            }
            Dialect::Sqlite if FILE_TABLES.contains(&table.as_str()) => {
                Err(format!("the table {table} may read files"))
            }
            Dialect::Sqlite => match table.strip_prefix("pragma_") {
                Some(pragma) if !is_read_without_value(pragma) => Err(pragma_reason(pragma)),
                _ => Ok(()),
            },
            Dialect::Postgres | Dialect::Mysql => Ok(()),
        }
    }

    /// Records the name of a table, a query or a join in the FROM clause.
    fn add_row_source(&mut self, name: Option<&Ident>) {
        if let Some(name) = name {
            self.row_sources.push(RowSource { name: self.exact_name(name), columns: None });
        }
    }

    /// Records the name and the columns of a function in the FROM clause.
    fn add_table_function(&mut self, function: &ObjectName, alias: Option<&TableAlias>) -> Check {
        let function = last_part(function).ok_or("it calls an unknown function")?;
        let name = alias.map_or_else(|| function.clone(), |alias| self.exact_name(&alias.name));
        let mut columns: Vec<String> =
            alias.iter().flat_map(|alias| &alias.columns).map(|column| self.exact_name(&column.name)).collect();
        columns.extend(own_columns(&function, &name).iter().skip(columns.len()).map(|&column| column.to_owned()));
        if self.dialect == Dialect::Postgres {
            // How PostgreSQL folds the case of other letters depends on the encoding, and it cuts off longer names. So another name
            // may mean this function.
            if !name.is_ascii() || name.len() >= MAX_NAME_BYTES {
                return Err(format!("another name may mean the function {name}"));
            }
            columns.retain(|column| column.is_ascii());
        }
        self.row_sources.push(RowSource { name, columns: Some(columns) });
        Ok(())
    }

    /// Checks the types of the columns that an alias declares.
    pub(super) fn check_alias(&self, alias: Option<&TableAlias>) -> Check {
        let Some(TableAlias { explicit: _, name: _, columns, at: None }) = alias else {
            return if alias.is_none() { Ok(()) } else { Err("it has unknown clauses".to_owned()) };
        };
        columns
            .iter()
            .filter_map(|column| column.data_type.as_ref())
            .try_for_each(|data_type| self.check_data_type(data_type))
    }
}

/// Returns the known columns of a function that its alias does not name, where `source` is the alias or the function. A
/// single column has the name of the output parameter of the function, or else that of the source.
fn own_columns<'a>(function: &str, source: &'a str) -> Vec<&'a str> {
    match function {
        "json_each" | "json_each_text" | "jsonb_each" | "jsonb_each_text" => vec!["key", "value"],
        "json_array_elements" | "json_array_elements_text" | "jsonb_array_elements" | "jsonb_array_elements_text" => {
            vec!["value"]
        }
        "generate_series"
        | "generate_subscripts"
        | "json_object_keys"
        | "jsonb_object_keys"
        | "jsonb_path_query"
        | "regexp_split_to_table"
        | "string_to_table"
        | "unnest" => vec![source],
        _ => Vec::new(),
    }
}

/// Returns `true` for a name that has no schema and no quotes.
fn is_unquoted_word(name: &ObjectName) -> bool {
    matches!(name.0.as_slice(), [ObjectNamePart::Identifier(word)] if word.quote_style.is_none())
}
