//! Objects that a statement creates, alters or drops, and the queries that show their definitions.

use sqlparser::ast::{Ident, ObjectName, ObjectNamePart, ObjectType, Query, SchemaName, Statement};

use crate::{
    Dialect,
    names::{exact_name, unquote},
};

/// The kind of an object, which decides how its definition is queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectKind {
    /// A table, a view, an index or a sequence.
    Relation,
    Routine,
    Trigger,
    /// An object whose definition is not shown.
    Unknown,
}

/// An object of the schema.
pub struct SchemaObject<'a> {
    kind: ObjectKind,
    /// The name as the statement has it.
    pub name: String,
    /// The parts of the name, or `None` if one of them is a call of a function.
    parts: Option<Vec<&'a Ident>>,
}

impl<'a> SchemaObject<'a> {
    fn new(kind: ObjectKind, name: &'a ObjectName) -> Self {
        Self { kind, name: name.to_string(), parts: name.0.iter().map(ObjectNamePart::as_ident).collect() }
    }

    /// Returns the query for the definition of the object, or `None` if it is not shown.
    pub fn definition_query(&self, dialect: Dialect) -> Option<String> {
        let (schema, object) = match *self.parts.as_deref()? {
            [object] => (None, object),
            [schema, object] => (Some(schema), object),
            _ => return None,
        };
        match dialect {
            Dialect::Postgres => self.postgres_query(schema, object),
            Dialect::Sqlite => Some(sqlite_query(schema, object)),
            Dialect::Mysql => self.mysql_query(schema, object),
        }
    }

    fn postgres_query(&self, schema: Option<&Ident>, object: &Ident) -> Option<String> {
        let name = Dialect::Postgres.literal(&exact_name(Dialect::Postgres, object));
        match self.kind {
            ObjectKind::Relation => {
                let relation = format!("to_regclass({})", Dialect::Postgres.literal(&self.name));
                Some(format!(
                    "SELECT 'column' AS part, attname AS name, concat_ws(' ', format_type(atttypid, atttypmod), \
                     CASE WHEN attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(adbin, adrelid)) AS definition, \
                     attnum AS number FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum \
                     WHERE attrelid = {relation} AND attnum > 0 AND NOT attisdropped \
                     UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid), 10000 FROM pg_constraint \
                     WHERE conrelid = {relation} \
                     UNION ALL SELECT 'index', indexrelid::regclass::text, pg_get_indexdef(indexrelid), 10001 FROM pg_index \
                     WHERE {relation} IN (indrelid, indexrelid) \
                     UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(oid), 10002 FROM pg_trigger \
                     WHERE tgrelid = {relation} AND NOT tgisinternal \
                     UNION ALL SELECT 'view', relname, pg_get_viewdef(oid), 10003 FROM pg_class \
                     WHERE oid = {relation} AND relkind IN ('v', 'm') ORDER BY number, name"
                ))
            }
            ObjectKind::Routine => {
                let schema = postgres_schema(schema);
                Some(format!(
                    "SELECT proname AS name, pg_get_functiondef(p.oid) AS definition FROM pg_proc p JOIN pg_namespace n \
                     ON n.oid = pronamespace WHERE proname = {name} AND prokind IN ('f', 'p') AND {schema} ORDER BY p.oid"
                ))
            }
            ObjectKind::Trigger => Some(format!(
                "SELECT tgrelid::regclass::text AS name, pg_get_triggerdef(oid) AS definition FROM pg_trigger \
                 WHERE tgname = {name} AND NOT tgisinternal ORDER BY 1"
            )),
            ObjectKind::Unknown => None,
        }
    }

    fn mysql_query(&self, schema: Option<&Ident>, object: &Ident) -> Option<String> {
        let literal = |name: &Ident| Dialect::Mysql.literal(&unquote(name));
        let schema = schema.map_or("database()".to_owned(), literal);
        let name = literal(object);
        match self.kind {
            ObjectKind::Relation => Some(format!(
                "SELECT column_name AS name, column_type AS type, is_nullable AS nullable, column_default AS value, extra \
                 FROM information_schema.columns WHERE table_schema = {schema} AND table_name = {name} ORDER BY ordinal_position"
            )),
            ObjectKind::Routine => Some(format!(
                "SELECT routine_name AS name, routine_definition AS definition FROM information_schema.routines \
                 WHERE routine_schema = {schema} AND routine_name = {name}"
            )),
            ObjectKind::Trigger => Some(format!(
                "SELECT trigger_name AS name, action_statement AS definition FROM information_schema.triggers \
                 WHERE trigger_schema = {schema} AND trigger_name = {name}"
            )),
            ObjectKind::Unknown => None,
        }
    }
}

