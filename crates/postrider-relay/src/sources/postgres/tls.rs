//! TLS to the server, with the meaning that `sslmode` has for `psql`: what is not verified is
//! still encrypted, `verify-ca` asks who signed the server's certificate, and `verify-full` also
//! for which name.
//!
//! The files are read for every connection: a certificate that was exchanged is used by the next
//! one, without a restart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::source::{SourceError, SourceErrorKind};
use crate::tls::{self, TlsError};

/// How much is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl TlsMode {
    /// The one of this name, in a URL.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "disable" => Some(Self::Disable),
            "prefer" => Some(Self::Prefer),
            "require" => Some(Self::Require),
            "verify-ca" => Some(Self::VerifyCa),
            "verify-full" => Some(Self::VerifyFull),
            _ => None,
        }
    }
}

/// Whose signature makes a certificate trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    File(PathBuf),
    System,
}

/// Takes the certificate that a server shows.
pub(super) type Seen = Arc<OnceLock<CertificateDer<'static>>>;

/// How connections are encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TlsSettings {
    pub(super) mode: TlsMode,
    pub(super) roots: Option<Roots>,
    /// The files of the client's own certificate and of its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    /// Begin with TLS at once, without asking for it first.
    pub(super) direct: bool,
}

impl TlsSettings {
    /// Whether a server with which a connection is encrypted has shown a certificate that is
    /// trusted.
    pub(super) fn verifies(&self) -> bool {
        match self.mode {
            TlsMode::Disable => false,
            TlsMode::Prefer | TlsMode::Require => self.roots.is_some(),
            TlsMode::VerifyCa | TlsMode::VerifyFull => true,
        }
    }

    /// Reads the files and makes what connects.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, SourceError> {
        self.connector_that_notes(None)
    }

    /// The same; the certificate that the server shows is left in `seen`.
    pub(super) fn connector_that_notes(
        &self,
        seen: Option<Seen>,
    ) -> Result<MakeRustlsConnect, SourceError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Arc::new(Verifier { seen, ..self.verifier(&provider)? });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows the protocols")
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match self.identity.as_ref().filter(|_| self.mode != TlsMode::Disable) {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = tls::certificates(certificate, "client certificate")?;
                let key_der = tls::private_key(key)?;
                builder.with_client_auth_cert(chain, key_der).map_err(|err| {
                    misconfigured(format!(
                        "the client certificate {} does not go with the key {}",
                        certificate.display(),
                        key.display()
                    ))
                    .with_source(err)
                    .with_hint("sslcert and sslkey must be a certificate and its own key")
                })?
            }
        };
        if self.direct {
            config.alpn_protocols = vec![b"postgresql".to_vec()];
        }
        Ok(MakeRustlsConnect::new(config))
    }

    fn verifier(&self, provider: &CryptoProvider) -> Result<Verifier, SourceError> {
        let roots = match (self.mode, &self.roots) {
            (TlsMode::Disable, _) => None,
            (_, Some(Roots::File(path))) => Some(Trusted::file(path)?),
            (_, Some(Roots::System)) | (TlsMode::VerifyFull, None) => Some(Trusted::system()?),
            (_, None) => None,
        };
        Ok(Verifier {
            roots,
            check_name: self.mode == TlsMode::VerifyFull,
            seen: None,
            algorithms: provider.signature_verification_algorithms,
        })
    }
}

/// Whom to trust.
#[derive(Debug)]
struct Trusted {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn file(path: &Path) -> Result<Self, SourceError> {
        let (roots, certificates) = tls::roots_in(path)?;
        Ok(Self { roots, certificates })
    }

    fn system() -> Result<Self, SourceError> {
        let instead = "install them (ca-certificates), or name a file with sslrootcert";
        Ok(Self { roots: tls::roots_of_the_system(instead)?, certificates: Vec::new() })
    }
}

/// Checks what `sslmode` asks for. That the server holds the key of its certificate is checked in
/// any case: binding a password to the certificate would be worth nothing without it.
#[derive(Debug)]
struct Verifier {
    roots: Option<Trusted>,
    check_name: bool,
    seen: Option<Seen>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(seen) = &self.seen {
            // Whoever looks at it does so later.
            let _ = seen.set(end_entity.clone().into_owned());
        }
        let Some(trusted) = &self.roots else {
            return Ok(ServerCertVerified::assertion());
        };
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let verified = verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &trusted.roots,
            intermediates,
            now,
            self.algorithms.all,
        );
        match verified {
            Ok(()) => {}
            // A server that signed its certificate itself says that it is an authority, which is
            // refused after the dates were checked. It is fine if the file has this very one.
            Err(rustls::Error::InvalidCertificate(CertificateError::Other(_)))
                if trusted.certificates.iter().any(|root| root == end_entity) => {}
            Err(err) => return Err(err),
        }
        if self.check_name {
            verify_server_name(&certificate, server_name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn misconfigured(message: impl Into<String>) -> SourceError {
    SourceError::new(SourceErrorKind::Misconfigured, message)
}

impl From<TlsError> for SourceError {
    fn from(error: TlsError) -> Self {
        let mut misconfigured = misconfigured(error.message).with_hint(error.hint);
        misconfigured.source = error.source;
        misconfigured
    }
}
