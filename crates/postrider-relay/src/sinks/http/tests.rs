//! The HTTP sink against real servers on the loopback address, well-behaved and not.

mod server;
#[cfg(feature = "https")]
mod tls;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Response as Answer, StatusCode};
use postrider::Event;

use self::server::{RawServer, Server, respond};
use super::resolver::PublicResolver;
use super::resolver::tests::{AlternatingResolver, FixedResolver};
use super::*;
use crate::formats::Encoding;
use crate::sinks::Secret;

fn message() -> Message {
    let event = Event::builder("Order", "42", "OrderPaid").payload("{\"a\":1}", "application/json");
    Encoding::default().encode(Arc::new(event.build().unwrap())).unwrap()
}

fn options(address: SocketAddr) -> Options {
    Options { allow_private: true, ..Options::new(format!("http://{address}/hook?token=canary")) }
}

async fn publish(options: &Options) -> Result<(), SinkError> {
    let sink = options.connect().await.unwrap();
    let mut answers = sink.publish(&[message()]).await;
    assert_eq!(answers.len(), 1);
    let answer = answers.remove(0);
    if let Err(error) = &answer {
        assert!(!error.message.contains("canary"), "{error}");
    }
    answer
}

#[tokio::test]
async fn a_request_has_method_path_headers_and_body() {
    let mut server = Server::start(|| respond(204)).await;
    let secret = Secret::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let options = Options {
        signing_secrets: vec![secret.clone()],
        secret_headers: vec![("authorization".to_owned(), Secret::new("Bearer t"))],
        ..options(server.address)
    };
    let sink = options.connect().await.unwrap();
    sink.check().await.unwrap();
    let message = message();
    assert_eq!(sink.publish(std::slice::from_ref(&message)).await, [Ok(())]);
    let request = server.requests.recv().await.unwrap();
    assert_eq!(request.line, "POST /hook?token=canary");
    assert_eq!(request.body, message.body);
    let id = message.event.id().to_string();
    assert_eq!(request.header("webhook-id"), id);
    assert_eq!(request.header("authorization"), "Bearer t");
    assert_eq!(request.header("content-length"), "7");
    assert!(request.header("user-agent").starts_with("postrider/"));
    let signer = Signer::new(&[secret]).unwrap();
    let signature = signer.sign(&id, request.header("webhook-timestamp"), &message.body).unwrap();
    assert_eq!(request.header("webhook-signature"), signature);
}

#[tokio::test]
async fn statuses_and_pauses_reach_the_pipeline() {
    for (status, kind) in [
        (307, FailureKind::Refused),
        (401, FailureKind::Refused),
        (422, FailureKind::Rejected),
        (429, FailureKind::Throttled),
        (500, FailureKind::Failed),
        (502, FailureKind::Unavailable),
        (503, FailureKind::Throttled),
    ] {
        let answer = move || {
            let answer = Answer::builder()
                .status(StatusCode::from_u16(status).unwrap())
                .header("retry-after", "7")
                .header("location", "/hook");
            answer.body("canary".into()).unwrap()
        };
        let mut server = Server::start(answer).await;
        let error = publish(&options(server.address)).await.unwrap_err();
        assert_eq!(error.kind, kind, "{status}");
        let throttled = kind == FailureKind::Throttled;
        assert_eq!(error.retry_after, throttled.then_some(Duration::from_secs(7)));
        server.requests.recv().await.unwrap();
        assert!(server.requests.try_recv().is_err(), "{status} was asked once only");
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::start(|| Answer::new("x".repeat(1000).into())).await;
    let sink = options(server.address).connect().await.unwrap();
    for _ in 0..10 {
        assert_eq!(sink.publish(&[message()]).await, [Ok(())]);
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_huge_answer_is_not_read_to_its_end() {
    let server = RawServer::start(|mut stream| {
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n";
        stream.write_all(head).unwrap();
        let mut written = 0_u64;
        while written < 104_857_600 && stream.write_all(&[b'x'; 65_536]).is_ok() {
            written += 65_536;
        }
        written
    });
    publish(&options(server.address)).await.unwrap();
    let written = server.finish().await;
    assert!(written < 50_000_000, "{written} bytes were taken");
}

#[tokio::test]
async fn an_answer_that_drips_is_left() {
    // The head is there, the body never ends: the status counts.
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let server = RawServer::start(move |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx").unwrap();
        held.recv().unwrap_err();
        0
    });
    publish(&options(server.address)).await.unwrap();
    drop(hold);
    server.finish().await;
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let server = RawServer::start(move |_stream| {
        held.recv().unwrap_err();
        0
    });
    let options = Options { timeout: Duration::from_secs(1), ..options(server.address) };
    let error = publish(&options).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Failed);
    assert!(error.message.contains("did not answer within 1s"), "{error}");
    drop(hold);
    server.finish().await;
}

#[tokio::test]
async fn answers_that_only_announce_one_are_given_up() {
    let server = RawServer::start(|mut stream| {
        let mut written = 0_u64;
        let hints = "HTTP/1.1 103 Early Hints\r\nlink: </canary>\r\n\r\n".repeat(1000);
        while stream.write_all(hints.as_bytes()).is_ok() {
            written += 1000;
        }
        written
    });
    let options = Options { timeout: Duration::from_secs(1), ..options(server.address) };
    let error = publish(&options).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Failed, "{error}");
    assert!(error.message.contains("did not answer within 1s"), "{error}");
    // The connection is not kept: the server cannot write to it any more.
    assert!(server.finish().await > 0);
}

