//! The cluster's authority, and the certificates it gives out.
//!
//! Keys are ECDSA P-256. A certificate binds the cluster and the node or client (see `certificate`);
//! nodes may serve and dial, clients only dial. An authority's subject is derived from its cluster,
//! so its key and certificate files are all it needs to issue again.
//!
//! Always: a key never leaves through `Debug`; key files are readable by their owner only, from the
//! moment they exist; a file is replaced whole or not at all.
//!
//! Not here: the clock (the caller passes Unix time), who may ask for a certificate, revocation
//! (`trust`).

use std::fmt;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use base::{ClusterId, NodeId};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::certificate::{authority_uri, is_client_name, read_authority, read_expiry, uri_of};
use crate::{Claims, Peer, Refusal, read_claims};

/// Days an authority's certificate is valid: longer than the machines.
pub const AUTHORITY_DAYS: u64 = 20 * 365;

/// Days a node's or client's certificate is valid: what people renew without hurry once a year.
pub const CERTIFICATE_DAYS: u64 = 397;

/// Seconds that certificates are valid before they are issued: clocks of nodes differ.
const SKEW_SECONDS: u64 = 24 * 3600;

const DAY_SECONDS: u64 = 24 * 3600;

/// The last second of the year 9000: beyond it, dates in certificates end.
const TIME_MAX_SECONDS: u64 = 221_845_392_000;

/// Names of an identity's files in its directory.
const CERTIFICATE_FILE: &str = "certificate.pem";
const KEY_FILE: &str = "key.pem";
const AUTHORITY_FILE: &str = "authority.pem";

/// Names of an authority's files in its directory.
const AUTHORITY_KEY_FILE: &str = "authority-key.pem";

/// Why an identity cannot be made, read or written.
#[derive(Debug)]
pub enum IdentityError {
    /// A file cannot be read or written.
    File {
        /// Its path.
        path: String,
        /// The system's word.
        cause: io::Error,
    },
    /// The content of a file, or a key, is not what it should be.
    Damaged(String),
    /// A certificate says something other than it should.
    Certificate(Refusal),
    /// A name cannot stand in a certificate.
    Name(String),
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityError::File { path, cause } => write!(f, "{path}: {cause}"),
            IdentityError::Damaged(what) => write!(f, "unusable key or certificate: {what}"),
            IdentityError::Certificate(why) => write!(f, "unusable certificate: {why}"),
            IdentityError::Name(name) => write!(
                f,
                "{name:?} cannot stand in a certificate: use letters, digits and - _ . @ (64 at most)"
            ),
        }
    }
}

impl std::error::Error for IdentityError {}

impl From<Refusal> for IdentityError {
    fn from(why: Refusal) -> IdentityError {
        IdentityError::Certificate(why)
    }
}

fn damaged(cause: impl fmt::Display) -> IdentityError {
    IdentityError::Damaged(cause.to_string())
}

/// What issues certificates for one cluster.
pub struct Authority {
    cluster: ClusterId,
    certificate_pem: String,
    key: KeyPair,
}

/// A node's or client's certificate, its key, and the authorities it trusts; all as PEM text.
#[derive(Clone)]
pub struct Identity {
    certificate_pem: String,
    key_pem: String,
    authority_pem: String,
    claims: Claims,
    expires_unix: u64,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({:016x})", self.cluster.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} of {:016x})", self.claims.peer, self.claims.cluster.0)
    }
}

/// Validity and subject; `now_unix` in seconds.
fn params(common_name: &str, now_unix: u64, days: u64) -> CertificateParams {
    let moment = |seconds: u64| {
        date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.min(TIME_MAX_SECONDS))
    };
    let mut params = CertificateParams::default();
    params.not_before = moment(now_unix.saturating_sub(SKEW_SECONDS));
    params.not_after = moment(now_unix.saturating_add(days * DAY_SECONDS));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Lockstep");
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn uri_name(uri: String) -> SanType {
    SanType::URI(uri.try_into().expect("our URIs are made of ASCII"))
}

