//! The functions of the inbox, for every language.

use postrider::schema::postgres::Layout;
use tokio_postgres::Client;
use uuid::Uuid;

use crate::case;
use crate::harnesses::writers::schema::Schema;
use crate::suites::Case;
use crate::suites::writer::postgres::{migrated, refused, run, value, values};

const CHECK_VIOLATION: &str = "23514";
const NOT_NULL_VIOLATION: &str = "23502";

/// Every case.
pub fn cases() -> Vec<Case<Schema, ()>> {
    vec![
        case!(an_event_is_accepted_once_per_consumer),
        case!(several_events_are_accepted_at_once),
        case!(a_version_advances),
        case!(an_event_is_stored_buried_and_revived),
        case!(what_is_left_out_of_a_message_has_a_default),
        case!(claims_are_pruned_by_their_age),
        case!(what_cannot_be_kept_is_refused),
        case!(the_functions_find_their_tables),
    ]
}

/// G-08.
async fn an_event_is_accepted_once_per_consumer(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let id = Uuid::now_v7();
    let accept = |consumer: &str| format!("SELECT inbox_accept('{consumer}', '{id}')");
    run(&client, &format!("BEGIN; {}; ROLLBACK", accept("billing"))).await;
    for (consumer, expected) in [("billing", true), ("billing", false), ("shipping", true)] {
        assert_eq!(value::<bool>(&client, &accept(consumer)).await, expected, "{consumer}");
    }
    let named = format!("SELECT inbox_accept(event_id => '{id}', consumer => 'audit')");
    assert!(value::<bool>(&client, &named).await);
}

/// G-08.
async fn several_events_are_accepted_at_once(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let ids: Vec<Uuid> = (0..3).map(Uuid::from_u128).collect();
    let (a, b, c) = (ids[0], ids[1], ids[2]);
    for (given, expected) in [
        (vec![c, a, c], vec![c, a]),
        (vec![b, a, b, c], vec![b]),
        (vec![a, b, c], vec![]),
        (vec![], vec![]),
    ] {
        let given: Vec<String> = given.iter().map(Uuid::to_string).collect();
        let accept = format!("SELECT inbox_accept_all('billing', '{{{}}}')", given.join(","));
        assert_eq!(value::<Vec<Uuid>>(&client, &accept).await, expected, "{given:?}");
    }
    let others = format!("SELECT inbox_accept_all('shipping', ARRAY['{a}', '{b}']::uuid[])");
    run(&client, &format!("BEGIN; {others}; ROLLBACK")).await;
    assert_eq!(value::<Vec<Uuid>>(&client, &others).await, [a, b]);
}

/// G-08.
async fn a_version_advances(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let advance = |consumer: &str, id: u32, version: u32| {
        format!("SELECT inbox_advance('{consumer}', 'Order', '{id}', {version})")
    };
    for (consumer, id, version, expected) in [
        ("billing", 42, 3, None),
        ("billing", 42, 4, Some(3)),
        ("billing", 42, 9, Some(4)),
        ("billing", 42, 5, Some(9)),
        ("billing", 42, 10, Some(9)),
        ("billing", 43, 1, None),
        ("shipping", 42, 1, None),
    ] {
        let last: Option<i64> = value(&client, &advance(consumer, id, version)).await;
        assert_eq!(last, expected, "{consumer} {id} {version}");
    }
    run(&client, &format!("BEGIN; {}; ROLLBACK", advance("billing", 42, 11))).await;
    let last: Option<i64> = value(&client, &advance("billing", 42, 11)).await;
    assert_eq!(last, Some(10));
}

/// What a call of `inbox_store` or `inbox_bury` begins with.
fn message(id: Uuid) -> String {
    format!("'billing', '{id}', 'Order', '42', 'OrderPaid', '\\x00ff'")
}

