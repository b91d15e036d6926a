//! What each role may do, and what not.

use std::time::Duration;

use postrider::schema::TableName;
use postrider::schema::postgres::{Layout, RolePrefix, roles};
use postrider::{Claim, Event, Inbox, Outbox, WriteError, events};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{PARTITIONED, migrated, refused, run, value};
use crate::case;
use crate::harnesses::writers::messages::{messages, watch};
use crate::harnesses::writers::schema::Schema;
use crate::suites::Case;

const NOT_PERMITTED: &str = "42501";

pub(super) fn cases() -> Vec<Case<Schema, ()>> {
    vec![
        case!(a_writer_writes_and_nothing_else),
        case!(a_log_writer_writes_to_the_log_alone),
        case!(a_writer_has_what_the_library_needs),
        case!(a_writer_cannot_claim_events_of_a_consumer),
        case!(rights_that_a_writer_had_are_taken_from_it),
        case!(an_id_that_is_written_twice_is_applied_once),
        case!(a_consumer_has_what_the_inbox_needs),
        case!(a_relay_has_what_relaying_needs),
        case!(a_reader_reads_and_nothing_else),
        case!(a_relay_looks_after_partitions),
    ]
}

/// A schema with an outbox and its roles, and a connection as one of them.
async fn connect_as(schema: &Schema, role: &str, layout: Layout) -> Client {
    let owner = migrated(schema, layout).await;
    let prefix = RolePrefix::new(schema.name()).expect("the name is fine");
    let sql = roles(&TableName::default(), &prefix);
    run(&owner, &sql).await;
    // It can be run again.
    run(&owner, &sql).await;
    run(&owner, "SELECT outbox_publish('Order', '1', 'Theirs', '{}')").await;
    schema.connect_as(&format!("{}_{role}", schema.name())).await
}

async fn assert_refused(client: &Client, statements: &[&str]) {
    for statement in statements {
        assert_eq!(refused(client, statement).await.0, NOT_PERMITTED, "{statement}");
    }
}

async fn a_writer_writes_and_nothing_else(schema: Schema) {
    let client = connect_as(&schema, "writer", Layout::Plain).await;
    run(&client, "SELECT outbox_publish('Order', '42', 'A', '{}')").await;
    run(&client, "SELECT outbox_publish('Order', '42', 'A', '{}'::jsonb)").await;
    run(&client, "SELECT outbox_publish('Order', '42', 'A', ''::bytea)").await;
    let event = r#"[{"aggregate_type":"O","aggregate_id":"1","event_type":"T","payload":1}]"#;
    run(&client, &format!("SELECT outbox_publish_all('{event}')")).await;
    let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
        VALUES ('Order', '42', 'A', '')";
    run(&client, insert).await;
    assert_refused(
        &client,
        &[
            "SELECT payload FROM outbox",
            "SELECT id FROM outbox",
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                VALUES ('Order', '42', 'A', '') RETURNING id",
            "SELECT * FROM inbox",
            "SELECT * FROM inbox_messages",
            "SELECT inbox_advance('billing', 'Order', '42', 1)",
            "SELECT inbox_store('billing', gen_random_uuid(), 'Order', '42', 'A', '')",
            "SELECT inbox_revive('billing')",
            "SELECT inbox_prune('billing', '1 day')",
            "UPDATE outbox SET payload = ''",
            "DELETE FROM outbox",
            "DELETE FROM inbox",
            "TRUNCATE outbox",
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, published_at)
                VALUES ('Order', '42', 'A', '', now())",
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, seq)
                VALUES ('Order', '42', 'A', '', 1)",
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, xid)
                VALUES ('Order', '42', 'A', '', '1')",
            "SELECT setval(pg_get_serial_sequence('outbox', 'seq'), 1)",
            "SELECT nextval(pg_get_serial_sequence('outbox', 'seq'))",
            // Pipelines would keep their slots, whatever those keep of the log.
            "SELECT outbox_publish_message('Order', '42', 'A', '{}')",
            "SELECT outbox_publish_message('Order', '42', 'A', ''::bytea)",
            "INSERT INTO outbox_messages DEFAULT VALUES",
            "SELECT * FROM outbox_failures",
            "SELECT * FROM outbox_checkpoints",
            "INSERT INTO outbox_leases (pipeline, shard) VALUES ('default', 0)",
            "SELECT * FROM postrider_migrations",
            "CREATE TABLE mine (id bigint)",
        ],
    )
    .await;
}

