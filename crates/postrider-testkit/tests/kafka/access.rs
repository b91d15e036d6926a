//! Who is let in, and who may do what.

use postrider_relay::sink::FailureKind::{Failed, Misconfigured, Rejected, Unavailable};
use postrider_relay::sink::Sink;
use postrider_testkit::servers::certificates::Certificates;
use postrider_testkit::servers::kafka::{
    Options, Server, make_topic, partitions, read, run_script,
};
use tokio::time::timeout;

use crate::{
    SOON, assert_refused, check_at_last, command_in, connect, connect_to, message, new_name,
    publish, publish_all, publish_at_last, room_for_broker, spec,
};

const SCRAM_512: &str = "username = \"postrider\"\npassword = \"postrider\"";

fn user(password: &str, mechanism: &str) -> String {
    format!("username = \"postrider\"\npassword = \"{password}\"\nsasl_mechanism = \"{mechanism}\"")
}

/// That a check and an event are refused soon, without showing a secret.
async fn assert_kept_out(sink: &dyn Sink, topic: &str, expected: &str) {
    let checked = timeout(SOON, sink.check()).await.expect("a check is answered soon");
    let published = timeout(SOON, publish(sink, message(topic, "1", "canary"))).await;
    let published = published.expect("an event is answered soon");
    for told in [
        assert_refused(checked, Misconfigured, expected),
        assert_refused(published, Misconfigured, expected),
    ] {
        assert!(!told.contains("canary"), "{told}");
        assert!(told.starts_with("Kafka at "), "{told}");
    }
}

/// That a check says nothing and an event arrives.
async fn assert_let_in(sink: &dyn Sink, server: &Server, topic: &str) {
    assert_eq!(sink.check().await, Ok(vec![]));
    let before = read(&server.internal(), topic).len();
    assert_eq!(publish(sink, message(topic, "1", "x")).await, Ok(()));
    assert_eq!(read(&server.internal(), topic).len(), before + 1);
}

#[tokio::test]
async fn passwords_open_and_rules_allow() {
    let _room = room_for_broker().await;
    let server = Server::start(Options { password: true, rules: true, ..Options::default() }).await;
    let topic = make_topic(&server.internal(), 1, &[]).await;
    rules(&server, &topic).await;
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let right = connect_to(&server.url(), &topic, &user("postrider", mechanism)).await;
        assert_eq!(publish(&*right, message(&topic, "1", "x")).await, Ok(()), "{mechanism}");
        let told = right.check().await.unwrap().join("\n");
        match mechanism {
            "PLAIN" => {
                assert!(told.contains("is sent to Kafka as it is; set tls = true"), "{told}")
            }
            _ => assert_eq!(told, ""),
        }
        let wrong = connect_to(&server.url(), &topic, &user("canary", mechanism)).await;
        assert_kept_out(&*wrong, &topic, "see username, password and sasl_mechanism").await;
    }
    let in_url = server.url().replace("kafka://", "kafka://postrider:postrider@");
    assert_let_in(&*connect_to(&in_url, &topic, "").await, &server, &topic).await;

    // It may be a broker on its way down, so it is no refusal; the reason is said.
    let options = "timeout = \"8s\"";
    let without = connect_to(&server.url(), &topic, options).await;
    let expected = "if that lasts, it may want another kind of connection: see tls, and username";
    assert_refused(without.check().await, Unavailable, expected);
    assert_refused(publish(&*without, message(&topic, "1", "x")).await, Unavailable, expected);
    let tls = connect_to(&server.url(), &topic, &format!("{options}\ntls = true")).await;
    assert_refused(tls.check().await, Unavailable, expected);

    hidden_settings(&server).await;
    making_topics(&server).await;
    a_password_that_is_mended(&server).await;
}

