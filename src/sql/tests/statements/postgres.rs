//! Runs the statements in a real PostgreSQL.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use countersign_sql::{Dialect, PreviewSource, WriteKind};
use serde_json::Value;

use crate::{
    classify_write,
    corpus::{Case, DEPENDENT_TABLES, cases_in},
};

/// Functions of the list that PostgreSQL calls volatile, but that change nothing.
const VOLATILE_READS: &[&str] = &[
    "clock_timestamp",
    "gen_random_uuid",
    "pg_database_size",
    "pg_indexes_size",
    "pg_is_in_recovery",
    "pg_relation_size",
    "pg_table_size",
    "pg_total_relation_size",
    "random",
    "timeofday",
];

/// Functions of the list that PostgreSQL's grammar defines.
const GRAMMAR_FUNCTIONS: &[&str] = &[
    "array",
    "coalesce",
    "current_catalog",
    "current_date",
    "current_role",
    "current_time",
    "current_timestamp",
    "greatest",
    "grouping",
    "least",
    "localtime",
    "localtimestamp",
    "nullif",
    "row",
    "user",
];

/// Creates tables to which others refer through partitions, through inheriting tables, and through columns that a key sets.
const INHERITING_TABLES: &str = "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id); \
    CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (9); \
    CREATE TABLE part_ref (id int REFERENCES part ON DELETE CASCADE); \
    CREATE TABLE parted_ref (id int REFERENCES parted ON DELETE CASCADE); \
    CREATE TABLE base (id int PRIMARY KEY); \
    CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (base); \
    CREATE TABLE base_ref (id int REFERENCES base ON DELETE CASCADE); \
    CREATE TABLE heir_ref (id int REFERENCES heir ON DELETE CASCADE); \
    CREATE VIEW some_bases AS SELECT * FROM base WHERE id > 0; \
    CREATE VIEW bases AS SELECT * FROM some_bases; \
    CREATE TABLE code (id int PRIMARY KEY); \
    CREATE TABLE coded (id int PRIMARY KEY, code int UNIQUE REFERENCES code ON DELETE SET NULL); \
    CREATE TABLE coded_ref (code int REFERENCES coded (code) ON UPDATE CASCADE); \
    CREATE TABLE unchanged (coded_id int REFERENCES coded ON UPDATE CASCADE);";

/// A digest of everything that a statement may change: rows, sequences, large objects, definitions, settings, locks.
const DIGEST: &str = "SELECT 'digest:' || md5(concat_ws('|', \
    (SELECT string_agg(query_to_xml(format('SELECT * FROM %I.%I t ORDER BY t::text', nspname, relname), true, false, '')::text, '' \
     ORDER BY nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'm') \
     AND nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'), \
    (SELECT string_agg(sequencename || coalesce(last_value::text, '-'), ',' ORDER BY sequencename) FROM pg_sequences), \
    (SELECT string_agg(concat(oid, relname, relkind, relhasindex), ',' ORDER BY oid) FROM pg_class), \
    (SELECT string_agg(concat(attrelid, attname, atttypid), ',' ORDER BY attrelid, attnum) FROM pg_attribute), \
    (SELECT string_agg(concat(oid, md5(prosrc)), ',' ORDER BY oid) FROM pg_proc), \
    (SELECT string_agg(concat(ev_class, md5(ev_action::text)), ',' ORDER BY oid) FROM pg_rewrite), \
    (SELECT string_agg(concat(oid, tgname), ',' ORDER BY oid) FROM pg_trigger), (SELECT count(*) FROM pg_type), \
    (SELECT count(*) FROM pg_namespace), (SELECT string_agg(concat(loid, pageno, md5(data)), ',') FROM pg_largeobject), \
    (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM pg_largeobject_metadata), \
    (SELECT string_agg(name || setting, ',' ORDER BY name) FROM pg_settings WHERE source = 'session'), \
    (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'), \
    (SELECT count(*) FROM pg_listening_channels())))";

