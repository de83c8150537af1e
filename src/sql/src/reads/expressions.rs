//! Expressions of a query, and its clauses that consist of expressions.

use sqlparser::ast::{
    AccessExpr, BinaryOperator, CaseWhen, DataType, Distinct, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArguments, GroupByExpr, GroupByWithModifier, Ident, InTarget, LimitClause,
    NamedWindowDefinition, NamedWindowExpr, ObjectName, ObjectNamePart, OrderBy, OrderByExpr, OrderByKind, OrderBySort,
    SelectItem, SelectItemQualifiedWildcardKind, Subscript, TypedString, UnaryOperator, Value,
    WildcardAdditionalOptions, WindowFrameBound, WindowSpec, WindowType,
};

use super::{Check, QueryChecker, values::is_literal};
use crate::{Dialect, names::unquote};

impl QueryChecker {
    pub(super) fn check_expressions(&mut self, expressions: &[Expr]) -> Check {
        expressions.iter().try_for_each(|expression| self.check_expression(expression))
    }

    pub(super) fn check_optional_expression(&mut self, expression: Option<&Expr>) -> Check {
        expression.map_or(Ok(()), |expression| self.check_expression(expression))
    }

    #[expect(clippy::too_many_lines, reason = "one arm for each kind of expression")]
    pub(super) fn check_expression(&mut self, expression: &Expr) -> Check {
        match expression {
            Expr::Wildcard(_) | Expr::QualifiedWildcard(..) => Ok(()),
            Expr::Value(value) => {
                // In MySQL, a setting decides whether it is a name.
                if let Value::DoubleQuotedString(text) = &value.value {
                    self.add_column(&Ident::with_quote('"', text));
                }
                self.repeatability.check_literal(&value.value)
            }
            Expr::Identifier(name) => self.check_column(std::slice::from_ref(name)),
            Expr::CompoundIdentifier(parts) => {
                self.check_column(parts)?;
                if let [.., table, column] = parts.as_slice() {
                    self.qualified_names.push((self.exact_name(table), self.exact_name(column)));
                }
                Ok(())
            }
            Expr::CompoundFieldAccess { root, access_chain } => {
                self.check_expression(root)?;
                access_chain.iter().try_for_each(|access| self.check_access(access))
            }
            Expr::IsFalse(inner)
            | Expr::IsNotFalse(inner)
            | Expr::IsTrue(inner)
            | Expr::IsNotTrue(inner)
            | Expr::IsNull(inner)
            | Expr::IsNotNull(inner)
            | Expr::IsUnknown(inner)
            | Expr::IsNotUnknown(inner)
            | Expr::Nested(inner)
            | Expr::IsNormalized { expr: inner, form: _, negated: _ }
            | Expr::Extract { field: _, syntax: _, expr: inner }
            | Expr::Ceil { expr: inner, field: _ }
            | Expr::Floor { expr: inner, field: _ }
            | Expr::Collate { expr: inner, collation: _ } => self.check_expression(inner),
            // In PostgreSQL, `_name '{}'` is a literal of an array type, perhaps of a domain whose check calls a function.
            Expr::Prefixed { prefix: _, value } if self.dialect != Dialect::Postgres => self.check_expression(value),
            Expr::IsDistinctFrom(left, right)
            | Expr::IsNotDistinctFrom(left, right)
            | Expr::AtTimeZone { timestamp: left, time_zone: right }
            | Expr::Position { expr: left, r#in: right }
            | Expr::RLike { negated: _, expr: left, pattern: right, regexp: _ } => {
                self.check_expression_pair(left, right)
            }
            Expr::BinaryOp { left, op, right }
            | Expr::AnyOp { left, compare_op: op, right, is_some: _ }
            | Expr::AllOp { left, compare_op: op, right } => {
                check_operator(op)?;
                self.check_expression_pair(left, right)
            }
            Expr::UnaryOp { op, expr } => {
                if !matches!(
                    op,
                    UnaryOperator::Plus | UnaryOperator::Minus | UnaryOperator::Not | UnaryOperator::BitwiseNot
                ) {
                    return Err(format!("it uses the operator {op}"));
                }
                self.check_expression(expr)
            }
            Expr::Like { negated: _, any: false, expr, pattern, escape_char }
            | Expr::ILike { negated: _, any: false, expr, pattern, escape_char }
            | Expr::SimilarTo { negated: _, expr, pattern, escape_char } => {
                self.check_expression(expr)?;
                // PostgreSQL never takes the text of a pattern for a time. In MySQL, it may be a name.
                if self.dialect != Dialect::Postgres || !matches!(pattern.as_ref(), Expr::Value(_)) {
                    self.check_expression(pattern)?;
                }
                self.check_optional_expression(escape_char.as_deref())
            }
            Expr::In { expr, target, negated: _, global: false } => {
                self.check_expression(expr)?;
                match target {
                    InTarget::List(list) => self.check_expressions(list),
                    InTarget::Subquery(subquery) => self.check_query(subquery),
                    InTarget::Unnest(_) | InTarget::Table { .. } => Err("it has an unknown form of IN".to_owned()),
                }
            }
            Expr::Between { expr, negated: _, low, high } => {
                self.check_expression(expr)?;
                self.check_expression_pair(low, high)
            }
            Expr::Cast { kind: _, expr, data_type, format: None } => {
                self.check_data_type(data_type)?;
                self.repeatability.check_cast(expr, data_type)?;
                // A literal that is cast to text is not taken for a time in PostgreSQL. In MySQL, it may be a name.
                if self.dialect == Dialect::Postgres
                    && is_literal(expr)
                    && matches!(data_type, DataType::Text | DataType::Varchar(_))
                {
                    return Ok(());
                }
                self.check_expression(expr)
            }
            Expr::Convert { is_try: false, expr, data_type, charset: _, target_before_value: false, styles } => {
                if let Some(data_type) = data_type {
                    self.check_data_type(data_type)?;
                }
                self.check_expression(expr)?;
                self.check_expressions(styles)
            }
            Expr::TypedString(TypedString { data_type, value, uses_odbc_syntax: false }) => {
                self.repeatability.check_literal(&value.value)?;
                self.check_data_type(data_type)
            }
            Expr::Substring { expr, substring_from, substring_for, special: _, shorthand: _ } => {
                self.check_expression(expr)?;
                self.check_optional_expression(substring_from.as_deref())?;
                self.check_optional_expression(substring_for.as_deref())
            }
            Expr::Trim { trim_where: _, trim_what, expr, trim_characters } => {
                self.check_expression(expr)?;
                self.check_optional_expression(trim_what.as_deref())?;
                self.check_expressions(trim_characters.as_deref().unwrap_or_default())
            }
            Expr::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                self.check_expression_pair(expr, overlay_what)?;
                self.check_expression(overlay_from)?;
                self.check_optional_expression(overlay_for.as_deref())
            }
            Expr::Function(function) => self.check_function(function),
            Expr::Case { case_token: _, end_token: _, operand, conditions, else_result } => {
                self.check_optional_expression(operand.as_deref())?;
                for CaseWhen { condition, result } in conditions {
                    self.check_expression_pair(condition, result)?;
                }
                self.check_optional_expression(else_result.as_deref())
            }
            Expr::Exists { subquery, negated: _ } | Expr::Subquery(subquery) => self.check_query(subquery),
            Expr::GroupingSets(sets) | Expr::Cube(sets) | Expr::Rollup(sets) => {
                sets.iter().try_for_each(|set| self.check_expressions(set))
            }
            Expr::Tuple(list) => self.check_expressions(list),
            Expr::Array(array) => self.check_expressions(&array.elem),
            Expr::Interval(interval) => self.check_expression(&interval.value),
            Expr::MatchAgainst { columns, .. } if self.dialect == Dialect::Mysql => {
                columns.iter().for_each(|column| self.add_named_column(column));
                Ok(())
            }
            _ => Err("it contains an unknown kind of expression".to_owned()),
        }
    }

