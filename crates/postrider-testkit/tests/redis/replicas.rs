//! Events that replicas must have, and servers that are replicas.

use postrider_relay::pipeline::{Options, Pipeline};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::FailureKind::Unavailable;
use postrider_relay::sources::memory::MemoryOutbox;
use postrider_testkit::proxy::Proxy;
use postrider_testkit::servers::redis::Server;
use postrider_testkit::suites::numbered::building;
use redis::Value;
use tokio::time::timeout;

use crate::{
    DEADLINE, failing, is, kept, message, messages, published, redis_cli, run, server, sink, until,
};

async fn has_replica(server: &Server, state: &str) -> bool {
    let Value::BulkString(info) = run(server, "INFO replication").await else { panic!() };
    String::from_utf8_lossy(&info).contains(state)
}

async fn replicated() -> (Server, Server) {
    let primary = server(&["repl-diskless-sync-delay 0"]).await;
    let replica = primary.replica().await;
    until("it follows", || has_replica(&primary, "state=online")).await;
    (primary, replica)
}

const ONE: &str = "wait_replicas = 1\nwait_timeout = \"10s\"";
const IMPATIENT: &str = "wait_replicas = 1\nwait_timeout = \"300ms\"";

#[tokio::test]
async fn ok_means_that_replicas_have_it() {
    let (primary, mut replica) = replicated().await;
    published(&*sink(&primary.url(), ONE).await, &messages("s", 1..=3)).await;
    assert_eq!(kept(&replica, "s").await, [1, 2, 3]);

    replica.pause(true);
    let sink = sink(&primary.url(), IMPATIENT).await;
    let error = failing(&*sink, message("s", 4)).await;
    is(&error, Unavailable, "0 replicas of");
    // It is there already, and still nobody else has it: for a new connection, too.
    assert_eq!(kept(&primary, "s").await.len(), 4);
    is(&failing(&*sink, message("s", 4)).await, Unavailable, "wait_replicas is 1");
    let other = crate::sink(&primary.url(), IMPATIENT).await;
    is(&failing(&*other, message("s", 4)).await, Unavailable, "wait_replicas is 1");

    replica.pause(false);
    let caught_up = || async { sink.publish(&[message("s", 4)]).await[0].is_ok() };
    until("the replica goes on", caught_up).await;
    assert_eq!(kept(&replica, "s").await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn too_few_replicas_are_found_by_a_check() {
    let primary = server(&[]).await;
    let sink = sink(&primary.url(), ONE).await;
    is(&sink.check().await.unwrap_err(), Unavailable, "0 replicas of");
    let strict = server(&["min-replicas-to-write 1"]).await;
    let sink = crate::sink(&strict.url(), "").await;
    is(&failing(&*sink, message("s", 1)).await, Unavailable, "answered NOREPLICAS");
    run(&strict, "CONFIG SET min-replicas-to-write 0").await;
    published(&*sink, &[message("s", 1)]).await;
}

/// F56.
#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_the_primary() {
    let (mut primary, replica) = replicated().await;
    published(&*sink(&primary.url(), ONE).await, &messages("s", 1..=3)).await;
    let sink = sink(&replica.url(), "").await;
    is(&sink.check().await.unwrap_err(), Unavailable, "is a replica, which takes no writes");
    is(&failing(&*sink, message("s", 4)).await, Unavailable, "answered READONLY");
    // The next call is a new connection, which may lead elsewhere.
    let is_gone = || async {
        let clients = redis_cli(&replica, &["CLIENT", "LIST"]).await.stdout;
        !String::from_utf8_lossy(&clients).contains("name=postrider")
    };
    until("it hangs up", is_gone).await;
    primary.kill9().await;
    run(&replica, "REPLICAOF NO ONE").await;
    // It has what the old primary has remembered.
    published(&*sink, &messages("s", 2..=4)).await;
    assert!(sink.check().await.is_ok());
    assert_eq!(kept(&replica, "s").await, [1, 2, 3, 4]);
}

/// F46: it is there, and says nothing.
#[tokio::test]
async fn a_server_that_stands_still_is_unavailable() {
    let mut server = server(&[]).await;
    let options = "response_timeout = \"3s\"\nconnect_timeout = \"3s\"";
    let sink = sink(&server.url(), options).await;
    published(&*sink, &[message("s", 1)]).await;
    server.pause(true);
    for _ in 0..2 {
        let answer = timeout(DEADLINE, failing(&*sink, message("s", 2))).await;
        is(&answer.expect("it is given up"), Unavailable, "did not answer within 3s");
    }
    server.pause(false);
    published(&*sink, &messages("s", 2..=3)).await;
    // The calls that were given up arrive, too, and change nothing.
    until("it has heard them all", || async { kept(&server, "s").await == [1, 2, 3] }).await;
}

/// A primary whose replica can be left behind, and the address under which clients find it.
struct Failover {
    primary: Server,
    replica: Server,
    /// What the replica hears of its primary.
    replication: Proxy,
    /// What clients are led to.
    clients: Proxy,
}

impl Failover {
    async fn start() -> Self {
        let primary = server(&["repl-diskless-sync-delay 0"]).await;
        let replica = primary.replica().await;
        let address = format!("127.0.0.1:{}", primary.port());
        let replication = Proxy::start(&address).await;
        let follow = format!("REPLICAOF 127.0.0.1 {}", replication.address().port());
        run(&replica, &follow).await;
        let clients = Proxy::start(&address).await;
        let failover = Self { primary, replica, replication, clients };
        until("it follows", || has_replica(&failover.primary, "state=online")).await;
        failover
    }

    fn url(&self) -> String {
        self.clients.url(&self.primary.url())
    }

    /// The primary dies with what the replica has not heard, and the replica takes its place.
    async fn fail_over(&mut self) {
        self.primary.kill9().await;
        self.replication.refuse(true).await;
        self.replication.cut();
        run(&self.replica, "REPLICAOF NO ONE").await;
        self.clients.lead_to(&format!("127.0.0.1:{}", self.replica.port()));
    }
}

/// G-02. The relay goes on at the new primary, once that has a replica in its turn.
#[tokio::test]
async fn a_failover_to_a_replica_that_lagged_takes_nothing_that_was_delivered() {
    let mut failover = Failover::start().await;
    let sink = sink(&failover.url(), IMPATIENT).await;
    let outbox = MemoryOutbox::new();
    let append = |numbers: std::ops::RangeInclusive<u32>| {
        let event = |number| building("a", number).topic("s").build().unwrap();
        outbox.append(numbers.map(event));
    };
    let source = Box::new(outbox.connect());
    let pipeline = Pipeline::new("test", source, sink, Options::default());
    let mut status = pipeline.status();
    let (stop, stopped) = shutdown();
    let running = tokio::spawn(pipeline.run(stopped));
    append(1..=20);
    let delivered = timeout(DEADLINE, status.wait_for(|status| status.totals.delivered == 20));
    drop(delivered.await.expect("the first are delivered"));

    failover.replication.black_hole(true);
    append(21..=40);
    until("the primary alone has more", || async { kept(&failover.primary, "s").await.len() > 20 })
        .await;
    failover.fail_over().await;
    assert_eq!(status.borrow().totals.delivered, 20, "what one server has is not delivered");
    assert_eq!(kept(&failover.replica, "s").await, Vec::from_iter(1..=20));
    // The new primary needs a replica of its own.
    let second = failover.replica.replica().await;
    append(41..=60);
    let delivered = timeout(DEADLINE, status.wait_for(|status| status.totals.delivered == 60));
    drop(delivered.await.expect("it goes on"));
    stop.stop();
    running.await.unwrap().unwrap();
    assert_eq!(outbox.unpublished(), 0);
    for server in [&failover.replica, &second] {
        assert_eq!(kept(server, "s").await, Vec::from_iter(1..=60));
    }
}

/// The guide says so: without `wait_replicas`, delivered means that the primary has it.
#[tokio::test]
async fn without_wait_replicas_a_failover_takes_what_the_replica_lacked() {
    let mut failover = Failover::start().await;
    let sink = sink(&failover.url(), "").await;
    let cautions = sink.check().await.unwrap().join("\n");
    assert!(cautions.contains("set wait_replicas = 1"), "{cautions}");
    published(&*sink, &messages("s", 1..=3)).await;
    until("the replica has them", || async { kept(&failover.replica, "s").await.len() == 3 }).await;
    failover.replication.black_hole(true);
    published(&*sink, &messages("s", 4..=5)).await;
    failover.fail_over().await;
    until("the new primary is used", || async {
        sink.publish(&[message("s", 6)]).await[0].is_ok()
    })
    .await;
    assert_eq!(kept(&failover.replica, "s").await, [1, 2, 3, 6]);
}