#[tokio::test]
async fn garbage_and_silence_count_as_failed() {
    for answer in [&b"canary\0\xff\r\n\r\n"[..], b"", b"HTTP/1.1 200 OK\r\n"] {
        let server = RawServer::start(move |mut stream| {
            stream.write_all(answer).unwrap();
            0
        });
        let error = publish(&options(server.address)).await.unwrap_err();
        assert_eq!(error.kind, FailureKind::Failed, "{error}");
        assert!(error.message.contains("gave no valid answer: "), "{error}");
        server.finish().await;
    }
}

#[tokio::test]
async fn nobody_there_is_an_outage() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let options = options(listener.local_addr().unwrap());
    drop(listener);
    let error = publish(&options).await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Unavailable);
    assert!(error.message.contains("cannot connect to http://127.0.0.1:"), "{error}");
    let checked = options.connect().await.unwrap().check().await;
    assert_eq!(checked.unwrap_err().kind, FailureKind::Unavailable);
    let unresolvable = Options { allow_private: true, ..Options::new("http://nowhere.invalid/") };
    assert_eq!(publish(&unresolvable).await.unwrap_err().kind, FailureKind::Unavailable);
}

#[tokio::test]
async fn a_name_that_leads_inside_is_refused() {
    let mut server = Server::start(|| respond(200)).await;
    let url = format!("http://hooks.example:{}/", server.address.port());
    let resolver = Arc::new(FixedResolver(vec![server.address]));
    let filtered = Arc::new(PublicResolver::new(resolver.clone()));
    let sink = Options::new(url.clone()).connect_by(filtered).unwrap();
    for error in
        [sink.publish(&[message()]).await.remove(0).unwrap_err(), sink.check().await.unwrap_err()]
    {
        assert_eq!(error.kind, FailureKind::Misconfigured);
        assert!(error.message.contains("leads only to loopback addresses"), "{error}");
        assert!(error.message.contains("allow_private = true"), "{error}");
    }
    assert_eq!(server.connections(), 0);
    assert!(server.requests.try_recv().is_err());
    let sink = Options::new(url).connect_by(resolver).unwrap();
    assert_eq!(sink.publish(&[message()]).await, [Ok(())]);
}

/// The second answer to a name leads where the first did not: nobody connects there.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_name_that_leads_elsewhere_the_second_time_gains_nothing() {
    let server =
        Server::start(|| Answer::builder().header("connection", "close").body("".into()).unwrap())
            .await;
    let inside = SocketAddr::from(([127, 0, 0, 2], server.address.port()));
    let trap = tokio::net::TcpListener::bind(inside).await.unwrap();
    let resolver = Arc::new(AlternatingResolver {
        addresses: vec![server.address, inside],
        asked: Default::default(),
    });
    let rule = |address: std::net::IpAddr| (address.to_string() == "127.0.0.2").then_some("inner");
    let filtered = Arc::new(PublicResolver::with_rule(resolver.clone(), rule));
    let url = format!("http://hooks.example:{}/", server.address.port());
    let sink = Options::new(url).connect_by(filtered).unwrap();
    for turn in 0..6 {
        let published = sink.publish(&[message()]).await.remove(0);
        // Each of them is connected to what was checked.
        if turn % 2 == 0 {
            published.unwrap();
        } else {
            let error = published.unwrap_err();
            assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
            assert!(error.message.contains("leads only to inner addresses"), "{error}");
        }
    }
    sink.check().await.unwrap();
    assert!(sink.check().await.unwrap_err().message.contains("inner addresses"));
    assert_eq!(resolver.asked.load(std::sync::atomic::Ordering::SeqCst), 8, "once a connection");
    let caught = timeout(Duration::from_millis(1), trap.accept()).await;
    assert!(caught.is_err(), "somebody came to the inner address");
}
