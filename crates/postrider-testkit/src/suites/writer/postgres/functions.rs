//! The functions for every language.

use std::time::{Duration, SystemTime};

use postrider::schema::TableName;
use postrider::schema::postgres::{Layout, migrate};
use serde_json::json;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{PARTITIONED, migrated, refused, run, value, values};
use crate::case;
use crate::harnesses::writers::messages::{messages, watch};
use crate::harnesses::writers::schema::Schema;
use crate::servers::postgres::{Database, connect, shared};
use crate::servers::with_database;
use crate::suites::Case;

pub(super) fn cases() -> Vec<Case<Schema, ()>> {
    vec![
        case!(a_payload_may_be_text_json_or_bytes),
        case!(every_parameter_is_written),
        case!(what_is_left_out_has_a_default),
        case!(several_events_are_written_in_order),
        case!(what_could_not_be_delivered_is_refused),
        case!(a_bad_batch_is_refused_whole),
        case!(an_event_that_is_kept_out_is_refused),
        case!(an_event_rolls_back_with_its_transaction),
        case!(a_payload_is_utf8_whatever_the_database_has),
        case!(a_message_has_what_a_row_would_have),
        case!(messages_and_rows_have_numbers_of_one_sequence),
        case!(a_message_that_could_not_be_delivered_is_refused),
        case!(a_message_rolls_back_with_its_transaction),
        case!(a_message_that_no_slot_reads_is_refused),
    ]
}

async fn payload(client: &Client) -> String {
    value(client, "SELECT convert_from(payload, 'UTF8') FROM outbox ORDER BY seq DESC LIMIT 1")
        .await
}

