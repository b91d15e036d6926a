//! How a connection is made, and what it does before there is a stream.

use std::sync::Arc;

use postrider_replication::Snapshot;
use postrider_testkit::servers::postgres::{Stop, Tls};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::*;

async fn refused(config: &Config) -> Error {
    Connection::connect(config, NoTls).await.unwrap_err()
}

#[tokio::test]
async fn the_server_says_who_it_is() {
    let (server, client) = server(&[]).await;
    let mut connection = connect(&server).await;
    let identity = connection.identify_system().await.unwrap();
    let system_id = "SELECT system_identifier FROM pg_control_system()";
    assert_eq!(text(&client, system_id).await, identity.system_id.to_string());
    assert_eq!((identity.timeline, identity.database.as_str()), (1, "postgres"));
    let position = text(&client, "SELECT pg_current_wal_flush_lsn()").await;
    assert!(identity.wal_position <= position.parse().unwrap());
    let version = text(&client, "SHOW server_version_num").await;
    assert_eq!(connection.server_version().to_string(), version);

    let rows = connection.query("SELECT 'ä', NULL, ''; SELECT 2").await.unwrap();
    let first = vec![Some("ä".to_owned()), None, Some(String::new())];
    assert_eq!(rows, [first, vec![Some("2".to_owned())]]);
    let error = connection.query("SELECT no_such_column").await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_COLUMN));
    assert_eq!(connection.query("SELECT 1").await.unwrap().len(), 1, "it can still be used");

    let given_up = timeout(Duration::from_millis(100), connection.query("SELECT pg_sleep(60)"));
    given_up.await.unwrap_err();
    let error = connection.query("SELECT 1").await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error:?}");
}

#[tokio::test]
async fn the_snapshot_of_a_slot_shows_what_the_stream_does_not() {
    let (server, client) = server(&[]).await;
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    let mut connection = connect(&server).await;
    let exported = SlotOptions { snapshot: Snapshot::Export, ..SlotOptions::default() };
    let slot = connection.create_slot(SLOT, exported).await.unwrap();
    client.batch_execute("INSERT INTO notes VALUES (2)").await.unwrap();
    let snapshot = slot.snapshot.expect("it was asked for");
    let statement = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}';
         SELECT string_agg(id::text, ',') FROM notes"
    );
    assert_eq!(text(&client, &statement).await, "1");
    client.batch_execute("COMMIT").await.unwrap();

    let error = connection.create_slot(SLOT, SlotOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::DUPLICATE_OBJECT));
    let mut stream = Stream::start(&server, &output()).await;
    assert_eq!(stream.number().await, "2");
    let error = connection.drop_slot(SLOT).await.unwrap_err();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_IN_USE));
    stream.replication.stop().await.unwrap();
    connection.drop_slot(SLOT).await.unwrap();
    let other = connect(&server).await;
    let error = Stream::start_with(other, Lsn::ZERO, Flow::default()).await.err().unwrap();
    assert_eq!(error.code(), Some(&SqlState::UNDEFINED_OBJECT));

    let temporary = SlotOptions { temporary: true, ..SlotOptions::default() };
    let slot = connection.create_slot("gone", temporary).await.unwrap();
    assert_eq!(slot.snapshot, None);
    drop(connection);
    let count = || text(&client, "SELECT count(*) FROM pg_replication_slots");
    until("a temporary slot goes with its connection", async || count().await == "0").await;
}

#[tokio::test]
async fn making_a_slot_can_be_cancelled() {
    let (server, client) = server(&[]).await;
    client.batch_execute("BEGIN; INSERT INTO notes VALUES (1)").await.unwrap();
    let mut connection = connect(&server).await;
    let canceller = connection.canceller();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let cancel = async {
        let other = server.connect().await;
        until("it waits", async || text(&other, waits).await == "1").await;
        canceller.cancel(NoTls).await.unwrap();
    };
    let create = connection.create_slot(SLOT, SlotOptions::default());
    let (created, ()) = in_time(async { tokio::join!(create, cancel) }).await;
    assert_eq!(created.unwrap_err().code(), Some(&SqlState::QUERY_CANCELED));
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(text(&client, "SELECT count(*) FROM pg_replication_slots").await, "0");
    in_time(connection.create_slot(SLOT, SlotOptions::default())).await.unwrap();
}

#[tokio::test]
async fn a_slot_is_made_by_a_server_that_has_no_failover_slots() {
    let (server, _) = server(&[]).await;
    let mut connection = connect(&server).await;
    let failover = SlotOptions { failover: true, ..SlotOptions::default() };
    connection.create_slot(SLOT, failover).await.unwrap();
}

