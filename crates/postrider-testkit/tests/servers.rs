//! The servers and the proxy do to a test what they promise.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::address;
use postrider_testkit::servers::pgbouncer::Pgbouncer;
use postrider_testkit::servers::postgres::{
    Database, Limit, Options, Server, Stop, Tls, can_limit_size, connect, shared,
};
use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

const DEADLINE: Duration = Duration::from_secs(30);
/// Long enough to see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(300);

async fn number(client: &Client, query: &str) -> i64 {
    client.query_one(query, &[]).await.expect("the query is answered").get(0)
}

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen within {DEADLINE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_database_is_its_tests_own_and_goes_with_it() {
    let database = Database::fresh().await;
    let client = database.connect().await;
    client.batch_execute("CREATE TABLE notes AS SELECT 1::bigint AS n").await.unwrap();
    let pooled = connect(&database.pooled_url()).await;
    assert_eq!(number(&pooled, "SELECT count(*) FROM notes").await, 1);
    let (name, all) = (database.name().to_owned(), connect(&shared()).await);
    let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(number(&all, &count).await, 1);
    drop(database); // with two clients connected
    until("it goes", || async { number(&all, &count).await == 0 }).await;
}

#[tokio::test]
async fn a_database_that_a_killed_test_has_left_is_swept_away() {
    // Its name says that it was made in 1970; the sweep is part of a process's first `fresh`.
    let unique = u128::from(std::process::id()).to_be_bytes();
    let unique = unique.last_chunk().expect("sixteen bytes are more than ten");
    let id = uuid::Builder::from_unix_timestamp_millis(0, unique).into_uuid();
    let (name, all) = (format!("test_{}", id.simple()), connect(&shared()).await);
    let create = format!("CREATE DATABASE {name} TEMPLATE template0");
    all.batch_execute(&create).await.unwrap();
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "refusing_concerns_new_connections_alone"]).stdout(Stdio::null());
    assert!(other.status().await.unwrap().success());
    let count = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(number(&all, &count).await, 0);
}

#[tokio::test]
async fn what_was_committed_is_there_after_each_kind_of_end() {
    let mut server = Server::start(Options::default()).await;
    let client = server.connect().await;
    client
        .batch_execute("CREATE TABLE notes (n bigint); INSERT INTO notes VALUES (1)")
        .await
        .unwrap();
    for turn in 0..3 {
        let client = server.connect().await;
        client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
        client.batch_execute("BEGIN; INSERT INTO notes VALUES (2)").await.unwrap();
        let before = server.pid();
        match turn {
            0 => server.restart(Stop::Fast).await,
            1 => server.restart(Stop::Immediate).await,
            _ => {
                server.kill9().await;
                let refused = tokio_postgres::connect(&server.url("postgres"), NoTls).await;
                assert!(refused.is_err(), "the server was killed");
                server.start_again().await.unwrap();
            }
        }
        assert_ne!(server.pid(), before);
        assert!(client.batch_execute("SELECT 1").await.is_err(), "the session has ended");
        assert_eq!(
            number(&server.connect().await, "SELECT sum(n)::bigint FROM notes").await,
            turn + 2
        );
    }
}

#[tokio::test]
async fn a_server_is_as_its_options_say() {
    let options = Options {
        settings: vec!["work_mem = '7MB'".to_owned(), "max_connections = 12".to_owned()],
        environment: vec![("SKEW_S".to_owned(), "7200".to_owned())],
        ..Options::default()
    };
    let server = Server::start(options).await;
    let client = server.connect().await;
    let query = "SELECT current_setting('work_mem') || current_setting('max_connections')";
    let settings: String = client.query_one(query, &[]).await.unwrap().get(0);
    assert_eq!(settings, "7MB12");
    let environment = std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap();
    assert!(String::from_utf8_lossy(&environment).contains("SKEW_S=7200"));
}