async fn a_log_writer_writes_to_the_log_alone(schema: Schema) {
    let client = connect_as(&schema, "log_writer", Layout::Plain).await;
    let owner = schema.connect().await;
    watch(&owner).await;
    run(&client, "SELECT outbox_publish_message('Order', '42', 'A', '{}')").await;
    run(&client, "SELECT outbox_publish_message('Order', '42', 'A', '{}'::jsonb)").await;
    run(&client, "SELECT outbox_publish_message('Order', '42', 'A', ''::bytea)").await;
    assert_eq!(messages(&owner).await.len(), 3);
    assert_refused(
        &client,
        &[
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                VALUES ('Order', '42', 'A', '')",
            "SELECT id FROM outbox",
            "DELETE FROM outbox",
            "INSERT INTO outbox_messages DEFAULT VALUES",
            "DELETE FROM outbox_messages",
        ],
    )
    .await;
}

async fn a_writer_has_what_the_library_needs(schema: Schema) {
    let mut client = connect_as(&schema, "writer", Layout::Plain).await;
    let owner = schema.connect().await;
    run(&owner, &format!("GRANT \"{0}_log_writer\" TO \"{0}_writer\"", schema.name())).await;
    watch(&owner).await;
    let (outbox, event) = (Outbox::new(), |event_type: &str| {
        Event::builder("Order", "42", event_type).build().expect("the event is valid")
    });
    let (one, two) = (event("A"), event("B"));
    let mut tx = client.transaction().await.expect("a transaction can be begun");
    outbox.publish(&mut tx, &one).await.expect("the event is written");
    outbox.publish_all(&mut tx, [&two, &event("C")]).await.expect("the events are written");
    outbox.publish_message(&mut tx, &event("M")).await.expect("the event is written");
    tx.commit().await.expect("the transaction can be committed");
    let mut tx = client.transaction().await.expect("a transaction can be begun");
    let error = outbox.publish(&mut tx, &two).await.expect_err("it is there already");
    assert!(matches!(error, WriteError::Duplicate { id } if id == two.id()), "{error:?}");
    tx.rollback().await.expect("the transaction can be rolled back");
    // Which one it is among several, the server tells those who may read ids.
    let mut tx = client.transaction().await.expect("a transaction can be begun");
    let error = outbox.publish_all(&mut tx, [&event("D"), &two]).await;
    let error = error.expect_err("one of them is there already");
    assert!(matches!(error, WriteError::Database { .. }), "{error:?}");
    tx.rollback().await.expect("the transaction can be rolled back");
    let work = outbox.transact_async(&mut client, async |_| Ok(((), events![event("E")])));
    let done: Result<(), WriteError> = work.await;
    done.expect("the events are written");
    // What `was_written` asks.
    let written = |id| format!("SELECT outbox_written(ARRAY['{id}'::uuid])");
    assert!(value::<bool>(&client, &written(one.id())).await);
    assert!(!value::<bool>(&client, &written(Uuid::from_u128(7))).await);
    let status = "SELECT pg_xact_status(pg_current_xact_id())";
    assert_eq!(value::<String>(&client, status).await, "in progress");
}

/// A claim keeps an event from taking effect.
async fn a_writer_cannot_claim_events_of_a_consumer(_: Schema) {
    for layout in [Layout::Plain, PARTITIONED] {
        let schema = Schema::fresh().await;
        let client = connect_as(&schema, "writer", layout).await;
        let owner = schema.connect().await;
        let theirs: Uuid = value(&owner, "SELECT id FROM outbox").await;
        assert_refused(
            &client,
            &[
                "SELECT id FROM outbox",
                &format!("SELECT inbox_accept('billing', '{theirs}')"),
                &format!("SELECT inbox_accept_all('billing', ARRAY['{theirs}'::uuid])"),
                &format!("SELECT inbox_bury('billing', '{theirs}', 'O', '1', 'T', '', 'x', 1)"),
                &format!("INSERT INTO inbox (consumer, event_id) VALUES ('billing', '{theirs}')"),
                "INSERT INTO inbox_versions VALUES ('billing', 'Order', '1', 99)",
                "DELETE FROM inbox_messages",
                "SELECT event_id FROM inbox",
            ],
        )
        .await;
        let consumer = schema.connect_as(&format!("{}_consumer", schema.name())).await;
        let accept = format!("SELECT inbox_accept('billing', '{theirs}')");
        assert!(value::<bool>(&consumer, &accept).await, "it is the first to claim it");
        // Whoever does both has both roles.
        run(&owner, &format!("GRANT \"{0}_consumer\" TO \"{0}_writer\"", schema.name())).await;
        assert!(!value::<bool>(&client, &accept).await);
    }
}

