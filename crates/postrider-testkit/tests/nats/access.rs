//! Who the relay is, over which connection, and what it may do.

use std::path::Path;

use postrider_relay::sink::{FailureKind, SinkError};
use postrider_testkit::servers::nats::{Options, Server, Tls};
use tokio::time::timeout;

use crate::{
    DEADLINE, assert_refused, connected, constant, context, event, kept, make_stream, message,
    publish, spec, to,
};

const PUBLIC_KEY: &str = "UDZ4XGAZP3ME4HVNQN5GIIG2P4SWZIFQJRGYVEIPFSW6E5C6NQ26RKPZ";
const SEED: &str = "SUAPJYOW2JTVLOTBPNWKO4TEHR4DJB4BLNAGQDSG34PJYBSAINWF4IR6PU";

async fn server(authorization: &str) -> Server {
    let authorization = format!("authorization {{ {authorization} }}");
    Server::start(Options { authorization, ..Options::default() }).await
}

async fn open(url: &str, options: &str) -> Result<(), SinkError> {
    spec(url, options).connect().await.map(drop)
}

#[tokio::test]
async fn a_password_is_right_or_wrong() {
    let server = Server::start(Options::default()).await;
    let address = server.address();
    for (url, options) in [
        (format!("nats://postrider:postrider@{address}"), ""),
        (format!("nats://{address}"), "username = \"postrider\"\npassword = \"postrider\""),
    ] {
        open(&url, options).await.unwrap();
    }
    let refused = "refuses the user name or the password";
    let url = format!("nats://postrider:canary@{address}");
    assert_refused(open(&url, "").await, FailureKind::Misconfigured, refused);
    let nobody = open(&format!("nats://{address}"), "").await;
    assert_refused(nobody, FailureKind::Misconfigured, "set username and password");
}

#[tokio::test]
async fn a_token_is_right_or_wrong() {
    let server = server("token: secret").await;
    let address = server.address();
    open(&format!("nats://secret@{address}"), "").await.unwrap();
    open(&format!("nats://{address}"), "token = \"secret\"").await.unwrap();
    let wrong = open(&format!("nats://{address}"), "token = \"canary\"").await;
    assert_refused(wrong, FailureKind::Misconfigured, "refuses the token");
}

#[tokio::test]
async fn a_key_is_right_or_wrong() {
    let server = server(&format!("users: [ {{ nkey: {PUBLIC_KEY} }} ]")).await;
    let url = format!("nats://{}", server.address());
    open(&url, &format!("nkey_seed = \"{SEED}\"")).await.unwrap();
    let other = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    let wrong = open(&url, &format!("nkey_seed = \"{other}\"")).await;
    assert_refused(wrong, FailureKind::Misconfigured, "refuses the user of nkey_seed");
    let broken = open(&url, "nkey_seed = \"SUcanary\"").await;
    assert_refused(broken, FailureKind::Misconfigured, "they hold no seed of a user");
}

#[tokio::test]
async fn a_credentials_file_is_right_or_missing() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nats");
    let operator = std::fs::read_to_string(files.join("operator.conf")).unwrap();
    let server = Server::start(Options { authorization: operator, ..Options::default() }).await;
    let url = format!("nats://{}", server.address());
    let file = files.join("user.creds");
    let options = format!(
        "credentials_file = \"{}\"\ncreate_missing = true\nstream = \"ORDERS\"",
        file.display()
    );
    let sink = connected(&url, &options).await;
    publish(&*sink, message()).await.unwrap();
    let missing = open(&url, "credentials_file = \"/nowhere/user.creds\"").await;
    assert_refused(missing, FailureKind::Misconfigured, "/nowhere/user.creds");
    let no_credentials =
        format!("credentials_file = \"{}\"", files.join("operator.conf").display());
    assert_refused(open(&url, &no_credentials).await, FailureKind::Misconfigured, "nsc generate");
}

/// F49.
#[tokio::test]
async fn a_password_that_is_changed_stops_the_pipeline_and_can_be_mended() {
    let mut server = Server::start(Options::default()).await;
    make_stream(&context(&server).await, Default::default()).await;
    let sink = connected(&server.url(), "").await;
    publish(&*sink, message()).await.unwrap();
    let before = Options::default().authorization;
    server
        .reload(|options| {
            options.authorization = "authorization { user: postrider, password: other }".to_owned();
        })
        .await;
    let error = publish(&*sink, message()).await.unwrap_err();
    // The server ends the connection, or has ended it already.
    if error.kind == FailureKind::Unavailable {
        let again = publish(&*sink, message()).await;
        assert_refused(again, FailureKind::Misconfigured, "refuses the user name or the password");
    } else {
        assert_refused::<()>(Err(error), FailureKind::Misconfigured, "refuses the user name");
    }
    server.stop().await;
    server.change(|options| options.authorization = before);
    server.start_again().await;
    publish(&*sink, message()).await.unwrap();
}

