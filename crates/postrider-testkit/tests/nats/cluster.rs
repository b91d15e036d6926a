//! Streams on several servers.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use async_nats::jetstream::stream::Config;
use async_nats::jetstream::{self, Context};
use postrider_relay::formats::Encoding;
use postrider_relay::pipeline::{Options, Pipeline, Status};
use postrider_relay::shutdown::shutdown;
use postrider_relay::sink::FailureKind;
use postrider_relay::sources::memory::MemoryOutbox;
use postrider_testkit::servers::nats::{Server, connect, read};
use postrider_testkit::suites::numbered::{key_of, number, spread};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::{DEADLINE, SUBJECT, assert_refused, connected, message, publish, spec, until};

const KEYS: u32 = 10;
/// How often the leader has to step down, before it is killed.
const STEP_DOWNS: usize = 3;
/// How many events a pipeline gets at a time.
const AT_ONCE: u32 = 20;
/// How far it comes between two changes of the leader.
const FURTHER: u64 = 100;

/// Makes a stream, once the cluster can.
async fn make(server: &Server, replicas: usize) -> Context {
    let context = jetstream::new(connect(&server.url()).await);
    let config = Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["orders.>".to_owned()],
        num_replicas: replicas,
        duplicate_window: Duration::from_secs(3600),
        ..Config::default()
    };
    let made = || async { context.create_stream(config.clone()).await.is_ok() };
    until("the cluster has a leader", made).await;
    context
}

/// A stream that loses its leader takes nothing for a moment, and its subject looks like one that
/// no stream takes. That must not stop a pipeline.
#[tokio::test]
async fn a_stream_without_a_leader_is_waited_for() {
    let mut servers = Server::cluster().await;
    make(&servers[0], 3).await;
    let url = servers[0].url();
    let sink = connected(&url, "ack_timeout = \"4s\"").await;
    publish(&*sink, message()).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), Vec::<String>::new());
    let (left, others) = servers.split_at_mut(1);
    for server in &mut *others {
        server.kill9().await;
    }
    // One of three is no majority.
    for _ in 0..5 {
        let error = publish(&*sink, message()).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Unavailable, "{error}");
    }
    for server in &mut *others {
        server.start_again().await;
    }
    until("the stream has a leader", || async { publish(&*sink, message()).await.is_ok() }).await;
    // Any server will do.
    let both = format!("{},{}", url, others[0].address());
    let sink = spec(&both, "stream = \"ORDERS\"").connect().await.unwrap();
    publish(&*sink, message()).await.unwrap();
    left[0].kill9().await;
    until("the other server is used", || async { publish(&*sink, message()).await.is_ok() }).await;
}

#[tokio::test]
async fn one_replica_in_a_cluster_is_named() {
    let servers = Server::cluster().await;
    let context = make(&servers[0], 1).await;
    let sink = connected(&servers[1].url(), "").await;
    let cautions = sink.check().await.unwrap();
    assert_eq!(cautions.len(), 1, "{cautions:?}");
    assert!(cautions[0].contains("nats stream edit ORDERS --replicas=3"), "{cautions:?}");
    // What is not there is not there, in a cluster, too.
    context.delete_stream("ORDERS").await.unwrap();
    let refused = publish(&*sink, message()).await;
    assert_refused(refused, FailureKind::Misconfigured, "--replicas=3");
}

/// Appends events, as long as there is somebody who reads them. Answers how many.
async fn write(outbox: MemoryOutbox, stop: watch::Receiver<bool>) -> u32 {
    let mut written = 0;
    while !*stop.borrow() {
        if outbox.unpublished() < u64::from(AT_ONCE) * 5 {
            outbox.append(spread(KEYS, written..written + AT_ONCE));
            written += AT_ONCE;
        }
        sleep(Duration::from_millis(1)).await;
    }
    written
}

async fn until_further(status: &mut watch::Receiver<Status>) {
    let goal = status.borrow().totals.delivered + FURTHER;
    let further = timeout(DEADLINE, status.wait_for(|status| status.totals.delivered >= goal));
    drop(further.await.expect("publishing goes on").expect("the pipeline runs"));
}

/// The place among the servers of the one that leads the stream, once there is one.
async fn leader(context: &Context) -> usize {
    let started = std::time::Instant::now();
    loop {
        if let Ok(stream) = context.get_stream("ORDERS").await
            && let Some(leader) = stream.cached_info().cluster.clone().and_then(|it| it.leader)
        {
            let number: usize = leader.trim_start_matches('n').parse().unwrap();
            return number - 1;
        }
        assert!(started.elapsed() < DEADLINE, "the stream has no leader");
        sleep(Duration::from_millis(20)).await;
    }
}

/// G-01, G-02.
#[tokio::test]
async fn leaders_change_and_nothing_is_lost_or_overtaken() {
    let mut servers = Server::cluster().await;
    let context = make(&servers[0], 3).await;
    let others = servers[1..].iter().map(|server| format!(",{}", server.address()));
    let url = servers[0].url() + &others.collect::<String>();
    let sink = connected(&url, "ack_timeout = \"2s\"").await;
    let outbox = MemoryOutbox::new();
    let mut encoding = Encoding::default();
    encoding.route.topic = SUBJECT.parse().unwrap();
    let options = Options { encoding, ..Options::default() };
    let pipeline = Pipeline::new("test", Box::new(outbox.connect()), sink, options);
    let mut status = pipeline.status();
    let (stop, stopped) = shutdown();
    let running = tokio::spawn(pipeline.run(stopped));
    let (enough, is_enough) = watch::channel(false);
    let writing = tokio::spawn(write(outbox.clone(), is_enough));

    let client = connect(&servers[0].url()).await;
    for _ in 0..STEP_DOWNS {
        until_further(&mut status).await;
        let step_down = "$JS.API.STREAM.LEADER.STEPDOWN.ORDERS";
        let answer = client.request(step_down, "".into()).await.unwrap();
        let answer = String::from_utf8_lossy(&answer.payload);
        assert!(answer.contains("\"success\":true"), "{answer}");
    }
    until_further(&mut status).await;
    let leader = leader(&context).await;
    servers[leader].kill9().await;
    until_further(&mut status).await;
    servers[leader].start_again().await;
    until_further(&mut status).await;
    enough.send_replace(true);
    let written = writing.await.unwrap();
    until("all is published", || async { outbox.unpublished() == 0 }).await;
    stop.stop();
    running.await.unwrap().unwrap();

    let context = jetstream::new(connect(&servers[(leader + 1) % 3].url()).await);
    let stored = read(&context, "ORDERS").await;
    let numbers = stored.iter().map(|it| number(it.headers["Nats-Msg-Id"].parse().unwrap()));
    let mut once = HashSet::new();
    let mut in_order: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for number in numbers.filter(|number| once.insert(*number)) {
        in_order.entry(key_of(number, KEYS)).or_default().push(number);
    }
    assert_eq!(once.len(), written as usize, "nothing is lost");
    assert!(in_order.values().all(|numbers| numbers.is_sorted()), "{in_order:?}");
    // The stream knows what it has, whoever leads it.
    assert_eq!(stored.len(), once.len(), "nothing is stored twice");
}