/// A temporary server, which ends with this value.
struct Server {
    url: String,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/postgres");
        let mut command = Command::new(script);
        // Vacuuming would change the catalog while statements run.
        command.args(["-c", "fsync=off", "-c", "autovacuum=off"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim_end().strip_suffix("postgres").expect("scripts/postgres says what is missing").to_owned();
        let server = Self { url, child };
        server.run("postgres", &["CREATE DATABASE original"], "");
        server.run("original", &[include_str!("postgres.sql")], "");
        server
    }

    /// Runs statements in one session; returns the output without errors, and whether all succeeded.
    fn try_run(&self, database: &str, statements: &[&str], options: &str) -> (String, bool) {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--tuples-only", "--no-align", "--dbname"]).arg(format!("{}{database}", self.url));
        psql.env("PGOPTIONS", options).stdin(Stdio::null());
        for statement in statements {
            psql.arg("--command").arg(statement);
        }
        let output = psql.output().unwrap();
        let is_success = output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("ERROR:");
        (String::from_utf8_lossy(&output.stdout).into_owned(), is_success)
    }

    #[track_caller]
    fn run(&self, database: &str, statements: &[&str], options: &str) -> String {
        let (output, is_success) = self.try_run(database, statements, options);
        assert!(is_success, "{statements:?}: {output}");
        output
    }

    /// Makes a copy of the test database.
    fn copy(&self, name: &str) {
        self.run("postgres", &[&format!("CREATE DATABASE {name} TEMPLATE original")], "");
    }

    /// Returns whether the statements change something, or `None` if they fail inside a transaction. A transaction that
    /// they leave open is rolled back.
    fn is_changed_by(&self, database: &str, statements: &[&str]) -> Option<bool> {
        let (output, _) = self.try_run(database, &[&[DIGEST], statements, &[DIGEST]].concat(), "");
        let digests: Vec<&str> = output.lines().filter(|line| line.starts_with("digest:")).collect();
        match digests.as_slice() {
            [before, after] => Some(before != after),
            _ => None,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn reads_change_nothing_in_postgresql() {
    let server = Server::start();
    let reads: Vec<_> =
        cases_in(Dialect::Postgres).into_iter().filter(|case| case.is_read() && !case.is_deceptive).collect();
    assert!(reads.len() > 40, "{}", reads.len());
    server.copy("reads");
    for case in reads {
        // PostgreSQL itself refuses many writes in such a transaction.
        server.run("reads", &[&case.sql], "-c default_transaction_read_only=on");
        assert_eq!(server.is_changed_by("reads", &[&case.sql]), Some(false), "{}", case.sql);
    }
}

#[test]
fn hidden_writes_change_postgresql() {
    let server = Server::start();
    server.copy("writes");
    let is_changed = |sql: &str| {
        if sql.contains("COMMIT") {
            server.copy("committed");
            return server.is_changed_by("committed", &[sql]);
        }
        server.is_changed_by("writes", &["BEGIN", sql])
    };
    let changing = cases_in(Dialect::Postgres).into_iter().filter(|case| case.is_marked_as_changing);
    let unchanged: Vec<String> = changing.map(|case| case.sql).filter(|sql| is_changed(sql) != Some(true)).collect();
    assert!(unchanged.is_empty(), "{unchanged:#?}");
}

#[test]
fn functions_of_views_are_not_seen() {
    let server = Server::start();
    server.copy("views");
    let deceptive: Vec<_> = cases_in(Dialect::Postgres).into_iter().filter(|case| case.is_deceptive).collect();
    assert!(!deceptive.is_empty());
    for case in deceptive {
        // `docs/previews.md` says so; a database user that can only read is the remedy.
        assert!(case.is_read(), "{}", case.sql);
        assert_eq!(server.is_changed_by("views", &[&case.sql]), Some(true), "{}", case.sql);
        let (_, is_success) = server.try_run("views", &[&case.sql], "-c default_transaction_read_only=on");
        assert!(!is_success, "{}", case.sql);
    }
}

#[test]
fn previews_select_what_postgresql_changes() {
    let server = Server::start();
    server.copy("previews");
    let mut compared = 0;
    for case in cases_in(Dialect::Postgres) {
        let Some((kind, queries)) = case.row_queries() else { continue };
        let rows = format!("SELECT 'rows:' || coalesce(json_agg(r), '[]') FROM ({}) AS r", queries.rows);
        let all = "SELECT 'all:' || coalesce(json_agg(a), '[]') FROM accounts a";
        let output = server.run("previews", &[&rows, &queries.count, "BEGIN", &case.sql, all, "ROLLBACK"], "");
        let lines: Vec<&str> = output.lines().collect();
        let json = |prefix: &str| -> Vec<Value> {
            let start = output.find(prefix).unwrap() + prefix.len();
            serde_json::Deserializer::from_str(&output[start..]).into_iter().next().unwrap().unwrap()
        };
        let (rows, count) = (json("rows:"), lines.iter().find(|line| line.parse::<usize>().is_ok()).unwrap());
        if kind == WriteKind::Update {
            let changed = json("all:");
            for row in &rows {
                let after = changed.iter().find(|after| after["id"] == row["id"]).unwrap();
                for value in &queries.assignments {
                    let Some(alias) = &value.alias else { continue };
                    let column = value.column.trim_matches('"');
                    let is_equal = match (row[alias].as_f64(), after[column].as_f64()) {
                        (Some(expected), Some(found)) => (expected - found).abs() < 0.001,
                        _ => row[alias] == after[column],
                    };
                    assert!(is_equal, "{}: {row} {after}", case.sql);
                }
            }
        }
        let tag = if case.sql.contains("TRUNCATE") {
            "TRUNCATE TABLE".to_owned()
        } else {
            match kind {
                WriteKind::Insert => format!("INSERT 0 {count}"),
                WriteKind::Update => format!("UPDATE {count}"),
                _ => format!("DELETE {count}"),
            }
        };
        assert!(lines.contains(&tag.as_str()), "{}: {output}", case.sql);
        compared += 1;
    }
    assert!(compared > 15, "{compared}");
    let definitions =
        cases_in(Dialect::Postgres).iter().flat_map(|case| case.definition_queries()).collect::<BTreeSet<_>>();
    for query in definitions {
        server.run("previews", &[&query], "");
    }
    let keys = cases_in(Dialect::Postgres)
        .iter()
        .flat_map(|case| case.read_back_queries())
        .find(|query| query.contains("'\"accounts\"'"));
    assert_eq!(server.run("previews", &[&keys.unwrap()], "").trim(), "id");
    server.run("previews", &[DEPENDENT_TABLES, INHERITING_TABLES], "");
    for (table, expected) in [
        ("parent", "\"Child\"\ngrandchild"),
        ("previews.public.PARENT", "\"Child\"\ngrandchild"),
        ("other", ""),
        ("parted", "part_ref\nparted_ref"),
        ("part", "part_ref\nparted_ref"),
        ("base", "base_ref\nheir_ref"),
        ("heir", "heir_ref"),
        ("bases", "base_ref\nheir_ref"),
        ("code", "coded\ncoded_ref"),
    ] {
        let query = Case::dependents_query(Dialect::Postgres, table);
        assert_eq!(server.run("previews", &[&query], "").trim(), expected, "{table}");
    }
}

#[test]
fn texts_that_postgresql_takes_for_times_have_no_preview() {
    let server = Server::start();
    let is_previewed = |text: &str| {
        let write = classify_write(Dialect::Postgres, &format!("DELETE FROM t WHERE a = '{text}'"));
        matches!(write.preview, Ok(PreviewSource::Rows(_)))
    };
    let is_time = |text: &str| {
        let types = ["timestamp", "timestamp[]", "tsrange", "tsmultirange"];
        types.iter().any(|name| {
            let sql = format!("SELECT CAST('{text}' AS {name})");
            server.try_run("postgres", &[&sql], "").1
        })
    };
    for text in [
        "{today}",
        r#"{today"on}"#,
        r#"{"on": "today"}"#,
        r#"{"on\"t\oday"}"#,
        r#"["on""to"day,]"#,
        r#"["today", "tomorrow"]"#,
        r#"[{"on":"today"},{"on":"tomorrow"}]"#,
        r#"{["today","tomorrow"]}"#,
    ] {
        assert!(is_time(text) && !is_previewed(text), "{text}");
    }
    for text in [
        r#"{"note": "today"}"#,
        r#"{"tags": ["today", "now"]}"#,
        r#"{ "a" : {"on": "today"} }"#,
        r#"["call today"]"#,
        r#"["call today", "now or never"]"#,
        r#"[{"note": "today"}, {"note": "now"}]"#,
        r#"{"call today",snow}"#,
        "{nowhere}",
    ] {
        assert!(!is_time(text) && is_previewed(text), "{text}");
    }
}

#[test]
fn listed_functions_of_postgresql_are_not_volatile() {
    let server = Server::start();
    let listed = include_str!("../../src/functions/postgres.txt").lines().filter(|line| !line.starts_with('#'));
    let names: Vec<String> = listed.flat_map(str::split_whitespace).map(|name| format!("'{name}'")).collect();
    let is_volatile =
        "SELECT DISTINCT proname FROM pg_proc WHERE provolatile = 'v' AND pronamespace = 'pg_catalog'::regnamespace";
    let volatile =
        server.run("postgres", &[&format!("{is_volatile} AND proname IN ({}) ORDER BY 1", names.join(","))], "");
    assert_eq!(volatile.lines().collect::<Vec<_>>(), VOLATILE_READS);
    let unknown = format!(
        "SELECT name FROM unnest(ARRAY[{}]) name WHERE name NOT IN (SELECT proname FROM pg_proc) ORDER BY 1",
        names.join(",")
    );
    assert_eq!(server.run("postgres", &[&unknown], "").lines().collect::<Vec<_>>(), GRAMMAR_FUNCTIONS);
}