async fn kept(client: &Client) -> Vec<String> {
    let kept = "SELECT concat_ws('|', event_id, dead, attempts, error, due_at <= clock_timestamp())
        FROM inbox_messages ORDER BY position";
    values(client, kept).await
}

/// G-08.
async fn an_event_is_stored_buried_and_revived(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for expected in [true, false] {
        let store = format!("SELECT inbox_store({})", message(one));
        assert_eq!(value::<bool>(&client, &store).await, expected);
    }
    run(&client, &format!("SELECT inbox_bury({}, 'no stock', 3)", message(two))).await;
    run(&client, "UPDATE inbox_messages SET due_at = 'infinity'").await;
    assert_eq!(kept(&client).await, [format!("{one}|f|0|f"), format!("{two}|t|3|no stock|f")]);
    for function in ["inbox_accept('billing', '", "inbox_store('billing', '"] {
        let rest = if function.contains("store") { ", 'Order', '42', 'OrderPaid', ''" } else { "" };
        let again = format!("SELECT {function}{two}'{rest})");
        assert!(!value::<bool>(&client, &again).await, "{again}");
    }
    for (arguments, expected) in [
        (format!("'billing', '{one}'"), 0),
        ("'shipping'".to_owned(), 0),
        (format!("'billing', '{two}'"), 1),
        ("'billing'".to_owned(), 0),
    ] {
        let revive = format!("SELECT inbox_revive({arguments})");
        assert_eq!(value::<i64>(&client, &revive).await, expected, "{revive}");
    }
    assert_eq!(kept(&client).await[1], format!("{two}|f|0|no stock|t"));
    assert!(value::<bool>(&client, &format!("SELECT inbox_accept('billing', '{two}')")).await);
    // What was accepted is not stored, nor left behind.
    run(&client, "DELETE FROM inbox_messages").await;
    let store = format!("SELECT inbox_store({})", message(two));
    assert!(!value::<bool>(&client, &store).await);
    assert_eq!(kept(&client).await, [""; 0]);
}

async fn what_is_left_out_of_a_message_has_a_default(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let contents = "SELECT concat_ws('|', consumer, aggregate_type, aggregate_id, event_type,
        event_version, encode(payload, 'hex'), content_type, headers, topic,
        occurred_at AT TIME ZONE 'UTC') FROM inbox_messages";
    let named = "headers => '{\"a\":\"b\"}', event_version => 3, topic => 'orders',
        content_type => 'text/plain', occurred_at => '2026-01-02T03:04:05.123456Z'";
    let full = r#"billing|Order|42|OrderPaid|3|00ff|text/plain|{"a": "b"}|orders|2026-01-02 03:04:05.123456"#;
    let plain = "billing|Order|42|OrderPaid|1|00ff|application/json|{}|2";
    for (number, (function, rest)) in
        [("inbox_store", ""), ("inbox_bury", ", 'no stock', 3")].into_iter().enumerate()
    {
        let arguments = message(Uuid::from_u128(number as u128));
        run(&client, &format!("SELECT {function}({arguments}{rest})")).await;
        let found: String = value(&client, contents).await;
        assert!(found.starts_with(plain), "{found}");
        run(&client, "DELETE FROM inbox_messages; DELETE FROM inbox").await;
        run(&client, &format!("SELECT {function}({arguments}{rest}, {named})")).await;
        assert_eq!(value::<String>(&client, contents).await, full, "{function}");
        run(&client, "DELETE FROM inbox_messages").await;
    }
}

async fn claims_are_pruned_by_their_age(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    run(
        &client,
        "INSERT INTO inbox SELECT 'billing', gen_random_uuid(), now() - days * interval '1 day'
            FROM generate_series(0, 9) AS days",
    )
    .await;
    for (arguments, expected) in [
        ("'30 days'", 0),
        ("'4 days 12 hours', 2", 2),
        ("'4 days 12 hours'", 3),
        ("interval '1 hour', batch => 0", 0),
        ("older_than => '1 hour', batch => 100", 4),
        ("'1 hour'", 0),
    ] {
        let prune = format!("SELECT inbox_prune('billing', {arguments})");
        assert_eq!(value::<i64>(&client, &prune).await, expected, "{prune}");
    }
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM inbox").await, 1);
}