/// G-04: what was given as text or bytes stays as it is.
async fn a_payload_may_be_text_json_or_bytes(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let calls = [
        // What a client sends without a type is text.
        (r#"'{"a" : 1.50, "a":2}'"#, r#"{"a" : 1.50, "a":2}"#),
        (r#"'"Größe"'::varchar"#, r#""Größe""#),
        (r#"'{"b":1,"a":2}'::jsonb"#, r#"{"a": 2, "b": 1}"#),
        ("jsonb_build_object('a', ARRAY[1, 2])", r#"{"a": [1, 2]}"#),
        (r"'\x6162'::bytea", "ab"),
        ("'<a/>', content_type => 'application/xml'", "<a/>"),
    ];
    for (argument, expected) in calls {
        run(&client, &format!("SELECT outbox_publish('Order', '42', 'Paid', {argument})")).await;
        assert_eq!(payload(&client).await, expected, "{argument}");
    }
}

async fn every_parameter_is_written(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let id: Uuid = value(
        &client,
        r#"SELECT outbox_publish(id => '00000000-0000-0000-0000-000000000007',
            aggregate_type => 'Order', aggregate_id => '42', event_type => 'OrderPaid',
            payload => 'x', content_type => 'text/plain', headers => '{"a":"b"}',
            event_version => 3, occurred_at => '2026-01-02T03:04:05.123456Z', topic => 'orders',
            deliver_after => '2026-02-03T04:05:06Z')"#,
    )
    .await;
    assert_eq!(id, Uuid::from_u128(7));
    let row: String = value(
        &client,
        "SELECT concat_ws('|', id, aggregate_type, aggregate_id, event_type, event_version,
            convert_from(payload, 'UTF8'), content_type, headers, topic,
            occurred_at AT TIME ZONE 'UTC', deliver_after AT TIME ZONE 'UTC', published_at)
            FROM outbox",
    )
    .await;
    let expected = r#"00000000-0000-0000-0000-000000000007|Order|42|OrderPaid|3|x|text/plain|{"a": "b"}|orders|2026-01-02 03:04:05.123456|2026-02-03 04:05:06"#;
    assert_eq!(row, expected);
}

async fn what_is_left_out_has_a_default(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let before = SystemTime::now() - Duration::from_secs(60);
    let publish = "SELECT outbox_publish('Order', '42', 'OrderPaid', '{}')";
    let published: Uuid = value(&client, publish).await;
    run(
        &client,
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
            VALUES ('Order', '42', 'OrderPaid', '{}')",
    )
    .await;
    let rows = client.query("SELECT *, headers::text AS h FROM outbox ORDER BY seq", &[]).await;
    for row in rows.expect("there is an outbox") {
        let id: Uuid = row.get("id");
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (seconds, _) = id.get_timestamp().expect("the time is in it").to_unix();
        let made = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(made > before, "{id}");
        assert!(row.get::<_, SystemTime>("occurred_at") > before);
        assert!(row.get::<_, SystemTime>("created_at") > before);
        assert_eq!(row.get::<_, i64>("event_version"), 1);
        assert_eq!(row.get::<_, &str>("h"), "{}");
        assert_eq!(row.get::<_, &str>("content_type"), "application/json");
        assert_eq!(row.get::<_, Option<&str>>("topic"), None);
        assert_eq!(row.get::<_, Option<SystemTime>>("deliver_after"), None);
        assert_eq!(row.get::<_, Option<SystemTime>>("published_at"), None);
    }
    let ids = values::<Uuid>(&client, "SELECT id FROM outbox ORDER BY seq").await;
    assert_eq!(ids[0], published);
    let numbers: Vec<i64> = values(&client, "SELECT seq FROM outbox ORDER BY seq").await;
    assert_eq!(numbers, [1, 2]);
}

/// G-03.
async fn several_events_are_written_in_order(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let ids: Vec<Uuid> = value(
        &client,
        r#"SELECT outbox_publish_all(jsonb_agg(jsonb_build_object('aggregate_type', 'Order',
            'aggregate_id', '42', 'event_type', 'E' || n, 'payload', jsonb_build_object('n', n),
            'headers', '{"a":"b"}'::jsonb, 'event_version', n, 'topic', 't') ORDER BY n))
            FROM generate_series(1, 100) AS n"#,
    )
    .await;
    let types: Vec<String> = values(&client, "SELECT event_type FROM outbox ORDER BY seq").await;
    assert_eq!(types, (1..=100).map(|number| format!("E{number}")).collect::<Vec<_>>());
    assert_eq!(values::<Uuid>(&client, "SELECT id FROM outbox ORDER BY seq").await, ids);
    assert_eq!(payload(&client).await, r#"{"n": 100}"#);
    let none: Vec<Uuid> = value(&client, "SELECT outbox_publish_all('[]')").await;
    assert!(none.is_empty());
}

