//! Readers that are slow, servers that go.

use postrider_testkit::servers::postgres::Stop;
use tokio_postgres::error::SqlState;

use super::*;

/// Reads until there is an error.
async fn error(stream: &mut Stream) -> Error {
    loop {
        if let Err(error) = stream.frame().await {
            return error;
        }
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_keeps_its_connection() {
    let (server, client) = server(&["wal_sender_timeout = '2s'"]).await;
    create_slot(&server).await;
    let insert = "INSERT INTO notes SELECT n, repeat('x', 1000) FROM generate_series(1, 50000) n";
    client.batch_execute(insert).await.unwrap();
    let mut stream = Stream::start(&server, &output()).await;
    // Nothing of this runtime runs meanwhile.
    std::thread::sleep(Duration::from_secs(6));
    let (rows, _, end) = stream.transaction().await;
    assert_eq!(rows.len(), 50_000);
    client.batch_execute("INSERT INTO notes VALUES (0)").await.unwrap();
    assert_eq!(stream.number().await, "0");
    stream.replication.confirm(end);
    stream.replication.stop().await.unwrap();
    assert_eq!(confirmed(&client).await, end);
}

#[tokio::test]
async fn a_server_that_lives_is_heard() {
    let (server, _client) = server(&[]).await;
    create_slot(&server).await;
    let flow = Flow { status_interval: Duration::from_millis(100), ..Flow::default() };
    let connection = connect(&server).await;
    let mut stream = Stream::start_with(connection, Lsn::ZERO, flow).await.unwrap();
    let started = Instant::now();
    for _ in 0..5 {
        stream.frame().await.unwrap();
    }
    // By itself it says something every half a minute.
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_slot_has_one_reader() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let first = Stream::start(&server, &output()).await;
    let other = connect(&server).await;
    let error = Stream::start_with(other, Lsn::ZERO, Flow::default()).await.err().unwrap();
    assert_eq!(error.code(), Some(&SqlState::OBJECT_IN_USE), "{error:?}");
    first.replication.stop().await.unwrap();
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    assert_eq!(Stream::start(&server, &output()).await.number().await, "1");
}

#[tokio::test]
async fn a_server_that_goes_is_an_error() {
    let (mut server, client) = server(&[]).await;
    create_slot(&server).await;
    for (turn, how) in [Stop::Fast, Stop::Immediate].into_iter().enumerate() {
        let mut stream = Stream::start(&server, &output()).await;
        let insert = format!("INSERT INTO notes VALUES ({turn})");
        server.connect().await.batch_execute(&insert).await.unwrap();
        assert_eq!(stream.number().await, "0", "it was not confirmed");
        let (error, ()) = tokio::join!(error(&mut stream), server.restart(how));
        assert!(matches!(error, Error::Ended | Error::Io(_) | Error::Server(_)), "{error:?}");
        assert!(in_time(stream.replication.next()).await.unwrap().is_none(), "it was told");
        assert!(matches!(in_time(stream.replication.stop()).await, Err(Error::Ended)));
    }
    drop(client);

    let client = server.connect().await;
    let mut stream = Stream::start(&server, &output()).await;
    let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots";
    assert_eq!(text(&client, end).await, "t");
    let error = error(&mut stream).await;
    assert_eq!(error.code(), Some(&SqlState::ADMIN_SHUTDOWN), "{error:?}");
}

#[tokio::test]
async fn a_stream_outlives_the_runtime_that_started_it() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let config = server.url("postgres").parse().unwrap();
    let other = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connection = Connection::connect(&config, NoTls).await.unwrap();
            connection.start(SLOT, Lsn::ZERO, &output(), Flow::default()).await.unwrap()
        })
    });
    let mut stream = Stream::new(other.join().unwrap());
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    assert_eq!(stream.number().await, "1");
    stream.replication.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_can_shut_down_though_not_all_is_confirmed() {
    let (mut server, client) = server(&[]).await;
    create_slot(&server).await;
    let mut stream = Stream::start(&server, &output()).await;
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    let (_, _, end) = stream.transaction().await;
    client.batch_execute("INSERT INTO notes VALUES (2)").await.unwrap();
    assert_eq!(stream.number().await, "2");
    stream.replication.confirm(end);
    until("it is told", async || confirmed(&client).await == end).await;
    drop(client);
    let (error, ()) = tokio::join!(error(&mut stream), server.stop(Stop::Fast));
    assert!(matches!(error, Error::Ended), "{error:?}");
    server.start_again().await.unwrap();
    // Before version 17 the server may have forgotten what was confirmed.
    let connection = connect(&server).await;
    let mut stream = Stream::start_with(connection, end, Flow::default()).await.unwrap();
    assert_eq!(stream.number().await, "2");
}