/// Earlier versions gave them.
async fn rights_that_a_writer_had_are_taken_from_it(schema: Schema) {
    let client = connect_as(&schema, "writer", Layout::Plain).await;
    let owner = schema.connect().await;
    let writer = format!("\"{}_writer\"", schema.name());
    run(
        &owner,
        &format!(
            "GRANT SELECT (id) ON outbox TO {writer};
             GRANT INSERT (consumer, event_id), SELECT (event_id) ON inbox TO {writer}"
        ),
    )
    .await;
    let read = "SELECT id FROM outbox";
    let claim = "INSERT INTO inbox (consumer, event_id) VALUES ('billing', gen_random_uuid())";
    run(&client, read).await;
    run(&client, claim).await;
    let prefix = RolePrefix::new(schema.name()).expect("the name is fine");
    run(&owner, &roles(&TableName::default(), &prefix)).await;
    assert_refused(&client, &[read, claim]).await;
    run(&client, "SELECT outbox_publish('Order', '42', 'A', '{}')").await;
}

/// In an outbox with partitions nothing refuses an id that is used twice: consumers do.
async fn an_id_that_is_written_twice_is_applied_once(schema: Schema) {
    let client = connect_as(&schema, "writer", PARTITIONED).await;
    let id = Uuid::from_u128(7);
    let publish = format!("SELECT outbox_publish('Order', '42', 'A', '{{}}', id => '{id}')");
    run(&client, &publish).await;
    run(&client, &publish).await;
    let owner = schema.connect().await;
    let count = format!("SELECT count(*) FROM outbox WHERE id = '{id}'");
    assert_eq!(value::<i64>(&owner, &count).await, 2);
    let consumer = schema.connect_as(&format!("{}_consumer", schema.name())).await;
    let accept = format!("SELECT inbox_accept('billing', '{id}')");
    assert!(value::<bool>(&consumer, &accept).await);
    assert!(!value::<bool>(&consumer, &accept).await);
}

async fn a_consumer_has_what_the_inbox_needs(schema: Schema) {
    let mut client = connect_as(&schema, "consumer", Layout::Plain).await;
    let (inbox, consumer) = (Inbox::new(), "billing");
    let event =
        |id: &str| Event::builder("Order", id, "OrderPaid").build().expect("the event is valid");
    let (one, two, three) = (event("1"), event("2"), event("3"));
    let mut tx = client.transaction().await.expect("a transaction can be begun");
    let claim = inbox.once(&mut tx, consumer, one.id()).await;
    assert_eq!(claim.expect("the claim can be made"), Claim::First);
    let claims = inbox.once_all(&mut tx, consumer, &[one.id(), two.id()]).await;
    assert_eq!(claims.expect("the claims can be made"), [Claim::Duplicate, Claim::First]);
    for _ in 0..2 {
        let sequence = inbox.advance(&mut tx, consumer, one.key(), 7).await;
        let _ = sequence.expect("the watermark can be moved");
    }
    for event in [&two, &three] {
        let _ = inbox.store(&mut tx, consumer, event).await.expect("the event can be stored");
    }
    inbox.bury(&mut tx, consumer, &three, "no stock", 3).await.expect("it can be buried");
    assert_eq!(inbox.revive(&mut tx, consumer, None).await.expect("it can be revived"), 1);
    let pruned = inbox.prune(&mut tx, consumer, Duration::ZERO, 10).await;
    assert_eq!(pruned.expect("claims can be removed"), 2);
    tx.commit().await.expect("the transaction can be committed");
    for statement in [
        "SELECT event_id FROM inbox_messages WHERE NOT dead FOR UPDATE SKIP LOCKED",
        "UPDATE inbox_messages SET attempts = attempts + 1, due_at = clock_timestamp()",
        "DELETE FROM inbox_messages",
        "DELETE FROM inbox_versions",
        "SELECT * FROM inbox",
        "SELECT inbox_accept('billing', gen_random_uuid())",
        "SELECT inbox_prune('billing', '1 day')",
        "SELECT * FROM postrider_migrations",
    ] {
        run(&client, statement).await;
    }
    assert_refused(
        &client,
        &[
            "SELECT id FROM outbox",
            "SELECT outbox_publish('Order', '42', 'A', '{}')",
            "SELECT * FROM outbox_failures",
            "UPDATE inbox SET processed_at = now()",
            "INSERT INTO inbox VALUES ('billing', gen_random_uuid(), '2001-01-01')",
            "UPDATE postrider_migrations SET version = 2",
            "DROP TABLE inbox",
        ],
    )
    .await;
}

