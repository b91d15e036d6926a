//! An outbox in partitions by time.

use super::{PARTITIONED, migrated, refused, run, value, values};
use crate::case;
use crate::harnesses::writers::schema::Schema;
use crate::suites::Case;

const PARTITIONS: &str = "SELECT inhrelid::regclass::text FROM pg_inherits
    WHERE inhparent = 'outbox'::regclass ORDER BY 1";
const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload";

pub(super) fn cases() -> Vec<Case<Schema, ()>> {
    vec![
        case!(partitions_are_made_ahead),
        case!(so_many_partitions_are_made_and_no_more),
        case!(a_row_without_a_partition_is_kept),
        case!(an_old_partition_is_dropped),
        case!(a_writer_never_waits_for_a_drop),
        case!(only_partitions_can_be_dropped),
    ]
}

async fn partitions_are_made_ahead(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    let expected: Vec<String> = values(
        &client,
        "SELECT to_char((now() AT TIME ZONE 'UTC')::date + n, '\"outbox_p\"YYYYMMDD00')
            FROM generate_series(0, 3) AS n",
    )
    .await;
    let mut partitions: Vec<String> = values(&client, PARTITIONS).await;
    assert_eq!(partitions.pop().as_deref(), Some("outbox_p_default"));
    assert_eq!(partitions, expected);
    assert_eq!(value::<i32>(&client, "SELECT outbox_add_partitions()").await, 0);
    assert_eq!(value::<i32>(&client, "SELECT outbox_add_partitions(5)").await, 2);
    // The numbers go on across partitions.
    run(&client, &format!("{INSERT}) SELECT 'O', n::text, 'T', '' FROM generate_series(1, 2) n"))
        .await;
    let tomorrow =
        format!("{INSERT}, created_at) VALUES ('O', '3', 'T', '', now() + interval '1 day')");
    run(&client, &tomorrow).await;
    let placed = "SELECT tableoid::regclass || ' ' || seq FROM outbox ORDER BY seq";
    let placed: Vec<String> = values(&client, placed).await;
    let (today, tomorrow) = (&expected[0], &expected[1]);
    assert_eq!(placed, [format!("{today} 1"), format!("{today} 2"), format!("{tomorrow} 3")]);
}

/// Whoever may have partitions made may not fill the catalog.
async fn so_many_partitions_are_made_and_no_more(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    for ahead in [-1, 367, i32::MAX] {
        let (code, message) =
            refused(&client, &format!("SELECT outbox_add_partitions({ahead})")).await;
        assert_eq!(code, "22023", "{message}");
        assert!(message.contains("between 0 and 366"), "{message}");
    }
    assert_eq!(value::<i32>(&client, "SELECT outbox_add_partitions(4)").await, 1);
}

/// Nobody fails because partitions were not made in time.
async fn a_row_without_a_partition_is_kept(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    let beyond = "now() + interval '5 days'";
    run(&client, &format!("{INSERT}, created_at) VALUES ('O', '1', 'T', '', {beyond})")).await;
    let place = "SELECT tableoid::regclass::text FROM outbox";
    assert_eq!(value::<String>(&client, place).await, "outbox_p_default");
    // The fourth and the sixth day; the fifth is taken.
    assert_eq!(value::<i32>(&client, "SELECT outbox_add_partitions(6)").await, 2);
    assert_eq!(value::<String>(&client, place).await, "outbox_p_default");
}

const OLD: &str = "CREATE TABLE outbox_p2020010100 PARTITION OF outbox
    FOR VALUES FROM ('2020-01-01Z') TO ('2020-01-02Z');
    INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at)
        VALUES ('O', '1', 'T', '', '2020-01-01Z')";
const DROP_OLD: &str =
    "SELECT outbox_drop_partition('outbox_p2020010100', pg_current_snapshot(), false)";

async fn an_old_partition_is_dropped(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    run(&client, OLD).await;
    let unmarked = DROP_OLD.replace("false", "true");
    assert_eq!(value::<Option<bool>>(&client, &unmarked).await, None, "it is not published");
    assert!(value::<bool>(&client, DROP_OLD).await);
    let partitions: Vec<String> = values(&client, PARTITIONS).await;
    assert!(!partitions.contains(&"outbox_p2020010100".to_owned()), "{partitions:?}");
    assert_eq!(value::<i64>(&client, "SELECT count(*) FROM outbox").await, 0);
}

async fn a_writer_never_waits_for_a_drop(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    run(&client, OLD).await;
    let writer = schema.connect().await;
    run(&writer, &format!("BEGIN; {INSERT}) VALUES ('O', '2', 'T', '')")).await;
    assert!(!value::<bool>(&client, DROP_OLD).await, "it was only emptied");
    run(&writer, "COMMIT").await;
    let ids: Vec<String> = values(&client, "SELECT aggregate_id FROM outbox").await;
    assert_eq!(ids, ["2"]);
    assert!(value::<bool>(&client, DROP_OLD).await);
}

async fn only_partitions_can_be_dropped(schema: Schema) {
    let client = migrated(&schema, PARTITIONED).await;
    for name in ["inbox", "outbox", "outbox_p_default", "none", "no\"ne; DROP TABLE outbox"] {
        let sql = format!("SELECT outbox_drop_partition('{name}', pg_current_snapshot(), false)");
        let (code, message) = refused(&client, &sql).await;
        assert_eq!(code, "22023", "{name}");
        assert_eq!(message, format!("\"{name}\" is not a partition that can be dropped"));
    }
}
