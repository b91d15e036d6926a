//! The server is restarted, full, busy, or takes no writes.

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::pipeline::Status;
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{
    Bank, DEADLINE, Setup, StandingBy, Target, for_each_progress, until,
};
use postrider_testkit::servers::postgres::{Limit, Options, Server, Stop, can_limit_size};
use postrider_testkit::suites::sink::Behaviour;
use tokio::time::sleep;

use crate::{Line, stubborn};

/// A line for each way of keeping progress, in databases of one server.
async fn lines(server: &Server) -> Vec<Line> {
    let mut lines = Vec::new();
    for progress in Progress::ALL {
        let make = format!("CREATE DATABASE {progress}");
        server.connect().await.batch_execute(&make).await.unwrap();
        let bank = Arc::new(Bank::open(server.url(progress.as_str())).await);
        let url = bank.url().to_owned();
        lines.push(Line::start(bank, &url, progress).await);
    }
    lines
}

/// F45. Whether a commit worked that was under way is read from the table at the end.
#[tokio::test]
async fn a_server_that_crashes_again_and_again_loses_nothing() {
    let mut server = Server::start(Options::default()).await;
    let lines = lines(&server).await;
    let writing: Vec<_> = lines.iter().map(|line| stubborn().start(&line.bank)).collect();
    const RESTARTS: usize = 10;
    for _ in 0..RESTARTS {
        sleep(Duration::from_millis(fastrand::u64(100..500))).await;
        server.restart(Stop::Immediate).await;
    }
    sleep(Duration::from_millis(300)).await;
    for writing in writing {
        writing.stop().await;
    }
    for line in lines {
        assert!(line.bank.facts().await.len() > 20, "hardly anything was written");
        line.finish_after(RESTARTS).await;
    }
}

/// F45.
#[tokio::test]
async fn sessions_that_are_ended_by_an_operator_are_made_anew() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let line = Line::start(Arc::clone(&bank), bank.url(), progress).await;
        let writing = stubborn().start(&bank);
        let operator = bank.connect_beside().await;
        let end = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
            bank.database()
        );
        for _ in 0..30 {
            sleep(Duration::from_millis(50)).await;
            operator.batch_execute(&end).await.unwrap();
        }
        writing.stop().await;
        line.finish().await;
    })
    .await;
}

/// F48: a full table space fails statements. The relay has published what it cannot settle, so it
/// waits, and says why.
#[tokio::test]
async fn a_full_disk_is_waited_out() {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    const FULL: u64 = 100 << 20;
    let limit = Some(Limit::Data(FULL));
    let server = Server::start(Options { limit, ..Options::default() }).await;
    let mut lines = lines(&server).await;
    for line in &lines {
        line.target.behave(Behaviour::Away).await;
        // To mark so many rows takes more room than the table has left.
        line.bank.run("SELECT change(e, e % 20) FROM generate_series(1, 2000) AS e").await;
    }
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE filler (x text)").await.unwrap();
    for rows in [1000, 100, 10, 1] {
        let fill = format!(
            "INSERT INTO filler SELECT repeat(md5(n::text), 60) FROM generate_series(1, {rows}) n"
        );
        while client.batch_execute(&fill).await.is_ok() {}
    }
    for line in &lines {
        line.target.behave(Behaviour::Well).await;
    }
    let mark = lines.last_mut().expect("there are three");
    let is_full = |status: &Status| {
        status.source_trouble.as_deref().is_some_and(|it| it.contains("disk space"))
    };
    mark.relay.until("it says that the disk is full", is_full).await;
    assert!(!mark.relay.status().is_ready());
    server.resize(4 * FULL);
    for line in lines {
        line.finish().await;
    }
}

/// F48: without room for its log the server crashes, and does not start before there is some.
#[tokio::test]
async fn a_full_log_is_waited_out() {
    if !can_limit_size() {
        println!("not run: this takes the right to mount");
        return;
    }
    let limit = Some(Limit::Wal(40 << 20));
    let mut server = Server::start(Options { limit, ..Options::default() }).await;
    let mut lines = lines(&server).await;
    let writing: Vec<_> = lines.iter().map(|line| stubborn().start(&line.bank)).collect();
    let client = server.connect().await;
    let fill = "CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 60000)";
    assert!(client.batch_execute(fill).await.is_err());
    server.stop(Stop::Immediate).await;
    assert!(server.start_again().await.is_err(), "there is no room");
    for line in &mut lines {
        let is_away = |status: &Status| status.source_trouble.is_some();
        line.relay.until("it says that the server is away", is_away).await;
    }
    server.resize(400 << 20);
    server.start_again().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    for writing in writing {
        writing.stop().await;
    }
    for line in lines {
        // It crashes by itself, is stopped, and cannot start at first.
        line.finish_after(3).await;
    }
}

/// F48: as after a failover to a server that is not the primary yet.
#[tokio::test]
async fn a_database_that_takes_no_writes_for_a_while_is_waited_for() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let mut line = Line::start(Arc::clone(&bank), bank.url(), progress).await;
        let before = bank.change_often(1, 10).await;
        line.target.until_arrived(&before).await;
        let operator = bank.connect_beside().await;
        let name = bank.database();
        let set = |on: &str| {
            format!(
                "ALTER DATABASE {name} SET default_transaction_read_only = {on};
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )
        };
        let writing = stubborn().start(&bank);
        operator.batch_execute(&set("on")).await.unwrap();
        let is_away = |status: &Status| {
            status.source_trouble.as_deref().is_some_and(|it| it.contains("takes no writes"))
        };
        line.relay.until("it says that nothing can be written", is_away).await;
        operator.batch_execute(&set("off")).await.unwrap();
        writing.stop().await;
        bank.change_often(1, 10).await;
        line.finish().await;
    })
    .await;
}

/// F45: `53300`, for a relay that loses its connections and for one that starts.
#[tokio::test]
async fn a_server_without_free_connections_is_waited_for() {
    let settings = vec!["max_connections = 12".to_owned()];
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let bank = Arc::new(Bank::open(server.url("postgres")).await);
    let line = Line::start(Arc::clone(&bank), bank.url(), Progress::Mark).await;
    let events = bank.change_often(1, 10).await;
    line.target.until_arrived(&events).await;
    let mut clients = vec![server.connect().await];
    clients[0]
        .batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name LIKE 'postrider%'",
        )
        .await
        .unwrap();
    let started = std::time::Instant::now();
    while !line.relay.status().source_trouble.is_some_and(|it| it.contains("max_connections")) {
        assert!(started.elapsed() < DEADLINE, "{:?}", line.relay.status());
        let url = server.url("postgres");
        match tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                clients.push(client);
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
        // It may have been quicker: then it is told to go once more.
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name LIKE 'postrider%'";
        clients[0].batch_execute(end).await.unwrap();
    }
    let other = Target::start().await;
    let mut setup = Setup::new(bank.url(), &other, Progress::Mark);
    setup.pipelines[0].0 = "default".to_owned();
    let standing_by = StandingBy::start(&setup);
    sleep(Duration::from_millis(300)).await;
    assert!(!standing_by.has_ended(), "it waits");
    drop(clients);
    // The first relay is still the owner.
    until("connections are free again", || async {
        tokio_postgres::connect(bank.url(), tokio_postgres::NoTls).await.is_ok()
    })
    .await;
    bank.change_often(1, 10).await;
    line.finish().await;
    let events = bank.change_often(1, 10).await;
    other.until_arrived(&events).await;
    standing_by.stop().await;
}