#[tokio::test]
async fn the_transaction_counter_crosses_its_32_bits() {
    let mut server = Server::start(Options::default()).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE notes AS SELECT 1::bigint AS n").await.unwrap();
    server.reset_xid(u32::MAX - 200).await;
    let client = server.connect().await;
    let xid = "SELECT pg_current_xact_id()::text::bigint";
    let (before, limit) = (number(&client, xid).await, i64::from(u32::MAX));
    assert!(before < limit && before > limit - 201, "{before}");
    for _ in 0..300 {
        client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    }
    assert!(number(&client, xid).await > limit);
    assert_eq!(number(&client, "SELECT count(*) FROM notes").await, 301);
    client.batch_execute("VACUUM (FREEZE)").await.unwrap();
    server.restart(Stop::Immediate).await;
    assert_eq!(number(&server.connect().await, "SELECT count(*) FROM notes").await, 301);
}

#[tokio::test]
async fn a_standby_follows_and_is_in_recovery() {
    let server = Server::start(Options::default()).await;
    let standby = server.standby().await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE notes AS SELECT 1::bigint AS n").await.unwrap();
    let reader = standby.connect().await;
    let is_standby: bool =
        reader.query_one("SELECT pg_is_in_recovery()", &[]).await.unwrap().get(0);
    assert!(is_standby);
    let has_come = || async { reader.query_one("SELECT n FROM notes", &[]).await.is_ok() };
    until("the row comes to the standby", has_come).await;
}

/// Connects as PostgreSQL's own client does.
async fn psql(url: &str, options: &[(&str, &str)]) -> Output {
    let mut psql = Command::new("psql");
    psql.args(["--no-psqlrc", "--command", "SELECT 1"]).arg(url);
    psql.envs(options.iter().copied()).stdin(Stdio::null());
    psql.output().await.expect("`psql` can be run")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn assert_refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(why), "{said}");
}

#[tokio::test]
async fn tls_is_demanded_and_the_server_can_be_verified() {
    let server = Server::start(Options { tls: Some(Tls::Password), ..Options::default() }).await;
    let (url, files) = (server.url("postgres"), server.certificates());
    let verify = ("PGSSLMODE", "verify-full");
    let trusted = ("PGSSLROOTCERT", text(&files.authority));
    let output = psql(&url, &[verify, trusted]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let other = ("PGSSLROOTCERT", text(&files.other_authority));
    assert_refused(&psql(&url, &[verify, other]).await, "certificate verify failed");
    let by_number = url.replace("localhost", "127.0.0.1");
    assert_refused(&psql(&by_number, &[verify, trusted]).await, "does not match host name");
    assert_refused(&psql(&url, &[("PGSSLMODE", "disable")]).await, "no encryption");
}

#[tokio::test]
async fn a_client_can_prove_itself_by_certificate() {
    let server = Server::start(Options { tls: Some(Tls::Certificate), ..Options::default() }).await;
    let (url, files) = (server.url("postgres"), server.certificates());
    let verify = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", text(&files.authority))];
    let prove = [("PGSSLCERT", text(&files.client)), ("PGSSLKEY", text(&files.client_key))];
    let output = psql(&url, &[verify, prove].concat()).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_refused(&psql(&url, &verify).await, "requires a valid client certificate");
}

#[tokio::test]
async fn a_full_log_ends_the_server_until_there_is_room() {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    let limit = Some(Limit::Wal(40 << 20));
    let mut server = Server::start(Options { limit, ..Options::default() }).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE notes AS SELECT 1::bigint AS n").await.unwrap();
    let fill = "CREATE TABLE full_up AS SELECT repeat('x', 1000) FROM generate_series(1, 60000)";
    assert!(client.batch_execute(fill).await.is_err());
    server.stop(Stop::Immediate).await;
    let log = server.start_again().await.unwrap_err();
    assert!(log.contains("No space left on device"), "{log}");
    server.resize(400 << 20);
    server.start_again().await.unwrap();
    assert_eq!(number(&server.connect().await, "SELECT count(*) FROM notes").await, 1);
}

#[tokio::test]
async fn full_data_fails_the_statement_alone() {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    let limit = Some(Limit::Data(60 << 20));
    let server = Server::start(Options { limit, ..Options::default() }).await;
    let client = server.connect().await;
    let fill = "CREATE TABLE full_up AS SELECT repeat('x', 1000) FROM generate_series(1, 60000)";
    let error = client.batch_execute(fill).await.unwrap_err();
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::DISK_FULL), "{error}");
    server.resize(400 << 20);
    client.batch_execute(fill).await.unwrap();
}

