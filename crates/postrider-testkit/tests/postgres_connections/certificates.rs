//! Certificates as they should not be.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};

/// What is the matter with a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    Fine,
    Expired,
    NotYetValid,
    /// It says who it is for, but not in the place where one looks.
    WithoutNames,
}

/// A certificate and its key, in PEM.
pub(crate) struct Certified {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Certified {
    /// Writes both; answers where.
    pub(crate) fn write(&self, directory: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (directory.join("certificate.pem"), directory.join("key.pem"));
        fs::write(&certificate, &self.certificate).expect("a file can be written");
        fs::write(&key, &self.key).expect("a file can be written");
        (certificate, key)
    }
}

/// Signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = params(name, Made::WithoutNames);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        Self(CertifiedIssuer::self_signed(params, key).expect("it can be signed"))
    }

    /// A server that is its own authority.
    pub(crate) fn itself(name: &str, made: Made) -> Certified {
        let mut params = params(name, made);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key can be made");
        Certified {
            certificate: params.self_signed(&key).expect("it can be signed").pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(crate) fn certify(&self, name: &str, made: Made) -> Certified {
        let key = KeyPair::generate().expect("a key can be made");
        let certificate = params(name, made).signed_by(&key, &self.0).expect("it can be signed");
        Certified { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn params(name: &str, made: Made) -> CertificateParams {
    let names = if made == Made::WithoutNames { Vec::new() } else { vec![name.to_owned()] };
    let mut params = CertificateParams::new(names).expect("it is a valid name");
    params.distinguished_name.push(DnType::CommonName, name);
    match made {
        Made::Fine | Made::WithoutNames => {}
        Made::Expired => params.not_after = date_time_ymd(2020, 1, 1),
        Made::NotYetValid => params.not_before = date_time_ymd(4000, 1, 1),
    }
    params
}
