//! Whose certificates are believed, and with what a node shows itself: the configuration of TLS.
//!
//! A [`Config`] is made of an identity, a mode and a revocation list, and never changes. To renew or
//! to revoke, make a new one: sessions begun with the old one go on with it, and
//! [`crate::Session::is_revoked`] tells which of them have to end.
//!
//! Always: TLS 1.3 only; both ends show a certificate; no session is ever resumed, so that every
//! connection passes the revocation list.
//!
//! Not here: who of a cluster may do what (the node), which node was expected (`session`).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use base::{ClusterId, NodeId};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, SignatureVerificationAlgorithm, UnixTime,
};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::SigningKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error as TlsError, OtherError, PeerIncompatible, ServerConfig, SignatureScheme, version,
};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::certificate::read_authority;
use crate::{Claims, Identity, IdentityError, Peer, Refusal, read_claims};

/// What becomes of frames between two nodes after they have authenticated each other.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LinkMode {
    /// Everything travels inside TLS.
    #[default]
    Encrypted,
    /// Frames travel in the clear, guarded by their checksums only. For closed networks: whoever can
    /// change packets on the way can change data, because a checksum is no signature.
    Plain,
}

impl fmt::Display for LinkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkMode::Encrypted => "on",
            LinkMode::Plain => "off",
        })
    }
}

/// Who is not to be let in any more.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Revocations {
    /// Certificates, by serial number as in [`Claims`].
    pub serials: BTreeSet<Vec<u8>>,
    /// Nodes, whatever their certificate.
    pub nodes: BTreeSet<NodeId>,
}

impl Revocations {
    /// True if whoever makes these claims is not to be let in.
    #[must_use]
    pub fn refuse(&self, claims: &Claims) -> bool {
        let node = matches!(&claims.peer, Peer::Node(node) if self.nodes.contains(node));
        node || self.serials.contains(&claims.serial)
    }
}

/// How sessions are secured from now on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) mode: LinkMode,
    pub(crate) trust: Arc<Trust>,
    /// What this node signs with, and what it shows of it.
    pub(crate) key: Arc<dyn SigningKey>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) clock: Arc<dyn TimeProvider>,
    cluster: ClusterId,
    local: Peer,
    expires_unix: u64,
}

impl Config {
    /// Sessions that show `identity` and run in `mode`. Certificates are judged by the system's
    /// clock.
    ///
    /// # Errors
    /// [`IdentityError::Damaged`] or [`IdentityError::Certificate`] if the identity or one of its
    /// authorities cannot be used.
    pub fn new(
        identity: &Identity,
        mode: LinkMode,
        revocations: Revocations,
    ) -> Result<Config, IdentityError> {
        Config::with_clock(identity, mode, revocations, Arc::new(DefaultTimeProvider))
    }

    /// The same, with certificates judged by another clock.
    ///
    /// # Errors
    /// As for `new`.
    pub fn with_clock(
        identity: &Identity,
        mode: LinkMode,
        revocations: Revocations,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Config, IdentityError> {
        let damaged = |error: TlsError| IdentityError::Damaged(error.to_string());
        let unreadable =
            |error: rustls::pki_types::pem::Error| IdentityError::Damaged(error.to_string());
        let authorities = CertificateDer::pem_slice_iter(identity.authority_pem().as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(unreadable)?;
        for authority in &authorities {
            if read_authority(authority)? != identity.cluster() {
                let what = "an authority of another cluster is among the trusted ones";
                return Err(IdentityError::Damaged(what.to_owned()));
            }
        }
        let pem = identity.certificate_pem().as_bytes();
        let chain = vec![CertificateDer::from_pem_slice(pem).map_err(unreadable)?];
        let key =
            PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes()).map_err(unreadable)?;
        let provider = Arc::new(provider());
        let signing_key =
            provider.key_provider.load_private_key(key.clone_key()).map_err(damaged)?;
        let certificate = chain[0].clone();
        let trust = Arc::new(Trust {
            cluster: identity.cluster(),
            authorities,
            revocations,
            provider: Arc::clone(&provider),
        });
        let mut client =
            ClientConfig::builder_with_details(Arc::clone(&provider), Arc::clone(&clock))
                .with_protocol_versions(&[&version::TLS13])
                .map_err(damaged)?
                .dangerous()
                .with_custom_certificate_verifier(Arc::clone(&trust) as Arc<dyn ServerCertVerifier>)
                .with_client_auth_cert(chain.clone(), key.clone_key())
                .map_err(damaged)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_details(provider, Arc::clone(&clock))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(damaged)?
            .with_client_cert_verifier(Arc::clone(&trust) as Arc<dyn ClientCertVerifier>)
            .with_single_cert(chain, key)
            .map_err(damaged)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let (cluster, local) = (identity.cluster(), identity.peer().clone());
        Ok(Config {
            client: Arc::new(client),
            server: Arc::new(server),
            mode,
            trust,
            key: signing_key,
            certificate,
            clock,
            cluster,
            local,
            expires_unix: identity.expires_unix(),
        })
    }

    /// The mode of sessions made with it.
    #[must_use]
    pub fn mode(&self) -> LinkMode {
        self.mode
    }

    /// The cluster of its identity.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Whom its identity names.
    #[must_use]
    pub fn local(&self) -> &Peer {
        &self.local
    }

    /// When the time of its certificate is over, in seconds since 1970: no session begins with it from then on.
    #[must_use]
    pub fn expires_unix(&self) -> u64 {
        self.expires_unix
    }
}

/// The ring provider, AES-128-GCM first: as good for the purpose as AES-256 and a quarter faster.
fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    provider
}

