//! Making the tables.

use postrider::schema::postgres::{Layout, migrate, migrations, pending, sql, status, verify};
use postrider::schema::{SchemaError, TableName};
use tokio::task::JoinSet;
use tokio_postgres::error::SqlState;

use super::{PARTITIONED, migrated, odd_name, run, value, values};
use crate::case;
use crate::harnesses::writers::schema::Schema;
use crate::suites::Case;
use crate::suites::waiting::until;

const TABLES: &str = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p')
    AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
    ORDER BY relname COLLATE \"C\"";

pub(super) fn cases() -> Vec<Case<Schema, ()>> {
    vec![
        case!(migrating_is_idempotent),
        case!(each_outbox_has_tables_of_its_own_and_all_share_the_inbox),
        case!(a_backslash_in_a_name_escapes_nothing),
        case!(the_printed_script_leaves_nothing_pending),
        case!(a_schema_of_any_version_becomes_the_same),
        case!(several_may_migrate_at_once),
        case!(a_foreign_table_of_that_name_is_left_alone),
        case!(a_newer_schema_is_refused),
        case!(another_layout_is_refused),
        case!(an_existing_table_stays_as_it_is),
        case!(tables_of_another_schema_are_not_ours),
    ]
}

async fn migrating_is_idempotent(schema: Schema) {
    let (mut client, outbox) = (schema.connect().await, TableName::default());
    let lacking = pending(&client, &outbox, None).await.expect("an empty schema is fine");
    assert_eq!(lacking, migrations(Layout::Plain).iter().collect::<Vec<_>>());
    assert!(values::<String>(&client, TABLES).await.is_empty(), "looking changes nothing");
    let applied = migrate(&mut client, &outbox, None).await.expect("it can be migrated");
    assert_eq!(applied, lacking);
    let applied = migrate(&mut client, &outbox, None).await.expect("it can be repeated");
    assert!(applied.is_empty(), "{applied:?}");
    let status = status(&client, &outbox).await.expect("it can be looked at");
    assert!(status.pending.is_empty(), "{status:?}");
    assert_eq!(status.layout, Some(Layout::Plain));
    assert_eq!(status.applied.len(), lacking.len());
    assert_eq!(status.applied[0].name, "outbox");
}

async fn each_outbox_has_tables_of_its_own_and_all_share_the_inbox(schema: Schema) {
    let mut client = migrated(&schema, Layout::Plain).await;
    let odd = odd_name();
    migrate(&mut client, &odd, Some(Layout::Plain)).await.expect("a second outbox can be made");
    let side = ["", "_checkpoints", "_claims", "_failures", "_leases", "_messages", "_pauses"];
    let mut expected: Vec<String> = side.map(|suffix| format!("outbox{suffix}")).into();
    expected.extend(side.map(|suffix| format!("{odd}{suffix}")));
    let shared = ["inbox", "inbox_messages", "inbox_versions", "postrider_migrations"];
    expected.extend(shared.map(str::to_owned));
    expected.sort();
    assert_eq!(values::<String>(&client, TABLES).await, expected);
    let publish = odd.quoted().replace("%\"", "%_publish\"");
    run(&client, &format!("SELECT {publish}('Order', '42', 'OrderPaid', '{{}}')")).await;
    assert_eq!(value::<i64>(&client, &format!("SELECT count(*) FROM {}", odd.quoted())).await, 1);
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
}

/// Where `standard_conforming_strings` is off, a backslash in a string escapes what follows it.
async fn a_backslash_in_a_name_escapes_nothing(schema: Schema) {
    let name = r"a'; DROP TABLE kept; --\";
    let odd = TableName::new(name).expect("a quoted name may be odd");
    let mut client = schema.connect().await;
    run(&client, "CREATE TABLE kept ()").await;
    for conforming in ["off", "on"] {
        run(&client, &format!("SET standard_conforming_strings = {conforming}")).await;
        let migrated = migrate(&mut client, &odd, Some(PARTITIONED)).await;
        migrated.unwrap_or_else(|error| panic!("{conforming}: {error:?}"));
        let rows = client.query("SELECT DISTINCT outbox FROM postrider_migrations", &[]).await;
        let rows = rows.expect("it can be read");
        assert_eq!(rows[0].get::<_, String>(0), name);
        let function = format!("\"{name}_add_partitions\"");
        let ahead = if conforming == "off" { 4 } else { 5 };
        let added = format!("SELECT {function}({ahead})");
        assert_eq!(value::<i32>(&client, &added).await, 1, "{conforming}");
        run(&client, "SELECT FROM kept").await;
    }
}

/// For those who migrate with a tool of their own.
async fn the_printed_script_leaves_nothing_pending(schema: Schema) {
    for (name, layout) in
        [("a", Layout::Plain), ("b", PARTITIONED), ("c", Layout::Existing), ("d", PARTITIONED)]
    {
        let client = schema.connect().await;
        let odd = if name == "d" { odd_name() } else { TableName::new(name).expect("it is fine") };
        if layout == Layout::Existing {
            run(&client, &format!("CREATE TABLE {} (id bigint)", odd.quoted())).await;
        }
        let script = sql(&odd, layout);
        // Partitions are not waited for for long, and other cases may be making theirs.
        until("the script has run", || async {
            match client.batch_execute(&script).await {
                Ok(()) => true,
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => false,
                Err(error) => panic!("{script}: {error:?}"),
            }
        })
        .await;
        let lacking = pending(&client, &odd, Some(layout)).await.expect("the layout is right");
        assert!(lacking.is_empty(), "{lacking:?}");
        let status = status(&client, &odd).await.expect("it can be looked at");
        assert_eq!(status.layout, Some(layout));
    }
}

