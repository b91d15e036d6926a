//! A plain HTTP client, and endpoints that answer as a test likes.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use super::{Running, wait_until};

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a sample, by its name and labels as they are written.
    pub(crate) fn sample(&self, series: &str) -> Option<f64> {
        let value = self.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map(|value| value.parse().unwrap())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Asks for a page.
pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    request(address, "GET", path)
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Where a relay says that it listens.
pub(crate) fn address(relay: &Running) -> SocketAddr {
    let mut address = None;
    wait_until("the relay listens", || {
        let log = relay.stderr();
        let line = log.lines().find(|line| line.contains("serving /metrics"));
        address = line.and_then(|line| {
            let text = line.split_once("address=")?.1;
            text.split_whitespace().next()?.parse().ok()
        });
        address.is_some()
    });
    address.unwrap()
}

/// Waits for a page to say something, and gives it back.
#[track_caller]
pub(crate) fn wait_for(
    address: SocketAddr,
    path: &str,
    condition: impl Fn(&Answer) -> bool,
) -> Answer {
    let mut last = get(address, path);
    wait_until(&format!("{path} changes; last: {last:?}"), || {
        last = get(address, path);
        condition(&last)
    });
    last
}

/// Answers every request at a listener with 204, until the test is over.
pub(crate) fn accept_all(listener: TcpListener) {
    serve(listener, |_| (204, Vec::new()));
}

/// A request, as it came.
#[derive(Debug)]
pub(crate) struct Request {
    /// Its first line and its headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// Answers every request at a listener with a status and a body, until the test is over.
pub(crate) fn serve(
    listener: TcpListener,
    answer: impl Fn(&Request) -> (u16, Vec<u8>) + Send + Sync + 'static,
) {
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            std::thread::spawn(move || answer_all(stream, &*answer));
        }
    });
}

fn answer_all(mut stream: TcpStream, answer: &dyn Fn(&Request) -> (u16, Vec<u8>)) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let request = read_request(&mut reader)?;
        let (status, body) = answer(&request);
        let head = match status {
            204 => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            _ => format!("HTTP/1.1 {status} Said\r\ncontent-length: {}\r\n\r\n", body.len()),
        };
        stream.write_all(&[head.as_bytes(), &body].concat()).ok()?;
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut request = Request { head: String::new(), body: Vec::new() };
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().ok()?;
        }
        if line.is_empty() {
            break;
        }
        request.head.push_str(&(line + "\n"));
    }
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
