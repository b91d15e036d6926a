//! A connection against a real server: what it survives, and what it says when it does not.

mod hostile_servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tokio::time::{Instant, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// The server of `cargo xtask services up`.
fn url() -> String {
    std::env::var("POSTRIDER_TEST_POSTGRES").expect("cargo sets it: run this with cargo")
}

/// The same behind a pooler.
fn pooled_url() -> String {
    std::env::var("POSTRIDER_TEST_PGBOUNCER").expect("cargo sets it: run this with cargo")
}

fn location(parameters: &str) -> Location {
    Location::parse(&format!("{}?{parameters}", url())).unwrap()
}

/// A name that no other test has.
fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{what}_{}_{}", std::process::id(), COUNT.fetch_add(1, Relaxed))
}

/// A connection, and the name by which another one can find it.
fn connection() -> (Arc<Connection>, String) {
    let purpose = unique("connection");
    let connection = Connection::new(location(""), &purpose);
    (Arc::new(connection), application_name(&purpose))
}

async fn number(connection: &Connection, sql: &str) -> i32 {
    connection.query(sql, &[]).await.unwrap()[0].get(0)
}

/// How many sessions have this name and what else is asked for.
async fn sessions(admin: &Connection, name: &str, condition: &str) -> i64 {
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND {condition}"
    );
    admin.query(&sql, &[(&name, Type::TEXT)]).await.unwrap()[0].get(0)
}

