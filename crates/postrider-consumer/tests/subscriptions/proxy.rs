//! A way to a server that can be cut.

use std::sync::{Arc, Mutex};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes connections on until it is dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    connections: Arc<Mutex<JoinSet<()>>>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (own, server) = (Arc::clone(&connections), server.to_owned());
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = server.clone();
                own.lock().unwrap().spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self { port, connections, accepting }
    }

    /// Ends all connections. New ones are taken.
    pub(crate) fn cut(&self) {
        let cut = std::mem::take(&mut *self.connections.lock().unwrap());
        assert!(!cut.is_empty(), "there was a connection");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
