//! What an operator sees of an outbox in PostgreSQL, beyond what the source suite asks of all.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::schema::{self, TableName};
use postrider_relay::admin::{Admin, LeaseStatus, PipelineStatus, Selection};
use postrider_relay::events::Wanted;
use postrider_relay::failure::{Failure, FailureKind};
use postrider_relay::reconcile::MissedKind;
use postrider_relay::source::{BatchLimit, NotPermitted, Settlement, Source, Verdict};
use postrider_relay::sources::{self, Progress, Shard, SourceSpec};
use postrider_testkit::servers::postgres::Database;
use tokio_postgres::Client;

const LIMIT: BatchLimit = BatchLimit { events: 100, bytes: 1 << 20, wait: Duration::from_secs(10) };

struct Outbox {
    client: Client,
    database: Database,
}

impl Outbox {
    async fn fresh() -> Self {
        let database = Database::fresh().await;
        let mut client = database.connect().await;
        schema::postgres::migrate(&mut client, &TableName::default(), None).await.unwrap();
        Self { client, database }
    }

    async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Writes events of the orders `first` to `last`, in a transaction of their own.
    async fn insert(&self, first: u32, last: u32) {
        self.run(&insertion(first, last)).await;
    }

    async fn admin(&self) -> Box<dyn Admin> {
        let (table, columns) = (TableName::default(), BTreeMap::new());
        sources::connect_admin(&self.database.url(), &table, &columns).await.unwrap()
    }

    async fn pipeline(&self) -> PipelineStatus {
        let status = self.admin().await.status().await.unwrap();
        assert_eq!(status.database, "postgres");
        let [pipeline] = <[_; 1]>::try_from(status.pipelines).unwrap();
        pipeline
    }

    /// Counts what is read of the outbox from now on.
    async fn count_reads(&self) {
        self.run("SELECT pg_stat_force_next_flush()").await;
        self.run("SELECT pg_stat_reset()").await;
    }

    /// How often the whole outbox was read since then, and how many rows of it by an index.
    async fn reads(&self) -> (i64, i64) {
        let of_outbox = "FROM pg_stat_user_tables WHERE relname = 'outbox'";
        let scans = format!("SELECT idx_scan {of_outbox}");
        let look = async {
            while self.number(&scans).await == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), look).await.expect("it is counted");
        let scans = self.number(&format!("SELECT seq_scan {of_outbox}")).await;
        (scans, self.number(&format!("SELECT idx_tup_fetch {of_outbox}")).await)
    }

    async fn source(&self, progress: Progress, shard: Shard) -> Box<dyn Source> {
        let spec = SourceSpec { progress, shard, ..SourceSpec::new(self.database.url()) };
        let source = spec.connect().await.unwrap();
        source.resume().await.unwrap();
        source
    }
}

fn insertion(first: u32, last: u32) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT 'Order', n::text, 'OrderPaid', '' FROM generate_series({first}, {last}) AS n"
    )
}

/// Within a tick: what is not settled of it, what came later, and what came late with a low
/// number.
#[tokio::test]
async fn a_cursor_counts_what_it_has_before_it() {
    let outbox = Outbox::fresh().await;
    let late = outbox.database.connect().await;
    outbox.insert(1, 5).await;
    late.batch_execute(&format!("BEGIN; {}", insertion(6, 7))).await.unwrap();
    outbox.insert(8, 20).await;
    outbox
        .run(
            "INSERT INTO outbox_checkpoints (pipeline, progress, base, tick, position, beyond)
             VALUES ('default', 'cursor', '1:1:', pg_current_snapshot(), 10, '{[12,14),[20,21)}')",
        )
        .await;
    // 11 and 14 to 19.
    assert_eq!(outbox.pipeline().await.unpublished, 7);
    late.batch_execute("COMMIT").await.unwrap();
    assert_eq!(outbox.pipeline().await.unpublished, 9);
    outbox.insert(21, 23).await;
    let status = outbox.pipeline().await;
    assert_eq!(status.unpublished, 12);
    assert!(status.oldest_unpublished_age.is_some_and(|age| age < Duration::from_secs(60)));
    outbox
        .run(
            "UPDATE outbox_checkpoints SET base = pg_current_snapshot(),
             tick = pg_current_snapshot(), position = 0, beyond = '{}'",
        )
        .await;
    let status = outbox.pipeline().await;
    assert_eq!((status.unpublished, status.oldest_unpublished_age), (0, None));
    outbox.insert(24, 24).await;
    assert_eq!(outbox.pipeline().await.unpublished, 1);
}

