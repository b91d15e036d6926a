//! PostgreSQL gives numbers before transactions commit. What is read, when, and in which order,
//! with real transactions side by side.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::sync::Arc;
use std::time::Duration;

use postrider_relay::sources::Progress;
use postrider_testkit::chaos::{A_WHILE, Bank, Running, Target, Writers, seed, spec, until};
use postrider_testkit::servers::postgres::{Options, Server, Stop};
use tokio::time::sleep;

/// A test for each way of keeping progress.
macro_rules! for_each_progress {
    ($($case:ident),+ $(,)?) => {
        for_each_progress!(@ cursor Cursor $($case)+);
        for_each_progress!(@ delete Delete $($case)+);
        for_each_progress!(@ mark Mark $($case)+);
    };
    (@ $module:ident $progress:ident $($case:ident)+) => {
        mod $module {
            use postrider_relay::sources::Progress;
            $(#[tokio::test] async fn $case() { super::$case(Progress::$progress).await })+
        }
    };
}

for_each_progress!(
    a_late_commit_of_a_lower_number_is_delivered,
    a_late_commit_is_delivered_after_a_restart,
    open_transactions_stall_nothing,
    the_order_is_that_of_turns_and_not_of_transactions,
    savepoints_take_their_events_with_them,
    many_savepoints_at_once_hide_nothing,
    gaps_in_the_numbers_are_nothing_to_wait_for,
    cached_numbers_lose_nothing,
    fifty_writers_keep_the_order_of_every_account,
    an_update_of_a_row_does_not_hide_it,
);

/// G-01, T1.
async fn a_late_commit_of_a_lower_number_is_delivered(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    let late = bank.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    let first = bank.change(&late, 1).await.unwrap();
    let others = bank.change_often(2, 20).await;
    target.until_arrived(&others).await;
    sleep(A_WHILE).await;
    assert!(!target.has(first), "it is not committed");
    late.batch_execute("COMMIT").await.unwrap();
    target.until_arrived(&[first]).await;
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 21);
}

/// G-01, G-04: what was open at a stop is found by the next start, and nothing comes again.
async fn a_late_commit_is_delivered_after_a_restart(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let (late, later) = (bank.connect().await, bank.connect().await);
    for (client, account) in [(&late, 1), (&later, 2)] {
        client.batch_execute("BEGIN").await.unwrap();
        bank.change(client, account).await.unwrap();
    }
    let spec = spec(bank.url(), progress);
    let relay = Running::start(&spec, &target).await;
    let others = bank.change_often(3, 20).await;
    target.until_arrived(&others).await;
    relay.stop().await;
    late.batch_execute("COMMIT").await.unwrap();
    bank.change_often(3, 20).await;
    let relay = Running::start(&spec, &target).await;
    bank.check(&target, 0).await;
    later.batch_execute("COMMIT").await.unwrap();
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 22);
}

/// T2: neither in this database nor in another one of the cluster, nor a temporary table, nor a
/// snapshot that somebody keeps.
async fn open_transactions_stall_nothing(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let elsewhere = bank.connect_beside().await;
    elsewhere.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    let clients = [bank.connect().await, bank.connect().await, bank.connect().await];
    for (client, statement) in clients.iter().zip([
        "INSERT INTO accounts VALUES (99, 0)",
        "CREATE TEMPORARY TABLE notes (n bigint)",
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox",
    ]) {
        client.batch_execute(&format!("BEGIN; {statement}")).await.unwrap();
    }
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    for round in 0..3 {
        let events = bank.change_often(round, 20).await;
        target.until_arrived(&events).await;
    }
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 60);
}

/// G-03, T2: writer A takes its transaction number early; B has its turn on the account first.
async fn the_order_is_that_of_turns_and_not_of_transactions(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let (a, b) = (bank.connect().await, bank.connect().await);
    // Once with a relay that reads both at once, and once with one that reads in between.
    for runs_before in [false, true] {
        let spec = spec(bank.url(), progress);
        let mut relay = None;
        if runs_before {
            relay = Some(Running::start(&spec, &target).await);
        }
        for round in 0..10 {
            a.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
            b.batch_execute("BEGIN").await.unwrap();
            let second = bank.change(&b, 1).await.unwrap();
            b.batch_execute("COMMIT").await.unwrap();
            if runs_before && round % 2 == 0 {
                target.until_arrived(&[second]).await;
            }
            bank.change(&a, 1).await.unwrap();
            a.batch_execute("COMMIT").await.unwrap();
        }
        let relay = match relay {
            Some(relay) => relay,
            None => Running::start(&spec, &target).await,
        };
        bank.check(&target, 0).await;
        assert_eq!(relay.stop().await.delivered, 20);
    }
}