impl Authority {
    fn params(cluster: ClusterId, now_unix: u64) -> CertificateParams {
        let name = format!("authority of cluster {:016x}", cluster.0);
        let mut params = params(&name, now_unix, AUTHORITY_DAYS);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.subject_alt_names = vec![uri_name(authority_uri(cluster))];
        params
    }

    /// A new authority with a new key. `now_unix` is the time in seconds since 1970.
    ///
    /// # Errors
    /// [`IdentityError::Damaged`] if the system gives no random numbers.
    pub fn create(cluster: ClusterId, now_unix: u64) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate().map_err(damaged)?;
        let certificate =
            Authority::params(cluster, now_unix).self_signed(&key).map_err(damaged)?;
        Ok(Authority { cluster, certificate_pem: certificate.pem(), key })
    }

    /// The cluster it issues for.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Its certificate, which everybody may know.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// An identity for a node. `name` and `addresses` are what foreign clients (of NBD over TLS)
    /// know it by; nodes themselves go by the number. `now_unix` in seconds since 1970.
    ///
    /// # Errors
    /// [`IdentityError::Name`] if `name` cannot stand in a certificate.
    pub fn issue(
        &self,
        node: NodeId,
        name: &str,
        addresses: &[IpAddr],
        now_unix: u64,
    ) -> Result<Identity, IdentityError> {
        assert!(node != NodeId(0), "node 0 is no node");
        let mut names = vec![SanType::DnsName(
            name.try_into().map_err(|_| IdentityError::Name(name.to_owned()))?,
        )];
        names.extend(addresses.iter().copied().map(SanType::IpAddress));
        self.sign(&Peer::Node(node), name, names, now_unix)
    }

    /// An identity for a client of exports or an operator, good for dialling only.
    ///
    /// # Errors
    /// [`IdentityError::Name`] if `name` cannot stand in a certificate.
    pub fn issue_client(&self, name: &str, now_unix: u64) -> Result<Identity, IdentityError> {
        self.sign(&Peer::Client(name.to_owned()), name, Vec::new(), now_unix)
    }

    fn sign(
        &self,
        peer: &Peer,
        name: &str,
        mut names: Vec<SanType>,
        now_unix: u64,
    ) -> Result<Identity, IdentityError> {
        if !is_client_name(name) {
            return Err(IdentityError::Name(name.to_owned()));
        }
        let mut params = params(name, now_unix, CERTIFICATE_DAYS);
        names.push(uri_name(uri_of(self.cluster, peer)));
        params.subject_alt_names = names;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if matches!(peer, Peer::Node(_)) {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        let key = KeyPair::generate().map_err(damaged)?;
        // Only the subject of these parameters is used, and it depends on the cluster alone.
        let issuer = Issuer::new(Authority::params(self.cluster, now_unix), &self.key);
        let certificate = params.signed_by(&key, &issuer).map_err(damaged)?;
        Identity::from_pem(certificate.pem(), key.serialize_pem(), self.certificate_pem.clone())
    }

    /// Writes its certificate and key into `directory`, which exists.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        replace(&directory.join(AUTHORITY_KEY_FILE), &self.key.serialize_pem(), 0o600)?;
        replace(&directory.join(AUTHORITY_FILE), &self.certificate_pem, 0o644)
    }

    /// Reads what `save` wrote. Fails as well if key and certificate do not belong together.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Damaged`], [`IdentityError::Certificate`].
    pub fn load(directory: &Path) -> Result<Authority, IdentityError> {
        let certificate_pem = read(&directory.join(AUTHORITY_FILE))?;
        let key =
            KeyPair::from_pem(&read(&directory.join(AUTHORITY_KEY_FILE))?).map_err(damaged)?;
        let der = first_certificate(&certificate_pem)?;
        check_key(&der, &key)?;
        Ok(Authority { cluster: read_authority(&der)?, certificate_pem, key })
    }
}

