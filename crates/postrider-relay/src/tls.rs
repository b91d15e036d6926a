//! The files of TLS: whose signatures are trusted, and who this program is.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct TlsError {
    pub(crate) message: String,
    pub(crate) hint: &'static str,
    #[source]
    pub(crate) source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// All certificates in a file; at least one. `what` they are stands in an error.
pub(crate) fn certificates(
    path: &Path,
    what: &str,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<_, _>>);
    let certificates: Vec<_> = read.map_err(|err| unreadable(&format!("the {what}"), path, err))?;
    if certificates.is_empty() {
        return Err(unreadable(&format!("the {what}"), path, pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

/// The private key in a file.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|err| unreadable("the client's private key", path, err))
}

/// Those whom certificates in a file make trusted, and the certificates.
pub(crate) fn roots_in(
    path: &Path,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), TlsError> {
    let certificates = certificates(path, "root certificate")?;
    let mut roots = RootCertStore::empty();
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|err| TlsError {
            message: format!("{} has a certificate that cannot be used", path.display()),
            hint: "it must hold the certificates of authorities, as PEM",
            source: Some(err.into()),
        })?;
    }
    Ok((roots, certificates))
}

/// Those whom the system trusts. `instead` says how to name a file.
pub(crate) fn roots_of_the_system(instead: &'static str) -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let message = "the system has no trusted certificates".to_owned();
        return Err(TlsError { message, hint: instead, source: None });
    }
    Ok(roots)
}

fn unreadable(what: &str, path: &Path, err: pem::Error) -> TlsError {
    TlsError {
        message: format!("cannot read {what} {}", path.display()),
        hint: "the relay needs to read the file, and it must hold PEM without a passphrase",
        source: Some(err.into()),
    }
}