    fn check_column(&mut self, parts: &[Ident]) -> Check {
        parts.last().into_iter().for_each(|column| self.add_column(column));
        if let [column] = parts
            && column.quote_style == Some('"')
        {
            self.names.quoted_columns.insert(unquote(column).to_lowercase());
        }
        self.repeatability.check_column(parts)
    }

    fn add_column(&mut self, column: &Ident) {
        self.names.columns.insert(unquote(column).to_lowercase());
    }

    /// Records a column that is named outside of expressions.
    pub(super) fn add_named_column(&mut self, name: &ObjectName) {
        name.0.last().and_then(ObjectNamePart::as_ident).into_iter().for_each(|column| self.add_column(column));
    }

    fn check_expression_pair(&mut self, left: &Expr, right: &Expr) -> Check {
        self.check_expression(left)?;
        self.check_expression(right)
    }

    /// Checks an access to an element of an array. The access to a field can call a function in PostgreSQL.
    fn check_access(&mut self, access: &AccessExpr) -> Check {
        match access {
            AccessExpr::Dot(_) => Err("the access to a field may call a function".to_owned()),
            AccessExpr::Subscript(Subscript::Index { index }) => self.check_expression(index),
            AccessExpr::Subscript(Subscript::Slice { lower_bound, upper_bound, stride }) => {
                self.check_optional_expression(lower_bound.as_ref())?;
                self.check_optional_expression(upper_bound.as_ref())?;
                self.check_optional_expression(stride.as_ref())
            }
        }
    }

