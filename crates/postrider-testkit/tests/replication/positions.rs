//! What is confirmed is not sent again, and nothing else is lost.

use super::*;

#[tokio::test]
async fn what_is_confirmed_is_in_the_slot_when_the_stream_has_stopped() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let mut stream = Stream::start(&server, &output()).await;
    let mut ends = Vec::new();
    for id in 1..=3 {
        client.batch_execute(&format!("INSERT INTO notes VALUES ({id})")).await.unwrap();
        ends.push(stream.transaction().await.2);
    }
    stream.replication.confirm(ends[1]);
    stream.replication.confirm(ends[0]);
    stream.replication.stop().await.unwrap();
    assert_eq!(confirmed(&client).await, ends[1], "it does not go back");
    let active = "SELECT active FROM pg_replication_slots";
    assert_eq!(text(&client, active).await, "f", "the server has let go of it");

    let mut stream = Stream::start(&server, &output()).await;
    assert_eq!(stream.number().await, "3");
    stream.replication.confirm(ends[2]);
    until("it is told soon", async || confirmed(&client).await == ends[2]).await;
    drop(stream);
    until("the thread ends", async || text(&client, active).await == "f").await;

    // Stopped in the middle of what is under way.
    let insert = "INSERT INTO notes SELECT n, repeat('x', 1000) FROM generate_series(10, 20000) n";
    client.batch_execute(insert).await.unwrap();
    let stream = Stream::start(&server, &output()).await;
    assert!(in_time(stream.replication.next()).await.unwrap().is_some());
    in_time(stream.replication.stop()).await.unwrap();
    assert_eq!(confirmed(&client).await, ends[2]);
}

#[tokio::test]
async fn of_two_adjacent_commits_exactly_the_second_comes_again() {
    let (server, client) = server(&["bgwriter_lru_maxpages = 0", "autovacuum = off"]).await;
    create_slot(&server).await;
    let other = server.connect().await;
    // Anything may be written to the log between two commits; then it is done again.
    for attempt in 0.. {
        assert!(attempt < 20, "no two commits are adjacent");
        let (first, second) = (2 * attempt + 1, 2 * attempt + 2);
        let insert = |id| format!("BEGIN; INSERT INTO notes VALUES ({id})");
        client.batch_execute(&insert(first)).await.unwrap();
        other.batch_execute(&insert(second)).await.unwrap();
        client.batch_execute("COMMIT").await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
        let mut stream = Stream::start(&server, &output()).await;
        let (_, _, end) = stream.transaction().await;
        let (_, commit, last) = stream.transaction().await;
        if end != commit {
            stream.replication.confirm(last);
            stream.replication.stop().await.unwrap();
            continue;
        }
        stream.replication.confirm(end);
        stream.replication.stop().await.unwrap();
        assert_eq!(confirmed(&client).await, end);
        let mut stream = Stream::start(&server, &output()).await;
        assert_eq!(stream.number().await, second.to_string());
        return;
    }
}

#[tokio::test]
async fn a_stream_starts_where_it_is_told_to() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    client.batch_execute("INSERT INTO notes VALUES (1)").await.unwrap();
    client.batch_execute("INSERT INTO notes VALUES (2)").await.unwrap();
    let mut stream = Stream::start(&server, &output()).await;
    let (_, commit, end) = stream.transaction().await;
    stream.replication.stop().await.unwrap();
    for (at, expected) in [(end, "2"), (commit, "1"), (Lsn::ZERO, "1")] {
        let connection = connect(&server).await;
        let mut stream = Stream::start_with(connection, at, Flow::default()).await.unwrap();
        assert_eq!(stream.number().await, expected, "{at}");
        stream.replication.stop().await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_stream_advances_by_keepalives() {
    let (server, client) = server(&[]).await;
    let before = create_slot(&server).await;
    let mut stream = Stream::start(&server, &output()).await;
    client.batch_execute("CREATE TABLE other AS SELECT generate_series(1, 10000)").await.unwrap();
    let position = text(&client, "SELECT pg_current_wal_lsn()").await.parse().unwrap();
    loop {
        match stream.frame().await.unwrap() {
            Frame::Keepalive { wal_end } => {
                stream.replication.confirm(wal_end);
                if wal_end >= position {
                    break;
                }
            }
            // Before version 15 there are transactions without rows.
            Frame::XLogData { data, .. } => match decode(data, false).unwrap() {
                Message::Begin { .. } | Message::Commit { .. } => {}
                message => panic!("{message:?} is not published"),
            },
        }
    }
    stream.replication.stop().await.unwrap();
    assert!(confirmed(&client).await >= position && position > before);
}
