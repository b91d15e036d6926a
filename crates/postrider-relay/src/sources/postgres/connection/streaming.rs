//! A connection for the log, to the server that the others lead to.

use postrider_replication::{Connection, Error};
use tokio::time::timeout;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::Location;
use super::super::location::Server;
use super::session::read_files;
use crate::source::{SourceError, SourceErrorKind};
use crate::sources::postgres::log::cannot;

const IS_REPLICA: &str = "SELECT pg_is_in_recovery()";

/// Tries the servers in order and takes the first that is the primary.
pub(in super::super) async fn streaming(
    location: &Location,
    application_name: &str,
) -> Result<Connection, SourceError> {
    let (servers, tls) = read_files(location, application_name).await?;
    let mut failed = None;
    for server in &servers {
        let limit = location.connect_timeout();
        match timeout(limit, connect(server, tls.clone())).await {
            Ok(Ok(Some(connection))) => return Ok(connection),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                failed = Some(cannot(&format!("connect to {location} for its log"), error));
            }
            Err(_) => {
                let message = format!(
                    "cannot connect to {location} for its log: no answer within {} s",
                    limit.as_secs_f32()
                );
                failed = Some(SourceError::new(SourceErrorKind::Unavailable, message));
            }
        }
    }
    Err(failed.unwrap_or_else(|| {
        let message = format!("no server of {location} is the primary");
        SourceError::new(SourceErrorKind::Unavailable, message)
    }))
}

/// `None` if it is a replica.
async fn connect(server: &Server, tls: MakeRustlsConnect) -> Result<Option<Connection>, Error> {
    let mut connection = Connection::connect_if(server.auth, &server.config, tls).await?;
    let answer = connection.query(IS_REPLICA).await?;
    let is_primary = answer.first().is_some_and(|row| row.first() == Some(&Some("f".to_owned())));
    Ok(is_primary.then_some(connection))
}