    pub(super) fn check_data_type(&self, data_type: &DataType) -> Check {
        let name = data_type.to_string().to_ascii_lowercase();
        if self.dialect.is_builtin_type(&name) { Ok(()) } else { Err(format!("the type {name} is not built in")) }
    }

    /// Checks the function of a call.
    pub(super) fn check_call(&mut self, name: &ObjectName, arguments: &[FunctionArg]) -> Check {
        let is_harmless = match name.0.as_slice() {
            [ObjectNamePart::Identifier(function)] => self.is_harmless(function),
            [ObjectNamePart::Identifier(schema), ObjectNamePart::Identifier(function)] => {
                self.dialect == Dialect::Postgres
                    && self.exact_name(schema) == "pg_catalog"
                    && self.is_harmless(function)
            }
            _ => false,
        };
        if !is_harmless {
            return Err(format!("the function {name} may do more than read the data"));
        }
        self.repeatability.check_call(name, arguments)
    }

    fn is_harmless(&self, function: &Ident) -> bool {
        self.dialect.is_harmless_function(&self.exact_name(function))
    }

    fn check_function(&mut self, function: &Function) -> Check {
        let Function { name, uses_odbc_syntax, parameters, args, within_group, filter, null_treatment: _, over } =
            function;
        let arguments = match args {
            FunctionArguments::List(list) => list.args.as_slice(),
            FunctionArguments::None | FunctionArguments::Subquery(_) => &[],
        };
        self.check_call(name, arguments)?;
        if *uses_odbc_syntax || *parameters != FunctionArguments::None {
            return Err(format!("the call of {name} has unknown clauses"));
        }
        match args {
            FunctionArguments::None => {}
            FunctionArguments::Subquery(subquery) => self.check_query(subquery)?,
            FunctionArguments::List(list) => {
                self.check_function_arguments(&list.args)?;
                for clause in &list.clauses {
                    match clause {
                        FunctionArgumentClause::OrderBy(order) => self.check_sort_keys(order)?,
                        FunctionArgumentClause::Separator(_) | FunctionArgumentClause::IgnoreOrRespectNulls(_) => {}
                        _ => return Err(format!("the call of {name} has unknown clauses")),
                    }
                }
            }
        }
        self.check_sort_keys(within_group)?;
        self.check_optional_expression(filter.as_deref())?;
        match over {
            Some(WindowType::WindowSpec(window)) => self.check_window(window),
            Some(WindowType::NamedWindow(_)) | None => Ok(()),
        }
    }

    pub(super) fn check_function_arguments(&mut self, arguments: &[FunctionArg]) -> Check {
        for argument in arguments {
            let argument = match argument {
                FunctionArg::Named { name: _, arg, operator: _ } | FunctionArg::Unnamed(arg) => arg,
                FunctionArg::ExprNamed { name, arg, operator: _ } => {
                    self.check_expression(name)?;
                    arg
                }
            };
            match argument {
                FunctionArgExpr::Expr(expression) => self.check_expression(expression)?,
                FunctionArgExpr::QualifiedWildcard(_) | FunctionArgExpr::Wildcard => {}
                _ => return Err("a call has an unknown form of argument".to_owned()),
            }
        }
        Ok(())
    }