/// The limits are those of the library.
async fn what_could_not_be_delivered_is_refused(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let plain = |payload: &str| format!("'Order', '42', 'T', {payload}");
    let with = |more: &str| format!("'Order', '42', 'T', '{{}}', {more}");
    let cases = [
        ("'', '42', 'T', '{}'".to_owned(), "aggregate_type is empty"),
        ("NULL, '42', 'T', '{}'".to_owned(), "aggregate_type is empty"),
        ("'Order', '', 'T', '{}'".to_owned(), "aggregate_id is empty"),
        ("'Order', '42', '', '{}'".to_owned(), "event_type is empty"),
        ("repeat('x', 256), '42', 'T', '{}'".to_owned(), "aggregate_type has more than 255 bytes"),
        ("'O', repeat('x', 1025), 'T', '{}'".to_owned(), "aggregate_id has more than 1024 bytes"),
        ("'O', '4', repeat('é', 128), '{}'".to_owned(), "event_type has more than 255 bytes"),
        ("'Order', E'4\\n2', 'T', '{}'".to_owned(), "aggregate_id contains a control character"),
        ("'Order', '42', E'T\\u0085', '{}'".to_owned(), "event_type contains a control character"),
        (plain("'{'"), "payload is not JSON"),
        (plain("NULL::text"), "payload is NULL"),
        (plain("repeat('x', 1048577)::bytea"), "payload has more than 1048576 bytes"),
        (with("topic => ''"), "topic is empty"),
        (with("topic => E'\\t'"), "topic contains a control character"),
        (with("topic => repeat('x', 256)"), "topic has more than 255 bytes"),
        (with("content_type => ''"), "content_type is empty"),
        (with("content_type => repeat('x', 256)"), "content_type has more than 255 bytes"),
        (with("event_version => 0"), "event_version is not a number from 1"),
        (with("event_version => NULL"), "event_version is not a number from 1"),
        (with("event_version => 4294967296"), "event_version is not a number from 1"),
        (with("occurred_at => 'infinity'"), "occurred_at is outside of the years 0 to 9999"),
        (with("occurred_at => '10000-01-01Z'"), "occurred_at is outside of the years 0 to 9999"),
        (with("occurred_at => '0002-01-01Z BC'"), "occurred_at is outside of the years 0 to 9999"),
        (with("occurred_at => NULL"), "occurred_at is outside of the years 0 to 9999"),
        (with("deliver_after => 'infinity'"), "deliver_after is outside of the years 0 to 9999"),
        (with("headers => NULL"), "headers is not a JSON object"),
        (with("headers => '[]'"), "headers is not a JSON object"),
        (with("headers => '{\"a\": 1}'"), "headers has a value that is not a string"),
        (with("headers => '{\"a\": null}'"), "headers has a value that is not a string"),
        (with("headers => '{\"\": \"b\"}'"), "a header name is empty"),
        (with(r#"headers => '{"a": "b\r\nc"}'"#), "a header value contains a control character"),
        (with(r#"headers => '{"a\n": "b"}'"#), "a header name contains a control character"),
        (
            with("headers => jsonb_build_object(repeat('x', 256), '')"),
            "a header name has more than 255 bytes",
        ),
        (
            with("headers => jsonb_build_object('a', repeat('x', 16384))"),
            "headers has more than 16384 bytes",
        ),
        (
            with("headers => (SELECT jsonb_object_agg(n, '') FROM generate_series(1, 65) AS n)"),
            "headers has more than 64 members",
        ),
    ];
    for (arguments, expected) in cases {
        let (code, message) =
            refused(&client, &format!("SELECT outbox_publish({arguments})")).await;
        assert_eq!(message, format!("the event was not written: {expected}"), "{arguments}");
        assert_eq!(code, "23514", "{arguments}");
    }
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
    for arguments in [
        "repeat('x', 255), repeat('x', 1024), repeat('x', 255), repeat('x', 1048576)::bytea, \
         topic => repeat('x', 255), content_type => repeat('x', 255), event_version => 4294967295, \
         occurred_at => '0001-01-01Z BC', deliver_after => '9999-12-30 21:59:59Z'",
        "'Order', '42', 'T', '', content_type => 'text/plain'",
        "'Order', 'Größe 4€', 'T', '{}', \
         headers => (SELECT jsonb_object_agg(n, repeat('x', 254)) FROM generate_series(10, 73) AS n)",
    ] {
        run(&client, &format!("SELECT outbox_publish({arguments})")).await;
    }
}

/// All or none.
async fn a_bad_batch_is_refused_whole(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let good = r#"{"aggregate_type":"Order","aggregate_id":"42","event_type":"T","payload":null}"#;
    let cases = [
        ("NULL".to_owned(), "no event was written: events is not a JSON array"),
        (format!("'{good}'"), "no event was written: events is not a JSON array"),
        (format!("'[{good}, 1]'"), "no event was written: an event is not a JSON object"),
        (
            format!(r#"'[{good}, {{"payloud": 1}}]'"#),
            "no event was written: an event has an unknown member \"payloud\"",
        ),
        (format!("'[{good}, {{}}]'"), "the event was not written: aggregate_type is empty"),
        (
            format!("'[{good}, {}]'", good.replace(",\"payload\":null", "")),
            "the event was not written: payload is NULL",
        ),
    ];
    for (events, expected) in cases {
        let (_, message) = refused(&client, &format!("SELECT outbox_publish_all({events})")).await;
        assert_eq!(message, expected, "{events}");
    }
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
    // A member that is null is left out, but a payload may be.
    let null = r#"null, "headers": null, "topic": null, "event_version": null"#;
    let good = good.replace("null", null);
    run(&client, &format!("SELECT outbox_publish_all('[{good}]')")).await;
    assert_eq!(payload(&client).await, "null");
}

/// G-01: whoever gets an id has an event.
async fn an_event_that_is_kept_out_is_refused(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let keep_out = [
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER mine BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION nothing()",
        "DROP TRIGGER mine ON outbox;
         CREATE RULE mine AS ON INSERT TO outbox DO INSTEAD NOTHING",
    ];
    for keep_out in keep_out {
        run(&client, keep_out).await;
        let publish = "SELECT outbox_publish('Order', '42', 'OrderPaid', '{}')";
        let (code, message) = refused(&client, publish).await;
        assert_eq!(code, "55000", "{keep_out}");
        assert!(message.contains("a trigger or a rule of the outbox keeps it out"), "{message}");
    }
}

/// G-02.
async fn an_event_rolls_back_with_its_transaction(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let publish = "SELECT outbox_publish('Order', '42', 'OrderPaid', '{}');";
    run(&client, &format!("BEGIN; {publish} ROLLBACK")).await;
    run(&client, &format!("BEGIN; {publish} SAVEPOINT a; {publish} ROLLBACK TO a; COMMIT")).await;
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 1);
}

/// F65.
async fn a_payload_is_utf8_whatever_the_database_has(schema: Schema) {
    let server = schema.connect().await;
    for encoding in ["LATIN1", "WIN1252", "SQL_ASCII"] {
        let name = format!("{} {encoding}", schema.name());
        let made = format!(
            "CREATE DATABASE \"{name}\" TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' \
             LC_CTYPE 'C'"
        );
        run(&server, &made).await;
        let url = with_database(&shared(), &name.replace(' ', "%20"));
        let mut client = connect(&url).await;
        let migrated = migrate(&mut client, &TableName::default(), None).await;
        migrated.expect("an empty database can be migrated");
        for payload in ["'{\"a\":\"é\"}'", "'{\"a\":\"é\"}'::jsonb"] {
            run(&client, &format!("SELECT outbox_publish('Order', 'Größe', 'T', {payload})")).await;
            let written = payload_bytes(&client).await;
            let written = String::from_utf8(written).expect("it is UTF-8").replace(' ', "");
            assert_eq!(written, "{\"a\":\"é\"}", "{encoding}");
        }
        drop(client);
        run(&server, &format!("DROP DATABASE \"{name}\" WITH (FORCE)")).await;
    }
}

async fn payload_bytes(client: &Client) -> Vec<u8> {
    value(client, "SELECT payload FROM outbox ORDER BY seq DESC LIMIT 1").await
}

/// G-04.
async fn a_message_has_what_a_row_would_have(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let log = schema.connect().await;
    watch(&log).await;
    let before = SystemTime::now() - Duration::from_secs(60);
    let before = before.duration_since(SystemTime::UNIX_EPOCH).expect("it is later").as_micros();
    let calls = [
        (r#"'{"a" : 1.50, "a":2}'"#, r#"{"a" : 1.50, "a":2}"#),
        (r#"'{"b":1,"a":2}'::jsonb"#, r#"{"a": 2, "b": 1}"#),
        (r"'\x0a6162'::bytea", "\nab"),
    ];
    for (argument, expected) in calls {
        let publish = format!("SELECT outbox_publish_message('Order', '42', 'Paid', {argument})");
        let id: Uuid = value(&client, &publish).await;
        let found = messages(&log).await;
        let [message] = &found[..] else { panic!("one message: {found:?}") };
        assert_eq!(message.payload, expected.as_bytes(), "{argument}");
        let fields = &message.fields;
        assert_eq!(fields["id"], id.to_string());
        let names = ["aggregate_type", "aggregate_id", "event_type", "content_type"];
        let texts = names.map(|name| fields[name].as_str().unwrap_or_default());
        assert_eq!(texts, ["Order", "42", "Paid", "application/json"]);
        let others = ["event_version", "headers", "topic", "deliver_after"];
        let others = others.map(|name| fields[name].clone());
        assert_eq!(others, [json!(1), json!({}), json!(null), json!(null)]);
        let occurred_at = fields["occurred_at"].as_u64().expect("it is a number");
        assert!(u128::from(occurred_at) > before, "{occurred_at}");
    }
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
}

/// G-03: so that either is known by its number, and in order.
async fn messages_and_rows_have_numbers_of_one_sequence(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    let log = schema.connect().await;
    watch(&log).await;
    for function in ["publish", "publish_message", "publish", "publish_message"] {
        run(&client, &format!("SELECT outbox_{function}('Order', '42', 'Paid', '{{}}')")).await;
    }
    assert_eq!(values::<i64>(&client, "SELECT seq FROM outbox ORDER BY seq").await, [1, 3]);
    let numbers = messages(&log).await.into_iter().map(|message| message.fields["seq"].clone());
    assert_eq!(numbers.collect::<Vec<_>>(), [json!(2), json!(4)]);
}

/// The limits are those of a row.
async fn a_message_that_could_not_be_delivered_is_refused(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let log = schema.connect().await;
    watch(&log).await;
    let cases = [
        ("'', '42', 'T', '{}'", "aggregate_type is empty"),
        ("'Order', '42', 'T', '{'", "payload is not JSON"),
        ("'Order', '42', 'T', NULL::jsonb", "payload is NULL"),
        ("'Order', '42', 'T', repeat('x', 1048577)::bytea", "payload has more than 1048576 bytes"),
        ("'Order', '42', 'T', '{}', headers => '[]'", "headers is not a JSON object"),
    ];
    for (arguments, expected) in cases {
        let publish = format!("SELECT outbox_publish_message({arguments})");
        let (code, message) = refused(&client, &publish).await;
        assert_eq!(message, format!("the event was not written: {expected}"), "{arguments}");
        assert_eq!(code, "23514", "{arguments}");
    }
    assert_eq!(messages(&log).await, []);
}

/// G-02.
async fn a_message_rolls_back_with_its_transaction(schema: Schema) {
    let client = migrated(&schema, Layout::Plain).await;
    let log = schema.connect().await;
    watch(&log).await;
    let publish =
        |event: &str| format!("SELECT outbox_publish_message('Order', '42', '{event}', '{{}}');");
    let (a, b, c) = (publish("A"), publish("B"), publish("C"));
    run(&client, &format!("BEGIN; {a} ROLLBACK")).await;
    run(&client, &format!("BEGIN; {a} SAVEPOINT s; {b} ROLLBACK TO s; {c} COMMIT")).await;
    let found = messages(&log).await;
    let types: Vec<&str> =
        found.iter().filter_map(|message| message.fields["event_type"].as_str()).collect();
    assert_eq!(types, ["A", "C"]);
}

/// G-01: whoever gets an id has an event.
async fn a_message_that_no_slot_reads_is_refused(_: Schema) {
    // Slots are of a database.
    let database = Database::fresh().await;
    let mut client = database.connect().await;
    let migrated = migrate(&mut client, &TableName::default(), None).await;
    migrated.expect("an empty database can be migrated");
    let publish = "SELECT outbox_publish_message('Order', '42', 'Paid', '{}')";
    let of_others = "SELECT pg_create_logical_replication_slot('theirs_' || pg_backend_pid(),
        'test_decoding', true)";
    // Nobody of this outbox has written it down: the next relay drops it, or it is another outbox's.
    let stray = "SELECT pg_create_logical_replication_slot('postrider_stray_' || pg_backend_pid(),
        'test_decoding', true)";
    for before in ["SELECT", of_others, stray] {
        run(&client, before).await;
        let (code, message) = refused(&client, publish).await;
        assert_eq!(code, "55000", "{before}");
        assert!(message.contains("there is no slot that it could be read from"), "{message}");
    }
    watch(&client).await;
    run(&client, publish).await;
    assert_eq!(messages(&client).await.len(), 1);
}
