//! The broker: an HTTP endpoint that stores messages in the order of their arrival, and
//! misbehaves as the schedule says.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::DemoError;
use super::schedule::Fault;
use super::shop::Payload;

/// The header with the event's id, as the relay sends it.
pub(crate) const EVENT_ID_HEADER: &str = "webhook-id";
/// Longer than any sender waits for an answer.
const NO_ANSWER_FOR: Duration = Duration::from_secs(10);

/// A message as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) event_id: Uuid,
    pub(crate) payload: Payload,
}

/// The broker while it runs. Ends when it is dropped.
pub(crate) struct Broker {
    address: SocketAddr,
    state: watch::Sender<State>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct State {
    arrivals: Vec<Arrival>,
    /// What is still to go wrong, by request number.
    faults: BTreeMap<u32, Fault>,
    down: bool,
    /// Messages refused since the broker went down.
    refused: u32,
}

/// What the sender of a message gets to know.
enum Answer {
    Status(StatusCode),
    None,
}

impl Broker {
    /// Starts a broker with these faults, by request number.
    pub(crate) async fn start(faults: BTreeMap<u32, Fault>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let state = watch::Sender::new(State { faults, ..State::default() });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, state.clone()));
        Ok(Self { address, state, _tasks: tasks })
    }

    /// Where messages are sent to.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/orders", self.address)
    }

    /// Begins or ends an outage.
    pub(crate) fn set_down(&self, down: bool) {
        self.state.send_modify(|state| {
            state.down = down;
            state.refused = 0;
        });
    }

    /// Waits until somebody has noticed the outage, or for too long.
    pub(crate) async fn wait_for_refusal(&self, longest: Duration) {
        self.wait_for(longest, |state| state.refused > 0).await;
    }

    /// Waits until the event of a request has arrived, or for too long.
    pub(crate) async fn wait_for_request(&self, number: u32, longest: Duration) {
        let is_it = |arrival: &Arrival| arrival.payload.request == number;
        self.wait_for(longest, |state| state.arrivals.iter().any(is_it)).await;
    }

    async fn wait_for(&self, longest: Duration, condition: impl Fn(&State) -> bool) {
        let mut state = self.state.subscribe();
        // The demo goes on in either case; what is then missing shows in the counts.
        let _ = timeout(longest, state.wait_for(|state| condition(state))).await;
    }

    /// What was stored, from a position on.
    pub(crate) fn arrivals_from(&self, position: usize) -> Vec<Arrival> {
        self.state.borrow().arrivals[position..].to_vec()
    }

    /// How much was stored.
    pub(crate) fn arrivals_count(&self) -> usize {
        self.state.borrow().arrivals.len()
    }
}

impl State {
    fn take(&mut self, arrival: Arrival) -> Answer {
        if self.down {
            self.refused += 1;
            return Answer::Status(StatusCode::SERVICE_UNAVAILABLE);
        }
        let fault = self.faults.remove(&arrival.payload.request);
        if fault == Some(Fault::ServerError) {
            return Answer::Status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        self.arrivals.push(arrival);
        match fault {
            Some(_) => Answer::None,
            None => Answer::Status(StatusCode::NO_CONTENT),
        }
    }
}

async fn serve(listener: TcpListener, state: watch::Sender<State>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, perhaps; some will be free again.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let state = state.clone();
        connections.spawn(async move {
            let service = service_fn(|request| answer(request, &state));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A sender that was killed leaves a broken connection behind.
            let _ = connection.await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: &watch::Sender<State>,
) -> Result<Response<Empty<Bytes>>, DemoError> {
    let Ok(arrival) = read(request).await else {
        return respond(StatusCode::BAD_REQUEST);
    };
    let mut answer = Answer::None;
    state.send_modify(|state| answer = state.take(arrival));
    match answer {
        Answer::Status(status) => respond(status),
        Answer::None => {
            sleep(NO_ANSWER_FOR).await;
            Err("there is no answer".into())
        }
    }
}

async fn read(request: Request<Incoming>) -> Result<Arrival, DemoError> {
    let id = request.headers().get(EVENT_ID_HEADER);
    let event_id = id.ok_or("the message has no id")?.to_str()?.parse()?;
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Arrival { event_id, payload: serde_json::from_slice(&body)? })
}

fn respond(status: StatusCode) -> Result<Response<Empty<Bytes>>, DemoError> {
    Ok(Response::builder().status(status).body(Empty::new())?)
}