/// Nothing is allowed until the command of the error was run.
async fn rules(server: &Server, topic: &str) {
    let sink = connect_to(&server.url(), topic, SCRAM_512).await;
    let expected = format!("no permission to write to the topic {topic}; run kafka-acls.sh");
    assert_refused(sink.check().await, Misconfigured, &expected);
    let published = publish(&*sink, message(topic, "1", "x")).await;
    let told = assert_refused(published, Misconfigured, &expected);

    // Who may look may yet not write.
    allow(server, &told.replace(" --operation Write", "")).await;
    check_at_last(&*sink).await;
    let published = publish(&*sink, message(topic, "1", "x")).await;
    let expected = "no permission to write to any topic; run kafka-acls.sh";
    let told = assert_refused(published, Misconfigured, expected);
    allow(server, &told).await;
    publish_at_last(&*sink, message(topic, "1", "x"), Misconfigured).await;
    assert_let_in(&*sink, server, topic).await;

    // Who may write somewhere may yet not write here.
    let other = make_topic(&server.internal(), 1, &[]).await;
    allow(server, &told.replace(" --operation Write", "").replace(topic, &other)).await;
    let sink = connect_to(&server.url(), &other, SCRAM_512).await;
    check_at_last(&*sink).await;
    let published = publish(&*sink, message(&other, "1", "x")).await;
    let expected = format!("no permission to write to the topic {other}; run kafka-acls.sh");
    assert_refused(published, Misconfigured, &expected);
}

/// Runs the command of an error or a caution.
async fn allow(server: &Server, told: &str) {
    run_script(&command_in(told, &server.internal()).replace("NAME", "postrider")).await;
}

/// Who may write may yet not ask how large a record may be.
async fn hidden_settings(server: &Server) {
    let topic = make_topic(&server.internal(), 1, &[("max.message.bytes", "5000")]).await;
    let servers = server.internal();
    run_script(&format!(
        "kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:postrider \
         --operation Write --topic {topic}"
    ))
    .await;
    let sink = connect_to(&server.url(), &topic, &format!("{SCRAM_512}\nlinger = \"50ms\"")).await;
    publish_at_last(&*sink, message(&topic, "first", "x"), Misconfigured).await;
    let told = sink.check().await.unwrap().join("\n");
    assert!(told.contains(&format!("the settings of the topic {topic} cannot be seen")), "{told}");

    let body = "x".repeat(500);
    let mut messages: Vec<_> =
        (0..50).map(|key| message(&topic, &key.to_string(), body.clone())).collect();
    messages.push(message(&topic, "large", "x".repeat(6000)));
    let first = sink.publish(&messages).await;
    // The large one fails, and those that were in a batch with it.
    let (taken, failed): (Vec<_>, Vec<_>) = first.into_iter().partition(Result::is_ok);
    assert!(!failed.is_empty(), "no batch was too large");
    for answer in failed {
        assert_refused(answer, Failed, "refused a batch as too large");
    }
    let mut second = sink.publish(&messages).await;
    let expected = "bytes, which is more than the topic";
    let large = assert_refused(second.pop().unwrap(), Rejected, expected);
    assert!(large.starts_with("the record has 6"), "{large}");
    assert!(second.iter().all(Result::is_ok), "each goes by itself");

    allow(server, &told).await;
    check_at_last(&*sink).await;
    let again = publish(&*sink, messages.pop().unwrap()).await;
    assert_refused(again, Rejected, "takes at most 5000");
    publish_all(&*sink, &messages).await;
    assert_eq!(read(&servers, &topic).len(), 1 + taken.len() + 50 + 50);
}

/// Making a topic takes a permission, too.
async fn making_topics(server: &Server) {
    let topic = new_name();
    let options = format!("{SCRAM_512}\ncreate_missing = true\npartitions = 2");
    let sink = connect_to(&server.url(), &topic, &options).await;
    let published = publish(&*sink, message(&topic, "1", "x")).await;
    let told = assert_refused(published, Misconfigured, "no permission to write to the topic");
    allow(server, &told).await;
    // A check makes nothing, so it is content once the rule is known.
    check_at_last(&*sink).await;
    let published = publish(&*sink, message(&topic, "1", "x")).await;
    let expected = format!("cannot make the topic {topic}: no permission; run kafka-acls.sh");
    let told = assert_refused(published, Misconfigured, &expected);
    assert_eq!(partitions(&server.internal(), &topic), 0);
    allow(server, &told).await;
    publish_at_last(&*sink, message(&topic, "1", "x"), Misconfigured).await;
    assert_eq!(partitions(&server.internal(), &topic), 2);
}

