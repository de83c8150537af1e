//! Authenticates callers by API keys, access tokens, sign-in codes and sign-ins of browsers, and checks the `Host` and
//! `Origin` headers.
//!
//! The crate never logs or returns a secret, and stores only hashes. It identifies the caller, and never decides about
//! a call.
//!
//! [`authenticator`] turns a header and an address into an [`Identity`](countersign_domain::principal::Identity),
//! [`attempts`] slows down guessing, [`keyring`] knows which keys are valid, [`stored_credentials`] reads keys and codes
//! from the store, [`tokens`] verifies access tokens, [`scopes`] checks what they permit, [`dashboard`] manages sign-ins
//! of browsers, and [`origin`] rejects foreign pages and DNS rebinding.

pub mod attempts;
pub mod authenticator;
pub mod codes;
pub mod confusable_names;
pub mod dashboard;
pub mod keyring;
pub mod keys;
pub mod origin;
pub mod scopes;
pub mod stored_credentials;
pub mod tokens;

pub use authenticator::Authenticator;
pub use dashboard::DashboardSignIns;
pub use keyring::Keyring;
pub use origin::{OriginRules, OriginVerdict};
pub use tokens::TokenVerifier;
