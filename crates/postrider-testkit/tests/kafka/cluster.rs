//! A cluster of three that loses brokers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_relay::sink::FailureKind::Unavailable;
use postrider_relay::sink::Sink;
use postrider_testkit::servers::kafka::{Server, make_topic_as, read, run_script};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::{
    DEADLINE, assert_refused, check_at_last, command_in, connect_to, message, new_name, publish,
    publish_at_last, room_for_cluster,
};

const PARTITIONS: i32 = 6;

fn url(servers: &[Server]) -> String {
    let addresses = servers.iter().map(|server| server.url().replace("kafka://", ""));
    format!("kafka://{}", addresses.collect::<Vec<_>>().join(","))
}

/// The place among the servers of the one that leads a partition.
fn leader(brokers: &str, topic: &str, partition: usize) -> usize {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    let client: BaseConsumer = config.create().unwrap();
    let metadata = client.fetch_metadata(Some(topic), DEADLINE).unwrap();
    let id = metadata.topics()[0].partitions()[partition].leader();
    usize::try_from(id).expect("there is a leader") - 1
}

/// Counts up in each of ten keys until it is told to stop. A number comes once the one before it
/// was taken.
struct Counting {
    sink: Arc<dyn Sink>,
    topic: String,
    stop: Arc<AtomicBool>,
}

impl Counting {
    /// The answer is the last number of each key, and how many attempts failed.
    async fn run(self, part: usize) -> (BTreeMap<String, u32>, usize) {
        let mut last: BTreeMap<_, u32> = (0..10).map(|key| (format!("{part}-{key}"), 0)).collect();
        let (mut failures, mut unsettled) = (0, false);
        while unsettled || !self.stop.load(Ordering::Relaxed) {
            let next =
                |(key, last): (&String, &u32)| message(&self.topic, key, (last + 1).to_string());
            let messages: Vec<_> = last.iter().map(next).collect();
            unsettled = false;
            for (message, answer) in messages.iter().zip(self.sink.publish(&messages).await) {
                match answer {
                    Ok(()) => *last.get_mut(&message.key).unwrap() += 1,
                    Err(error) => {
                        assert_eq!(error.kind, Unavailable, "{error}");
                        (failures, unsettled) = (failures + 1, true);
                    }
                }
            }
        }
        (last, failures)
    }
}

/// Every key has its numbers from 1 on in their order, once repetitions are left out.
fn assert_complete(brokers: &str, topic: &str, last: &BTreeMap<String, u32>) {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for record in read(brokers, topic) {
        let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
        let (key, number): (_, u32) = (text(record.key), text(record.value).parse().unwrap());
        let highest = seen.entry(key.clone()).or_default();
        assert!(number <= *highest + 1, "{key}: {number} came after {highest}");
        *highest = number.max(*highest);
    }
    assert_eq!(seen, *last, "what was confirmed is there");
}

#[tokio::test]
async fn leaders_die_and_nothing_is_lost_or_overtaken() {
    let _room = room_for_cluster().await;
    let mut servers = Server::start_cluster(3).await;
    let brokers = servers.iter().map(Server::internal).collect::<Vec<_>>().join(",");
    let topic = new_name();
    make_topic_as(&brokers, &topic, PARTITIONS, 3, &[]).await;
    // Shorter than it takes to find another leader, so that some calls fail.
    let sink: Arc<dyn Sink> = connect_to(&url(&servers), &topic, "timeout = \"2s\"").await.into();
    assert_eq!(sink.check().await, Ok(vec![]), "there is nothing to be cautious about");

    let stop = Arc::new(AtomicBool::new(false));
    let mut counting = JoinSet::new();
    for part in 0..4 {
        let (sink, topic, stop) = (Arc::clone(&sink), topic.clone(), Arc::clone(&stop));
        counting.spawn(Counting { sink, topic, stop }.run(part));
    }
    for partition in 0..2 {
        sleep(Duration::from_millis(500)).await;
        let leader = leader(&brokers, &topic, partition);
        servers[leader].kill9().await;
        sleep(Duration::from_secs(5)).await;
        servers[leader].start_again().await;
        servers[leader].until_ready(3).await;
    }
    sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut last, mut failures) = (BTreeMap::new(), 0);
    for (part, failed) in counting.join_all().await {
        last.extend(part);
        failures += failed;
    }
    assert!(failures > 0, "no call was under way while a leader was away");
    assert!(last.values().all(|number| *number > 10), "{last:?}");
    assert_complete(&brokers, &topic, &last);

    too_few_replicas(&mut servers, &*sink, &topic, &mut last).await;
    assert_complete(&brokers, &topic, &last);
    cautions(&servers, &brokers).await;
}

/// Two of three are gone: what is left may not confirm anything.
async fn too_few_replicas(
    servers: &mut [Server],
    sink: &dyn Sink,
    topic: &str,
    last: &mut BTreeMap<String, u32>,
) {
    let next = message(topic, "0-0", (last["0-0"] + 1).to_string());
    servers[0].kill9().await;
    servers[1].kill9().await;
    for _ in 0..3 {
        let lost = publish(sink, next.clone()).await;
        assert_refused(lost, Unavailable, "Connection refused");
    }
    servers[0].start_again().await;
    servers[1].start_again().await;
    publish_at_last(sink, next, Unavailable).await;
    *last.get_mut("0-0").unwrap() += 1;
    for server in servers {
        server.until_ready(3).await;
    }
}

/// What a check has to say about topics that one broker can lose.
async fn cautions(servers: &[Server], brokers: &str) {
    let single = new_name();
    make_topic_as(brokers, &single, 1, 1, &[("min.insync.replicas", "1")]).await;
    let told = connect_to(&url(servers), &single, "").await.check().await.unwrap().join("\n");
    assert!(told.contains(&format!("the topic {single} has one replica")), "{told}");

    let lax = new_name();
    make_topic_as(brokers, &lax, 1, 3, &[("min.insync.replicas", "1")]).await;
    let sink = connect_to(&url(servers), &lax, "").await;
    let told = sink.check().await.unwrap().join("\n");
    assert!(told.contains("confirms with min.insync.replicas=1"), "{told}");
    run_script(&command_in(&told, brokers)).await;
    check_at_last(&*sink).await;
}