impl Identity {
    /// Puts an identity together from PEM texts. `authority_pem` may hold several certificates: all
    /// are trusted, so that a new authority can be brought in while the old one is still used.
    ///
    /// # Errors
    /// [`IdentityError::Damaged`], [`IdentityError::Certificate`].
    pub fn from_pem(
        certificate_pem: String,
        key_pem: String,
        authority_pem: String,
    ) -> Result<Identity, IdentityError> {
        let der = first_certificate(&certificate_pem)?;
        let claims = read_claims(&der)?;
        check_key(&der, &KeyPair::from_pem(&key_pem).map_err(damaged)?)?;
        first_certificate(&authority_pem)?;
        let expires_unix = read_expiry(&der)?;
        Ok(Identity { certificate_pem, key_pem, authority_pem, claims, expires_unix })
    }

    /// The cluster it belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.claims.cluster
    }

    /// Whose it is.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.claims.peer
    }

    /// What its certificate claims, with the serial number for a revocation list.
    #[must_use]
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// When the certificate's time is over, in seconds since 1970. Renew it some weeks before.
    #[must_use]
    pub fn expires_unix(&self) -> u64 {
        self.expires_unix
    }

    /// The certificate as PEM text.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The private key as PEM text. Keep it from logs.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The trusted authorities as PEM text.
    #[must_use]
    pub fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// Writes certificate, key and authorities into `directory`, which exists.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, directory: &Path) -> Result<(), IdentityError> {
        replace(&directory.join(AUTHORITY_FILE), &self.authority_pem, 0o644)?;
        replace(&directory.join(KEY_FILE), &self.key_pem, 0o600)?;
        replace(&directory.join(CERTIFICATE_FILE), &self.certificate_pem, 0o644)
    }

    /// Writes the same into `directory`, which exists, under the names that libnbd and QEMU look for.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save_for_client(&self, directory: &Path) -> Result<(), IdentityError> {
        replace(&directory.join("ca-cert.pem"), &self.authority_pem, 0o644)?;
        replace(&directory.join("client-key.pem"), &self.key_pem, 0o600)?;
        replace(&directory.join("client-cert.pem"), &self.certificate_pem, 0o644)
    }

    /// Reads what `save` wrote.
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Damaged`] (also when key and certificate do not
    /// belong together, as after a renewal that was cut short), [`IdentityError::Certificate`].
    pub fn load(directory: &Path) -> Result<Identity, IdentityError> {
        Identity::from_pem(
            read(&directory.join(CERTIFICATE_FILE))?,
            read(&directory.join(KEY_FILE))?,
            read(&directory.join(AUTHORITY_FILE))?,
        )
    }
}

fn first_certificate(pem: &str) -> Result<CertificateDer<'static>, IdentityError> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(damaged)
}

/// Fails unless the certificate holds the public half of `key`.
fn check_key(der: &CertificateDer<'_>, key: &KeyPair) -> Result<(), IdentityError> {
    let certificate = webpki::EndEntityCert::try_from(der).map_err(damaged)?;
    // The raw key is the last field of the structure that the certificate holds.
    if certificate.subject_public_key_info().ends_with(key.public_key_raw()) {
        return Ok(());
    }
    Err(IdentityError::Damaged("key and certificate do not belong together".to_owned()))
}

fn read(path: &Path) -> Result<String, IdentityError> {
    fs::read_to_string(path)
        .map_err(|cause| IdentityError::File { path: path.display().to_string(), cause })
}

/// Replaces a file whole; after an error it is as it was, unless that says that it may be there.
fn replace(path: &Path, content: &str, mode: u32) -> Result<(), IdentityError> {
    sys::replace_file(path, content.as_bytes(), mode)
        .map_err(|cause| IdentityError::File { path: path.display().to_string(), cause })
}
