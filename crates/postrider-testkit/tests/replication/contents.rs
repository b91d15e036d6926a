//! What a stream brings.

use postrider_replication::pgoutput::Column;
use postrider_testkit::suites::process;

use super::*;

fn text_value(text: &str) -> Value {
    Value::Text(text.to_owned().into())
}

#[tokio::test]
async fn committed_transactions_come_in_order_of_commit() {
    let (server, client) = server(&[]).await;
    let start = create_slot(&server).await;
    let other = server.connect().await;
    client.batch_execute("BEGIN; INSERT INTO notes VALUES (1, 'one')").await.unwrap();
    other.batch_execute("BEGIN; INSERT INTO notes VALUES (2, NULL), (3, '')").await.unwrap();
    let rolled_back = "BEGIN; INSERT INTO notes VALUES (9); ROLLBACK";
    server.connect().await.batch_execute(rolled_back).await.unwrap();
    other.batch_execute("COMMIT").await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();

    let mut stream = Stream::start(&server, &output()).await;
    let Message::Begin { final_lsn, .. } = stream.message().await else { panic!("it begins") };
    assert!(final_lsn >= start);
    let Message::Relation(relation) = stream.message().await else { panic!("a table is told of") };
    assert_eq!((relation.schema.as_str(), relation.name.as_str()), ("public", "notes"));
    let column = |name: &str, type_oid, is_key| Column {
        name: name.to_owned(),
        type_oid,
        type_modifier: -1,
        is_key,
    };
    assert_eq!(relation.columns, [column("id", 23, true), column("note", 25, false)]);
    for expected in [[text_value("2"), Value::Null], [text_value("3"), text_value("")]] {
        let Message::Insert { relation: oid, new, .. } = stream.message().await else {
            panic!("a row is told of");
        };
        assert_eq!((oid, values(&new)), (relation.oid, expected.to_vec()));
    }
    assert!(matches!(stream.message().await, Message::Commit { .. }));
    let (rows, ..) = stream.transaction().await;
    assert_eq!(rows, [[text_value("1"), text_value("one")]]);
}

#[tokio::test]
async fn columns_come_in_binary() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    client.batch_execute("INSERT INTO notes VALUES (258, 'one')").await.unwrap();
    let output = PgOutput { binary: true, ..output() };
    let mut stream = Stream::start(&server, &output).await;
    let (rows, ..) = stream.transaction().await;
    let binary = |bytes: &'static [u8]| Value::Binary(bytes.into());
    assert_eq!(rows, [[binary(&[0, 0, 1, 2]), binary(b"one")]]);
}

#[tokio::test]
async fn logical_messages_come_with_their_transaction_or_without() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let emit = "
        BEGIN;
        SELECT pg_logical_emit_message(true, 'postrider', 'one');
        INSERT INTO notes VALUES (1);
        SELECT pg_logical_emit_message(true, 'postrider', '\\x00ff'::bytea);
        COMMIT;
        BEGIN;
        SELECT pg_logical_emit_message(true, 'postrider', 'rolled back');
        SELECT pg_logical_emit_message(false, 'other', 'at once');
        ROLLBACK;
        -- A message that belongs to no transaction does not force the log out.
        INSERT INTO notes VALUES (2);";
    client.batch_execute(emit).await.unwrap();
    let output = PgOutput { messages: true, ..output() };
    let mut stream = Stream::start(&server, &output).await;
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "row 2") {
        match stream.message().await {
            Message::Logical { transactional, prefix, content, lsn, .. } => {
                assert!(lsn > Lsn::ZERO);
                seen.push(format!("{prefix} {transactional} {content:?}"));
            }
            Message::Insert { new, .. } => {
                let Some(Value::Text(id)) = new.values().next() else { panic!("{new:?}") };
                seen.push(format!("row {}", String::from_utf8_lossy(&id)));
            }
            Message::Begin { .. } => seen.push("begin".to_owned()),
            Message::Commit { .. } => seen.push("commit".to_owned()),
            _ => {}
        }
    }
    let expected = [
        "begin",
        "postrider true b\"one\"",
        "row 1",
        "postrider true b\"\\0\\xff\"",
        "commit",
        "other false b\"at once\"",
        "begin",
        "row 2",
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_large_transaction_comes_in_blocks_and_its_savepoints_can_be_rolled_back() {
    let (server, client) = server(&["logical_decoding_work_mem = '64kB'"]).await;
    create_slot(&server).await;
    let output = PgOutput { streaming: true, messages: true, ..output() };
    let mut stream = Stream::start(&server, &output).await;
    let insert = |from: u32, to: u32| {
        format!("INSERT INTO notes SELECT n, repeat('x', 500) FROM generate_series({from}, {to}) n")
    };
    client.batch_execute(&format!("BEGIN; {}", insert(1, 500))).await.unwrap();
    let Message::StreamStart { xid, first: true } = stream.message().await else {
        panic!("it comes before it is committed");
    };
    let rest = format!(
        "SAVEPOINT a; {}; ROLLBACK TO a; {}; SELECT pg_logical_emit_message(true, 'p', 'm'); COMMIT",
        insert(1001, 1500),
        insert(2001, 2500)
    );
    client.batch_execute(&rest).await.unwrap();

    let mut rows: Vec<(u32, u32)> = Vec::new();
    let mut messages = 0;
    let mut aborted = Vec::new();
    let end = loop {
        match stream.message().await {
            Message::Insert { xid: Some(xid), new, .. } => {
                let Some(Value::Text(id)) = new.values().next() else { panic!("{new:?}") };
                rows.push((xid, std::str::from_utf8(&id).unwrap().parse().unwrap()));
            }
            Message::Logical { xid: Some(_), .. } => messages += 1,
            Message::Relation(relation) => assert!(relation.xid.is_some()),
            Message::StreamStart { xid: of, .. } => assert_eq!(of, xid),
            Message::StreamStop => {}
            Message::StreamAbort { xid: of, subxid } => {
                assert_eq!(of, xid);
                assert_ne!(subxid, xid);
                aborted.push(subxid);
                rows.retain(|(of, _)| *of != subxid);
            }
            Message::StreamCommit { xid: of, commit_lsn, end_lsn, .. } => {
                assert_eq!(of, xid);
                assert!(commit_lsn < end_lsn);
                break end_lsn;
            }
            message => panic!("{message:?} is no part of a streamed transaction"),
        }
    };
    let rows: Vec<u32> = rows.into_iter().map(|(_, id)| id).collect();
    assert_eq!(rows, (1..=500).chain(2001..=2500).collect::<Vec<_>>());
    assert_eq!((aborted.len(), messages), (1, 1));
    stream.replication.confirm(end);
    stream.replication.stop().await.unwrap();
    assert_eq!(confirmed(&client).await, end);
}

#[tokio::test]
async fn what_the_server_received_itself_is_left_out_where_the_server_can_do_that() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let replicated = "
        SELECT pg_replication_origin_create('elsewhere');
        SELECT pg_replication_origin_session_setup('elsewhere');
        INSERT INTO notes VALUES (1);
        SELECT pg_replication_origin_session_reset();
        INSERT INTO notes VALUES (2)";
    for statement in replicated.split(';') {
        client.batch_execute(statement).await.unwrap();
    }
    let output = PgOutput { origin_none: true, ..output() };
    let has_origins = connect(&server).await.server_version() >= 160_000;
    let mut stream = Stream::start(&server, &output).await;
    if !has_origins {
        // Before version 15 the making of the origin comes, too, as a transaction without rows.
        let name = loop {
            match stream.message().await {
                Message::Begin { .. } | Message::Commit { .. } => {}
                Message::Origin { name, .. } => break name,
                message => panic!("{message:?} does not say whence it comes"),
            }
        };
        assert_eq!(name, "elsewhere");
        while !matches!(stream.message().await, Message::Commit { .. }) {}
    }
    assert_eq!(stream.number().await, "2");
}

