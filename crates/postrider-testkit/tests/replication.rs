//! The client of logical replication, against real servers: connections, slots, what a stream
//! brings, and how it bears a reader that is slow and a server that goes.

#![allow(clippy::unwrap_used, reason = "it is all test code")]

#[path = "replication/connections.rs"]
mod connections;
#[path = "replication/contents.rs"]
mod contents;
#[path = "replication/positions.rs"]
mod positions;
#[path = "replication/trouble.rs"]
mod trouble;

use std::collections::VecDeque;
use std::time::Duration;

use postrider_replication::pgoutput::{Message, Tuple, Value, decode};
use postrider_replication::{
    Connection, Error, Flow, Frame, Lsn, PgOutput, Replication, SlotOptions,
};
use postrider_testkit::servers::postgres::{Options, Server};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// Within this time anything has happened that is going to.
const DEADLINE: Duration = Duration::from_secs(60);
const SLOT: &str = "relay";
const TABLE: &str = "CREATE TABLE notes (id int PRIMARY KEY, note text);
                     CREATE PUBLICATION notes FOR TABLE notes WITH (publish = 'insert')";

/// A server with a table that is published.
async fn server(settings: &[&str]) -> (Server, Client) {
    let settings = settings.iter().map(ToString::to_string).collect();
    let server = Server::start(Options { settings, ..Options::default() }).await;
    let client = server.connect().await;
    client.batch_execute(TABLE).await.unwrap();
    (server, client)
}

async fn connect(server: &Server) -> Connection {
    let config = server.url("postgres").parse().unwrap();
    Connection::connect(&config, NoTls).await.unwrap()
}

async fn create_slot(server: &Server) -> Lsn {
    let mut connection = connect(server).await;
    connection.create_slot(SLOT, SlotOptions::default()).await.unwrap().consistent_point
}

fn output() -> PgOutput {
    PgOutput { publications: vec!["notes".to_owned()], ..PgOutput::default() }
}

/// The text of one column of one row.
async fn text(client: &Client, query: &str) -> String {
    let messages = client.simple_query(query).await.unwrap();
    let rows = messages.iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    rows.last().unwrap_or_default().to_owned()
}

async fn confirmed(client: &Client) -> Lsn {
    let query = "SELECT confirmed_flush_lsn FROM pg_replication_slots";
    text(client, query).await.parse().unwrap()
}

async fn until<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < DEADLINE, "{what}: did not happen within {DEADLINE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn in_time<T>(doing: impl Future<Output = T>) -> T {
    timeout(DEADLINE, doing).await.expect("it ends in time")
}

/// A stream, read message by message.
struct Stream {
    replication: Replication,
    frames: VecDeque<Frame>,
    in_stream: bool,
}

impl Stream {
    async fn start(server: &Server, output: &PgOutput) -> Self {
        let connection = connect(server).await;
        let started = connection.start(SLOT, Lsn::ZERO, output, Flow::default()).await;
        Self::new(started.unwrap())
    }

    /// The same with another connection, from a position, with a flow.
    async fn start_with(connection: Connection, at: Lsn, flow: Flow) -> Result<Self, Error> {
        Ok(Self::new(connection.start(SLOT, at, &output(), flow).await?))
    }

    fn new(replication: Replication) -> Self {
        Self { replication, frames: VecDeque::new(), in_stream: false }
    }

    async fn frame(&mut self) -> Result<Frame, Error> {
        while self.frames.is_empty() {
            let batch = in_time(self.replication.next()).await?;
            self.frames.extend(batch.expect("the error was not told before"));
        }
        Ok(self.frames.pop_front().unwrap())
    }

    async fn message(&mut self) -> Message {
        loop {
            if let Frame::XLogData { data, .. } = self.frame().await.unwrap() {
                let message = decode(data, self.in_stream).unwrap();
                match message {
                    Message::StreamStart { .. } => self.in_stream = true,
                    Message::StreamStop => self.in_stream = false,
                    _ => {}
                }
                return message;
            }
        }
    }

    /// The rows of the next transaction, and where its commit starts and ends.
    async fn transaction(&mut self) -> (Vec<Vec<Value>>, Lsn, Lsn) {
        let Message::Begin { final_lsn, .. } = self.message().await else {
            panic!("a transaction begins");
        };
        let mut rows = Vec::new();
        loop {
            match self.message().await {
                Message::Relation(_) => {}
                Message::Insert { xid: None, new, .. } => rows.push(values(&new)),
                Message::Commit { commit_lsn, end_lsn, .. } => {
                    assert_eq!(commit_lsn, final_lsn);
                    assert!(end_lsn > commit_lsn);
                    return (rows, commit_lsn, end_lsn);
                }
                message => panic!("{message:?} is no part of a transaction"),
            }
        }
    }

    /// The number in the only row of the next transaction.
    async fn number(&mut self) -> String {
        let (rows, ..) = self.transaction().await;
        let [row] = rows.as_slice() else { panic!("it is one row: {rows:?}") };
        let Value::Text(number) = &row[0] else { panic!("it is a text: {row:?}") };
        String::from_utf8(number.to_vec()).unwrap()
    }
}

fn values(tuple: &Tuple) -> Vec<Value> {
    tuple.values().collect()
}