/// Waits until there are so many of them.
async fn until_sessions(admin: &Connection, name: &str, condition: &str, expected: i64) {
    let started = Instant::now();
    while sessions(admin, name, condition).await != expected {
        assert!(started.elapsed() < 10 * SECOND, "{condition}: not {expected} in time");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn terminate(admin: &Connection, name: &str) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    assert_eq!(admin.query(sql, &[(&name, Type::TEXT)]).await.unwrap().len(), 1);
}

fn error(trouble: Result<impl Sized, Trouble>) -> SourceError {
    trouble.err().expect("it fails").while_doing("test")
}

#[tokio::test]
async fn statements_are_answered() {
    let (connection, name) = connection();
    let parameters: Params<'_> = &[(&7_i32, Type::INT4), (&"seven", Type::TEXT)];
    let rows = connection.query("SELECT $1 + 1, $2 || '!'", parameters).await.unwrap();
    assert_eq!((rows[0].get(0), rows[0].get(1)), (8, "seven!"));
    let changed = connection.execute("SELECT generate_series(1, $1)", &parameters[..1]).await;
    assert_eq!(changed.unwrap(), 7);

    let (admin, _) = self::connection();
    until_sessions(&admin, &name, "true", 1).await;
    connection.close().await;
    until_sessions(&admin, &name, "true", 0).await;
    assert_eq!(number(&connection, "SELECT 1").await, 1, "a later call connects anew");
}

#[tokio::test]
async fn a_transaction_is_committed_or_it_never_was() {
    let (connection, name) = connection();
    let table = unique("transaction");
    connection.execute(&format!("CREATE TABLE {table} (n integer)"), &[]).await.unwrap();
    let insert = format!("INSERT INTO {table} VALUES ($1)");
    let count = format!("SELECT count(*)::int4 FROM {table}");

    let mut transaction = connection.begin().await.unwrap();
    assert_eq!(transaction.execute(&insert, &[(&1, Type::INT4)]).await.unwrap(), 1);
    transaction.batch(&format!("INSERT INTO {table} VALUES (2); SELECT 1")).await.unwrap();
    assert_eq!(transaction.query(&count, &[]).await.unwrap()[0].get::<_, i32>(0), 2);
    transaction.commit().await.unwrap();
    assert_eq!(number(&connection, &count).await, 2);

    let mut dropped = connection.begin().await.unwrap();
    dropped.execute(&insert, &[(&3, Type::INT4)]).await.unwrap();
    drop(dropped);
    assert_eq!(number(&connection, &count).await, 2, "what was dropped was not committed");

    let mut failed = connection.begin().await.unwrap();
    failed.execute(&insert, &[(&4, Type::INT4)]).await.unwrap();
    failed.batch("SELECT nothing FROM nowhere").await.unwrap_err();
    let err = error(failed.commit().await);
    assert_eq!(err.kind, SourceErrorKind::Unavailable, "the server would say that it is fine");
    assert_eq!(number(&connection, &count).await, 2);

    let (admin, _) = self::connection();
    let mut cut = connection.begin().await.unwrap();
    cut.execute(&insert, &[(&5, Type::INT4)]).await.unwrap();
    until_sessions(&admin, &name, "true", 1).await;
    terminate(&admin, &name).await;
    let lost = cut.execute(&insert, &[(&6, Type::INT4)]).await;
    assert_eq!(error(lost).kind, SourceErrorKind::Unavailable);
    let lost = cut.execute(&insert, &[(&7, Type::INT4)]).await;
    assert_eq!(error(lost).kind, SourceErrorKind::Unavailable, "and not outside of it");
    drop(cut);
    assert_eq!(number(&connection, &count).await, 2);
    connection.execute(&format!("DROP TABLE {table}"), &[]).await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_is_given_up_holds_no_lock() {
    let (connection, name) = connection();
    let (admin, _) = self::connection();
    let lock = "SELECT pg_advisory_xact_lock(hashtext($1))";
    let parameters: Params<'_> = &[(&name.as_str(), Type::TEXT)];
    // At a statement that does not end, and between two.
    for sql in ["SELECT pg_sleep(60)", "SELECT 1"] {
        let mut transaction = connection.begin().await.unwrap();
        transaction.query(lock, parameters).await.unwrap();
        drop(timeout(SECOND / 5, transaction.batch(sql)).await);
        drop(transaction);
        timeout(10 * SECOND, admin.query(lock, parameters)).await.unwrap().unwrap();
    }
    // While it begins, which the next call must not find begun.
    for _ in 0..20 {
        drop(timeout(Duration::from_micros(50), connection.begin()).await);
        // Two statements of one transaction would see the same time.
        let now = async || -> String {
            connection.query("SELECT now()::text", &[]).await.unwrap()[0].get(0)
        };
        assert_ne!(now().await, now().await);
    }
}

#[tokio::test]
async fn a_call_that_is_given_up_leaves_the_connection_usable() {
    let (connection, _) = connection();
    let pid = number(&connection, "SELECT pg_backend_pid()").await;
    for _ in 0..20 {
        let sql = "SELECT generate_series(1, 20000), repeat('x', 200)";
        drop(timeout(Duration::from_micros(500), connection.query(sql, &[])).await);
        assert_eq!(number(&connection, "SELECT 42").await, 42, "the answer to this question");
    }
    assert_eq!(number(&connection, "SELECT pg_backend_pid()").await, pid);
}

#[tokio::test]
async fn a_statement_past_its_deadline_is_cancelled() {
    let purpose = unique("deadline");
    let mut connection = Connection::new(location(""), &purpose);
    connection.deadline = SECOND / 2;
    let (admin, _) = self::connection();
    let started = Instant::now();
    let err = error(connection.query("SELECT pg_sleep(60)", &[]).await);
    assert_eq!(err.details().split(';').next(), Some("cannot test: no answer within 0.5 s"));
    assert_eq!(err.kind, SourceErrorKind::Unavailable);
    assert!(started.elapsed() < 5 * SECOND);
    assert_eq!(number(&connection, "SELECT 1").await, 1, "another connection");
    until_sessions(&admin, &application_name(&purpose), "true", 1).await;

    // Calls that are given up one after the other do not keep a connection that hangs.
    let pid = number(&connection, "SELECT pg_backend_pid()").await;
    for _ in 0..2 {
        let asked = connection.query("SELECT pg_sleep(60)", &[]);
        drop(timeout(SECOND * 3 / 10, asked).await);
    }
    assert_ne!(number(&connection, "SELECT pg_backend_pid()").await, pid);
    until_sessions(&admin, &application_name(&purpose), "true", 1).await;
}

#[tokio::test]
async fn a_connection_that_was_closed_is_replaced() {
    let (connection, name) = connection();
    let (admin, _) = self::connection();
    for _ in 0..5 {
        number(&connection, "SELECT 1").await;
        until_sessions(&admin, &name, "true", 1).await;
        terminate(&admin, &name).await;
        let closed = async || {
            let session = connection.session.lock().await;
            session.as_ref().is_none_or(Session::is_closed)
        };
        while !closed().await {
            sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(number(&connection, "SELECT 2").await, 2, "without a word");
    }

    // Under way it may have happened or not: that is for whoever asked to find out.
    let asking = tokio::spawn({
        let connection = connection.clone();
        async move { connection.query("SELECT pg_sleep(60)", &[]).await }
    });
    until_sessions(&admin, &name, "query LIKE '%pg_sleep%'", 1).await;
    terminate(&admin, &name).await;
    let err = error(asking.await.unwrap());
    assert_eq!(err.kind, SourceErrorKind::Unavailable, "{}", err.details());
    assert!(err.details().contains("SQLSTATE 57P01"), "{}", err.details());
    assert_eq!(number(&connection, "SELECT 3").await, 3);
}

#[tokio::test]
async fn one_call_at_a_time_has_the_connection() {
    let (connection, name) = connection();
    let mut asking = Vec::new();
    for n in 0..20 {
        let connection = connection.clone();
        asking.push(tokio::spawn(async move {
            number(&connection, &format!("SELECT {n} + 0 * pg_backend_pid()")).await
        }));
    }
    for (n, asked) in asking.into_iter().enumerate() {
        assert_eq!(asked.await.unwrap(), i32::try_from(n).unwrap());
    }
    let (admin, _) = self::connection();
    until_sessions(&admin, &name, "true", 1).await;
}

#[tokio::test]
async fn what_the_server_says_is_told_without_the_values_of_rows() {
    let (connection, _) = connection();
    let table = unique("values");
    let create = format!(
        "CREATE TABLE {table} (name text PRIMARY KEY, n integer CHECK (n > 0));
         INSERT INTO {table} VALUES ('canary', 1)"
    );
    let mut transaction = connection.begin().await.unwrap();
    transaction.batch(&create).await.unwrap();
    transaction.commit().await.unwrap();

    use SourceErrorKind::{Misconfigured, Unavailable};
    let cases = [
        (format!("INSERT INTO {table} VALUES ('canary', 1)"), Misconfigured, "SQLSTATE 23505"),
        (format!("INSERT INTO {table} VALUES ('canary2', -1)"), Misconfigured, "SQLSTATE 23514"),
        (format!("SELECT name::integer FROM {table}"), Misconfigured, "SQLSTATE 22P02"),
        (format!("SELECT name::json FROM {table}"), Misconfigured, "SQLSTATE 22P02"),
        ("SELECT * FROM nowhere".to_owned(), Misconfigured, "postrider migrate --from"),
        (format!("SELECT nothing FROM {table}"), Misconfigured, "postrider migrate --from"),
        ("SELECT nothing()".to_owned(), Misconfigured, "postrider migrate --from"),
        ("SELEC".to_owned(), Misconfigured, "SQLSTATE 42601"),
        (
            "DO $$ BEGIN RAISE EXCEPTION 'canary' USING DETAIL = 'canary'; END $$".to_owned(),
            Misconfigured,
            "SQLSTATE P0001",
        ),
        (
            "DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING DETAIL = 'canary', HINT = 'canary',
             ERRCODE = '40P01'; END $$"
                .to_owned(),
            Unavailable,
            "deadlock (SQLSTATE 40P01)",
        ),
    ];
    for (sql, kind, expected) in cases {
        let trouble = connection.query(&sql, &[]).await.unwrap_err();
        let debug = format!("{trouble:?}");
        let err = trouble.while_doing("test it");
        let details = err.details();
        assert_eq!(err.kind, kind, "{sql}: {details}");
        assert!(details.starts_with("cannot test it: "), "{details}");
        assert!(details.contains(expected), "{sql}: {details}");
        assert!(!format!("{details} {debug} {err:?}").contains("canary"), "{debug} {err:?}");
        assert_eq!(number(&connection, "SELECT 1").await, 1);
    }
    let row = &connection.query("SELECT 'canary'", &[]).await.unwrap()[0];
    let decoding = Trouble::from(row.try_get::<_, i32>(0).unwrap_err());
    let err = decoding.while_doing("read a row");
    assert_eq!(err.kind, SourceErrorKind::Unsafe);
    assert!(!format!("{} {err:?}", err.details()).contains("canary"));
    connection.execute(&format!("DROP TABLE {table}"), &[]).await.unwrap();
}

#[tokio::test]
async fn an_unfit_server_is_refused_with_a_reason() {
    use SourceErrorKind::{Misconfigured, Unavailable};
    let (url, pooled) = (url(), pooled_url());
    let (_, server) = url.rsplit_once('@').unwrap();
    let (server, _) = server.split_once('/').unwrap();
    let cases = [
        (format!("{url}?user=nobody&password=canary"), Misconfigured, "check the user and the"),
        (format!("{url}?password=canary"), Misconfigured, "SQLSTATE 28P01"),
        (format!("postgres://postrider@{server}/postgres"), Misconfigured, "give a password"),
        (format!("{url}?dbname=nothing"), Misconfigured, "check the name of the database"),
        (format!("{url}?port=1"), Unavailable, "onnection refused"),
        (format!("{url}?host=nowhere.invalid"), Unavailable, "the connection failed"),
        (format!("{url}?host=/does/not/exist"), Unavailable, "No such file"),
        (format!("{pooled}?password=canary"), Misconfigured, "whether the pooler knows them"),
        (
            format!("{pooled}?options=-csearch_path%3Dcanary"),
            Misconfigured,
            "ALTER ROLE … SET search_path",
        ),
        (format!("{url}?sslmode=require"), Misconfigured, "turn on TLS in the server"),
        (format!("{url}?sslrootcert=/does/not/exist"), Misconfigured, "root certificate"),
        (format!("{url}?sslcert=/a/b&sslkey=/c/d"), Misconfigured, "client certificate"),
        (
            format!("{url}?options=-cdefault_transaction_read_only%3Don"),
            Misconfigured,
            "default_transaction_read_only is on",
        ),
    ];
    for (url, kind, expected) in cases {
        let connection = Connection::new(Location::parse(&url).unwrap(), "unfit");
        let err = error(connection.query("SELECT 1", &[]).await);
        let details = err.details();
        assert_eq!(err.kind, kind, "{url}: {details}");
        assert!(details.contains(expected), "{url}: {details}");
        assert!(!format!("{details} {err:?}").contains("canary"), "{err:?}");
    }
}

#[tokio::test]
async fn other_servers_are_tried_in_turn() {
    let url = url();
    let (_, port) = url.rsplit_once(':').unwrap();
    let (port, _) = port.split_once('/').unwrap();
    let several = location(&format!(
        "sslmode=prefer&host=nowhere.invalid,127.0.0.1,127.0.0.1&port=1,1,{port}"
    ));
    let connection = Connection::new(several, "several");
    assert_eq!(number(&connection, "SELECT 1").await, 1);

    // One that is unreachable may come back: that is worth waiting for.
    let several = location(&format!("host=127.0.0.1,127.0.0.1&port={port},1&password=wrong"));
    let connection = Connection::new(several, "several");
    let err = error(connection.query("SELECT 1", &[]).await);
    assert_eq!(err.kind, SourceErrorKind::Unavailable, "{}", err.details());
}

#[tokio::test]
async fn after_it_worked_once_every_obstacle_may_pass() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pgpass");
    let url = url();
    let (_, server) = url.rsplit_once('@').unwrap();
    let url = format!("postgres://postrider@{server}?passfile={}", file.display());
    let connection = Connection::new(Location::parse(&url).unwrap(), "rotation");
    let ask = async || connection.query("SELECT 1", &[]).await;

    assert_eq!(error(ask().await).kind, SourceErrorKind::Misconfigured, "there is no file");
    std::fs::write(&file, "*:*:*:postrider:canary").unwrap();
    assert_eq!(error(ask().await).kind, SourceErrorKind::Misconfigured, "never worked");
    std::fs::write(&file, "*:*:*:postrider:postrider").unwrap();
    ask().await.unwrap();
    connection.close().await;
    std::fs::write(&file, "*:*:*:postrider:canary").unwrap();
    let err = error(ask().await);
    assert_eq!(err.kind, SourceErrorKind::Unavailable, "it is being exchanged");
    assert!(!format!("{} {err:?}", err.details()).contains("canary"));
    std::fs::write(&file, "*:*:*:postrider:postrider").unwrap();
    ask().await.unwrap();
}

#[tokio::test]
async fn text_is_utf8_whatever_the_database_has() {
    let (admin, _) = connection();
    for (encoding, works) in [("LATIN1", true), ("SQL_ASCII", false)] {
        let database = unique("encoding");
        let create = format!(
            "CREATE DATABASE {database} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        );
        admin.execute(&create, &[]).await.unwrap();
        let connection = Connection::new(location(&format!("dbname={database}")), "encoding");
        let answer = connection.query("SELECT chr(228), $1::text", &[(&"ö", Type::TEXT)]).await;
        if works {
            let rows = answer.unwrap();
            assert_eq!((rows[0].get(0), rows[0].get(1)), ("ä", "ö"));
        } else {
            let err = error(answer);
            assert_eq!(err.kind, SourceErrorKind::Misconfigured);
            assert!(err.details().contains("encoding UTF8"), "{}", err.details());
        }
        connection.close().await;
        // A busy server may take longer than a statement may; it drops it nevertheless.
        drop(admin.execute(&format!("DROP DATABASE {database} WITH (FORCE)"), &[]).await);
    }
}

#[tokio::test]
async fn settings_of_the_url_reach_the_server() {
    let parameters = "application_name=mine&options=-csearch_path%3Dapp%20-cwork_mem%3D1MB";
    let connection = Connection::new(location(parameters), "settings");
    let sql = "SELECT current_setting('search_path'), current_setting('work_mem'),
               current_setting('application_name')";
    let rows = connection.query(sql, &[]).await.unwrap();
    assert_eq!((rows[0].get(0), rows[0].get(1), rows[0].get(2)), ("app", "1MB", "mine"));
}

#[tokio::test]
async fn it_works_behind_a_pooler() {
    let location = Location::parse(&pooled_url()).unwrap();
    let table = unique("pooled");
    let plain = client(&location).await.unwrap();
    plain.batch_execute(&format!("CREATE TABLE {table} (n integer)")).await.unwrap();
    let connections: Vec<_> =
        (0..4).map(|n| Arc::new(Connection::new(location.clone(), &format!("p{n}")))).collect();
    let mut tasks = Vec::new();
    for connection in &connections {
        let (connection, table) = (connection.clone(), table.clone());
        tasks.push(tokio::spawn(async move {
            let insert = format!("INSERT INTO {table} VALUES ($1)");
            for n in 0..20 {
                let mut transaction = connection.begin().await.unwrap();
                transaction.execute(&insert, &[(&n, Type::INT4)]).await.unwrap();
                match n % 10 {
                    9 => drop(transaction),
                    _ => transaction.commit().await.unwrap(),
                }
                assert_eq!(number(&connection, &format!("SELECT {n}")).await, n);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let count = number(&connections[0], &format!("SELECT count(*)::int4 FROM {table}")).await;
    assert_eq!(count, 72);
    plain.batch_execute(&format!("DROP TABLE {table}")).await.unwrap();
}