async fn what_cannot_be_kept_is_refused(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let id = "'00000000-0000-0000-0000-000000000007'";
    for consumer in ["''", "NULL"] {
        for (call, what) in [
            (format!("inbox_accept({consumer}, {id})"), "the event was not accepted"),
            (format!("inbox_accept_all({consumer}, ARRAY[{id}]::uuid[])"), "no event was accepted"),
            (format!("inbox_advance({consumer}, 'Order', '42', 1)"), "the version was not kept"),
            (
                format!("inbox_store({consumer}, {id}, 'Order', '42', 'A', '')"),
                "the event was not stored",
            ),
            (
                format!("inbox_bury({consumer}, {id}, 'Order', '42', 'A', '', 'no stock', 1)"),
                "the event was not buried",
            ),
            (format!("inbox_revive({consumer})"), "no event was revived"),
        ] {
            let (code, message) = refused(&client, &format!("SELECT {call}")).await;
            assert_eq!(code, CHECK_VIOLATION, "{call}");
            assert_eq!(message, format!("{what}: consumer is empty"), "{call}");
        }
    }
    for (call, code) in [
        ("inbox_accept('billing', NULL)", NOT_NULL_VIOLATION),
        ("inbox_accept_all('billing', NULL)", CHECK_VIOLATION),
        ("inbox_accept_all('billing', ARRAY[NULL]::uuid[])", NOT_NULL_VIOLATION),
        ("inbox_advance('billing', 'Order', '42', NULL)", CHECK_VIOLATION),
        ("inbox_advance('billing', 'Order', '42', -1)", CHECK_VIOLATION),
        ("inbox_advance('billing', NULL, '42', 1)", NOT_NULL_VIOLATION),
        ("inbox_store('billing', NULL, 'Order', '42', 'A', '')", NOT_NULL_VIOLATION),
        ("inbox_prune('billing', NULL)", CHECK_VIOLATION),
        ("inbox_prune('billing', '1 day', -1)", CHECK_VIOLATION),
        ("inbox_prune('billing', '1 day', NULL)", CHECK_VIOLATION),
    ] {
        assert_eq!(refused(&client, &format!("SELECT {call}")).await.0, code, "{call}");
    }
    // Past the functions, too.
    for insert in [
        format!("inbox (consumer, event_id) VALUES ('', {id})"),
        "inbox_versions VALUES ('', 'Order', '42', 1)".to_owned(),
    ] {
        let (code, _) = refused(&client, &format!("INSERT INTO {insert}")).await;
        assert_eq!(code, CHECK_VIOLATION, "{insert}");
    }
}

/// And no others, whatever the caller's search_path is.
async fn the_functions_find_their_tables(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    run(&client, "CREATE TEMPORARY TABLE inbox (LIKE inbox)").await;
    run(&client, "SET search_path = pg_temp, pg_catalog").await;
    let (name, id) = (schema.name(), Uuid::from_u128(1));
    for call in [
        format!("inbox_accept('billing', '{id}')"),
        format!("inbox_accept_all('billing', ARRAY['{id}']::uuid[])"),
        "inbox_advance('billing', 'Order', '42', 1)".to_owned(),
        format!("inbox_store({})", message(id)),
        format!("inbox_bury({}, 'no stock', 3)", message(id)),
        "inbox_revive('billing')".to_owned(),
        "inbox_prune('billing', '1 day')".to_owned(),
    ] {
        run(&client, &format!("SELECT \"{name}\".{call}")).await;
    }
    let sql = format!("SELECT count(*) FROM \"{name}\".inbox_messages");
    assert_eq!(value::<i64>(&client, &sql).await, 1);
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM pg_temp.inbox").await, 0);
}