/// G-02.
async fn savepoints_take_their_events_with_them(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    let client = bank.connect().await;
    let run = async |statement: &str| client.batch_execute(statement).await.unwrap();
    run("BEGIN; SAVEPOINT one").await;
    let kept = bank.change(&client, 1).await.unwrap();
    run("RELEASE one; SAVEPOINT two").await;
    let gone = bank.change(&client, 1).await.unwrap();
    run("ROLLBACK TO two; SAVEPOINT three; SAVEPOINT four").await;
    let inner = bank.change(&client, 2).await.unwrap();
    run("RELEASE four; ROLLBACK TO three").await;
    // An exception block is a savepoint, too.
    run("DO $$ BEGIN PERFORM change(1000, 1); RAISE EXCEPTION 'no';
         EXCEPTION WHEN raise_exception THEN PERFORM change(1001, 1); END $$")
    .await;
    let last = bank.change(&client, 1).await.unwrap();
    run("COMMIT").await;
    bank.check(&target, 0).await;
    assert_eq!(target.events(), [kept, 1001, last]);
    assert!(!target.has(gone) && !target.has(inner) && !target.has(1000));
    relay.stop().await;
}

/// G-01: a snapshot lists no more than 64 subtransactions of a transaction.
async fn many_savepoints_at_once_hide_nothing(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    let clients = [bank.connect().await, bank.connect().await, bank.connect().await];
    for client in &clients {
        client.batch_execute("BEGIN").await.unwrap();
    }
    for point in 0..100 {
        for (account, client) in (0..).zip(&clients) {
            client.batch_execute(&format!("SAVEPOINT p{point}")).await.unwrap();
            bank.change(client, account).await.unwrap();
            if point % 5 == 0 {
                client.batch_execute(&format!("ROLLBACK TO p{point}")).await.unwrap();
            }
        }
        if point % 20 == 0 {
            let beside = bank.change_often(9, 1).await;
            target.until_arrived(&beside).await;
        }
    }
    for (account, client) in (0..).zip(&clients) {
        client.batch_execute("COMMIT").await.unwrap();
        bank.change_often(account, 3).await;
    }
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 3 * 80 + 3 * 3 + 5);
}

/// T3: rollbacks and jumps leave gaps for ever.
async fn gaps_in_the_numbers_are_nothing_to_wait_for(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    let client = bank.connect().await;
    let sequence = "pg_get_serial_sequence('outbox', 'seq')";
    for round in 0..10 {
        client.batch_execute("BEGIN").await.unwrap();
        bank.change(&client, 1).await.unwrap();
        client.batch_execute("ROLLBACK").await.unwrap();
        let jump = format!("SELECT setval({sequence}, nextval({sequence}) + 1000000000)");
        client.batch_execute(&jump).await.unwrap();
        let event = bank.change_often(round % 3, 1).await;
        target.until_arrived(&event).await;
    }
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 10);
}

/// G-01, T4b: with a cache, the numbers of an account are not in the order of its turns. Order is
/// then not promised, but nothing is lost.
async fn cached_numbers_lose_nothing(progress: Progress) {
    let bank = Bank::fresh().await;
    bank.run("ALTER TABLE outbox ALTER COLUMN seq SET CACHE 50").await;
    let target = Target::start().await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    let pause_max = Duration::from_millis(20);
    let writers = Writers { count: 10, pause_max, delay_max: pause_max, ..Writers::default() };
    let writing = writers.start(&bank);
    sleep(Duration::from_secs(1)).await;
    writing.stop().await;
    bank.until_delivered(&target).await;
    bank.until_settled().await;
    use postrider_testkit::history::Wrong;
    let mut wrong = bank.wrongs(&target, 0).await;
    wrong.retain(|wrong| !matches!(wrong, Wrong::OutOfOrder { .. }));
    assert_eq!(wrong, []);
    relay.stop().await;
}

/// G-01 to G-04: random delays, and one in five transactions is rolled back.
async fn fifty_writers_keep_the_order_of_every_account(progress: Progress) {
    let seed = seed();
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    let spec = spec(bank.url(), progress);
    let mut relay = Running::start(&spec, &target).await;
    let writing = Writers { seed, ..Writers::default() }.start(&bank);
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        relay.stop().await;
        relay = Running::start(&spec, &target).await;
    }
    writing.stop().await;
    bank.check(&target, 0).await;
    relay.stop().await;
    assert!(target.count() > 200, "only {} events", target.count());
}

