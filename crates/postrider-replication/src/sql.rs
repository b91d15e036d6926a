//! A connection for statements, made by tokio-postgres, to a server that is not believed.

use std::fmt;

use tokio_postgres::config::Host;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, Client, Config};

use crate::Error;
use crate::auth::AuthPolicy;
use crate::checked::Checked;
use crate::encrypted::{Encrypted, EncryptedStream};
use crate::socket::{Socket, open};

/// What carries a connection for statements.
pub type SqlConnection = tokio_postgres::Connection<Checked, EncryptedStream<Checked>>;

/// Connects and logs in as tokio-postgres does, with the same configuration, which has to have one
/// host.
///
/// A message of the server has at most 64 KiB before the login and 64 MiB after it, and the answer
/// to a statement 1 GiB; what `auth` does not permit is not answered. A server that sends more, or
/// asks for that, is refused: the error is an [`io::Error`](std::io::Error) with a
/// [`RefusedMessage`](crate::RefusedMessage) in it, below that of tokio-postgres.
pub async fn connect_sql<T>(
    config: &Config,
    tls: &mut T,
    auth: AuthPolicy,
) -> Result<(Client, SqlConnection, SqlCanceller), Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let opened = open(config, tls).await?;
    let mut same_server = config.clone();
    if let ([Host::Tcp(_)], [], Some(ip)) =
        (config.get_hosts(), config.get_hostaddrs(), opened.socket.peer_ip())
    {
        same_server.hostaddr(ip);
    }
    let permitted = auth.methods(opened.binding.is_some());
    let encrypted = Encrypted(opened.binding);
    let config = encrypted.config(config);
    let stream = Checked::new(opened.stream, permitted);
    let logging_in = config.connect_raw(stream, encrypted).await;
    let (client, connection) = logging_in.map_err(|err| Error::Authentication(err.into()))?;
    let canceller = SqlCanceller { config: same_server, token: client.cancel_token() };
    Ok((client, connection, canceller))
}

/// Cancels the statement that a connection is at.
pub struct SqlCanceller {
    config: Config,
    token: CancelToken,
}

impl SqlCanceller {
    /// Asks the server for it, over a connection of its own.
    pub async fn cancel<T>(&self, tls: &mut T) -> Result<(), Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let opened = open(&self.config, tls).await?;
        let cancelling = self.token.cancel_query_raw(opened.stream, Encrypted(opened.binding));
        cancelling.await.map_err(|err| Error::Authentication(err.into()))
    }
}

impl fmt::Debug for SqlCanceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlCanceller").finish_non_exhaustive()
    }
}