async fn a_relay_has_what_relaying_needs(schema: Schema) {
    let client = connect_as(&schema, "relay", Layout::Plain).await;
    for statement in [
        "SELECT * FROM outbox WHERE pg_visible_in_snapshot(xid, pg_current_snapshot())",
        "SELECT seq FROM outbox WHERE published_at IS NULL FOR UPDATE SKIP LOCKED",
        "UPDATE outbox SET published_at = clock_timestamp()",
        "UPDATE outbox SET xid = pg_current_xact_id()
            WHERE xid >= pg_snapshot_xmax(pg_current_snapshot())",
        "INSERT INTO outbox_failures (pipeline, seq, state, blocks, attempts, set_aside_at)
            VALUES ('default', 1, 'parked', true, 1, now())",
        "UPDATE outbox_failures SET state = 'deferred'",
        "DELETE FROM outbox_failures",
        "INSERT INTO outbox_checkpoints (pipeline, progress) VALUES ('default', 'mark')",
        "UPDATE outbox_checkpoints SET position = 1",
        "INSERT INTO outbox_leases (pipeline, shard) VALUES ('default', 0)",
        "SELECT epoch FROM outbox_leases FOR SHARE",
        "UPDATE outbox_leases SET epoch = 1",
        "INSERT INTO outbox_claims VALUES ('default', 1, 0, 1)",
        "DELETE FROM outbox_claims",
        "INSERT INTO outbox_pauses (pipeline) VALUES ('default')",
        "DELETE FROM outbox_pauses",
        "DELETE FROM outbox",
        "DELETE FROM inbox WHERE processed_at < now()",
        "SELECT inbox_prune('billing', '1 day')",
        "SELECT * FROM outbox_messages",
        "SELECT * FROM postrider_migrations",
        "SELECT system_identifier FROM pg_control_system()",
        "SELECT pg_walfile_name(pg_current_wal_lsn())",
    ] {
        run(&client, statement).await;
    }
    assert_refused(
        &client,
        &[
            "UPDATE outbox SET payload = ''",
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
                VALUES ('Order', '42', 'A', '')",
            "INSERT INTO inbox (consumer, event_id) VALUES ('billing', gen_random_uuid())",
            "UPDATE postrider_migrations SET version = 2",
            "DROP TABLE outbox",
        ],
    )
    .await;
}

async fn a_reader_reads_and_nothing_else(schema: Schema) {
    let client = connect_as(&schema, "reader", Layout::Plain).await;
    let owner = schema.connect().await;
    watch(&owner).await;
    for table in [
        "outbox",
        "outbox_failures",
        "outbox_checkpoints",
        "outbox_leases",
        "outbox_claims",
        "outbox_pauses",
        "outbox_messages",
        "inbox",
        "inbox_versions",
        "inbox_messages",
        "postrider_migrations",
    ] {
        run(&client, &format!("SELECT * FROM {table}")).await;
        assert_refused(&client, &[&format!("DELETE FROM {table}")]).await;
    }
    assert_refused(
        &client,
        &[
            "SELECT outbox_publish('Order', '42', 'A', '{}')",
            "SELECT outbox_publish_message('Order', '42', 'A', '{}')",
            "SELECT outbox_written(ARRAY[gen_random_uuid()])",
            "SELECT inbox_accept('billing', gen_random_uuid())",
            "SELECT inbox_advance('billing', 'Order', '42', 1)",
            "UPDATE outbox SET published_at = now()",
            "INSERT INTO outbox_leases (pipeline, shard) VALUES ('default', 0)",
            "SELECT seq FROM outbox FOR UPDATE",
        ],
    )
    .await;
}

/// Without owning the table.
async fn a_relay_looks_after_partitions(schema: Schema) {
    let client = connect_as(&schema, "relay", PARTITIONED).await;
    assert_eq!(value::<i32>(&client, "SELECT outbox_add_partitions(4)").await, 1);
    let today = "SELECT tableoid::regclass::text FROM outbox";
    let today: String = value(&client, today).await;
    let drop_today =
        format!("SELECT outbox_drop_partition('{today}', pg_current_snapshot(), false)");
    assert_refused(&client, &[&format!("DROP TABLE {today}")]).await;
    assert!(value::<bool>(&client, &drop_today).await);
    for role in ["writer", "reader"] {
        let other = schema.connect_as(&format!("{}_{role}", schema.name())).await;
        assert_refused(&other, &["SELECT outbox_add_partitions()", &drop_today]).await;
    }
}
