//! Somebody who stands in for the server: what they can make the relay keep, or tell them.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use super::*;

/// What the fake sends at most if nobody stops it.
const FLOOD_BYTES: usize = 256 << 20;
/// What may be under way in the buffers of both sockets when a connection is cut.
const UNDER_WAY_BYTES: usize = 16 << 20;
/// The login is done, and a statement can follow.
const LET_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";

/// What a fake server does once it has read how the client begins.
#[derive(Clone, Copy)]
enum Act {
    /// Sends this, then zeroes without an end.
    Flood(&'static [u8]),
    /// Lets the client in, waits for its statement, and answers so.
    LetInAndFlood(&'static [u8]),
    /// Asks for this, and reads what comes.
    Ask(&'static [u8]),
}

/// What became of it.
#[derive(Debug, Default)]
struct Outcome {
    sent_bytes: usize,
    received: Vec<u8>,
}

/// A server for one connection, and the URL that leads to it.
async fn fake(act: Act, parameters: &str) -> (Location, oneshot::Receiver<Outcome>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        drop(tell.send(play(stream, act).await));
    });
    let url = format!("postgres://me:canary@127.0.0.1:{port}/app?sslmode=disable&{parameters}");
    (Location::parse(&url).unwrap(), outcome)
}

async fn play(mut stream: TcpStream, act: Act) -> Outcome {
    let length = stream.read_u32().await.unwrap() as usize;
    let mut startup = vec![0; length - 4];
    stream.read_exact(&mut startup).await.unwrap();
    let mut outcome = Outcome::default();
    let head = match act {
        Act::Ask(request) => {
            stream.write_all(request).await.unwrap();
            // Until the client has hung up, or has said what was to be known.
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                outcome.received.extend_from_slice(&bytes[..count]);
                if outcome.received.len() > 5 {
                    break;
                }
            }
            return outcome;
        }
        Act::Flood(head) => head,
        Act::LetInAndFlood(head) => {
            stream.write_all(LET_IN).await.unwrap();
            stream.read_u8().await.unwrap();
            head
        }
    };
    let zeroes = vec![0; 64 << 10];
    if stream.write_all(head).await.is_ok() {
        while outcome.sent_bytes < FLOOD_BYTES && stream.write_all(&zeroes).await.is_ok() {
            outcome.sent_bytes += zeroes.len();
        }
    }
    outcome
}

async fn refused(location: Location) -> SourceError {
    error(Connection::new(location, "hostile").query("SELECT 1", &[]).await)
}

/// An error of a gigabyte, before the login and after it, is not received.
#[tokio::test]
async fn a_message_of_the_server_that_is_too_long_is_refused() {
    let error_of_a_gigabyte = b"E\x3F\xFF\xFF\xFF";
    let just_over_the_login = b"R\0\x01\0\x01";
    let row_of_a_gigabyte = b"D\x3F\xFF\xFF\xFF";
    for (act, limit) in [
        (Act::Flood(error_of_a_gigabyte), "65536"),
        (Act::Flood(just_over_the_login), "65536"),
        (Act::LetInAndFlood(error_of_a_gigabyte), "67108864"),
        (Act::LetInAndFlood(row_of_a_gigabyte), "67108864"),
    ] {
        let (location, outcome) = fake(act, "").await;
        let refused = refused(location).await;
        let outcome = timeout(30 * SECOND, outcome).await.unwrap().unwrap();
        assert!(outcome.sent_bytes < UNDER_WAY_BYTES, "{} bytes", outcome.sent_bytes);
        let details = refused.details();
        assert_eq!(refused.kind, SourceErrorKind::Misconfigured, "{details}");
        assert!(details.contains(limit) && details.contains("host and port"), "{details}");
    }
}

/// Over connections for statements and for the log alike.
#[tokio::test]
async fn a_password_is_not_told_to_whom_the_url_does_not_permit_it() {
    let (clear, md5) = (b"R\0\0\0\x08\0\0\0\x03", b"R\0\0\0\x0C\0\0\0\x05salt");
    for (request, parameters, expected) in [
        (&clear[..], "require_auth=scram-sha-256", Some("require_auth=password")),
        (&clear[..], "require_auth=md5", Some("require_auth=password")),
        (&clear[..], "require_auth=!password", Some("require_auth=password")),
        (&md5[..], "require_auth=scram-sha-256", Some("require_auth=md5")),
        (LET_IN, "require_auth=scram-sha-256", Some("add none to require_auth")),
        (&clear[..], "require_auth=password", None),
        (&clear[..], "", None),
        (&md5[..], "require_auth=md5,scram-sha-256", None),
    ] {
        for is_log in [false, true] {
            let (location, outcome) = fake(Act::Ask(request), parameters).await;
            let refused = match is_log {
                true => streaming(&location, "hostile").await.unwrap_err(),
                false => refused(location).await,
            };
            let outcome = timeout(30 * SECOND, outcome).await.unwrap().unwrap();
            let details = refused.details();
            match expected {
                Some(expected) => {
                    assert_eq!(outcome.received, b"", "{parameters}: {details}");
                    assert_eq!(refused.kind, SourceErrorKind::Misconfigured, "{details}");
                    assert!(details.contains(expected), "{parameters}: {details}");
                }
                None => assert_eq!(outcome.received.first(), Some(&b'p'), "{parameters}"),
            }
            assert!(!format!("{details} {refused:?}").contains("canary"), "{details}");
        }
    }
}