/// G-10: a migration that was applied somewhere is never changed; what is new comes in the next one.
async fn a_schema_of_any_version_becomes_the_same(schema: Schema) {
    let (mut client, outbox) = (schema.connect().await, TableName::default());
    for layout in [Layout::Plain, PARTITIONED] {
        let script = sql(&outbox, layout);
        let noted: Vec<usize> =
            script.match_indices("INSERT INTO postrider_migrations").map(|(at, _)| at).collect();
        assert_eq!(noted.len(), migrations(layout).len());
        for (version, begin) in noted.into_iter().enumerate() {
            let end = begin + script[begin..].find(";\n").expect("a statement has an end") + 1;
            run(
                &client,
                &format!("CREATE SCHEMA again; SET search_path = again; {}", &script[..end]),
            )
            .await;
            let applied = migrate(&mut client, &outbox, None).await.expect("it can be migrated");
            assert_eq!(applied.len(), migrations(layout).len() - version - 1);
            let differences = verify(&mut client, &outbox).await.expect("it can be verified");
            assert!(differences.is_empty(), "from version {}: {differences:?}", version + 1);
            run(&client, "DROP SCHEMA again CASCADE").await;
        }
    }
}

async fn several_may_migrate_at_once(schema: Schema) {
    let mut migrators = JoinSet::new();
    for _ in 0..4 {
        let mut client = schema.connect().await;
        migrators.spawn(async move {
            let applied = migrate(&mut client, &TableName::default(), None).await;
            applied.expect("one waits for the other").len()
        });
    }
    let applied: usize = migrators.join_all().await.into_iter().sum();
    assert_eq!(applied, migrations(Layout::Plain).len());
}

async fn a_foreign_table_of_that_name_is_left_alone(schema: Schema) {
    let mut client = schema.connect().await;
    run(&client, "CREATE TABLE outbox (x text)").await;
    let error = migrate(&mut client, &TableName::default(), None).await;
    let error = error.expect_err("the name is taken");
    assert_eq!(error.to_string(), "migration 1 of outbox failed; nothing was changed");
    assert_eq!(values::<String>(&client, TABLES).await, ["outbox"]);
}

async fn a_newer_schema_is_refused(schema: Schema) {
    let mut client = migrated(&schema, Layout::Plain).await;
    run(&client, "INSERT INTO postrider_migrations VALUES ('outbox', 99, 'x', 'plain')").await;
    let error = migrate(&mut client, &TableName::default(), None).await;
    let error = error.expect_err("the version is not known").to_string();
    let expected =
        "the schema of outbox is at version 99 and this build knows up to 5; upgrade postrider";
    assert_eq!(error, expected);
    run(&client, "DELETE FROM postrider_migrations WHERE version = 99").await;
    run(&client, "UPDATE postrider_migrations SET layout = 'round'").await;
    let error = migrate(&mut client, &TableName::default(), None).await;
    let error = error.expect_err("the layout is not known");
    assert!(matches!(error, SchemaError::Newer { .. }), "{error:?}");
}

async fn another_layout_is_refused(schema: Schema) {
    let mut client = migrated(&schema, PARTITIONED).await;
    let error = migrate(&mut client, &TableName::default(), Some(Layout::Plain)).await;
    let error = error.expect_err("it is in partitions").to_string();
    assert!(error.starts_with("outbox is partitioned 1d and cannot be made plain; "), "{error}");
    let applied = migrate(&mut client, &TableName::default(), None).await;
    assert!(applied.expect("any layout is fine").is_empty());
}

async fn an_existing_table_stays_as_it_is(schema: Schema) {
    let mut client = schema.connect().await;
    let outbox = TableName::new("events").expect("it is fine");
    let error = migrate(&mut client, &outbox, Some(Layout::Existing)).await;
    let error = error.expect_err("there is none").to_string();
    assert_eq!(error, "there is no table events; name the one that has the events");
    run(&client, "CREATE TABLE events (id bigint)").await;
    let applied = migrate(&mut client, &outbox, Some(Layout::Existing)).await;
    assert_eq!(applied.expect("there is one").len(), migrations(Layout::Existing).len());
    let expected = [
        "events",
        "events_checkpoints",
        "events_claims",
        "events_failures",
        "events_leases",
        "events_messages",
        "events_pauses",
        "inbox",
        "inbox_messages",
        "inbox_versions",
        "postrider_migrations",
    ];
    assert_eq!(values::<String>(&client, TABLES).await, expected);
}

/// Only the first schema of the path counts, and functions stay in it whatever the caller's path.
async fn tables_of_another_schema_are_not_ours(schema: Schema) {
    let other = Schema::fresh().await;
    migrated(&other, Layout::Plain).await;
    let mut client = schema.connect().await;
    let path = |first: &Schema, second: &Schema| {
        format!("SET search_path = \"{}\", \"{}\"", first.name(), second.name())
    };
    run(&client, &path(&schema, &other)).await;
    let applied = migrate(&mut client, &TableName::default(), None).await;
    assert_eq!(applied.expect("this schema is empty").len(), migrations(Layout::Plain).len());
    run(&client, &path(&other, &schema)).await;
    let name = schema.name();
    let publish = format!("SELECT \"{name}\".outbox_publish('Order', '42', 'OrderPaid', '{{}}')");
    run(&client, &publish).await;
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
    let count = format!("SELECT count(*) FROM \"{name}\".outbox");
    assert_eq!(value::<i64>(&client, &count).await, 1);
}
