//! The public keys of an issuer (RFC 7517), and the verification of signatures with them.
//!
//! `jsonwebtoken` only parses the keys, and `ring` verifies signatures. To verify, `jsonwebtoken` would need a crypto
//! provider of the whole process, and would panic without it. It also reads the clock itself, accepts repeated members and
//! ignores `crit`.

use jsonwebtoken::{
    Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind,
    jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse},
};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize as _;
use serde_json::Value;

use super::{TokenRefusal, jwt::with_known_algorithm};
use countersign_domain::principal::KeyThumbprint;
use countersign_runtime::secret;

/// The maximum number of keys of an issuer.
pub(super) const MAX_KEYS: usize = 100;
/// The minimum size of the modulus of an RSA key, in bytes (RFC 7518, section 3.3).
const MIN_RSA_BYTES: usize = 256;

/// The usable keys of an issuer.
#[derive(Default)]
pub(super) struct KeySet {
    keys: Vec<VerifyingKey>,
    /// The number of keys beyond [`MAX_KEYS`], which are not used.
    pub unused_count: usize,
}

struct VerifyingKey {
    id: Option<String>,
    /// The algorithms for which the key may be used; never empty.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    thumbprint: KeyThumbprint,
}

/// The result of verifying a signature with the keys of an issuer.
pub(super) enum SignatureCheck {
    /// The thumbprint of the key that made the signature.
    Verified(KeyThumbprint),
    /// No key has the id, or without an id, none fits the algorithm. The issuer may have a new key.
    UnknownKey,
    Refused(TokenRefusal),
}

impl KeySet {
    /// Reads a key set. Keys that cannot verify a token are left out.
    pub(super) fn parse(document: &Value) -> Result<Self, &'static str> {
        let keys = document.get("keys").and_then(Value::as_array).ok_or("it has no list `keys`")?;
        let unused_count = keys.len().saturating_sub(MAX_KEYS);
        Ok(Self { keys: keys.iter().take(MAX_KEYS).filter_map(VerifyingKey::parse).collect(), unused_count })
    }

    /// Finds the key with this id and verifies a signature with it. Without an id, only one key may fit the algorithm.
    pub(super) fn verify(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        message: &[u8],
        signature: &[u8],
    ) -> SignatureCheck {
        let candidates = || self.keys.iter().filter(|key| id.is_none_or(|id| key.id.as_deref() == Some(id)));
        let mut fitting = candidates().filter(|key| key.algorithms.contains(&algorithm));
        match (fitting.next(), fitting.next()) {
            (None, _) if id.is_some() && candidates().next().is_some() => {
                SignatureCheck::Refused(TokenRefusal::invalid("the token's `alg` is not that of its key"))
            }
            (None, _) => SignatureCheck::UnknownKey,
            (Some(_), Some(_)) => {
                SignatureCheck::Refused(TokenRefusal::invalid("the token's header does not say which key signed it"))
            }
            (Some(key), None) if key.is_valid(algorithm, message, signature) => {
                SignatureCheck::Verified(key.thumbprint)
            }
            (Some(_), None) => SignatureCheck::Refused(TokenRefusal::invalid("the token's signature is wrong")),
        }
    }

    /// Returns `true` if the set has the key with this thumbprint.
    pub(super) fn contains(&self, thumbprint: &KeyThumbprint) -> bool {
        self.keys.iter().any(|key| key.thumbprint == *thumbprint)
    }

    /// Returns `true` if this set has all keys of the other one.
    pub(super) fn includes(&self, other: &Self) -> bool {
        other.keys.iter().all(|key| self.contains(&key.thumbprint))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

impl VerifyingKey {
    fn parse(document: &Value) -> Option<Self> {
        let document = with_known_algorithm(document.as_object()?.clone());
        let Jwk { common, algorithm } = Jwk::deserialize(document).ok()?;
        let is_for_signatures = common.public_key_use.is_none_or(|purpose| purpose == PublicKeyUse::Signature)
            && common.key_operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let mut algorithms = match &algorithm {
            AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
            _ => return None,
        };
        algorithms.retain(|usable| common.key_algorithm.is_none_or(|named| named == KeyAlgorithm::from(*usable)));
        let key = DecodingKey::from_jwk(&Jwk { common: Default::default(), algorithm }).ok()?;
        let material = match key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let (n, e) = (trim_zeros(n), trim_zeros(e));
                let has_enough_bits = n.len() > MIN_RSA_BYTES || n.len() == MIN_RSA_BYTES && n[0] >= 0x80;
                has_enough_bits.then(|| [n, b".", e].concat())?
            }
            DecodingKeyKind::SecretOrDer(bytes) => bytes.clone(),
        };
        (is_for_signatures && !algorithms.is_empty()).then(|| Self {
            id: common.key_id,
            algorithms,
            key,
            thumbprint: secret::hash(&material),
        })
    }

    fn is_valid(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => rsa_parameters(algorithm).is_some_and(|parameters| {
                let key = RsaPublicKeyComponents { n: trim_zeros(n), e: trim_zeros(e) };
                key.verify(parameters, message, signature).is_ok()
            }),
            DecodingKeyKind::SecretOrDer(key) => curve_algorithm(algorithm)
                .is_some_and(|algorithm| UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()),
        }
    }
}

/// Removes leading zeros, which some issuers write and `ring` refuses.
fn trim_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

fn curve_algorithm(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&signature::ED25519),
        _ => None,
    }
}
