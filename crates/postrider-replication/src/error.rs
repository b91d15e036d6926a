//! What can go wrong.

use std::borrow::Cow;
use std::{fmt, io};

use bytes::Bytes;
use tokio_postgres::error::SqlState;

use crate::reader::{Malformed, Reader};

type Source = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong with a connection. Neither a password nor a part of a row is in it, except
/// that a [`ServerError`] can be asked for what the server added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Who we are could not be proven, or who the server is.
    #[error("cannot authenticate")]
    Authentication(#[source] Source),
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(&'static str),
    /// The server has ended the stream without an error: it shuts down. If not all that it has
    /// sent was confirmed, the stream was ended after a few seconds, so that it can.
    #[error("the server has ended the stream")]
    Ended,
    /// The network failed, or the server has closed the connection.
    #[error("the connection failed")]
    Io(#[from] io::Error),
    /// The server said what it should not have said.
    #[error("{0}")]
    Protocol(Cow<'static, str>),
    /// The server refused something, or ended the session.
    #[error(transparent)]
    Server(Box<ServerError>),
    /// The connection could not be encrypted.
    #[error("cannot encrypt the connection")]
    Tls(#[source] Source),
}

impl Error {
    /// The code of the server's error, if it is one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Server(error) => Some(&error.code),
            _ => None,
        }
    }

    pub(crate) fn unexpected(tag: u8) -> Self {
        let tag = char::from(tag).escape_default();
        Self::Protocol(format!("the server sent an unexpected message {tag}").into())
    }

    /// A message, given its tag, that is longer than such a message may be.
    pub(crate) fn too_long(tag: u8, bytes: usize, bytes_max: usize) -> Self {
        let tag = char::from(tag).escape_default();
        let message = format!(
            "the server sent a message {tag} of {bytes} bytes, where {bytes_max} are the most"
        );
        Self::Protocol(message.into())
    }

    pub(crate) fn closed() -> Self {
        let message = "the server has closed the connection";
        Self::Io(io::Error::new(io::ErrorKind::UnexpectedEof, message))
    }
}

impl From<Malformed> for Error {
    fn from(_: Malformed) -> Self {
        Self::Protocol("the server sent a malformed message".into())
    }
}

/// An error of the server.
///
/// It is shown with its code and its message. What the server added to that can quote rows, so it
/// has to be asked for.
#[derive(Clone)]
pub struct ServerError {
    severity: String,
    code: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
}

impl ServerError {
    /// Reads the body of an `ErrorResponse`.
    pub(crate) fn read(body: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(body);
        let (mut severity, mut code, mut message) = <(String, String, String)>::default();
        let (mut detail, mut hint) = (None, None);
        loop {
            let kind = reader.u8()?;
            if kind == 0 {
                break;
            }
            // Before it knows the encoding that was asked for, the server may use another.
            let text = String::from_utf8_lossy(&reader.until_zero()?).into_owned();
            match kind {
                b'V' => severity = text,
                b'C' => code = text,
                b'M' => message = text,
                b'D' => detail = Some(text),
                b'H' => hint = Some(text),
                _ => {}
            }
        }
        Ok(Self { severity, code: SqlState::from_code(&code), message, detail, hint })
    }

    /// Its SQLSTATE.
    pub fn code(&self) -> &SqlState {
        &self.code
    }

    /// Its message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The details, which can quote rows.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// What the server advises.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Whether the session has ended with it.
    pub fn is_fatal(&self) -> bool {
        self.severity == "FATAL" || self.severity == "PANIC"
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code.code())
    }
}

impl fmt::Debug for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerError")
            .field("severity", &self.severity)
            .field("code", &self.code.code())
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0Dcanary\0Hwait\0Fslot.c\0\0";

    #[test]
    fn an_error_is_shown_without_its_details() {
        let error = ServerError::read(Bytes::from_static(BODY)).unwrap();
        assert_eq!(*error.code(), SqlState::OBJECT_IN_USE);
        assert_eq!((error.detail(), error.hint()), (Some("canary"), Some("wait")));
        assert!(!error.is_fatal());
        assert_eq!(error.to_string(), "slot is active (SQLSTATE 55006)");
        let error = Error::Server(Box::new(error));
        assert_eq!(error.code(), Some(&SqlState::OBJECT_IN_USE));
        assert!(!format!("{error} {error:?}").contains("canary"));
    }

    #[test]
    fn a_cut_error_is_malformed() {
        for length in 0..BODY.len() {
            assert!(ServerError::read(Bytes::from_static(&BODY[..length])).is_err());
        }
    }
}
