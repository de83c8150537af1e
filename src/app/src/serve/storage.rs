//! Opens the data directory, the store and the keys of the gateway.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::signal::unix::SignalKind;

use super::{
    ServeError,
    sealers::{self, Sealers},
};
use countersign_auth::stored_credentials::StoredCredentials;
use countersign_config::LoadedConfig;
use countersign_reload::find_emptied_file;
use countersign_runtime::data_dir::{DataLock, lock_data_dir};
use countersign_store::{Store, StoreError, StoreLocation};

/// The delay after the first failed attempt to reach the store. Each further delay is twice as long.
const FIRST_STORE_RETRY_DELAY: Duration = Duration::from_millis(250);
/// The maximum delay between two attempts to reach the store.
const MAX_STORE_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The locked data directory, with the store and the keys of the gateway.
pub(super) struct Storage {
    pub lock: DataLock,
    pub location: StoreLocation,
    pub store: Arc<dyn Store>,
    pub credentials: Arc<StoredCredentials>,
    pub sealers: Sealers,
}

impl Storage {
    /// Reads the key of stored tokens, locks the data directory, opens the store, and creates the sealers. Refuses a
    /// configuration file that has lost all its keys, unless the operator accepts it.
    ///
    /// # Errors
    /// [`ServeError::KeyFile`]; [`ServeError::EmptiedFile`]; the errors of the lock, of the store and of [`Sealers::open`].
    pub(super) async fn open(loaded: &LoadedConfig, accept_policy: bool) -> Result<Self, ServeError> {
        let config = &loaded.config;
        let token_secret = sealers::read_token_secret(config)?;
        catch_file_size_signal();
        let lock = lock_data_dir(&config.data)?;
        let location = StoreLocation::configured(&config.data, config.store_server())?;
        let start_timeout = config.store.as_ref().map_or(Duration::ZERO, |server| server.start_timeout);
        let store = open_store(&location, start_timeout).await?;
        // Checked before anything that depends on a setting is written.
        if !accept_policy && let Some(file) = find_emptied_file(loaded, &store.policies().await?) {
            return Err(ServeError::EmptiedFile(file.to_owned()));
        }
        location.claim_directory(loaded.source_file("store.url"))?;
        let credentials = Arc::new(StoredCredentials::open(&location)?);
        let sealers = Sealers::open(config, token_secret, &*store, &credentials).await?;
        Ok(Self { lock, location, store, credentials, sealers })
    }
}

/// Catches SIGXFSZ, so that a write beyond the limit on file sizes fails instead of ending the process.
fn catch_file_size_signal() {
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    if let Err(error) = tokio::signal::unix::signal(kind) {
        tracing::warn!(%error, "SIGXFSZ is not caught");
    }
}

/// Opens the store, and tries again until the timeout if it cannot be reached.
async fn open_store(location: &StoreLocation, timeout: Duration) -> Result<Arc<dyn Store>, ServeError> {
    let end = Instant::now() + timeout;
    let mut delay = FIRST_STORE_RETRY_DELAY;
    loop {
        match location.open() {
            Err(error @ StoreError::Unreachable(_)) if Instant::now() + delay < end => {
                let seconds = end.saturating_duration_since(Instant::now()).as_secs();
                tracing::warn!(%error, "trying again for {seconds} s (store.start_timeout)");
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(MAX_STORE_RETRY_DELAY);
            }
            opened => return Ok(opened?),
        }
    }
}
