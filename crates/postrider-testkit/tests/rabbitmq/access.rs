//! Who is let in, and who may do what.

use postrider_relay::sink::FailureKind::{Misconfigured, Unavailable};
use postrider_testkit::servers::rabbitmq::{Exchange, Options, Server, Tls, shared};
use postrider_testkit::servers::{free_port, with_database};

use crate::{assert_error, connect, connect_for, message, new_name, publish};

/// The URL of another user.
fn as_user(url: &str, user: &str, password: &str) -> String {
    url.replace("postrider:postrider@", &format!("{user}:{password}@"))
}

/// The command that an error names, as words.
fn command_in(error: &str) -> Vec<String> {
    let command = error.split("rabbitmqctl ").nth(1).unwrap();
    command.split_whitespace().map(|word| word.trim_matches('\'').to_owned()).collect()
}

#[tokio::test]
async fn a_wrong_password_is_not_shown() {
    let url = as_user(&shared(), "postrider", "canary");
    let sink = connect(&url, "").await;
    let texts = ["does not let postrider in", "see username and password"];
    assert_error(sink.check().await, Misconfigured, &texts);
    assert_error(publish(&*sink, message("amq.topic", "a", 1)).await, Misconfigured, &texts);
    assert!(!format!("{:?}", connect_for(&url, "", None).await.map(drop)).contains("canary"));
}

/// Each error names the command, and after it was run, publishing works.
#[tokio::test]
async fn what_is_not_permitted_is_named_with_the_command_that_permits_it() {
    let server = Server::start(Options::default()).await;
    server.ctl(&["add_user", "relay", "secret"]).await;
    let url = as_user(&server.url(), "relay", "secret");
    let run = async |error: String| {
        let words = command_in(&error);
        server.ctl(&words.iter().map(String::as_str).collect::<Vec<_>>()).await;
    };

    let elsewhere = connect(&with_database(&url, "nowhere"), "").await;
    let add = ["no virtual host nowhere", "run rabbitmqctl add_vhost nowhere"];
    assert_error(elsewhere.check().await, Misconfigured, &add);

    let sink = connect(&url, "").await;
    let permit = "run rabbitmqctl set_permissions -p / relay '^$' '.*' '^$'";
    run(assert_error(sink.check().await, Misconfigured, &[permit])).await;
    assert_eq!(sink.check().await, Ok(Vec::new()));

    // Permissions are looked at with each event, and then every few seconds.
    server.ctl(&["set_permissions", "relay", "^$", "^amq\\.direct$", "^$"]).await;
    let exchange = Exchange::fresh_at(&server.url(), &[]).await;
    let one = || message(&exchange.name, "a", 1);
    let refused = connect(&url, "").await;
    let texts = ["no permission to write to the exchange", permit];
    run(assert_error(publish(&*refused, one()).await, Misconfigured, &texts)).await;
    assert_eq!(publish(&*connect(&url, "").await, one()).await, Ok(()));

    let name = new_name();
    let maker = connect(&url, "create_missing = true").await;
    let make = || message(&name, "a", 2);
    let texts = ["does not let relay make the exchange", "set_permissions -p / relay '.*' '.*'"];
    let error = assert_error(publish(&*maker, make()).await, Misconfigured, &texts);
    run(error.replace("'^$', or", "'^$' , or").split(" , or").next().unwrap().to_owned()).await;
    let made = connect(&url, "create_missing = true").await;
    let unbound = publish(&*made, make()).await;
    assert_error(unbound, postrider_relay::sink::FailureKind::Failed, &["bind one"]);
}

/// The commands for `rabbitmqadmin`, as they stand.
#[tokio::test]
async fn the_commands_that_make_exchanges_and_queues_work() {
    let port = free_port();
    let options = Options {
        plugins: vec!["rabbitmq_management"],
        settings: vec![
            "management.tcp.ip = 127.0.0.1".to_owned(),
            format!("management.tcp.port = {port}"),
        ],
        ..Options::default()
    };
    let server = Server::start(options).await;
    let sink = connect_for(&server.url(), "", Some("amq.default")).await.unwrap();
    let run = async |error: &str, queue: &str| {
        let command = error.split("rabbitmqadmin ").nth(1).unwrap();
        let command = command.split(", or").next().unwrap().replace("QUEUE", queue);
        let login = format!("rabbitmqadmin --port={port} -u postrider -p postrider {command}");
        let output = tokio::process::Command::new("sh").args(["-c", &login]).output().await;
        let output = output.unwrap();
        assert!(output.status.success(), "{login}: {output:?}");
    };
    let sent = message("my orders", "it's", 1);
    let error = publish(&*sink, sent.clone()).await.unwrap_err();
    run(&error.message, "").await;
    let error = publish(&*sink, message("amq.default", "the queue", 2)).await.unwrap_err();
    run(&error.message, "").await;
    let error = publish(&*sink, sent.clone()).await.unwrap_err();
    run(&error.message, "'the queue'").await;
    assert_eq!(publish(&*sink, sent).await, Ok(()));
    assert_eq!(publish(&*sink, message("amq.default", "the queue", 2)).await, Ok(()));
}

