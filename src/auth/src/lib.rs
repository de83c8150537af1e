//! Authenticates callers by API keys, access tokens, sign-in codes and sign-ins of browsers, and checks the `Host` and
//! `Origin` headers.
//!
//! The crate never logs a secret, returns the gateway's own secrets only when it creates them, and stores secrets only
//! as hashes or sealed. It identifies the caller, and never decides on a call.
//!
//! [`authenticator`] turns a header and an address into an identity, [`attempts`] limits failures, [`keys`] and
//! [`codes`] create credentials, [`keyring`] caches valid keys, [`stored_credentials`] uses the store, [`tokens`]
//! verifies tokens, [`dashboard_sign_ins`] manages sign-ins of browsers, [`provider_sign_ins`] those with an identity
//! provider, [`confusable_names`] rejects lookalike names, and [`origin`] rejects foreign pages and DNS rebinding.

pub mod attempts;
pub mod authenticator;
pub mod codes;
pub mod confusable_names;
pub mod dashboard_sign_ins;
#[cfg(test)]
mod fixtures;
pub mod keyring;
pub mod keys;
pub mod origin;
pub mod provider_sign_ins;
pub mod stored_credentials;
pub mod tokens;

pub use authenticator::Authenticator;
pub use dashboard_sign_ins::DashboardSignIns;
pub use keyring::Keyring;
pub use origin::{OriginRules, OriginVerdict};
pub use provider_sign_ins::ProviderSignIns;
pub use tokens::TokenVerifier;
