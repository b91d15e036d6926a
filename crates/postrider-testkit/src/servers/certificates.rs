//! TLS for a private server: an authority, what it has certified, and one that is not trusted.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::folder::{Folder, set_mode};

/// The files of a server with TLS, in PEM. The server's own certificate is for `localhost` and
/// for nothing else, not even 127.0.0.1; the client's is for the user `postrider`.
#[derive(Debug)]
pub struct Certificates {
    /// The authority that has certified server and client.
    pub authority: PathBuf,
    /// The client's certificate.
    pub client: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
    /// An authority that has certified neither.
    pub other_authority: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// Its key, which only the server can read.
    pub server_key: PathBuf,
}

impl Certificates {
    /// Makes all of them in the folder of a server.
    pub(super) fn make(folder: &Folder) -> Self {
        let (authority, other) = (authority("authority"), authority("other authority"));
        let (server, server_key) = certify("localhost", &authority);
        let (client, client_key) = certify("postrider", &authority);
        Self {
            authority: folder.write("authority.pem", &authority.pem()),
            client: folder.write("client.pem", &client),
            client_key: own(folder, "client.key", &client_key),
            other_authority: folder.write("other_authority.pem", &other.pem()),
            server: folder.write("server.pem", &server),
            server_key: folder.write("server.key", &server_key),
        }
    }
}

/// Writes a file that belongs to the test: PostgreSQL's client takes no key of another user.
fn own(folder: &Folder, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("a file can be written");
    set_mode(&path, 0o600);
    path
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new([]).expect("no names are valid names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key can be made");
    CertifiedIssuer::self_signed(params, key).expect("a certificate can be made")
}

/// A certificate for a name, and its key.
fn certify(name: &str, authority: &Authority) -> (String, String) {
    let mut params = CertificateParams::new([name.to_owned()]).expect("it is a valid name");
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key can be made");
    let certificate = params.signed_by(&key, authority).expect("a certificate can be made");
    (certificate.pem(), key.serialize_pem())
}
