//! What stands in the way of an audit is said before it begins, with what mends it.

use postrider_relay::audit::{Operation, Watch};
use postrider_relay::source::SourceErrorKind;
use postrider_testkit::servers::postgres::{Options, Server};

use crate::{EVENT, Shop, TABLES, begin, connect, table, told, watch};

#[tokio::test]
async fn what_cannot_be_watched_is_named() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE VIEW paid AS SELECT * FROM orders;
         CREATE MATERIALIZED VIEW sums AS SELECT * FROM orders;
         CREATE UNLOGGED TABLE carts (id bigint PRIMARY KEY);
         CREATE TABLE visits (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (10);
         CREATE SCHEMA sales; CREATE TABLE sales.invoices (id bigint PRIMARY KEY);
         CREATE TABLE \"Order\" (id bigint PRIMARY KEY)",
    )
    .await;
    let cases: [(&[&str], &str, &str); 12] = [
        (&["order"], "has no table order", "did you mean public.Order?"),
        (&["ordersss"], "has no table ordersss", "did you mean public.orders?"),
        (&["sales.orders"], "has no table sales.orders", "did you mean public.orders?"),
        (&["invoices"], "has no table invoices", "did you mean sales.invoices?"),
        (&["xyzzyxyzzy"], "has no table xyzzyxyzzy", "as the database has them"),
        (&["paid"], "public.paid is a view", "name tables alone"),
        (&["sums"], "public.sums is a view", "name tables alone"),
        (&["carts"], "public.carts is unlogged", "ALTER TABLE public.carts SET LOGGED"),
        (&["outbox"], "public.outbox is the outbox itself", "your business"),
        (&["orders", "public.orders"], "public.orders is named twice", "once"),
        (&["visits", "visits_1"], "one is a part of the other", "name the whole"),
        (&["pg_catalog.pg_class"], "is the server's own", "tables of yours"),
    ];
    for (tables, what, fix) in cases {
        let error = shop.refused(&watch(tables)).await;
        assert_eq!(error.kind, SourceErrorKind::Misconfigured);
        assert!(error.message.contains(what), "{error:?}");
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains(fix)), "{error:?}");
    }
    // All of it at once.
    let error = shop.refused(&watch(&["paid", "carts", "nothing_like_it"])).await;
    for part in ["public.paid is a view", "public.carts is unlogged", "no table nothing_like_it"] {
        assert!(error.message.contains(part), "{error:?}");
    }
}

