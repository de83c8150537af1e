//! Reads or creates the keys of the gateway, and creates its sealers. All nodes of a store have the same secrets, and
//! therefore the same keys.

use super::{ServeError, token_key};
use countersign_auth::stored_credentials::StoredCredentials;
use countersign_bridge::{StateSealer, load_or_create_key};
use countersign_config::{Config, Secret};
use countersign_domain::changes::digest::PartHasher;
use countersign_runtime::sealing::{Sealer, parse_key, read_key_file};
use countersign_store::Store;

/// The sealers of the gateway, with the salt and the fingerprint that are derived from the same secrets.
pub(super) struct Sealers {
    /// Seals the state of requests.
    pub state: StateSealer,
    /// Seals the tokens of sign-ins at the identity provider.
    pub sign_in: Sealer,
    /// Seals the tokens of accounts at servers.
    pub account: Sealer,
    /// The salt for digests of pending configurations.
    pub consent_salt: [u8; 16],
    /// The fingerprint of the key for stored tokens, for [`token_key::check_again`].
    pub token_key_fingerprint: String,
}

/// Returns the configured secret for stored tokens, if there is one.
///
/// # Errors
/// [`ServeError::KeyFile`]
pub(super) fn read_token_secret(config: &Config) -> Result<Option<[u8; 32]>, ServeError> {
    match &config.token_key {
        Some(Secret(key)) => {
            parse_key(key).ok_or(ServeError::KeyFile(std::io::ErrorKind::InvalidData.into())).map(Some)
        }
        None => config.key_file.as_deref().map(read_key_file).transpose().map_err(ServeError::KeyFile),
    }
}

/// Derives the key for a purpose from a secret.
fn derive_key(purpose: &'static str, secret: &[u8; 32]) -> [u8; 32] {
    let mut hasher = PartHasher::new(purpose);
    hasher.add_part(secret);
    hasher.finish_bytes()
}

impl Sealers {
    /// Creates the sealers from the secret of the cluster or of the data directory. A configured `token_secret` takes
    /// its place for stored tokens.
    ///
    /// # Errors
    /// [`ServeError::StateKey`]; the errors of [`token_key::record`].
    pub(super) async fn open(
        config: &Config,
        token_secret: Option<[u8; 32]>,
        store: &dyn Store,
        credentials: &StoredCredentials,
    ) -> Result<Self, ServeError> {
        let (secret, state_key) = match store.nodes().cluster_secret() {
            Some(secret) => (secret, derive_key("countersign.state.1", &secret)),
            None => {
                let key = load_or_create_key(&config.data).map_err(ServeError::StateKey)?;
                (key, key)
            }
        };
        let refused_key = || ServeError::StateKey(std::io::ErrorKind::InvalidData.into());
        let token_secret = token_secret.unwrap_or(secret);
        // The salt is derived, so that a restart does not change the digests.
        let mut consent_salt = [0; 16];
        consent_salt.copy_from_slice(&derive_key("countersign.consent.1", &secret)[..16]);
        Ok(Self {
            state: StateSealer::new(state_key).ok_or_else(refused_key)?,
            sign_in: Sealer::new(&derive_key("countersign.tokens.1", &token_secret)).ok_or_else(refused_key)?,
            account: Sealer::new(&derive_key("countersign.accounts.1", &token_secret)).ok_or_else(refused_key)?,
            consent_salt,
            token_key_fingerprint: token_key::record(&token_secret, credentials, &*store.nodes()).await?,
        })
    }
}
