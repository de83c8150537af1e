//! Statements whose rows depend on more than the data, which have no preview.

use crate::classify_write;
use countersign_sql::{Dialect, PreviewSource};

#[test]
fn values_that_depend_on_more_than_data_are_not_evaluated() {
    for expression in [
        "total_changes()",
        "pg_backend_pid()",
        "CONNECTION_ID()",
        "txid_current_snapshot()",
        "txid_current_if_assigned()",
        "pg_current_xact_id_if_assigned()",
        "now()",
        "last_insert_rowid()",
        "'tomorrow'",
        "CASE WHEN EXISTS (SELECT 1 FROM pg_locks WHERE mode = 'RowExclusiveLock') THEN 0 ELSE 1 END",
    ] {
        let sql = format!("UPDATE t SET a = {expression}, b = 1");
        let write = classify_write(Dialect::Postgres, &sql);
        let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{:?}", write.preview) };
        let are_evaluated: Vec<bool> = queries.assignments.iter().map(|value| value.alias.is_some()).collect();
        assert_eq!(are_evaluated, [false, true], "{sql}");
    }
}

#[test]
fn conditions_that_depend_on_more_than_data_have_no_preview() {
    for (dialect, condition, reason) in [
        (
            Dialect::Postgres,
            "id = 3 OR EXISTS (SELECT 1 FROM pg_stat_activity WHERE query ILIKE 'UPDATE%')",
            "pg_stat_activity",
        ),
        (
            Dialect::Postgres,
            "EXISTS (SELECT 1 FROM \"pg_catalog\".pg_locks WHERE mode = 'RowExclusiveLock')",
            "pg_locks",
        ),
        (Dialect::Postgres, "id IN (SELECT 1 FROM information_schema.tables)", "information_schema"),
        (Dialect::Postgres, "id = (SELECT id FROM t ORDER BY random() LIMIT 1)", "the function random"),
        (Dialect::Postgres, "owner = current_setting('a.b')", "the function current_setting"),
        (Dialect::Postgres, "owner = CURRENT_USER", "CURRENT_USER"),
        (Dialect::Postgres, "owner = current_role", "current_role"),
        (Dialect::Postgres, "placed = CURRENT_DATE", "CURRENT_DATE"),
        (Dialect::Postgres, "placed < now() AND expires > now()", "the function now"),
        (Dialect::Postgres, "NOT (placed = now())", "the function now"),
        (Dialect::Postgres, "CASE WHEN placed < now() THEN id = 1 ELSE id = 2 END", "the function now"),
        (Dialect::Postgres, "placed < now()::time", "a cast to time"),
        (Dialect::Postgres, "placed < date_trunc(owner, now())", "the function now"),
        (Dialect::Postgres, "placed = date_trunc('month', now())", "the function now"),
        (Dialect::Postgres, "date_trunc('month', placed) < now()", "the function now"),
        (Dialect::Postgres, "'2026-05-01' < now()", "the function now"),
        (Dialect::Postgres, "elapsed > now() - 'today'", "the function now"),
        (Dialect::Postgres, "elapsed > date_trunc('hour', now() - ('yesterday'))", "the function now"),
        (Dialect::Postgres, "id IN (SELECT id FROM t WHERE placed < now())", "the function now"),
        (Dialect::Postgres, "EXISTS (SELECT 1 FROM (SELECT '2026-05-01'::date AS a) x WHERE x.a < now())", "now"),
        (Dialect::Postgres, "placed < ' Now '", "Now"),
        (Dialect::Postgres, "placed < DATE 'today'", "today"),
        (Dialect::Postgres, r"placed < E'n\x6fw'", "now"),
        (Dialect::Postgres, "placed < 'on at on at now'", "now"),
        (Dialect::Postgres, "date_part('milliseconds', 'd h m s now'::timestamptz) < 500", "d h m s now"),
        (Dialect::Postgres, "placed < 'Tomorrow 10:00 pm on Tues America/New_York'", "Tomorrow"),
        (Dialect::Postgres, "placed < 'today abc+5'", "today"),
        (Dialect::Postgres, r#"placed <@ '[n"o"\w,)'::tsrange"#, "is not known to depend on the data alone"),
        (Dialect::Postgres, "placed < '{today\"on}'", "today"),
        (Dialect::Postgres, r#"placed < '{"on": "today"}'"#, "today"),
        (
            Dialect::Postgres,
            r#"placed = ANY ('{"on\"t\oday"}'::timestamp[])"#,
            "is not known to depend on the data alone",
        ),
        (Dialect::Postgres, r#"during @> '["on""to"day,]'"#, "is not known to depend on the data alone"),
        (Dialect::Postgres, r#"during @> '["today", "tomorrow"]'"#, "today"),
        (Dialect::Postgres, r#"during @> '[{"on":"today"},{"on":"tomorrow"}]'"#, "today"),
        (Dialect::Postgres, r#"('{"a": "now"}'::jsonb ->> 'a')::timestamptz < '2026-05-01'"#, "a cast to timestamptz"),
        (Dialect::Postgres, "id < (SELECT last_value FROM t_id_seq)", "t_id_seq"),
        (Dialect::Postgres, "placed <@ '[2026-01-01,tomorrow]'::daterange", "tomorrow"),
        (Dialect::Postgres, "placed < ('n' || 'ow')::timestamp", "a cast to timestamp"),
        (Dialect::Postgres, "placed < date('to' || 'day')", "the function date"),
        (Dialect::Postgres, "substr(owner, 1, 3)::timestamptz < '2026-05-01'", "a cast to timestamptz"),
        (Dialect::Postgres, "coalesce(owner, concat('n', 'ow'))::timestamptz < '2026-05-01'", "a cast to timestamptz"),
        (Dialect::Postgres, "'now'::text::timestamptz < '2026-05-01'", "a cast to timestamptz"),
        (
            Dialect::Postgres,
            r#"('{"a": "n\u006fw"}'::jsonb ->> 'a')::timestamptz < '2026-05-01'"#,
            "a cast to timestamptz",
        ),
        (
            Dialect::Postgres,
            "EXISTS (SELECT 1 FROM (SELECT 'n' || 'ow' AS a) x WHERE x.a::timestamp < '2026-05-01')",
            "a time in a column that it computes",
        ),
        (
            Dialect::Postgres,
            "EXISTS (SELECT 1 FROM string_to_table('xtodayx', 'x') AS a WHERE a::timestamp < '2026-05-01')",
            "a time in a column that it computes",
        ),
        (Dialect::Postgres, "age(placed) > '1 year'", "the function age"),
        (Dialect::Postgres, "id = 3 OR (SELECT x.xmax::text FROM t x WHERE x.id = 3) <> '0'", "xmax"),
        (Dialect::Postgres, "\"COUNTERSIGN_after_0\" = 1", "countersign_"),
        (Dialect::Sqlite, "id = CASE \"countersign_after_0\" WHEN 'admin' THEN 3 ELSE 1 END", "countersign_"),
        (Dialect::Sqlite, "id = (SELECT changes())", "the function changes"),
        (Dialect::Sqlite, "placed < date()", "the function date"),
        (Dialect::Sqlite, "placed = datetime('now')", "the function datetime"),
        (Dialect::Sqlite, "datetime(\"now\") < datetime('now')", "the function datetime"),
        (Dialect::Sqlite, "placed < strftime('%M', 'now')", "the function strftime"),
        (Dialect::Sqlite, "julianday('now') - julianday(placed) > 30", "the function julianday"),
        (Dialect::Sqlite, "datetime(lower('NOW')) < '2026-05-01'", "the function datetime"),
        (Dialect::Sqlite, r#"date('{"a": "now"}' ->> '$.a') < '2026-05-01'"#, "the function date"),
        (
            Dialect::Sqlite,
            "EXISTS (SELECT 1 FROM (SELECT 'now' AS a) x WHERE datetime(x.a) < '2026-05-01')",
            "a time in a column that it computes",
        ),
        (
            Dialect::Sqlite,
            r#"EXISTS (SELECT 1 FROM json_each WHERE json_each.json = '["now"]' AND datetime(json_each.value) < '2026-05-01')"#,
            "a time in a column that it computes",
        ),
        (Dialect::Sqlite, "placed < date(\"now\")", "the function date"),
        (Dialect::Sqlite, "placed < date(X'6e6f77')", "the function date"),
        (
            Dialect::Sqlite,
            "EXISTS (SELECT 1 FROM (SELECT lower('NOW') AS true) WHERE datetime(true) < '2026-05-01')",
            "the function datetime",
        ),
        (
            Dialect::Sqlite,
            "EXISTS (SELECT lower('NOW') AS true FROM t WHERE date(true) < '2026-05-01')",
            "the function date",
        ),
        (Dialect::Sqlite, "placed < date('subsec')", "the function date"),
        (Dialect::Sqlite, "strftime('%f', 'now') < '1'", "the function strftime"),
        (Dialect::Sqlite, "strftime('%Y') = '2026'", "the function strftime"),
        (Dialect::Sqlite, "id IN (SELECT rootpage FROM main.sqlite_master)", "sqlite_master"),
        (Dialect::Sqlite, "id IN (SELECT cid FROM pragma_table_info('t'))", "pragma_table_info"),
        (Dialect::Mysql, "id IN (SELECT id FROM information_schema.processlist)", "information_schema"),
        (Dialect::Mysql, "id = 1 AND @@timestamp > 5", "@@timestamp"),
        (Dialect::Mysql, "id = @x", "@x"),
        (Dialect::Mysql, "placed < utc_date", "utc_date"),
        (Dialect::Mysql, "rand() < 0.5", "the function rand"),
    ] {
        for statement in ["UPDATE t SET owner = 'x'", "DELETE FROM t", "INSERT INTO u SELECT * FROM t"] {
            let sql = format!("{statement} WHERE {condition}");
            let write = classify_write(dialect, &sql);
            let Err(shown) = write.preview else { panic!("{sql}: {:?}", write.preview) };
            assert!(shown.contains(reason), "{sql}: {shown}");
        }
    }
}

#[test]
fn conditions_that_depend_on_the_data_alone_are_previewed() {
    for (dialect, condition) in [
        (Dialect::Postgres, "age > 30 AND date < '2026-01-01' AND status = 'please call me now'"),
        (Dialect::Postgres, "placed::date = '2026-01-01' AND placed < '2026-01-01'::timestamp - interval '1 day'"),
        (Dialect::Postgres, "ctid NOT IN (SELECT min(ctid) FROM t GROUP BY lower(owner))"),
        (Dialect::Postgres, "data->>'a' = 'b' AND date_trunc('month', placed) = '2026-01-01'"),
        (Dialect::Postgres, "owner ILIKE '%today%' AND status = 'Call back tomorrow' AND bucket = 'today'::text"),
        (
            Dialect::Postgres,
            r#"data = '{"note": "now", "tags": ["today"]}' AND data->'a' = '["call today", "today: x"]'"#,
        ),
        (Dialect::Postgres, r#"tags = '{"call today",snow}' AND data @> '{ "when" : {"on": "today"} }'"#),
        (
            Dialect::Postgres,
            "(expires AT TIME ZONE 'Europe/Berlin')::date = '2026-01-02' AND placed::timestamp < '2026-05-01'",
        ),
        (
            Dialect::Postgres,
            "date_trunc('day', placed)::date = '2026-01-02' AND age(timestamp '2026-05-01', placed) > '1 year'",
        ),
        (
            Dialect::Postgres,
            "(data->>'created')::timestamptz < '2026-05-01' AND coalesce(expires, placed)::date = '2026-01-02'",
        ),
        (
            Dialect::Postgres,
            "placed::date = '2026-01-02' AND EXISTS (SELECT 1 FROM unnest(tags) AS tag WHERE tag = 'x')",
        ),
        (Dialect::Sqlite, "date(placed) < '2026-01-01' AND user = 'ann' AND json_extract(data, '$.a') = 1"),
        (Dialect::Sqlite, "name = 'orders' AND seq IN (SELECT seq FROM sqlite_sequence)"),
        (Dialect::Sqlite, "strftime('%Y-%m', placed) = '2026-01' AND status = 'call now' AND bucket = 'now'"),
        (Dialect::Sqlite, "datetime(placed) < '2026-05-01' AND julianday('2026-05-01') - julianday(placed) > 30"),
        (
            Dialect::Sqlite,
            "unixepoch(placed, 'utc') < 1700000000 AND time(\"placed\") < '12:00' AND strftime('%H', placed) = '1'",
        ),
        (Dialect::Mysql, "DATE(placed) < '2026-01-01' AND YEAR(placed) = 2025 AND user = 'now'"),
        (Dialect::Mysql, "email = 'ann@example.com' AND placed < DATE_SUB('2026-01-01', INTERVAL 1 DAY)"),
    ] {
        let sql = format!("UPDATE t AS x SET owner = upper(owner) WHERE {condition}");
        let write = classify_write(dialect, &sql);
        let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{sql}: {:?}", write.preview) };
        assert!(queries.assignments[0].alias.is_some(), "{sql}");
    }
}

#[test]
fn one_comparison_with_the_present_time_is_previewed() {
    for (dialect, condition) in [
        (Dialect::Postgres, "expires < now() AND NOT used"),
        (Dialect::Postgres, "(t.expires <= CURRENT_TIMESTAMP - interval '30 days' OR used)"),
        (Dialect::Postgres, "CURRENT_DATE - 30 > placed"),
        (Dialect::Postgres, "elapsed < now() - '2026-05-01' AND placed < '2026-05-01'"),
        (Dialect::Postgres, "expires < LOCALTIMESTAMP + '1 day'::interval"),
        (Dialect::Postgres, "NOT (expires > now())"),
        (Dialect::Postgres, "placed + interval '30 days' < current_timestamp(0)"),
        (Dialect::Postgres, "placed::date < (now() - interval '30 days')::date"),
        (Dialect::Postgres, "placed < (now() AT TIME ZONE 'utc')"),
        (Dialect::Postgres, "placed < now()::timestamp"),
        (Dialect::Postgres, "date(placed) < CURRENT_DATE"),
        (Dialect::Postgres, "date(placed) <= date(now()) - 30"),
        (Dialect::Postgres, "placed < date_trunc('month', now()) - interval '1 month'"),
        (Dialect::Postgres, "placed < date_trunc('day', CURRENT_TIMESTAMP, 'UTC')"),
        (Dialect::Sqlite, "date(placed) < CURRENT_DATE"),
        (Dialect::Mysql, "DATE(placed) < DATE(NOW())"),
        (Dialect::Sqlite, "expires < CURRENT_TIMESTAMP AND used = 1"),
        (Dialect::Sqlite, "expires < datetime('now', '-30 days')"),
        (Dialect::Sqlite, "placed >= date('now', 'start of month')"),
        (Dialect::Sqlite, "\"expires\" < CURRENT_TIMESTAMP"),
        (Dialect::Sqlite, "datetime(\"expires\") < datetime('now')"),
        (Dialect::Sqlite, "date(placed) < date('now', '-30 days')"),
        (Dialect::Sqlite, "placed < strftime('%Y-%m-%d', 'now')"),
        (Dialect::Mysql, "expires < NOW() - INTERVAL 30 DAY AND used = 1"),
        (Dialect::Mysql, "placed < CURDATE()"),
        (Dialect::Mysql, "placed < DATE_SUB(NOW(), INTERVAL 30 DAY)"),
    ] {
        for statement in ["UPDATE t SET owner = 'x'", "DELETE FROM t"] {
            let sql = format!("{statement} WHERE {condition}");
            let write = classify_write(dialect, &sql);
            assert!(matches!(write.preview, Ok(PreviewSource::Rows(_))), "{sql}: {:?}", write.preview);
        }
    }
}

#[test]
fn statements_that_may_change_what_they_find_have_no_preview() {
    let preview = |dialect, sql: &str| {
        let write = classify_write(dialect, sql);
        write.preview
    };
    for (sql, reason) in [
        ("UPDATE t SET a = nextval('s') WHERE id = 1 OR (SELECT n FROM x) > 5", "may then find other rows"),
        ("UPDATE t SET a = DEFAULT FROM x WHERE t.id = x.id", "may then find other rows"),
        ("UPDATE t SET a = 1 WHERE id = 1 RETURNING nextval('s')", "its RETURNING clause"),
        ("DELETE FROM t WHERE id = 1 RETURNING note('x')", "its RETURNING clause"),
        ("INSERT INTO t VALUES (1) RETURNING nextval('s')", "its RETURNING clause"),
        ("INSERT INTO t SELECT id FROM x RETURNING nextval('s')", "its RETURNING clause"),
        ("WITH x AS (DELETE FROM u RETURNING id) INSERT INTO t VALUES (1)", "a CTE with which it begins"),
        (
            "WITH x AS (SELECT nextval('s')) INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
            "a CTE with which it begins",
        ),
        ("CREATE TABLE t AS WITH x AS (DELETE FROM u RETURNING *) SELECT * FROM x", "its query"),
        ("CREATE MATERIALIZED VIEW t AS SELECT nextval('s')", "its query"),
        (
            "INSERT INTO t (a) SELECT x.id FROM x WHERE x.id = (SELECT LAST_VALUE + 0 * x.id FROM ticket_no)",
            "it reads a sequence",
        ),
        ("WITH s AS (SELECT * FROM ticket_no) INSERT INTO t (a) SELECT id FROM x, s WHERE s.is_called", "a sequence"),
    ] {
        let Err(shown) = preview(Dialect::Postgres, sql) else { panic!("{sql}") };
        assert!(shown.contains(reason), "{sql}: {shown}");
    }
    for sql in [
        "UPDATE t SET a = nextval('s') WHERE id = 1 RETURNING *",
        "UPDATE t SET a = DEFAULT, selected_at = nextval('s') WHERE status = 'selected' AND \"select\" = 1",
        "UPDATE t SET (a, b) = (SELECT 1, 2) WHERE id IN (SELECT id FROM x)",
        "DELETE FROM t AS o USING x WHERE o.id = x.id RETURNING o.id, x.n",
        "INSERT INTO t (a) SELECT id FROM x WHERE EXISTS (SELECT 1 FROM y WHERE y.id = x.id)",
        "INSERT INTO t (a) SELECT last_value(id) OVER (ORDER BY id) FROM x",
    ] {
        let shown = preview(Dialect::Postgres, sql);
        assert!(matches!(shown, Ok(PreviewSource::Rows(_))), "{sql}: {shown:?}");
    }
}

#[test]
fn statements_with_a_limit_need_an_order_to_be_previewed() {
    for (dialect, statement) in [
        (Dialect::Sqlite, "DELETE FROM t WHERE a > 0"),
        (Dialect::Mysql, "DELETE FROM t WHERE a > 0"),
        (Dialect::Mysql, "UPDATE t SET a = 1"),
    ] {
        for (clauses, has_preview) in [
            ("LIMIT 1", false),
            ("ORDER BY (+1) LIMIT 1", false),
            // SQLite takes a name in double quotes for a text if there is no such column.
            ("ORDER BY \"name\" LIMIT 1", false),
            ("ORDER BY name DESC, id LIMIT 1", true),
        ] {
            let sql = format!("{statement} {clauses}");
            let write = classify_write(dialect, &sql);
            assert_eq!(matches!(write.preview, Ok(PreviewSource::Rows(_))), has_preview, "{sql}: {:?}", write.preview);
        }
    }
}

#[test]
fn changed_tables_with_the_name_of_a_cte_have_no_preview() {
    for dialect in [Dialect::Postgres, Dialect::Sqlite] {
        for statement in ["DELETE FROM T", "UPDATE t SET a = 1"] {
            let sql = format!("WITH t AS (SELECT 1 AS id) {statement}");
            let write = classify_write(dialect, &sql);
            let Err(reason) = write.preview else { panic!("{sql}: {:?}", write.preview) };
            assert!(reason.contains("CTE"), "{reason}");
        }
    }
    for (dialect, sql, has_preview) in [
        (Dialect::Postgres, r#"WITH "T" AS (SELECT 1 AS id) DELETE FROM t"#.to_owned(), true),
        (Dialect::Postgres, r#"WITH "t" AS (SELECT 1 AS id) DELETE FROM T"#.to_owned(), false),
        (Dialect::Postgres, r#"WITH "ärzte" AS (SELECT 1 AS id) DELETE FROM ÄRZTE"#.to_owned(), false),
        (Dialect::Postgres, format!("WITH {0}a AS (SELECT 1 AS id) DELETE FROM {0}b", "t".repeat(63)), false),
        (Dialect::Sqlite, r#"WITH "T" AS (SELECT 1 AS id) DELETE FROM t"#.to_owned(), false),
        (Dialect::Postgres, "WITH t AS (SELECT 1 AS id) INSERT INTO t SELECT id FROM t".to_owned(), true),
        (Dialect::Sqlite, "WITH t AS (SELECT 1 AS id) INSERT INTO t SELECT id FROM t".to_owned(), true),
    ] {
        let write = classify_write(dialect, &sql);
        assert_eq!(matches!(write.preview, Ok(PreviewSource::Rows(_))), has_preview, "{sql}: {:?}", write.preview);
    }
}

#[test]
fn changed_table_with_the_name_of_a_sequence_is_previewed() {
    for (sql, is_previewed) in [
        ("DELETE FROM dna_seq WHERE id = 1", true),
        ("UPDATE public.dna_seq SET a = 1 WHERE id IN (SELECT id FROM public.dna_seq)", true),
        ("UPDATE dna_seq SET a = 1 WHERE id IN (SELECT last_value FROM other.dna_seq)", false),
    ] {
        let write = classify_write(Dialect::Postgres, sql);
        assert_eq!(matches!(write.preview, Ok(PreviewSource::Rows(_))), is_previewed, "{sql}: {:?}", write.preview);
    }
}

#[test]
fn inserted_rows_have_the_names_of_their_columns() {
    for (dialect, sql, table) in [
        (
            Dialect::Postgres,
            "INSERT INTO pay (payer, payee) SELECT owner AS payee, 'x' AS payer FROM ev",
            "(SELECT owner AS payee, 'x' AS payer FROM ev) AS countersign_rows (payer, payee)",
        ),
        (
            Dialect::Postgres,
            "INSERT INTO pay SELECT 'a', 'b'",
            "(SELECT 'a', 'b') AS countersign_rows (\"value 1\", \"value 2\")",
        ),
        (Dialect::Postgres, "INSERT INTO pay SELECT * FROM ev", "(SELECT * FROM ev) AS countersign_rows"),
        (
            Dialect::Sqlite,
            "INSERT INTO pay (payer) SELECT owner FROM ev",
            "(WITH countersign_rows (payer) AS (SELECT owner FROM ev) SELECT * FROM countersign_rows) AS countersign_rows",
        ),
        (Dialect::Mysql, "INSERT INTO pay (payer) SELECT owner FROM ev", "(SELECT owner FROM ev) AS countersign_rows"),
    ] {
        let write = classify_write(dialect, sql);
        let Ok(PreviewSource::Rows(queries)) = write.preview else { panic!("{sql}: {:?}", write.preview) };
        assert_eq!(queries.rows, format!("SELECT * FROM {table} ORDER BY 1 LIMIT 51"));
    }
}

#[test]
fn inserted_texts_are_previewed_beside_functions_for_times() {
    for (dialect, source, is_previewed) in [
        (Dialect::Postgres, "SELECT id, upper(owner) FROM ev WHERE placed::date = '2026-01-02'", true),
        (Dialect::Sqlite, "SELECT id, upper(owner) FROM ev WHERE date(placed) = '2026-01-02'", true),
        (Dialect::Sqlite, "SELECT id, upper(owner) AS name FROM ev WHERE date(placed) = '2026-01-02'", true),
        (
            Dialect::Sqlite,
            "SELECT date(placed) AS day, count(*) FROM ev WHERE date(placed) < '2026-01-02' GROUP BY day",
            true,
        ),
        (
            Dialect::Sqlite,
            "WITH x AS (SELECT id, round(total) AS n FROM ev) SELECT * FROM x WHERE date(placed) < '2026-01-02'",
            true,
        ),
        // SQLite lets a condition use an alias.
        (Dialect::Sqlite, "SELECT lower('NOW') AS name, id FROM ev WHERE date(name) = '2026-01-02'", false),
        (Dialect::Sqlite, "SELECT lower('NOW') AS Name, id FROM ev WHERE date(\"name\") = '2026-01-02'", false),
        (
            Dialect::Sqlite,
            "SELECT lower('NOW') AS a, id FROM ev WHERE EXISTS (SELECT a AS b WHERE date(b) = '2026-01-02')",
            false,
        ),
        (
            Dialect::Sqlite,
            "WITH x AS (SELECT lower('NOW') AS a) SELECT id, 1 FROM ev, x WHERE date(x.a) = '2026-01-02'",
            false,
        ),
        (
            Dialect::Sqlite,
            "SELECT id, a FROM (SELECT id, lower('NOW') AS a FROM ev) WHERE date(a) = '2026-01-02'",
            false,
        ),
    ] {
        for columns in ["", " (id, name)"] {
            let write = classify_write(dialect, &format!("INSERT INTO arch{columns} {source}"));
            let is_shown = matches!(write.preview, Ok(PreviewSource::Rows(_)));
            assert_eq!(is_shown, is_previewed, "{columns} {source}: {:?}", write.preview);
        }
    }
}

#[test]
fn inserted_time_or_random_value_is_shown_as_its_expression() {
    let preview = |dialect, sql: &str| {
        let write = classify_write(dialect, sql);
        write.preview
    };
    for (dialect, source, shown) in [
        (
            Dialect::Postgres,
            "SELECT id, now() FROM ev WHERE placed::date = '2026-01-02'",
            "SELECT id, CAST('(now())' AS TEXT) AS \"now()\" FROM ev WHERE placed::DATE = '2026-01-02'",
        ),
        (
            Dialect::Postgres,
            "SELECT gen_random_uuid() AS key, id FROM ev",
            "SELECT CAST('(gen_random_uuid())' AS TEXT) AS key, id FROM ev",
        ),
        (
            Dialect::Sqlite,
            "SELECT id, datetime('now') AS d FROM ev WHERE date(placed) = '2026-01-02'",
            "SELECT id, '(datetime(''now''))' AS \"datetime('now')\" FROM ev WHERE date(placed) = '2026-01-02'",
        ),
        (Dialect::Mysql, "SELECT UUID(), id FROM ev", "SELECT '(UUID())' AS `UUID()`, id FROM ev"),
    ] {
        let Ok(PreviewSource::Rows(queries)) = preview(dialect, &format!("INSERT INTO arch {source}")) else {
            panic!("{source}")
        };
        assert!(queries.rows.contains(&format!("({shown})")), "{}", queries.rows);
    }
    for source in [
        "SELECT DISTINCT owner, random() FROM ev",
        "SELECT owner, random() FROM ev GROUP BY 1, 2",
        "SELECT id, random() FROM ev ORDER BY 2 LIMIT 1",
        "SELECT id, random() FROM ev UNION SELECT 1, 2",
        "SELECT id, nextval('s') FROM ev",
        "SELECT id, row_number() OVER (ORDER BY random()) FROM ev",
    ] {
        let shown = preview(Dialect::Postgres, &format!("INSERT INTO arch {source}"));
        assert!(shown.is_err(), "{source}: {shown:?}");
    }
}

#[test]
fn names_that_sqlite_may_take_for_texts_have_no_preview() {
    for (sql, is_previewed) in [
        ("INSERT INTO arch SELECT id, datetime('now') AS d FROM ev WHERE status = 'd'", true),
        ("INSERT INTO arch SELECT id, datetime('now') AS d FROM ev WHERE d < '2026-01-01' AND ev.\"d\" = 1", true),
        ("INSERT INTO arch SELECT id, datetime('now') AS d FROM ev WHERE \"D\" = 'd'", false),
        ("INSERT INTO arch SELECT id, datetime('now') FROM ev WHERE \"datetime('now')\" = 'x'", false),
        (
            "INSERT INTO arch SELECT id, random() FROM ev WHERE id IN (SELECT id FROM ev WHERE \"random()\" = 'x')",
            false,
        ),
        (
            "INSERT INTO arch SELECT id, datetime('now') AS True FROM ev WHERE status = CASE WHEN true = 1 THEN 2 END",
            false,
        ),
        ("UPDATE t SET a = 1 FROM u WHERE t.rowid = u.rowid", true),
        ("UPDATE t SET a = 1 WHERE \"rowid\" = 1", true),
        ("UPDATE t SET a = 1 FROM u WHERE t.a = CASE WHEN \"RowId\" = 'rowid' THEN 2 ELSE 3 END", false),
        ("UPDATE t SET a = 1 FROM u JOIN v ON \"oid\" = 'oid' WHERE t.a = u.a", false),
    ] {
        let write = classify_write(Dialect::Sqlite, sql);
        assert_eq!(matches!(write.preview, Ok(PreviewSource::Rows(_))), is_previewed, "{sql}: {:?}", write.preview);
    }
}