/// An operator who changes a row that has not been read changes its place in the table, not in
/// the order.
async fn an_update_of_a_row_does_not_hide_it(progress: Progress) {
    let bank = Bank::fresh().await;
    let target = Target::start().await;
    bank.change_often(1, 10).await;
    bank.run("UPDATE outbox SET headers = '{\"by\": \"hand\"}' WHERE seq % 2 = 0").await;
    let relay = Running::start(&spec(bank.url(), progress), &target).await;
    bank.check(&target, 0).await;
    assert_eq!(relay.stop().await.delivered, 10);
}

/// G-01: a prepared transaction outlives its session and the server.
#[tokio::test]
async fn a_prepared_transaction_left_open_stalls_nothing() {
    let mut server = Server::start(Options::default()).await;
    let mut banks = Vec::new();
    for progress in Progress::ALL {
        server.connect().await.batch_execute(&format!("CREATE DATABASE {progress}")).await.unwrap();
        let bank = Bank::open(server.url(progress.as_str())).await;
        let client = bank.connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        let event = bank.change(&client, 1).await.unwrap();
        client.batch_execute(&format!("PREPARE TRANSACTION '{progress}'")).await.unwrap();
        let target = Target::start().await;
        let spec = spec(bank.url(), progress);
        let relay = Running::start(&spec, &target).await;
        let others = bank.change_often(2, 20).await;
        target.until_arrived(&others).await;
        relay.stop().await;
        banks.push((progress, bank, target, spec, event));
    }
    server.restart(Stop::Immediate).await;
    for (progress, bank, target, spec, event) in banks {
        let relay = Running::start(&spec, &target).await;
        let others = bank.change_often(2, 20).await;
        target.until_arrived(&others).await;
        assert!(!target.has(event), "it is not committed");
        bank.run(&format!("COMMIT PREPARED '{progress}'")).await;
        bank.check(&target, 0).await;
        assert_eq!(relay.stop().await.delivered, 21);
    }
}

/// G-01, G-03: the 32 bits of transaction numbers are used up while pipelines run over it.
#[tokio::test]
async fn an_epoch_of_transactions_ends_while_pipelines_run() {
    let mut server = Server::start(Options::default()).await;
    server.reset_xid(u32::MAX - 2_000).await;
    let mut opened = Vec::new();
    for progress in Progress::ALL {
        server.connect().await.batch_execute(&format!("CREATE DATABASE {progress}")).await.unwrap();
        let bank = Arc::new(Bank::open(server.url(progress.as_str())).await);
        let target = Target::start().await;
        let spec = spec(bank.url(), progress);
        let relay = Running::start(&spec, &target).await;
        // Open before the end of the epoch, committed after it.
        let late = bank.connect().await;
        late.batch_execute("BEGIN").await.unwrap();
        bank.change(&late, 50).await.unwrap();
        opened.push((bank, target, spec, relay, late));
    }
    let client = server.connect().await;
    let next = || async {
        let query = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        client.query_one(query, &[]).await.unwrap().get::<_, i64>(0)
    };
    let end = i64::from(u32::MAX);
    assert!(next().await < end, "the epoch has ended too early");
    let habits = Writers {
        count: 5,
        pause_max: Duration::from_millis(2),
        delay_max: Duration::from_millis(2),
        ..Writers::default()
    };
    let writing: Vec<_> = opened.iter().map(|(bank, ..)| habits.start(bank)).collect();
    until("the epoch ends", || async { next().await > end + 500 }).await;
    for ((bank, target, spec, relay, late), writing) in opened.into_iter().zip(writing) {
        relay.stop().await;
        let relay = Running::start(&spec, &target).await;
        late.batch_execute("COMMIT").await.unwrap();
        writing.stop().await;
        bank.check(&target, 0).await;
        relay.stop().await;
    }
}

/// G-01: the number after the last one of an epoch is none that a snapshot may have.
#[tokio::test]
async fn the_last_transaction_of_an_epoch_is_settled_like_any_other() {
    let mut server = Server::start(Options::default()).await;
    server.reset_xid(u32::MAX - 2_000).await;
    let bank = Bank::open(server.url("postgres")).await;
    let client = bank.connect().await;
    let last = i64::from(u32::MAX);
    loop {
        client.batch_execute("BEGIN").await.unwrap();
        let xid = "SELECT pg_current_xact_id()::text::bigint";
        let xid: i64 = client.query_one(xid, &[]).await.unwrap().get(0);
        assert!(xid <= last, "the last number was passed over");
        if xid == last {
            break;
        }
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    bank.change(&client, 1).await.unwrap();
    client.batch_execute("COMMIT").await.unwrap();
    let target = Target::start().await;
    let spec = spec(bank.url(), Progress::Cursor);
    let relay = Running::start(&spec, &target).await;
    bank.check(&target, 0).await;
    relay.stop().await;
}