/// Returns a query for the statements that created the object and what belongs to it.
fn sqlite_query(schema: Option<&Ident>, object: &Ident) -> String {
    let schema = sqlite_schema_prefix(schema);
    let name = Dialect::Sqlite.literal(&unquote(object).to_ascii_lowercase());
    format!(
        "SELECT type, name, sql FROM {schema}sqlite_master WHERE lower(name) = {name} OR lower(tbl_name) = {name} \
         ORDER BY type DESC, name"
    )
}

/// Returns the schema before the name of a table in SQLite: its quoted name and a dot, or nothing if it is not named.
pub fn sqlite_schema_prefix(schema: Option<&Ident>) -> String {
    schema.map_or(String::new(), |schema| format!("{}.", Dialect::Sqlite.quote_name(&unquote(schema))))
}

fn postgres_schema(schema: Option<&Ident>) -> String {
    match schema {
        Some(schema) => format!("nspname = {}", Dialect::Postgres.literal(&exact_name(Dialect::Postgres, schema))),
        None => "nspname = ANY (current_schemas(false))".to_owned(),
    }
}

/// Returns the query whose rows the statement stores in the object that it creates.
pub fn stored_query(statement: &Statement) -> Option<&Query> {
    match statement {
        Statement::CreateTable(table) => table.query.as_deref(),
        Statement::CreateView(view) => Some(&*view.query).filter(|_| view.materialized),
        _ => None,
    }
}

/// Returns the objects that the statement creates, alters or drops: for a new index or trigger its table, and none for roles,
/// policies and others. Returns `None` if it is no such statement.
pub fn defined_objects(statement: &Statement) -> Option<Vec<SchemaObject<'_>>> {
    use ObjectKind::{Relation, Routine, Trigger, Unknown};
    let one = |kind, name| Some(vec![SchemaObject::new(kind, name)]);
    match statement {
        Statement::CreateTable(table) => one(Relation, &table.name),
        Statement::CreateView(view) => one(Relation, &view.name),
        Statement::AlterTable(table) => one(Relation, &table.name),
        Statement::AlterView(view) => one(Relation, &view.name),
        Statement::RefreshMaterializedView(view) => one(Relation, &view.name),
        Statement::CreateVirtualTable { name, .. }
        | Statement::CreateSequence { name, .. }
        | Statement::AlterIndex { name, .. } => one(Relation, name),
        Statement::CreateIndex(index) => one(Relation, &index.table_name),
        Statement::CreateFunction(function) => one(Routine, &function.name),
        Statement::CreateProcedure { name, .. } => one(Routine, name),
        Statement::CreateTrigger(trigger) => one(Relation, &trigger.table_name),
        Statement::DropTrigger(trigger) => one(Trigger, &trigger.trigger_name),
        Statement::DropFunction(drop) => {
            Some(drop.func_desc.iter().map(|function| SchemaObject::new(Routine, &function.name)).collect())
        }
        Statement::DropProcedure { proc_desc, .. } => {
            Some(proc_desc.iter().map(|procedure| SchemaObject::new(Routine, &procedure.name)).collect())
        }
        Statement::RenameTable(tables) => {
            Some(tables.iter().map(|table| SchemaObject::new(Relation, &table.old_name)).collect())
        }
        Statement::Drop { object_type, names, .. } => {
            let kind = match object_type {
                ObjectType::Table
                | ObjectType::View
                | ObjectType::MaterializedView
                | ObjectType::Index
                | ObjectType::ForeignTable
                | ObjectType::Sequence => Relation,
                _ => Unknown,
            };
            Some(names.iter().map(|name| SchemaObject::new(kind, name)).collect())
        }
        Statement::CreateSchema { schema_name: SchemaName::Simple(name), .. }
        | Statement::CreateType { name, .. }
        | Statement::Comment { object_name: name, .. } => one(Unknown, name),
        Statement::CreateExtension(extension) => {
            Some(vec![SchemaObject { kind: Unknown, name: extension.name.to_string(), parts: None }])
        }
        Statement::CreateSchema { .. }
        | Statement::CreateDatabase { .. }
        | Statement::CreateRole(_)
        | Statement::CreatePolicy(_)
        | Statement::CreateDomain(_)
        | Statement::CreateRule(_)
        | Statement::AlterSchema(_)
        | Statement::AlterFunction(_)
        | Statement::AlterType(_)
        | Statement::AlterRole { .. }
        | Statement::AlterPolicy(_)
        | Statement::AlterTrigger(_)
        | Statement::DropDomain(_)
        | Statement::DropPolicy(_)
        | Statement::DropRule(_)
        | Statement::DropExtension(_) => Some(Vec::new()),
        _ => None,
    }
}
