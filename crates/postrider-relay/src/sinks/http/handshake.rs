//! The handshake of https: what it takes, and what a refusal means.
//!
//! Requests and checks use the same configuration, so a check finds what a request would meet.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use url::Url;

use super::options::Options;
use super::response;
use crate::sink::{FailureKind, SinkError};

/// How long a check waits for a refusal: with TLS 1.3 a server looks at a client's certificate when
/// the client takes the handshake for done.
const REFUSAL_WAIT: Duration = Duration::from_millis(250);

/// Whom the sink trusts, and who it is.
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
}

impl Handshake {
    /// Reads the files of TLS. `None` for http.
    pub(super) fn new(options: &Options, url: &Url) -> Result<Option<Self>, SinkError> {
        if url.scheme() != "https" {
            return Ok(None);
        }
        let tls = options.tls.clone().unwrap_or_default();
        Ok(Some(Self { config: Arc::new(tls.client_config()?) }))
    }

    pub(super) fn client_config(&self) -> ClientConfig {
        ClientConfig::clone(&self.config)
    }

    /// Does the handshake, and sends nothing.
    pub(super) async fn try_with(&self, stream: TcpStream, url: &Url) -> Result<(), SinkError> {
        let failed = |error: io::Error| {
            if let Some(rustls::Error::InvalidMessage(_)) = tls_error(&error) {
                let origin = response::origin(url);
                let message =
                    format!("{origin} does not speak TLS; check the port, or write http:// in url");
                return SinkError::new(FailureKind::Misconfigured, message);
            }
            refused(&error, url).unwrap_or_else(|| response::no_connection(&error, url))
        };
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| failed(io::Error::other(error)))?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let mut stream = connector.connect(name, stream).await.map_err(failed)?;
        match timeout(REFUSAL_WAIT, stream.read(&mut [0])).await {
            Ok(Err(error)) => refused(&error, url).map_or(Ok(()), Err),
            // It waits for a request, as it should, or for nothing.
            Ok(Ok(_)) | Err(_) => Ok(()),
        }
    }
}

/// The verdict on an error, if it is one of TLS that an operator must deal with. That the server's
/// certificate is not trusted is told elsewhere.
pub(super) fn refused(error: &(dyn Error + 'static), url: &Url) -> Option<SinkError> {
    let origin = response::origin(url);
    let message = match tls_error(error)? {
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::AccessDenied
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRequired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate),
        ) => format!(
            "{origin} does not accept the relay's certificate, or misses one ({alert:?}); name it \
             with tls = {{ certificate_file = \"…\", key_file = \"…\" }}"
        ),
        _ => return None,
    };
    Some(SinkError::new(FailureKind::Misconfigured, message))
}

/// The error of TLS behind an error. One of I/O hides what it wraps from `source`.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}