/// The statements that it advises are those that help.
#[tokio::test]
async fn rights_that_are_missing_are_named_with_what_grants_them() {
    let shop = Shop::fresh().await;
    let role = format!("auditor_{}", shop.database.name());
    shop.run(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT SELECT ON outbox TO {role}"))
        .await;
    let url = shop.database.url();
    let (_, address) = url.split_once('@').unwrap();
    let url = format!("postgres://{role}:x@{address}");
    let orders = watch(&["orders"]);

    let error = begin(&url, &orders).await.err().unwrap();
    assert_eq!(error.message, format!("the role {role} may not read the log"));
    let fix = error.hint.unwrap();
    shop.run(fix.strip_prefix("run ").unwrap()).await;

    let error = begin(&url, &orders).await.err().unwrap();
    let what = format!("the role {role} may not publish public.orders, public.outbox, which it");
    assert!(error.message.contains(&what), "{error:?}");
    let hint = error.hint.unwrap();
    let statements = hint.split_once(" run ").unwrap().1;
    let (statements, publications) = statements.split_once("; then add --publication ").unwrap();
    shop.run(statements).await;
    let publications: Vec<String> = publications.split(',').map(str::to_owned).collect();
    let with_publications = Watch { publications, ..orders.clone() };
    let begun = begin(&url, &with_publications).await.unwrap();
    shop.run("INSERT INTO orders VALUES (1)").await;
    shop.run(EVENT).await;
    let report = begun.finish().await;
    assert_eq!(
        told(&report),
        ["1x no_event public.orders insert1", "1x event_only Order/OrderPaid"]
    );
    // What others have made stays.
    assert_eq!(shop.number("SELECT count(*) FROM pg_publication").await, 2);

    shop.run(&format!("ALTER TABLE orders OWNER TO {role}; ALTER TABLE outbox OWNER TO {role}"))
        .await;
    let error = begin(&url, &orders).await.err().unwrap();
    let what = format!("the role {role} may not make a publication in {}", shop.database.name());
    assert_eq!(error.message, what);
    shop.run(error.hint.unwrap().strip_prefix("run ").unwrap()).await;
    begin(&url, &orders).await.unwrap().finish().await;
    shop.run(&format!("REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}")).await;
    shop.run(&format!("DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_publication_that_is_given_has_to_have_everything() {
    let shop = Shop::fresh().await;
    shop.run(
        "CREATE TABLE visits (id bigint PRIMARY KEY) PARTITION BY RANGE (id);
         CREATE PUBLICATION inserts FOR TABLE orders, outbox WITH (publish = 'insert');
         CREATE PUBLICATION orders_alone FOR TABLE orders;
         CREATE PUBLICATION parts FOR TABLE visits, outbox",
    )
    .await;
    let given = |names: &[&str], tables: &[&str]| Watch {
        publications: names.iter().map(|name| (*name).to_owned()).collect(),
        ..watch(tables)
    };
    let cases: [(&[&str], &str, &str); 4] = [
        (&["nothing"], "orders", "there is no publication nothing"),
        (&["inserts"], "orders", "does not publish update, delete, truncate of public.orders"),
        (&["orders_alone"], "orders", "does not publish insert of public.outbox"),
        (&["parts"], "visits", "of public.visits with publish_via_partition_root"),
    ];
    for (names, table, what) in cases {
        let error = shop.begin(&given(names, &[table])).await.err().unwrap();
        assert!(error.message.contains(what), "{error:?}");
    }
    // Two can have it together.
    let begun = shop.begin(&given(&["inserts", "orders_alone"], &["orders"])).await.unwrap();
    shop.run("DELETE FROM orders; INSERT INTO orders VALUES (1)").await;
    assert_eq!(told(&begun.finish().await), ["1x no_event public.orders insert1"]);
    // What needs an event is enough.
    let tables = vec![table("orders", &[Operation::Insert])];
    let begun = shop.begin(&Watch { tables, ..given(&["inserts"], &[]) }).await.unwrap();
    assert!(begun.audit.watched().notes[0].contains("no update and no delete and no truncate"));
    begun.finish().await;
    let filters = "SELECT (current_setting('server_version_num')::int4 >= 150000)::int4::int8";
    if shop.number(filters).await == 1 {
        shop.run("CREATE PUBLICATION filtered FOR TABLE orders WHERE (id > 1), outbox").await;
        let error = shop.begin(&given(&["filtered"], &["orders"])).await.err().unwrap();
        assert!(error.message.contains("leaves out rows of public.orders"), "{error:?}");
    }
}

#[tokio::test]
async fn a_server_whose_log_cannot_be_read_is_refused() {
    for (setting, what, fix) in [
        ("wal_level = replica", "wal_level is replica", "ALTER SYSTEM SET wal_level = logical"),
        (
            "synchronous_standby_names = '*'",
            "commits would wait for the audit",
            "name the standbys",
        ),
    ] {
        let settings = vec![setting.to_owned(), "synchronous_commit = local".to_owned()];
        let server = Server::start(Options { settings, ..Options::default() }).await;
        let mut client = server.connect().await;
        let outbox = postrider::schema::TableName::default();
        postrider::schema::postgres::migrate(&mut client, &outbox, None).await.unwrap();
        client.batch_execute(TABLES).await.unwrap();
        let error = begin(&server.url("postgres"), &watch(&["orders"])).await.err().unwrap();
        assert!(error.message.contains(what), "{error:?}");
        assert!(error.hint.unwrap().contains(fix));
    }
}

#[tokio::test]
async fn a_pooler_cannot_carry_it() {
    let shop = Shop::fresh().await;
    let error = begin(&shop.database.pooled_url(), &watch(&["orders"])).await.err().unwrap();
    assert_eq!(
        error.hint.as_deref(),
        Some("a pooler cannot carry the log: name the server itself")
    );
    let client = connect(&shop.database.url()).await;
    let left = "SELECT count(*) FROM pg_publication";
    assert_eq!(client.query_one(left, &[]).await.unwrap().get::<_, i64>(0), 0);
}
