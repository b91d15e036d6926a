//! The login, done by tokio-postgres.
//!
//! A [`Config`] says all there is to know about it, down to the binding of a password to the TLS
//! session. But what a session is bound to, tokio-postgres shows to nobody else; and it has no
//! way to ask for a replication connection. So it logs in over a pipe, and what is said there is
//! carried to the server and back, with one parameter added to the first message. The server's
//! errors are taken out on the way.

use std::io;

use bytes::{BufMut as _, Bytes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_postgres::Config;
use tokio_postgres::tls::ChannelBinding;

use crate::Error;
use crate::auth::{AuthCheck, AuthPolicy};
use crate::encrypted::Encrypted;
use crate::reader::Reader;
use crate::wire::{HEADER_BYTES, LOGIN_BYTES_MAX, Wire, body, server_error};

const PIPE_BYTES: usize = 16 << 10;
/// More than any message of a login.
const ANSWER_BYTES_MAX: usize = 1 << 20;
const REPLICATION: &[u8] = b"replication\0database\0";

/// What the server says of a session when it begins.
#[derive(Default)]
pub(crate) struct Session {
    /// As in `server_version_num`.
    pub(crate) server_version: u32,
    /// What it takes to cancel something.
    pub(crate) process_id: i32,
    pub(crate) secret_key: i32,
}

pub(crate) async fn log_in(
    wire: &mut Wire,
    config: &Config,
    binding: Option<ChannelBinding>,
    auth: AuthPolicy,
) -> Result<Session, Error> {
    let auth = AuthCheck::new(auth.methods(binding.is_some()));
    let encrypted = Encrypted(binding);
    let config = encrypted.config(config);
    let (mut ours, theirs) = duplex(PIPE_BYTES);
    let logging_in = config.connect_raw(theirs, encrypted);
    let logging_in = async { logging_in.await.map_err(|err| Error::Authentication(err.into())) };
    let (_, session) = tokio::try_join!(logging_in, carry(wire, &mut ours, auth))?;
    Ok(session)
}

/// Carries the login to the server and the answers back, until the server is ready.
async fn carry(
    wire: &mut Wire,
    client: &mut DuplexStream,
    mut auth: AuthCheck,
) -> Result<Session, Error> {
    let length = client.read_u32().await?;
    let mut parameters = read(client, length).await?;
    // The list ends with a zero.
    parameters.pop();
    let mut startup = Vec::with_capacity(parameters.len() + 4 + REPLICATION.len() + 1);
    startup.put_u32(length + REPLICATION.len() as u32);
    startup.extend_from_slice(&parameters);
    startup.extend_from_slice(REPLICATION);
    startup.push(0);
    wire.send(&startup).await?;

    let mut session = Session::default();
    let mut bytes = 0;
    loop {
        let message = wire.message().await?;
        bytes += message.len();
        if bytes > LOGIN_BYTES_MAX {
            return Err(Error::too_long(message[0], bytes, LOGIN_BYTES_MAX));
        }
        let mut reader = Reader::new(body(&message));
        let mut is_request = false;
        match message[0] {
            b'E' => return Err(server_error(&message)),
            b'N' => continue,
            b'K' => (session.process_id, session.secret_key) = (reader.i32()?, reader.i32()?),
            // A password in clear or hashed, and the two steps of SCRAM.
            b'R' => {
                let checked = auth.check(Reader::new(body(&message)));
                checked.map_err(|refused| Error::Authentication(refused.into()))?;
                is_request = matches!(reader.u32()?, 3 | 5 | 10 | 11);
            }
            b'S' if reader.until_zero()? == b"server_version"[..] => {
                session.server_version = version(&reader.until_zero()?);
            }
            _ => {}
        }
        client.write_all(&message).await?;
        if message[0] == b'Z' {
            return Ok(session);
        }
        if is_request {
            wire.send(&answer(client).await?).await?;
        }
    }
}

/// A message of the client.
async fn answer(client: &mut DuplexStream) -> io::Result<Vec<u8>> {
    let tag = client.read_u8().await?;
    let length = client.read_u32().await?;
    let mut message = Vec::with_capacity(HEADER_BYTES);
    message.put_u8(tag);
    message.put_u32(length);
    message.extend(read(client, length).await?);
    Ok(message)
}

/// What follows a length, which counts itself.
async fn read(client: &mut DuplexStream, length: u32) -> io::Result<Vec<u8>> {
    let length = (length as usize).saturating_sub(4);
    if length > ANSWER_BYTES_MAX {
        let message = "a parameter of the configuration is too long";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut bytes = vec![0; length];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// The number of a version, such as 150018 for `15.18 (Debian 15.18-0)` and 180000 for `18beta1`.
fn version(text: &Bytes) -> u32 {
    let text = String::from_utf8_lossy(text);
    let number = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        (text[..end].parse::<u32>().unwrap_or(0).min(9999), text[end..].to_owned())
    };
    let (major, rest) = number(&text);
    major * 10_000 + rest.strip_prefix('.').map_or(0, |rest| number(rest).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        for (text, number) in [
            ("15.18 (Debian 15.18-0+deb12u1)", 150_018),
            ("18.4", 180_004),
            ("18beta1", 180_000),
            ("17", 170_000),
            ("devel", 0),
            ("99999999999.1", 1),
        ] {
            assert_eq!(version(&Bytes::from_static(text.as_bytes())), number, "{text}");
        }
    }
}
