//! The statements, with the effects that they are classified as.

use crate::classify_write;
use countersign_sql::{
    Dialect, Effect, Literal, PreviewSource, ReadBack, RowPreview, Statement, Write, WriteKind, classify,
};

/// Creates tables of which some refer to others.
pub const DEPENDENT_TABLES: &str = "CREATE TABLE parent (id int PRIMARY KEY); \
    CREATE TABLE \"Child\" (id int PRIMARY KEY, parent_id int REFERENCES parent ON DELETE CASCADE); \
    CREATE TABLE grandchild (id int PRIMARY KEY, child_id int REFERENCES \"Child\" ON DELETE SET NULL); \
    CREATE TABLE other (id int PRIMARY KEY, parent_id int REFERENCES parent);";

/// A text with its expected effects.
pub struct Case {
    pub dialect: Dialect,
    /// The effect of each statement, with the targets of writes.
    pub effects: Vec<String>,
    /// The text changes the test database.
    pub is_marked_as_changing: bool,
    /// The text changes the test database by something that parsing cannot see, such as the function of a view.
    pub is_deceptive: bool,
    pub sql: String,
}

impl Case {
    pub fn is_read(&self) -> bool {
        countersign_sql::is_read(self.dialect, &self.sql)
    }

    /// Returns the kind of the text's only statement with the queries for its rows, if it has some.
    pub fn row_queries(&self) -> Option<(WriteKind, RowPreview)> {
        match <[Statement; 1]>::try_from(classify(self.dialect, &self.sql, 50)) {
            Ok([Statement { effect: Effect::Write(write), .. }]) => match write.preview {
                Ok(PreviewSource::Rows(queries)) => Some((write.kind, queries)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the query for the tables whose rows a deletion also reaches.
    pub fn dependents_query(dialect: Dialect, table: &str) -> String {
        let case = Self {
            dialect,
            effects: Vec::new(),
            is_marked_as_changing: true,
            is_deceptive: false,
            sql: format!("DELETE FROM {table}"),
        };
        case.row_queries().unwrap().1.dependents.unwrap()
    }

    /// Returns the queries that show definitions.
    pub fn definition_queries(&self) -> Vec<String> {
        let definitions = self.writes().map(|write| match write.preview {
            Ok(PreviewSource::Definitions(definitions)) => definitions,
            _ => Vec::new(),
        });
        definitions.flatten().map(|object| object.definition).collect()
    }

    /// Returns the queries that read back what the statements did, and those for rows that are given.
    pub fn read_back_queries(&self) -> Vec<String> {
        let queries = self.writes().map(|write| {
            let keys = match &write.read_back {
                ReadBack::Rows(table) => Some(table.key_columns_query().to_owned()),
                _ => None,
            };
            let equal_count = match write.preview {
                Ok(PreviewSource::GivenRows { equal_count, .. }) => equal_count,
                _ => None,
            };
            keys.into_iter().chain(equal_count)
        });
        queries.flatten().collect()
    }

    fn writes(&self) -> impl Iterator<Item = Write> {
        let statements = classify(self.dialect, &self.sql, 50).into_iter();
        statements.filter_map(|statement| statement.effect.as_write().cloned())
    }
}

pub fn cases() -> Vec<Case> {
    let lines = include_str!("statements.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(parse_case).collect()
}

pub fn cases_in(dialect: Dialect) -> Vec<Case> {
    cases().into_iter().filter(|case| case.dialect == dialect).collect()
}

fn parse_case(line: &str) -> Case {
    let parts: Vec<&str> = line.splitn(3, " | ").collect();
    let [dialect, effects, sql] = parts.as_slice() else { panic!("{line}") };
    let without = |mark: &str| effects.strip_suffix(mark).unwrap_or(effects);
    let (is_marked_as_changing, is_deceptive) = (effects.ends_with(" !"), effects.ends_with(" ~"));
    let effects = without(if is_marked_as_changing { " !" } else { " ~" });
    Case {
        dialect: dialect.parse().unwrap(),
        effects: effects.split("; ").map(str::to_owned).collect(),
        is_marked_as_changing,
        is_deceptive,
        sql: sql.replace('⏎', "\n"),
    }
}

fn describe(statement: &Statement) -> String {
    match &statement.effect {
        Effect::Read => "read".to_owned(),
        Effect::Unparsed { .. } => "unparsed".to_owned(),
        Effect::Write(write) => {
            let kind: &str = write.kind.into();
            format!("{kind} {}", write.targets.join(", ")).trim_end().to_owned()
        }
    }
}

#[test]
fn every_statement_has_its_expected_effect() {
    let cases = cases();
    assert!(cases.len() >= 250, "{}", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let statements = classify(case.dialect, &case.sql, 50);
        let effects: Vec<String> = statements.iter().map(describe).collect();
        if effects != case.effects {
            let reasons: Vec<_> = statements.into_iter().map(|statement| statement.effect).collect();
            failures.push(format!("{}\n  expected {:?}, found {effects:?}\n  {reasons:?}", case.sql, case.effects));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn no_statement_that_changes_data_is_a_read() {
    for case in cases().iter().filter(|case| case.is_marked_as_changing) {
        assert!(!case.is_read(), "{}", case.sql);
    }
    for text in ["", " ; ", "-- nothing"] {
        assert!(!countersign_sql::is_read(Dialect::Postgres, text), "{text:?}");
    }
}

#[test]
fn derived_queries_are_reads() {
    let mut derived = 0;
    for case in cases() {
        let row_queries = case.row_queries().into_iter().flat_map(|(_, queries)| {
            [Some(queries.rows), Some(queries.count), queries.dependents].into_iter().flatten()
        });
        for query in row_queries.chain(case.definition_queries()).chain(case.read_back_queries()) {
            derived += 1;
            assert!(countersign_sql::is_read(case.dialect, &query), "{query}");
        }
    }
    assert!(derived > 60, "{derived}");
}

#[test]
fn values_after_an_update_are_selected_if_they_are_reads() {
    let sql = "UPDATE t SET a = a + 1, b = nextval('s'), c = DEFAULT WHERE id = 7";
    let write = classify_write(Dialect::Postgres, sql);
    let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{:?}", write.preview) };
    assert_eq!(queries.rows, "SELECT t.*, a + 1 AS countersign_after_0 FROM t WHERE id = 7 ORDER BY 1 LIMIT 51");
    assert_eq!(queries.count, "SELECT count(*) AS countersign_count FROM t WHERE id = 7");
    let assigned: Vec<_> = queries
        .assignments
        .iter()
        .map(|value| (value.column.as_str(), value.expression.as_str(), value.alias.as_deref()))
        .collect();
    assert_eq!(
        assigned,
        [("a", "a + 1", Some("countersign_after_0")), ("b", "nextval('s')", None), ("c", "DEFAULT", None)]
    );
}

#[test]
fn given_rows_are_shown_as_they_are_written() {
    let sql = "INSERT INTO t (a, b) VALUES (1, note('x')), (2, DEFAULT)";
    let write = classify_write(Dialect::Postgres, sql);
    let Ok(PreviewSource::GivenRows { columns, rows, equal_count }) = write.preview else {
        panic!("{:?}", write.preview)
    };
    assert_eq!(
        (columns, rows),
        (
            vec!["a".to_owned(), "b".to_owned()],
            vec![vec!["1".to_owned(), "note('x')".to_owned()], vec!["2".to_owned(), "DEFAULT".to_owned()]]
        )
    );
    let counted = "SELECT count(*) AS countersign_count FROM t WHERE (a = '1') OR (a = '2')";
    assert_eq!(equal_count.as_deref(), Some(counted), "only literals are compared");
    for sql in [
        "INSERT INTO t (a) VALUES (now())",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t (a) VALUES (1) ON CONFLICT DO NOTHING",
        "INSERT INTO t (a) VALUES (1.5)",
    ] {
        let write = classify_write(Dialect::Postgres, sql);
        assert!(matches!(write.preview, Ok(PreviewSource::GivenRows { equal_count: None, .. })), "{sql}");
    }
}

#[test]
fn statements_that_reach_other_rows_have_no_preview() {
    for (dialect, sql) in [
        (Dialect::Postgres, "TRUNCATE t CASCADE"),
        (Dialect::Postgres, "INSERT INTO t (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET a = 2"),
        (Dialect::Postgres, "INSERT INTO t SELECT * FROM u ON CONFLICT (id) DO UPDATE SET a = 2"),
        (Dialect::Sqlite, "UPDATE OR REPLACE t SET id = 2 WHERE id = 1"),
        (Dialect::Sqlite, "INSERT OR REPLACE INTO t (id) VALUES (1)"),
        (Dialect::Sqlite, "REPLACE INTO t (id) VALUES (1)"),
        (Dialect::Mysql, "REPLACE INTO t (id) VALUES (1)"),
        (Dialect::Mysql, "INSERT IGNORE INTO t (id) VALUES (1) ON DUPLICATE KEY UPDATE a = 2"),
    ] {
        let write = classify_write(dialect, sql);
        assert!(write.preview.is_err(), "{sql}: {:?}", write.preview);
    }
}

#[test]
fn rows_are_found_again_by_their_primary_key() {
    let table = |dialect, sql: &str| {
        let write = classify_write(dialect, sql);
        let ReadBack::Rows(table) = write.read_back else { panic!("{:?}", write.read_back) };
        table
    };
    let values = vec![
        ("id", Literal::Number("7".to_owned())),
        ("Name", Literal::Text("it's")),
        ("note", Literal::Null),
        ("on", Literal::Boolean(true)),
    ];
    let update = table(Dialect::Postgres, "WITH x AS (SELECT 1) UPDATE s.Things SET a = 1 FROM x WHERE id = 7");
    assert!(update.key_columns_query().contains(r#"to_regclass('"s"."things"')"#), "{}", update.key_columns_query());
    assert_eq!(
        update.rows_query(&[values.clone(), vec![("id", Literal::Number("8".to_owned()))]]).unwrap(),
        r#"SELECT * FROM s.Things WHERE ("id" = '7' AND "Name" = 'it''s' AND "note" IS NULL AND "on" = TRUE) OR ("id" = '8')"#
    );
    let doctors = table(Dialect::Postgres, "UPDATE ÄRZTE SET a = 1");
    assert!(doctors.key_columns_query().contains(r#"to_regclass('"Ärzte"')"#), "{}", doctors.key_columns_query());
    let delete = table(Dialect::Mysql, "DELETE FROM things WHERE id = 7");
    let found = delete.rows_query(&[values]).unwrap();
    assert_eq!(found, "SELECT * FROM things WHERE (`id` = 7 AND `Name` = 'it''s' AND `note` IS NULL AND `on` = TRUE)");
    let found = delete.rows_query(&[vec![("id", Literal::Text(r"C:\'"))]]);
    assert_eq!(found.unwrap(), "SELECT * FROM things WHERE (`id` = _utf8mb4 X'433A5C27')", "no setting changes it");
    let found = update.rows_query(&[vec![("id", Literal::Text(r"C:\'"))]]);
    assert_eq!(found.unwrap(), r#"SELECT * FROM s.Things WHERE ("id" = E'C:\\''')"#);
    let hostile = table(Dialect::Sqlite, "DELETE FROM things WHERE id = 7");
    let found = hostile.rows_query(&[vec![("id\" = 1; DROP TABLE x; --", Literal::Text("'; DROP TABLE x; --"))]]);
    assert_eq!(found.unwrap(), r#"SELECT * FROM things WHERE ("id"" = 1; DROP TABLE x; --" = '''; DROP TABLE x; --')"#);
}

#[test]
fn literals_and_names_stay_as_they_are_written() {
    let condition = "`c````d` = 'a''''b' OR a = 'C:\\\\new' OR a = \"a\"\"\"\"b\"";
    let sql = format!("DELETE FROM `a````b` WHERE {condition}");
    let write = classify_write(Dialect::Mysql, &sql);
    let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{:?}", write.preview) };
    assert_eq!(queries.count, format!("SELECT count(*) AS countersign_count FROM `a````b` WHERE {condition}"));
    let ReadBack::Rows(table) = write.read_back else { panic!("{:?}", write.read_back) };
    assert!(table.key_columns_query().contains("table_name = 'a``b'"), "{}", table.key_columns_query());
    let sql = "INSERT INTO t (a) VALUES ('C:\\\\new''''')";
    let write = classify_write(Dialect::Mysql, sql);
    let Ok(PreviewSource::GivenRows { equal_count, .. }) = write.preview else { panic!("{:?}", write.preview) };
    let counted = "SELECT count(*) AS countersign_count FROM t WHERE (a = 'C:\\\\new''''')";
    assert_eq!(equal_count.as_deref(), Some(counted));
    let sql = "DROP TABLE \"a\"\"b\"";
    let write = classify_write(Dialect::Sqlite, sql);
    let Ok(PreviewSource::Definitions(definitions)) = write.preview else { panic!("{:?}", write.preview) };
    assert!(definitions[0].definition.contains("lower(name) = 'a\"b'"), "{definitions:?}");
}

#[test]
fn columns_that_get_the_elements_of_a_row_have_unknown_values() {
    let assigned = |sql: &str| {
        let write = classify_write(Dialect::Postgres, sql);
        let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{:?}", write.preview) };
        let values = queries.assignments.into_iter();
        values.map(|value| (value.column, value.expression, value.alias.is_some())).collect::<Vec<_>>()
    };
    let expected = |column: &str, expression: &str| (column.to_owned(), expression.to_owned(), false);
    assert_eq!(
        assigned("UPDATE t SET (a, \"B\"\"c\") = (SELECT x, y FROM z)"),
        [expected("a", "SELECT x, y FROM z"), expected("B\"c", "SELECT x, y FROM z")]
    );
    assert_eq!(assigned("UPDATE t SET (a, b) = ROW(1, 2)"), [expected("a", "ROW(1, 2)"), expected("b", "ROW(1, 2)")]);
    assert_eq!(assigned("UPDATE t SET place.town = 'x'"), [expected("place", "'x'")], "the rest of the value stays");
    assert!(assigned("UPDATE t SET (a, b) = (1, 2)").iter().all(|(.., is_known)| *is_known));
}

#[test]
fn values_after_an_update_respect_the_order_of_assignments() {
    let preview = |dialect, sql: &str| {
        let write = classify_write(dialect, sql);
        write.preview
    };
    let sql = "UPDATE t SET a = a + 1, b_c = 2, d = A, e = b_c + 1, f = ab + b";
    for (dialect, expected) in [
        (Dialect::Mysql, [true, true, false, false, true]),
        (Dialect::Postgres, [true; 5]),
        (Dialect::Sqlite, [true; 5]),
    ] {
        let Ok(PreviewSource::Rows(queries)) = preview(dialect, sql) else { panic!("{dialect:?}") };
        let are_known: Vec<bool> = queries.assignments.iter().map(|value| value.alias.is_some()).collect();
        assert_eq!(are_known, expected, "{dialect:?}");
    }
    // In MySQL, a setting decides whether it is a name.
    for (dialect, are_others_known) in [(Dialect::Mysql, false), (Dialect::Postgres, true)] {
        let Ok(PreviewSource::Rows(queries)) =
            preview(dialect, r#"UPDATE t SET b = 2, c = a LIKE "b", d = CAST("b" AS VARCHAR)"#)
        else {
            panic!("{dialect:?}")
        };
        let are_known: Vec<bool> = queries.assignments.iter().map(|value| value.alias.is_some()).collect();
        assert_eq!(are_known, [true, are_others_known, are_others_known], "{dialect:?}");
    }
    let sql = "UPDATE Q SET a = (SELECT sum(x.a) FROM q AS x WHERE x.id <> Q.id), b = (SELECT max(a) FROM r WHERE r.id = Q.id)";
    for (dialect, expected) in
        [(Dialect::Mysql, [false, false]), (Dialect::Postgres, [true; 2]), (Dialect::Sqlite, [false, true])]
    {
        let Ok(PreviewSource::Rows(queries)) = preview(dialect, sql) else { panic!("{dialect:?}") };
        let are_known: Vec<bool> = queries.assignments.iter().map(|value| value.alias.is_some()).collect();
        assert_eq!(are_known, expected, "{dialect:?}");
    }
    // The last assignment counts.
    for dialect in [Dialect::Mysql, Dialect::Sqlite] {
        let preview = preview(dialect, "UPDATE t SET a = 1, b = 2, A = 1000 WHERE id = 7");
        assert!(preview.is_err(), "{preview:?}");
    }
}

#[test]
fn refusals_say_what_a_query_may_do() {
    for (dialect, sql, reason) in [
        (Dialect::Sqlite, "SELECT * FROM fsdir WHERE path = '/etc'", "the table fsdir may read files"),
        (Dialect::Sqlite, "SELECT * FROM pragma_optimize", "the pragma optimize may change settings or data"),
        (Dialect::Postgres, "SELECT * FROM pg_ls_dir('/')", "the function pg_ls_dir may do more than read the data"),
        (Dialect::Postgres, "SELECT * FROM current_user", "current_user is a function, not a table"),
    ] {
        let write = classify_write(dialect, sql);
        assert_eq!(write.reason, reason, "{sql}");
        let Err(shown) = write.preview else { panic!("{:?}", write.preview) };
        assert!(shown.contains(reason), "{shown}");
    }
}

#[test]
fn queries_of_sqlite_begin_with_select() {
    for (_, queries) in cases_in(Dialect::Sqlite).iter().filter_map(Case::row_queries) {
        assert!(queries.rows.starts_with("SELECT ") && queries.count.starts_with("SELECT "), "{}", queries.rows);
    }
    let sql = "WITH x AS (SELECT 1 AS id) DELETE FROM t WHERE id IN (SELECT id FROM x)";
    let write = classify_write(Dialect::Sqlite, sql);
    let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{:?}", write.preview) };
    assert!(
        queries.rows.starts_with("SELECT * FROM (WITH x AS (SELECT 1 AS id) SELECT t.* FROM t"),
        "{}",
        queries.rows
    );
    assert!(queries.count.starts_with("SELECT * FROM (WITH"), "{}", queries.count);
}

#[test]
fn deep_statements_are_refused_and_long_ones_parsed() {
    let chain = |operator: &str, length| format!("SELECT {}", vec!["1"; length].join(operator));
    for dialect in [Dialect::Postgres, Dialect::Sqlite, Dialect::Mysql] {
        assert!(countersign_sql::is_read(dialect, &chain(" + ", 1900)));
        assert!(countersign_sql::is_read(dialect, &chain(", ", 20_000)));
        assert!(!countersign_sql::is_read(dialect, &chain(" + ", 20_000)));
        assert!(!countersign_sql::is_read(dialect, &format!("SELECT {}1{}", "(".repeat(1000), ")".repeat(1000))));
        let nulls = format!("SELECT 1{}", " IS NULL".repeat(1900));
        assert!(countersign_sql::is_read(dialect, &nulls));
        // The preview writes the whole expression several times.
        let update = format!("UPDATE t SET a = b WHERE {}", chain(" + ", 1900).trim_start_matches("SELECT "));
        let statements = classify(dialect, &update, 50);
        assert!(
            matches!(&statements[0].effect, Effect::Write(write) if matches!(write.preview, Ok(PreviewSource::Rows(_))))
        );
    }
}