#[tokio::test]
async fn an_encrypted_server_is_trusted_by_its_authority_alone() {
    let server = Server::start(Options { tls: Some(Tls::Server), ..Options::default() }).await;
    let files = server.certificates();
    let url = server.url();
    let trusting = |path: &Path| {
        format!(
            "tls = {{ ca_file = \"{}\" }}\ncreate_missing = true\nstream = \"ORDERS\"",
            path.display()
        )
    };
    let sink = connected(&url, &trusting(&files.authority)).await;
    publish(&*sink, message()).await.unwrap();
    let other = constant(&url, &trusting(&files.other_authority)).connect().await;
    assert_refused(other, FailureKind::Misconfigured, "name whom to trust with tls = { ca_file");
    let by_number = url.replace("localhost", "127.0.0.1");
    let by_number = constant(&by_number, &trusting(&files.authority)).connect().await;
    assert_refused(by_number, FailureKind::Misconfigured, "is not trusted");
    // The server demands it, so it is tried, and the system does not know the authority.
    assert_refused(open(&url, "").await, FailureKind::Misconfigured, "is not trusted");
    let missing = open(&url, "tls = { ca_file = \"/nowhere.pem\" }").await;
    assert_refused(missing, FailureKind::Misconfigured, "cannot read the root certificate");
}

#[tokio::test]
async fn a_server_can_ask_for_a_certificate() {
    let server = Server::start(Options { tls: Some(Tls::Certificate), ..Options::default() }).await;
    let files = server.certificates();
    let url = server.url();
    let authority = files.authority.display();
    let (client, key) = (files.client.display(), files.client_key.display());
    let options = format!(
        "tls = {{ ca_file = \"{authority}\", certificate_file = \"{client}\", key_file = \"{key}\" }}"
    );
    open(&url, &options).await.unwrap();
    let without = open(&url, &format!("tls = {{ ca_file = \"{authority}\" }}")).await;
    assert_refused(without, FailureKind::Misconfigured, "tls = { certificate_file");
}

#[tokio::test]
async fn encryption_that_a_server_does_not_have_is_not_done_without() {
    let server = Server::start(Options::default()).await;
    let options = "tls = true\nconnect_timeout = \"10s\"";
    let result = timeout(DEADLINE, open(&server.url(), options)).await;
    let result = result.expect("it is not waited for any longer");
    assert_refused(result, FailureKind::Misconfigured, "does not speak TLS");
}

/// What is answered within [`DEADLINE`] was not waited for.
const PATIENT: &str = "ack_timeout = \"10m\"";
const PERMISSIONS: &str = "user: postrider, password: postrider, permissions:";

async fn restricted(permissions: &str) -> Server {
    let users = format!(
        "users: [ {{ {PERMISSIONS} {permissions} }}, {{ user: admin, password: postrider }} ]"
    );
    let server = server(&users).await;
    let admin = server.url().replace("postrider:postrider", "admin:postrider");
    let client = postrider_testkit::servers::nats::connect(&admin).await;
    make_stream(&async_nats::jetstream::new(client), Default::default()).await;
    server
}

#[tokio::test]
async fn what_may_not_be_published_is_named_at_once_with_the_permission() {
    let mut server = restricted("{ publish: { deny: [\"orders.secret\"] } }").await;
    let sink = connected(&server.url(), PATIENT).await;
    let batch = [message(), to("orders.secret", event()), message()];
    let answers = timeout(DEADLINE, sink.publish(&batch)).await.expect("it is named at once");
    assert_eq!((&answers[0], &answers[2]), (&Ok(()), &Ok(())));
    let expected = "permissions { publish: [\"orders.secret\"] }";
    assert_refused(answers[1].clone(), FailureKind::Misconfigured, expected);
    // What is permitted later works without a restart.
    let allowed = format!("authorization {{ users: [ {{ {PERMISSIONS} {{}} }} ] }}");
    server.reload(|options| options.authorization = allowed).await;
    publish(&*sink, to("orders.secret", event())).await.unwrap();
    assert_eq!(kept(&context(&server).await).await, 3);
}

#[tokio::test]
async fn an_inbox_that_is_not_permitted_is_named_at_once() {
    let server = restricted("{ subscribe: { allow: [\"inbox.postrider.>\"] } }").await;
    let sink = connected(&server.url(), PATIENT).await;
    let refused = publish(&*sink, message()).await;
    assert_refused(refused, FailureKind::Misconfigured, "subscribe: [\"_INBOX.>\"]");
    let sink = connected(&server.url(), "inbox_prefix = \"inbox.postrider\"").await;
    publish(&*sink, message()).await.unwrap();
    assert!(sink.check().await.is_ok());
}

#[tokio::test]
async fn publishing_is_all_that_a_relay_must_be_permitted() {
    let permissions = "{ publish: [\"orders.>\"], subscribe: [\"_INBOX.>\"] }";
    let server = restricted(permissions).await;
    let sink = connected(&server.url(), "").await;
    publish(&*sink, message()).await.unwrap();
    let cautions = sink.check().await.unwrap();
    assert_eq!(cautions.len(), 1, "{cautions:?}");
    assert!(cautions[0].contains("publish: [\"$JS.API.INFO\"]"), "{cautions:?}");
    publish(&*sink, message()).await.unwrap();
}