#[tokio::test]
async fn a_message_that_is_larger_than_the_queue_passes() {
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let large = 20 << 20;
    for statement in [
        "INSERT INTO notes VALUES (1)".to_owned(),
        format!("INSERT INTO notes VALUES (2, repeat('x', {large}))"),
        "INSERT INTO notes VALUES (3)".to_owned(),
    ] {
        client.batch_execute(&statement).await.unwrap();
    }
    let flow = Flow { buffer_bytes: 1 << 20, ..Flow::default() };
    let connection = connect(&server).await;
    let mut stream = Stream::start_with(connection, Lsn::ZERO, flow).await.unwrap();
    assert_eq!(stream.number().await, "1");
    let (rows, ..) = stream.transaction().await;
    assert!(matches!(&rows[0][1], Value::Text(note) if note.len() == large));
    drop(rows);
    assert_eq!(stream.number().await, "3");
}

/// A row and a message of 200 MB each: their lengths come, and their bytes take no memory.
#[tokio::test]
async fn what_is_too_long_is_passed_over_while_it_is_received() {
    const NAME: &str = "contents::what_is_too_long_is_passed_over_while_it_is_received";
    const LONG_BYTES: u32 = 200_000_000;
    if !process::is_alone() {
        process::run_alone(NAME).unwrap_or_else(|failed| panic!("{failed}"));
        return;
    }
    let (server, client) = server(&[]).await;
    create_slot(&server).await;
    let write = format!(
        "BEGIN;
         INSERT INTO notes VALUES (1, repeat('x', {LONG_BYTES}));
         SELECT pg_logical_emit_message(true, 'postrider', repeat('y', {LONG_BYTES}));
         INSERT INTO notes VALUES (2, 'short');
         COMMIT"
    );
    client.batch_execute(&write).await.unwrap();
    let before = process::peak_bytes();
    let output = PgOutput { messages: true, ..output() };
    let flow = Flow { buffer_bytes: 1 << 20, value_bytes_max: 2 << 20, ..Flow::default() };
    let started = connect(&server).await.start(SLOT, Lsn::ZERO, &output, flow).await;
    let mut stream = Stream::new(started.unwrap());
    let mut seen = Vec::new();
    loop {
        match stream.message().await {
            Message::Insert { new, .. } => seen.push(format!("{:?}", values(&new))),
            Message::Logical { prefix, content, length, .. } => {
                seen.push(format!("{prefix}: {} of {length}", content.len()));
            }
            Message::Commit { .. } => break,
            _ => {}
        }
    }
    let expected = [
        "[Text(b\"1\"), TooLong(200000000)]",
        "postrider: 2097152 of 200000000",
        "[Text(b\"2\"), Text(b\"short\")]",
    ];
    assert_eq!(seen, expected);
    let grown = process::peak_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "it took {} MiB", grown >> 20);
}
