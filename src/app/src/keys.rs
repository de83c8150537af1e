//! Derives the keys of the gateway from a secret. All nodes of a store have the same secrets and thus the same keys.

use countersign_domain::changes::digest::PartHasher;

fn derive_key(purpose: &'static str, secret: &[u8; 32]) -> [u8; 32] {
    let mut hasher = PartHasher::new(purpose);
    hasher.add_part(secret);
    hasher.finish_bytes()
}

/// Returns the key that seals the state of requests.
pub fn request_state_key(secret: &[u8; 32]) -> [u8; 32] {
    derive_key("countersign.state.1", secret)
}

/// Returns the key that seals the tokens of sign-ins at the identity provider.
pub fn sign_in_token_key(secret: &[u8; 32]) -> [u8; 32] {
    derive_key("countersign.tokens.1", secret)
}

/// Returns the key that seals the tokens of accounts at servers.
pub fn account_token_key(secret: &[u8; 32]) -> [u8; 32] {
    derive_key("countersign.accounts.1", secret)
}

/// Returns the salt for digests of pending configurations, which stays the same after a restart.
pub fn consent_salt(secret: &[u8; 32]) -> [u8; 16] {
    let mut salt = [0; 16];
    salt.copy_from_slice(&derive_key("countersign.consent.1", secret)[..16]);
    salt
}
