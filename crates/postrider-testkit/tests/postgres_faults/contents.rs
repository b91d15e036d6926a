//! What is in the rows.

use std::time::Duration;

use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::source::{BatchLimit, Settlement, Verdict};
use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{Bank, Running, Target, for_each_progress, spec, until};
use postrider_testkit::servers::postgres::{Options, Server};

/// F60, F61: payloads come as they were written, byte for byte.
#[tokio::test]
async fn payloads_come_byte_for_byte() {
    let numbers = r#"{"n": 9007199254740993, "m": 12345678901234567890.10,  "x":1e400}"#;
    let payloads: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![b'x'; 60],
        (0..=255).collect(),
        (0..1024 * 1024).map(|n: u32| (n % 251) as u8).collect(),
        numbers.as_bytes().to_vec(),
    ];
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        let client = bank.connect().await;
        for payload in &payloads {
            client
                .execute(
                    "SELECT outbox_publish('Blob', 'b', 'Made', $1::bytea)",
                    &[&payload.as_slice()],
                )
                .await
                .unwrap();
        }
        client
            .execute("SELECT outbox_publish('Blob', 'b', 'Made', $1::text)", &[&numbers])
            .await
            .unwrap();
        let target = Target::start().await;
        let relay = Running::start(&spec(bank.url(), progress), &target).await;
        until("all have arrived", || async { target.count() == payloads.len() + 1 }).await;
        let arrived: Vec<Vec<u8>> = target.arrivals().into_iter().map(|it| it.body).collect();
        assert_eq!(arrived[..payloads.len()], payloads, "{progress}");
        assert_eq!(arrived[payloads.len()], numbers.as_bytes(), "{progress}");
        relay.stop().await;
    })
    .await;
}

/// F61, F62: a time that no message can carry is the operator's; its key waits, others flow.
#[tokio::test]
async fn times_without_end_are_parked() {
    for_each_progress(async |progress| {
        let bank = Bank::fresh().await;
        bank.run(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
             SELECT 'Account', n::text, 'Odd', '{}', t FROM unnest(ARRAY['infinity', '-infinity',
             '294276-12-31', '4713-01-01 BC']::timestamptz[]) WITH ORDINALITY AS times (t, n)",
        )
        .await;
        bank.change_often(9, 5).await;
        let target = Target::start().await;
        let relay = Running::start(&spec(bank.url(), progress), &target).await;
        until("the others arrive", || async { target.count() >= 5 }).await;
        let parked = || async {
            bank.number("SELECT count(*) FROM outbox_failures WHERE state = 'parked'").await == 4
        };
        until("they are parked", parked).await;
        bank.until_settled().await;
        assert_eq!(relay.stop().await.parked, 4);
        assert_eq!(target.count(), 5);
    })
    .await;
}

/// F65: text of another encoding, and messages that this encoding has no characters for.
#[tokio::test]
async fn a_latin1_database_is_read_as_any_other() {
    let server = Server::start(Options::default()).await;
    let make = "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0";
    server.connect().await.batch_execute(make).await.unwrap();
    let bank = Bank::open(server.url("latin")).await;
    bank.run(
        "SELECT outbox_publish('Äpfel', 'Größe é', 'Gewählt', '{\"name\": \"é\"}'::text,
         headers => '{\"wer\": \"Jürgen\"}')",
    )
    .await;
    let limit = BatchLimit { events: 10, bytes: 1 << 20, wait: Duration::from_secs(5) };
    let spec = spec(bank.url(), Progress::Mark);
    let source = spec.connect().await.unwrap();
    source.resume().await.unwrap();
    let records = source.next_batch(limit).await.unwrap();
    let failure =
        Failure { kind: FailureKind::Rejected, message: "нет → €".to_owned(), attempts: 1 };
    let verdict = Verdict::Parked { failure, blocks: true };
    source.settle(&[Settlement { handle: records[0].handle, verdict }]).await.unwrap();
    source.close().await.unwrap();
    bank.run("UPDATE outbox_failures SET state = 'deferred', due_at = now()").await;
    let target = Target::start().await;
    let relay = Running::start(&spec, &target).await;
    until("it arrives", || async { target.count() == 1 }).await;
    let arrival = target.arrivals().remove(0);
    assert_eq!(arrival.body, "{\"name\": \"é\"}".as_bytes());
    assert_eq!(arrival.key, "Gr%C3%B6%C3%9Fe%20%C3%A9");
    relay.stop().await;
}
