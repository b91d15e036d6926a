//! Connections to PostgreSQL, through what a relay uses: encryption, passwords, servers that
//! come and go, networks that swallow everything.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

#[path = "postgres_connections/certificates.rs"]
mod certificates;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use postrider::schema::TableName;
use postrider_relay::diagnosis::{Asked, Level};
use postrider_relay::source::{BatchLimit, Source, SourceError, SourceErrorKind};
use postrider_relay::sources::{SourceSpec, connect_admin, diagnosis, migrate};
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::postgres::{Database, Options, Server, Stop, Tls};
use postrider_testkit::servers::{address, at_port};
use tokio::time::{sleep, timeout};

use self::SourceErrorKind::{Lost, Misconfigured, Unavailable};
use self::certificates::{Authority, Made};

const SECOND: Duration = Duration::from_secs(1);
/// Within this time anything has happened that is going to.
const DEADLINE: Duration = Duration::from_secs(60);
/// Where the process that stands in for another one connects.
const SYSTEM_URL: &str = "POSTRIDER_TESTKIT_SYSTEM_URL";

/// Connects and asks something.
async fn ask(url: &str) -> Result<(), SourceError> {
    let columns = BTreeMap::new();
    let admin = connect_admin(url, &TableName::default(), &columns).await?;
    admin.status().await.map(drop)
}

/// What a doctor says of the server's certificate.
async fn certificate(url: &str) -> Option<Level> {
    let examined = diagnosis(url, &TableName::default(), &BTreeMap::new()).unwrap();
    let findings = examined.findings(&Asked::new("")).await;
    findings.iter().find(|finding| finding.check == "certificate").map(|finding| finding.level)
}

async fn server(tls: Option<Tls>) -> Server {
    let server = Server::start(Options { tls, ..Options::default() }).await;
    let url = match tls {
        Some(Tls::Certificate) => with_identity(&server.url("postgres"), &server),
        Some(Tls::Password) | None => server.url("postgres"),
    };
    migrate(&url, &TableName::default()).await.expect("the tables can be made");
    server
}

fn with_identity(url: &str, server: &Server) -> String {
    let files = server.certificates();
    let (certificate, key) = (files.client.display(), files.client_key.display());
    format!("{url}?sslcert={certificate}&sslkey={key}")
}

fn assert_refused(result: Result<(), SourceError>, kind: SourceErrorKind, expected: &str) {
    let error = result.expect_err("it is refused");
    let details = error.details();
    assert_eq!(error.kind, kind, "{details}");
    assert!(details.contains(expected), "{expected:?} is not said: {details}");
    assert!(!format!("{details} {error:?}").contains("canary"), "{error:?}");
}

/// The same server by a name that is not in its certificate.
fn by_number(url: &str) -> String {
    url.replace("@localhost:", "@127.0.0.1:")
}

/// A source, kept through whatever happens.
struct Reader(Box<dyn Source>);

impl Reader {
    async fn connect(url: &str) -> Self {
        let source = SourceSpec::new(url).connect().await;
        let source = source.unwrap_or_else(|error| panic!("{}", error.details()));
        source.resume().await.expect("it starts");
        Self(source)
    }

    async fn read(&self) -> Result<(), SourceError> {
        let limit = BatchLimit { events: 10, bytes: 1000, wait: Duration::ZERO };
        self.0.next_batch(limit).await.map(drop)
    }

    /// What it knows may not hold for another primary, nor for a server that was started anew: it
    /// notices that, and nobody has to wait for its lease.
    async fn start_anew(self, url: &str) -> Self {
        let started = Instant::now();
        let lost = loop {
            match self.read().await {
                Err(error) if error.kind == Unavailable => {}
                other => break other,
            }
            assert!(started.elapsed() < DEADLINE, "it does not notice");
            sleep(Duration::from_millis(20)).await;
        };
        assert_refused(lost, Lost, "was failed over");
        self.0.give_back().await;
        let reader = Self::connect(url).await;
        reader.read().await.unwrap();
        reader
    }

