//! Builds the [`Front`] middleware for tests.

use std::sync::Arc;

use crate::{front::Front, guard::RequestAuthenticator};
use countersign_auth::{Authenticator, DashboardSignIns, OriginRules, stored_credentials::StoredCredentials};
use countersign_config::{Config, Environment, Flags, load};
use countersign_exchange::memory::MemoryBudget;
use countersign_store::StoreLocation;

/// Returns the middleware of a gateway without keys.
pub fn front(config: &Config) -> Front {
    let stored =
        Arc::new(StoredCredentials::open(&StoreLocation::directory(tempfile::tempdir().unwrap().path())).unwrap());
    let authenticator = Arc::new(Authenticator::new(config, Arc::clone(&stored) as _));
    let origins = Arc::new(OriginRules::new(config));
    let sign_ins = Arc::new(DashboardSignIns::new(Arc::clone(&authenticator), stored, &origins));
    let authentication = RequestAuthenticator { authenticator, sign_ins, origins };
    Front::new(Arc::new(authentication), MemoryBudget::new(1 << 20, 1 << 20))
}

/// Returns the configuration of this YAML.
pub fn config(yaml: &str) -> Config {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    std::fs::write(&file, yaml).unwrap();
    let flags = Flags { config: Some(file), data: Some(dir.path().into()), ..Flags::default() };
    load(&flags, &Environment::new(dir.path(), &[])).unwrap_or_else(|error| panic!("{error}")).config
}