/// The shards of a pipeline are one pipeline, with a lease each.
#[tokio::test]
async fn shards_are_counted_together() {
    let outbox = Outbox::fresh().await;
    outbox.insert(1, 40).await;
    let mut open = Vec::new();
    let mut settled = 0;
    for index in 0..2 {
        let source = outbox.source(Progress::Cursor, Shard { index, of: 2 }).await;
        let read = source.next_batch(LIMIT).await.unwrap();
        let deliver = if index == 0 { read.len() } else { 5 };
        settled += deliver;
        let verdicts: Vec<Settlement> = read[..deliver]
            .iter()
            .map(|record| Settlement { handle: record.handle, verdict: Verdict::Delivered })
            .collect();
        source.settle(&verdicts).await.unwrap();
        open.push(source);
    }
    let status = outbox.pipeline().await;
    assert_eq!(status.unpublished, 40 - settled as u64);
    assert!(status.last_settled_at.is_some());
    let leases: Vec<(u32, bool, bool)> = status
        .leases
        .iter()
        .map(|lease: &LeaseStatus| {
            let is_held = !lease.expires_in.is_zero() && lease.epoch > 0;
            (lease.shard, is_held, lease.owner.as_deref() == Some("relay"))
        })
        .collect();
    assert_eq!(leases, [(0, true, true), (1, true, true)]);
    for source in open {
        source.close().await.unwrap();
    }
    let status = outbox.pipeline().await;
    let free = |lease: &LeaseStatus| lease.owner.is_none() && lease.expires_in.is_zero();
    assert!(status.leases.len() == 2 && status.leases.iter().all(free), "{:?}", status.leases);
}

/// G-07: looking at a large outbox costs no more than at a small one.
#[tokio::test]
async fn the_status_never_reads_the_whole_table() {
    for progress in Progress::ALL {
        let outbox = Outbox::fresh().await;
        outbox.insert(1, 20_000).await;
        outbox
            .run(&format!(
                "UPDATE outbox SET published_at = now() WHERE '{progress}' <> 'cursor';
                 INSERT INTO outbox_checkpoints (pipeline, progress, base, tick)
                 VALUES ('default', '{progress}', pg_current_snapshot(), pg_current_snapshot())"
            ))
            .await;
        outbox.run("VACUUM ANALYZE outbox").await;
        outbox.insert(20_001, 20_003).await;
        outbox.count_reads().await;
        assert_eq!(outbox.pipeline().await.unpublished, 3, "{progress}");
        let (scans, read) = outbox.reads().await;
        assert_eq!(scans, 0, "{progress}");
        assert!(read < 100, "{progress}: {read} rows were read");
    }
}

