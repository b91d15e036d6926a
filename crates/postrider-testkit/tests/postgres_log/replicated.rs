//! Changes of another server are applied here: what a trigger writes meanwhile is of this
//! database, and what was replicated into the outbox itself is the operator's choice. The same
//! whether the table is polled or the log is read.

use postrider::schema::TableName;
use postrider::schema::postgres::{Replicated, set_replicated, verify};
use postrider_relay::sources::{Progress, SourceSpec};
use postrider_testkit::chaos::{Bank, cdc, spec, until};
use postrider_testkit::servers::address;
use postrider_testkit::servers::postgres::{Options, Server, shared_programs};

use crate::{Reader, STREAMS, events};

/// Events of a trigger count from here.
const WRITTEN_HERE: u64 = 1000;

/// Two databases of one server, of which one subscribes to the other: to its outbox, and to a
/// table with a trigger that writes events.
struct Subscribed {
    from: Bank,
    to: Bank,
}

impl Subscribed {
    async fn start(server: &Server, round: usize, replicated: Replicated) -> Self {
        let names = ["from", "to"].map(|name| format!("{name}_{round}"));
        let client = server.connect().await;
        for name in &names {
            client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        }
        let [from, to] = names.each_ref().map(|name| server.url(name));
        let (from, to) = (Bank::open(from).await, Bank::open(to).await);
        let mut client = to.connect().await;
        set_replicated(&mut client, &TableName::default(), replicated).await.unwrap();
        assert_eq!(verify(&mut client, &TableName::default()).await.unwrap(), []);
        for bank in [&from, &to] {
            bank.run("CREATE TABLE orders (id bigint PRIMARY KEY)").await;
        }
        to.run(&format!(
            "CREATE FUNCTION ordered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               PERFORM public.outbox_publish('Order', NEW.id::text, 'Ordered',
                 jsonb_build_object('event', {WRITTEN_HERE} + NEW.id));
               RETURN NULL;
             END $$;
             CREATE TRIGGER ordered AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION ordered();
             ALTER TABLE orders ENABLE ALWAYS TRIGGER ordered"
        ))
        .await;
        let slot = format!("subscribed_{round}");
        from.run("CREATE PUBLICATION changes FOR TABLE orders, outbox").await;
        from.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")).await;
        let (host, port) = address(from.url()).rsplit_once(':').unwrap();
        to.run(&format!(
            "CREATE SUBSCRIPTION {slot} CONNECTION 'host={host} port={port}
               user=postrider password=postrider dbname={}' PUBLICATION changes
             WITH (create_slot = false, slot_name = '{slot}')",
            from.database()
        ))
        .await;
        let left = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        until("the tables are copied", || async { to.number(left).await == 0 }).await;
        Self { from, to }
    }

    /// Orders over there, and waits until that has come here.
    async fn order(&self, order: u64) {
        self.from.run(&format!("INSERT INTO orders VALUES ({order})")).await;
        let has_come = format!("SELECT count(*) FROM orders WHERE id = {order}");
        until("the order has come", || async { self.to.number(&has_come).await == 1 }).await;
    }
}

fn ways() -> [fn(&str) -> SourceSpec; 3] {
    [cdc, |url| spec(url, Progress::Cursor), |url| spec(url, Progress::Mark)]
}

/// G-01, G-04: everything that is written here comes, and what is replicated as it was chosen.
#[tokio::test]
async fn rows_that_are_replicated_are_delivered_or_ignored_as_chosen() {
    let programs = shared_programs().await;
    let settings = [
        "max_logical_replication_workers = 20",
        "max_replication_slots = 50",
        "max_wal_senders = 50",
        "max_worker_processes = 40",
    ];
    let settings = settings.map(str::to_owned).to_vec();
    let server = Server::start(Options { programs, settings, ..Options::default() }).await;
    let mut round = 0;
    for replicated in [Replicated::Deliver, Replicated::Ignore] {
        for way in ways() {
            round += 1;
            let subscribed = Subscribed::start(&server, round, replicated).await;
            let Subscribed { from, to } = &subscribed;
            let spec = way(to.url());
            let reader = Reader::connect(&spec).await.unwrap();
            if spec.mode == postrider_relay::sources::Mode::Cdc {
                reader.get_to_log(to).await;
            } else {
                assert!(reader.batch(20).await.is_empty());
            }
            let mut expected = from.change_often(1, 3).await;
            // Transactions of another server are ahead of those of this one, or behind.
            from.run(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, xid)
                 VALUES ('Account', '1', 'AccountChanged', '{\"event\": 900}', '1099511627776')",
            )
            .await;
            expected.push(900);
            // What is done with it over there makes no difference.
            from.run("UPDATE outbox SET published_at = now()").await;
            if replicated == Replicated::Ignore {
                expected.clear();
            }
            subscribed.order(1).await;
            expected.push(WRITTEN_HERE + 1);
            let records = reader.read(expected.len()).await;
            let mut came = events(&records);
            came.sort_unstable();
            assert_eq!(came, expected, "{replicated} {spec:?}");
            reader.deliver(&records).await;
            // And what is written here as ever comes with its own number.
            let own = to.change_often(2, 2).await;
            let records = reader.read(2).await;
            assert_eq!(events(&records), own);
            reader.deliver(&records).await;
            assert!(reader.batch(50).await.is_empty());
            let odd = "SELECT count(*) FROM outbox
                 WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) OR seq > 7";
            assert_eq!(to.number(odd).await, 0, "rows have numbers of this database");
            let streams = to.number(STREAMS).await;
            assert_eq!(streams == 1, spec.mode == postrider_relay::sources::Mode::Cdc);
            reader.close().await;
        }
    }
}