/// The verifier of both ends.
pub(crate) struct Trust {
    cluster: ClusterId,
    authorities: Vec<CertificateDer<'static>>,
    revocations: Revocations,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({:016x})", self.cluster.0)
    }
}

impl Trust {
    /// How what is signed can be verified, the preferred first.
    pub(crate) fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }

    /// What verifies a signature of this scheme.
    pub(crate) fn algorithms(
        &self,
        scheme: SignatureScheme,
    ) -> &'static [&'static dyn SignatureVerificationAlgorithm] {
        let mapping = self.provider.signature_verification_algorithms.mapping;
        mapping.iter().find(|(of, _)| *of == scheme).map_or(&[], |(_, algorithms)| algorithms)
    }

    pub(crate) fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Refusal> {
        let claims = read_claims(certificate)?;
        // Said first, because of a foreign cluster the authority is unknown as well.
        if claims.cluster != self.cluster {
            return Err(Refusal::OtherCluster { local: self.cluster, remote: claims.cluster });
        }
        let mut anchors = Vec::with_capacity(self.authorities.len());
        for authority in &self.authorities {
            anchors.push(anchor_from_trusted_cert(authority).map_err(|_| Refusal::Damaged)?);
        }
        EndEntityCert::try_from(certificate)
            .map_err(|_| Refusal::Damaged)?
            .verify_for_usage(
                self.provider.signature_verification_algorithms.all,
                &anchors,
                &[],
                now,
                usage,
                None,
                None,
            )
            .map_err(refusal_of)?;
        if self.revocations.refuse(&claims) {
            return Err(Refusal::Revoked);
        }
        Ok(())
    }

    fn check(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }
}

fn refusal_of(error: webpki::Error) -> Refusal {
    match error {
        webpki::Error::CertExpired { .. } => Refusal::Expired,
        webpki::Error::CertNotValidYet { .. } => Refusal::NotYetValid,
        webpki::Error::UnknownIssuer
        | webpki::Error::InvalidSignatureForPublicKey
        | webpki::Error::CaUsedAsEndEntity => Refusal::UnknownAuthority,
        webpki::Error::RequiredEkuNotFoundContext(_) => Refusal::WrongPurpose,
        _ => Refusal::Damaged,
    }
}

/// As TLS says it, so that the alert tells the peer; the other way is `refusal_in`.
fn tls_error_of(refusal: Refusal) -> TlsError {
    TlsError::InvalidCertificate(match refusal {
        Refusal::Expired => CertificateError::Expired,
        Refusal::NotYetValid => CertificateError::NotValidYet,
        Refusal::UnknownAuthority => CertificateError::UnknownIssuer,
        Refusal::Revoked => CertificateError::Revoked,
        Refusal::Damaged => CertificateError::BadEncoding,
        Refusal::WrongPurpose => CertificateError::InvalidPurpose,
        Refusal::OtherCluster { .. } | Refusal::NoName => {
            CertificateError::Other(OtherError(Arc::new(refusal)))
        }
    })
}

/// The refusal that `tls_error_of` or TLS itself turned into this error.
pub(crate) fn refusal_in(error: &CertificateError) -> Refusal {
    match error {
        CertificateError::Expired => Refusal::Expired,
        CertificateError::NotValidYet => Refusal::NotYetValid,
        CertificateError::UnknownIssuer => Refusal::UnknownAuthority,
        CertificateError::Revoked => Refusal::Revoked,
        CertificateError::InvalidPurpose => Refusal::WrongPurpose,
        CertificateError::Other(other) => {
            other.0.downcast_ref::<Refusal>().cloned().unwrap_or(Refusal::Damaged)
        }
        _ => Refusal::Damaged,
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.verify(end_entity, now, KeyUsage::server_auth()).map_err(tls_error_of)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.check(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.verify(end_entity, now, KeyUsage::client_auth()).map_err(tls_error_of)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Err(TlsError::PeerIncompatible(PeerIncompatible::Tls12NotOffered))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.check(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
