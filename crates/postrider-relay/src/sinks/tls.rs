//! How a sink's connection is encrypted: always verified, by the system's certificates or by a
//! file, and with a certificate of its own where the server asks for one.

use std::path::PathBuf;

use toml::Value;

use super::Problem;
use super::option_reader::OptionReader;

/// The files of TLS, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whose signature makes the server's certificate trusted. Defaults to whom the system
    /// trusts.
    pub ca_file: Option<PathBuf>,
    /// The sink's own certificate, with `key_file`.
    pub certificate_file: Option<PathBuf>,
    /// The key of the sink's own certificate.
    pub key_file: Option<PathBuf>,
}

impl TlsOptions {
    /// Reads `tls`: `true`, `false`, or a table of files. `None` is no TLS.
    pub(super) fn read(reader: &mut OptionReader<'_>) -> Option<Self> {
        const FILES: [&str; 3] = ["ca_file", "certificate_file", "key_file"];
        let expected = "true, or a table of ca_file, certificate_file and key_file";
        let tls = reader.take("tls", expected, |value| {
            if let Some(is_on) = value.as_bool() {
                return Some(is_on.then(Self::default));
            }
            let table = value.as_table()?;
            if table.iter().any(|(key, file)| !FILES.contains(&key.as_str()) || !file.is_str()) {
                return None;
            }
            let file = |name| table.get(name).and_then(Value::as_str).map(PathBuf::from);
            let [ca_file, certificate_file, key_file] = FILES.map(file);
            Some(Some(Self { ca_file, certificate_file, key_file }))
        });
        tls.flatten()
    }

    /// Every mistake, without any I/O.
    pub(super) fn problems(&self) -> Vec<Problem> {
        match (&self.certificate_file, &self.key_file) {
            (Some(_), None) => {
                vec![
                    Problem::new("tls", "has certificate_file and no key_file").with_hint("add it"),
                ]
            }
            (None, Some(_)) => {
                vec![
                    Problem::new("tls", "has key_file and no certificate_file").with_hint("add it"),
                ]
            }
            _ => Vec::new(),
        }
    }

    /// Reads the files, for a client that takes rustls' own configuration.
    #[cfg(any(feature = "https", feature = "nats", feature = "rabbitmq", feature = "redis"))]
    pub(super) fn client_config(&self) -> Result<rustls::ClientConfig, crate::sink::SinkError> {
        use std::sync::Arc;

        use rustls::crypto::aws_lc_rs;

        use crate::sink::{FailureKind, SinkError};
        use crate::tls;

        let misconfigured = |error: tls::TlsError| {
            let mut message = error.to_string();
            if let Some(source) = &error.source {
                message.push_str(&format!(": {source}"));
            }
            let message = format!("{message}; {}", error.hint);
            SinkError::new(FailureKind::Misconfigured, message)
        };
        let roots = match &self.ca_file {
            Some(path) => tls::roots_in(path).map(|(roots, _)| roots),
            None => tls::roots_of_the_system(
                "install them (ca-certificates), or name a file with tls = { ca_file = \"…\" }",
            ),
        };
        let builder =
            rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider knows the protocols")
                .with_root_certificates(roots.map_err(misconfigured)?);
        let (Some(certificate), Some(key)) = (&self.certificate_file, &self.key_file) else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = tls::certificates(certificate, "client certificate").map_err(misconfigured)?;
        let key_der = tls::private_key(key).map_err(misconfigured)?;
        builder.with_client_auth_cert(chain, key_der).map_err(|error| {
            let (certificate, key) = (certificate.display(), key.display());
            let message = format!(
                "the client certificate {certificate} does not go with the key {key}: {error}"
            );
            SinkError::new(FailureKind::Misconfigured, message)
        })
    }
}
