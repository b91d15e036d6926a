//! Who is let in, and how the way there is protected.

use postrider_relay::sink::FailureKind::{Misconfigured, Unavailable};
use postrider_testkit::servers::redis::{Options, Server, Tls};

use crate::{failing, is, message, published, redis_cli, run, server, sink, spec};

#[tokio::test]
async fn a_wrong_password_stops_the_pipeline_and_is_not_shown() {
    let server = server(&[]).await;
    for (url, words) in [
        (server.url().replace("postrider@", "canary@"), "answered WRONGPASS"),
        (server.url().replace("postrider:", "canary:"), "answered WRONGPASS"),
        (server.url().replace("postrider:postrider@", ""), "set username and password"),
    ] {
        let sink = sink(&url, "").await;
        for error in [sink.check().await.unwrap_err(), failing(&*sink, message("s", 1)).await] {
            is(&error, Misconfigured, words);
            assert!(!format!("{error:?} {:?}", spec(&url, "")).contains("canary"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn a_password_alone_is_that_of_the_default_user() {
    let server = server(&["user default on >secret ~* +@all"]).await;
    let url = server.url().replace("postrider:postrider@", "");
    let sink = sink(&url, "password = \"secret\"").await;
    published(&*sink, &[message("s", 1)]).await;
}

/// No restart: operators exchange passwords while relays run.
#[tokio::test]
async fn a_user_that_is_there_again_is_let_in() {
    let server = server(&["user relay on >one ~* +@all"]).await;
    let url = server.url().replace("postrider:postrider", "relay:one");
    let sink = sink(&url, "").await;
    published(&*sink, &[message("s", 1)]).await;
    run(&server, "ACL DELUSER relay").await;
    // The server hangs up, and says why when we come again.
    let error = match failing(&*sink, message("s", 2)).await {
        error if error.kind == Unavailable => failing(&*sink, message("s", 2)).await,
        error => error,
    };
    is(&error, Misconfigured, "check username and password");
    run(&server, "ACL SETUSER relay on >one ~* +@all").await;
    published(&*sink, &[message("s", 2)]).await;
}

/// What the guide and the error say.
#[tokio::test]
async fn few_rights_are_enough() {
    let server = server(&["user relay on >secret"]).await;
    let url = server.url().replace("postrider:postrider", "relay:secret");
    let sink = sink(&url, "maxlen = 100\nwait_replicas = 0").await;
    let error = failing(&*sink, message("orders.eu", 1)).await;
    is(&error, Misconfigured, "answered NOPERM");
    is(&sink.check().await.unwrap_err(), Misconfigured, "answered NOPERM");
    let command = error.message.split('`').nth(1).unwrap();
    let command = command.replace("NAME", "relay").replace("STREAM", "orders.*");
    run(&server, &command).await;
    published(&*sink, &[message("orders.eu", 1), message("orders.us", 2)]).await;
    // It may not look at the server's settings, which is no error.
    let cautions = sink.check().await.unwrap();
    assert_eq!(cautions.len(), 1, "{cautions:?}");
    assert!(cautions[0].contains("which we may not look at"), "{cautions:?}");
    run(&server, "ACL SETUSER relay +acl|dryrun +info +config|get +type").await;
    assert_eq!(sink.check().await, Ok(Vec::new()));
    is(&failing(&*sink, message("other", 3)).await, Misconfigured, "answered NOPERM");
    let sink = crate::sink(&url, "retention = \"1d\"").await;
    published(&*sink, &[message("orders.eu", 4)]).await;
}

#[tokio::test]
async fn the_certificate_of_the_server_is_verified() {
    let server = Server::start(Options { tls: Some(Tls::Password), ..Options::default() }).await;
    let files = server.certificates();
    let trusting = |file: &std::path::Path| format!("tls = {{ ca_file = \"{}\" }}", file.display());
    let sink = sink(&server.url(), &trusting(&files.authority)).await;
    assert!(sink.check().await.is_ok());
    published(&*sink, &[message("s", 1)]).await;
    let file = files.authority.to_str().unwrap();
    let args = ["--tls", "--cacert", file, "-h", "localhost", "XLEN", "s"];
    assert_eq!(redis_cli(&server, &args).await.stdout, b"1\n");

    let by_address = server.url().replace("localhost", "127.0.0.1");
    for (url, options, words) in [
        (server.url(), trusting(&files.other_authority), "tls = { ca_file = \"…\" }"),
        (server.url(), String::new(), "is not trusted"),
        (by_address, trusting(&files.authority), "the server as its certificate does"),
    ] {
        let sink = crate::sink(&url, &options).await;
        is(&sink.check().await.unwrap_err(), Misconfigured, words);
        is(&failing(&*sink, message("s", 2)).await, Misconfigured, words);
    }
    let plain = crate::sink(&server.url().replace("rediss", "redis"), "").await;
    is(&failing(&*plain, message("s", 2)).await, Unavailable, "no connection to localhost:");
    let missing = spec(&server.url(), "tls = { ca_file = \"/nowhere.pem\" }").connect().await;
    is(&missing.err().unwrap(), Misconfigured, "cannot read the root certificate /nowhere.pem");
}

#[tokio::test]
async fn tls_where_there_is_none_is_named() {
    let server = server(&[]).await;
    let url = server.url().replace("redis:", "rediss:");
    let sink = sink(&url, "connect_timeout = \"300ms\"").await;
    // Redis waits for the end of a line, which there may be in what TLS begins with.
    let error = failing(&*sink, message("s", 1)).await;
    assert!(error.message.contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn a_certificate_of_the_client_is_shown_where_it_is_wanted() {
    let server = Server::start(Options { tls: Some(Tls::Certificate), ..Options::default() }).await;
    let files = server.certificates();
    let ca = format!("ca_file = \"{}\"", files.authority.display());
    let own = format!(
        "certificate_file = \"{}\", key_file = \"{}\"",
        files.client.display(),
        files.client_key.display()
    );
    let sink = sink(&server.url(), &format!("tls = {{ {ca}, {own} }}")).await;
    published(&*sink, &[message("s", 1)]).await;
    let without = crate::sink(&server.url(), &format!("tls = {{ {ca} }}")).await;
    let words = "tls = { certificate_file = \"…\", key_file = \"…\" }";
    is(&without.check().await.unwrap_err(), Misconfigured, words);
    is(&failing(&*without, message("s", 2)).await, Misconfigured, words);
}
