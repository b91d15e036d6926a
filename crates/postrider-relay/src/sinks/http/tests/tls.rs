//! HTTPS: whom the sink trusts, who it says it is, and what its check finds out.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::message;
use crate::sink::{FailureKind, Sink, SinkError};
use crate::sinks::SinkSpec;

/// Certificates in a folder: `authority.pem`, `other.pem`, `server.pem`, `client.pem` and keys.
fn certificates() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let authority = || {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (trusted, other) = (authority(), authority());
    let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    write("authority.pem", trusted.pem());
    write("other.pem", other.pem());
    for (name, host) in [("server", "localhost"), ("client", "postrider")] {
        let (params, key) =
            (CertificateParams::new([host.to_owned()]).unwrap(), KeyPair::generate().unwrap());
        write(&format!("{name}.pem"), params.signed_by(&key, &trusted).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    folder
}

/// Answers every request with 204 until it is dropped; `asks` clients for a certificate.
async fn serve(files: &Path, asks: bool) -> (SocketAddr, JoinSet<()>) {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = if asks {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(files.join("authority.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        config.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        config.with_no_client_auth()
    };
    let chain = vec![CertificateDer::from_pem_file(files.join("server.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(files.join("server.key")).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    request.extend_from_slice(&buffer[..count]);
                    let is_whole =
                        request.ends_with(b"{\"a\":1}") || request.starts_with(b"OPTIONS");
                    if is_whole && request.windows(4).any(|four| four == b"\r\n\r\n") {
                        request.clear();
                        let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
                    }
                }
            });
        }
    });
    (address, tasks)
}

async fn connect(address: SocketAddr, tls: &str) -> Result<Box<dyn Sink>, SinkError> {
    let url = format!("https://localhost:{}/hook?token=canary", address.port());
    let options = format!("allow_private = true\n{tls}");
    SinkSpec { options: options.parse().unwrap(), ..SinkSpec::new(url) }.connect().await
}

fn trusting(files: &Path, name: &str) -> String {
    format!("tls = {{ ca_file = {:?} }}", files.join(name))
}

#[tokio::test]
async fn a_check_finds_a_certificate_that_is_not_trusted() {
    let files = certificates();
    let (address, _tasks) = serve(files.path(), false).await;
    for tls in [String::new(), trusting(files.path(), "other.pem")] {
        let sink = connect(address, &tls).await.unwrap();
        for error in [
            sink.check().await.unwrap_err(),
            sink.publish(&[message()]).await.remove(0).unwrap_err(),
        ] {
            assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
            assert!(error.message.contains("is not trusted"), "{error}");
            assert!(!error.message.contains("canary"), "{error}");
        }
    }
}

#[tokio::test]
async fn an_authority_of_its_own_is_trusted() {
    let files = certificates();
    let (address, _tasks) = serve(files.path(), false).await;
    let sink = connect(address, &trusting(files.path(), "authority.pem")).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), [""; 0]);
    assert_eq!(sink.publish(&[message()]).await, [Ok(())]);
    let missing = connect(address, &trusting(files.path(), "missing.pem")).await.err().unwrap();
    assert_eq!(missing.kind, FailureKind::Misconfigured);
    assert!(missing.message.contains("cannot read the root certificate"), "{missing}");
}

#[tokio::test]
async fn an_endpoint_can_ask_for_a_certificate() {
    let files = certificates();
    let (address, _tasks) = serve(files.path(), true).await;
    let path = |name| files.path().join(name);
    let both = format!(
        "tls = {{ ca_file = {:?}, certificate_file = {:?}, key_file = {:?} }}",
        path("authority.pem"),
        path("client.pem"),
        path("client.key"),
    );
    let sink = connect(address, &both).await.unwrap();
    assert_eq!(sink.check().await.unwrap(), [""; 0]);
    assert_eq!(sink.publish(&[message()]).await, [Ok(())]);
    let without = connect(address, &trusting(files.path(), "authority.pem")).await.unwrap();
    let error = without.check().await.unwrap_err();
    assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
    assert!(error.message.contains("tls = { certificate_file"), "{error}");
}

#[tokio::test]
async fn a_port_without_tls_is_found_by_the_check() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    let sink = connect(address, "connect_timeout = \"5s\"").await.unwrap();
    let checked = tokio::time::timeout(Duration::from_secs(20), sink.check()).await.unwrap();
    let error = checked.unwrap_err();
    assert_eq!(error.kind, FailureKind::Misconfigured, "{error}");
    assert!(error.message.contains("does not speak TLS"), "{error}");
    answering.await.unwrap();
}
