//! A cluster of three that loses brokers.

use std::collections::BTreeMap;
use std::sync::Arc;

use postrider_relay::sink::FailureKind::Unavailable;
use postrider_relay::sink::{Message, Sink};
use postrider_testkit::servers::kafka::{Server, make_topic_as, read, run_script};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{
    DEADLINE, assert_refused, check_at_last, command_in, connect_to, message, new_name, publish,
    publish_at_last, room_for_cluster,
};

const PARTITIONS: i32 = 6;
/// How many leaders die at least, and at most until a call has failed.
const KILLS_MIN: usize = 2;
const KILLS_MAX: usize = 6;

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

/// How far counting has come, and whether it goes on.
#[derive(Clone, Debug, Default)]
struct Count {
    /// The last number of each key.
    last: BTreeMap<String, u32>,
    /// How many attempts failed.
    failures: usize,
    stop: bool,
}

impl Count {
    /// The lowest of all last numbers.
    fn lowest(&self) -> u32 {
        self.last.values().copied().min().unwrap_or_default()
    }
}

/// Counts up in some keys until it is told to stop, so many numbers of each key in a call. A call
/// begins with the number after the last one that was taken.
async fn count_up(
    sink: Arc<dyn Sink>,
    topic: String,
    keys: Vec<String>,
    at_once: u32,
    count: watch::Sender<Count>,
) {
    let mut unsettled = false;
    while unsettled || !count.borrow().stop {
        let next = |key: &String| {
            let last = count.borrow().last[key];
            let numbers = last + 1..=last + at_once;
            numbers.map(|number| message(&topic, key, number.to_string())).collect::<Vec<_>>()
        };
        let messages: Vec<Message> = keys.iter().flat_map(next).collect();
        let answers = sink.publish(&messages).await;
        unsettled = answers.iter().any(Result::is_err);
        count.send_modify(|count| {
            for (key, answers) in keys.iter().zip(answers.chunks(at_once as usize)) {
                let taken = answers.iter().take_while(|answer| answer.is_ok()).count();
                *count.last.get_mut(key).expect("all keys are there") += taken as u32;
                for answer in &answers[taken..] {
                    let error = answer.as_ref().expect_err("nothing is taken after a failure");
                    // What was not sent because of that says so.
                    assert!(error.kind == Unavailable || error.in_company, "{error}");
                    count.failures += 1;
                }
            }
        });
    }
}

/// Waits until each key has come so much further.
async fn until_further(count: &mut watch::Receiver<Count>, by: u32) {
    let goal = count.borrow().lowest() + by;
    let further = timeout(DEADLINE, count.wait_for(|count| count.lowest() >= goal)).await;
    drop(further.expect("counting goes on").expect("somebody counts"));
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
    let options = "timeout = \"2s\"";
    let sink: Arc<dyn Sink> = connect_to(&url(&servers), &topic, options).await.into();
    // In the end there is nothing to be cautious about.
    check_at_last(&*sink).await;

    let parts: Vec<Vec<_>> =
        (0..4).map(|part| (0..10).map(|key| format!("{part}-{key}")).collect()).collect();
    let last = parts.iter().flatten().map(|key| (key.clone(), 0)).collect();
    let counts = watch::Sender::new(Count { last, ..Count::default() });
    let mut count = counts.subscribe();
    let mut counting = JoinSet::new();
    // Half of the keys are hot.
    for (keys, at_once) in parts.into_iter().zip([1, 50, 1, 50]) {
        let (sink, topic) = (Arc::clone(&sink), topic.clone());
        counting.spawn(count_up(sink, topic, keys, at_once, counts.clone()));
    }
    let mut kills = 0;
    while kills < KILLS_MIN || count.borrow().failures == 0 {
        assert!(kills < KILLS_MAX, "no call was under way while a leader was away");
        until_further(&mut count, 5).await;
        let leader = leader(&brokers, &topic, kills % PARTITIONS as usize);
        servers[leader].kill9().await;
        // The others take over.
        until_further(&mut count, 5).await;
        servers[leader].start_again().await;
        servers[leader].until_ready(3).await;
        kills += 1;
    }
    until_further(&mut count, 5).await;
    counts.send_modify(|count| count.stop = true);
    timeout(DEADLINE, counting.join_all()).await.expect("all is taken in the end");
    let mut last = counts.borrow().last.clone();
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
        assert_refused(lost, Unavailable, "");
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