    /// Reads until it works again. Until then it must only be unavailable.
    async fn recovers(&self) {
        let started = Instant::now();
        while let Err(error) = self.read().await {
            let details = error.details();
            assert_eq!(error.kind, Unavailable, "{details}");
            assert!(started.elapsed() < DEADLINE, "it does not recover: {details}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn close(self) {
        self.0.close().await.expect("it is closed");
    }
}

#[tokio::test]
async fn sslmode_says_what_is_checked() {
    let server = server(Some(Tls::Password)).await;
    let (url, files) = (server.url("postgres"), server.certificates());
    let (ours, other) = (files.authority.display(), files.other_authority.display());
    let fine = [
        url.clone(),
        format!("{url}?sslmode=prefer"),
        format!("{url}?sslmode=require"),
        format!("{url}?sslmode=require&channel_binding=require"),
        format!("{url}?sslrootcert={ours}"),
        format!("{}?sslmode=require&sslrootcert={ours}", by_number(&url)),
        format!("{}?sslmode=verify-ca&sslrootcert={ours}", by_number(&url)),
        format!("{url}?sslmode=verify-full&sslrootcert={ours}"),
        format!("{url}?sslmode=verify-full&sslrootcert={ours}&channel_binding=require"),
        format!("{url}?sslmode=verify-full&sslrootcert={ours}&hostaddr=127.0.0.1"),
    ];
    for url in fine {
        ask(&url).await.unwrap_or_else(|error| panic!("{url}: {}", error.details()));
    }
    let not_fine = [
        (format!("{url}?sslmode=disable"), "no encryption"),
        (format!("{url}?sslrootcert={other}"), "sslrootcert=<file>"),
        (format!("{url}?sslmode=require&sslrootcert={other}"), "sslrootcert=<file>"),
        (format!("{url}?sslmode=verify-ca&sslrootcert={other}"), "sslrootcert=<file>"),
        (format!("{url}?sslmode=verify-full&sslrootcert={other}"), "sslrootcert=<file>"),
        (format!("{url}?sslmode=verify-full"), "sslrootcert"),
        (
            format!("{}?sslmode=verify-full&sslrootcert={ours}", by_number(&url)),
            "must be a subject alternative name of the server's certificate",
        ),
        (format!("{url}?sslmode=verify-full&sslrootcert=/does/not/exist"), "root certificate"),
        (
            format!("{url}?sslmode=verify-full&sslrootcert={}", files.client_key.display()),
            "root certificate",
        ),
        (format!("{url}?sslmode=verify-full&sslrootcert={ours}&password=canary"), "28P01"),
    ];
    for (url, expected) in not_fine {
        assert_refused(ask(&url).await, Misconfigured, expected);
    }
}

#[tokio::test]
async fn a_client_proves_itself_by_its_certificate() {
    let server = server(Some(Tls::Certificate)).await;
    let (url, files) = (server.url("postgres"), server.certificates());
    ask(&with_identity(&url, &server)).await.unwrap();
    assert_refused(ask(&url).await, Misconfigured, "SQLSTATE 28000");

    // One that an authority has signed whom the server does not know.
    let directory = tempfile::tempdir().unwrap();
    let stranger = Authority::new("another").certify("postrider", Made::Fine);
    let (certificate, key) = stranger.write(directory.path());
    let url_of = |certificate: &Path, key: &Path| {
        format!("{url}?sslcert={}&sslkey={}", certificate.display(), key.display())
    };
    assert_refused(ask(&url_of(&certificate, &key)).await, Misconfigured, "sslcert and sslkey");
    assert_refused(
        ask(&url_of(&certificate, &files.client_key)).await,
        Misconfigured,
        "must be a certificate and its own key",
    );
    assert_refused(ask(&url_of(&key, &key)).await, Misconfigured, "client certificate");
    assert_refused(ask(&url_of(&certificate, &certificate)).await, Misconfigured, "private key");
}

#[tokio::test]
async fn a_certificate_that_is_not_right_is_refused_with_a_reason() {
    let mut server = server(Some(Tls::Password)).await;
    let url = server.url("postgres");
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("mine");
    let root = directory.path().join("root.pem");
    fs::write(&root, authority.pem()).unwrap();
    let verified =
        |mode: &str, root: &Path| format!("{url}?sslmode={mode}&sslrootcert={}", root.display());
    let require = format!("{url}?sslmode=require");

    serve(&mut server, &authority.certify("localhost", Made::Expired)).await;
    assert_refused(ask(&verified("verify-ca", &root)).await, Misconfigured, "renew the server's");
    assert_refused(ask(&verified("verify-full", &root)).await, Misconfigured, "renew the server's");
    ask(&require).await.unwrap();
    assert_eq!(certificate(&require).await.unwrap(), Level::Fail, "a doctor says so, too");

    serve(&mut server, &authority.certify("localhost", Made::NotYetValid)).await;
    assert_refused(ask(&verified("verify-ca", &root)).await, Misconfigured, "set the clock");

    // As people made them once: only a common name.
    serve(&mut server, &authority.certify("localhost", Made::WithoutNames)).await;
    let expected = "must be a subject alternative name";
    assert_refused(ask(&verified("verify-full", &root)).await, Misconfigured, expected);
    ask(&verified("verify-ca", &root)).await.unwrap();
    assert_eq!(certificate(&verified("verify-ca", &root)).await.unwrap(), Level::Ok);

    // As the manual of PostgreSQL makes one: it is its own authority, and the client has it.
    for (made, is_fine) in [(Made::Fine, true), (Made::Expired, false)] {
        let itself = Authority::itself("localhost", made);
        serve(&mut server, &itself).await;
        let pinned = directory.path().join("pinned.pem");
        fs::write(&pinned, &itself.certificate).unwrap();
        let answers = [
            ask(&verified("verify-ca", &pinned)).await,
            ask(&verified("verify-full", &pinned)).await,
        ];
        for answer in answers {
            match is_fine {
                true => answer.unwrap(),
                false => assert_refused(answer, Misconfigured, "renew the server's"),
            }
        }
        assert_refused(ask(&verified("verify-ca", &root)).await, Misconfigured, "certificate");
        ask(&require).await.unwrap();
    }
}

/// Gives a server another certificate.
async fn serve(server: &mut Server, certified: &certificates::Certified) {
    // In place, so that they stay the server's own.
    let beside = |name| server.certificates().authority.with_file_name(name);
    fs::write(beside("server.pem"), &certified.certificate).expect("a file can be written");
    fs::write(beside("server.key"), &certified.key).expect("a file can be written");
    server.restart(Stop::Fast).await;
}

#[tokio::test]
async fn the_systems_authorities_are_trusted() {
    // In a process of its own, because the system's authorities are named by the environment.
    if let Ok(url) = std::env::var(SYSTEM_URL) {
        ask(&format!("{url}?sslmode=verify-full")).await.unwrap();
        ask(&format!("{url}?sslrootcert=system")).await.unwrap();
        let expected = "must be a subject alternative name";
        let other_name = format!("{}?sslrootcert=system", by_number(&url));
        assert_refused(ask(&other_name).await, Misconfigured, expected);
        return;
    }
    let server = server(Some(Tls::Password)).await;
    let itself = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_systems_authorities_are_trusted"])
        .env(SYSTEM_URL, server.url("postgres"))
        .env("SSL_CERT_FILE", &server.certificates().authority)
        .env_remove("SSL_CERT_DIR")
        .stdin(Stdio::null())
        .output();
    let output = timeout(DEADLINE, itself).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn an_authority_that_is_exchanged_is_read_again() {
    let mut server = server(Some(Tls::Password)).await;
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root.pem");
    fs::copy(&server.certificates().authority, &root).unwrap();
    let url = format!("{}?sslmode=verify-full&sslrootcert=", server.url("postgres"));
    let reader = Reader::connect(&format!("{url}{}", root.display())).await;
    reader.read().await.unwrap();

    let authority = Authority::new("new");
    serve(&mut server, &authority.certify("localhost", Made::Fine)).await;
    until_refused(&reader, "sslrootcert=<file>").await;
    fs::write(&root, authority.pem()).unwrap();
    reader.start_anew(&format!("{url}{}", root.display())).await.close().await;
}

#[tokio::test]
async fn a_password_that_is_exchanged_is_read_again() {
    let mut server = server(None).await;
    let directory = tempfile::tempdir().unwrap();
    let passwords = directory.path().join("pgpass");
    fs::write(&passwords, "127.0.0.1:*:*:postrider:postrider").unwrap();
    let url = server.url("postgres").replace("postrider:postrider@", "postrider@");
    let url = format!("{url}?passfile={}", passwords.display());
    let reader = Reader::connect(&url).await;
    reader.read().await.unwrap();

    let client = server.connect().await;
    client.batch_execute("ALTER ROLE postrider PASSWORD 'canary'").await.unwrap();
    server.restart(Stop::Fast).await;
    until_refused(&reader, "SQLSTATE 28P01").await;
    fs::write(&passwords, "127.0.0.1:*:*:postrider:canary").unwrap();
    reader.start_anew(&url).await.close().await;
}

/// Reads until that is refused for this reason, and only for a while.
async fn until_refused(reader: &Reader, expected: &str) {
    let started = Instant::now();
    loop {
        let error = reader.read().await.expect_err("it cannot connect");
        let details = error.details();
        assert_eq!(error.kind, Unavailable, "{details}");
        assert!(!format!("{details} {error:?}").contains("canary"), "{error:?}");
        if details.contains(expected) {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{expected:?} is not said: {details}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let primary = server(None).await;
    let standby = primary.standby().await;
    let (primary_url, standby_url) = (primary.url("postgres"), standby.url("postgres"));
    assert_refused(ask(&standby_url).await, Misconfigured, "connect to the primary");
    let spec = SourceSpec::new(&standby_url);
    assert_refused(spec.connect().await.map(drop), Misconfigured, "is a replica");
    assert_refused(
        migrate(&standby_url, &TableName::default()).await.map(drop),
        Misconfigured,
        "is a replica",
    );

    // Of several servers the primary is found, wherever it stands.
    let addresses = [address(&primary_url), address(&standby_url)];
    let both = |first: &str, second: &str| {
        primary_url.replace(address(&primary_url), &format!("{first},{second}"))
    };
    ask(&both(addresses[0], addresses[1])).await.unwrap();
    ask(&both(addresses[1], addresses[0])).await.unwrap();
    // There may be one in a moment.
    let replicas = both(addresses[1], addresses[1]);
    assert_refused(ask(&replicas).await, Unavailable, "is the primary");
}

#[tokio::test]
async fn after_a_failover_the_new_primary_is_found() {
    let mut primary = server(None).await;
    let standby = primary.standby().await;
    let (primary_url, standby_url) = (primary.url("postgres"), standby.url("postgres"));
    let both = format!("{},{}", address(&primary_url), address(&standby_url));
    let url = primary_url.replace(address(&primary_url), &both);
    let reader = Reader::connect(&url).await;
    reader.read().await.unwrap();
    primary.kill9().await;
    until_refused(&reader, "").await;
    standby.connect().await.batch_execute("SELECT pg_promote()").await.unwrap();
    reader.start_anew(&url).await.close().await;
}

/// Which server it is cannot be told then, and everything else works.
#[tokio::test]
async fn a_role_that_may_not_ask_about_the_server_can_relay() {
    let server = server(None).await;
    let restrict = "CREATE ROLE relay LOGIN PASSWORD 'relay';
         GRANT ALL ON ALL TABLES IN SCHEMA public TO relay;
         REVOKE EXECUTE ON FUNCTION pg_control_system, pg_walfile_name, pg_current_wal_lsn
         FROM PUBLIC";
    server.connect().await.batch_execute(restrict).await.unwrap();
    let url = server.url("postgres").replace("postrider:postrider@", "relay:relay@");
    let reader = Reader::connect(&url).await;
    reader.read().await.unwrap();
    reader.close().await;
}

#[tokio::test]
async fn a_socket_is_named_by_its_folder() {
    let directory = tempfile::tempdir().unwrap();
    // The server has an account of its own.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let path = directory.path().display();
    let settings = vec![format!("unix_socket_directories = '{path}'")];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let url = server.url("postgres");
    let (host, port) = address(&url).split_once(':').unwrap();
    migrate(&url, &TableName::default()).await.unwrap();
    // Whatever sslmode is, a socket has no TLS.
    for parameters in [format!("host={path}"), format!("host={path}&sslmode=verify-full")] {
        ask(&format!("{url}?{parameters}&port={port}")).await.unwrap();
    }
    let encoded = path.to_string().replace('/', "%2F");
    ask(&url.replace(&format!("{host}:"), &format!("{encoded}:"))).await.unwrap();
}

#[tokio::test]
async fn a_server_that_restarts_is_found_again() {
    let mut server = server(None).await;
    let url = server.url("postgres");
    let mut reader = Reader::connect(&url).await;
    for stop in [Stop::Fast, Stop::Immediate, Stop::Immediate] {
        reader.read().await.unwrap();
        server.stop(stop).await;
        until_refused(&reader, "").await;
        server.start_again().await.unwrap();
        reader = reader.start_anew(&url).await;
    }
    reader.close().await;
}

#[tokio::test]
async fn a_session_that_was_ended_is_replaced() {
    let database = Database::fresh().await;
    migrate(&database.url(), &TableName::default()).await.unwrap();
    let reader = Reader::connect(&database.url()).await;
    let client = database.connect().await;
    for _ in 0..5 {
        reader.read().await.unwrap();
        let ended = client
            .execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND application_name LIKE 'postrider %'",
                &[],
            )
            .await;
        assert!(ended.unwrap() > 0, "there is one");
        reader.recovers().await;
    }
    reader.close().await;
}

#[tokio::test]
async fn a_network_that_swallows_everything_ends_no_wait_late() {
    let database = Database::fresh().await;
    migrate(&database.url(), &TableName::default()).await.unwrap();
    let proxy = Proxy::start(address(&database.url())).await;
    let url = at_port(&database.url(), proxy.address().port());
    let reader = Reader::connect(&format!("{url}?connect_timeout=2")).await;
    reader.read().await.unwrap();

    proxy.black_hole(true);
    let started = Instant::now();
    let error = reader.read().await.expect_err("nothing comes back");
    assert_eq!(error.kind, Unavailable, "{}", error.details());
    assert!(started.elapsed() < 35 * SECOND, "{:?}", started.elapsed());
    // From now on there is no connection, and none can be made.
    for _ in 0..2 {
        let started = Instant::now();
        assert_refused(reader.read().await, Unavailable, "no answer within 2 s");
        assert!(started.elapsed() < 4 * SECOND, "{:?}", started.elapsed());
    }
    // Another server is tried although the first one swallows everything.
    let both =
        url.replace(address(&url), &format!("{},{}", address(&url), address(&database.url())));
    ask(&format!("{both}?connect_timeout=3")).await.unwrap();

    proxy.black_hole(false);
    reader.recovers().await;
    reader.close().await;
}

#[tokio::test]
async fn a_network_that_cuts_connections_is_survived() {
    let database = Database::fresh().await;
    migrate(&database.url(), &TableName::default()).await.unwrap();
    let proxy = Proxy::start(address(&database.url())).await;
    let reader = Reader::connect(&at_port(&database.url(), proxy.address().port())).await;
    for turn in 0..10 {
        proxy.latency(Duration::from_millis(turn));
        reader.read().await.unwrap();
        proxy.cut();
        reader.recovers().await;
        proxy.refuse(true).await;
        proxy.cut();
        until_refused(&reader, "").await;
        proxy.refuse(false).await;
        reader.recovers().await;
    }
    reader.close().await;
}