    fn check_window(&mut self, window: &WindowSpec) -> Check {
        let WindowSpec { window_name: _, partition_by, order_by, window_frame } = window;
        self.check_expressions(partition_by)?;
        self.check_sort_keys(order_by)?;
        let bounds = window_frame.iter().flat_map(|frame| std::iter::once(&frame.start_bound).chain(&frame.end_bound));
        for bound in bounds {
            match bound {
                WindowFrameBound::CurrentRow => {}
                WindowFrameBound::Preceding(offset) | WindowFrameBound::Following(offset) => {
                    self.check_optional_expression(offset.as_deref())?
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_named_window(&mut self, window: &NamedWindowDefinition) -> Check {
        match &window.1 {
            NamedWindowExpr::NamedWindow(_) => Ok(()),
            NamedWindowExpr::WindowSpec(window) => self.check_window(window),
        }
    }

    pub(super) fn check_order_by(&mut self, order_by: &OrderBy) -> Check {
        match order_by {
            OrderBy { kind: OrderByKind::Expressions(keys), interpolate: None } => self.check_sort_keys(keys),
            _ => Err("it has an unknown form of ORDER BY".to_owned()),
        }
    }

    fn check_sort_keys(&mut self, keys: &[OrderByExpr]) -> Check {
        for OrderByExpr { expr, options, with_fill } in keys {
            if with_fill.is_some() || !matches!(options.sort, None | Some(OrderBySort::Asc | OrderBySort::Desc)) {
                return Err("it has an unknown form of ORDER BY".to_owned());
            }
            self.check_expression(expr)?;
        }
        Ok(())
    }

    pub(super) fn check_group_by(&mut self, group_by: &GroupByExpr) -> Check {
        match group_by {
            GroupByExpr::Expressions(keys, modifiers)
                if modifiers.iter().all(|m| *m == GroupByWithModifier::Rollup) =>
            {
                self.check_expressions(keys)
            }
            _ => Err("it has an unknown form of GROUP BY".to_owned()),
        }
    }

    pub(super) fn check_distinct(&mut self, distinct: Option<&Distinct>) -> Check {
        match distinct {
            Some(Distinct::On(keys)) => self.check_expressions(keys),
            Some(Distinct::All | Distinct::Distinct) | None => Ok(()),
        }
    }

    pub(super) fn check_limit(&mut self, limit: &LimitClause) -> Check {
        match limit {
            LimitClause::LimitOffset { limit, offset, limit_by } => {
                self.check_optional_expression(limit.as_ref())?;
                self.check_optional_expression(offset.as_ref().map(|offset| &offset.value))?;
                self.check_expressions(limit_by)
            }
            LimitClause::OffsetCommaLimit { offset, limit } => self.check_expression_pair(offset, limit),
        }
    }

    pub(super) fn check_select_item(&mut self, item: &SelectItem) -> Check {
        match item {
            SelectItem::UnnamedExpr(expression) => self.check_expression(expression),
            SelectItem::ExprWithAlias { expr, alias } => {
                self.repeatability.add_alias(alias, expr);
                self.check_expression(expr)
            }
            SelectItem::QualifiedWildcard(kind, options) => {
                check_wildcard(options)?;
                match kind {
                    SelectItemQualifiedWildcardKind::ObjectName(_) => Ok(()),
                    SelectItemQualifiedWildcardKind::Expr(expression) => self.check_expression(expression),
                }
            }
            SelectItem::Wildcard(options) => check_wildcard(options),
            SelectItem::ExprWithAliases { .. } => Err("it selects in an unknown form".to_owned()),
        }
    }
}

fn check_wildcard(options: &WildcardAdditionalOptions) -> Check {
    match options {
        WildcardAdditionalOptions {
            wildcard_token: _,
            opt_ilike: None,
            opt_exclude: None,
            opt_except: None,
            opt_replace: None,
            opt_rename: None,
            opt_alias: _,
        } => Ok(()),
        _ => Err("it selects in an unknown form".to_owned()),
    }
}

/// Rejects assignments and operators that only users define.
fn check_operator(operator: &BinaryOperator) -> Check {
    match operator {
        BinaryOperator::Assignment | BinaryOperator::Custom(_) | BinaryOperator::PGCustomBinaryOperator(_) => {
            Err(format!("it uses the operator {operator}"))
        }
        _ => Ok(()),
    }
}