/// G-01: what a relay went past, and what nothing would hand out, is found and given back.
#[tokio::test]
async fn missed_events_are_found_and_given_back() {
    let outbox = Outbox::fresh().await;
    outbox.insert(1, 1).await;
    outbox.insert(2, 2).await;
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let operator = sources::connect_operator(&outbox.database.url(), &table, &columns).await;
    let operator = operator.unwrap();
    let age = Duration::from_secs(300);
    let missed = async || operator.missed(age, &[], 10).await.unwrap();
    assert_eq!(missed().await, [], "they are young");
    outbox.run("UPDATE outbox SET created_at = now() - interval '1 hour'").await;
    let kinds = async || missed().await.iter().map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(kinds().await, [MissedKind::Unpublished; 2]);
    outbox.run("INSERT INTO outbox_pauses (pipeline) VALUES ('*')").await;
    assert_eq!(kinds().await, [], "nobody should publish them");
    outbox.run("DELETE FROM outbox_pauses").await;
    let of_type = operator.missed(age, &["Invoice".to_owned()], 10).await.unwrap();
    assert_eq!(of_type, []);
    assert_eq!(operator.give_back(&missed().await).await.unwrap(), 0, "relays find them");
    let source = outbox.source(Progress::Mark, Shard::default()).await;
    let read = source.next_batch(LIMIT).await.unwrap();
    let delivered = |handle| Settlement { handle, verdict: Verdict::Delivered };
    source.settle(&[delivered(read[0].handle), delivered(read[1].handle)]).await.unwrap();
    assert_eq!(missed().await, []);

    outbox.run("UPDATE outbox SET published_at = NULL WHERE aggregate_id = '1'").await;
    assert_eq!(kinds().await, [MissedKind::Unpublished], "others of its key were not published");
    outbox.run("UPDATE outbox SET aggregate_id = '1'").await;
    assert_eq!(kinds().await, [MissedKind::Overtaken]);
    // It stays in its place before others of its key: a relay without anything to do finds it.
    assert_eq!(operator.give_back(&missed().await).await.unwrap(), 0);
    let back = source.next_batch(BatchLimit { wait: Duration::from_secs(60), ..LIMIT }).await;
    let back = back.unwrap();
    assert!(back.len() == 1 && !back[0].returned);
    let failure = Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 1 };
    let hour = Duration::from_secs(3600);
    let verdict = Verdict::Deferred { delay: hour, failure: Some(failure), blocks: true };
    source.settle(&[Settlement { handle: back[0].handle, verdict }]).await.unwrap();
    outbox
        .run("UPDATE outbox_failures SET due_at = NULL, set_aside_at = now() - interval '1 hour'")
        .await;
    assert_eq!(kinds().await, [MissedKind::Forgotten]);
    assert_eq!(operator.give_back(&missed().await).await.unwrap(), 1);
    let back = source.next_batch(LIMIT).await.unwrap();
    assert_eq!(back.len(), 1);
    outbox.run("UPDATE outbox_failures SET due_at = now() - interval '1 hour'").await;
    assert_eq!(kinds().await, [MissedKind::Overdue]);
    outbox.run("INSERT INTO outbox_pauses (pipeline) VALUES ('*')").await;
    assert_eq!(kinds().await, [], "an operator wants it so");
    source.settle(&[delivered(back[0].handle)]).await.unwrap();
    source.close().await.unwrap();
}

/// G-01: what a cursor has before it for too long is missed, unless somebody wants it so.
#[tokio::test]
async fn a_backlog_of_a_cursor_is_found() {
    let outbox = Outbox::fresh().await;
    outbox.insert(1, 10).await;
    outbox
        .run(
            "UPDATE outbox SET created_at = now() - interval '1 hour' WHERE seq > 2;
             INSERT INTO outbox_checkpoints (pipeline, progress, base, tick, position, beyond)
             VALUES ('mails', 'cursor', '1:1:', pg_current_snapshot(), 4, '{[6,8)}')",
        )
        .await;
    outbox.insert(11, 11).await;
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let operator = sources::connect_operator(&outbox.database.url(), &table, &columns).await;
    let operator = operator.unwrap();
    let found = async |limit: usize| {
        let missed = operator.missed(Duration::from_secs(300), &[], limit).await.unwrap();
        assert!(missed.iter().all(|it| it.kind == MissedKind::Unpublished), "{missed:?}");
        assert!(missed.iter().all(|it| it.pipeline == "mails"), "{missed:?}");
        missed.iter().map(|it| it.position).collect::<Vec<i64>>()
    };
    assert_eq!(found(100).await, [5, 8, 9, 10], "the last one is young");
    assert_eq!(found(2).await, [5, 8]);
    outbox
        .run(
            "INSERT INTO outbox_pauses (pipeline, aggregate_type, aggregate_id)
             VALUES ('mails', 'Order', '9')",
        )
        .await;
    assert_eq!(found(100).await, [5, 8, 10]);
    outbox.run("INSERT INTO outbox_pauses (pipeline) VALUES ('mails')").await;
    assert_eq!(found(100).await, Vec::<i64>::new());
}