#[tokio::test]
async fn a_password_is_given_as_the_server_wants_it() {
    let (mut server, client) = server(&[]).await;
    let rules = text(&client, "SHOW hba_file").await;
    let statement =
        "SET password_encryption = 'md5'; CREATE ROLE old LOGIN REPLICATION PASSWORD 'secret'";
    client.batch_execute(statement).await.unwrap();
    let config: Config = server.url("postgres").parse().unwrap();
    let wrong = Config::clone(&config).password("canary").to_owned();
    for method in ["trust", "password", "md5", "scram-sha-256"] {
        std::fs::write(&rules, format!("host all all 127.0.0.1/32 {method}\n")).unwrap();
        server.restart(Stop::Fast).await;
        connect(&server).await.identify_system().await.unwrap();
        if method == "trust" {
            continue;
        }
        let error = refused(&wrong).await;
        assert_eq!(error.code(), Some(&SqlState::INVALID_PASSWORD), "{method}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        if method != "scram-sha-256" {
            let old = Config::clone(&config).user("old").password("secret").to_owned();
            Connection::connect(&old, NoTls).await.unwrap();
        }
        let mut without = Config::new();
        without.host("127.0.0.1").port(config.get_ports()[0]).user("postrider");
        assert!(matches!(refused(&without).await, Error::Authentication(_)), "{method}");
    }
    let bound = Config::clone(&config).channel_binding(ChannelBinding::Require).to_owned();
    assert!(matches!(refused(&bound).await, Error::Authentication(_)), "there is no TLS");
}

#[tokio::test]
async fn an_encrypted_connection_streams_too() {
    let tls = Some(Tls::Password);
    let server = Server::start(Options { tls, ..Options::default() }).await;
    let connector = |authority| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        MakeRustlsConnect::new(config.with_root_certificates(roots).with_no_client_auth())
    };
    let files = server.certificates();
    let ours = connector(&files.authority);
    let mut config: Config = server.url("postgres").parse().unwrap();
    config.ssl_mode(SslMode::Require).channel_binding(ChannelBinding::Require);
    let mut connection = Connection::connect(&config, ours.clone()).await.unwrap();
    connection.query(TABLE).await.unwrap();
    connection.create_slot(SLOT, SlotOptions::default()).await.unwrap();
    // More than a record of TLS, and more than fits into the queue.
    let insert = "INSERT INTO notes SELECT n, repeat('x', 10000) FROM generate_series(1, 2000) n";
    connection.query(insert).await.unwrap();
    let mut stream = Stream::start_with(connection, Lsn::ZERO, Flow::default()).await.unwrap();
    let (rows, _, end_lsn) = stream.transaction().await;
    assert_eq!(rows.len(), 2000);
    stream.replication.confirm(end_lsn);
    stream.replication.stop().await.unwrap();

    config.channel_binding(ChannelBinding::Disable);
    let connection = Connection::connect(&config, ours.clone()).await.unwrap();
    connection.canceller().cancel(ours.clone()).await.unwrap();

    let other = Connection::connect(&config, connector(&files.other_authority)).await.unwrap_err();
    assert!(matches!(other, Error::Tls(_)), "{other:?}");
    let by_number = Config::clone(&config).hostaddr([127, 0, 0, 1].into()).to_owned();
    Connection::connect(&by_number, ours).await.expect("the name is still the one to verify");
    assert!(matches!(refused(&config).await, Error::Tls(_)), "there is nothing to encrypt with");
    for mode in [SslMode::Disable, SslMode::Prefer] {
        config.ssl_mode(mode);
        let code = SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
        assert_eq!(refused(&config).await.code(), Some(&code));
    }
}

#[tokio::test]
async fn a_server_without_tls_is_used_as_sslmode_says() {
    let (server, _client) = server(&[]).await;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let connector = MakeRustlsConnect::new(config);
    let mut config: Config = server.url("postgres").parse().unwrap();
    Connection::connect(&config, connector.clone()).await.unwrap();
    config.ssl_mode(SslMode::Require);
    let error = Connection::connect(&config, connector).await.unwrap_err();
    assert!(matches!(error, Error::Tls(_)), "{error:?}");
}

#[tokio::test]
async fn a_socket_of_unix_will_do() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), everybody).unwrap();
    let setting = format!("unix_socket_directories = '{}'", folder.path().display());
    let (server, client) = server(&[&setting]).await;
    create_slot(&server).await;
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    let other: Config = server.url("postgres").parse().unwrap();
    let mut config = Config::new();
    config.host_path(folder.path()).port(other.get_ports()[0]).dbname("postgres");
    config.user("postrider").password("postrider");
    let connection = Connection::connect(&config, NoTls).await.unwrap();
    let mut stream = Stream::start_with(connection, Lsn::ZERO, Flow::default()).await.unwrap();
    assert_eq!(stream.number().await, "1");
}

#[tokio::test]
async fn a_configuration_has_one_host() {
    let mut config = Config::new();
    config.user("postrider");
    assert!(matches!(refused(&config).await, Error::Config(_)));
    config.host("one").host("two");
    assert!(matches!(refused(&config).await, Error::Config(_)));
    let mut config = Config::new();
    config.host("127.0.0.1").port(1).user("postrider");
    assert!(matches!(refused(&config).await, Error::Io(_)));
}