/// A sink that was kept out is let in once the password is right.
async fn a_password_that_is_mended(server: &Server) {
    let topic = make_topic(&server.internal(), 1, &[]).await;
    let sink = connect(&server.url(), "username = \"late\"\npassword = \"canary\"").await;
    assert_kept_out(&*sink, &topic, "see username, password and sasl_mechanism").await;
    let servers = server.internal();
    run_script(&format!(
        "kafka-acls.sh --bootstrap-server {servers} --add --allow-principal User:late \
         --operation Write --topic {topic}"
    ))
    .await;
    run_script(&format!(
        "kafka-configs.sh --bootstrap-server {servers} --alter --entity-type users --entity-name \
         late --add-config SCRAM-SHA-512=[password=canary]"
    ))
    .await;
    publish_at_last(&*sink, message(&topic, "1", "x"), Misconfigured).await;
}

/// The options for TLS with some files.
fn tls(authority: &std::path::Path, identity: Option<&Certificates>) -> String {
    let identity = identity.map(|files| {
        let (certificate, key) = (files.client.display(), files.client_key.display());
        format!(", certificate_file = \"{certificate}\", key_file = \"{key}\"")
    });
    let authority = authority.display();
    format!("tls = {{ ca_file = \"{authority}\"{} }}", identity.unwrap_or_default())
}

#[tokio::test]
async fn certificates_are_checked_on_both_sides() {
    let _room = room_for_broker().await;
    let options = Options { tls: true, client_certificate: true, ..Options::default() };
    let server = Server::start(options).await;
    let topic = make_topic(&server.internal(), 1, &[]).await;
    let files = server.certificates();
    let right = tls(&files.authority, Some(files));
    assert_let_in(&*connect_to(&server.url(), &topic, &right).await, &server, &topic).await;

    let expected = "see certificate_file and key_file of tls";
    let without = connect_to(&server.url(), &topic, &tls(&files.authority, None)).await;
    assert_kept_out(&*without, &topic, expected).await;

    let expected = "see tls: its ca_file has to be the authority of the brokers";
    let other = connect_to(&server.url(), &topic, &tls(&files.other_authority, Some(files))).await;
    assert_kept_out(&*other, &topic, expected).await;
    let system = connect_to(&server.url(), &topic, "tls = true").await;
    assert_kept_out(&*system, &topic, expected).await;
    // The certificate is for localhost.
    let by_number = server.url().replace("localhost", "127.0.0.1");
    assert_kept_out(&*connect_to(&by_number, &topic, &right).await, &topic, expected).await;

    let plain = connect_to(&server.url(), &topic, "timeout = \"8s\"").await;
    let expected = "if that lasts, it may want another kind of connection: see tls, and username";
    assert_refused(plain.check().await, Unavailable, expected);

    let nowhere = spec(&server.url(), &tls("/nowhere.pem".as_ref(), None)).connect().await;
    let expected = "cannot read /nowhere.pem (ca_file of tls): No such file";
    assert_refused(nowhere.map(drop), Misconfigured, expected);
}

#[tokio::test]
async fn passwords_go_through_tls() {
    let _room = room_for_broker().await;
    let server = Server::start(Options { password: true, tls: true, ..Options::default() }).await;
    let topic = make_topic(&server.internal(), 1, &[]).await;
    let tls = tls(&server.certificates().authority, None);
    for mechanism in ["SCRAM-SHA-512", "PLAIN"] {
        let right = format!("{}\n{tls}", user("postrider", mechanism));
        assert_let_in(&*connect_to(&server.url(), &topic, &right).await, &server, &topic).await;
        let wrong = format!("{}\n{tls}", user("canary", mechanism));
        let wrong = connect_to(&server.url(), &topic, &wrong).await;
        assert_kept_out(&*wrong, &topic, "see username, password and sasl_mechanism").await;
    }
}
