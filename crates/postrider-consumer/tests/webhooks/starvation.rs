//! Strangers who send slowly, without the secret.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::service::{Request, SECRET, Service, order_paid};

/// Less than the ten seconds that a body may take, and much for a machine that has to do nothing.
const SOON: Duration = Duration::from_secs(7);
/// The form of a signature, by no secret.
const FORGED: &str = "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// A body that is not small.
const LONG: usize = 200_000;

/// The head of a request that announces a body, and the first byte of it.
async fn begin(address: SocketAddr, change: impl Fn(&mut Request)) -> TcpStream {
    let mut request = Request::new(&order_paid().build().unwrap());
    request.set("content-length", LONG);
    request.set("webhook-signature", FORGED);
    change(&mut request);
    let mut head = "POST / HTTP/1.1\r\nhost: billing\r\n".to_owned();
    for (name, value) in &request.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}\r\n{{").as_bytes()).await.unwrap();
    stream
}

/// The first line of the answer, if there is one soon.
async fn status(mut stream: TcpStream) -> String {
    let mut answer = [0; 12];
    let read = timeout(SOON, stream.read_exact(&mut answer)).await;
    read.expect("there is an answer soon").unwrap();
    String::from_utf8_lossy(&answer[9..]).into_owned()
}

#[tokio::test]
async fn what_the_head_tells_is_answered_before_the_body_is_there() {
    let service = Service::start().await;
    for signature in ["v1,AAAA", "canary", "v2,*", "v1,", "v1,***", &FORGED.replace("v1", "v1a")] {
        let forged = begin(service.address, |request| request.set("webhook-signature", signature));
        assert_eq!(status(forged.await).await, "401", "{signature}");
    }
    let large = begin(service.address, |request| request.set("content-length", 1_u64 << 40));
    assert_eq!(status(large.await).await, "413");
}

#[tokio::test]
async fn a_body_that_is_too_slow_is_given_up() {
    let service = Service::start().await;
    let mut slow = begin(service.address, |_| ()).await;
    let dripped = async {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        let mut answer = [0; 12];
        loop {
            tokio::select! {
                _ = tick.tick() => slow.write_all(b" ").await.unwrap(),
                read = slow.read_exact(&mut answer) => {
                    read.unwrap();
                    return String::from_utf8_lossy(&answer[9..]).into_owned();
                }
            }
        }
    };
    assert_eq!(timeout(SOON, dripped).await.expect("it is given up soon"), "408");
}

#[tokio::test]
async fn slow_bodies_of_strangers_delay_nobody() {
    let service = Service::start_with(&[SECRET], |consumer| consumer.window(100)).await;
    let mut slow = Vec::new();
    for _ in 0..300 {
        slow.push(begin(service.address, |_| ()).await);
    }
    let long = format!("{{\"cents\":1}}{}", " ".repeat(LONG));
    let long = order_paid().payload(long, "application/json").build().unwrap();
    for event in [order_paid().build().unwrap(), long] {
        let published = timeout(SOON, service.publish(&event)).await;
        published.expect("strangers are not in the way").unwrap();
    }
    assert_eq!(service.rows().await, [2, 2, 0]);
}