#[tokio::test]
async fn pgbouncer_gives_each_transaction_another_session() {
    let database = Database::fresh().await;
    let pgbouncer = Pgbouncer::start(&database.url()).await;
    let (one, other) = (connect(pgbouncer.url()).await, connect(pgbouncer.url()).await);
    one.batch_execute("BEGIN; SELECT 1").await.unwrap();
    other.batch_execute("SELECT 1").await.unwrap();
    one.batch_execute("COMMIT").await.unwrap();
    let session = || async {
        let query = "SELECT pg_backend_pid()::bigint";
        let rows = other.query_typed(query, &[]).await.unwrap();
        rows[0].get::<_, i64>(0)
    };
    assert_ne!(session().await, session().await);
}

/// The test runs itself, in a process that it kills.
#[tokio::test]
async fn a_killed_test_leaves_no_server_behind() {
    const CHILD: &str = "POSTRIDER_TESTKIT_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let server = Server::start(Options::default()).await;
        println!("\nserver {}", server.pid());
        return std::future::pending().await;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_killed_test_leaves_no_server_behind", "--nocapture"]);
    child.env(CHILD, "yes").stdout(Stdio::piped()).stdin(Stdio::null()).kill_on_drop(true);
    let mut child = child.spawn().unwrap();
    let output = tokio::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = tokio::io::AsyncBufReadExt::lines(output);
    let pid = loop {
        let line = timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
        if let Some(pid) = line.strip_prefix("server ") {
            break pid.to_owned();
        }
    };
    let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
    assert!(folder.ends_with("data"), "{folder:?}");
    child.kill().await.unwrap();
    let is_gone = || async { !folder.exists() && !folder.parent().unwrap().exists() };
    until("the server's folder is removed", is_gone).await;
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists(), "the server has ended");
}

/// A proxy before the shared server, with a database behind it.
async fn proxied() -> (Database, Proxy, String) {
    let database = Database::fresh().await;
    let proxy = Proxy::start(address(&database.url())).await;
    let url = proxy.url(&database.url());
    (database, proxy, url)
}

#[tokio::test]
async fn a_cut_ends_connections_and_lets_new_ones_in() {
    let (_database, proxy, url) = proxied().await;
    let client = connect(&url).await;
    assert_eq!(number(&client, "SELECT 1::bigint").await, 1);
    proxy.cut();
    until("the client notices", || async { client.is_closed() }).await;
    assert_eq!(number(&connect(&url).await, "SELECT 1::bigint").await, 1);
}

#[tokio::test]
async fn a_black_hole_holds_everything_back() {
    let (database, proxy, url) = proxied().await;
    let (client, beside) = (connect(&url).await, database.connect().await);
    client.batch_execute("CREATE TABLE notes (n bigint)").await.unwrap();
    proxy.black_hole(true);
    let insert = client.batch_execute("INSERT INTO notes VALUES (1)");
    tokio::pin!(insert);
    assert!(timeout(A_WHILE, &mut insert).await.is_err(), "it must not be answered");
    let connecting = tokio_postgres::connect(&url, NoTls);
    assert!(timeout(A_WHILE, connecting).await.is_err(), "a new one must hang");
    assert_eq!(number(&beside, "SELECT count(*) FROM notes").await, 0);
    assert!(!client.is_closed());
    proxy.black_hole(false);
    timeout(DEADLINE, insert).await.unwrap().unwrap();
    assert_eq!(number(&beside, "SELECT count(*) FROM notes").await, 1);
}

#[tokio::test]
async fn refusing_concerns_new_connections_alone() {
    let (_database, proxy, url) = proxied().await;
    let client = connect(&url).await;
    proxy.refuse(true).await;
    let refused = tokio::net::TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(number(&client, "SELECT 1::bigint").await, 1);
    proxy.refuse(false).await;
    assert_eq!(number(&connect(&url).await, "SELECT 1::bigint").await, 1);
}