/// G-07: the safety net costs no more with a large outbox than with a small one.
#[tokio::test]
async fn looking_for_missed_events_never_reads_the_whole_table() {
    for progress in Progress::ALL {
        let outbox = Outbox::fresh().await;
        outbox.insert(1, 50_000).await;
        // A relay that deletes leaves a backlog, the others what is published.
        let published = match progress {
            Progress::Mark => "UPDATE outbox SET published_at = now()",
            Progress::Cursor | Progress::Delete => "",
        };
        outbox
            .run(&format!(
                "{published};
                 INSERT INTO outbox_checkpoints (pipeline, progress, base, tick)
                 VALUES ('default', '{progress}', pg_current_snapshot(), pg_current_snapshot())"
            ))
            .await;
        outbox.run("VACUUM ANALYZE outbox").await;
        outbox.insert(50_001, 50_003).await;
        outbox.count_reads().await;
        let (table, columns) = (TableName::default(), BTreeMap::new());
        let operator = sources::connect_operator(&outbox.database.url(), &table, &columns).await;
        let missed = operator.unwrap().missed(Duration::from_secs(300), &[], 10).await.unwrap();
        assert_eq!(missed, [], "{progress}");
        let (scans, read) = outbox.reads().await;
        assert_eq!(scans, 0, "{progress}");
        assert!(read <= 10_100, "{progress}: {read} rows were read");
    }
}

/// Where rows do not say which transaction wrote them, following begins behind the last of them,
/// also if none of those that are there matches.
#[tokio::test]
async fn following_without_transactions_begins_at_the_end() {
    let outbox = Outbox::fresh().await;
    outbox.run("ALTER TABLE outbox DROP COLUMN xid").await;
    outbox.insert(1, 3).await;
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let operator = sources::connect_operator(&outbox.database.url(), &table, &columns).await;
    let operator = operator.unwrap();
    let of_type = |name: &str| Wanted { event_type: Some(name.to_owned()), ..Wanted::default() };
    let newest = operator.newest(&of_type("OrderLost"), 10).await.unwrap();
    assert_eq!(newest.events, []);
    let written = operator.written(&newest.next, &Wanted::default(), 10).await.unwrap();
    assert_eq!(written.events, [], "they were there before");
    outbox.insert(4, 4).await;
    let written = operator.written(&written.next, &Wanted::default(), 10).await.unwrap();
    assert_eq!(written.events.len(), 1);
}

/// A role without the rights is told apart from a table that is missing.
#[tokio::test]
async fn a_role_without_rights_is_not_permitted() {
    let outbox = Outbox::fresh().await;
    let role = format!("powerless_{}", std::process::id());
    outbox.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'no'")).await;
    let url = outbox.database.url();
    let (_, place) = url.split_once('@').unwrap();
    let (table, columns) = (TableName::default(), BTreeMap::new());
    let url = format!("postgres://{role}:no@{place}");
    let by_role = match sources::connect_admin(&url, &table, &columns).await {
        Ok(powerless) => powerless.status().await.map(drop),
        Err(error) => Err(error),
    };
    let error = by_role.expect_err("it may not read the tables");
    let cause = error.source.as_deref().and_then(|it| it.downcast_ref::<NotPermitted>());
    outbox.run(&format!("DROP ROLE {role}")).await;
    assert!(cause.is_some(), "{error:?}");
}

/// G-01: an operator frees a key while a relay queues another event of it.
#[tokio::test]
async fn no_key_is_forgotten_when_operator_and_relay_meet() {
    let outbox = Outbox::fresh().await;
    let source = outbox.source(Progress::Mark, Shard::default()).await;
    let admin = outbox.admin().await;
    let failure = Failure { kind: FailureKind::Failed, message: "no".to_owned(), attempts: 1 };
    for round in 0..30 {
        let order = format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'Order', '{round}', 'OrderPaid', '' FROM generate_series(1, 2)"
        );
        outbox.run(&order).await;
        let read = source.next_batch(LIMIT).await.unwrap();
        assert_eq!(read.len(), 2);
        let parked = Verdict::Parked { failure: failure.clone(), blocks: true };
        let settlement = |index: usize, verdict| Settlement { handle: read[index].handle, verdict };
        source.settle(&[settlement(0, parked)]).await.unwrap();
        let queued = [settlement(1, Verdict::Queued)];
        let all = Selection::default();
        let (discarded, settled) = tokio::join!(admin.discard(&all), source.settle(&queued));
        assert_eq!(discarded.unwrap(), 1);
        settled.unwrap();
        let back = source.next_batch(LIMIT).await.unwrap();
        assert_eq!(back.len(), 1, "the queued event of round {round} comes back");
        let delivered = Settlement { handle: back[0].handle, verdict: Verdict::Delivered };
        source.settle(&[delivered]).await.unwrap();
    }
    source.close().await.unwrap();
}