#[tokio::test]
async fn tls_needs_a_certificate_that_is_trusted() {
    let server = Server::start(Options { tls: Some(Tls::Password), ..Options::default() }).await;
    let certificates = server.certificates();
    let ca = |path: &std::path::Path| format!("tls = {{ ca_file = \"{}\" }}", path.display());
    let sink = connect(&server.url(), &ca(&certificates.authority)).await;
    assert_eq!(sink.check().await, Ok(Vec::new()));
    let unroutable = publish(&*sink, message("amq.topic", "a", 1)).await.unwrap_err();
    assert!(unroutable.message.contains("bind one"), "{unroutable}");

    let not_trusted = ["is not trusted", "tls = { ca_file = \"…\" }"];
    for options in ["", &ca(&certificates.other_authority)] {
        let sink = connect(&server.url(), options).await;
        assert_error(sink.check().await, Misconfigured, &not_trusted);
    }
    // The certificate is for another name.
    let by_number = server.url().replace("localhost", "127.0.0.1");
    let sink = connect(&by_number, &ca(&certificates.authority)).await;
    assert_error(sink.check().await, Misconfigured, &["not valid for name", "as its certificate"]);

    let plain = connect(&server.url().replace("amqps", "amqp"), "").await;
    let error = plain.check().await.unwrap_err();
    assert!(matches!(error.kind, Misconfigured | Unavailable), "{error}");
    assert!(error.message.contains("if it is the port for TLS, write amqps://"), "{error}");
    let encrypted = shared().replace("amqp:", "amqps:");
    let sink = connect(&encrypted, &ca(&certificates.authority)).await;
    assert_error(sink.check().await, Misconfigured, &["does not speak TLS: "]);
    let missing = connect_for(&server.url(), "tls = { ca_file = \"/nowhere\" }", None).await;
    assert_error(missing.map(drop), Misconfigured, &["/nowhere"]);
}

#[tokio::test]
async fn a_certificate_is_as_good_as_a_password() {
    let options = Options {
        plugins: vec!["rabbitmq_auth_mechanism_ssl"],
        tls: Some(Tls::Certificate),
        ..Options::default()
    };
    let server = Server::start(options).await;
    let certificates = server.certificates();
    let files = |has_own: bool| {
        let ca = certificates.authority.display();
        let own = format!(
            ", certificate_file = \"{}\", key_file = \"{}\"",
            certificates.client.display(),
            certificates.client_key.display()
        );
        format!("tls = {{ ca_file = \"{ca}\"{} }}", if has_own { &own } else { "" })
    };
    let anonymous = server.url().replace("postrider:postrider@", "");
    for (url, options) in
        [(server.url(), files(true)), (anonymous, format!("auth = \"external\"\n{}", files(true)))]
    {
        let sink = connect(&url, &options).await;
        assert_eq!(sink.check().await, Ok(Vec::new()), "{options}");
    }
    let sink = connect(&server.url(), &files(false)).await;
    // The reason may be lost on the way: the server hangs up with it.
    let error = sink.check().await.unwrap_err();
    assert!(matches!(error.kind, Misconfigured | Unavailable), "{error}");
    assert!(error.message.contains("see certificate_file and key_file of tls"), "{error}");
}

/// The server does not know the way to log in.
#[tokio::test]
async fn a_certificate_needs_a_server_that_knows_it() {
    let server = Server::start(Options { tls: Some(Tls::Password), ..Options::default() }).await;
    let certificates = server.certificates();
    let options = format!(
        "auth = \"external\"\ntls = {{ ca_file = \"{}\", certificate_file = \"{}\", key_file = \"{}\" }}",
        certificates.authority.display(),
        certificates.client.display(),
        certificates.client_key.display()
    );
    let url = server.url().replace("postrider:postrider@", "");
    let sink = connect(&url, &options).await;
    // It hangs up, and does not say why.
    let enable = "rabbitmq-plugins enable rabbitmq_auth_mechanism_ssl";
    assert_error(sink.check().await, Unavailable, &[enable]);
}