#[tokio::test]
async fn latency_delays_and_does_not_slow_down() {
    let (_database, proxy, url) = proxied().await;
    let client = connect(&url).await;
    let latency = Duration::from_millis(100);
    proxy.latency(latency);
    let started = Instant::now();
    // One round trip with an answer of many chunks.
    let rows = client.simple_query("SELECT repeat('x', 1000) FROM generate_series(1, 1000)").await;
    assert_eq!(rows.unwrap().len(), 1002);
    assert!(started.elapsed() >= 2 * latency, "{:?}", started.elapsed());
    // One chunk after the other would take 60 times the latency.
    assert!(started.elapsed() < 40 * latency, "{:?}", started.elapsed());
}

#[tokio::test]
async fn slices_and_rates_keep_the_bytes_whole() {
    let (_database, proxy, url) = proxied().await;
    let client = connect(&url).await;
    let query = "SELECT repeat('x', 20000)";
    proxy.slice(3);
    let sliced: String = client.query_one(query, &[]).await.unwrap().get(0);
    assert!(sliced.len() == 20_000 && sliced.bytes().all(|byte| byte == b'x'));
    proxy.heal();
    proxy.rate(10_000);
    let started = Instant::now();
    let slow: String = client.query_one(query, &[]).await.unwrap().get(0);
    assert_eq!(slow, sliced);
    assert!(started.elapsed() >= Duration::from_millis(1900), "{:?}", started.elapsed());
    proxy.heal();
    let started = Instant::now();
    client.query_one(query, &[]).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(1900), "{:?}", started.elapsed());
}

#[tokio::test]
async fn the_reply_of_a_commit_is_lost_and_the_commit_is_not() {
    let (database, proxy, url) = proxied().await;
    let beside = database.connect().await;
    beside.batch_execute("CREATE TABLE notes (n bigint)").await.unwrap();
    let mut client = connect(&url).await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO notes VALUES (1)", &[]).await.unwrap();
    proxy.drop_reply_of_commit();
    assert_eq!(proxy.dropped_replies(), 0);
    assert!(transaction.commit().await.unwrap_err().is_closed());
    assert_eq!(proxy.dropped_replies(), 1);
    assert_eq!(number(&beside, "SELECT count(*) FROM notes").await, 1);
    // Once is all that was asked for.
    let mut client = connect(&url).await;
    client.transaction().await.unwrap().commit().await.unwrap();
}

#[tokio::test]
async fn the_reply_of_a_statement_is_lost_and_its_effect_is_not() {
    let (database, proxy, url) = proxied().await;
    let beside = database.connect().await;
    beside.batch_execute("CREATE TABLE notes (n bigint)").await.unwrap();
    let insert = "INSERT INTO notes VALUES (1) RETURNING n";
    for how in 0..3 {
        let client = connect(&url).await;
        proxy.drop_reply_of("INSERT INTO notes");
        client.batch_execute("SELECT 'another one'").await.unwrap();
        let lost = match how {
            // The simple protocol, one round trip with an unnamed statement, two with a named one.
            0 => client.batch_execute(insert).await,
            1 => client.query_typed(insert, &[]).await.map(drop),
            _ => client.query(insert, &[]).await.map(drop),
        };
        assert!(lost.unwrap_err().is_closed());
        assert_eq!(proxy.dropped_replies(), how + 1);
        let count = number(&beside, "SELECT count(*) FROM notes").await;
        assert_eq!(count, i64::try_from(how).unwrap() + 1);
    }
}

#[tokio::test]
async fn tls_passes_the_proxy() {
    let server = Server::start(Options { tls: Some(Tls::Password), ..Options::default() }).await;
    let url = server.url("postgres");
    let proxy = Proxy::start(address(&url)).await;
    proxy.drop_reply_of_commit(); // which it cannot see
    let authority = text(&server.certificates().authority);
    let verify = [("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", authority)];
    let output = psql(&proxy.url(&url), &verify).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
