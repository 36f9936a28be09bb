//! What a node signs with its certificate's key, for others to believe when it is not there.
//!
//! A session proves who speaks now; a proof shows who once said something. Both rest on the same certificates,
//! and who is revoked, or has a certificate whose time is over, proves nothing any more.
//!
//! Always: the words that are signed say what they are for (TLS signs spaces first, so that neither signature
//! is ever taken for the other); only nodes sign.
//!
//! Not here: what is signed (`wire`), whether the signer may say it (`lockstepd`).

use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use webpki::{EndEntityCert, KeyUsage};

use base::NodeId;

use crate::{Config, Peer, Refusal, read_claims};

/// That a node has said something.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Proof {
    /// How it is signed: a signature scheme of TLS 1.3.
    pub scheme: u16,
    /// The certificate of who signed it, DER.
    pub certificate: Vec<u8>,
    /// The signature.
    pub signature: Vec<u8>,
}

impl Config {
    /// The certificate that this node shows and signs with, DER.
    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        self.certificate.as_ref()
    }

    /// Signs `statement` as this node; `None` if the key can sign nothing that others verify.
    #[must_use]
    pub fn prove(&self, statement: &[u8]) -> Option<Proof> {
        let signer = self.key.choose_scheme(&self.trust.schemes())?;
        let signature = signer.sign(statement).ok()?;
        let certificate = self.certificate.as_ref().to_vec();
        Some(Proof { scheme: signer.scheme().into(), certificate, signature })
    }

    /// Which node has signed `statement`.
    ///
    /// # Errors
    /// As a session with that node would be refused now; [`Refusal::Damaged`] if it did not sign this, and
    /// [`Refusal::WrongPurpose`] if who did is no node.
    pub fn verify(&self, statement: &[u8], proof: &Proof) -> Result<NodeId, Refusal> {
        let certificate = CertificateDer::from(proof.certificate.as_slice());
        let now = self.clock.current_time().ok_or(Refusal::NotYetValid)?;
        // Of a node: clients' certificates are good for dialling only.
        self.trust.verify(&certificate, now, KeyUsage::server_auth())?;
        let Peer::Node(node) = read_claims(&certificate)?.peer else {
            return Err(Refusal::WrongPurpose);
        };
        let signer = EndEntityCert::try_from(&certificate).map_err(|_| Refusal::Damaged)?;
        let scheme = SignatureScheme::from(proof.scheme);
        // A scheme may stand for several algorithms, of which the key decides.
        let good = self.trust.algorithms(scheme).iter().any(|&algorithm| {
            signer.verify_signature(algorithm, statement, &proof.signature).is_ok()
        });
        if good { Ok(node) } else { Err(Refusal::Damaged) }
    }
}
